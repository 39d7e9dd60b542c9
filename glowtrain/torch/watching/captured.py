"""Tensors outside of the module that a loss captures: another network's weights, the weights of classes, indices.

What others make of them counts in the next step, and so does what becomes of modules that the loss calls. Floats in
row-major memory are read where they lie; others of them are copied before each step. Integers are constants of the
compiled step, which is compiled anew where they change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap

import torch

from glowtrain.backends.state import State
from glowtrain.graph import Variable
from glowtrain.torch.memory import array_of, check_allocated, check_device, row_major
from glowtrain.torch.tracing.trace import Trace
from glowtrain.torch.watching.guard import MODE, Guard, contents_of, is_strided


class CapturedTensors:
    """Those that the traces of one step captured."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        """What a step reads by name: row-major floats themselves, and copies of others."""
        self._names: dict[int, str] = {}
        self._row_major: dict[str, torch.Tensor] = {}
        self._strided: dict[str, torch.Tensor] = {}
        self._types: dict[str, object] = {}
        self._constants: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        """Tensors that are no floats, and copies of what they were."""
        self._modules: dict[int, torch.nn.Module] = {}
        """The modules, of nobody's step, that the loss calls, and all parts of them."""
        self._holders = Guard()
        """What those modules have, and which attributes of modules are captured tensors."""
        self._borrowed: Guard | None = None
        """Where row-major floats lie, once all of them are read there."""

    def variables(
        self, trace: Trace, module_variables: Mapping[str, Variable], parts: Sequence[torch.nn.Module]
    ) -> dict[str, Variable]:
        """Variables for a trace's floats but for the module's ``module_variables``, by placeholder. Its other tensors
        are watched from now on, and the modules that it calls, besides the ``parts`` of the step's."""
        found: dict[str, Variable] = {}
        made: dict[str, Variable] = {}
        for placeholder, tensor in trace.tensors.items():
            if placeholder in module_variables:
                continue
            if tensor.is_floating_point():
                name = self._taken(tensor)
                variable = Variable(name, array_of(self.tensors[name]), trainable=False)
                found[placeholder] = made.setdefault(name, variable)
            elif placeholder in trace.outside:
                self._constants.setdefault(id(tensor), (tensor, tensor.detach().clone()))
        self._modules.update((id(part), part) for part in trace.others if MODE in vars(part))
        self._holders = self._guard_of_holders(parts)
        return found

    def _taken(self, tensor: torch.Tensor) -> str:
        name = self._names.setdefault(id(tensor), f"outside{len(self._names)}")
        if name not in self.tensors:
            check_device(tensor, "a tensor that the loss reads")
            (self._strided if is_strided(tensor) else self._row_major)[name] = tensor
            self._types[name] = _type(tensor)
            self.tensors[name] = row_major(tensor.detach())
            self._borrowed = None
        return name

    def _guard_of_holders(self, parts: Sequence[torch.nn.Module]) -> Guard:
        modules = self._modules.values()
        modes = [(vars(part), MODE) for part in modules]
        captured = {*self._names, *self._constants}
        holders = [vars(part) for part in (*modules, *parts)]
        attributes = [(each, name) for each in holders for name, value in each.items() if id(value) in captured]
        return Guard((), [each for part in modules for each in contents_of(part)], [*modes, *attributes])

    def follow(self, state: State) -> bool:
        """Read floats where they lie now, and copy strided ones; whether that is all there is to do, as nothing else
        has changed."""
        if not self._holders.holds or not all(starmap(_is, self._constants.values())):
            return False
        if self._borrowed is None or not self._borrowed.holds:
            if not self._have_types(self._row_major):
                return False
            self._borrow(state)
        if not self._have_types(self._strided):
            return False
        for name, tensor in self._strided.items():
            check_allocated(tensor, "a tensor that the loss reads")
            self.tensors[name].copy_(tensor.detach())
        return True

    def _have_types(self, floats: Mapping[str, torch.Tensor]) -> bool:
        return all(_type(tensor) == self._types[name] for name, tensor in floats.items())

    def _borrow(self, state: State) -> None:
        for name, tensor in self._row_major.items():
            if tensor.data_ptr() != self.tensors[name].data_ptr():
                self.tensors[name] = tensor.detach()
                state.borrow(name, array_of(self.tensors[name]))
        self._borrowed = Guard(list(self._row_major.values()))


def _type(tensor: torch.Tensor) -> object:
    """What of a float decides how it is read."""
    return tensor.shape, tensor.dtype, tensor.device, tensor.layout, is_strided(tensor)


def _is(tensor: torch.Tensor, before: torch.Tensor) -> bool:
    """Whether a tensor is what it was."""
    check_allocated(tensor, "a tensor that the loss reads")
    same = (tensor.shape, tensor.dtype, tensor.device) == (before.shape, before.dtype, before.device)
    return same and torch.equal(tensor, before)
