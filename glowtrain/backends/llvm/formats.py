"""Element types in registers and in memory, and conversions between them.

In registers f16 and bf16 are f32 lanes that hold representable values (every operation rounds its result), bool is i1;
in memory f16 and bf16 take two bytes and bool one byte, 0 or 1. Smaller types are the bytes of memory everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glowtrain.backends.llvm import small_formats
from glowtrain.backends.llvm.conversions import to_float, to_integer
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmType, LlvmValue, in_all_lanes, integer, number, vector
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError

REGISTER: Mapping[str, str] = {
    "f64": "double", "f32": "float", "f16": "float", "bf16": "float", "i64": "i64", "i32": "i32", "i16": "i16",
    "i8": "i8", "u64": "i64", "u32": "i32", "u16": "i16", "u8": "i8", "bool": "i1",
    **dict.fromkeys(small_formats.STORED, "i8"),
}  # fmt: skip
"""The LLVM type of one lane in a register."""

MEMORY: Mapping[str, str] = {**REGISTER, "f16": "i16", "bf16": "i16", "bool": "i8"}
"""The LLVM type of one element in memory."""

SIZE: Mapping[str, int] = {
    "f64": 8, "f32": 4, "f16": 2, "bf16": 2, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2,
    "u8": 1, "bool": 1, **dict.fromkeys(small_formats.STORED, 1),
}  # fmt: skip
"""Bytes of one element in memory."""

FLOATS = ("f64", "f32", "f16", "bf16")
SIGNED = ("i64", "i32", "i16", "i8")
UNSIGNED = ("u64", "u32", "u16", "u8")


def register_type(dtype: str, width: int) -> LlvmType:
    """The LLVM type of ``width`` lanes of ``dtype`` in a register."""
    return vector(REGISTER[dtype], width)


def bits_of(dtype: str) -> int:
    """Bits of an integer or bool lane in a register."""
    return int(REGISTER[dtype][1:])


def round_to(f: LlvmFunction, value: LlvmValue, dtype: str, target: Target) -> LlvmValue:
    """f32 lanes rounded to the values of ``dtype`` (f16 or bf16; to nearest even); other types are left as they are."""
    if dtype == "bf16":
        return _round_bf16(f, value)
    if dtype == "f16":
        return half_to_float(f, float_to_half(f, value, target), target)
    return value


def _round_bf16(f: LlvmFunction, value: LlvmValue) -> LlvmValue:
    """Adds half a unit, or just less before an even result, and cuts; a NaN keeps its head with the quiet bit set."""
    bits = f.convert("bitcast", value, "i32")
    odd = f.op("and", f.op("lshr", bits, 16), 1)
    rounded = f.op("add", f.op("add", bits, 0x7FFF), odd)
    nan = f.compare("uno", value, value)
    chosen = f.select(nan, f.op("or", bits, 0x400000), rounded)
    return f.convert("bitcast", f.op("and", chosen, -65536), "float")


def float_to_half(f: LlvmFunction, value: LlvmValue, target: Target) -> LlvmValue:
    """The i16 bits of f32 lanes rounded to f16."""
    if target.has_half:
        return f.convert("bitcast", f.convert("fptrunc", value, "half"), "i16")
    return _half_bits(f, value)


def _half_bits(f: LlvmFunction, value: LlvmValue) -> LlvmValue:
    """f32 to f16 in integers. Denormals: adding 1/2 lets the adder round at the unit of f16's denormals, 2**-24."""
    bits = f.convert("bitcast", value, "i32")
    sign = f.op("and", f.op("lshr", bits, 16), 0x8000)
    size = f.op("and", bits, 0x7FFFFFFF)
    odd = f.op("and", f.op("lshr", size, 13), 1)
    normal = f.op("add", f.op("add", size, (15 - 127) * (1 << 23) + 0xFFF), odd)
    normal = f.op("lshr", normal, 13)
    moved = f.op("fadd", f.convert("bitcast", size, "float"), number(0.5, value.type))
    denormal = f.op("sub", f.convert("bitcast", moved, "i32"), 0x3F000000)
    result = f.select(f.compare("ult", size, 113 << 23), denormal, normal)
    result = f.select(f.compare("uge", size, 143 << 23), 0x7C00, result)
    payload = f.op("or", f.op("and", f.op("lshr", size, 13), 0x3FF), 0x7E00)
    result = f.select(f.compare("ugt", size, 0x7F800000), payload, result)
    return f.convert("trunc", f.op("or", result, sign), "i16")


