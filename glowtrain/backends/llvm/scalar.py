"""The scalar functions of the loop language as LLVM code, for every element type.

:func:`apply` is the one table from a function's name to instructions. f16 and bf16 are computed in f32 and rounded
after each operation (for one operation of +, -, *, / and sqrt the result is the correctly rounded one, since f32 has
more than twice their digits).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glowtrain.backends.llvm import vector_math
from glowtrain.backends.llvm.formats import (
    FLOATS,
    REGISTER,
    SIGNED,
    SIZE,
    UNSIGNED,
    bitcast,
    cast,
    constant,
    load,
    register_type,
    round_to,
    store,
)
from glowtrain.backends.llvm.integers import BOOL, INTEGER, mulhi_u32
from glowtrain.backends.llvm.lanes import IntegerLanes
from glowtrain.backends.llvm.small_formats import STORED
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError
from glowtrain.loops import FUNCTIONS

DTYPES: tuple[str, ...] = tuple(REGISTER)

COMPARISONS: Mapping[str, tuple[str, str, str]] = {
    "eq": ("oeq", "eq", "eq"),
    "ne": ("une", "ne", "ne"),
    "lt": ("olt", "slt", "ult"),
    "le": ("ole", "sle", "ule"),
    "gt": ("ogt", "sgt", "ugt"),
    "ge": ("oge", "sge", "uge"),
}
"""Predicates for floats, signed and unsigned integers; the result is bool."""

_ARITHMETIC: Mapping[str, str] = {"add": "fadd", "sub": "fsub", "mul": "fmul", "div": "fdiv"}
_EXACT = frozenset({"neg", "abs", "sign", "min", "max", "floor", "ceil", "trunc", "round", "fmod"})
_TESTS = ("isnan", "isinf")


def supports(name: str, dtype: str) -> bool:
    """Whether :func:`apply` takes this function for operands of ``dtype``."""
    if name == "select" or dtype in STORED:
        return name == "select"
    if name in COMPARISONS:
        return True
    if name == "mulhi_u32":
        return dtype == "u32"
    if dtype in FLOATS:
        return (
            name in vector_math.UNARY or name in vector_math.BINARY or name in _ARITHMETIC or name in (*_TESTS, "fma")
        )
    return name in (BOOL if dtype == "bool" else INTEGER)


def result_dtype(name: str, dtype: str) -> str:
    """The element type of the result for operands of ``dtype``."""
    return "bool" if FUNCTIONS[name].predicate else dtype


def apply(f: LlvmFunction, name: str, args: Sequence[LlvmValue], dtype: str, target: Target) -> LlvmValue:
    """Append the function ``name`` of lanes; returns the result.

    ``dtype`` is the operands' element type (of the last two for ``select``, whose first is bool). Integer division
    truncates towards zero and gives 0 for division by zero; shifts by more than the size give 0. Raises
    :class:`CodegenError` for a function that the type does not have.
    """
    if not supports(name, dtype) or len(args) != FUNCTIONS[name].arity:
        raise CodegenError(
            f"function {f.name}: scalar function {name!r} with {len(args)} arguments is not defined for {dtype}"
        )
    if args[-1].type.scalar != REGISTER[dtype]:
        raise CodegenError(f"function {f.name}: {name} of {dtype} takes {REGISTER[dtype]}, not {args[-1].typed}")
    if name == "select":
        return f.select(*args)
    if name in COMPARISONS:
        return _compare(f, name, args, dtype)
    if dtype in FLOATS:
        return _float(f, name, args, dtype, target)
    integers = IntegerLanes(f, args[0].type, dtype in SIGNED, target.integer_bits)
    if name == "mulhi_u32":
        return mulhi_u32(integers, *args)
    return (BOOL if dtype == "bool" else INTEGER)[name](integers, *args)


def _compare(f: LlvmFunction, name: str, args: Sequence[LlvmValue], dtype: str) -> LlvmValue:
    for_float, signed, unsigned = COMPARISONS[name]
    return f.compare(for_float if dtype in FLOATS else signed if dtype in SIGNED else unsigned, *args)


def _float(f: LlvmFunction, name: str, args: Sequence[LlvmValue], dtype: str, target: Target) -> LlvmValue:
    lanes = vector_math.FloatLanes(f, args[0].type, target)
    if name == "isnan":
        return lanes.is_nan(args[0])
    if name == "isinf":
        return lanes.compare("oeq", lanes.abs(args[0]), lanes.number(float("inf")))
    if name in _ARITHMETIC:
        result = f.op(_ARITHMETIC[name], *args)
    elif name == "fma":
        result = lanes.fused(*args)
    else:
        result = vector_math.emit(f, name, args, target)
    return result if name in _EXACT else round_to(f, result, dtype, target)


__all__ = [
    "COMPARISONS", "DTYPES", "FLOATS", "REGISTER", "SIGNED", "SIZE", "UNSIGNED", "apply", "bitcast", "cast",
    "constant", "load", "register_type", "result_dtype", "store", "supports",
]  # fmt: skip
