"""Predictions for many examples: in batches, where that cannot change them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler import Specialisation
from glowtrain.compiler.function import Function
from glowtrain.datasets.stored import StoredArray
from glowtrain.errors import InputError
from glowtrain.ops.indexing.arg_extrema import CumSum
from glowtrain.ops.reduce.reduction import ReduceMax
from glowtrain.trainer.predict import Predictor
from glowtrain.trainer.sources.results import predict_arrays
from tests.training.trainers import Points, images, trainer_of


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of the first input of what is compiled, rather than run in NumPy."""
    real, shapes = Function._specialise, []

    def specialise(self: Function, graph: gt.Graph) -> Specialisation:
        if self.backend.name != "interpreter":
            shapes.append(graph.inputs[0].shape)
        return real(self, graph)

    monkeypatch.setattr(Function, "_specialise", specialise)
    return shapes


def many(points: Points, count: int) -> np.ndarray:
    random = np.random.default_rng(11)
    return np.take(points[0], random.integers(0, 22, count), axis=0) + random.random((count, 6), np.float32)


@pytest.mark.spread(3)
@pytest.mark.parametrize("size", [1, 7, 64])
def test_batches_give_what_the_model_gives_for_each(cnn: gt.Template, points: Points, backend: str, size: int) -> None:
    x = images((many(points, 150), np.zeros(150, int)))[0]
    trainer = trainer_of(cnn, backend)
    trainer.fit((x, np.arange(150) % 3), 1, 50)
    filled = np.concatenate([x, np.repeat(x[-1:], size, axis=0)])
    model = gt.compile(trainer.model().template, backend)
    parts = [model({"x": filled[start : start + size]})["output"] for start in range(0, 150, size)]
    found = trainer.predict(x, batch_size=size)["output"]
    np.testing.assert_array_equal(found, np.concatenate(parts)[:150])
    np.testing.assert_allclose(found, model({"x": x})["output"], rtol=1e-4, atol=1e-5)
    more = trainer.predict(np.concatenate([x, x[:31]]), batch_size=size)["output"]
    np.testing.assert_array_equal(more[:150], found)


def test_a_new_number_of_examples_is_not_compiled_again(
    mlp: gt.Template, points: Points, compiled: list[tuple[int, ...]]
) -> None:
    trainer = trainer_of(mlp, "cpu")
    for count in (65, 100, 129, 1000):
        assert trainer.predict(many(points, count))["output"].shape == (count, 3)
    assert compiled == [(64, 6)]


@gt.model(x=gt.f32["time", 3])
def causal(x: gt.Value) -> gt.Value:
    """Each row has the sum of all rows up to it: the first axis is time."""
    sums: gt.Value = CumSum(axis=0)(x)
    return sums * gt.nn.parameter("w", (3,), gt.nn.ones)


@gt.model(x=gt.f32["n", 3])
def centred(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x - gt.nn.mean(x, 0), 2)


@gt.model(x=gt.f32["n", 3])
def summed(x: gt.Value) -> dict[str, gt.Value]:
    return {"each": gt.nn.linear(x, 2), "all": gt.nn.total(x)}


@gt.model(x=gt.f32["n", 3])
def numbered(x: gt.Value) -> gt.Value:
    """Each row knows where it is, and nothing of those beside it."""
    return x + CumSum(axis=0)(x * 0.0 + 1.0)


@gt.model(x=gt.f32["n", 3])
def counted_rows(x: gt.Value) -> gt.Value:
    """Each row knows how many there are."""
    return x * gt.nn.total(x * 0.0 + 1.0, 0)


@gt.model(x=gt.f32["n", 3])
def scaled_by_the_largest(x: gt.Value) -> gt.Value:
    """Few rows make a difference to the others."""
    return x / ReduceMax(axes=(0,), keepdims=1)(x * x)


@gt.model(x=gt.f32["n", 3], y=gt.f32["m", 3])
def crossed(x: gt.Value, y: gt.Value) -> gt.Value:
    return x @ gt.nn.transpose(y, 1, 0)


DEPENDENT = [causal, centred, summed, numbered, counted_rows, scaled_by_the_largest]


@pytest.mark.parametrize("model", [*DEPENDENT, crossed], ids=lambda model: model.name)
def test_examples_that_depend_on_each_other_stay_together(model: gt.Template) -> None:
    x = np.random.default_rng(0).normal(size=(70, 3)).astype(np.float32)
    inputs = dict.fromkeys(model.inputs, x)
    function = gt.compile(model)
    expected, found = function(inputs), Predictor(function)(inputs)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)


@pytest.mark.parametrize("size", [1, 4])
@pytest.mark.parametrize("model", DEPENDENT, ids=lambda model: model.name)
def test_batches_that_would_change_results_are_refused(model: gt.Template, size: int) -> None:
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    why = "(output '.*' of an example depends on|its outputs are not one for each)"
    with pytest.raises(InputError, match=f"cannot run in batches of {size}: {why}"):
        Predictor(gt.compile(model))({"x": x}, size)


