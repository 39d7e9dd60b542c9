"""Which results of a contraction tasks that lie next to each other compute, and so what threads share."""

from __future__ import annotations

import numpy as np
import pytest

from glowtrain.backends.cpu.contraction import Contraction, OperandAccess, generate, rates
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.target import Target
from tests.cpu.contraction_kernels import UNTOUCHED, WIDTHS, Buffers, addresses
from tests.cpu.contractions import depthwise, matmul


def written_by(contraction: Contraction, target: Target, tasks: int) -> np.ndarray:
    """Which results the first tasks compute, by the indices of the nest."""
    kernel, buffers = generate(contraction, "contract", target), Buffers(contraction)
    function = build(kernel.text, target, ["contract"]).function("contract", 6)
    workspace = np.empty(kernel.workspace, np.uint8)
    function(*(array.ctypes.data for array in (buffers.c, buffers.a, buffers.b, workspace)), 0, tasks)
    return buffers.c[addresses(contraction.c, contraction.extents)[..., 0]] != UNTOUCHED


SHARED_BY_ROWS = {
    "a few columns": matmul(90, 40, 200),
    "little to pack again": matmul(288, 96, 32, "NT"),
    "a matrix that stays": matmul(18, 200, 100, resident=(False, True)),
}


@pytest.mark.parametrize("name", sorted(SHARED_BY_ROWS))
def test_tasks_next_to_each_other_have_rows_in_common(name: str) -> None:
    """Where each thread may well read all of B, what a thread writes are whole rows, whose lines no other one has."""
    contraction, target = SHARED_BY_ROWS[name], WIDTHS["256"]
    tiles = -(-contraction.extents[0] // 6)
    columns, rest = divmod(generate(contraction, "contract", target).work.tasks, tiles)
    assert columns > 1
    assert not rest
    found = written_by(contraction, target, 2 * columns)
    assert np.all(found[:12])
    assert not np.any(found[12:])


def test_tasks_next_to_each_other_have_images_in_common(monkeypatch: pytest.MonkeyPatch) -> None:
    """Although the loop over the columns of an image stands around them: one of the phases of a depthwise gradient."""
    monkeypatch.setattr(rates, "ABOUT_THE_SAME", 1.0)
    rows, columns, channels = 192, 12, 40
    every_other = OperandAccess(0, (4 * columns * channels, 1, 2 * channels, 0))
    image, weights = OperandAccess(0, (columns * channels, 1, channels, 0)), OperandAccess(0, (0, 1, 0, channels))
    phase = Contraction(("r", "c", "x", "k"), (rows, channels, columns, 1), every_other, image, weights)
    kernel = generate(phase, "contract", WIDTHS["512"])
    assert kernel.plan.index("each x") < kernel.plan.index("tile r/28")
    tiles, groups = -(-rows // 28), -(-channels // 16)
    assert kernel.work.tasks == tiles * groups
    found = written_by(phase, WIDTHS["512"], 2 * groups)
    assert np.all(found[:55])
    assert not np.any(found[56:])


def test_threads_can_share_out_images_where_that_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tile of one point of all eight images would be a little faster on one core."""
    product, target = depthwise(8, 6, 192, 3, "forward"), Target.named("avx512")
    assert generate(product, "f", target).plan.startswith("6xx2y by 2 vectors of cx16; sum kh,kw; each n/1 > ")
    monkeypatch.setattr(rates, "SCATTERED", 1.0)
    assert generate(product, "f", target).plan.startswith("8n by 3 vectors of cx16; sum kh,kw; each y/1 > each x/1 > ")


def test_tasks_of_a_large_matrix_have_columns_in_common() -> None:
    """Each thread would bring all of it."""
    found = written_by(matmul(18, 200, 100), WIDTHS["256"], 2)
    assert np.all(found[:12, 0])
    assert not np.any(found[:, 100:])
