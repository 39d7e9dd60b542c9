"""Functions of tensors from graph code, which PyTorch's autograd differentiates by calling ours.

apply --> forward half, with residuals --> results
backward: residuals, inputs and cotangents --> backward half --> gradients
backward of the backward: the gradients are such a function themselves, made when they are first differentiated
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, compress
from operator import itemgetter
from typing import Any

import torch
from torch._C import _functorch
from torch._C._functorch import is_batchedtensor, is_legacy_batchedtensor, maybe_get_level

from glowtrain.backends.base import Backend
from glowtrain.compiler.address_function import AddressFunction
from glowtrain.compiler.walk import WALK, arrive, select
from glowtrain.errors import DifferentiationError
from glowtrain.grad.halves import Halves, halves
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.ops.tensor.move import zeros
from glowtrain.stages import Options
from glowtrain.torch.dtypes import THEIRS
from glowtrain.torch.memory import Allocation, address, new, row_major
from glowtrain.types import TensorType

Tensors = Sequence[torch.Tensor]
Leaf = Input | Variable
ALIGNMENT = 64
"""Bytes at a multiple of which each residual begins."""


class Formula:
    """Results and updates of variables as graph code, of ``leaves``; ``wanted``: those of them that get gradients.

    ``tape``: the leaves that PyTorch would connect each result with; by default those that a differentiable path does.
    """

    def __init__(
        self, name: str, leaves: Sequence[Leaf], results: Sequence[Value], updates: Mapping[Variable, Value],
        wanted: Sequence[int], backend: Backend, tape: Sequence[Collection[int]] | None = None,
    ) -> None:  # fmt: skip
        self.name = name
        self.leaves = tuple(leaves)
        self.results = tuple(results)
        self.updates = dict(updates)
        self.wanted = tuple(wanted)
        self.backend = backend
        self._tape = tape

    @cached_property
    def graph(self) -> Graph:
        """The results alone."""
        return Graph(self.inputs, self.named_results, self.updates, self.name)

    @property
    def inputs(self) -> tuple[Input, ...]:
        return tuple(leaf for leaf in self.leaves if isinstance(leaf, Input))

    @property
    def named_results(self) -> dict[str, Value]:
        return {f"result{number}": value for number, value in enumerate(self.results)}

    @cached_property
    def cotangents(self) -> dict[int, Input]:
        """The cotangents of the results, by number, that are connected with what gets gradients."""
        return {n: cotangent for n, cotangent in self._all_cotangents.items() if self.connected[n]}

    @cached_property
    def _all_cotangents(self) -> dict[int, Input]:
        floats = {n: value for n, value in enumerate(self.results) if value.dtype.is_float}
        return {n: Input(value.type, f"cotangent{n}.{self.name}") for n, value in floats.items()}

    @cached_property
    def connected(self) -> dict[int, frozenset[int]]:
        """The leaves that get gradients from each float result, perhaps of zeros."""
        if self._tape is not None:
            return {n: frozenset(self.wanted).intersection(self._tape[n]) for n in self._all_cotangents}
        return {n: frozenset(self._pulled([n])) for n in self._all_cotangents}

    @property
    def partial(self) -> list[int]:
        """The leaves that get gradients from some of the results that have any, and not from others."""
        reached = [each for each in self.connected.values() if each]
        return sorted(frozenset().union(*reached).difference(frozenset(self.wanted).intersection(*reached)))

    @cached_property
    def gradients(self) -> dict[int, Value]:
        """The gradients that there are, by the number of the leaf."""
        found = self._pulled(list(self.cotangents))
        connected = frozenset().union(*self.connected.values())
        return {n: found[n] if n in found else zeros(self.leaves[n].type) for n in self.wanted if n in connected}

    @property
    def named_gradients(self) -> dict[str, Value]:
        return {f"gradient{number}": value for number, value in self.gradients.items()}

    def _pulled(self, results: Sequence[int]) -> dict[int, Value]:
        """The gradients of some results, by the number of the leaf that a differentiable path leads to."""
        cotangents = [self._all_cotangents[n] for n in results]
        found = pullback([self.results[n] for n in results], cotangents, [self.leaves[n] for n in self.wanted])
        return {n: value for n, value in zip(self.wanted, found, strict=True) if value is not None}

    @property
    def halves(self) -> Halves:
        """The results with residuals, and the gradients: cut where operators are written out and simplified, so that
        both have what they share once."""
        gradients = self.named_gradients
        names = {value.name for value in self.cotangents.values()}
        simple = self._simplified({**self.named_results, **gradients}, self.updates)
        return halves(simple, list(gradients), [value for value in simple.inputs if value.name in names])

    def _simplified(self, outputs: Mapping[str, Value], updates: Mapping[Variable, Value]) -> Graph:
        """A graph of results and gradients with operators written out, and without what nothing reads of them."""
        graph = Graph((*self.inputs, *self.cotangents.values()), dict(outputs), dict(updates), self.name)
        options = Options(facts=self.backend.facts, row_major_variables=True)
        stages = select("integers", "expanded", "optimized", stages=self.backend.stages(WALK))
        simple: Graph = arrive(graph, options, stages)
        return simple

    def derivative(self, varied: Sequence[bool]) -> Formula:
        """The gradients, of the same leaves and the cotangents; ``varied``: which of these get gradients themselves.

        Raises :class:`DifferentiationError` where they read what a call changes in place.
        """
        leaves = (*self.leaves, *self.cotangents.values())
        read = self._simplified(self.named_gradients, {}).variables
        changed = {value.name for value in read} & {value.name for value in self.updates}
        if changed:
            raise DifferentiationError(
                f"a gradient of a gradient needs {len(changed)} of the tensors that a module changes in place, as they "
                "were before: give it clones of them"
            )
        wanted = (*self.wanted, *compress(range(len(self.leaves), len(leaves)), varied))
        return Formula(f"{self.name}.gradient", leaves, list(self.gradients.values()), {}, wanted, self.backend)


class Block:
    """Where tensors of some types lie in one block of memory."""

    def __init__(self, types: Sequence[TensorType]) -> None:
        sizes = [-(-type_.nbytes // ALIGNMENT) * ALIGNMENT for type_ in types]
        *self.offsets, self.size = accumulate(sizes, initial=0)

    def allocate(self) -> torch.Tensor:
        """New memory for them."""
        return new((self.size,), (1,), torch.uint8)

    def addresses(self, block: torch.Tensor) -> list[int]:
        """Where each of them lies."""
        first = block.data_ptr()
        return [first + offset for offset in self.offsets]


class Inference:
    """A formula compiled for calls of which no gradient is wanted."""

    def __init__(self, formula: Formula) -> None:
        leaves = [leaf.name for leaf in formula.leaves]
        self._run = AddressFunction(formula.graph, formula.backend, [*leaves, *formula.named_results])
        self._results = Allocation([value.type for value in formula.results])

    def __call__(self, tensors: Tensors) -> list[torch.Tensor]:
        """The results, in memory of their own. The tensors are the formula's leaves, row-major."""
        results = self._results()
        self._run([*map(address, tensors), *map(address, results)])
        return results


