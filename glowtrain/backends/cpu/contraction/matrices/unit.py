"""Registers that hold matrices, and the instructions on them: x86's AMX (Intel, Architecture Instruction Set Extensions
Programming Reference, chapter 3).

One instruction multiplies a matrix of at most 16 rows of 64 bytes, which lie any distance apart in memory, by one of at
most 16 words for each of 16 columns, and adds the products to 16 x 16 sums of i32, which wrap around: exact, whatever
the signs. The second matrix lies as :mod:`~glowtrain.backends.cpu.panels` has words. How many rows and bytes each
register has is said once, before anything is computed; what a register held is lost then.
"""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.backends.cpu.contraction.dot import BYTES, Dot
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import LlvmValue, vector
from glowtrain.backends.target import MATRICES, Target

REGISTERS = 8
ROWS, ROW = 16, 64
"""Rows of a register, and bytes of a row."""
WORD = 4
"""Bytes that are multiplied and added to one sum."""
_PALETTE, _BYTES_AT, _ROWS_AT = 1, 16, 48
"""Of a configuration: what its first byte says; where the 16-bit numbers of bytes of rows and the 8-bit numbers of rows
begin."""


def matrix_dot(target: Target, a: str, b: str) -> Dot | None:
    """How a target multiplies matrices of these element types; ``None`` if it does not."""
    if MATRICES not in target.families or not {a, b} <= BYTES:
        return None
    signs = "".join("s" if dtype == "i8" else "u" for dtype in (a, b))
    return Dot(WORD, "i8", a, b, f"llvm.x86.tdpb{signs}d", adds=True, matrices=True)


def configure(f: LlvmFunction, shapes: Sequence[tuple[int, int]]) -> None:
    """Say the rows and the bytes of a row of each register, from the first on."""
    config = bytearray(ROW)
    config[0] = _PALETTE
    for register, (rows, nbytes) in enumerate(shapes):
        config[_BYTES_AT + 2 * register], config[_ROWS_AT + register] = nbytes, rows
    memory, type_ = f.buffer(1, vector("i8", ROW)), vector("i8", ROW)
    f.store(LlvmValue(f"<{', '.join(f'i8 {byte}' for byte in config)}>", type_), memory, ROW)
    f.line(f"call void @llvm.x86.ldtilecfg(ptr {memory})")


def release(f: LlvmFunction) -> None:
    """Leave the registers as a thread has them that never used any."""
    f.line("call void @llvm.x86.tilerelease()")


def clear(f: LlvmFunction, register: int) -> None:
    """Set a register to zeros."""
    f.line(f"call void @llvm.x86.tilezero(i8 {register})")


def load(f: LlvmFunction, register: int, address: LlvmValue, stride: int) -> None:
    """Read rows that are ``stride`` bytes apart."""
    f.line(f"call void @llvm.x86.tileloadd64(i8 {register}, ptr {address}, i64 {stride})")


def store(f: LlvmFunction, register: int, address: LlvmValue, stride: int) -> None:
    """Write rows ``stride`` bytes apart."""
    f.line(f"call void @llvm.x86.tilestored64(i8 {register}, ptr {address}, i64 {stride})")


def multiply(f: LlvmFunction, dot: Dot, sums: int, a: int, b: int) -> None:
    """Add the products of two registers to the sums of a third one."""
    f.line(f"call void @{dot.instruction}(i8 {sums}, i8 {a}, i8 {b})")
