"""Scalar functions and conversions of the loop language as WGSL expressions.

WGSL computes in f32, i32, u32 and bool. f16 and bf16 are computed in f32 and rounded after each operation, integers of
less than 32 bits in 32 and cut; those of 64 bits and f64 are pairs of u32 (:data:`PAIRS`), computed in integers. The
types that are only stored are refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from glowtrain.backends.webgpu.elementary import written
from glowtrain.errors import CodegenError
from glowtrain.loops.functions import PREDICATES
from glowtrain.types import DType

COMPUTED: Mapping[str, str] = {
    "f64": "f64", "f32": "f32", "f16": "f32", "bf16": "f32", "i64": "i64", "i32": "i32", "i16": "i32", "i8": "i32",
    "u64": "u64", "u32": "u32", "u16": "u32", "u8": "u32", "bool": "bool",
}  # fmt: skip
"""The type that an element type is computed in."""
PAIRS = frozenset({"f64", "i64", "u64"})
INFIX: Mapping[str, str] = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">",
    "ge": ">=", "and": "&", "or": "|", "xor": "^",
}  # fmt: skip
BUILTIN = {"floor": "floor", "ceil": "ceil", "round": "round", "trunc": "trunc", "sqrt": "sqrt", "abs": "abs"}
OF_BOOL: Mapping[str, str] = {
    "add": "{0} || {1}", "or": "{0} || {1}", "max": "{0} || {1}", "mul": "{0} && {1}", "and": "{0} && {1}",
    "min": "{0} && {1}", "xor": "{0} != {1}", "ne": "{0} != {1}", "eq": "{0} == {1}", "lt": "!{0} && {1}",
    "le": "!{0} || {1}", "gt": "{0} && !{1}", "ge": "{0} || !{1}", "not": "!{0}",
}  # fmt: skip


class WgslValue(NamedTuple):
    """The text of an expression without operators outside of brackets, and its type: one of WGSL's, i64 or u64."""

    text: str
    type: str


def spelled(type_: str) -> str:
    """A type as WGSL writes it."""
    return "vec2<u32>" if type_ in PAIRS else type_


def computed_in(dtype: DType) -> str:
    """The type that elements are computed in. Raises :class:`CodegenError` for one that WGSL cannot hold."""
    if dtype.name not in COMPUTED:
        raise CodegenError(f"WGSL has no {dtype}: backend webgpu computes in {', '.join(COMPUTED)}; use backend cpu")
    return COMPUTED[dtype.name]


def apply(function: str, arguments: Sequence[str], dtype: DType, type_: str) -> str:
    """A scalar function of operands of an element type, computed in ``type_``: an expression.

    Raises :class:`CodegenError` for a function that is not written in WGSL.
    """
    if function == "select":
        condition, then, otherwise = arguments
        return f"select({otherwise}, {then}, {condition})"
    if type_ == "f32":
        text = _of_floats(function, arguments, dtype)
    elif type_ == "f64":
        text = _of_doubles(function, arguments)
    elif type_ == "bool":
        text = OF_BOOL[function].format(*arguments)
    else:
        text = (_of_pairs if type_ in PAIRS else _of_integers)(function, arguments, type_)
    return text if function in PREDICATES else wrapped(text, dtype)


def wrapped(text: str, dtype: DType) -> str:
    """A result cut or rounded to an element type."""
    match dtype.name:
        case "f16" | "bf16":
            return f"{dtype.name}_round({text})"
        case "i8" | "i16":
            shift = 32 - 8 * dtype.size
            return f"(({text}) << {shift}u) >> {shift}u"
        case "u8" | "u16":
            return f"({text}) & {(1 << 8 * dtype.size) - 1}u"
    return text


