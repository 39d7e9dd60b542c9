"""Models on an adapter, beside what :mod:`glowtrain.kit` checks: where bits are the CPU's, and what travels."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.webgpu.backend import shared_gpu
from glowtrain.data import digits
from glowtrain.kit.models import image_batch, mlp
from glowtrain.kit.test_training import trained

DIGITS = digits()


@pytest.mark.parametrize("name", ["mlp", "lstm"])
def test_an_adapter_that_keeps_products_and_sums_apart_has_the_bits_of_such_processors(name: str) -> None:
    """Mesa's in software does. Convolutions may differ: on the CPU they lie in another layout."""
    (losses, variables), (expected, others) = trained(name, "webgpu"), trained(name, gt.Cpu(fused=False))
    assert losses == expected
    assert {n: a.tobytes() for n, a in variables.items()} == {n: a.tobytes() for n, a in others.items()}


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
