"""Random numbers, by our counter-based generator: other ones than PyTorch's, of the same distributions."""

from __future__ import annotations

from typing import Any

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.logic import Less
from glowtrain.ops.random.philox import Normal, TrainingDropout, Uniform
from glowtrain.ops.reduce.reduction import as_dtype
from glowtrain.ops.tensor.move import Expand
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import f32, f64


def dropped(call: AtenCall, x: Value, ratio: float) -> Any:
    """What dropout leaves, and the mask."""
    random = call.random
    return TrainingDropout(stream=random.stream())(x, constant(ratio, x.dtype), random.seed, random.counter)


@aten("native_dropout.default")
def native_dropout(call: AtenCall, x: Value, p: float, train: bool | None = True) -> Any:
    return dropped(call, x, p) if train else (x, None)


@aten("dropout.default")
def dropout(call: AtenCall, x: Value, p: float, train: bool) -> Any:
    return dropped(call, x, p)[0] if train and p else x


@aten("feature_dropout.default")
def feature_dropout(call: AtenCall, x: Value, p: float, train: bool) -> Any:
    """Whole channels of each example."""
    if not train or not p:
        return x
    ones = Expand(shape=(*x.shape[:2], *[1] * (x.rank - 2)))(constant(1.0, x.dtype))
    return x * dropped(call, ones, p)[0]


def _uniform(call: AtenCall) -> Value:
    """Numbers in [0, 1) in the result's shape."""
    random, dtype = call.random, f64 if call.dtype == f64 else f32
    drawn: Value = Uniform(call.shape, stream=random.stream(), dtype=dtype)(random.seed, random.counter)
    return drawn


@aten("rand.default", "rand_like.default")
def rand(call: AtenCall, *_: Any, **__: Any) -> Any:
    return call.cast(_uniform(call))


@aten("uniform.default")
def uniform(call: AtenCall, x: Value, low: float = 0.0, high: float = 1.0, generator: Any = None) -> Any:
    return call.cast(_uniform(call) * (high - low) + low)


def _normal(call: AtenCall) -> Value:
    random, dtype = call.random, f64 if call.dtype == f64 else f32
    drawn: Value = Normal(call.shape, stream=random.stream(), dtype=dtype)(random.seed, random.counter)
    return drawn


@aten("randn.default", "randn_like.default")
def randn(call: AtenCall, *_: Any, **__: Any) -> Any:
    return call.cast(_normal(call))


@aten("normal.float_float", "normal_functional.default")
def normal(call: AtenCall, *given: Any, **__: Any) -> Any:
    numbers = [each for each in given if isinstance(each, (int, float))]
    mean, std = (*numbers, *(0.0, 1.0)[len(numbers) :])[:2]
    return call.cast(_normal(call) * std + mean)


@aten("bernoulli.default")
def bernoulli(call: AtenCall, p: Value, generator: Any = None) -> Any:
    return as_type(Less()(_uniform(call), as_dtype(p, f64 if call.dtype == f64 else f32)), call.dtype)


@aten("bernoulli.p")
def bernoulli_p(call: AtenCall, x: Value, p: float = 0.5, generator: Any = None) -> Any:
    return as_type(Less()(_uniform(call), p), call.dtype)
