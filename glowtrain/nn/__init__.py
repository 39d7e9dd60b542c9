"""Models from Python: layer functions that create named, seeded variables, and :func:`model`, which makes a template.

@gt.model(x=gt.f32["batch", 784])
def mlp(x):
    x = gt.nn.relu(gt.nn.linear(x, 512))
    return gt.nn.linear(x, 10)
"""

from typing import NoReturn

from glowtrain.nn.functions import (
    average_pool,
    concat,
    dropout,
    exp,
    flatten,
    gelu,
    global_average_pool,
    log,
    log_softmax,
    max_pool,
    mean,
    relu,
    reshape,
    sigmoid,
    silu,
    softmax,
    sqrt,
    tanh,
    total,
    transpose,
    where,
)
from glowtrain.nn.functions import total as sum
from glowtrain.nn.initializers import FanIn, Fill, Initializer, Kaiming, Normal, Xavier, ones, zeros
from glowtrain.nn.layers import attention, batch_norm, conv, embedding, layer_norm, linear, lstm
from glowtrain.nn.scope import buffer, build, model, parameter, scope
from glowtrain.presentation.messages import unknown

__all__ = [
    "FanIn",
    "Fill",
    "Initializer",
    "Kaiming",
    "Normal",
    "Xavier",
    "attention",
    "average_pool",
    "batch_norm",
    "buffer",
    "build",
    "concat",
    "conv",
    "dropout",
    "embedding",
    "exp",
    "flatten",
    "gelu",
    "global_average_pool",
    "layer_norm",
    "linear",
    "log",
    "log_softmax",
    "lstm",
    "max_pool",
    "mean",
    "model",
    "ones",
    "parameter",
    "relu",
    "reshape",
    "scope",
    "sigmoid",
    "silu",
    "softmax",
    "sqrt",
    "sum",
    "tanh",
    "total",
    "transpose",
    "where",
    "zeros",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(f"glowtrain.nn has {unknown([name], __all__, 'layer')}")
