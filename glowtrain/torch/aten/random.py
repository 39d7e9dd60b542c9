"""Random numbers, by our counter-based generator: other ones than PyTorch's, of the same distributions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from glowtrain.graph import Value, constant
from glowtrain.ops.elementwise.arithmetic import Floor
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.elementwise.logic import Less, LessOrEqual, Where
from glowtrain.ops.elementwise.transcendental import Exp, Log, Tan
from glowtrain.ops.indexing.arg_extrema import CumSum
from glowtrain.ops.indexing.top_k import TopK
from glowtrain.ops.random.philox import Normal, TrainingDropout, Uniform
from glowtrain.ops.reduce.reduction import ReduceSum, as_dtype
from glowtrain.ops.tensor.move import Expand
from glowtrain.torch.aten.table import AtenCall, as_type, aten
from glowtrain.types import bf16, f16, f32, f64, i64


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


def _uniform_below_one(call: AtenCall) -> Value:
    """Those that stay below 1 in the result's type: with no more digits than a narrow one has there."""
    drawn, steps = _uniform(call), {f16: 2.0**11, bf16: 2.0**8}.get(call.dtype)
    return drawn if steps is None else Floor()(drawn * steps) * (1 / steps)


@aten("randint.default", "randint.low", "randint_like.default", "randint_like.low_dtype")
def randint(call: AtenCall, *arguments: Any, **__: Any) -> Any:
    """Whole numbers from the first bound (0, if there is one bound) to below the second."""
    bounds = [each for each in arguments if isinstance(each, int)]
    low, high = (0, *bounds) if len(bounds) == 1 else bounds
    random = call.random
    drawn = Uniform(call.shape, stream=random.stream(), dtype=f64)(random.seed, random.counter)
    return call.cast(Floor()(drawn * (high - low)) + low)


@aten("randperm.default")
def randperm(call: AtenCall, n: int, **__: Any) -> Any:
    """The order of random numbers."""
    random = call.random
    drawn = Uniform((n,), stream=random.stream(), dtype=f64)(random.seed, random.counter)
    return call.cast(TopK(axis=0, k=n)(drawn)[1])


@aten("multinomial.default")
def multinomial(call: AtenCall, x: Value, num_samples: int, replacement: bool = False, generator: Any = None) -> Any:
    """Numbers of categories by their weights: with replacement where their running sum passes a random part of it,
    otherwise those that the most weight has for the time that each takes, which is exponential (P. Efraimidis and
    P. Spirakis, Weighted random sampling with a reservoir, 2006)."""
    random, weights = call.random, as_type(x, f64)
    shape = call.shape if replacement else x.shape
    drawn = Uniform(shape, stream=random.stream(), dtype=f64)(random.seed, random.counter)
    if not replacement:
        time = Max()(-Log()(1.0 - drawn), constant(np.finfo(np.float64).eps / 2))
        return TopK(axis=-1, k=num_samples)(weights / time)[1]
    sums = CumSum(axis=x.rank - 1)(weights)
    passed = LessOrEqual()((sums / sums[..., -1:])[..., None, :], drawn[..., None])
    return ReduceSum(axes=(-1,), keepdims=False)(as_type(passed, i64))


@aten("exponential.default")
def exponential(call: AtenCall, x: Value, lambd: float = 1.0, generator: Any = None) -> Any:
    """Never 0, of which others take the logarithm: at least what the largest number below 1 gives."""
    drawn = _uniform(call)
    least = constant(np.finfo(drawn.dtype.numpy).eps / 2, drawn.dtype)
    return call.cast(Max()(-Log()(1.0 - drawn), least) * (1.0 / lambd))


@aten("rrelu_with_noise_functional.default")
def rrelu(
    call: AtenCall, x: Value, noise: Value, lower: float = 1 / 8, upper: float = 1 / 3, training: bool = False,
    generator: Any = None,
) -> Any:  # fmt: skip
    """The slope of elements up to 0 is drawn in training, and the mean of its bounds otherwise."""
    slope = _uniform(call) * (upper - lower) + lower if training else constant((lower + upper) / 2, x.dtype)
    return Where()(x <= 0, x * call.cast(slope), x), None


@aten("rand.default", "rand_like.default")
def rand(call: AtenCall, *_: Any, **__: Any) -> Any:
    return call.cast(_uniform_below_one(call))


@aten("uniform.default")
def uniform(call: AtenCall, x: Value, low: float = 0.0, high: float = 1.0, generator: Any = None) -> Any:
    """What is rounded to the upper bound, which is excluded, is the lower one."""
    drawn = call.cast(_uniform_below_one(call) * (high - low) + low)
    return Where()(drawn < call.cast(high), drawn, call.cast(low))


def _normal(call: AtenCall) -> Value:
    random, dtype = call.random, f64 if call.dtype == f64 else f32
    drawn: Value = Normal(call.shape, stream=random.stream(), dtype=dtype)(random.seed, random.counter)
    return drawn


@aten("randn.default", "randn_like.default")
def randn(call: AtenCall, *_: Any, **__: Any) -> Any:
    return call.cast(_normal(call))


@aten("normal.float_float", "normal_functional.default")
def normal(call: AtenCall, *arguments: Any, **__: Any) -> Any:
    numbers = [each for each in arguments if isinstance(each, (int, float))]
    mean, std = (*numbers, *(0.0, 1.0)[len(numbers) :])[:2]
    return call.cast(_normal(call) * std + mean)


@aten("normal.Tensor_Tensor", "normal.Tensor_float", "normal.float_Tensor")
def normal_of_tensors(call: AtenCall, mean: Any, std: Any = 1.0, generator: Any = None) -> Any:
    return call.cast(_normal(call)) * call.cast(std) + call.cast(mean)


@aten("log_normal.default")
def log_normal(call: AtenCall, x: Value, mean: float = 1.0, std: float = 2.0, generator: Any = None) -> Any:
    return call.cast(Exp()(_normal(call) * std + mean))


@aten("cauchy.default")
def cauchy(call: AtenCall, x: Value, median: float = 0.0, sigma: float = 1.0, generator: Any = None) -> Any:
    return call.cast(Tan()((_uniform(call) - 0.5) * math.pi) * sigma + median)


@aten("geometric.default")
def geometric(call: AtenCall, x: Value, p: float, generator: Any = None) -> Any:
    """How many trials the first success takes."""
    trials = Floor()(Log()(1.0 - _uniform(call)) * (1 / math.log1p(-p))) + 1.0 if p < 1 else 1.0
    return call.cast(Expand(shape=call.shape)(as_type(trials, call.dtype)))


@aten("bernoulli.default")
def bernoulli(call: AtenCall, p: Value, generator: Any = None) -> Any:
    return as_type(Less()(_uniform(call), as_dtype(p, f64 if call.dtype == f64 else f32)), call.dtype)


@aten("bernoulli.p")
def bernoulli_p(call: AtenCall, x: Value, p: float = 0.5, generator: Any = None) -> Any:
    return as_type(Less()(_uniform(call), p), call.dtype)
