"""Element types in registers and in memory, and conversions between them.

In registers f16 and bf16 are f32 lanes that hold representable values (every operation rounds its result), bool is i1;
in memory f16 and bf16 take two bytes and bool one byte, 0 or 1. Smaller types are the bytes of memory everywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from glowtrain.backends.llvm import small_formats
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.text import LlvmFunction, Text, float_constant, lane_mask, splat_constant, vector

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


def register_type(dtype: str, width: int) -> str:
    """The LLVM type of ``width`` lanes of ``dtype`` in a register."""
    return vector(REGISTER[dtype], width)


def bits_of(dtype: str) -> int:
    """Bits of an integer or bool lane in a register."""
    return int(REGISTER[dtype][1:])


class Vectors:
    """Appends to ``f`` operations on ``width`` lanes of any scalar type."""

    def __init__(self, f: LlvmFunction, width: int) -> None:
        self.f, self.width = f, width

    def op(self, operation: str, scalar: str, a: Text, b: Text | int) -> Text:
        """``operation`` of two operands; a Python int is a constant in every lane."""
        other = splat_constant(str(b), scalar, self.width) if isinstance(b, int) else b
        return self.f.value(f"{operation} {vector(scalar, self.width)} {a}, {other}")

    def convert(self, operation: str, a: Text, source: str, destination: str) -> Text:
        """One conversion instruction; the operand itself where the types are equal."""
        if source == destination:
            return a
        return self.f.value(f"{operation} {vector(source, self.width)} {a} to {vector(destination, self.width)}")

    def select(self, condition: Text, scalar: str, a: Text | int, b: Text | int) -> Text:
        values = [splat_constant(str(v), scalar, self.width) if isinstance(v, int) else v for v in (a, b)]
        type_ = vector(scalar, self.width)
        return self.f.value(f"select {vector('i1', self.width)} {condition}, {type_} {values[0]}, {type_} {values[1]}")

    def part(self, scalar: str, value: Text, start: int, lanes: int) -> Text:
        """Some neighbouring lanes."""
        order = ", ".join(f"i32 {lane}" for lane in range(start, start + lanes))
        type_ = vector(scalar, self.width)
        return self.f.value(f"shufflevector {type_} {value}, {type_} poison, <{lanes} x i32> <{order}>")

    def number(self, value: float, scalar: str = "float") -> Text:
        return splat_constant(float_constant(value, scalar), scalar, self.width)


def joined(f: LlvmFunction, scalar: str, lanes: int, low: Text, high: Text) -> Text:
    """Two vectors of ``lanes`` one after the other, as one."""
    order, type_ = ", ".join(f"i32 {lane}" for lane in range(2 * lanes)), vector(scalar, lanes)
    return f.value(f"shufflevector {type_} {low}, {type_} {high}, <{2 * lanes} x i32> <{order}>")


def interleaved(f: LlvmFunction, scalar: str, lanes: int, parts: Sequence[Text]) -> Text:
    """Two to four vectors of ``lanes`` as one: lane 0 of each, lane 1 of each, ..."""
    order = ", ".join(f"i32 {part * lanes + lane}" for lane in range(lanes) for part in range(len(parts)))
    sides, size = list(parts), lanes
    if len(sides) > 2:
        sides = [*sides, *["poison"] * (4 - len(sides))]
        sides, size = [joined(f, scalar, lanes, *sides[at : at + 2]) for at in (0, 2)], 2 * lanes
    type_ = vector(scalar, size)
    return f.value(f"shufflevector {type_} {sides[0]}, {type_} {sides[1]}, <{lanes * len(parts)} x i32> <{order}>")


def round_to(f: LlvmFunction, value: Text, dtype: str, width: int, target: Target) -> Text:
    """f32 lanes rounded to the values of ``dtype`` (f16 or bf16; to nearest even); other types are left as they are."""
    if dtype == "bf16":
        return _round_bf16(f, value, width)
    if dtype == "f16":
        return half_to_float(f, float_to_half(f, value, width, target), width, target)
    return value


def _round_bf16(f: LlvmFunction, value: Text, width: int) -> Text:
    """Adds half a unit, or just less before an even result, and cuts; a NaN keeps its head with the quiet bit set."""
    m = Vectors(f, width)
    bits = m.convert("bitcast", value, "float", "i32")
    odd = m.op("and", "i32", m.op("lshr", "i32", bits, 16), 1)
    rounded = m.op("add", "i32", m.op("add", "i32", bits, 0x7FFF), odd)
    nan = m.op("fcmp uno", "float", value, value)
    chosen = m.select(nan, "i32", m.op("or", "i32", bits, 0x400000), rounded)
    return m.convert("bitcast", m.op("and", "i32", chosen, -65536), "i32", "float")


def float_to_half(f: LlvmFunction, value: Text, width: int, target: Target) -> Text:
    """The i16 bits of f32 lanes rounded to f16."""
    m = Vectors(f, width)
    if target.has_half:
        return m.convert("bitcast", m.convert("fptrunc", value, "float", "half"), "half", "i16")
    return _half_bits(m, value)


def _half_bits(m: Vectors, value: Text) -> Text:
    """f32 to f16 in integers. Denormals: adding 1/2 lets the adder round at the unit of f16's denormals, 2**-24."""
    bits = m.convert("bitcast", value, "float", "i32")
    sign = m.op("and", "i32", m.op("lshr", "i32", bits, 16), 0x8000)
    size = m.op("and", "i32", bits, 0x7FFFFFFF)
    odd = m.op("and", "i32", m.op("lshr", "i32", size, 13), 1)
    normal = m.op("add", "i32", m.op("add", "i32", size, (15 - 127) * (1 << 23) + 0xFFF), odd)
    normal = m.op("lshr", "i32", normal, 13)
    moved = m.op("fadd", "float", m.convert("bitcast", size, "i32", "float"), m.number(0.5))
    denormal = m.op("sub", "i32", m.convert("bitcast", moved, "float", "i32"), 0x3F000000)
    result = m.select(m.op("icmp ult", "i32", size, 113 << 23), "i32", denormal, normal)
    result = m.select(m.op("icmp uge", "i32", size, 143 << 23), "i32", 0x7C00, result)
    payload = m.op("or", "i32", m.op("and", "i32", m.op("lshr", "i32", size, 13), 0x3FF), 0x7E00)
    result = m.select(m.op("icmp ugt", "i32", size, 0x7F800000), "i32", payload, result)
    return m.convert("trunc", m.op("or", "i32", result, sign), "i32", "i16")


