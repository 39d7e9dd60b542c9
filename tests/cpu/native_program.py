"""Runs a program as native code with every buffer between canaries, or at the edge of protected pages."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from glowtrain.backends.cpu.step import ENTRY, Code, generate
from glowtrain.backends.llvm.toolchain import build, pointer_table
from glowtrain.backends.target import Target
from glowtrain.loops import Buffer
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Program
from glowtrain.stages import Options
from glowtrain.types import Array

CANARY = 0xA5
GAP = 128
POISON = 0xFF


class Memory(Protocol):
    """A piece of memory for each of several sizes in bytes."""

    pieces: list[Array]


class Canaries:
    """All pieces in one array, with known bytes between them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        whole = np.full(sum(size + 2 * GAP for size in sizes) + 64, CANARY, np.uint8)
        self.memory = whole[-whole.ctypes.data % 64 :]
        self.free = np.ones(len(self.memory), np.bool_)
        self.pieces: list[Array] = []
        end = 0
        for size in sizes:
            start = end + GAP
            self.pieces.append(self.memory[start : start + size])
            self.free[start : start + size] = False
            end = -(-(start + size) // 64) * 64

    def check(self) -> None:
        assert np.all(self.memory[self.free] == CANARY), "a store outside of every buffer"


class Pages:
    """Each piece in pages of its own, with its end (or its start) at a page that cannot be touched."""

    def __init__(self, sizes: Sequence[int], at_end: bool = True) -> None:
        self.pieces, self.maps = [], []
        for size in sizes:
            whole = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
            pages = mmap.mmap(-1, whole + 2 * mmap.PAGESIZE)
            view = np.frombuffer(pages, np.uint8)
            for edge in (0, whole + mmap.PAGESIZE):
                protect(view.ctypes.data + edge, mmap.PAGESIZE)
            start = mmap.PAGESIZE + (whole - size if at_end else 0)
            self.maps.append(pages)
            self.pieces.append(view[start : start + size])


def protect(address: int, size: int) -> None:
    """Nothing in these pages may be read or written any more."""
    failed = ctypes.CDLL(None, use_errno=True).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(size), 0)
    assert not failed, ctypes.get_errno()


def spread(program: Program) -> Plan:
    """Every activation in a place of its own, with a gap on both sides."""
    offsets: dict[Buffer, int] = {}
    end = GAP
    for buffer in program.buffers:
        if buffer.kind == "activation":
            offsets[buffer] = end
            end = -(-(end + buffer.type.nbytes + GAP) // 64) * 64
    return Plan(program, offsets, end, end)


class Native:
    """A program compiled for a target that runs here."""

    pool: int | None = None
    """The address of what shares calls out."""

    def __init__(self, program: Program, target: Target, plan: Plan | None = None, profile: bool = False) -> None:
        self.program = program
        self.plan = spread(program) if plan is None else plan
        self.code = self.generated(target, Options(profile=profile))
        self.step = self.loaded(target)

    def generated(self, target: Target, options: Options) -> Code:
        return generate(self.plan, target, options)

    def loaded(self, target: Target) -> Callable[..., None]:
        return build(self.code.text, target, [ENTRY]).function(ENTRY, 1)

    def table_of(self, pieces: Sequence[Array], *more: int) -> ctypes.Array[ctypes.c_void_p]:
        """What the step takes, for memory as in :attr:`sizes`."""
        arena, workspace, *slots = (piece.ctypes.data for piece in pieces)
        return pointer_table([arena, workspace, self.pool, *slots, *more])

    @property
    def sizes(self) -> list[int]:
        """Bytes of the arena, the workspace, and every buffer outside of the arena."""
        return [self.plan.arena, self.code.workspace, *(b.type.nbytes for b in self.code.externals)]

    def run(
        self, inputs: Mapping[str, Array], state: Mapping[str, Array] | None = None, memory: Memory | None = None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Outputs and variables after one step; nothing may be written outside of the buffers."""
        held = Canaries(self.sizes) if memory is None else memory
        arena, workspace, *pieces = held.pieces
        gaps = self._gaps()
        arena[...] = np.where(gaps, CANARY, POISON)
        workspace[...] = POISON
        given = {self.program.inputs[name]: array for name, array in inputs.items()}
        given |= {b: (state or {}).get(name, b.initial) for name, b in self.program.variables.items()}
        given |= {b: b.initial for b in (*self.program.constants, *self.code.externals) if b.kind == "constant"}
        for buffer, piece in zip(self.code.externals, pieces, strict=True):
            piece[...] = raw(buffer, given[buffer]) if buffer in given else POISON
        table = self.table_of(held.pieces, *(f.address for f in self.code.natives))
        self.step(ctypes.addressof(table))
        assert np.all(arena[gaps] == CANARY), "a store between activations"
        if isinstance(held, Canaries):
            held.check()
        places = dict(zip(self.code.externals, pieces, strict=True))
        for buffer, array in given.items():
            if buffer.kind != "variable" and buffer in places:
                assert np.array_equal(places[buffer], raw(buffer, array)), f"{buffer.name} was changed"
        outputs = {name: logical(b, places[b]) for name, b in self.program.outputs.items()}
        return outputs, {name: logical(b, places[b]) for name, b in self.program.variables.items()}

    def _gaps(self) -> Array:
        gaps = np.ones(self.plan.arena, np.bool_)
        for buffer, offset in self.plan.offsets.items():
            gaps[offset : offset + buffer.type.nbytes] = False
        return gaps


def raw(buffer: Buffer, array: Any) -> Array:
    """The bytes of an array in a buffer's layout."""
    return np.ascontiguousarray(np.transpose(array, buffer.layout)).reshape(-1).view(np.uint8)


def logical(buffer: Buffer, piece: Array) -> Array:
    """A row-major copy of what a buffer's memory holds."""
    physical = tuple(buffer.shape[axis] for axis in buffer.layout)
    held = piece.view(buffer.dtype.numpy).reshape(physical)
    return np.array(held.transpose(np.argsort(buffer.layout)), order="C")