def _of_floats(function: str, arguments: Sequence[str], dtype: DType) -> str:
    if function == "ne":  # true of NaN
        return f"!({arguments[0]} == {arguments[1]})"
    if function in INFIX:
        return _infix(function, arguments)
    if function == "neg":
        return f"-({arguments[0]})"
    if function in ("isnan", "isinf", "min", "max", "fmod", "mod", "fma"):
        return f"f32_{function}({', '.join(arguments)})"
    if function in BUILTIN:
        return f"{BUILTIN[function]}({arguments[0]})"
    if written(function):
        return f"f32_{function}({arguments[0]})"
    raise CodegenError(f"function {function} of {dtype} is not written in WGSL; use backend cpu")


def _of_doubles(function: str, arguments: Sequence[str]) -> str:
    match function:
        case "ne":
            return f"!f64_eq({', '.join(arguments)})"
        case "gt":
            return f"f64_lt({', '.join(arguments[::-1])})"
        case "le" | "ge":
            a, b = arguments if function == "le" else arguments[::-1]
            return f"f64_lt({a}, {b}) || f64_eq({a}, {b})"
        case "add" | "sub" | "mul" | "div" | "neg" | "abs" | "min" | "max" | "isnan" | "isinf" | "eq" | "lt":
            return f"f64_{function}({', '.join(arguments)})"
    raise CodegenError(f"function {function} of f64 is not written in WGSL; use backend cpu")


def _of_integers(function: str, arguments: Sequence[str], type_: str) -> str:
    signed = type_ == "i32"
    match function:
        case "div" | "mod" | "fmod" | "pow":
            name = "mod" if function == "fmod" and not signed else function
            return f"{type_}_{name}({', '.join(arguments)})"
        case "neg":
            return f"-({arguments[0]})" if signed else f"0u - {arguments[0]}"
        case "abs":
            return f"abs({arguments[0]})" if signed else arguments[0]
        case "sign":
            return f"sign({arguments[0]})" if signed else f"min({arguments[0]}, 1u)"
        case "not":
            return f"~({arguments[0]})"
        case "min" | "max":
            return f"{function}({', '.join(arguments)})"
        case "shift_left" | "shift_right":
            return f"{type_}_{'shl' if function == 'shift_left' else 'shr'}({arguments[0]}, u32({arguments[1]}))"
        case "mulhi_u32":
            return f"u32_mulhi({', '.join(arguments)})"
    return _infix(function, arguments)


def _of_pairs(function: str, arguments: Sequence[str], type_: str) -> str:
    listed = ", ".join(arguments)
    match function:
        case "add" | "sub" | "mul" | "shift_left":
            return f"u64_{function}({listed})"
        case "and" | "or" | "xor":
            return _infix(function, arguments)
        case "not":
            return f"~({arguments[0]})"
        case "eq" | "ne":
            return f"{'all' if function == 'eq' else 'any'}({arguments[0]} {INFIX[function]} {arguments[1]})"
        case "lt" | "gt":
            return f"{type_}_lt({', '.join(arguments if function == 'lt' else arguments[::-1])})"
        case "le" | "ge":
            return f"!{type_}_lt({', '.join(arguments[::-1] if function == 'le' else arguments)})"
        case "neg":
            return f"i64_neg({listed})"
        case "abs" if type_ == "u64":
            return arguments[0]
        case "sign" if type_ == "u64":
            return f"u64_min({listed}, vec2<u32>(1u, 0u))"
        case "fmod" if type_ == "u64":
            return f"u64_mod({listed})"
    return f"{type_}_{function}({listed})"


def _infix(function: str, arguments: Sequence[str]) -> str:
    return f"{arguments[0]} {INFIX[function]} {arguments[1]}"


