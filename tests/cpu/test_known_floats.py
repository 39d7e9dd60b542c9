"""Contractions of floats that are known when code is generated: packed ahead, with the bits of those that are not."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Contraction, Operand, generate
from glowtrain.backends.cpu.panels import Packing
from glowtrain.backends.target import Target
from tests.cpu.contraction_kernels import WIDTHS, Buffers, execute
from tests.cpu.contractions import SHAPES, Image, matmul
from tests.cpu.random_contractions import contractions

SIDES = {"left": (True, False), "right": (False, True), "both": (True, True)}


def known(contraction: Contraction, side: str = "right") -> Contraction:
    """The same with operands that are constants."""
    a, b = (Operand(contraction.dtype, constant=constant) for constant in SIDES[side])
    return replace(contraction, operands=(a, b))


def check_bits(contraction: Contraction, side: str, target: Target) -> None:
    buffers = Buffers(contraction)
    expected, found = (execute(x, target, buffers) for x in (contraction, known(contraction, side)))
    np.testing.assert_array_equal(found.view(np.uint8), expected.view(np.uint8), err_msg=str(contraction))


@settings(suppress_health_check=list(HealthCheck))
@given(contraction=contractions(), side=st.sampled_from(sorted(SIDES)), width=st.sampled_from(sorted(WIDTHS)))
def test_random(contraction: Contraction, side: str, width: str) -> None:
    check_bits(contraction, side, WIDTHS[width])


@pytest.mark.spread(6)
@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_shapes(shape: str, width: str) -> None:
    check_bits(SHAPES[shape], "right", WIDTHS[width])


@pytest.mark.parametrize(
    "shape", ["conv", "conv stride 2", "conv 1x1", "conv dilated", "matmul NN", "matmul NT", "data"]
)
def test_what_lanes_move_is_packed_when_code_is_generated(shape: str) -> None:
    """And never again when it runs."""
    for width in ("512", "256", "128"):
        kernel = generate(known(SHAPES[shape]), "f", WIDTHS[width])
        assert kernel.packed is not None
        assert kernel.packed[0] == 1
        assert "pack_b" not in kernel.plan


def test_small_code_reads_operands_as_they_are() -> None:
    """Lanes that are missing at the end of a row would be there as zeros."""
    for target in (replace(WIDTHS["128"], compact=True), WIDTHS["scalar"]):
        assert generate(known(SHAPES["matmul NN"]), "f", target).packed is None


def test_panels_that_leave_the_first_level_are_asked_for() -> None:
    """Small ones stay there, and what is not in panels does not lie one behind the other."""
    large, small = matmul(64, 256, 512), matmul(64, 32, 64)
    asking = {
        name: "llvm.prefetch" in generate(contraction, "f", WIDTHS["512"]).text
        for name, contraction in (("large", known(large)), ("small", known(small)), ("plain", large))
    }
    assert asking == {"large": True, "small": False, "plain": False}


def test_elements_outside_of_the_operand_are_noticed() -> None:
    packing = Packing("f32", 0, (), (((3, 16),),), ((16, 1),), 16, None)
    assert packing.apply(np.zeros(48, np.float32)).nbytes == packing.nbytes
    with pytest.raises(AssertionError, match="outside"):
        packing.apply(np.zeros(47, np.float32))


SMALL_CACHES = replace(WIDTHS["512"], l1=8 << 10, l2=64 << 10)


@pytest.mark.exhaustive
@pytest.mark.parametrize("image", [Image(1, 24, 20, 32, 96, 3), Image(2, 11, 9, 64, 80, 3, stride=2)])
def test_weights_from_beyond_the_second_level_come_once_for_a_block_of_rows(image: Image) -> None:
    """With the bits of what goes row by row; each block of rows and group of columns is a task."""
    contraction = known(image.contraction())
    blocked, whole = (generate(contraction, "f", target) for target in (SMALL_CACHES, WIDTHS["512"]))
    assert "block y/" in blocked.plan
    assert "block" not in whole.plan
    assert blocked.work.tasks > 1
    buffers = Buffers(contraction)
    found = [execute(contraction, target, buffers) for target in (SMALL_CACHES, WIDTHS["512"])]
    np.testing.assert_array_equal(*(each.view(np.uint8) for each in found))