class Training:
    """A formula compiled for calls whose results autograd differentiates: as often as is wanted."""

    def __init__(self, formula: Formula) -> None:
        self.formula = formula
        parts = formula.halves
        leaves = [leaf.name for leaf in formula.leaves]
        own = [name for name in parts.forward.outputs if name not in formula.named_results]
        self._results = Allocation([value.type for value in formula.results])
        self._block = Block([parts.forward.outputs[name].type for name in own])
        self._forward = AddressFunction(parts.forward, formula.backend, [*leaves, *formula.named_results, *own])
        read = {value.name for value in parts.backward.inputs}
        self._read_leaves = [number for number, name in enumerate(leaves) if name in read]
        self._other_leaves = [number for number, name in enumerate(leaves) if name not in read]
        self._read_results = [number for number, name in enumerate(formula.named_results) if name in read]
        names = [
            *(value.name for value in formula.cotangents.values()),
            *(leaves[number] for number in self._read_leaves),
            *(f"result{number}" for number in self._read_results),
            *own,
        ]
        self._backward = AddressFunction(parts.backward, formula.backend, [*names, *parts.backward.outputs])
        self._gradients = Allocation([value.type for value in formula.gradients.values()])
        order = {number: at for at, number in enumerate(formula.gradients)}
        missing = len(order)
        self._by_argument = itemgetter(missing, *(order.get(number, missing) for number in range(len(leaves))))
        self._derivatives: dict[tuple[bool, ...], Inference | Training] = {}
        self._constant = [n for n in range(len(formula.results)) if n not in formula.cotangents]
        self._cotangents = list(formula.cotangents)
        self._unconnected = [number for number in formula.wanted if number not in formula.gradients]
        self._keeps = bool(self._read_leaves or self._read_results or own)
        """Whether backward reads anything of the call."""

    def __call__(self, tensors: Tensors) -> Tensors:
        """The results, in memory of their own. The tensors are the formula's leaves, row-major."""
        if self._unconnected:  # hooks of a tensor to which an edge leads are called, with None
            tensors = [each.detach() if n in self._unconnected else each for n, each in enumerate(tensors)]
        results: Tensors = _apply(self, *tensors)
        return results

    def forward(self, context: Any, tensors: Tensors) -> tuple[torch.Tensor, ...]:
        """The results; what backward reads is kept in ``context``, which belongs to the call."""
        results = self._results()
        kept = [*[tensors[n] for n in self._read_leaves], *[results[n] for n in self._read_results]]
        addresses = [*map(address, tensors), *map(address, results)]
        if self._block.offsets:
            block = self._block.allocate()
            addresses += self._block.addresses(block)
            kept.append(block)
        self._forward(addresses)
        context.training = self
        if kept:
            context.save_for_backward(*kept)
        context.set_materialize_grads(False)
        if self._other_leaves:
            context.others = [(tensor := tensors[n], tensor._version) for n in self._other_leaves]
        if self._constant:
            context.mark_non_differentiable(*[results[n] for n in self._constant])
        return tuple(results)

    def backward(self, context: Any, incoming: Sequence[torch.Tensor | None]) -> Sequence[torch.Tensor | None]:
        """The gradients by leaf, after None for the formula."""
        kept = context.saved_tensors if self._keeps else ()
        cotangents = [self._cotangent(number, incoming[number]) for number in self._cotangents]
        if torch.is_grad_enabled():
            derivative = self._derivative(tuple(each.requires_grad for each in cotangents))
            gradients = derivative([*self._leaves(context, kept), *cotangents])
        else:
            gradients = self._gradients()
            self._backward(self._addresses(cotangents, kept, gradients))
        by_argument: Sequence[torch.Tensor | None] = self._by_argument((*gradients, None))
        return self._without_unread(by_argument, incoming)

    def _without_unread(
        self, gradients: Sequence[torch.Tensor | None], incoming: Sequence[torch.Tensor | None]
    ) -> Sequence[torch.Tensor | None]:
        """None for leaves that nothing connects with the results which the caller reads."""
        read = [number for number in self._cotangents if incoming[number] is not None]
        if len(read) == len(self._cotangents):
            return gradients
        connected = frozenset().union(*(self.formula.connected[number] for number in read))
        return (None, *(g if number in connected else None for number, g in enumerate(gradients[1:])))

    def _addresses(self, cotangents: Tensors, kept: Tensors, gradients: Tensors) -> list[int]:
        """The addresses that the backward half is called with."""
        addresses = [*map(address, cotangents), *map(address, kept)]
        if self._block.offsets:
            addresses[-1:] = self._block.addresses(kept[-1])
        addresses += map(address, gradients)
        return addresses

    def _cotangent(self, number: int, cotangent: torch.Tensor | None) -> torch.Tensor:
        return self._zeros[number] if cotangent is None else row_major(cotangent)

    @cached_property
    def _zeros(self) -> dict[int, torch.Tensor]:
        types = {number: value.type for number, value in self.formula.cotangents.items()}
        return {number: torch.zeros(type_.shape, dtype=THEIRS[type_.dtype]) for number, type_ in types.items()}

    def _leaves(self, context: Any, kept: Tensors) -> list[torch.Tensor]:
        """All leaves of a call. Raises :class:`RuntimeError`, as PyTorch does, where one was changed since."""
        found: dict[int, torch.Tensor] = dict(zip(self._read_leaves, kept, strict=False))
        others = context.others if self._other_leaves else ()
        for number, (tensor, version) in zip(self._other_leaves, others, strict=True):
            if tensor._version != version and self.formula.leaves[number] not in self.formula.updates:
                raise RuntimeError(
                    "a tensor that the gradient's gradient needs was changed by an inplace operation: "
                    f"{tuple(tensor.shape)} is at version {tensor._version}, expected version {version}"
                )
            found[number] = tensor
        return [found[number] for number in range(len(self.formula.leaves))]

    def _derivative(self, varied: tuple[bool, ...]) -> Inference | Training:
        """The gradients as a function that can be differentiated again, also by the cotangents that are ``varied``."""
        found = self._derivatives.get(varied)
        if found is None:
            found = self._derivatives[varied] = compiled(self.formula.derivative(varied))
        return found