def convert(value: WgslValue, source: DType, dtype: DType) -> str:
    """A value of an element type as another one, as NumPy's ``astype``; floats are truncated to integers."""
    text, wanted = value.text, computed_in(dtype)
    if dtype.name == "bool":
        return _true(text, value.type)
    if value.type == "bool":
        return _of_bool(text, wanted)
    if "f64" in (value.type, wanted):
        return wrapped(_of_double(text, wanted, dtype) if value.type == "f64" else _to_double(value), dtype)
    if value.type == "f32" and wanted == "f32":
        return wrapped(text, dtype)
    if value.type == "f32":
        return wrapped(_truncated(text, wanted, dtype), dtype)
    if wanted == "f32":
        return wrapped(f"f32({text})" if value.type not in PAIRS else f"{value.type}_to_f32({text})", dtype)
    return wrapped(CHANGES.get((value.type, wanted), "{0}").format(text), dtype)


CHANGES: Mapping[tuple[str, str], str] = {
    **{(pair, single): f"{single}({{0}}.x)" for pair in PAIRS for single in ("i32", "u32")},
    **{("i32", pair): "i64_of_i32({0})" for pair in PAIRS},
    **{("u32", pair): "vec2<u32>({0}, 0u)" for pair in PAIRS},
    ("i32", "u32"): "u32({0})",
    ("u32", "i32"): "i32({0})",
}
"""Integers of a type as integers of another: extended by their sign, or cut."""


def _of_double(text: str, wanted: str, dtype: DType) -> str:
    """An f64 as a number of another type (see :func:`glowtrain.loops.functions.truncated`)."""
    if wanted == "f64":
        return text
    if dtype.name == "u32":
        return f"f64_to_i64({text}).x"
    return f"u32(f64_to_i32({text}))" if wanted == "u32" else f"f64_to_{wanted}({text})"


def _to_double(value: WgslValue) -> str:
    wide = f"i64_of_i32({value.text})" if value.type == "i32" else f"vec2<u32>({value.text}, 0u)"
    match value.type:
        case "i32" | "u32":
            return f"{'i64' if value.type == 'i32' else 'u64'}_to_f64({wide})"
    return f"{value.type}_to_f64({value.text})"


def _true(text: str, type_: str) -> str:
    if type_ == "bool":
        return text
    if type_ in ("f32", "f64"):
        return f"{type_}_to_bool({text})"
    return f"any({text} != vec2<u32>(0u))" if type_ in PAIRS else f"{text} != {'0u' if type_ == 'u32' else '0'}"


def _of_bool(text: str, wanted: str) -> str:
    ones = {
        "f64": ("vec2<u32>(0u)", "vec2<u32>(0u, 0x3ff00000u)"),
        "f32": ("0.0", "1.0"),
        "i32": ("0", "1"),
        "u32": ("0u", "1u"),
    }
    zero, one = ones.get(wanted, ("vec2<u32>(0u)", "vec2<u32>(1u, 0u)"))
    return f"select({zero}, {one}, {text})"


def _truncated(text: str, wanted: str, dtype: DType) -> str:
    """Small types pass through i32, u32 through i64 (see :func:`glowtrain.loops.functions.truncated`)."""
    if wanted in PAIRS:
        return f"f32_to_{wanted}({text})"
    if dtype.name == "u32":
        return f"f32_to_i64({text}).x"
    return f"f32_to_i32({text})" if wanted == "i32" else f"u32(f32_to_i32({text}))"


def bits(value: WgslValue, dtype: DType) -> str:
    """The bits of a value in memory, of up to 32: a u32."""
    match dtype.name:
        case "f32":
            return f"bitcast<u32>({value.text})"
        case "f16" | "bf16":
            return f"{dtype.name}_bits({value.text})"
        case "bool":
            return f"select(0u, 1u, {value.text})"
    mask = f" & {(1 << 8 * dtype.size) - 1}u" if dtype.size < 4 else ""
    return f"u32({value.text}){mask}"


def of_bits(text: str, dtype: DType) -> str:
    """The value of bits in memory."""
    match dtype.name:
        case "f32":
            return f"bitcast<f32>({text})"
        case "f16" | "bf16":
            return f"{dtype.name}_of_bits({text})"
        case "bool":
            return f"{text} != 0u"
        case "i8" | "i16" | "i32":
            return wrapped(f"i32({text})", dtype)
    return text
