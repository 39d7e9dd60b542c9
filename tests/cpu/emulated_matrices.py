"""Registers that hold matrices, in memory: functions of the meaning of AMX's instructions, for processors without them.

They are stricter than the processor only in that shapes which do not go together end the process by a trap.
"""

from __future__ import annotations

import re

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I32, I64, LlvmValue, pointer, vector

STATE = """@matrices = internal global [8 x [16 x [64 x i8]]] zeroinitializer
@shapes = internal global [64 x i8] zeroinitializer
"""
I8, I16 = vector("i8"), vector("i16")
REGISTER, STRIDE = ("i8", "register"), ("i64", "stride")


def emulated(text: str) -> str:
    """Text that uses the instructions, as text that runs anywhere."""
    used = sorted(set(re.findall(r"@llvm\.x86\.(tdpb\w\wd)\(", text)))
    text = re.sub(r"@llvm\.x86\.(ldtilecfg|tile\w+|tdpb\w\wd)\(", r"@emulated.\1(", text)
    return text + STATE + _configure() + _release() + _zero() + _moves() + "".join(map(_product, used))


def _function(name: str, *params: tuple[str, str]) -> LlvmFunction:
    return LlvmFunction(f"emulated.{name}", params, linkage="internal")


def _shape(f: LlvmFunction, register: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
    """Rows, and bytes of a row."""
    rows = f.load(I8, f.address(pointer("@shapes"), f.op("add", register, 48), 1))
    at = f.op("add", f.op("mul", register, 2), 16)
    return f.convert("zext", rows, "i64"), f.convert(
        "zext", f.load(I16, f.address(pointer("@shapes"), at, 1), 1), "i64"
    )


def _number(f: LlvmFunction, name: str = "register") -> LlvmValue:
    return f.convert("zext", LlvmValue(f"%{name}", I8), "i64")


def _row(f: LlvmFunction, register: LlvmValue, row: LlvmValue) -> LlvmValue:
    at = f.op("add", f.op("mul", register, 1024), f.op("mul", row, 64))
    return f.address(pointer("@matrices"), at, 1)


def _filled(f: LlvmFunction, place: LlvmValue, count: int) -> None:
    with f.loop(count) as loop:
        f.store(LlvmValue("0", I8), f.address(place, loop.index, 1))


def _configure() -> str:
    f = _function("ldtilecfg", ("ptr", "from"))
    with f.loop(64) as loop:
        f.store(f.load(I8, f.address(pointer("%from"), loop.index, 1)), f.address(pointer("@shapes"), loop.index, 1))
    _filled(f, pointer("@matrices"), 8192)
    return f.finish()


def _release() -> str:
    f = _function("tilerelease")
    _filled(f, pointer("@shapes"), 64)
    return f.finish()


def _zero() -> str:
    f = _function("tilezero", REGISTER)
    _filled(f, f.address(pointer("@matrices"), f.op("mul", _number(f), 1024), 1), 1024)
    return f.finish()


def _moves() -> str:
    return "".join(_move(name, store=name == "tilestored64") for name in ("tileloadd64", "tilestored64"))


def _move(name: str, *, store: bool) -> str:
    f = _function(name, REGISTER, ("ptr", "memory"), STRIDE)
    register = _number(f)
    rows, nbytes = _shape(f, register)
    with f.loop(rows) as row:
        own = _row(f, register, row.index)
        there = f.address(pointer("%memory"), f.op("mul", row.index, LlvmValue("%stride", I64)), 1)
        with f.loop(nbytes) as byte:
            source, target = (own, there) if store else (there, own)
            f.store(f.load(I8, f.address(source, byte.index, 1)), f.address(target, byte.index, 1))
    return f.finish()


def _product(name: str) -> str:
    f = _function(name, ("i8", "sums"), ("i8", "a"), ("i8", "b"))
    sums, a, b = (_number(f, each) for each in ("sums", "a", "b"))
    (rows, width), (a_rows, a_width), (words, b_width) = (_shape(f, each) for each in (sums, a, b))
    for left, right in ((rows, a_rows), (width, b_width), (a_width, f.op("mul", words, 4))):
        with f.when(f.compare("ne", left, right)):
            f.line("call void @llvm.trap()")
    with f.loop(rows) as row, f.loop(f.op("udiv", width, 4)) as column, f.loop(a_width) as byte:
        place = f.address(_row(f, sums, row.index), column.index, 4)
        word, at = f.op("udiv", byte.index, 4), f.op("urem", byte.index, 4)
        x = f.load(I8, f.address(_row(f, a, row.index), byte.index, 1))
        y = f.load(I8, f.address(_row(f, b, word), f.op("add", f.op("mul", column.index, 4), at), 1))
        wide = [f.widened(z, "i32", signed=sign == "s") for z, sign in zip((x, y), name[4:6], strict=True)]
        f.store(f.op("add", f.load(I32, place), f.op("mul", *wide)), place)
    return f.finish()