def half_to_float(f: LlvmFunction, bits: LlvmValue, target: Target) -> LlvmValue:
    """f32 lanes of the f16 values whose i16 bits are given."""
    if target.has_half:
        return f.convert("fpext", f.convert("bitcast", bits, "half"), "float")
    whole = f.convert("zext", bits, "i32")
    sign = f.op("shl", f.op("and", whole, 0x8000), 16)
    placed = f.op("shl", f.op("and", whole, 0x7FFF), 13)
    scaled = f.op("fmul", f.convert("bitcast", placed, "float"), number(2.0**112, bits.type.of("float")))
    result = f.convert("bitcast", scaled, "i32")
    special = f.compare("uge", placed, 0x7C00 << 13)
    result = f.select(special, f.op("or", placed, 0x7F800000), result)
    return f.convert("bitcast", f.op("or", result, sign), "float")


def cast(f: LlvmFunction, value: LlvmValue, from_dtype: str, to_dtype: str, target: Target) -> LlvmValue:
    """``value`` converted; defined for every input, the same on all targets.

    Floats become integers as :func:`glowtrain.loops.functions.truncated` says. Integers wrap; anything to bool is
    ``!= 0``; f64 and integers reach bf16 by way of f32, as in ml_dtypes. Smaller types come and go by way of f32, i32.
    """
    if from_dtype == to_dtype:
        return value
    if from_dtype in small_formats.STORED:
        wide = "f32" if from_dtype in small_formats.FORMATS else "i32"
        return cast(f, small_formats.widened(f, value, from_dtype), wide, to_dtype, target)
    if to_dtype in small_formats.STORED:
        wide = "f32" if to_dtype in small_formats.FORMATS else "i32"
        return small_formats.narrowed(f, cast(f, value, from_dtype, wide, target), to_dtype)
    if to_dtype == "bool":
        return _to_bool(f, value, from_dtype)
    if from_dtype in FLOATS and to_dtype in FLOATS:
        return _float_to_float(f, value, from_dtype, to_dtype, target)
    if from_dtype in FLOATS:
        return _float_to_integer(f, value, to_dtype, target)
    if to_dtype in FLOATS:
        return _integer_to_float(f, value, from_dtype, to_dtype, target)
    if bits_of(from_dtype) >= bits_of(to_dtype):
        return f.convert("trunc", value, REGISTER[to_dtype])
    return f.convert("sext" if from_dtype in SIGNED else "zext", value, REGISTER[to_dtype])


def bitcast(f: LlvmFunction, value: LlvmValue, from_dtype: str, to_dtype: str, target: Target) -> LlvmValue:
    """The same bits as another element type of the same size; a byte is true as a bool unless it is 0."""
    if from_dtype in ("f16", "bf16") or to_dtype in ("f16", "bf16"):
        return half_lanes(f, memory_bits(f, value, from_dtype, target), to_dtype, target)
    if from_dtype == "bool":
        value, from_dtype = f.convert("zext", value, "i8"), "u8"
    if to_dtype == "bool":
        return f.compare("ne", value, 0)
    return f.convert("bitcast", value, REGISTER[to_dtype])


def memory_bits(f: LlvmFunction, value: LlvmValue, dtype: str, target: Target) -> LlvmValue:
    """The i16 lanes that stand in memory for f16 and bf16 lanes; other types as they are."""
    if dtype == "bf16":
        return f.convert("trunc", f.op("lshr", f.convert("bitcast", value, "i32"), 16), "i16")
    return float_to_half(f, value, target) if dtype == "f16" else value


def as_stored(f: LlvmFunction, value: LlvmValue, dtype: str, target: Target) -> LlvmValue:
    """The lanes that stand in memory for lanes in a register."""
    return f.convert("zext", value, "i8") if dtype == "bool" else memory_bits(f, value, dtype, target)


def half_lanes(f: LlvmFunction, raw: LlvmValue, dtype: str, target: Target) -> LlvmValue:
    """The lanes of f16 and bf16 that stand in memory as these i16 lanes; other types as they are."""
    if dtype == "bf16":
        return _bf16_lanes(f, raw)
    return half_to_float(f, raw, target) if dtype == "f16" else raw


