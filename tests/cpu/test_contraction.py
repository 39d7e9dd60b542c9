"""Contractions of every kind against the sum written out, and the same bits on every target."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Contraction, generate, rates
from glowtrain.backends.cpu.contraction.candidate import VectorAxis
from glowtrain.backends.cpu.contraction.describe import Problem
from glowtrain.loops.functions import fused_multiply_add
from tests.cpu.contraction_kernels import WIDTHS, Buffers, check, check_bits, execute
from tests.cpu.contractions import BYTES, SHAPES, matmul, of_bytes
from tests.cpu.random_contractions import contractions


@settings(suppress_health_check=list(HealthCheck))
@given(contraction=contractions(), width=st.sampled_from(sorted(WIDTHS)))
def test_random(contraction: Contraction, width: str) -> None:
    check(contraction, WIDTHS[width])


@settings(suppress_health_check=list(HealthCheck))
@given(contraction=contractions(), how=st.sampled_from(sorted(BYTES)), width=st.sampled_from(sorted(WIDTHS)))
def test_random_bytes(contraction: Contraction, how: str, width: str) -> None:
    check(of_bytes(contraction, how), WIDTHS[width])


@settings(suppress_health_check=list(HealthCheck))
@given(contraction=contractions())
def test_random_on_every_target(contraction: Contraction) -> None:
    check_bits(contraction)


@pytest.mark.spread(10)
@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_shapes(shape: str, width: str) -> None:
    check(SHAPES[shape], WIDTHS[width])


@pytest.mark.spread(7)
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_shapes_on_every_target(shape: str) -> None:
    check_bits(SHAPES[shape])


@pytest.mark.spread(3)
@pytest.mark.parametrize("form", ["NN", "NT"])
@pytest.mark.parametrize(("m", "n"), [(1, 1), (3, 5), (4, 4), (1, 40), (5, 300)])
def test_few_rows_on_every_target(m: int, n: int, form: str) -> None:
    """Sums along the lanes, several sums for each of few results, and how each of them ends."""
    for k in (15, 16, 17, 40, 300):
        check_bits(matmul(m, n, k, form))


def test_sums_have_the_order_that_shapes_say() -> None:
    """One after another; in 16 partial sums where no loop over results finds neighbours; in 4 for few results."""
    for contraction, partials in ((matmul(20, 30, 100), 1), (matmul(2, 30, 100, "NT"), 16), (matmul(2, 5, 100), 4)):
        buffers = Buffers(contraction)
        m, n, k = contraction.extents
        a, b = buffers.a.reshape(m, k), buffers.b.reshape((k, n) if contraction.b.strides[1] == 1 else (n, k))
        b = b if contraction.b.strides[1] == 1 else b.T
        sums = np.zeros((partials, m, n), np.float32)
        for at in range(k):
            sums[at % partials] = fused_multiply_add(a[:, at, None], b[None, at], sums[at % partials])
        while len(sums) > 1:
            sums = sums[: len(sums) // 2] + sums[len(sums) // 2 :]
        result = execute(contraction, WIDTHS["scalar"], buffers)[: m * n].reshape(m, n)
        np.testing.assert_array_equal(result, sums[0])


def test_a_sum_in_parts_keeps_the_sign_of_zero() -> None:
    """Products that underflow leave -0, which is what the next part begins with."""
    product = matmul(8, 16, 512)
    whole, parted = WIDTHS["256"], replace(WIDTHS["256"], l1=4096, l2=16384)
    assert "chunk" in generate(product, "contract", parted).plan
    buffers = Buffers(product)
    a, b = buffers.a.reshape(8, 512), buffers.b.reshape(512, 16)
    a[:], b[:] = -0.0, 1
    a[:, 0], b[0] = -1e-30, 1e-30
    sums = [execute(product, target, buffers)[: 8 * 16] for target in (whole, parted)]
    assert all(np.signbit(each).all() and not each.any() for each in sums)


@pytest.mark.spread(10)
@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize("how", sorted(BYTES))
@pytest.mark.parametrize("shape", ["matmul NN", "matmul NT", "matmul packed", "vector matrix", "conv", "attention"])
def test_floats_times_bytes(shape: str, how: str, width: str) -> None:
    check(of_bytes(SHAPES[shape], how), WIDTHS[width])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"extents": (1, 0, 2)}, "at least 1"), ({"dtype": "i8"}, "dtype"), ({"names": ("m",)}, "differ in length")],
)
def test_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(matmul(2, 3, 4), **changes)  # type: ignore[arg-type]


def test_what_candidates_have_in_common_is_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy has as many elements, and each takes as long, in all arrangements along the same lanes."""
    axes, copies, begin, copy = list[VectorAxis](), list[str](), VectorAxis.__init__, VectorAxis._copy

    def counted(self: VectorAxis, problem: Problem, machine: rates.Machine, loop: int) -> None:
        axes.append(self)
        begin(self, problem, machine, loop)

    def noted(self: VectorAxis, operand: str, inner: int) -> tuple[int, float]:
        copies.append(operand)
        return copy(self, operand, inner)

    monkeypatch.setattr(VectorAxis, "__init__", counted)
    monkeypatch.setattr(VectorAxis, "_copy", noted)
    generate(matmul(200, 1600, 300), "product", WIDTHS["512"])
    assert 0 < len(copies) <= 2 * len(axes)
