"""What is kept of models with their code: who finds it reads no ONNX, builds no graph, and sees no difference."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import glowtrain as gt
from glowtrain.backends.cache.folder import Cache
from glowtrain.errors import GlowtrainError, SharedWeightsWarning
from glowtrain.graph import Graph, Template, Value
from tests.compiler.known_models import BATCH, BOUND, PLAIN, SPECIFIED, Run

# --- a second process ------------------------------------------------------------------------------------------------


ROOT = Path(__file__).resolve().parents[2]

WARM = """
import json, sys
import numpy as np
import glowtrain as gt

path, bound, fits = sys.argv[1], sys.argv[2] == "bound", sys.argv[3] == "fit"
random = np.random.default_rng(0)
batch = {"x": random.integers(0, 7, (6, 5)), "labels": random.integers(0, 3, 6)}
model = gt.load(path, dims={"batch": 6} if bound else None)
trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), gt.optim.Adam(), threads=1)
if fits:
    trainer.fit(batch, 2, 6, progress=False)
else:
    trainer.step(batch)
digest = {name: array.tobytes().hex() for name, array in trainer.parameters().items()}
print(json.dumps({"modules": sorted(sys.modules), "digest": digest}))
"""

BUILDING = (
    "onnx", "google.protobuf", "glowtrain.onnx_io.read", "glowtrain.onnx_io.write", "glowtrain.compiler.walk",
    "glowtrain.lower", "glowtrain.optimize", "glowtrain.program.passes", "glowtrain.ops.sequence",
)  # fmt: skip


@pytest.mark.parametrize("bound", ["bound", "open"])
@pytest.mark.parametrize("way", ["step", "fit"])
def test_the_second_process_reads_no_onnx_and_builds_no_graph(path: Path, tmp_path: Path, bound: str, way: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "caches")}
    command = [sys.executable, "-c", WARM, str(path), bound, way]
    cold, warm = (
        json.loads(subprocess.run(command, env=environment, capture_output=True, check=True).stdout) for _ in range(2)
    )
    assert warm["digest"] == cold["digest"]
    assert {"onnx", "glowtrain.compiler.walk"} <= set(cold["modules"])
    assert [module for module in warm["modules"] if module.startswith(BUILDING)] == []


IMPORTED = """
import json, runpy, sys
sys.argv[0] = "glowtrain"
try:
    runpy.run_module("glowtrain", run_name="__main__")
except SystemExit as done:
    assert not done.code
