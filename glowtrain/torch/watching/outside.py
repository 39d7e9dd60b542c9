"""Tensors of nobody's module that a loss reads: another network's weights, the weights of classes, indices.

What others make of them counts in the next step. Floats in row-major memory are read where they lie; others of them are
copied before each step. Integers are part of the compiled step, which is compiled anew where they change.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from glowtrain.backends.state import State
from glowtrain.graph import Variable
from glowtrain.torch.memory import array_of, check_device, row_major
from glowtrain.torch.tracing.trace import Trace
from glowtrain.torch.watching.guard import Guard, contents_of


class Outside:
    """The outside tensors of one step's traces."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._floats: dict[str, torch.Tensor] = {}
        self._types: dict[str, object] = {}
        self._others: dict[int, tuple[torch.Tensor, object]] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        """What a step reads by name: those tensors themselves, or copies of those that do not lie row-major."""
        self.moves = 0
        """How often one of them was elsewhere than before."""

    def variables(self, trace: Trace, own: Mapping[str, Variable]) -> dict[str, Variable]:
        """Variables for a trace's floats but for the module's ``own``, by placeholder; its other tensors are
        remembered."""
        found: dict[str, Variable] = {}
        made: dict[str, Variable] = {}
        for placeholder, tensor in trace.tensors.items():
            if placeholder in own:
                continue
            if tensor.is_floating_point():
                name = self._taken(tensor)
                variable = Variable(name, array_of(self.tensors[name]), trainable=False)
                found[placeholder] = made.setdefault(name, variable)
            elif placeholder in trace.outside:
                self._others.setdefault(id(tensor), (tensor, _present(tensor)))
        return found

    def _taken(self, tensor: torch.Tensor) -> str:
        name = self._names.setdefault(id(tensor), f"outside{len(self._names)}")
        if name not in self._floats:
            check_device(tensor, "a tensor that the loss reads")
            self._floats[name], self._types[name] = tensor, _type(tensor)
            self.tensors[name] = row_major(tensor.detach())
        return name

    @property
    def copied(self) -> bool:
        """Whether some are copied before each step."""
        return any(map(_strided, self._floats.values()))

    def copy(self) -> None:
        """Copy those that do not lie row-major."""
        for name, tensor in self._floats.items():
            if _strided(tensor):
                self.tensors[name].copy_(tensor.detach())

    def follow(self, state: State) -> bool:
        """Read floats where they lie now; whether that is all there is to do, as nothing else has changed."""
        same = all(_type(tensor) == self._types[name] for name, tensor in self._floats.items())
        if not same or any(_present(tensor) != then for tensor, then in self._others.values()):
            return False
        for name, tensor in self._floats.items():
            if not _strided(tensor) and tensor.data_ptr() != self.tensors[name].data_ptr():
                self.tensors[name] = tensor.detach()
                state.borrow(name, array_of(self.tensors[name]))
                self.moves += 1
        return True

    def guarded(self, guard: Guard) -> None:
        """Add all of it to a guard."""
        for tensor in self._floats.values():
            guard.add_tensor(tensor)
        for tensor, _ in self._others.values():
            guard.add_tensor(tensor)
            guard.add_contents(tensor)


def _strided(tensor: torch.Tensor) -> bool:
    return tensor.is_neg() or not tensor.is_contiguous()


def _type(tensor: torch.Tensor) -> object:
    """What of a float decides how it is read."""
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout, _strided(tensor)


def _present(tensor: torch.Tensor) -> object:
    """What changes when a tensor does."""
    return tensor.data_ptr(), tensor.stride(), _type(tensor), contents_of(tensor)
