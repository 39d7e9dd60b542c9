"""Glowtrain: a training compiler for neural networks. See README.md and docs/walk.md.

Names are imported when they are first used: ``import glowtrain`` itself is quick, and gradcheck, which needs the
``gradcheck`` extra, costs nothing to those who do not ask for it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from glowtrain.version import __version__ as __version__

if TYPE_CHECKING:
    from glowtrain import callbacks as callbacks
    from glowtrain import data, errors, grad, gradcheck, losses, metrics, nn, onnx_io, ops, optim, quantization
    from glowtrain import serving as serving
    from glowtrain import sklearn as sklearn
    from glowtrain import torch as torch
    from glowtrain.backends.cpu.backend import Cpu
    from glowtrain.bundles import bundle, bundle_size, load_bundle, save_bundle_weights
    from glowtrain.compiler import compile
    from glowtrain.compiler.outline import summary
    from glowtrain.errors import GlowtrainError
    from glowtrain.grad import gradient_model, gradients, jvp, stop_gradient
    from glowtrain.graph import (
        Graph,
        Input,
        Operator,
        Template,
        Value,
        Variable,
        attribute,
        constant,
        operator,
        parse,
        verify,
    )
    from glowtrain.native import NativeFunction
    from glowtrain.nn import model
    from glowtrain.onnx_io import save
    from glowtrain.onnx_io.read.load import load
    from glowtrain.quantization import quantize
    from glowtrain.stages import Options
    from glowtrain.torch import from_torch as from_torch
    from glowtrain.trainer import Trainer
    from glowtrain.trainer.rate_range import find_learning_rate
    from glowtrain.types import Spec, TensorType, bf16, boolean, f16, f32, f64, i8, i16, i32, i64, u8, u16, u32, u64

_TYPES = "bf16 boolean f16 f32 f64 i8 i16 i32 i64 u8 u16 u32 u64 Spec TensorType"
_GRAPH = "Graph Input Operator Template Value Variable attribute constant operator parse verify"
_HOMES = {
    **dict.fromkeys(_TYPES.split(), "glowtrain.types"),
    **dict.fromkeys(_GRAPH.split(), "glowtrain.graph"),
    "Cpu": "glowtrain.backends.cpu.backend",
    "GlowtrainError": "glowtrain.errors",
    "NativeFunction": "glowtrain.native",
    "Trainer": "glowtrain.trainer",
    "bundle": "glowtrain.bundles",
    "bundle_size": "glowtrain.bundles",
    "load_bundle": "glowtrain.bundles",
    "save_bundle_weights": "glowtrain.bundles",
    "compile": "glowtrain.compiler",
    "find_learning_rate": "glowtrain.trainer.rate_range",
    "from_torch": "glowtrain.torch",
    "gradient_model": "glowtrain.grad",
    "gradients": "glowtrain.grad",
    "jvp": "glowtrain.grad",
    "Options": "glowtrain.stages",
    "load": "glowtrain.onnx_io.read.load",
    "model": "glowtrain.nn",
    "quantize": "glowtrain.quantization",
    "save": "glowtrain.onnx_io",
    "stop_gradient": "glowtrain.grad",
    "summary": "glowtrain.compiler.outline",
}
_MODULES = (
    "callbacks", "data", "errors", "fleet", "grad", "gradcheck", "losses", "metrics", "nn", "onnx_io", "ops", "optim",
    "quantization", "serving", "sklearn", "torch",
)  # fmt: skip

# Without from_torch, torch and serving: whoever imports * need not have what these need.
__all__ = [
    "Cpu",
    "GlowtrainError",
    "Graph",
    "Input",
    "NativeFunction",
    "Operator",
    "Options",
    "Spec",
    "Template",
    "TensorType",
    "Trainer",
    "Value",
    "Variable",
    "attribute",
    "bf16",
    "boolean",
    "bundle",
    "bundle_size",
    "compile",
    "constant",
    "data",
    "errors",
    "f16",
    "f32",
    "f64",
    "find_learning_rate",
    "grad",
    "gradcheck",
    "gradient_model",
    "gradients",
    "i8",
    "i16",
    "i32",
    "i64",
    "jvp",
    "load",
    "load_bundle",
    "losses",
    "metrics",
    "model",
    "nn",
    "onnx_io",
    "operator",
    "ops",
    "optim",
    "parse",
    "quantization",
    "quantize",
    "save",
    "save_bundle_weights",
    "stop_gradient",
    "summary",
    "u8",
    "u16",
    "u32",
    "u64",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"glowtrain.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'glowtrain' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_HOMES})