def compiled(formula: Formula) -> Inference | Training:
    """A formula for calls that autograd differentiates, if there is anything to differentiate."""
    return Training(formula) if formula.wanted and formula.gradients else Inference(formula)


class _Call(torch.autograd.Function):
    """One call of a formula."""

    @staticmethod
    def forward(context: Any, training: Training, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return training.forward(context, tensors)

    @staticmethod
    @torch.compiler.disable  # Dynamo traces what is called in between of two of its graphs, by autograd too
    def backward(context: Any, *cotangents: torch.Tensor | None) -> Any:
        batched = next((each for each in cotangents if each is not None and _is_batched(each)), None)
        if batched is not None:
            return _mapped(context, cotangents, batched)
        return context.training.backward(context, cotangents)


def _is_batched(tensor: torch.Tensor) -> bool:
    """Whether ``vmap`` has many tensors stand in it: that of functorch, or the older one of PyTorch's autograd."""
    return bool(is_batchedtensor(tensor) or is_legacy_batchedtensor(tensor))


def _mapped(context: Any, cotangents: Sequence[torch.Tensor | None], batched: torch.Tensor) -> Any:
    """The gradients of a call for each row of cotangents that ``vmap`` has batched as one of them is, and so are these:
    as ``torch.autograd.grad(..., is_grads_batched=True)`` asks for."""
    level, library = (maybe_get_level(batched), _functorch) if is_batchedtensor(batched) else (_legacy_level(), torch)
    count = len(library._remove_batch_dim(batched, level, 1, 0))
    rows = [None if each is None else library._remove_batch_dim(each, level, count, 0) for each in cotangents]
    found = [_Call.backward(context, *[each if each is None else each[n] for each in rows]) for n in range(count)]
    stacked = [None if each[0] is None else torch.stack(each) for each in zip(*found, strict=True)]
    return tuple(each if each is None else library._add_batch_dim(each, 0, level) for each in stacked)


def _legacy_level() -> int:
    level: int = torch._C._vmapmode_increment_nesting() - 1
    torch._C._vmapmode_decrement_nesting()
    return level


_apply = super(torch.autograd.Function, _Call).apply
"""What ``_Call.apply`` calls in the end, without looking for transforms of functorch before: there are none in what
Dynamo runs."""
