"""Both backends, and small models and data that train in a moment."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from tests.backends import plain_backends


@pytest.fixture(params=sorted(plain_backends()))
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mlp() -> gt.Template:
    @gt.model(x=gt.f32["batch", 6])
    def mlp(x: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 8, name="first")), 3, name="second")

    return mlp


@pytest.fixture
def cnn() -> gt.Template:
    """With everything that keeps state of its own: batch normalization and dropout."""

    @gt.model(x=gt.f32["batch", 1, 4, 4])
    def cnn(x: gt.Value) -> gt.Value:
        x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 4, padding="same")))
        return gt.nn.linear(gt.nn.dropout(gt.nn.flatten(x), 0.2), 3)

    return cnn


@pytest.fixture
def points() -> tuple[np.ndarray, np.ndarray]:
    """x f32[22,6] and labels that a linear rule gives."""
    rng = np.random.default_rng(7)
    x = rng.standard_normal((22, 6)).astype(np.float32)
    return x, np.argmax(x[:, :3] + 0.1 * rng.standard_normal((22, 3)), axis=1)