def half_to_float(f: LlvmFunction, bits: Text, width: int, target: Target) -> Text:
    """f32 lanes of the f16 values whose i16 bits are given."""
    m = Vectors(f, width)
    if target.has_half:
        return m.convert("fpext", m.convert("bitcast", bits, "i16", "half"), "half", "float")
    whole = m.convert("zext", bits, "i16", "i32")
    sign = m.op("shl", "i32", m.op("and", "i32", whole, 0x8000), 16)
    placed = m.op("shl", "i32", m.op("and", "i32", whole, 0x7FFF), 13)
    scaled = m.op("fmul", "float", m.convert("bitcast", placed, "i32", "float"), m.number(2.0**112))
    result = m.convert("bitcast", scaled, "float", "i32")
    special = m.op("icmp uge", "i32", placed, 0x7C00 << 13)
    result = m.select(special, "i32", m.op("or", "i32", placed, 0x7F800000), result)
    return m.convert("bitcast", m.op("or", "i32", result, sign), "i32", "float")


def cast(f: LlvmFunction, value: Text, from_dtype: str, to_dtype: str, width: int, target: Target) -> Text:
    """``value`` converted; defined for every input, the same on all targets.

    Floats become integers as :func:`glowtrain.loops.functions.truncated` says. Integers wrap; anything to bool is
    ``!= 0``; f64 and integers reach bf16 by way of f32, as in ml_dtypes. Smaller types come and go by way of f32, i32.
    """
    m = Vectors(f, width)
    if from_dtype == to_dtype:
        return value
    if from_dtype in small_formats.STORED:
        wide = "f32" if from_dtype in small_formats.FORMATS else "i32"
        return cast(f, small_formats.widened(m, value, from_dtype), wide, to_dtype, width, target)
    if to_dtype in small_formats.STORED:
        wide = "f32" if to_dtype in small_formats.FORMATS else "i32"
        return small_formats.narrowed(m, cast(f, value, from_dtype, wide, width, target), to_dtype)
    if to_dtype == "bool":
        return _to_bool(m, value, from_dtype)
    if from_dtype in FLOATS and to_dtype in FLOATS:
        return _float_to_float(m, value, from_dtype, to_dtype, target)
    if from_dtype in FLOATS:
        return _float_to_integer(m, value, REGISTER[from_dtype], to_dtype, target)
    if to_dtype in FLOATS:
        return _integer_to_float(m, value, from_dtype, to_dtype, target)
    source, destination = REGISTER[from_dtype], REGISTER[to_dtype]
    if bits_of(from_dtype) >= bits_of(to_dtype):
        return m.convert("trunc", value, source, destination)
    return m.convert("sext" if from_dtype in SIGNED else "zext", value, source, destination)


