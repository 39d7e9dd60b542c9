"""How operators of ai.onnx.ml are written: with the attributes that other runtimes want, and f32 results."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

from onnx import defs

from glowtrain.graph import Operator
from glowtrain.ops.ml.ensemble import TreeEnsemble
from glowtrain.ops.ml.features import FeatureVectorizer, Scaler
from glowtrain.ops.ml.labels import LabelEncoder
from glowtrain.ops.ml.linear import LinearClassifier
from glowtrain.ops.ml.svm import SVMClassifier, SVMRegressor
from glowtrain.types import TensorType, f32, f64

Types = Sequence[TensorType | None]


def with_explicit_attributes(operator: Operator, types: Types, schema: defs.OpSchema) -> Operator:
    """The same operator in attributes that say all that others derive or leave open."""
    rule = _RULES.get(type(operator))
    return _in_f32(operator if rule is None else rule(operator, types), types)


def _in_f32(operator: Operator, types: Types) -> Operator:
    """ONNX gives f32; where the operand is not f64, so does the operator whatever its ``result``."""
    names = {field.name for field in dataclasses.fields(operator)}  # type: ignore[arg-type]
    f64_results = types[0] is not None and types[0].dtype == f64
    return operator if "result" not in names or f64_results else operator.replace(result=f32)


def _widths(operator: FeatureVectorizer, types: Types) -> Operator:
    return operator.replace(inputdimensions=tuple(type_.shape[-1] for type_ in types if type_ is not None))


def _both(operator: Scaler, types: Types) -> Operator:
    count = max(len(operator.offset), len(operator.scale), 1)
    offset, scale = operator.offset or (0.0,), operator.scale or (1.0,)
    same = [values * count if len(values) < count else values for values in (offset, scale)]
    return operator.replace(offset=same[0], scale=same[1])


def _with_intercepts(operator: LinearClassifier, types: Types) -> Operator:
    (x,) = types
    columns = 0 if x is None else len(operator.coefficients) // x.shape[-1]
    return operator if operator.intercepts else operator.replace(intercepts=(0.0,) * columns)


def _typed(operator: TreeEnsemble, types: Types) -> Operator:
    (x,) = types
    return operator if x is None else operator.replace(dtype=x.dtype)


def _distinct(operator: LabelEncoder, types: Types) -> Operator:
    """Of equal keys the last counts, which not every runtime knows."""
    positions = {math.inf if math.isnan(key) else key: position for position, key in enumerate(operator.keys)}
    if len(positions) == len(operator.keys) or math.inf in operator.keys:
        return operator
    tables = [name for name in operator.attributes() if name.startswith(("keys_", "values_"))]
    given = {name: getattr(operator, name) for name in tables if getattr(operator, name)}
    return operator.replace(**{name: tuple(table[k] for k in positions.values()) for name, table in given.items()})


def _with_parameters(operator: SVMClassifier | SVMRegressor, types: Types) -> Operator:
    return operator if operator.kernel_params else operator.replace(kernel_params=(0.0, 0.0, 0.0))


_RULES: dict[type[Operator], Callable[[Any, Types], Operator]] = {
    FeatureVectorizer: _widths,
    LabelEncoder: _distinct,
    SVMClassifier: _with_parameters,
    SVMRegressor: _with_parameters,
    Scaler: _both,
    LinearClassifier: _with_intercepts,
    TreeEnsemble: _typed,
}