def _bf16_lanes(f: LlvmFunction, raw: LlvmValue) -> LlvmValue:
    return f.convert("bitcast", f.op("shl", f.convert("zext", raw, "i32"), 16), "float")


def factors(lanes: Lanes, raw: LlvmValue, dtype: str) -> LlvmValue:
    """Elements as they stand in memory, as lanes of the type in which their products are summed: it holds all values of
    theirs."""
    return _bf16_lanes(lanes.f, raw) if dtype == "bf16" else lanes.widened(raw, signed=dtype in SIGNED)


def spread_factor(lanes: Lanes, narrow: Lanes, address: LlvmValue, dtype: str) -> LlvmValue:
    """:func:`factors` of one element, in all lanes; ``narrow`` are lanes as they stand in memory.

    One of bf16 is spread over both halves of each lane, of which a shift leaves the upper one: two instructions, where
    lanes that are spread and then widened take three.
    """
    width = lanes.type.width
    if dtype != "bf16" or width == 1:
        return factors(lanes, narrow.load(address, 0, width), dtype)
    halves = lanes.f.load_splat(vector(narrow.type.scalar, 2 * width), address)
    words = lanes.f.cast("bitcast", halves, vector("i32", width))
    return lanes.f.convert("bitcast", lanes.f.op("shl", words, 16), "float")


def _to_bool(f: LlvmFunction, value: LlvmValue, dtype: str) -> LlvmValue:
    if dtype in FLOATS:
        return f.compare("une", value, number(0.0, value.type))
    return f.compare("ne", value, 0)


def _float_to_float(f: LlvmFunction, value: LlvmValue, from_dtype: str, to_dtype: str, target: Target) -> LlvmValue:
    if from_dtype != "f64":
        wide = round_to(f, value, to_dtype, target)
        return f.convert("fpext", wide, "double") if to_dtype == "f64" else wide
    if to_dtype == "f16":
        return round_to(f, _to_odd(f, value), to_dtype, target)
    return round_to(f, f.convert("fptrunc", value, "float"), to_dtype, target)


def _to_odd(f: LlvmFunction, value: LlvmValue) -> LlvmValue:
    """f64 to f32 rounded to odd, so that rounding once more is as if rounded once (Boldo and Melquiond, 2008)."""
    nearest = f.convert("fptrunc", value, "float")
    back = f.convert("fpext", nearest, "double")
    inexact = f.compare("one", back, value)
    away = f.compare("ogt", f.intrinsic("fabs", back), f.intrinsic("fabs", value))
    bits = f.convert("bitcast", nearest, "i32")
    towards_zero = f.op("sub", bits, f.convert("zext", away, "i32"))
    odd = f.select(inexact, f.op("or", towards_zero, 1), bits)
    return f.convert("bitcast", odd, "float")


def _float_to_integer(f: LlvmFunction, value: LlvmValue, to_dtype: str, target: Target) -> LlvmValue:
    if to_dtype == "u64":
        return _float_to_u64(f, value, target)
    via = "i64" if to_dtype in ("i64", "u32") else "i32"
    native = native_conversion(value.width, target)
    if native is not None and (value.type.scalar, via) == ("float", "i32"):
        whole = native.in_pieces(f, value, native.truncating)
    else:
        whole = _truncate(f, value, via, target)
    return f.convert("trunc", whole, REGISTER[to_dtype])


@dataclass(frozen=True)
class NativeConversion:
    """x86's conversions of f32 to i32, which give the smallest i32 for what does not fit: the names of LLVM's
    intrinsics, the lanes that they take, and further arguments."""

    family: str
    lanes: int
    truncating: str
    rounding: str
    more: str = ""

    def in_pieces(
        self,
        f: LlvmFunction,
        value: LlvmValue,
        name: str,
        prepare: Callable[[LlvmFunction, LlvmValue], LlvmValue] = lambda f, value: value,
    ) -> LlvmValue:
        """Lanes converted by one of the instructions, as many at a time as it takes; ``prepare`` acts on each piece."""
        whole, pieces = vector("i32", self.lanes), list[LlvmValue]()
        for start in range(0, value.width, self.lanes):
            part = prepare(f, f.part(value, start, self.lanes))
            pieces.append(f.value(f"call {whole} @{name}({part.typed}{self.more})", whole))
        while len(pieces) > 1:
            pieces = [f.joined(*pair) for pair in zip(pieces[::2], pieces[1::2], strict=True)]
        return pieces[0]