def bitcast(f: LlvmFunction, value: Text, from_dtype: str, to_dtype: str, width: int, target: Target) -> Text:
    """The same bits as another element type of the same size; a byte is true as a bool unless it is 0."""
    m = Vectors(f, width)
    if from_dtype in ("f16", "bf16") or to_dtype in ("f16", "bf16"):
        return half_lanes(m, memory_bits(m, value, from_dtype, target), to_dtype, target)
    if from_dtype == "bool":
        value, from_dtype = m.convert("zext", value, "i1", "i8"), "u8"
    if to_dtype == "bool":
        return m.op("icmp ne", "i8", value, 0)
    return m.convert("bitcast", value, REGISTER[from_dtype], REGISTER[to_dtype])


def memory_bits(m: Vectors, value: Text, dtype: str, target: Target) -> Text:
    """The i16 lanes that stand in memory for f16 and bf16 lanes; other types as they are."""
    if dtype == "bf16":
        return m.convert("trunc", m.op("lshr", "i32", m.convert("bitcast", value, "float", "i32"), 16), "i32", "i16")
    return float_to_half(m.f, value, m.width, target) if dtype == "f16" else value


def as_stored(m: Vectors, value: Text, dtype: str, target: Target) -> Text:
    """The lanes that stand in memory for lanes in a register."""
    return m.convert("zext", value, "i1", "i8") if dtype == "bool" else memory_bits(m, value, dtype, target)


def half_lanes(m: Vectors, raw: Text, dtype: str, target: Target) -> Text:
    """The lanes of f16 and bf16 that stand in memory as these i16 lanes; other types as they are."""
    if dtype == "bf16":
        return m.convert("bitcast", m.op("shl", "i32", m.convert("zext", raw, "i16", "i32"), 16), "i32", "float")
    return half_to_float(m.f, raw, m.width, target) if dtype == "f16" else raw


def _to_bool(m: Vectors, value: Text, dtype: str) -> Text:
    scalar = REGISTER[dtype]
    if dtype in FLOATS:
        return m.op("fcmp une", scalar, value, m.number(0.0, scalar))
    return m.op("icmp ne", scalar, value, 0)


def _float_to_float(m: Vectors, value: Text, from_dtype: str, to_dtype: str, target: Target) -> Text:
    if from_dtype != "f64":
        wide = round_to(m.f, value, to_dtype, m.width, target)
        return m.convert("fpext", wide, "float", "double") if to_dtype == "f64" else wide
    if to_dtype == "f16":
        return round_to(m.f, _to_odd(m, value), to_dtype, m.width, target)
    return round_to(m.f, m.convert("fptrunc", value, "double", "float"), to_dtype, m.width, target)


def _to_odd(m: Vectors, value: Text) -> Text:
    """f64 to f32 rounded to odd, so that rounding once more is as if rounded once (Boldo and Melquiond, 2008)."""
    nearest = m.convert("fptrunc", value, "double", "float")
    back = m.convert("fpext", nearest, "float", "double")
    inexact = m.op("fcmp one", "double", back, value)
    away = m.op("fcmp ogt", "double", _magnitude(m, back), _magnitude(m, value))
    bits = m.convert("bitcast", nearest, "float", "i32")
    towards_zero = m.op("sub", "i32", bits, m.convert("zext", away, "i1", "i32"))
    odd = m.select(inexact, "i32", m.op("or", "i32", towards_zero, 1), bits)
    return m.convert("bitcast", odd, "i32", "float")


