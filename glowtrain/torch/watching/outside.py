"""Tensors of nobody's module that a loss reads: another network's weights, the weights of classes, indices.

What others make of them counts in the next step, and so does what becomes of modules that the loss calls. Floats in
row-major memory are read where they lie; others of them are copied before each step. Integers are part of the compiled
step, which is compiled anew where they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from glowtrain.backends.state import State
from glowtrain.graph import Variable
from glowtrain.torch.memory import array_of, check_device, row_major
from glowtrain.torch.tracing.trace import Trace
from glowtrain.torch.watching.guard import Guard, contents_of
from glowtrain.torch.watching.watch import MODE, Remembered, dicts_of


class Outside:
    """The outside tensors of one step's traces."""

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._floats: dict[str, torch.Tensor] = {}
        self._types: dict[str, object] = {}
        self._others: dict[int, tuple[torch.Tensor, object]] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        """What a step reads by name: those tensors themselves, or copies of those that do not lie row-major."""
        self._parts: dict[int, torch.nn.Module] = {}
        """The modules, of nobody's step, that the loss calls, and all parts of them."""
        self._remembered = Remembered([], [], [])
        self.moves = 0
        """How often one of them was elsewhere than before."""

    def variables(
        self, trace: Trace, own: Mapping[str, Variable], parts: Sequence[torch.nn.Module]
    ) -> dict[str, Variable]:
        """Variables for a trace's floats but for the module's ``own``, by placeholder; its other tensors are
        remembered, and the modules that it calls, besides the ``parts`` of the step's."""
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
        self._parts.update((id(part), part) for part in trace.others if MODE in vars(part))
        self._remember(parts)
        return found

    def _remember(self, parts: Sequence[torch.nn.Module]) -> None:
        """What the called modules hold, in which mode they are, and which tensors are mere attributes of modules."""
        dicts = [each for part in self._parts.values() for each in dicts_of(part)]
        modes = [(vars(part), MODE) for part in self._parts.values()]
        read = {*map(id, self._floats.values()), *self._others}
        of = [vars(part) for part in (*self._parts.values(), *parts)]
        attributes = [(each, name) for each in of for name, value in each.items() if id(value) in read]
        self._remembered = Remembered(dicts, [], [], [*modes, *attributes])

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
        if (
            not same
            or not self._remembered.unchanged
            or any(_present(tensor) != then for tensor, then in self._others.values())
        ):
            return False
        for name, tensor in self._floats.items():
            if not _strided(tensor) and tensor.data_ptr() != self.tensors[name].data_ptr():
                self.tensors[name] = tensor.detach()
                state.borrow(name, array_of(self.tensors[name]))
                self.moves += 1
        return True

    def guarded(self, guard: Guard) -> None:
        """Add all of it to a guard."""
        self._remembered.guarded(guard)
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
