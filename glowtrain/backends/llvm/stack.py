"""How many bytes of stack a module's functions take, calls included: read from its assembly and its text.

A function's own frame is what its instructions take off the stack pointer, as if each of them ran; so the bytes are an
upper bound. There is no recursion, and a function whose address is handed on counts as one that is called. What other
programs' functions take is not known here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError

RED_ZONE = 128
"""Bytes below the stack pointer that a function on x86-64 may use if it calls none (System V ABI, 3.2.2)."""
Taken = tuple[str, Callable[[re.Match[str]], int]]
"""A pattern of instructions that lower the stack pointer, and by how many bytes."""


def _number(match: re.Match[str]) -> int:
    return int(match[1])


def _bits(match: re.Match[str]) -> int:
    return 1 << int(match[1])


def _mask(match: re.Match[str]) -> int:
    return -int(match[1], 0) & 0xFFFFFFFF


def _registers(size: int) -> Callable[[re.Match[str]], int]:
    return lambda match: size * len(match[1].split(","))


def _upper_and_lower(match: re.Match[str]) -> int:
    return (int(match[2]) << 12) + int(match[3] or 0)


_ARM: list[Taken] = [
    (r"\tpush(?:\.w)?\t\{(.*)\}", _registers(4)),
    (r"\tstmdb\tsp!, \{(.*)\}", _registers(4)),
    (r"\tvpush\t\{(.*)\}", _registers(8)),
    (r"\tsub(?:w|\.w)?\tsp, (?:sp, )?#(\d+)", _number),
    (r"\tstrd?(?:\.w)?\t.*\[sp, #-(\d+)\]!", _number),
    (r"\tbfc\t\w+, #0, #(\d+)", _bits),
]
_X86: list[Taken] = [
    (r"\tpushq\t", lambda _: 8),
    (r"\tsubq\t\$(\d+), %rsp", _number),
    (r"\tleaq\t-(\d+)\(%rsp\), %rsp", _number),
    (r"\tmovl\t\$(\d+), %eax\n\tcallq\t___chkstk_ms", _number),
    (r"\tandq\t\$(-\d+), %rsp", _mask),
]
_AARCH64: list[Taken] = [
    (r"\tst[rp]\t.*\[sp, #-(\d+)\]!", _number),
    (r"\tsub\t(?:sp|x9), sp, #(\d+)$", _number),
    (r"\tsub\t(?:sp|x9), sp, #(\d+), lsl #12", lambda match: int(match[1]) << 12),
    (r"\tand\tsp, x\d+, #(0x\w+)", _mask),
]
_RISCV: list[Taken] = [
    (r"\taddi\tsp, sp, -(\d+)", _number),
    (r"\tlui\t(\w+), (\d+)\n(?:\taddiw?\t\1, \1, (-?\d+)\n)?\tsub\tsp, sp, \1", _upper_and_lower),
    (r"\tandi\tsp, sp, (-\d+)", _mask),
]
_WASM: list[Taken] = [
    (r"\tglobal\.get\t__stack_pointer\n(?:\t(?:local|drop).*\n)*\ti32\.const\t(\d+)\n\ti32\.sub", _number),
    (r"\ti32\.sub *\n\ti32\.const\t(-\d+)\n\ti32\.and", _mask),
]
_DIALECTS: Mapping[str, tuple[int, list[Taken]]] = {
    "aarch64": (0, _AARCH64), "arm": (0, _ARM), "x86": (8, _X86), "riscv": (0, _RISCV), "wasm": (0, _WASM),
}  # fmt: skip
"""By architecture: what a call takes itself, and what instructions do."""


def stack_of(text: str, target: Target) -> dict[str, int]:
    """The bytes of stack below the call of each function that the text defines.

    Raises :class:`CodegenError` for what cannot be compiled, and for processors whose assembly is not known here.
    """
    bodies = {match[1]: match[2] for match in _DEFINITION.finditer(text)}
    calls = {name: {each for each in _NAME.findall(body) if each in bodies} for name, body in bodies.items()}
    below = RED_ZONE if target.architecture == "x86" else 0
    frames = _frames(toolchain.assembly(text, target), set(bodies), target)

    @cache
    def depth(name: str) -> int:
        return frames[name] + max(map(depth, calls[name]), default=below)

    return {name: depth(name) for name in bodies}


_DEFINITION = re.compile(r"^define [^@]*@([\w.$\-]+)\((.*?)^\}", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"@([\w.$\-]+)")
_LABEL = re.compile(r"^_?([A-Za-z][\w.$\-]*):", re.MULTILINE)


def _frames(assembly: str, names: set[str], target: Target) -> dict[str, int]:
    """Each function's own bytes."""
    entry, taken = _dialect(target)
    labels = [match for match in _LABEL.finditer(assembly) if match[1] in names]
    ends = [*(match.start() for match in labels[1:]), len(assembly)]
    bodies = {match[1]: assembly[match.end() : end] for match, end in zip(labels, ends, strict=True)}
    return {
        name: entry + sum(size(found) for pattern, size in taken for found in re.finditer(pattern, body, re.MULTILINE))
        for name, body in bodies.items()
    }


def _dialect(target: Target) -> tuple[int, list[Taken]]:
    dialect = _DIALECTS.get(target.architecture)
    if dialect is None:
        raise CodegenError(f"how {target.name} uses its stack is not known; its sizes cannot be said")
    return dialect
