"""Find the value that first went bad: run a step that gave NaN or infinity again in the interpreter."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.graph import Constant, Graph, Input, Value, Variable
from glowtrain.types import Array


def first_bad(graph: Graph, result: Value, inputs: Mapping[str, Array], state: Mapping[str, Array]) -> str:
    """A sentence that names the first value on the way to ``result`` that is NaN, or infinite if none is NaN.

    Infinities that are constants (causal masks) are taken as meant.
    """
    known = evaluate(graph.with_(outputs={"result": result}, updates={}), inputs, state)
    if np.isfinite(known[result]).all():
        return "the interpreter computes a finite loss from the same values: it went bad in compiled code only"
    nan, infinite = _where(np.isnan, known), _where(np.isinf, known)
    value = _origin(result, nan if result in nan else infinite)
    if value in nan and value.node is not None:
        source = _overflow(value, infinite)
        value = value if source is None else source
    is_bad = np.isnan if value in nan else np.isinf
    return f"the first bad value is {describe(value)}: {_places(known[value], is_bad)}" + _operands(value, known)


def _where(is_bad: np.ufunc, known: Mapping[Value, Array]) -> set[Value]:
    return {value for value, array in known.items() if _floats(array) and is_bad(array).any()}


def _overflow(value: Value, infinite: set[Value]) -> Value | None:
    """Where the infinity that made a NaN comes from, unless it is a constant's."""
    assert value.node is not None
    for operand in value.node.inputs:
        if operand in infinite and not isinstance(operand, Constant):
            assert operand is not None
            source = _origin(operand, infinite)
            leaves = () if source.node is None else source.node.inputs
            if not any(isinstance(leaf, Constant) and leaf in infinite for leaf in leaves):
                return source
    return None


def _origin(result: Value, bad: set[Value]) -> Value:
    """Up from the result through bad operands to a value with none (the first of several)."""
    value = result
    while value.node is not None:
        operands = [operand for operand in value.node.inputs if operand in bad and not isinstance(operand, Constant)]
        if not operands:
            break
        assert operands[0] is not None
        value = operands[0]
    return value


def describe(value: Value) -> str:
    """A value for a reader: where it comes from, and its type."""
    if isinstance(value, Input):
        return f"input {value.name!r} ({value.type})"
    if isinstance(value, Variable):
        return f"variable {value.name!r} ({value.type}), which the step before must have spoiled"
    if value.node is None:
        return f"a constant ({value.type})"
    return f"the result {value.type} of {value.node}"


def _places(array: Array, is_bad: np.ufunc) -> str:
    wrong = is_bad(array)
    place = tuple(int(index) for index in np.argwhere(wrong)[0])
    return f"{array[place]} at {list(place)}, {int(wrong.sum())} of {array.size} elements"


def _operands(value: Value, known: Mapping[Value, Array]) -> str:
    """The ranges of the operands that the bad value was computed from."""
    if value.node is None:
        return ""
    ranges = [
        f"{operand.name or operand.type} in [{known[operand].min():g}, {known[operand].max():g}]"
        for operand in value.node.inputs
        if operand is not None and known[operand].size and operand.dtype.kind != "bool"
    ]
    return f"; its operands: {', '.join(ranges)}" if ranges else ""


def _floats(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"
