"""What follows a contraction in its kernel sees each result once, with its indices and lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Contraction, generate
from glowtrain.backends.target import Target
from tests.cpu.contraction_kernels import WIDTHS, Bias, check_epilogue
from tests.cpu.contractions import SHAPES, Image, matmul
from tests.cpu.random_contractions import contractions

LENGTHS = (1, 1000)
EPILOGUES = [
    ("matmul NN", 1), ("matmul NT", 0), ("matmul long", 1), ("matmul blocked", 1), ("matrix vector", 0), ("dot", 1),
    ("conv", 3), ("conv 1x1", 3), ("conv channels first", 3), ("conv channels first", 2), ("conv 1x1", 2),
    ("depthwise", 3), ("attention", 2), ("attention", 0),
]  # fmt: skip


@pytest.mark.spread(10)
@pytest.mark.parametrize("width", sorted(WIDTHS))
@pytest.mark.parametrize(("shape", "loop"), EPILOGUES)
@pytest.mark.parametrize("length", LENGTHS)
def test_epilogue(shape: str, loop: int, width: str, length: int) -> None:
    """Bias along any loop, activation and residual see the right indices and lanes, also after blocking the sum.

    A long epilogue runs in a loop over the tile, a short one is written out.
    """
    check_epilogue(SHAPES[shape], loop, WIDTHS[width], length)


@pytest.mark.parametrize("extent", [12, 13])
def test_epilogue_of_a_sum_in_parts_of_two_loops(extent: int) -> None:
    """A weight gradient whose operands exceed the cache by image and by row: only the last part of both finishes it."""
    gradient = Image(3, extent, extent, 16, 24, 3).contraction("weights")
    target = replace(Target.named("avx2"), l1=4096, l2=16384)
    plan = generate(gradient, "contract", target, Bias(3, gradient.c)).plan
    assert "chunk n" in plan
    assert "chunk y" in plan
    check_epilogue(gradient, 3, target, 1)


def test_a_long_epilogue_is_written_once() -> None:
    """As many times as there are vectors in a row of the tile, not in the whole tile."""
    shape = SHAPES["matmul NN"]
    texts = [generate(shape, "contract", WIDTHS["256"], Bias(1, shape.c, length)).text for length in LENGTHS]
    short, long = (text.count("llvm.maxnum") for text in texts)
    assert short >= 4 * long > 0


def test_a_long_epilogue_is_written_once_for_all_whole_vectors_of_a_row() -> None:
    shape = matmul(96, 96, 64)
    kernel = generate(shape, "contract", WIDTHS["512"], Bias(1, shape.c, 1000))
    assert "vectors n/6" in kernel.plan
    tiles = [text for name, text in kernel.functions.items() if ".tile" in name]
    assert [text.count("llvm.maxnum") for text in tiles] == [1] * len(tiles)
    check_epilogue(shape, 1, WIDTHS["512"], 1000)


@settings(suppress_health_check=list(HealthCheck))
@given(
    contraction=contractions(),
    loop=st.integers(0, 4),
    width=st.sampled_from(sorted(WIDTHS)),
    length=st.sampled_from(LENGTHS),
)
@example(SHAPES["conv"], 2, "256", 1)
def test_random_epilogue(contraction: Contraction, loop: int, width: str, length: int) -> None:
    outputs = [i for i, stride in enumerate(contraction.c.strides) if stride]
    if outputs:
        check_epilogue(replace(contraction, dtype="f32"), outputs[loop % len(outputs)], WIDTHS[width], length)
