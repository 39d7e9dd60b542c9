"""What kernels of contractions pack and block, by the caches and registers of the target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from glowtrain.backends.cpu.contraction import EpilogueClip, generate, rates
from glowtrain.backends.cpu.threads.share import chunk_of
from glowtrain.backends.target import Target
from glowtrain.backends.thread_count import GRAIN
from tests.cpu.contraction_kernels import WIDTHS, Buffers, check, check_epilogue, execute
from tests.cpu.contractions import SHAPES, depthwise, matmul, of_bytes


@pytest.mark.parametrize("rows", [1, 7, 16, 128])
@pytest.mark.parametrize("form", ["NN", "NT"])
def test_known_bytes_are_packed_ahead(rows: int, form: str) -> None:
    """They are read one after another, and made floats in the kernel, or once for many rows."""
    contraction = of_bytes(matmul(rows, 130, 300, form), "right, known")
    kernel = generate(contraction, "contract", WIDTHS["512"])
    assert kernel.packed is not None
    assert ("pack_b" in kernel.plan) is (rows == 128)
    check(contraction, WIDTHS["512"])


def test_packing_reads_only_what_exists() -> None:
    """A transposed operand is copied into vectors, unless a clip drops the last of it: then it may end before."""
    whole = matmul(64, 64, 64, "NT")
    assert "pack" in generate(whole, "contract", WIDTHS["256"]).plan
    cut = replace(whole, clips=(EpilogueClip((0, 0, 1), 0, 60),))
    assert "pack" not in generate(cut, "contract", WIDTHS["256"]).plan
    check(cut, WIDTHS["256"])


@pytest.mark.exhaustive
@pytest.mark.parametrize("width", ["256", "512"])
@pytest.mark.parametrize("columns", [200, 210])
@pytest.mark.parametrize("form", ["NN", "NT", "TN"])
def test_columns_are_packed_in_blocks(form: str, columns: int, width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many at once as may be, each block by one task: the same bits in less of a workspace."""
    product, target = matmul(300, columns, 130, form), replace(WIDTHS[width], l1=4096, l2=16384)
    buffers, whole = Buffers(product), generate(product, "contract", target)
    assert "columns" not in whole.plan
    expected = execute(product, target, buffers)
    monkeypatch.setattr(rates, "PACKED_AT_ONCE", 1 << 15)
    blocked = generate(product, "contract", target)
    assert "columns n" in blocked.plan
    assert 2 * blocked.workspace < whole.workspace
    np.testing.assert_array_equal(execute(product, target, buffers), expected)
    check_epilogue(product, 1, target, 1)


def test_blocks_follow_the_caches_of_the_target() -> None:
    """A product whose A stays in the second level, or does not, by what the target says and not by its vectors."""
    avx2, contraction = Target.named("avx2"), matmul(512, 512, 512)
    plain = generate(contraction, "f", avx2).plan
    assert plain == generate(contraction, "f", replace(avx2, name="other")).plan
    assert plain != generate(contraction, "f", replace(avx2, l2=avx2.l2 // 16)).plan
    strided = SHAPES["conv 1x1"]
    assert generate(strided, "f", avx2).plan != generate(strided, "f", replace(avx2, l1=avx2.l1 // 16)).plan


def test_rows_that_others_wrote_are_copied_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of a weight takes a few columns of each example: that is slow where another core wrote them."""
    product = matmul(512, 128, 2048, "TN")
    assert "pack_a" in generate(product, "f", WIDTHS["512"]).plan
    monkeypatch.setattr(rates, "FIRST_RUN", 0)
    assert "pack_a" not in generate(product, "f", WIDTHS["512"]).plan


@pytest.mark.parametrize("width", ["256", "512"])
@pytest.mark.parametrize("rows", [1, 2, 4])
def test_a_matrix_from_memory_is_read_over_few_pages_at_once(rows: int, width: str) -> None:
    """Where few rows use it nothing is copied first; many rows have it packed, one that caches hold needs neither."""
    product, small, large = (
        matmul(rows, 1024, 96),
        replace(WIDTHS[width], l2=1 << 17),
        replace(WIDTHS[width], l2=1 << 20),
    )
    few = generate(product, "contract", small).plan
    assert f"chunk k/{rates.FOLLOWED}" in few
    assert "pack" not in few
    assert "pack_b" in generate(matmul(64, 1024, 96), "contract", small).plan
    assert f"chunk k/{rates.FOLLOWED}" not in generate(product, "contract", large).plan
    check(product, small)


def test_ranges_of_a_matrix_from_memory_have_many_columns() -> None:
    """Each begins anew on every page, so it is worth few of them; not where caches hold the matrix."""
    small, large = replace(WIDTHS["512"], l2=1 << 17), replace(WIDTHS["512"], l2=1 << 25)
    from_memory, held = (generate(matmul(8, 2048, 2048), "contract", target).work for target in (small, large))
    assert from_memory.shared >= 2048 * rates.NEW_PAGE > 8 * held.shared
    assert -(-from_memory.tasks // chunk_of(from_memory, GRAIN)) <= 8


@pytest.mark.parametrize("target", ["avx2", "avx512"])
def test_results_beyond_the_cache_are_written_side_by_side(target: str) -> None:
    """Tiles of a depthwise convolution run along a row of the image, not from image to image."""
    plan = generate(depthwise(64, 7, 160, 3, "forward"), "f", Target.named(target)).plan
    assert "tile x/" in plan
    assert "each x/" not in plan