def _magnitude(m: Vectors, value: Text) -> Text:
    suffix = f"v{m.width}f64" if m.width > 1 else "f64"
    double = vector("double", m.width)
    return m.f.value(f"call {double} @llvm.fabs.{suffix}({double} {value})")


def _float_to_integer(m: Vectors, value: Text, scalar: str, to_dtype: str, target: Target) -> Text:
    if to_dtype == "u64":
        return _float_to_u64(m, value, scalar)
    via = "i64" if to_dtype in ("i64", "u32") else "i32"
    native = native_conversion(m, target)
    if native is not None and (scalar, via) == ("float", "i32"):
        whole = native.in_pieces(m, value, native.truncating)
    else:
        whole = _truncate(m, value, scalar, via)
    return m.convert("trunc", whole, via, REGISTER[to_dtype])


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
        self, m: Vectors, value: Text, name: str, prepare: Callable[[Vectors, Text], Text] | None = None
    ) -> Text:
        """Lanes converted by one of the instructions, as many at a time as it takes; ``prepare`` acts on each piece."""
        lanes, few, pieces = self.lanes, Vectors(m.f, self.lanes), list[Text]()
        for start in range(0, m.width, lanes):
            part = value if lanes == m.width else m.part("float", value, start, lanes)
            part = part if prepare is None else prepare(few, part)
            pieces.append(m.f.value(f"call <{lanes} x i32> @{name}(<{lanes} x float> {part}{self.more})"))
        while len(pieces) > 1:
            pieces = [joined(m.f, "i32", lanes, *pair) for pair in zip(pieces[::2], pieces[1::2], strict=True)]
            lanes *= 2
        return pieces[0]


_AVX512 = "llvm.x86.avx512.mask.{}.512".format
_NATIVE = (
    NativeConversion(
        "avx512f", 16, _AVX512("cvttps2dq"), _AVX512("cvtps2dq"), ", <16 x i32> zeroinitializer, i16 -1, i32 4"
    ),
    NativeConversion("avx2", 8, "llvm.x86.avx.cvtt.ps2dq.256", "llvm.x86.avx.cvt.ps2dq.256"),
    NativeConversion("sse2", 4, "llvm.x86.sse2.cvttps2dq", "llvm.x86.sse2.cvtps2dq"),
)


def native_conversion(m: Vectors, target: Target) -> NativeConversion | None:
    """The widest of x86's conversions that lanes can be parted into; ``None`` elsewhere, and for single lanes."""
    return next((n for n in _NATIVE if n.family in target.families and m.width % n.lanes == 0), None)


def _truncate(m: Vectors, value: Text, scalar: str, integer: str) -> Text:
    """Truncation with the smallest integer where the value does not fit, without undefined cases."""
    bits = int(integer[1:])
    low = float(-(1 << (bits - 1)))
    exact_low = scalar == "float" or bits == 64
    above = m.op(
        "fcmp oge" if exact_low else "fcmp ogt", scalar, value, m.number(low if exact_low else low - 1.0, scalar)
    )
    fits = m.op("and", "i1", above, m.op("fcmp olt", scalar, value, m.number(-low, scalar)))
    safe = m.select(fits, scalar, value, m.number(0.0, scalar))
    whole = m.convert("fptosi", safe, scalar, integer)
    return m.select(fits, integer, whole, -(1 << (bits - 1)))


def _float_to_u64(m: Vectors, value: Text, scalar: str) -> Text:
    """Below 2**63 as i64 (negative numbers wrap); above, 2**63 is taken off first and put back."""
    half = m.number(2.0**63, scalar)
    large = m.op("fcmp oge", scalar, value, half)
    rest = m.select(large, scalar, m.op("fsub", scalar, value, half), value)
    whole = _truncate(m, rest, scalar, "i64")
    return m.select(large, "i64", m.op("xor", "i64", whole, -(1 << 63)), whole)


