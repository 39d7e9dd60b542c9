"""Graphs and templates through pickle and copy: the same text and arrays, however deep, and clear errors."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import glowtrain as gt
from glowtrain.errors import UnpicklableError
from glowtrain.graph import Graph, Input, Template, Value, arrays_of, to_text
from glowtrain.modes.training_and_inference import inference, make_trainable
from glowtrain.modes.variables import with_values
from glowtrain.types import f32


@gt.model(x=gt.f32["batch", 4])
def net(x: Value) -> Value:
    return gt.nn.linear(gt.nn.dropout(gt.nn.relu(gt.nn.linear(x, 5, name="first")), 0.5), 3, name="second")


def same(a: Graph, b: Graph) -> bool:
    first, second = arrays_of(a), arrays_of(b)
    arrays = first.keys() == second.keys() and all(first[key].tobytes() == second[key].tobytes() for key in first)
    return to_text(a) == to_text(b) and arrays


@pytest.mark.parametrize(
    "again", [lambda given: pickle.loads(pickle.dumps(given)), copy.deepcopy], ids=["pickle", "copy"]
)
def test_deep_graphs(again: Callable[[Graph], Graph]) -> None:
    x = Input(f32[2], "x")
    y: Value = x
    for _ in range(2 * sys.getrecursionlimit()):
        y = gt.nn.tanh(y)
    graph = Graph((x,), {"y": y, "first": x}, name="deep")
    found = again(graph)
    assert found is not graph
    assert same(found, graph)
    assert found.outputs["first"] is found.inputs[0]


def loaded(folder: Path) -> Template:
    gt.save(net.bind({"batch": 2}), folder / "net.onnx")
    model = gt.load(folder / "net.onnx")
    assert isinstance(model, Template)
    return model


TEMPLATES: dict[str, Callable[[Path], Template]] = {
    "decorated": lambda folder: net,
    "loaded": loaded,
    "training form": lambda folder: make_trainable(net, seed=3),
    "inference form": lambda folder: inference(make_trainable(loaded(folder)), dropout=True),
    "partly bound": lambda folder: loaded(folder).partly({}, {}),
}


@pytest.mark.parametrize("make", TEMPLATES.values(), ids=list(TEMPLATES))
def test_templates(make: Callable[[Path], Template], tmp_path: Path) -> None:
    template = make(tmp_path)
    found = pickle.loads(pickle.dumps(template))
    assert same(found.bind({"batch": 3}), template.bind({"batch": 3}))
    assert copy.deepcopy(template) is template


def test_a_bound_graph_keeps_its_template() -> None:
    values = {"first.bias": net.bind({"batch": 1}).variable("first.bias").initial + 1}
    graph = with_values(net.bind({"batch": 2}), values)
    found = pickle.loads(pickle.dumps(graph))
    assert same(found, graph)
    assert found.template is not None
    assert same(found.template.bind({"batch": 7}), graph.template.bind({"batch": 7}))


def test_models_that_have_no_name_of_their_own() -> None:
    @gt.model(x=gt.f32["batch", 4])
    def local(x: Value) -> Value:
        return gt.nn.linear(x, 3)

    for given in (local, local.bind({"batch": 2}), inference(local)):
        with pytest.raises(UnpicklableError, match="local: pickle cannot find it by its name.*top of a module"):
            pickle.dumps(given)


def test_a_model_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    pickled = pickle.dumps(net)
    monkeypatch.setattr(sys.modules[__name__], "net", None)
    with pytest.raises(UnpicklableError, match=r"test_pickling has no model net in this process"):
        pickle.loads(pickled)


SCRIPT = """
import multiprocessing, pickle, sys
import cloudpickle
import numpy as np
import glowtrain as gt

WIDTH = 5

@gt.model(seed=3, x=gt.f32["batch", 4])
def net(x, *, factor=2.0):
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, WIDTH)), 3) * factor

X, Y = np.arange(24, dtype=np.float32).reshape(6, 4) / 24, np.array([0, 1, 2, 0, 1, 2])

def fitted(model):
    trainer = gt.Trainer(model, "softmax_cross_entropy", gt.optim.Adam())
    trainer.fit((X, Y), epochs=2, progress=False)
    return trainer

def scores(model):
    return fitted(model).predict(X)["output"].tobytes()

def job():
    return fitted(net)

if __name__ == "__main__":
    by_name = pickle.loads(pickle.dumps(net))
    assert by_name.build is net.build
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(scores, (net,)) == scores(net)
    with open(sys.argv[1], "wb") as file:
        cloudpickle.dump((job, scores(net), X), file)
"""
"""A model of a script, sent to a process that runs the script again, and written for one that knows nothing of it."""

WORKER = """
import sys
import cloudpickle
with open(sys.argv[1], "rb") as file:
    job, wanted, x = cloudpickle.load(file)
trainer = cloudpickle.loads(cloudpickle.dumps(job()))
assert trainer.predict(x)["output"].tobytes() == wanted
"""


@pytest.mark.exhaustive
@pytest.mark.spread(1)
def test_a_model_of_a_script_in_other_processes(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    for arguments in (["script.py", "job"], ["-c", WORKER, "job"]):
        subprocess.run([sys.executable, *arguments], check=True, cwd=tmp_path, timeout=300)
