"""Tensors whose size along one axis is found at run time: memory for the greatest size, and the size as a value.

What reads such a tensor works on all of it. :func:`follow` says where the axis went, :func:`prepared` makes operands so
that places past the size do no harm: sums count them as 0, negative indices count from the size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from glowtrain.errors import ModelError
from glowtrain.graph import Constant, Operator, Value, constant
from glowtrain.ops.extrema import Min
from glowtrain.ops.logic import Where
from glowtrain.ops.move import LAST, Concat, reshape
from glowtrain.types import DType


@dataclass(frozen=True)
class Ragged:
    """A tensor of which the first ``size`` (a scalar i64) places along ``axis`` count."""

    value: Value
    axis: int
    size: Value


def ragged(results: Sequence[Value], sizes: Mapping[int, int]) -> tuple[Value | Ragged, ...]:
    """The results of an operator that finds a size: its last result is that size, ``sizes`` says whose and where."""
    *values, size = results
    return tuple(
        cut(Ragged(value, sizes[place], size)) if place in sizes else value for place, value in enumerate(values)
    )


def cut(found: Ragged) -> Value | Ragged:
    """A tensor where its size is known when compiling."""
    value, size = found.value, found.size
    if not isinstance(value, Constant) or not isinstance(size, Constant):
        return found
    return Constant(value.array[(slice(None),) * found.axis + (slice(0, int(size.array)),)], value.name)


Operand = Value | Ragged | None


def whole(operand: Operand) -> Value | None:
    """The tensor of the greatest size."""
    return operand.value if isinstance(operand, Ragged) else operand


def prepared(operator: Operator, operands: Sequence[Operand]) -> list[Value | None]:
    """The tensors that the operator reads in place of ``operands``."""
    values = [whole(operand) for operand in operands]
    first = operands[0] if operands else None
    neutral = _NEUTRAL.get(operator.key())
    if neutral is not None and isinstance(first, Ragged) and first.axis in _reduced(operator, first.value.rank):
        values[0] = _masked(first, neutral(first.value.dtype))
    if operator.key() == "Gather" and isinstance(first, Ragged) and first.axis == _axis(operator, first.value.rank):
        indices = values[1]
        assert indices is not None
        values[1] = Where()(indices < 0, indices + first.size, indices)
    return values


def _axis(operator: Operator, rank: int) -> int:
    return int(getattr(operator, "axis")) % rank  # noqa: B009  (only operators with an axis come here)


def _reduced(operator: Operator, rank: int) -> set[int]:
    axes = getattr(operator, "axes", None)
    return set(range(rank)) if not axes else {axis % rank for axis in axes}


def _masked(found: Ragged, neutral: Any) -> Value:
    """The tensor with ``neutral`` at the places past its size."""
    shape = [1] * found.value.rank
    shape[found.axis] = -1
    places = constant(np.arange(found.value.shape[found.axis], dtype=np.int64).reshape(shape))
    result: Value = Where()(places < found.size, found.value, constant(np.asarray(neutral, found.value.dtype.numpy)))
    return result


def _least(dtype: DType) -> Any:
    return -np.inf if dtype.is_float else np.iinfo(dtype.numpy).min


def _greatest(dtype: DType) -> Any:
    return np.inf if dtype.is_float else np.iinfo(dtype.numpy).max


_NEUTRAL: dict[str, Callable[[DType], Any]] = {
    **dict.fromkeys(("ReduceSum", "ReduceL1", "ReduceL2", "ReduceSumSquare"), lambda dtype: 0),
    "ReduceProd": lambda dtype: 1,
    "ReduceMax": _least,
    "ReduceMin": _greatest,
    "ArgMax": _least,
    "ArgMin": _greatest,
}
"""Operators that may run over an axis whose size is found, with the element that does not count for them."""


def follow(operator: Operator, operands: Sequence[Operand], results: Sequence[Value]) -> tuple[Value | Ragged, ...]:
    """The results of an operator on :func:`prepared` operands, with their sizes.

    Raises :class:`ModelError` for an operator for which there is no rule, or operands of different sizes.
    """
    found = [operand for operand in operands if isinstance(operand, Ragged)]
    if any(operand.size is not found[0].size for operand in found):
        raise ModelError(f"{operator.key()} combines tensors whose sizes are found at run time apart from each other")
    rule = _RULES.get(operator.key(), _pointwise if operator.broadcasts else None)
    if operator.key() in _NEUTRAL:
        rule = _reduction
    if rule is None:
        raise ModelError(f"{operator.key()} reads a tensor whose size is found at run time; that is not supported")
    return tuple(rule(operator, operands, result) for result in results)


def _pointwise(operator: Operator, operands: Sequence[Operand], result: Value) -> Ragged:
    found = [operand for operand in operands if isinstance(operand, Ragged)]
    axes = {result.rank - operand.value.rank + operand.axis for operand in found}
    if len(axes) > 1:
        raise ModelError(f"{operator.key()} broadcasts different axes whose sizes are found at run time")
    return Ragged(result, axes.pop(), found[0].size)


def _moved(place: Callable[[Any, Ragged, Value], int]) -> Callable[..., Ragged]:
    def rule(operator: Operator, operands: Sequence[Operand], result: Value) -> Ragged:
        (first,) = (operand for operand in operands if isinstance(operand, Ragged))
        return replace(first, value=result, axis=place(operator, first, result))

    return rule


def _reduction(operator: Operator, operands: Sequence[Operand], result: Value) -> Value | Ragged:
    (first,) = (operand for operand in operands if isinstance(operand, Ragged))
    axis = getattr(operator, "axis", None)
    axes = _reduced(operator, first.value.rank) if axis is None else {axis % first.value.rank}
    if first.axis in axes:
        return result
    kept = getattr(operator, "keepdims", True)
    return replace(first, value=result, axis=first.axis - (0 if kept else sum(axis < first.axis for axis in axes)))


def _gathered(operator: Operator, operands: Sequence[Operand], result: Value) -> Value | Ragged:
    data, indices = operands
    data_rank = (data.value if isinstance(data, Ragged) else data).rank  # type: ignore[union-attr]
    axis = _axis(operator, data_rank)
    if isinstance(indices, Ragged):
        if isinstance(data, Ragged) and data.axis != axis:
            raise ModelError("Gather of a tensor and with indices whose sizes are both found at run time")
        return Ragged(result, axis + indices.axis, indices.size)
    assert isinstance(data, Ragged)
    assert indices is not None
    if data.axis == axis:
        return result
    return Ragged(result, data.axis + (indices.rank - 1 if data.axis > axis else 0), data.size)


def _gathered_tuples(operator: Operator, operands: Sequence[Operand], result: Value) -> Ragged:
    data, indices = operands
    if isinstance(data, Ragged) or not isinstance(indices, Ragged) or indices.axis == indices.value.rank - 1:
        raise ModelError("GatherND of a tensor whose size is found at run time")
    return Ragged(result, indices.axis, indices.size)


def _joined(operator: Operator, operands: Sequence[Operand], result: Value) -> Ragged:
    found = [operand for operand in operands if isinstance(operand, Ragged)]
    if found[0].axis == _axis(operator, result.rank) or any(operand.axis != found[0].axis for operand in found):
        raise ModelError("Concat along an axis whose size is found at run time")
    return replace(found[0], value=result)


def _sliced(operator: Any, operands: Sequence[Operand], result: Value) -> Ragged:
    (data,) = (operand for operand in operands if isinstance(operand, Ragged))
    rank = data.value.rank
    axes = [axis % rank for axis in (operator.axes if operator.axes is not None else range(len(operator.starts)))]
    if data.axis not in axes:
        return replace(data, value=result)
    place = axes.index(data.axis)
    step = 1 if operator.steps is None else operator.steps[place]
    if operator.starts[place] != 0 or step != 1 or operator.ends[place] < 0:
        raise ModelError("Slice of an axis whose size is found at run time takes only the first elements")
    end = min(operator.ends[place], data.value.shape[data.axis])
    size = data.size if operator.ends[place] == LAST else Min()(data.size, constant(np.int64(end)))
    return Ragged(result, data.axis, size)


def _reshaped(operator: Operator, operands: Sequence[Operand], result: Value) -> Ragged:
    """An axis stays one where the same number of elements stands before it, and it keeps its extent."""
    (data,) = (operand for operand in operands if isinstance(operand, Ragged))
    shape, before = data.value.shape, int(np.prod(data.value.shape[: data.axis]))
    for axis, extent in enumerate(result.shape):
        if extent == shape[data.axis] and int(np.prod(result.shape[:axis])) == before:
            return replace(data, value=result, axis=axis)
    raise ModelError("Reshape joins an axis whose size is found at run time with others")


def _shape(operator: Any, operands: Sequence[Operand], result: Value) -> Value:
    """The shape as a value: the size that was found among known extents."""
    (data,) = (operand for operand in operands if isinstance(operand, Ragged))
    extents = [constant(np.array([extent], np.int64)) for extent in data.value.shape]
    parts: list[Value] = [reshape(data.size, (1,)) if k == data.axis else part for k, part in enumerate(extents)]
    chosen = parts[slice(operator.start, operator.end)]
    if not chosen:
        return result
    joined: Value = chosen[0] if len(chosen) == 1 else Concat(axis=0)(*chosen)
    return joined


_RULES: dict[str, Callable[[Any, Sequence[Operand], Value], Value | Ragged]] = {
    "Cast": _moved(lambda operator, data, result: data.axis),
    "Transpose": _moved(lambda operator, data, result: operator.order(data.value.rank).index(data.axis)),
    "Squeeze": _reshaped,
    "Unsqueeze": _reshaped,
    "Flatten": _reshaped,
    "Reshape": _reshaped,
    "Gather": _gathered,
    "GatherND": _gathered_tuples,
    "Concat": _joined,
    "Slice": _sliced,
    "Shape": _shape,
}
