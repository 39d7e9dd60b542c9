"""Inputs that index other tensors (rows of an embedding, labels): are a call's values in range?

Compiled code cannot stop at a wrong index, so values are checked before it runs. An input is checked where it is an
index operand itself, or becomes one through operators of one operand that move or map elements (Reshape, Cast).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from glowtrain.graph.operator import as_tuple
from glowtrain.graph.traversal import topological
from glowtrain.graph.value import Constant, Input, Node, Value, Variable
from glowtrain.types import Array

if TYPE_CHECKING:
    from glowtrain.graph.graph import Graph


@dataclass(frozen=True)
class IndexRange:
    """The values that an index operand may have: from ``low`` to ``high``, or ``ignored``.

    Bounds that differ along the operand's last axis are tuples.
    """

    low: int | tuple[float, ...]
    high: int | tuple[float, ...]
    ignored: int | None = None

    def holds(self, array: Array) -> bool:
        """Whether all values are certainly allowed; quicker to say than which are not."""
        if not array.size:
            return True
        if isinstance(self.low, tuple) or isinstance(self.high, tuple) or array.dtype.kind not in "iu":
            return False
        if self.low == 0 and array.dtype.kind == "i":  # read as unsigned, a negative number is too large
            return bool(array.view(f"u{array.dtype.itemsize}").max() <= self.high)
        return bool(self.low <= array.min() and array.max() <= self.high)

    def violations(self, array: Array) -> Array:
        """Where an array has other values."""
        wrong: Array = (array < np.asarray(self.low)) | (array > np.asarray(self.high))
        return wrong if self.ignored is None else wrong & (array != self.ignored)

    def __str__(self) -> str:
        bounds = f"{_listed(self.low)} to {_listed(self.high)}"
        return bounds if self.ignored is None else f"{bounds}, or {self.ignored}"


def _listed(bound: int | tuple[float, ...]) -> str:
    return str(bound if isinstance(bound, int) else list(bound))


@dataclass(frozen=True)
class IndexedInput:
    """An input whose elements index another tensor, by its name, and what they may be. ``rearranged``: what is looked
    up are its own elements, at other places at most. ``fixed``: the same holds for every example of a data set."""

    name: str
    allowed: IndexRange
    rearranged: bool
    fixed: bool

    def holds(self, inputs: Mapping[str, Any]) -> bool:
        """Whether the input is there, an array, and its values are certainly allowed."""
        array = inputs.get(self.name) if isinstance(inputs, dict) else None
        return isinstance(array, np.ndarray) and self.rearranged and self.allowed.holds(array)


@dataclass(frozen=True)
class IndexUse:
    """An input as an index operand of ``reader``, after the nodes of ``path``."""

    input: Input
    path: tuple[Node, ...]
    reader: Node
    allowed: IndexRange

    @property
    def fixed(self) -> bool:
        """The same for every example of a data set: elements are not moved, and lead into parameters or constants."""
        others = [value for value in self.reader.inputs if value is not None and value is not self.operand]
        leaves = all(isinstance(value, (Variable, Constant)) for value in others)
        return leaves and all(node.operator.elementwise for node in self.path)

    @cached_property
    def rearranged(self) -> bool:
        """Whether the operand's elements are the input's, at other places."""
        return all(node.operator.moves for node in self.path)

    @property
    def operand(self) -> Value:
        return self.path[-1].output if self.path else self.input

    @cached_property
    def indexed(self) -> IndexedInput:
        """What must hold, without the nodes by which it must."""
        return IndexedInput(self.input.name, self.allowed, self.rearranged, self.fixed)

    def counts_from_front(self, array: Array) -> bool:
        """Whether all values are allowed, and none counts from the end of what is looked up."""
        allowed = self.allowed
        if self.rearranged and isinstance(allowed.low, int) and array.dtype.kind in "iu":
            allowed = replace(allowed, low=max(allowed.low, 0))
            return allowed.holds(array) or not allowed.violations(array).any()
        return not self.problem(array)

    def problem(self, array: Array) -> str:
        """What is wrong with the input's values; empty if nothing."""
        indices = array
        with np.errstate(all="ignore"):
            for node in self.path:
                indices = np.asarray(node.operator.reference(*(None if v is None else indices for v in node.inputs)))
        wrong = self.allowed.violations(indices)
        if not wrong.any():
            return ""
        value = indices[wrong][0]
        found = np.argwhere(array == value) if self.path else np.argwhere(wrong)
        index = f" at {found[0].tolist()}" if len(found) else ""
        return f"{self.input.name!r} must hold numbers from {self.allowed} for {self._reader()}, but has {value}{index}"

    def _reader(self) -> str:
        operands = ", ".join("-" if v is None else v.name or str(v.type) for v in self.reader.inputs)
        name = f" (node {self.reader.name!r})" if self.reader.name else ""
        return f"{self.reader.operator}({operands}){name}"