print(json.dumps(sorted(sys.modules)))
"""


@pytest.mark.parametrize("options", [(), ("--dims", "batch=6")], ids=["open", "bound"])
def test_the_second_run_on_the_command_line_reads_no_onnx(path: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    np.savez(tmp_path / "in.npz", x=BATCH["x"])
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "caches")}
    arguments = ["run", path, "--input", tmp_path / "in.npz", "--output", tmp_path / "out.npz", *options]
    command = [sys.executable, "-c", IMPORTED, *map(str, arguments)]
    results = list[tuple[list[str], bytes]]()
    for _ in range(2):
        printed = subprocess.run(command, env=environment, capture_output=True, check=True).stdout
        with np.load(tmp_path / "out.npz") as arrays:
            results.append((json.loads(printed.splitlines()[-1]), arrays["output"].tobytes()))
    (cold, before), (warm, after) = results
    assert after == before
    assert {"onnx", "glowtrain.compiler.walk"} <= set(cold)
    assert [module for module in warm if module.startswith(BUILDING[:5])] == []


# --- the same in all respects ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("run", [PLAIN, BOUND], ids=["open", "bound"])
def test_what_is_known_is_not_read_again(run: Run, path: Path, users: Cache, reading: list[str]) -> None:
    cold = run.outcome(path)
    assert reading == [str(path)]
    assert run.outcome(path) == cold
    assert reading == [str(path)]


@pytest.mark.parametrize("run", [PLAIN, BOUND], ids=["open", "bound"])
def test_who_looks_sees_what_there_is(run: Run, path: Path, users: Cache, reading: list[str], tmp_path: Path) -> None:
    def seen() -> list[Any]:
        trainer = run.trainer(path)
        trainer.step(BATCH)
        model = gt.load(path, **run.loading)
        gt.save(trainer.model(), tmp_path / "trained.onnx")
        copied = pickle.loads(pickle.dumps(model)), copy.deepcopy(model)
        bound = [m.bind(SPECIFIED) if isinstance(m, Template) else m for m in (model, *copied)]
        shown = [str(trainer.graph), str(trainer.compiled.graph), repr(trainer), repr(model), *map(str, bound)]
        shown += [(graph.key, graph.positional_key, graph.dims, graph.template is None) for graph in bound]
        if isinstance(model, Graph) and model.template is not None:
            shown.append(str(model.template.bind({"batch": 2})))
        measured = trainer.predict(BATCH["x"])["output"].tobytes(), trainer.evaluate({**BATCH}), str(trainer.memory())
        return [*shown, *measured, (tmp_path / "trained.onnx").read_bytes()]

    cold = seen()
    before = len(reading)
    assert seen() == cold
    assert len(reading) > before


def test_a_compiled_model_is_known(path: Path, users: Cache, reading: list[str]) -> None:
    for run in (PLAIN, BOUND):
        reading.clear()
        results = [gt.compile(gt.load(path, **run.loading), threads=1)({"x": BATCH["x"]}) for _ in range(2)]
        assert len(reading) == 1
        assert results[0]["output"].tobytes() == results[1]["output"].tobytes()


def test_copies_of_a_trainer_go_on_alike(path: Path, users: Cache) -> None:
    PLAIN.outcome(path)
    for run in (PLAIN, BOUND):
        trainer = run.trainer(path)
        trainer.step(BATCH)
        copies = [copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))]
        assert [other.step(BATCH) for other in copies] == [trainer.step(BATCH)] * 2


WRONG: tuple[dict[str, Any], ...] = (
    {},
    {"x": BATCH["x"]},
    {**BATCH, "labels": BATCH["labels"] + 1},
    {**BATCH, "x": BATCH["x"] + 1},
    {**BATCH, "x": BATCH["x"][:, 1:]},
    {**BATCH, "x": BATCH["x"].astype(np.float32)},
    {**BATCH, "labels": np.eye(3)[BATCH["labels"]]},
    {**BATCH, "more": 1},
)


@pytest.mark.parametrize("run", [PLAIN, BOUND], ids=["open", "bound"])
def test_mistakes_are_told_alike(run: Run, path: Path, users: Cache) -> None:
    def told() -> list[str]:
        messages = list[str]()
        for batch in WRONG:
            trainer = run.trainer(path)
            for call in (trainer.step, lambda wrong, trainer=trainer: trainer.fit(wrong, 1, 6, progress=False)):
                with pytest.raises(GlowtrainError) as error:
                    call(batch)
                messages.append(str(error.value))
        return messages

    fresh = told()
    run.outcome(path)
    assert told() == fresh


def test_what_goes_bad_is_named_alike(path: Path, users: Cache) -> None:
    def told() -> str:
        trainer = PLAIN.trainer(path)
        trainer.set_variables({"scores.bias": np.full(3, np.nan, np.float32)})
        with pytest.raises(GlowtrainError, match="scores") as error:
            trainer.step(BATCH)
        return str(error.value)

    cold = told()
    assert told() == cold


def test_batches_that_have_to_be_converted_are_taken(path: Path, users: Cache, reading: list[str]) -> None:
    cold = PLAIN.outcome(path)[0][0]
    reading.clear()
    assert PLAIN.trainer(path).step({"x": BATCH["x"].tolist(), "labels": BATCH["labels"].astype(np.int32)}) == cold
    assert reading == []


def test_a_warning_is_given_again(tmp_path: Path, users: Cache, reading: list[str]) -> None:
    @gt.model(x=gt.f32["batch", 4])
    def twice(x: Value) -> Value:
        weight = gt.nn.parameter("shared", (4, 4), gt.nn.Normal(0.1))
        return gt.nn.linear(gt.nn.relu(gt.nn.relu(x @ weight) @ weight), 2)

    gt.save(twice, tmp_path / "twice.onnx")
    proto = onnx.load(tmp_path / "twice.onnx")
    del proto.metadata_props[:]  # in which Glowtrain says what is a variable
    data, said = proto.SerializeToString(), list[Any]()
    for _ in range(2):
        with pytest.warns(SharedWeightsWarning, match="shared") as warned:
            model = gt.load(data)
        said.append([(str(item.message), item.message.readers, item.filename) for item in warned])  # type: ignore[union-attr]
        trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), gt.optim.SGD(lr=0.1), threads=1)
        trainer.step({"x": np.ones((2, 4), np.float32), "labels": np.zeros(2, np.int64)})
    assert said[0] == said[1]
    assert said[0][0][2] == __file__
    assert len(reading) == 1
