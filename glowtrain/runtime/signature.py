"""What a network takes and gives, and whether its first axis is one of examples."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.errors import BindingError, InputError
from glowtrain.graph import Graph, Template
from glowtrain.graph.input_arrays import as_array
from glowtrain.graph.specialise.index_ranges import IndexUse
from glowtrain.presentation.messages import kind_of, listed
from glowtrain.types import Array, Spec, TensorType

BATCH = "batch"
"""The first extent of a batched network's inputs and outputs, as its specs say it."""


@dataclass(frozen=True)
class NetworkSignature:
    """Inputs and outputs by name, of which batched ones have :data:`BATCH` as their first extent. ``size``: the rows of
    the largest batch. ``indices``: the inputs that index other tensors, at that size."""

    name: str
    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]
    batched: bool
    size: int = 1
    indices: tuple[IndexUse, ...] = ()

    def checked(self, inputs: Mapping[str, Any], *, copied: bool = False) -> tuple[dict[str, Array], int]:
        """A request's inputs as arrays of the declared types, and how many rows they have. With ``copied`` none of them
        is memory of whoever asks: what has been checked stays as it is.

        Raises :class:`InputError` naming missing, unknown and ill-typed inputs, and indices that are out of range.
        """
        if (rows := self._rows_of_fitting(inputs)) is not None:
            return {name: array.copy() if copied else array for name, array in inputs.items()}, rows
        if not isinstance(inputs, Mapping):
            raise InputError(f"{self.name}: inputs must be a dict from names to arrays, not {kind_of(inputs)}")
        arrays = {
            name: as_array(inputs[name], _any_rows(spec), name) for name, spec in self.inputs.items() if name in inputs
        }
        if copied:
            arrays = {name: array.copy() for name, array in arrays.items()}
        problems = [f"{name!r} is missing ({spec})" for name, spec in self.inputs.items() if name not in inputs]
        known = ", ".join(self.inputs) or "none"
        problems += [f"{name!r} is not an input (inputs: {known})" for name in inputs if name not in self.inputs]
        problems += [problem for name, array in arrays.items() if (problem := self._problem(name, array))]
        problems = problems or [*self._rows_problems(arrays), *self._index_problems(arrays)]
        if problems:
            raise InputError(f"{self.name}: " + "; ".join(problems))
        return arrays, len(next(iter(arrays.values()))) if self.batched else 1

    def _rows_of_fitting(self, inputs: Any) -> int | None:
        """How many rows there are in inputs that are just what is declared already, as they mostly are: nothing else is
        looked at then."""
        if type(inputs) is not dict or inputs.keys() != self.inputs.keys() or self.indices or not self.inputs:
            return None
        rows, fixed = set[int](), int(self.batched)
        for name, spec in self.inputs.items():
            array = inputs[name]
            if type(array) is not np.ndarray or array.dtype != spec.dtype.numpy or not array.flags.c_contiguous:
                return None
            if array.ndim != len(spec.shape) or array.shape[fixed:] != spec.shape[fixed:]:
                return None
            rows.add(len(array) if self.batched else 1)
        return rows.pop() if len(rows) == 1 and 0 not in rows else None

    def requested(self, outputs: Collection[str] | None) -> tuple[str, ...]:
        """The outputs that a request asks for; all by default. Raises :class:`InputError` for unknown ones."""
        return requested_outputs(self.name, self.outputs, outputs)

    def _problem(self, name: str, array: Array) -> str:
        spec = self.inputs[name]
        wanted = spec.shape[1:] if self.batched else spec.shape
        found = array.shape[1:] if self.batched and array.ndim else array.shape
        fits = array.dtype == spec.dtype.numpy and found == wanted and array.ndim == len(spec.shape)
        return "" if fits else f"{name!r} must be {spec}, not {array.dtype}{list(array.shape)}"

    def _rows_problems(self, arrays: Mapping[str, Array]) -> Iterator[str]:
        if not self.batched:
            return
        rows = {name: len(array) for name, array in arrays.items()}
        if len(set(rows.values())) > 1:
            told = ", ".join(f"{name!r} has {count}" for name, count in rows.items())
            yield f"all inputs must have the same number of rows: {told}"
        if 0 in rows.values():
            yield "a request needs at least one row"

    def _index_problems(self, arrays: Mapping[str, Array]) -> Iterator[str]:
        for use in self.indices:
            if not use.indexed.holds(dict(arrays)):
                yield from filter(None, map(use.problem, self._batches(arrays[use.input.name])))

    def _batches(self, array: Array) -> Iterator[Array]:
        """An input in batches of the size that index uses are for."""
        if not self.batched:
            yield array
            return
        for begin in range(0, len(array), self.size):
            yield np.take(array, np.minimum(np.arange(begin, begin + self.size), len(array) - 1), axis=0)


def requested_outputs(name: str, available: Collection[str], outputs: Collection[str] | None) -> tuple[str, ...]:
    """The outputs that a request asks for, of those that ``name`` has; all by default. Raises :class:`InputError` for
    unknown ones."""
    if outputs is None:
        return tuple(available)
    if isinstance(outputs, str):
        raise InputError(f"{name}: outputs are a list of names, not a text: [{outputs!r}]")
    names: Any = outputs
    if not isinstance(names, Collection):
        raise InputError(f"{name}: outputs are a list of names, not {kind_of(names)}")
    if wrong := [repr(each) for each in names if not isinstance(each, str) or each not in available]:
        raise InputError(f"{name} has no output {', '.join(wrong)}; it has {listed(available)}")
    return tuple(dict.fromkeys(outputs))


def signature_of(name: str, largest: Graph, *, batched: bool) -> NetworkSignature:
    """The signature of a network by its graph for the largest batch."""
    inputs = {value.name: Spec(value.dtype, value.shape) for value in largest.inputs}
    outputs = {output: Spec(value.dtype, value.shape) for output, value in largest.outputs.items()}
    if not batched:
        return NetworkSignature(name, inputs, outputs, batched, indices=largest.index_uses)
    size = largest.inputs[0].shape[0]
    return NetworkSignature(name, _batched(inputs), _batched(outputs), batched, size, largest.index_uses)


def batch_symbol(template: Template) -> str | None:
    """The dimension that is the first extent of all inputs, and of nothing else of them; None where there is none."""
    first = {spec.shape[:1] for spec in template.inputs.values()}
    if len(first) != 1 or template.structures or not (extents := first.pop()) or not isinstance(extents[0], str):
        return None
    symbol = extents[0]
    others = [extent for spec in template.inputs.values() for extent in spec.shape[1:]]
    return None if symbol in others else symbol


def open_dims(template: Template, symbol: str | None) -> None:
    """Raise :class:`BindingError` for dimensions besides the batch that nobody has bound."""
    rest = [name for name in template.symbols if name != symbol]
    if rest:
        told = ", ".join(f"{name!r}: ..." for name in rest)
        raise BindingError(
            f"{template.name}: a network's dimensions are fixed but for the batch; bind the others: dims={{{told}}}"
        )


def gives_rows(graph: Graph, rows: int) -> bool:
    """Whether all inputs and outputs have so many rows."""
    values = (*graph.inputs, *graph.outputs.values())
    return bool(graph.inputs) and all(value.shape[:1] == (rows,) for value in values)


def _batched(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    return {name: Spec(spec.dtype, (BATCH, *spec.shape[1:])) for name, spec in specs.items()}


def _any_rows(spec: Spec) -> TensorType:
    """The element type, for what is converted."""
    return TensorType(spec.dtype)