@pytest.mark.parametrize(
    "model", [each for each in DEPENDENT if each is not counted_rows], ids=lambda model: model.name
)
def test_a_fixed_batch_whose_examples_depend_on_each_other_takes_no_other_number(model: gt.Template) -> None:
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    with pytest.raises(InputError, match="fixed at 4, so it does not take 9 examples: (its outputs|output)"):
        Predictor(gt.compile(model.bind(dict.fromkeys(model.symbols, 4)).with_(template=None)))({"x": x})


class OnDisk(StoredArray):
    """What is not in memory."""

    def __init__(self, array: np.ndarray) -> None:
        self.array, self.dtype, self.shape = array, array.dtype, array.shape

    def read(self, numbers: np.ndarray) -> np.ndarray:
        return self.array[numbers]


@pytest.mark.parametrize("model", DEPENDENT, ids=lambda model: model.name)
def test_examples_that_are_not_in_memory_are_not_divided_either(model: gt.Template) -> None:
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    predict = Predictor(gt.compile(model))
    with pytest.raises(InputError, match="9 examples that are read batch by batch cannot be run so: (its|output)"):
        predict_arrays(predict, {"x": OnDisk(x)}, 4)
    for name, array in predict_arrays(Predictor(gt.compile(summed_rows)), {"x": OnDisk(x)}, 4).items():
        np.testing.assert_allclose(array, x.sum(1, keepdims=True), rtol=1e-5, err_msg=name)


def test_an_example_that_the_model_does_not_take_alone_is_not_divided() -> None:
    @gt.model(x=gt.f32["n", 4])
    def pairs(x: gt.Value) -> gt.Value:
        return gt.nn.reshape(gt.nn.reshape(x, (-1, 2, 4)) * 2.0, (-1, 4))

    x = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
    np.testing.assert_array_equal(Predictor(gt.compile(pairs))({"x": x})["output"], 2 * x)
    with pytest.raises(InputError, match="cannot run in batches of 10: whether its .* cannot be tried"):
        Predictor(gt.compile(pairs))({"x": x}, 10)


def test_indices_are_tried_among_other_indices() -> None:
    @gt.model(tokens=gt.i64["n", 2])
    def words(tokens: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.flatten(gt.nn.embedding(tokens, 7, 4)), 2)

    tokens = np.random.default_rng(0).integers(0, 7, (100, 2))
    function = gt.compile(words)
    found = Predictor(function)({"tokens": tokens}, 64)["output"]
    np.testing.assert_array_equal(found, function({"tokens": tokens})["output"])


def test_indices_that_are_computed_may_be_out_of_range_when_it_is_tried(backend: str) -> None:
    @gt.model(tokens=gt.i64["n", 2])
    def from_behind(tokens: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.flatten(gt.nn.embedding(tokens + 6, 7, 4)), 2)

    tokens = np.random.default_rng(0).integers(-6, 1, (100, 2))
    function = gt.compile(from_behind, backend)
    found = Predictor(function)({"tokens": tokens})["output"]
    np.testing.assert_array_equal(found, function({"tokens": tokens})["output"])


@pytest.mark.parametrize("count", [1, 7, 8, 9, 24])
def test_a_fixed_batch_takes_any_number_of_examples(mlp: gt.Template, points: Points, count: int) -> None:
    trainer = trainer_of(mlp.bind({"batch": 8}).with_(template=None), "cpu")
    expected = gt.compile(mlp)({"x": points[0]})["output"]
    x = np.concatenate([points[0], points[0]])[:count]
    np.testing.assert_array_equal(trainer.predict(x)["output"], np.concatenate([expected, expected])[:count])
    with pytest.raises(InputError, match="fixed at 8: it cannot be 4"):
        trainer.predict(x, batch_size=4)


@pytest.mark.parametrize("bad", [0, -1, 2.5])
def test_impossible_batch_sizes_are_refused(mlp: gt.Template, points: Points, bad: Any) -> None:
    with pytest.raises(InputError, match="whole number of at least 1"):
        trainer_of(mlp).predict(points[0], batch_size=bad)


def test_memory_is_that_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as many examples take the same arena, and are run in ten times as many calls."""
    calls: list[int] = []
    function = gt.compile(summed_rows)
    real: Callable[..., dict[str, Any]] = Function.__call__

    def counted(self: Function, inputs: Any) -> dict[str, Any]:
        calls.append(len(inputs["x"]))
        return real(self, inputs)

    monkeypatch.setattr(Function, "__call__", counted)
    predict = Predictor(function)
    x = np.random.default_rng(0).normal(size=(640, 3)).astype(np.float32)
    np.testing.assert_allclose(predict({"x": x})["output"], x.sum(1, keepdims=True), rtol=1e-5, atol=1e-6)
    assert calls == [64] * 3 + [1] + [64] * 10  # first it is tried whether an example depends on its batch


@gt.model(x=gt.f32["n", 3])
def summed_rows(x: gt.Value) -> gt.Value:
    return gt.nn.total(x, 1, keepdims=True)
