"""Vector mathematics: what processors lack as instructions, written in those they have.

LLVM offers no vector exp, log, tanh, sin and so on (it would call the C library lane by lane), so each is a recipe of
exactly defined operations for single and double, at any number of lanes. A lane's bits do not depend on the width, nor
on the target but for what :attr:`~glowtrain.backends.target.Target.fused` says. A recipe may begin new basic
blocks in the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.backends.llvm.vector_math import elementary, exponential, trigonometric
from glowtrain.backends.llvm.vector_math.float_lanes import DOUBLE, FORMATS, SINGLE, FloatLanes, LaneFormat
from glowtrain.backends.target import Target

UNARY: Mapping[str, Callable[[FloatLanes, LlvmValue], LlvmValue]] = {
    "abs": elementary.absolute,
    "neg": elementary.negative,
    "sign": elementary.sign,
    "sqrt": elementary.sqrt,
    "rsqrt": elementary.rsqrt,
    "reciprocal": elementary.reciprocal,
    "floor": elementary.floor,
    "ceil": elementary.ceil,
    "trunc": elementary.trunc,
    "round": elementary.round_half_even,
    "exp": exponential.exp,
    "expm1": exponential.expm1,
    "log": exponential.log,
    "log1p": exponential.log1p,
    "sigmoid": exponential.sigmoid,
    "softplus": exponential.softplus,
    "tanh": exponential.tanh,
    "sinh": exponential.sinh,
    "cosh": exponential.cosh,
    "asinh": exponential.asinh,
    "acosh": exponential.acosh,
    "atanh": exponential.atanh,
    "erf": exponential.erf,
    "sin": trigonometric.sin,
    "cos": trigonometric.cos,
    "tan": trigonometric.tan,
    "asin": trigonometric.asin,
    "acos": trigonometric.acos,
    "atan": trigonometric.atan,
}
"""Functions of one float argument."""

BINARY: Mapping[str, Callable[[FloatLanes, LlvmValue, LlvmValue], LlvmValue]] = {
    "min": elementary.minimum,
    "max": elementary.maximum,
    "fmod": elementary.fmod,
    "mod": elementary.mod,
    "pow": exponential.pow,
}
"""Functions of two float arguments."""


def emit(f: LlvmFunction, name: str, args: Sequence[LlvmValue], target: Target) -> LlvmValue:
    """Append ``name`` of lanes of ``float`` or ``double`` to ``f``; returns the result."""
    lanes = FloatLanes(f, args[0].type, target)
    if len(args) == 1:
        return UNARY[name](lanes, args[0])
    return BINARY[name](lanes, args[0], args[1])


__all__ = ["BINARY", "DOUBLE", "FORMATS", "SINGLE", "UNARY", "FloatLanes", "LaneFormat", "emit"]