_AVX512 = "llvm.x86.avx512.mask.{}.512".format
_NATIVE = (
    NativeConversion(
        "avx512f", 16, _AVX512("cvttps2dq"), _AVX512("cvtps2dq"), ", <16 x i32> zeroinitializer, i16 -1, i32 4"
    ),
    NativeConversion("avx2", 8, "llvm.x86.avx.cvtt.ps2dq.256", "llvm.x86.avx.cvt.ps2dq.256"),
    NativeConversion("sse2", 4, "llvm.x86.sse2.cvttps2dq", "llvm.x86.sse2.cvtps2dq"),
)


def native_conversion(width: int, target: Target) -> NativeConversion | None:
    """The widest of x86's conversions that lanes can be parted into; ``None`` elsewhere, and for single lanes."""
    return next((n for n in _NATIVE if n.family in target.families and width % n.lanes == 0), None)


def _truncate(f: LlvmFunction, value: LlvmValue, to: str, target: Target) -> LlvmValue:
    """Truncation with the smallest integer where the value does not fit, without undefined cases."""
    least = -(1 << (int(to[1:]) - 1))
    if value.type.scalar == "float" or to == "i64":  # the number below the least one is no number of the type
        above = f.compare("oge", value, number(float(least), value.type))
    else:
        above = f.compare("ogt", value, number(float(least) - 1.0, value.type))
    fits = f.op("and", above, f.compare("olt", value, number(-float(least), value.type)))
    safe = f.select(fits, value, number(0.0, value.type))
    return f.select(fits, to_integer(f, safe, to, target), least)


def _float_to_u64(f: LlvmFunction, value: LlvmValue, target: Target) -> LlvmValue:
    """Below 2**63 as i64 (negative numbers wrap); above, 2**63 is taken off first and put back."""
    half = number(2.0**63, value.type)
    large = f.compare("oge", value, half)
    rest = f.select(large, f.op("fsub", value, half), value)
    whole = _truncate(f, rest, "i64", target)
    return f.select(large, f.op("xor", whole, -(1 << 63)), whole)


def _integer_to_float(f: LlvmFunction, value: LlvmValue, from_dtype: str, to_dtype: str, target: Target) -> LlvmValue:
    whole = to_float(f, value, REGISTER[to_dtype], target, signed=from_dtype in SIGNED)
    return whole if to_dtype in ("f64", "f32") else round_to(f, whole, to_dtype, target)


def load(
    f: LlvmFunction, pointer: LlvmValue, dtype: str, width: int, target: Target, mask: LlvmValue | None = None
) -> LlvmValue:
    """``width`` elements from memory as lanes in a register; lanes outside ``mask`` (i1 lanes) are 0 and not read."""
    raw = f.load(vector(MEMORY[dtype], width), pointer, SIZE[dtype], mask)
    return f.compare("ne", raw, 0) if dtype == "bool" else half_lanes(f, raw, dtype, target)


def store(
    f: LlvmFunction, value: LlvmValue, pointer: LlvmValue, dtype: str, target: Target, mask: LlvmValue | None = None
) -> None:
    """Store lanes to as many elements in memory; those outside ``mask`` are not touched."""
    stored = as_stored(f, value, dtype, target)
    if stored.type.scalar != MEMORY[dtype]:
        raise CodegenError(f"function {f.name}: {value.typed} is stored as {dtype}")
    f.store(stored, pointer, SIZE[dtype], mask)


def constant(value: float | int | bool, dtype: str, width: int) -> LlvmValue:
    """A constant in every lane.

    Floats must be representable in ``dtype`` already; integers are taken modulo their size.
    """
    type_ = register_type(dtype, width)
    if dtype in FLOATS:
        return number(float(value), type_)
    if dtype == "bool":
        return in_all_lanes("true" if value else "false", type_)
    return integer(small_formats.code_of(value, dtype) if dtype in small_formats.STORED else int(value), type_)
