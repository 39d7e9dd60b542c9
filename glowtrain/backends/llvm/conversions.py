"""Conversions between 64-bit integers and floats, and their division, where a processor's registers have 32 bits.

LLVM would call routines there. In integer operations that it writes out, they need none; the bits are those of the
instructions that wider processors have. Everything works on lanes of any number.
"""

from __future__ import annotations

from dataclasses import dataclass

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I1, LlvmType, LlvmValue, integer, number
from glowtrain.backends.target import Target


@dataclass(frozen=True)
class _Fields:
    """Where the parts of a float stand: explicit bits of the significand, and the exponent's bias."""

    significand: int
    bias: int


_FIELDS = {"float": _Fields(23, 127), "double": _Fields(52, 1023)}


def to_float(f: LlvmFunction, value: LlvmValue, scalar: str, target: Target, *, signed: bool) -> LlvmValue:
    """Integers as floats, rounded to nearest even."""
    if value.type.bits <= target.integer_bits or scalar not in _FIELDS:
        return f.convert("sitofp" if signed else "uitofp", value, scalar)
    return _rounded(f, value, value.type.of(scalar), signed)


def _rounded(f: LlvmFunction, value: LlvmValue, to: LlvmType, signed: bool) -> LlvmValue:
    """The 64 bits moved until the first is set, of which the significand's are kept and the rest decides on one more;
    what that carries into the exponent is right, too."""
    fields, negative = _FIELDS[to.scalar], f.compare("slt", value, 0)
    size = f.select(negative, f.op("sub", integer(0, value.type), value), value) if signed else value
    flag = LlvmValue("false", I1)
    zeros = f.call(f"llvm.ctlz.{value.type.suffix}", value.type, size, flag)
    aligned = f.op("shl", size, f.op("and", zeros, 63))
    dropped = 63 - fields.significand
    kept, rest = f.op("lshr", aligned, dropped), f.op("and", aligned, (1 << dropped) - 1)
    over = f.op("add", rest, f.op("and", kept, 1))  # more than a half, or a half after an odd number
    up = f.convert("zext", f.compare("ugt", over, 1 << (dropped - 1)), "i64")
    exponent = f.op("shl", f.op("sub", integer(fields.bias + 62, value.type), zeros), fields.significand)
    bits = f.op("add", f.op("add", exponent, kept), up)
    bits = f.select(f.compare("eq", size, 0), 0, bits)
    bits = f.convert("trunc", bits, f"i{to.bits}")
    if signed:
        bits = f.select(negative, f.op("or", bits, integer(1 << (to.bits - 1), bits.type)), bits)
    return f.convert("bitcast", bits, to.scalar)


def to_integer(f: LlvmFunction, value: LlvmValue, scalar: str, target: Target) -> LlvmValue:
    """Floats that fit, as signed integers, without their fractions."""
    if value.width > 1 and target.architecture == "riscv":
        return _from_nearest(f, value, value.type.of(scalar))
    if scalar != "i64" or target.integer_bits >= 64:
        return f.convert("fptosi", value, scalar)
    return _shifted(f, value)


def _from_nearest(f: LlvmFunction, value: LlvmValue, to: LlvmType) -> LlvmValue:
    """From the nearest integer one towards 0 where that is farther from it: RISC-V's instructions that cut fractions of
    vectors end QEMU 7.2, which has those that round."""
    near = f.value(f"call {to} @llvm.lrint.{to.suffix}.{value.type.suffix}({value.typed})", to)
    found = f.convert("sitofp", near, value.type.scalar)
    far = f.compare("ogt", f.intrinsic("fabs", found), f.intrinsic("fabs", value))
    outwards = f.select(f.compare("olt", value, number(0.0, value.type)), integer(-1, to), integer(1, to))
    return f.select(far, f.op("sub", near, outwards), near)


def _shifted(f: LlvmFunction, value: LlvmValue) -> LlvmValue:
    """The significand moved by the exponent."""
    fields, bits = _FIELDS[value.type.scalar], f.convert("bitcast", value, f"i{value.type.bits}")
    field = f.op("and", f.op("lshr", bits, fields.significand), 2 * fields.bias + 1)
    explicit = f.op("and", bits, (1 << fields.significand) - 1)
    whole = f.convert("zext", f.op("or", explicit, 1 << fields.significand), "i64")
    power = f.op("sub", f.convert("zext", field, "i64"), fields.bias + fields.significand)
    left = f.op("shl", whole, f.op("and", power, 63))
    right = f.op("lshr", whole, f.op("and", f.op("sub", integer(0, power.type), power), 63))
    size = f.select(f.compare("slt", power, 0), right, left)
    size = f.select(f.compare("slt", power, -fields.significand), 0, size)
    return f.select(f.compare("slt", bits, 0), f.op("sub", integer(0, size.type), size), size)


def divided(f: LlvmFunction, operation: str, a: LlvmValue, b: LlvmValue, integer_bits: int) -> LlvmValue:
    """``sdiv``, ``udiv``, ``srem`` or ``urem`` of a divisor that is not 0, where that is no overflow."""
    if a.type.bits <= integer_bits:
        return f.op(operation, a, b)
    if operation[0] == "u":
        return _long_division(f, a, b)[operation == "urem"]
    parts = [f.select(f.compare("slt", x, 0), f.op("sub", integer(0, x.type), x), x) for x in (a, b)]
    result = _long_division(f, *parts)[operation == "srem"]
    sign = a if operation == "srem" else f.op("xor", a, b)
    return f.select(f.compare("slt", sign, 0), f.op("sub", integer(0, result.type), result), result)


def _long_division(f: LlvmFunction, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Quotient and remainder of unsigned numbers, a bit in each trip: the dividend's bits move out as the quotient's
    move in."""
    with f.loop(a.type.bits, [a, integer(0, a.type)], hint="divide") as loop:
        moving, rest = loop.carried
        out = f.op("lshr", moving, a.type.bits - 1)
        carried = f.compare("slt", rest, 0)
        rest = f.op("or", f.op("shl", rest, 1), out)
        fits = f.op("or", f.compare("uge", rest, b), carried)
        bit = f.convert("zext", fits, a.type.scalar)
        loop.next = [
            f.op("or", f.op("shl", moving, 1), bit),
            f.select(fits, f.op("sub", rest, b), rest),
        ]
    quotient, rest = loop.results
    return quotient, rest
