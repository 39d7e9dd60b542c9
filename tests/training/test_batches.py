"""What is data and what is a batch: arrays of any names, axes and extents, for steps and for predictions."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.data import Dataset
from glowtrain.errors import BatchError
from glowtrain.trainer.feed import comes_in_batches
from tests.training.loaders import FakeTensor, Loader, as_dicts, bits, cut
from tests.training.trainers import Points, trainer_of


def test_what_comes_in_batches(points: Points) -> None:
    x, y = points
    batches = cut(points)
    batched = [batches, iter(batches), (b for b in batches), Loader(batches), lambda: batches, as_dicts(batches), [[x]]]
    arrays = [(x, y), [x, y], {"x": x}, Dataset("d", {"x": x}), x, FakeTensor(x), ([[1.0]], [1]), [[1.0, 2.0], [0, 1]]]
    assert [comes_in_batches(data) for data in batched] == [True] * len(batched)
    assert [comes_in_batches(data) for data in (*arrays, tuple(batches), "x", b"x", None, 7, Loader)] == [False] * 14


def test_a_batch_of_one_array_for_a_model_that_takes_nothing_else(points: Points) -> None:
    @gt.model(x=gt.f32["batch", 6])
    def coder(x: gt.Value) -> dict[str, gt.Value]:
        y = gt.nn.linear(gt.nn.linear(x, 2), 6)
        return {"y": y, "error": gt.nn.mean(gt.nn.mean((x - y) * (x - y), 0), 0)}

    parts = [x for x, _ in cut(points)]
    first, second = (trainer_of(coder, "cpu", loss="error") for _ in range(2))
    first.fit({"x": points[0]}, 2, 4, shuffle=False, progress=False)
    second.fit(iter(parts * 2), 2, steps_per_epoch=6, progress=False)
    assert bits(first) == bits(second)


@gt.model(nodes=gt.f32["nodes", 2], edges=gt.f32["edges"], rate=gt.f32[()])
def net(nodes: gt.Value, edges: gt.Value, rate: gt.Value) -> dict[str, gt.Value]:
    y = gt.nn.linear(nodes, 1) * rate
    return {"y": y, "loss": gt.nn.total(gt.nn.mean(y * y, 0)) + 0.0 * gt.nn.total(gt.nn.mean(edges, 0))}


def test_batches_without_a_common_first_axis(backend: str) -> None:
    """A graph in each batch: nodes, edges and a number. Each counts as one example."""
    rng = np.random.default_rng(3)
    graphs = [
        {"nodes": rng.standard_normal((n, 2), np.float32), "edges": np.ones(n * 2, np.float32), "rate": np.float32(n)}
        for n in (3, 4, 3)
    ]
    fitted, stepped = (trainer_of(net, backend, loss="loss") for _ in range(2))
    history = fitted.fit(graphs, 1, progress=False)
    assert history.loss == [sum(map(stepped.step, graphs)) / 3]
    assert bits(fitted) == bits(stepped)


@gt.model(x=gt.f32["batch", "time", 2])
def sequence(x: gt.Value) -> gt.Value:
    return gt.nn.mean(gt.nn.linear(x, 3), 1)


def test_extents_with_names_may_change(points: Points) -> None:
    """Sequences of other lengths in each batch; an extent that the model fixes stays."""
    rng = np.random.default_rng(5)
    batches = [(rng.standard_normal((4, time, 2), np.float32), np.arange(4) % 3) for time in (5, 7, 5)]
    fitted, stepped = (trainer_of(sequence, "cpu") for _ in range(2))
    fitted.fit(batches, 1, progress=False)
    for x, y in batches:
        stepped.step({"x": x, "labels": y})
    assert bits(fitted) == bits(stepped)
    batches[2] = rng.standard_normal((4, 5, 3), np.float32), batches[2][1]
    with pytest.raises(BatchError, match=r"batch 3: 'x' is float32\[4,5,3\], where float32\[\*,5,2\] is expected"):
        trainer_of(sequence, "cpu").fit(batches, 1, progress=False)


def test_predictions_take_the_inputs_alone(points: Points) -> None:
    @gt.model(a=gt.f32["batch", 6], b=gt.f32["batch", 6])
    def two(a: gt.Value, b: gt.Value) -> dict[str, gt.Value]:
        return {"sum": gt.nn.linear(a + b, 3), "first": a}

    trainer, batches = trainer_of(two, "cpu", loss=gt.losses.softmax_cross_entropy(output="sum")), cut(points)
    x = points[0]
    expected = trainer.predict({"a": x, "b": 2 * x})
    for kind in (
        [(x, 2 * x) for x, _ in batches],
        [(x, 2 * x, y) for x, y in batches],
        [(x, 2 * x, y, "a.png") for x, y in batches],
        [{"b": 2 * x, "a": x} for x, _ in batches],
        [{"labels": y, "b": 2 * x, "a": x} for x, y in batches],
        [{"y": y, "b": 2 * x, "a": x} for x, y in batches],
    ):
        found = trainer.predict(iter(kind))
        np.testing.assert_array_equal(found["first"], x)
        np.testing.assert_allclose(found["sum"], expected["sum"], rtol=1e-5, atol=1e-6)
    with pytest.raises(BatchError, match="batch 1: the batch has 1 arrays, but the model.* take 'a', 'b'"):
        trainer.predict([(x,) for x, _ in batches])
    with pytest.raises(BatchError, match="batch 1: data has 'a', 'b', 'c', but"):
        trainer.predict([{"a": x, "b": x, "c": x}])


def test_outputs_that_cannot_be_joined(points: Points) -> None:
    @gt.model(x=gt.f32["batch", 6])
    def totals(x: gt.Value) -> dict[str, gt.Value]:
        return {"each": gt.nn.linear(x, 3), "all": gt.nn.total(gt.nn.linear(x, 3))}

    trainer = trainer_of(totals, loss=gt.losses.softmax_cross_entropy(output="each"))
    with pytest.raises(BatchError, match="batch 1: output 'all' is not one for each of 4 examples"):
        trainer.predict(cut(points))
