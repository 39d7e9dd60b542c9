"""The ATen operators that can be read, by family: a function for each, entered in :data:`TABLE`."""

from glowtrain.torch.aten import (
    attention,
    convolution,
    creation,
    elementwise,
    factorizations,
    indexing,
    linalg,
    losses,
    normalization,
    order_statistics,
    pooling,
    products,
    random,
    recurrent,
    reductions,
    shapes,
)
from glowtrain.torch.aten.table import TABLE, AtenCall, aten

__all__ = [
    "TABLE",
    "AtenCall",
    "aten",
    "attention",
    "convolution",
    "creation",
    "elementwise",
    "factorizations",
    "indexing",
    "linalg",
    "losses",
    "normalization",
    "order_statistics",
    "pooling",
    "products",
    "random",
    "recurrent",
    "reductions",
    "shapes",
]
