"""Compiled functions and trainers through pickle and copy: they work, and share nothing that changes."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.target import Target
from glowtrain.errors import UnpicklableError
from glowtrain.graph import Graph, Input, Variable
from tests.training.trainers import Points, trainer_of

Again = Callable[[Any], Any]


def pickled(given: Any) -> Any:
    return pickle.loads(pickle.dumps(given))


@pytest.fixture(params=[pickled, copy.deepcopy], ids=["pickle", "deepcopy"])
def again(request: pytest.FixtureRequest) -> Again:
    function: Again = request.param
    return function


@gt.model(x=gt.f32["batch", 6])
def net(x: gt.Value) -> gt.Value:
    hidden = gt.nn.batch_norm(gt.nn.linear(x, 8, name="first"))
    return gt.nn.linear(gt.nn.dropout(gt.nn.tanh(hidden), 0.2), 3, name="second")


def squares(out: Any, inp: Any) -> gt.Value:
    return gt.nn.mean((out["output"] - inp["t"]) ** 2.0)


def everything(name: str) -> bool:
    return True


def counter() -> Graph:
    """Adds x to a sum that it keeps."""
    x, total = Input(gt.f32[2], "x"), Variable("total", np.zeros(2, np.float32))
    return Graph((x,), {"y": total + x}, {total: total + x}, name="counter")


def test_a_function_keeps_the_values_of_its_variables(again: Again, backend: str) -> None:
    function, x = gt.compile(counter(), backend), {"x": np.array([1, 2], np.float32)}
    function(x)
    other = again(function)
    assert [other(x)["y"].tolist() for _ in range(2)] == [[2.0, 4.0], [3.0, 6.0]]
    assert function(x)["y"].tolist() == [2.0, 4.0]
    assert (other.backend.name, other.options) == (backend, function.options)


def test_a_function_of_an_open_model_binds_new_shapes(again: Again, backend: str) -> None:
    function = gt.compile(net, backend, fixed_point=True, specialisations=1)
    other = again(function)
    for batch in (2, 5):
        x = np.random.default_rng(batch).standard_normal((batch, 6)).astype(np.float32)
        assert other({"x": x})["output"].tobytes() == function({"x": x})["output"].tobytes()
    assert (other.options, other.limit) == (function.options, 1)


def test_functions_that_share_variables_share_them_still(again: Again) -> None:
    first = gt.compile(counter(), "interpreter")
    second = gt.compile(counter(), "interpreter", first.state)
    one, two = again((first, second))
    one({"x": np.ones(2, np.float32)})
    assert two.state is one.state
    assert two.state.read("total").tolist() == [1.0, 1.0]
    assert first.state.read("total").tolist() == [0.0, 0.0]


def test_a_graph_that_was_bound_goes_without_its_template() -> None:
    @gt.model(x=gt.f32["batch", 6])
    def local(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 2)

    function, x = gt.compile(local.bind({"batch": 4}), "interpreter"), {"x": np.ones((4, 6), np.float32)}
    assert pickled(function)(x)["output"].tobytes() == function(x)["output"].tobytes()


def test_the_cpu_backend_is_made_for_the_processor_that_reads_it(tmp_path: Path) -> None:
    host = pickled(Cpu(cache=tmp_path))
    assert (host.target, host.cache.folder) == (Target.host(), tmp_path)
    assert b"Target" not in pickle.dumps(Cpu())
    assert pickled(Cpu(Target.named("scalar"))).target == Target.named("scalar")


@pytest.mark.spread(1)
@pytest.mark.parametrize("model", [net, net.bind({"batch": 8})], ids=["open", "bound"])
def test_a_trainer_goes_on_to_the_same_bits(
    model: gt.Graph | gt.Template, again: Again, backend: str, points: Points, tmp_path: Path
) -> None:
    settings = {"optimizer": gt.optim.Adam(lr=0.02, schedule=gt.optim.Cosine(30), no_decay=gt.optim.vectors)}
    whole = trainer_of(model, backend, **settings)
    whole.fit(points, 2, 8, validation=points, patience=2, restore_best=True)
    whole.hyper["lr"] = 0.01
    whole.step({"x": points[0][:8], "labels": points[1][:8]})
    other = again(whole)
    before = whole.variables()
    for trainer in (other, whole):
        trainer.fit(points, 2, 8, validation=points)
        trainer.save(tmp_path / f"{trainer is whole}")
        if trainer is other:
            assert all(array.tobytes() == before[name].tobytes() for name, array in whole.variables().items())
    assert (tmp_path / "True").read_bytes() == (tmp_path / "False").read_bytes()
    assert [record["seconds"] for record in other.history][:2] == [record["seconds"] for record in whole.history][:2]


class Named(gt.Trainer):
    """A trainer with something of its own."""


def test_a_copy_is_of_the_same_class(again: Again) -> None:
    trainer = Named(net, gt.losses.softmax_cross_entropy(), gt.optim.SGD(), backend="interpreter")
    assert type(again(trainer)) is Named


def test_the_graph_of_a_copy_is_bound_as_the_trainers(again: Again, points: Points) -> None:
    trainer = trainer_of(net)
    trainer.fit(points, 1, 8)
    assert str(again(trainer).graph) == str(trainer.graph)


def test_functions_at_the_top_of_a_module_are_pickled(points: Points) -> None:
    trainer = trainer_of(net, loss=gt.losses.custom(squares, t=gt.f32["batch", 3]), trainable=everything)
    assert pickled(trainer).loss == trainer.loss


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"loss": lambda out, inp: gt.nn.mean(out["output"])}, "the trainer's loss cannot be pickled"),
        ({"trainable": lambda name: True}, "the trainer's trainable cannot be pickled"),
        ({"optimizer": gt.optim.SGD(no_decay=lambda p: True)}, "the trainer's optimizer cannot be pickled"),
    ],
    ids=["loss", "trainable", "optimizer"],
)
def test_what_cannot_be_pickled_is_named_and_can_be_copied(settings: dict[str, Any], what: str, points: Points) -> None:
    trainer = trainer_of(net, **settings)
    with pytest.raises(UnpicklableError, match=f"{what}.*at the top of a module"):
        pickle.dumps(trainer)
    copied = copy.deepcopy(trainer)
    copied.fit({"x": points[0]} if "loss" in settings else points, 1, 8)
    assert trainer.position.epoch == 0


def test_models_without_a_name_are_named(mlp: gt.Template) -> None:
    for given in (gt.compile(mlp, "interpreter"), trainer_of(mlp)):
        with pytest.raises(UnpicklableError, match="mlp: pickle cannot find it by its name"):
            pickle.dumps(given)
        assert copy.deepcopy(given) is not given


def test_models_that_are_made_of_local_functions_say_what_else_to_do(points: Points) -> None:
    half = net.map(lambda graph: graph)
    for given, instead in ((gt.compile(half, "interpreter"), "gt.load reads"), (trainer_of(half), "a checkpoint")):
        with pytest.raises(UnpicklableError, match=f"model cannot be pickled.*{instead}"):
            pickle.dumps(given)


def evaluated(given: tuple[gt.Trainer, Points]) -> dict[str, float]:
    trainer, points = given
    trainer.fit(points, 1, 8)
    return trainer.evaluate(points)


@pytest.mark.exhaustive
def test_in_other_processes(points: Points) -> None:
    trainers = [trainer_of(net, "cpu", optimizer=gt.optim.Adam(lr=rate)) for rate in (0.01, 0.02)]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        there = pool.map(evaluated, [(trainer, points) for trainer in trainers])
    assert there == [evaluated((trainer, points)) for trainer in trainers]
