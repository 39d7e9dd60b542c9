"""Models on an adapter: they predict and train as on the CPU, again with the same bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.webgpu.backend import shared_gpu
from glowtrain.data import digits
from glowtrain.graph import Value
from glowtrain.types import Array
from tests.compiler.networks import gpt, lstm, mlp

DIGITS = digits()
STEPS, BATCH = 20, 32


@gt.model(x=gt.f32["batch", 1, 8, 8])
def digits_cnn(x: Value) -> Value:
    x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 8, 3, padding=1)))
    x = gt.nn.dropout(gt.nn.flatten(gt.nn.max_pool(x, 2)), 0.2)
    return gt.nn.linear(x, 10)


def image_batch(number: int) -> dict[str, Array]:
    rows = slice(number * BATCH, (number + 1) * BATCH)
    return {"x": DIGITS.x[rows], "labels": DIGITS.y[rows]}


def sequence_batch(number: int) -> dict[str, Array]:
    random = np.random.default_rng(number)
    return {"x": random.normal(size=(8, 7, 6)).astype(np.float32), "labels": random.integers(0, 10, 8)}


def token_batch(number: int) -> dict[str, Array]:
    random = np.random.default_rng(number)
    return {"x": random.integers(0, 11, (8, 9)), "labels": random.integers(0, 10, 8)}


MODELS: dict[str, tuple[gt.Template, Callable[[int], dict[str, Array]]]] = {
    "mlp": (mlp, image_batch),
    "digits_cnn": (digits_cnn, image_batch),
    "lstm": (lstm, sequence_batch),
    "gpt": (gpt, token_batch),
}


@cache
def trained(name: str, backend: str, time: int = 0) -> tuple[list[float], dict[str, bytes]]:
    """The losses of twenty steps, and all variables after them."""
    model, batch = MODELS[name]
    made = gt.Cpu(fused=False) if backend == "unfused" else backend
    trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), gt.optim.Adam(2e-3), backend=made)
    losses = [float(trainer.step(batch(number))) for number in range(STEPS)]
    return losses, {each: trainer.state.read(each).tobytes() for each in trainer.state.names}


@pytest.mark.parametrize("name", MODELS)
def test_twenty_steps_have_the_losses_of_the_cpu_and_again_the_same_bits(name: str) -> None:
    losses, _ = trained(name, "webgpu")
    np.testing.assert_allclose(losses, trained(name, "cpu")[0], rtol=1e-5)
    assert trained(name, "webgpu") == trained(name, "webgpu", time=1)


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_an_adapter_that_keeps_products_and_sums_apart_has_the_bits_of_such_processors(name: str) -> None:
    """Mesa's in software does. Convolutions may differ: on the CPU they lie in another layout."""
    assert trained(name, "webgpu") == trained(name, "unfused")


@pytest.mark.parametrize("name", MODELS)
def test_predictions_are_those_of_the_cpu(name: str) -> None:
    model, batch = MODELS[name]
    inputs = {"x": batch(0)["x"]}
    found, wanted = (gt.compile(model, backend=backend)(inputs)["output"] for backend in ("webgpu", "cpu"))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def test_fit_learns_and_the_model_has_what_the_device_learned() -> None:
    trainer = gt.Trainer(mlp, gt.losses.softmax_cross_entropy(), gt.optim.Adam(5e-3), backend="webgpu")
    history = trainer.fit(DIGITS, epochs=3, batch_size=64, progress=False)
    assert history["val_accuracy"][-1] > 0.85
    scores = gt.compile(trainer.model())({"x": DIGITS.x[:64]})["output"]
    np.testing.assert_allclose(scores, trainer.predict(DIGITS.x[:64])["output"], rtol=1e-4, atol=1e-4)


def test_only_inputs_and_the_loss_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = gt.Trainer(mlp, gt.losses.softmax_cross_entropy(), gt.optim.Adam(), backend="webgpu")
    trainer.step(image_batch(0))
    gpu, sent, received = shared_gpu(), [], []
    write, read = gpu.write, gpu.read
    monkeypatch.setattr(gpu, "write", lambda buffer, at, array: (sent.append(array.nbytes), write(buffer, at, array)))
    monkeypatch.setattr(gpu, "read", lambda buffer, at, size: (received.append(size), read(buffer, at, size))[1])
    trainer.step(image_batch(1))
    batch = sum(array.nbytes for array in image_batch(1).values())
    assert batch <= sum(sent) <= batch + 64, "beside the batch only hyperparameters"
    assert received == [4], "the loss"


def test_a_state_moves_between_device_and_cpu_with_its_newest_values() -> None:
    """Functions over one state: each sees what the others have written, wherever they run."""
    x = gt.Input(gt.f32[3], "x")
    total = gt.Variable("total", np.zeros(3, np.float32))
    graph = gt.Graph((x,), {"y": total * 1.0}, {total: total + x})
    on_device = gt.compile(graph, backend="webgpu")
    on_cpu = gt.compile(graph, backend="cpu", state=on_device.state)
    ones = {"x": np.ones(3, np.float32)}
    for count, function in enumerate((on_device, on_cpu, on_cpu, on_device, on_device, on_cpu)):
        np.testing.assert_array_equal(function(ones)["y"], np.full(3, count))
    on_device(ones)
    on_device.state.write("total", np.full(3, 70, np.float32))
    np.testing.assert_array_equal(on_device(ones)["y"], np.full(3, 70))
    np.testing.assert_array_equal(on_device.state.read("total"), np.full(3, 71))
    np.testing.assert_array_equal(on_cpu(ones)["y"], np.full(3, 71))
