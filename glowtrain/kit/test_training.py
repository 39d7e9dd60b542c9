"""Level 2: models predict and train as on the CPU, again with the same bits, within a limit of memory."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from glowtrain.backends.base import Backend
from glowtrain.compiler import compile as compile_function
from glowtrain.compiler import compile_artifact
from glowtrain.errors import BackendError, DeviceError
from glowtrain.kit.models import MODELS, assert_near
from glowtrain.types import Array

STEPS = 20
SMALL = 1 << 10
"""Bytes that suffice for no model of the kit."""

Trained = tuple[list[float], dict[str, Array]]


def trained(name: str, backend: str | Backend) -> Trained:
    """The losses of some steps, and all variables after them."""
    model = MODELS[name]
    trainer = model.trainer(backend)
    losses = [float(trainer.step(model.batch(number))) for number in range(STEPS)]
    return losses, trainer.variables()


@cache
def first_run(name: str, backend: str | Backend) -> Trained:
    """The same, once for all tests."""
    return trained(name, backend)


def test_losses(model_name: str, backend: Backend) -> None:
    """Those of the CPU, to a tolerance."""
    assert_near(first_run(model_name, backend)[0], first_run(model_name, "cpu")[0])


def test_second_run(model_name: str, backend: Backend) -> None:
    """It has the same bits: losses, and all variables."""
    (losses, variables), (again, variables_again) = first_run(model_name, backend), trained(model_name, backend)
    assert losses == again
    different = [name for name, array in variables.items() if array.tobytes() != variables_again[name].tobytes()]
    assert different == []


def test_prediction(model_name: str, backend: Backend) -> None:
    """The outputs of the CPU."""
    model = MODELS[model_name]
    inputs = {"x": model.batch(0)["x"]}
    found, wanted = (compile_function(model.template, backend=each)(inputs) for each in (backend, "cpu"))
    for name, array in wanted.items():
        assert_near(found[name], array)


def test_stated_memory(backend: Backend) -> None:
    """An executable says what it takes in memory: at least what its outputs do."""
    graph = MODELS["mlp"].step()
    try:
        memory = backend.load(compile_artifact(graph, backend)).memory
    except BackendError as error:
        pytest.skip(f"not offered: {error}")
    assert memory.arena + memory.workspace > 0
    assert memory.outputs >= sum(value.type.nbytes for value in graph.outputs.values())


def test_memory_limit(backend: Backend) -> None:
    """What does not fit is refused, variables keep their values, and with more memory training goes on."""
    model = MODELS["mlp"]
    limit = backend.faults.memory_limit(SMALL)
    if limit is None:
        pytest.skip("not offered: faults.memory_limit")
    trainer, untouched = model.trainer(backend), model.trainer("cpu").state
    with limit, pytest.raises(DeviceError):
        trainer.step(model.batch(0))
    for name in trainer.state.names:
        np.testing.assert_array_equal(trainer.state.read(name), untouched.read(name))
    assert_near(float(trainer.step(model.batch(0))), first_run("mlp", "cpu")[0][0])
