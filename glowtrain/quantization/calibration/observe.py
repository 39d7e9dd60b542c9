"""Observers: graph code that keeps the ranges and histograms of values in variables while a model runs.

They are compiled with the model, so that its activations never leave the compiled function.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glowtrain.graph import Value, Variable, constant
from glowtrain.ops.elementwise.arithmetic import Floor
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.extrema import Clip, Max, Min
from glowtrain.ops.elementwise.logic import Equal, IsInf, IsNaN, Where
from glowtrain.ops.indexing.scatter import ScatterAdd
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMin, ReduceSum
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array, f32, i64

FIELDS = ("low", "high", "average_low", "average_high", "elements", "batches", "nonfinite")
"""What an observer of ranges keeps."""
_BEGIN = {"low": np.float32(np.inf), "high": np.float32(-np.inf), "average_low": np.float32(0)}
_BEGIN["average_high"] = np.float32(0)


def variable_name(name: str, entry: str) -> str:
    """The name of the variable that keeps one entry of a value's observation."""
    return f"observe.{name}.{entry}"


def range_observer(values: Mapping[str, Value], momentum: float) -> dict[Variable, Value]:
    """Updates that follow the range of each value; averages are ``momentum`` old to 1 - ``momentum`` new."""
    updates: dict[Variable, Value] = {}
    for name, value in values.items():
        updates.update(_range(name, value, momentum))
    return updates


def _range(name: str, value: Value, momentum: float) -> dict[Variable, Value]:
    before = {entry: _state(name, entry, _BEGIN.get(entry, np.int64(0))) for entry in FIELDS}
    x, bad = _finite(value)
    low: Value = ReduceMin(keepdims=False)(x)
    high: Value = ReduceMax(keepdims=False)(x)
    first = Equal()(before["batches"], 0)

    def average(entry: str, new: Value) -> Value:
        result: Value = Where()(first, new, before[entry] * momentum + new * (1 - momentum))
        return result

    return {
        before["low"]: Min()(before["low"], low),
        before["high"]: Max()(before["high"], high),
        before["average_low"]: average("average_low", low),
        before["average_high"]: average("average_high", high),
        before["elements"]: before["elements"] + value.type.size,
        before["batches"]: before["batches"] + 1,
        before["nonfinite"]: before["nonfinite"] + ReduceSum(keepdims=False)(Cast(i64)(bad)),
    }


def histogram_observer(
    values: Mapping[str, Value], ranges: Mapping[str, tuple[float, float]], bins: int
) -> dict[Variable, Value]:
    """Updates that count the elements of each value in ``bins`` bins over its range."""
    updates: dict[Variable, Value] = {}
    for name, value in values.items():
        low, high = ranges[name]
        counts = _state(name, "counts", np.zeros(bins, np.int64))
        x, _ = _finite(value)
        position = Floor()((x - low) * np.float32(bins / (high - low)))
        inside = Cast(i64)(Clip()(position, constant(0.0, f32), constant(bins - 1.0, f32)))
        flat = reshape(inside, (value.type.size,))
        updates[counts] = counts + ScatterAdd((bins,))(flat, constant(np.ones(value.type.size, np.int64)))
    return updates


def _state(name: str, entry: str, begin: Array | np.generic) -> Variable:
    return Variable(variable_name(name, entry), np.asarray(begin), trainable=False)


def _finite(value: Value) -> tuple[Value, Value]:
    """The elements, 0 for those that are not finite, and which are not."""
    x = value if value.dtype == f32 else Cast(f32)(value)
    bad = IsNaN()(x) | IsInf()(x)
    return Where()(bad, constant(0.0, f32), x), bad
