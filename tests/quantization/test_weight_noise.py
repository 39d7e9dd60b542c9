"""The noise of weights belongs to the scales that a layer reads them with."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.graph import Value, Variable
from glowtrain.ops.contraction.products import Gemm
from glowtrain.ops.tensor.move import Transpose
from glowtrain.quantization import Recipe, Scheme, signal_to_noise
from glowtrain.quantization.improve.sensitivity import decibels
from glowtrain.types import Array, f32, i4


def noise(array: Array, axis: int) -> float:
    """With one scale for each place on an axis, and 7 steps to each side."""
    scale = np.abs(array).max(1 - axis, keepdims=True) / 7
    wide = array.astype(np.float64)
    return decibels((wide**2).sum(), ((np.rint(wide / scale) * scale - wide) ** 2).sum())


def test_a_weight_that_is_read_along_both_axes() -> None:
    """Rows of very different size: with a scale for each row the noise is much less than with one for each column."""
    draw = np.random.default_rng(0)
    array = (draw.standard_normal((8, 8)) * 10.0 ** np.arange(-3, 5)[:, None]).astype(np.float32)
    weight = Variable("w", array)

    @gt.model(x=f32["batch", 8])
    def net(x: Value) -> dict[str, Value]:
        plain, turned = Gemm()(x, weight), Gemm(transB=True)(x, weight)
        return {"plain": plain, "turned": turned, "expression": x @ Transpose((1, 0))(nn.relu(weight))}

    recipe = Recipe(weights=Scheme(i4, "symmetric", "channel", narrow=True))
    found = gt.quantize(net, draw.standard_normal((16, 8)).astype(np.float32), recipe)
    rows = {row.name: row.weight_decibels for row in signal_to_noise(found.exact, found.ready, found.data)}
    assert rows["plain"] == pytest.approx(noise(array, 1), abs=0.01)
    assert rows["turned"] == pytest.approx(noise(array, 0), abs=0.01)
    assert rows["expression"] == pytest.approx(noise(np.maximum(array, 0).T, 1), abs=0.01)
    assert abs(noise(array, 0) - noise(array, 1)) > 0.3