def _integer_to_float(m: Vectors, value: Text, from_dtype: str, to_dtype: str, target: Target) -> Text:
    operation = "sitofp" if from_dtype in SIGNED else "uitofp"
    if to_dtype in ("f64", "f32"):
        return m.convert(operation, value, REGISTER[from_dtype], REGISTER[to_dtype])
    return round_to(m.f, m.convert(operation, value, REGISTER[from_dtype], "float"), to_dtype, m.width, target)


def load(f: LlvmFunction, pointer: Text, dtype: str, width: int, target: Target, mask: Text | None = None) -> Text:
    """``width`` elements from memory as lanes in a register; lanes outside ``mask`` (i1 lanes) are 0 and not read."""
    m, scalar = Vectors(f, width), MEMORY[dtype]
    type_ = vector(scalar, width)
    if mask is None:
        raw = f.value(f"load {type_}, ptr {pointer}, align {SIZE[dtype]}")
    else:
        raw = _masked_load(m, pointer, scalar, SIZE[dtype], mask)
    if dtype == "bool":
        return m.op("icmp ne", "i8", raw, 0)
    return half_lanes(m, raw, dtype, target)


def store(
    f: LlvmFunction, value: Text, pointer: Text, dtype: str, width: int, target: Target, mask: Text | None = None
) -> None:
    """Store lanes to ``width`` elements in memory; those outside ``mask`` are not touched."""
    m, scalar = Vectors(f, width), MEMORY[dtype]
    value = as_stored(m, value, dtype, target)
    if mask is None:
        f.line(f"store {vector(scalar, width)} {value}, ptr {pointer}, align {SIZE[dtype]}")
    else:
        _masked_store(m, value, pointer, scalar, SIZE[dtype], mask)


def _single(m: Vectors, value: Text, scalar: str) -> Text:
    """One lane as a vector of one, which the masked intrinsics need."""
    return m.f.value(f"bitcast {scalar} {value} to <1 x {scalar}>") if m.width == 1 else value


def _masked_load(m: Vectors, pointer: Text, scalar: str, align: int, mask: Text) -> Text:
    type_, masks = f"<{m.width} x {scalar}>", f"<{m.width} x i1>"
    name = f"llvm.masked.load.v{m.width}{_code(scalar)}.p0"
    call = (
        f"call {type_} @{name}(ptr align {align} {pointer}, {masks} {_single(m, mask, 'i1')}, {type_} zeroinitializer)"
    )
    loaded = m.f.value(call)
    return m.f.value(f"bitcast {type_} {loaded} to {scalar}") if m.width == 1 else loaded


def _masked_store(m: Vectors, value: Text, pointer: Text, scalar: str, align: int, mask: Text) -> None:
    """Lanes where the mask is true. A first lane alone is stored as a number: on AVX-512 LLVM 22 makes of it, where the
    value is cut from wider lanes, a store of the wider number."""
    if m.width > 1 and mask == lane_mask(m.width, 1):
        one = m.f.value(f"extractelement <{m.width} x {scalar}> {value}, i64 0")
        m.f.line(f"store {scalar} {one}, ptr {pointer}, align {align}")
        return
    type_, masks = f"<{m.width} x {scalar}>", f"<{m.width} x i1>"
    name = f"llvm.masked.store.v{m.width}{_code(scalar)}.p0"
    single = _single(m, value, scalar)
    m.f.line(f"call void @{name}({type_} {single}, ptr align {align} {pointer}, {masks} {_single(m, mask, 'i1')})")


def _code(scalar: str) -> str:
    return {"float": "f32", "double": "f64"}.get(scalar, scalar)


def constant(value: float | int | bool, dtype: str, width: int) -> Text:
    """A constant in every lane.

    Floats must be representable in ``dtype`` already; integers are taken modulo their size.
    """
    scalar = REGISTER[dtype]
    if dtype in FLOATS:
        return splat_constant(float_constant(float(value), scalar), scalar, width)
    if dtype == "bool":
        return splat_constant("true" if value else "false", scalar, width)
    if dtype in small_formats.STORED:
        value = small_formats.code_of(value, dtype)
    half = 1 << (bits_of(dtype) - 1)
    return splat_constant(str((int(value) + half) % (2 * half) - half), scalar, width)


def splat(f: LlvmFunction, value: Text, dtype: str, width: int) -> Text:
    """A scalar register value in every lane."""
    return f.splat(value, REGISTER[dtype], width)