def index_uses(graph: Graph) -> Iterator[IndexUse]:
    """Every use of an input as an index, each range once."""
    seen = set()
    for node, operand, inner, allowed in (*_direct(graph.nodes), *_in_loops(graph.nodes)):
        source, outer = _source(operand)
        path = (*outer, *inner)
        if isinstance(source, Input) and (source, path, allowed) not in seen:
            seen.add((source, path, allowed))
            yield IndexUse(source, path, node, allowed)


_Use = tuple[Node, Value | None, tuple[Node, ...], IndexRange]
"""What reads an operand as an index, after the nodes of a path, and the indices that are allowed."""


def check_constant_indices(node: Node) -> None:
    """Raise :class:`ShapeError` where a constant indexes outside of what a node looks up: code has no error for it."""
    types = [None if value is None else value.type for value in node.inputs]
    for position, allowed in node.operator.index_ranges(*types).items():
        value = node.inputs[position]
        if isinstance(value, Constant) and not allowed.holds(value.array) and allowed.violations(value.array).any():
            index = tuple(np.argwhere(allowed.violations(value.array))[0].tolist())
            raise node.operator.fail(f"index {value.array[index]} at {list(index)} is not in {allowed}", *types)


def _direct(nodes: Iterable[Node]) -> Iterator[_Use]:
    return ((node, node.inputs[position], (), allowed) for node, position, allowed in _readers(nodes))


def _in_loops(nodes: Iterable[Node]) -> Iterator[_Use]:
    """What bodies of loops read of operands as indices. Of slices only the places of elements differ, so nothing in a
    path counts but what changes elements; bounds that depend on places cannot be told of the whole."""
    for node in nodes:
        for position, use in node.operator.index_uses_inside():
            if isinstance(use.allowed.low, int) and isinstance(use.allowed.high, int):
                changing = tuple(inner for inner in use.path if not inner.operator.moves)
                yield use.reader, node.inputs[position], changing, use.allowed


def _readers(nodes: Iterable[Node]) -> Iterator[tuple[Node, int, IndexRange]]:
    """The index operands of nodes and of what they decompose into: node, position, and the indices that are allowed."""
    for node in nodes:
        own = node.operator.index_ranges(*(None if value is None else value.type for value in node.inputs))
        yield from ((node, position, allowed) for position, allowed in own.items())
        if own or not any(map(_may_be_index, node.inputs)):
            continue
        operator = node.operator
        if operator.has("decompose") and not operator.lowers(*node.inputs):
            results = operator.decompose(*node.inputs)
            operands = frozenset(value for value in node.inputs if value is not None)
            yield from _readers(topological(as_tuple(results), operands))


def _may_be_index(value: Value | None) -> bool:
    return value is not None and value.dtype.is_integer and isinstance(_source(value)[0], Input)


def _source(value: Value | None) -> tuple[Value | None, tuple[Node, ...]]:
    """Where a value comes from through operators of one operand, and these operators in order."""
    path: list[Node] = []
    while value is not None and value.node is not None:
        operands = [operand for operand in value.node.inputs if operand is not None]
        operator = value.node.operator
        if len(operands) != 1 or len(value.node.outputs) != 1 or not (operator.elementwise or operator.moves):
            break
        path.append(value.node)
        value = operands[0]
    return value, tuple(reversed(path))


def index_problems(graph: Graph, arrays: Mapping[str, Array], *, fixed: bool = False) -> list[str]:
    """What is wrong with index inputs, one line each; with ``fixed`` only by what holds for any number of examples."""
    given = dict(arrays)
    asked = (use for use in graph.indexed_inputs if use.name in given and (use.fixed or not fixed))
    if all(use.holds(given) for use in asked):
        return []
    uses = [use for use in graph.index_uses if use.fixed or not fixed]
    found = (use.problem(arrays[use.input.name]) for use in uses if use.input.name in arrays)
    return list(dict.fromkeys(filter(None, found)))
