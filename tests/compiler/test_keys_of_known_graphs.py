"""What decides whether a kept graph is the one that is wanted: files, settings, options, versions, whose code it is."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

import glowtrain as gt
from glowtrain.backends.cache.folder import Cache
from glowtrain.errors import ModelError
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
from tests.compiler.known_models import BATCH, PLAIN, SPECIFIED, Run


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


@pytest.mark.parametrize("what", ["sources", "tools", "byte order", "onnx"])
def test_other_sources_and_versions_know_nothing(
    what: str, path: Path, users: Cache, reading: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cold = PLAIN.outcome(path)
    reading.clear()
    if what == "sources":
        monkeypatch.setattr(origins, "sources", lambda: "others")
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


# --- what is somebody else's -----------------------------------------------------------------------------------------


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
