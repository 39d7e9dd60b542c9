"""Tiles prefetch the columns of B that are packed next: every line of them, and, but for a row, no others. And
what lies one behind the other of the columns that they read.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from glowtrain.backends.cpu.contraction import Contraction, ContractionKernel, OperandAccess, generate
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.target import Target

LINE = 64
SMALL_CACHES = replace(Target.host(), vector_bits=512, vector_registers=32, l1=1 << 13, l2=1 << 18)
"""Few rows of B fit; and plans are the same on any machine."""


def gradient_of_weights(rows: int, columns: int, steps: int) -> Contraction:
    """C[rows, columns] = A^T B: both operands in rows of a step each."""
    c, a, b = (columns, 1, 0), (1, 0, rows), (0, 1, columns)
    return Contraction(("m", "n", "k"), (rows, columns, steps), *(OperandAccess(0, strides) for strides in (c, a, b)))


def aligned(elements: int) -> np.ndarray:
    """Random floats from a cache line on."""
    raw = np.zeros(elements + LINE, np.float32)
    found = raw[-raw.ctypes.data // 4 % (LINE // 4) :][:elements]
    found[:] = np.random.default_rng(0).standard_normal(elements)
    return found


def prefetched(contraction: Contraction, kernel: ContractionKernel, ranges: int) -> tuple[list[int], np.ndarray]:
    """The offsets in B, in bytes, of what tiles prefetch to the second level, and the result; the tasks are run
    in so many ranges."""
    rows, columns, steps = contraction.extents
    c, a, b = (aligned(size) for size in (rows * columns, rows * steps, steps * columns))
    workspace, found = aligned(kernel.workspace // 4 + 16), list[int]()
    note = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda place: found.append(place - b.ctypes.data))
    address = ctypes.cast(note, ctypes.c_void_p).value
    prefetch = r"call void @llvm\.prefetch\.p0\((ptr [^,]+), i32 0, i32 2, i32 1\)"
    text = re.sub(prefetch, rf"call void inttoptr (i64 {address} to ptr)(\1)", kernel.text)
    function = build(text, SMALL_CACHES, ["contract"]).function("contract", 6)
    edges = [kernel.work.tasks * at // ranges for at in range(ranges + 1)]
    for begin, end in pairwise(edges):
        function(c.ctypes.data, a.ctypes.data, b.ctypes.data, workspace.ctypes.data, begin, end)
    expected = a.reshape(steps, rows).T.astype(np.float64) @ b.reshape(steps, columns)
    np.testing.assert_allclose(c.reshape(rows, columns), expected, rtol=0, atol=1e-3)
    return found, c


@pytest.mark.parametrize("extents", [(96, 256, 300), (101, 272, 331), (101, 261, 300), (130, 1000, 97)])
def test_every_line_that_is_packed_later_is_prefetched(extents: tuple[int, int, int]) -> None:
    contraction, (_, columns, steps) = gradient_of_weights(*extents), extents
    kernel = generate(contraction, "contract", SMALL_CACHES)
    places, _ = prefetched(contraction, kernel, 1)
    panel = LINE // 4 * int(re.search(r"vectors n/(\d+)", kernel.plan)[1])  # type: ignore[index]
    reached = {place // LINE for place in places}
    later = set((np.flatnonzero(np.arange(steps * columns) % columns >= panel) * 4 // LINE).tolist())
    assert later <= reached
    assert max(reached) <= 4 * ((steps + 1) * columns + panel) // LINE
    assert len(places) < 2.5 * len(later)


def test_a_sum_that_goes_on_prefetches_results_of_the_next_tile() -> None:
    """Those of a sum that is taken at once are only written."""
    in_parts = generate(gradient_of_weights(101, 272, 331), "contract", SMALL_CACHES)
    at_once = generate(gradient_of_weights(130, 1000, 97), "contract", SMALL_CACHES)
    assert "chunk" in in_parts.plan
    assert "chunk" not in at_once.plan
    written = "i32 1, i32 3, i32 1)"
    assert written in in_parts.text
    assert written not in at_once.text


def in_panels(steps: int, columns: int, apart: int) -> Contraction:
    """C[32, 4 * columns] = A B, B in four panels of so many columns, its rows ``apart`` elements."""
    extents, c, a = (32, 4, columns, steps), (4 * columns, columns, 1, 0), (steps, 0, 0, 1)
    b = (0, steps * apart, 1, apart)
    return Contraction(("m", "p", "n", "k"), extents, *(OperandAccess(0, strides) for strides in (c, a, b)))


@pytest.mark.parametrize(
    ("steps", "apart", "prefetches"), [(256, 64, True), (16, 64, False), (256, 80, False)], ids=["far", "near", "apart"]
)
def test_lines_that_follow_each_other_are_prefetched(steps: int, apart: int, prefetches: bool) -> None:
    kernel = generate(in_panels(steps, 64, apart), "contract", SMALL_CACHES)
    assert "pack_b" not in kernel.plan
    assert ("i32 0, i32 3, i32 1)" in kernel.text) == prefetches


def test_results_have_the_same_bits_in_pieces() -> None:
    contraction = gradient_of_weights(101, 272, 331)
    kernel = generate(contraction, "contract", SMALL_CACHES)
    _, whole = prefetched(contraction, kernel, 1)
    _, pieces = prefetched(contraction, kernel, 7)
    np.testing.assert_array_equal(whole.view(np.int32), pieces.view(np.int32))


def test_nothing_is_asked_for_that_is_near() -> None:
    contraction = gradient_of_weights(96, 256, 300)
    near = generate(contraction, "contract", replace(SMALL_CACHES, l2=1 << 24))
    small = generate(contraction, "contract", replace(SMALL_CACHES, compact=True))
    assert "i32 2, i32 1)" not in near.text + small.text
