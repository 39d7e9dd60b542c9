"""Level 3: failures that the backend lets be injected are errors, nothing hangs, and training goes on after them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from glowtrain.backends.base import Backend
from glowtrain.errors import DeviceError, DeviceLostError
from glowtrain.kit.models import MODELS, assert_near

MODEL = MODELS["mlp"]
PATIENCE = 120.0
"""Seconds after which a run counts as hanging."""


def test_failed_allocation(backend: Backend) -> None:
    """It is an error, variables keep their values, and the same trainer goes on."""
    failure = backend.faults.failed_allocation()
    if failure is None:
        pytest.skip("not offered: faults.failed_allocation")
    trainer, expected = MODEL.trainer(backend), MODEL.trainer("cpu")
    before = expected.variables()
    with failure, pytest.raises(DeviceError):
        trainer.step(MODEL.batch(0))
    for name, array in before.items():
        np.testing.assert_array_equal(trainer.state.read(name), array)
    losses = [[float(each.step(MODEL.batch(number))) for number in range(3)] for each in (trainer, expected)]
    assert_near(*losses)


def test_lost_device(backend: Backend, tmp_path: Path) -> None:
    """A step says so; variables are not older than the last step; the last checkpoint goes on, here and on the CPU."""
    failure = backend.faults.lost_device()
    if failure is None:
        pytest.skip("not offered: faults.lost_device")
    trainer, path = MODEL.trainer(backend), tmp_path / "run.safetensors"
    trainer.step(MODEL.batch(0))
    trainer.save(path)
    trainer.step(MODEL.batch(1))
    newest = trainer.variables()
    with failure, pytest.raises(DeviceLostError):
        trainer.step(MODEL.batch(2))
    with suppress(DeviceLostError):  # they were on the device only
        assert {n: a.tobytes() for n, a in trainer.variables().items()} == {n: a.tobytes() for n, a in newest.items()}
    for each in (backend, "cpu"):
        other = MODEL.trainer(each)
        other.restore(path)
        other.step(MODEL.batch(1))
        for name, array in newest.items():
            assert_near(other.state.read(name), array, err_msg=name)


def test_hanging_kernel(backend: Backend) -> None:
    """A run ends with an error, by the backend's own time limit."""
    failure = backend.faults.hang()
    if failure is None:
        pytest.skip("not offered: faults.hang")
    trainer, errors = MODEL.trainer(backend), []

    def step() -> None:
        try:
            trainer.step(MODEL.batch(0))
        except DeviceError as error:
            errors.append(error)

    with failure:
        thread = Thread(target=step, daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"a step had not ended after {PATIENCE:.0f} s"
    assert errors, "a step ended without an error"
    MODEL.trainer(backend).step(MODEL.batch(0))
