"""Random numbers and dropout: published words, distributions, what draws depend on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.graph import constant
from glowtrain.ops.random.philox import ArrayWords, Dropout, Normal, RandomBits, TrainingDropout, Uniform, philox
from glowtrain.types import i64
from tests.ops.rules import gradients, run

pytestmark = pytest.mark.usefixtures("quiet")

PI = (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)


@pytest.mark.parametrize(("counter", "key", "expected"), [
    ((0,) * 4, (0,) * 2, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    (PI[:4], PI[4:], "d16cfe09 94fdcceb 5001e420 24126ea1"),
])  # fmt: skip
def test_philox_gives_the_published_words(counter: tuple[int, ...], key: tuple[int, ...], expected: str) -> None:
    """Known answers from Random123 (Salmon et al. 2011)."""
    words = philox(ArrayWords(), tuple(map(np.uint64, counter)), tuple(map(np.uint64, key)))
    assert " ".join(f"{int(word):08x}" for word in words) == expected


def test_random_bits_lay_place_stream_and_counter_into_the_block() -> None:
    key, counter = np.array(PI[4] | PI[5] << 32), np.array(PI[2] | PI[3] << 32)
    block = tuple(map(np.uint64, (5, 7, PI[2], PI[3])))
    words = philox(ArrayWords(), block, tuple(map(np.uint64, PI[4:])))
    drawn = [RandomBits((2, 3), stream=7, word=word).reference(key, counter)[1, 2] for word in range(4)]
    assert drawn == [int(word) for word in words]
    zeros = RandomBits((1,)).reference(np.array(0), np.array(0))
    assert f"{zeros[0]:x}" == "6627e8d5"


@pytest.mark.parametrize(("key", "counter"), [(0, 0), (-1, 1), (3 << 40, -(5 << 33))])
def test_random_bits_decompose_to_the_same_bits(key: int, counter: int) -> None:
    operator = RandomBits((3, 5), stream=2, word=1)
    (bits,) = run([operator.decompose(constant(key, i64), constant(counter, i64))], {})
    np.testing.assert_array_equal(bits, operator.reference(np.array(key), np.array(counter)))


def test_distributions() -> None:
    key, counter = np.array(1), np.array(2)
    uniform, normal = Uniform((100, 100)).reference(key, counter), Normal((100, 100)).reference(key, counter)
    assert uniform.dtype == normal.dtype == np.float32
    assert 0 <= uniform.min() < 1e-3 < 1 - 1e-3 < uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.01
    assert abs(uniform.var() - 1 / 12) < 0.002
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.02
    assert abs((normal**4).mean() - 3) < 0.2


def test_dropout_draws_differ_by_step_stream_and_seed_and_by_nothing_else() -> None:
    x, ratio = np.ones((50, 40), np.float32), np.array(0.25, np.float32)

    def mask(stream: int, key: int, counter: int) -> Any:
        y, kept = TrainingDropout(stream).reference(x, ratio, np.array(key), np.array(counter))
        np.testing.assert_array_equal(y, np.where(kept, np.float32(1 / 0.75), 0))
        return kept

    masks = [mask(0, 1, 2), mask(1, 1, 2), mask(0, 3, 2), mask(0, 1, 3)]
    np.testing.assert_array_equal(masks[0], mask(0, 1, 2))
    for i, first in enumerate(masks):
        assert abs(first.mean() - 0.75) < 0.03
        for second in masks[:i]:
            assert abs((first == second).mean() - 0.625) < 0.05  # 0.75^2 + 0.25^2, as if independent


def test_dropout_gradient_goes_through_the_same_mask() -> None:
    arrays = [np.ones((6, 7)), np.array(0.5), np.array(4), np.array(9)]
    y, kept = TrainingDropout(3).reference(*arrays)
    np.testing.assert_array_equal(gradients(TrainingDropout(3), arrays), kept * 2.0)
    np.testing.assert_allclose(gradients(TrainingDropout(3), arrays, wanted=1), y.sum() / 0.5)


def test_dropout_in_inference_is_the_identity() -> None:
    x = np.array([1.0, np.nan, -np.inf])
    for operator, ratio in ((Dropout(), np.array(0.9)), (Dropout(training_mode=True), np.array(0.0))):
        y, mask = operator.reference(x, ratio)
        np.testing.assert_array_equal(y, x)
        assert mask.all()
    dropped, _ = Dropout(training_mode=True).reference(x, np.array(1.0))
    np.testing.assert_array_equal(dropped, 0)
