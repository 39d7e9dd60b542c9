"""What is kept of models with their code: who finds it reads no ONNX, builds no graph, and sees no difference."""

from __future__ import annotations

import copy
import functools
import importlib.util
import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import glowtrain as gt
from glowtrain.backends.cache import location
from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.container import pack, unpack
from glowtrain.errors import GlowtrainError, ModelError, SharedWeightsWarning
from glowtrain.graph import Graph, Template, Value
from glowtrain.graph.registry import OPERATORS
from glowtrain.kept import origin as origins
from glowtrain.kept.origin import named
from glowtrain.kept.promise import origin_of
from glowtrain.loading.files import ModelFiles
from glowtrain.loading.load import load_key
from glowtrain.losses.classification import SoftmaxCrossEntropy
from glowtrain.onnx_io.options import LoadOptions
from glowtrain.ops.core.family import Elementwise
from glowtrain.optim.optimizer import vectors
from glowtrain.types import Array

ROOT = Path(__file__).resolve().parents[2]
SHAPE = 6, 5
BATCH = {
    "x": np.random.default_rng(1).integers(0, 7, SHAPE),
    "labels": np.random.default_rng(2).integers(0, 3, SHAPE[0]),
}
SPECIFIED = {"batch": SHAPE[0]}


@gt.model(x=gt.i64["batch", SHAPE[1]])
def network(x: Value) -> Value:
    """With indices, statistics that a step updates, and dropout, whose counter is state."""
    hidden = gt.nn.reshape(gt.nn.embedding(x, 7, 4, name="words"), (x.shape[0], 4 * SHAPE[1]))
    hidden = gt.nn.relu(gt.nn.batch_norm(gt.nn.linear(hidden, 8, name="hidden"), name="norm"))
    return gt.nn.linear(gt.nn.dropout(hidden, 0.25), 3, name="scores")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    gt.save(network, tmp_path / "network.onnx")
    return tmp_path / "network.onnx"


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """The user's folder, elsewhere."""
    cache = Cache(tmp_path / "caches" / "glowtrain", own=True)
    monkeypatch.setattr(location, "user_cache", lambda: cache)
    return cache


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The models that were read from their files, by title."""
    import glowtrain.onnx_io.read.load as module

    read, whole = list[str](), module.loaded

    def counted(model: Any, *args: Any, **options: Any) -> Any:
        read.append(model.title)
        return whole(model, *args, **options)

    monkeypatch.setattr(module, "loaded", counted)
    return read


@dataclass(frozen=True)
class Run:
    """A training run: how the model is loaded, and how it is trained."""

    loading: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)

    def trainer(self, path: Path) -> gt.Trainer:
        own = {"loss": gt.losses.softmax_cross_entropy(), "optimizer": gt.optim.Adam(lr=0.01), "threads": 1}
        return gt.Trainer(gt.load(path, **self.loading), **{**own, **self.settings})

    def outcome(self, path: Path) -> tuple[list[float], dict[str, bytes]]:
        """Losses of two steps, and all variables after them."""
        trainer = self.trainer(path)
        losses = [trainer.step(BATCH), trainer.step(BATCH)]
        return losses, {name: array.tobytes() for name, array in trainer.variables().items()}


PLAIN, BOUND = Run(), Run({"dims": SPECIFIED})


# --- a second process ------------------------------------------------------------------------------------------------

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


# --- what decides ----------------------------------------------------------------------------------------------------


def test_a_changed_file_is_another_model(path: Path, users: Cache, reading: list[str]) -> None:
    before = PLAIN.outcome(path)
    proto = onnx.load(path)
    weight = next(tensor for tensor in proto.graph.initializer if tensor.name == "scores.bias")
    weight.raw_data = np.ones(3, np.float32).tobytes()
    onnx.save(proto, path)
    after = PLAIN.outcome(path)
    assert after != before
    assert len(reading) == 2
    assert PLAIN.outcome(path) == after


def test_files_beside_the_model_belong_to_it(path: Path, users: Cache, reading: list[str]) -> None:
    onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    beside = path.with_name("weights.bin")
    before = PLAIN.outcome(path)
    assert PLAIN.outcome(path) == before
    assert len(reading) == 1
    known = gt.load(path)
    beside.write_bytes(bytes(len(beside.read_bytes())))
    after = PLAIN.outcome(path)
    assert after != before
    assert PLAIN.outcome(path) == after
    assert len(reading) == 2
    assert isinstance(known, Template)
    with pytest.raises(ModelError, match=r"its data file 'weights.bin' has changed since the model was loaded"):
        known.bind(SPECIFIED)
    beside.unlink()
    with pytest.raises(ModelError, match=r"weights.bin"):
        gt.load(path)


def test_what_changes_between_loading_and_keeping_is_not_kept(path: Path, users: Cache, reading: list[str]) -> None:
    onnx.save(onnx.load(path), path, save_as_external_data=True, size_threshold=0, location="weights.bin")
    beside, trainer = path.with_name("weights.bin"), PLAIN.trainer(path)
    beside.write_bytes(bytes(len(beside.read_bytes())))
    trainer.step(BATCH)
    zeros = PLAIN.outcome(path)
    assert len(reading) == 2
    assert PLAIN.outcome(path) == zeros != Run().outcome(path.parent / "network.onnx")[0]


LOADINGS: tuple[dict[str, Any], ...] = (
    {},
    {"name": "other"},
    {"dims": SPECIFIED},
    {"dims": {"batch": 3}},
    {"values": {"x": BATCH["x"]}, "dims": SPECIFIED},
    {"values": {"x": BATCH["x"] * 0}, "dims": SPECIFIED},
)
SETTINGS: tuple[dict[str, Any], ...] = (
    {},
    {"loss": gt.losses.softmax_cross_entropy(reduction="sum")},
    {"loss": gt.losses.softmax_cross_entropy(ignore_index=0)},
    {"optimizer": gt.optim.Adam(lr=0.02)},
    {"optimizer": gt.optim.Adam(lr=0.01, weight_decay=0.1)},
    {"optimizer": gt.optim.Adam(lr=0.01, weight_decay=0.1, no_decay=vectors)},
    {"optimizer": gt.optim.Adam(lr=0.01, schedule=gt.optim.Cosine(10))},
    {"optimizer": gt.optim.Adam(lr=0.01, schedule=gt.optim.Warmup(5) * gt.optim.Cosine(10))},
    {"optimizer": gt.optim.Adam(lr=0.01, clip_norm=1.0)},
    {"optimizer": gt.optim.AdamW(lr=0.01)},
    {"optimizer": gt.optim.SGD(lr=0.01)},
    {"trainable": ["scores.*"]},
    {"trainable": ["hidden.weight[:, :4]"]},
    {"seed": 1},
    {"unbiased": True},
    {"freeze_statistics": True},
    {"metrics": True},
    {"micro_batches": "auto"},
)


def origin(run: Run, path: Path) -> str:
    found = run.trainer(path).graphs.origin
    assert found is not None
    return found.key


def test_all_settings_are_in_the_key(path: Path, users: Cache) -> None:
    keys = [origin(Run({}, chosen), path) for chosen in SETTINGS]
    assert len(set(keys)) == len(SETTINGS)
    assert [origin(Run({}, chosen), path) for chosen in SETTINGS] == keys


def test_how_a_model_is_loaded_is_in_its_key(path: Path, users: Cache) -> None:
    keys = [found.key for x in LOADINGS if (found := origin_of(gt.load(path, **x))) is not None]
    assert len(set(keys)) == len(LOADINGS)


@pytest.mark.parametrize("chosen", SETTINGS, ids=range(len(SETTINGS)))
def test_with_any_setting_the_second_run_is_the_first(
    chosen: dict[str, Any], path: Path, users: Cache, reading: list[str]
) -> None:
    PLAIN.outcome(path)
    cold = Run({}, chosen).outcome(path)
    reading.clear()
    assert Run({}, chosen).outcome(path) == cold
    assert reading == []


def test_residuals_in_bf16_need_no_graph_either(path: Path, users: Cache, reading: list[str]) -> None:
    plain, run = PLAIN.outcome(path), Run({}, {"residuals": "bf16"})
    cold, known = run.outcome(path), run.trainer(path).residuals
    assert cold != plain
    reading.clear()
    assert run.outcome(path) == cold
    assert run.trainer(path).residuals == known
    assert known is not None
    assert "norm.mean" in known.forward
    assert reading == []


OPTIONS: dict[str, Any] = {
    "dims": {"batch": 6}, "values": {"x": BATCH["x"]}, "open_batch": True, "untie": ["a"], "name": "other",
}  # fmt: skip


def test_every_option_of_loading_is_in_the_key(path: Path) -> None:
    files = ModelFiles.of(path)
    assert files is not None
    assert OPTIONS.keys() == {each.name for each in fields(LoadOptions)}
    different = [{}, *({name: value} for name, value in OPTIONS.items()), {"dims": {"batch": 7}}, {"untie": ["b"]}]
    different += [{"values": {"x": array}} for array in (BATCH["x"] + 1, BATCH["x"][:3], BATCH["x"].astype(np.int32))]
    keys = [load_key(files, LoadOptions(**options)) for options in different]
    assert len({key for key in keys if key is not None}) == len(different)


def test_arrays_of_objects_have_no_key(path: Path) -> None:
    """Their bytes are addresses, at which something else can be later."""
    files = ModelFiles.of(path)
    assert files is not None
    assert load_key(files, LoadOptions(values={"x": np.array([["a", None]], object)})) is None


def test_the_name_of_a_file_is_that_of_a_model_without_one(path: Path, users: Cache) -> None:
    proto = onnx.load(path)
    proto.graph.name = ""
    for name in ("first", "second", "first"):
        file = path.with_name(f"{name}.onnx")
        onnx.save(proto, file)
        PLAIN.outcome(file)
        assert gt.load(file).name == name


@pytest.mark.parametrize("what", ["compiler", "models", "tools", "byte order", "onnx"])
def test_other_sources_and_versions_know_nothing(
    what: str, path: Path, users: Cache, reading: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = PLAIN.outcome(path)
    reading.clear()
    sources, part = origins.sources, {"compiler": (), "models": origins.MODELS}.get(what)
    if part is not None:
        changed = functools.partial(_changed_sources, sources, part)
        monkeypatch.setattr(origins, "sources", changed)
    elif what == "tools":
        monkeypatch.setattr(origins, "tools", lambda: "Python 4")
    elif what == "byte order":
        monkeypatch.setattr(sys, "byteorder", "middle")
    else:
        (tmp_path / "version.py").write_text("version = '99'\n")
        found = SimpleNamespace(origin=str(tmp_path / "__init__.py"))
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: found)
    monkeypatch.setattr(origins, "_ground", origins._ground.__wrapped__)
    assert PLAIN.outcome(path) == cold
    assert reading == [str(path)]


def _changed_sources(sources: Any, part: tuple[str, ...], *parts: str) -> str:
    return f"{sources(*parts)}{'?' * (parts == part)}"


def my_loss(outputs: Any, inputs: Any) -> Value:
    return gt.losses.softmax_cross_entropy().attach(Graph(tuple(inputs.values()), dict(outputs))).value


class MyLoss(SoftmaxCrossEntropy):
    """Of somebody else."""


def test_what_is_somebody_elses_has_no_name() -> None:
    for value in (my_loss, MyLoss(), MyLoss, lambda name: True, np.float32(1), object(), (1, my_loss), onnx):
        assert named(value) is None


def test_settings_of_somebody_else_are_taken_as_they_are_now(path: Path, users: Cache, reading: list[str]) -> None:
    for run in (Run({}, {"trainable": lambda name: name.startswith("scores")}), Run({}, {"loss": MyLoss()})):
        assert run.trainer(path).graphs.origin is None
        assert run.outcome(path) == run.outcome(path)


def test_beside_operators_from_elsewhere_nothing_is_known(path: Path, users: Cache, reading: list[str]) -> None:
    @dataclass(frozen=True)
    class Twice(Elementwise):
        """2 x"""

        domain = "tests.known"

        def reference(self, x: Array) -> Array:
            return x + x

        def scalar(self, x: Any) -> Any:
            return x + x

    cold, known = PLAIN.outcome(path), gt.load(path)
    assert origin_of(known) is not None
    try:
        gt.operator(Twice)
        assert origin_of(known) is None
        assert PLAIN.outcome(path) == cold
        assert len(reading) == 2
    finally:
        del OPERATORS["tests.known.Twice"]


def test_nothing_is_known_where_nothing_is_kept(path: Path, users: Cache, reading: list[str]) -> None:
    run = Run({}, {"backend": gt.Cpu(cache=None)})
    assert run.outcome(path) == run.outcome(path)
    assert len(reading) == 2
    assert not users.folder.exists()


# --- files that cannot be used ---------------------------------------------------------------------------------------


def kept(users: Cache) -> list[Path]:
    return sorted(users.folder.glob("*.compiled"))


DAMAGES = (lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1] + b"?")


@pytest.mark.parametrize("damage", DAMAGES, ids=["half", "empty", "changed"])
@pytest.mark.parametrize("run", [PLAIN, BOUND], ids=["open", "bound"])
def test_damaged_files_are_written_anew(run: Run, damage: Any, path: Path, users: Cache, reading: list[str]) -> None:
    cold = run.outcome(path)
    for file in kept(users):
        data = file.read_bytes()
        file.write_bytes(damage(data))
        assert run.outcome(path) == cold
        assert file.read_bytes() not in (damage(data), b"")
        reading.clear()
        assert run.outcome(path) == cold
        assert reading == []


def test_files_under_others_names_are_not_believed(path: Path, users: Cache) -> None:
    cold = PLAIN.outcome(path)
    first, *others = kept(users)
    for file in others:
        for data in (first.read_bytes(), first.read_bytes().replace(first.stem.encode(), file.stem.encode())):
            file.write_bytes(data)
            assert PLAIN.outcome(path) == cold
            assert file.read_bytes() != data


def test_facts_that_cannot_be_are_not_believed(path: Path, users: Cache) -> None:
    """Sound files, in which one of the facts is missing, or no such fact at all."""
    run = Run({"dims": SPECIFIED}, {"residuals": "bf16"})
    cold = run.outcome(path)
    for file in kept(users):
        for kind in ("model", "graph", "specs", "names"):
            if not _is(kind, users, file):
                continue
            arrays, facts = unpack(kind, users.get(file.stem) or b"")
            for name in facts:
                for wrong in ({**facts, name: 7}, {other: fact for other, fact in facts.items() if other != name}):
                    users.put(file.stem, poisoned := pack(kind, arrays, wrong))
                    assert run.outcome(path) == cold
                    assert users.get(file.stem) != poisoned, name


def _is(kind: str, users: Cache, file: Path) -> bool:
    try:
        unpack(kind, users.get(file.stem) or b"")
    except GlowtrainError:
        return False
    return True
