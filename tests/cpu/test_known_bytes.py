"""Floats times bytes that are known when code is generated: the bits of the same products of floats, on every target.

Bytes are packed ahead, and made floats as they are read, or panel by panel for many rows.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Contraction, Operand, generate
from glowtrain.backends.target import Target
from tests.cpu.contraction_kernels import WIDTHS, Buffers, execute
from tests.cpu.contractions import SHAPES, Image, matmul
from tests.cpu.random_contractions import contractions

FLOATS = [name for name, contraction in SHAPES.items() if contraction.dtype == "f32"]
SMALL_CACHES = {name: replace(target, l1=4 << 10, l2=40 << 10) for name, target in WIDTHS.items()}
"""In which rows go in blocks, and panels leave the first level."""
MANY_ROWS = matmul(150, 70, 130)


def of_bytes(contraction: Contraction, dtype: str) -> Contraction:
    """The same with bytes on the right, which are constant."""
    return replace(contraction, operands=(Operand(contraction.dtype), Operand(dtype, constant=True)))


def check_bits(contraction: Contraction, dtype: str, target: Target) -> None:
    narrow = of_bytes(contraction, dtype)
    buffers, widened = Buffers(narrow), Buffers(contraction)
    widened.a, widened.b, widened.c = buffers.a, buffers.b.astype(np.float32), buffers.c
    found, expected = execute(narrow, target, buffers), execute(contraction, target, widened)
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8), err_msg=str(contraction))


@pytest.mark.spread(2)
@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize("shape", FLOATS)
def test_shapes(shape: str, width: str) -> None:
    for targets in (WIDTHS, SMALL_CACHES):
        check_bits(SHAPES[shape], "i8", targets[width])


@settings(suppress_health_check=list(HealthCheck))
@given(
    contraction=contractions().filter(lambda found: found.dtype == "f32"), dtype=st.sampled_from(["i8", "u8"]),
    width=st.sampled_from(sorted(WIDTHS)),
)  # fmt: skip
def test_random(contraction: Contraction, dtype: str, width: str) -> None:
    check_bits(contraction, dtype, SMALL_CACHES[width])


@settings(max_examples=30, deadline=None)
@given(
    m=st.integers(1, 200), n=st.integers(1, 100), k=st.integers(1, 200), dtype=st.sampled_from(["i8", "u8"]),
    width=st.sampled_from(sorted(WIDTHS)),
)  # fmt: skip
def test_matrices_of_any_size(m: int, n: int, k: int, dtype: str, width: str) -> None:
    check_bits(matmul(m, n, k), dtype, SMALL_CACHES[width])


@pytest.mark.parametrize("width", ["512", "256", "128"])
def test_each_block_of_rows_makes_floats_panel_by_panel(width: str) -> None:
    """Never of all bytes at once, which would be four times as much."""
    kernel = generate(of_bytes(MANY_ROWS, "i8"), "f", SMALL_CACHES[width])
    block, vectors, pack = (kernel.plan.index(level) for level in ("block m", "vectors n", "pack_b n"))
    assert block < vectors < pack
    _, columns, depth = MANY_ROWS.extents
    assert kernel.workspace < depth * columns * 4
    check_bits(MANY_ROWS, "i8", SMALL_CACHES[width])


def test_few_rows_make_floats_as_they_read() -> None:
    """An image of few rows, too, where each of its lines would make all floats once more."""
    for contraction in (matmul(4, 256, 512), Image(1, 4, 3, 256, 256, 3).contraction()):
        kernel = generate(of_bytes(contraction, "i8"), "f", WIDTHS["512"])
        assert "pack_b" not in kernel.plan
        assert kernel.packed is not None


def test_panels_of_floats_that_leave_the_first_level_are_asked_for() -> None:
    deep, shallow = matmul(128, 384, 1536), matmul(128, 384, 64)
    texts = {name: generate(of_bytes(each, "i8"), "f", WIDTHS["512"]).text for name, each in
             (("deep", deep), ("shallow", shallow))}  # fmt: skip
    assert {name: "llvm.prefetch" in text for name, text in texts.items()} == {"deep": True, "shallow": False}
