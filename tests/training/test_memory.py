"""``trainer.memory()``: what training takes, for the batch that was last or any other."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError
from glowtrain.graph import Value
from tests.training.trainers import trainer_of


@gt.model(x=gt.f32["batch", 1, 12, 12])
def normalised(x: Value) -> Value:
    x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 8, 3, padding=1)))
    return gt.nn.linear(gt.nn.dropout(gt.nn.flatten(gt.nn.max_pool(x, 2))), 10)


@gt.model(x=gt.f32["batch", "time", 6])
def over_time(x: Value) -> Value:
    return gt.nn.linear(gt.nn.mean(x, [1]), 3)


def batch(size: int) -> dict[str, Any]:
    return {"x": np.zeros((size, 1, 12, 12), np.float32), "labels": np.zeros(size, np.int64)}


def test_variables_are_told_apart_and_add_up() -> None:
    trainer = trainer_of(normalised, backend="cpu")
    use = trainer.memory(4)
    assert use.parameters == sum(array.nbytes for array in trainer.parameters().values())
    slots = [array for name, array in trainer.variables().items() if ".adam." in name or name.startswith("optimizer.")]
    assert use.optimizer == sum(array.nbytes for array in slots) > 2 * use.parameters
    assert use.variables == trainer.nbytes == use.parameters + use.optimizer + use.state
    assert use.state >= 2 * 8 * 4


def test_frozen_parameters_are_parameters_without_an_optimizer() -> None:
    whole, part = (trainer_of(normalised, backend="cpu", trainable=names).memory(4) for names in (None, ["linear*"]))
    assert whole.parameters == part.parameters
    assert whole.optimizer > part.optimizer
    assert whole.arena > part.arena


@pytest.mark.exhaustive
def test_the_last_batch_counts_unless_one_is_given() -> None:
    trainer = trainer_of(normalised, backend="cpu")
    trainer.step(batch(4))
    assert trainer.memory().title == "normalised.step, batch=4"
    assert trainer.memory(batch(64)) == trainer.memory(64) == trainer.memory()
    assert trainer.memory(64).arena > trainer.memory(4).arena


def test_of_a_fixed_batch_nothing_has_to_be_said() -> None:
    trainer = trainer_of(normalised.bind({"batch": 4}).with_(template=None), backend="cpu")
    assert trainer.memory() == trainer.memory(4) == trainer.memory(batch(4))
    with pytest.raises(InputError, match="cannot take batch_size=8"):
        trainer.memory(8)
    with pytest.raises(InputError, match=r"'x' must be f32\[4,1,12,12\]"):
        trainer.memory(batch(8))


def test_before_anything_is_compiled_there_is_none() -> None:
    with pytest.raises(InputError, match="has not been compiled yet, so its memory is not known: run it first"):
        trainer_of(normalised, backend="cpu").memory()


@pytest.mark.parametrize("wrong", [0, -3, 2.5, True, "64"])
def test_what_is_no_batch_size_is_refused(wrong: Any) -> None:
    with pytest.raises(InputError, match="a batch has a whole number of examples, of at least 1, not "):
        trainer_of(normalised, backend="cpu").memory(wrong)


def test_other_open_extents_need_arrays() -> None:
    trainer = trainer_of(over_time, backend="cpu")
    with pytest.raises(InputError, match="a batch size leaves time open: give a batch of arrays instead"):
        trainer.memory(4)
    arrays = {"x": np.zeros((4, 5, 6), np.float32), "labels": np.zeros(4, np.int64)}
    assert trainer.memory(arrays).title == "over_time.step, batch=4, time=5"


def test_variables_are_in_memory_once() -> None:
    @gt.model(x=gt.f32["batch", 1024])
    def wide(x: Value) -> Value:
        return gt.nn.linear(gt.nn.linear(x, 1024, name="first"), 1024, name="second")

    tracemalloc.start()
    try:
        trainer = gt.Trainer(wide.bind({"batch": 2}), gt.losses.mse("y", "output"), gt.optim.Adam(), threads=1)
        step = {"x": np.ones((2, 1024), np.float32), "y": np.ones((2, 1024), np.float32)}
        trainer.step(step)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    beside = trainer.memory().total - trainer.nbytes
    assert trainer.nbytes > 24 << 20
    assert held < 1.2 * trainer.nbytes + beside


@gt.model(x=gt.f32["batch", 64])
def layers(x: Value) -> Value:
    for number in range(6):
        x = gt.nn.linear(x, 64, name=f"layer{number}")
    return gt.nn.linear(x, 10, name="scores")


@pytest.mark.spread(1)
@pytest.mark.parametrize("trainable", [["layer0.*"], ["*.bias"], ["scores.*"]])
def test_inputs_of_layers_whose_weights_are_frozen_are_not_kept(trainable: list[str]) -> None:
    """Nor is anything else: two results of layers, or two gradients, are there at a time."""
    whole, part = (
        trainer_of(layers, backend="cpu", trainable=names, memory="keep").memory(128).arena
        for names in (None, trainable)
    )
    result = 128 * 64 * 4
    assert part <= 2.1 * result
    assert whole >= 6 * result
