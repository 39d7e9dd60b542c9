"""Calibration: what is observed, and the file that keeps it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.data import Dataset
from glowtrain.errors import QuantizationError
from glowtrain.graph import Template, Value
from glowtrain.quantization import Profile, Recipe, calibrate, folded, prepare
from glowtrain.types import Array, f32
from tests.quantization.models import images, mobile, state_of


@gt.model(x=f32["batch", 4])
def doubled(x: Value) -> Value:
    return gt.nn.relu(x * x)


@pytest.fixture(scope="module")
def model() -> Template:
    return mobile()


@pytest.fixture(scope="module")
def profile(model: Template) -> Profile:
    return calibrate(model, images(20), state=state_of(model), batch_size=8, bins=64)


def values(model: Template, x: Array) -> dict[str, Array]:
    """What the interpreter computes, by the names of the folded graph."""
    graph = folded(model.bind({"batch": len(x)}), state_of(model))
    computed = {value.name: value for node in graph.nodes for value in node.outputs if value.dtype == f32}
    return gt.compile(graph.with_(outputs=computed), "interpreter")({"x": x}) | {"x": x}


def test_ranges_and_counts_are_those_of_the_values(model: Template, profile: Profile) -> None:
    found = values(model, images(20))
    assert set(profile) <= set(found)
    assert {"x", "scores", "stem.norm", "Add", "GlobalAveragePool"} <= set(profile)
    assert (profile.examples, profile.model) == (20, "mobile")
    for name in profile:
        observed = profile[name]
        assert observed.low == pytest.approx(found[name].min(), abs=1e-5)
        assert observed.high == pytest.approx(found[name].max(), abs=1e-5)
        assert (observed.elements, observed.batches, observed.nonfinite) == (found[name].size, 3, 0)


def test_histograms_count_every_element_once(model: Template, profile: Profile) -> None:
    found = values(model, images(20))
    for name in profile:
        histogram = profile[name].required_histogram()
        assert histogram.counts.sum() == found[name].size
        expected, _ = np.histogram(found[name], histogram.edges)
        assert np.abs(expected - histogram.counts).sum() <= 0.02 * found[name].size  # an ulp at the edge of a bin


def test_moving_averages() -> None:
    data = [{"x": np.full((2, 4), level, np.float32)} for level in (1.0, 2.0, 4.0)]
    profile = calibrate(doubled, data, histograms=False, momentum=0.5)
    found = profile["output"]
    assert found.average_high == pytest.approx(0.5 * (0.5 * 1 + 0.5 * 4) + 0.5 * 16)
    assert (found.low, found.high) == (1.0, 16.0)


def test_forms_of_data_give_the_same() -> None:
    x = np.linspace(-1, 3, 32, dtype=np.float32).reshape(8, 4)
    given = [x, {"x": x}, Dataset("rows", {"x": x, "y": np.zeros(8)}), [x[:4], {"x": x[4:]}], iter([{"x": x}])]
    found = [calibrate(doubled, data, histograms=False) for data in given]
    for other in found[1:]:
        assert not found[0].differences(other, 1e-6)


def test_a_graph_of_one_batch_size_takes_whole_batches_only(model: Template) -> None:
    graph = model.bind({"batch": 3})
    assert calibrate(graph, images(8), histograms=False).examples == 6
    with pytest.raises(QuantizationError, match="batches of exactly 3"):
        calibrate(graph, images(2))


def test_the_limit_of_examples(model: Template) -> None:
    assert calibrate(model, images(20), histograms=False, examples=5).examples == 5


def test_the_file_is_the_profile(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile.save(path)
    again = Profile.load(path)
    assert (again.model, again.examples, list(again)) == (profile.model, profile.examples, list(profile))
    for name in profile:
        assert again[name].to_json() == profile[name].to_json()
    assert json.loads(path.read_text())["values"]["x"]["elements"] == 20 * 3 * 8 * 8


@pytest.mark.exhaustive
def test_differences(model: Template, profile: Profile) -> None:
    assert profile.differences(profile) == []
    other = calibrate(model, 2 * images(20), state=state_of(model), histograms=False)
    first = profile.differences(other)[0]
    assert first.change > 0.5
    assert "x" in {difference.name for difference in profile.differences(other)}
    assert [d.name for d in profile.differences(Profile({}))] != []


@pytest.mark.exhaustive
def test_state_decides(model: Template, profile: Profile) -> None:
    """Running statistics are those of the given state, and do not move while a model is observed."""
    state = state_of(model)
    exact = gt.compile(model.map(lambda graph: folded(graph, state)))({"x": images(20)})["scores"]
    assert profile["scores"].high == pytest.approx(exact.max(), abs=1e-6)
    assert profile.differences(calibrate(model, images(20), histograms=False))


class TestBadInput:
    def test_no_data(self, model: Template) -> None:
        for nothing in ([], iter(()), images(0)):
            with pytest.raises(QuantizationError, match="there are no calibration data"):
                calibrate(model, nothing)

    def test_data_of_no_form(self, model: Template) -> None:
        with pytest.raises(QuantizationError, match="calibration data are arrays by input name.*not int"):
            calibrate(model, 3)
        with pytest.raises(QuantizationError, match="no array for the input 'x'; they have image"):
            calibrate(model, {"image": images(2)})

    def test_arrays_of_different_lengths(self) -> None:
        @gt.model(x=f32["batch", 2], y=f32["batch", 2])
        def joined(x: Value, y: Value) -> Value:
            return x + y

        with pytest.raises(QuantizationError, match="different numbers of examples: x .*, y "):
            calibrate(joined, {"x": np.zeros((3, 2), np.float32), "y": np.zeros((2, 2), np.float32)})
        with pytest.raises(QuantizationError, match="the model has the inputs x, y: give arrays by name"):
            calibrate(joined, np.zeros((3, 2), np.float32))

    def test_nothing_to_quantize(self) -> None:
        @gt.model(x=f32["batch", 2])
        def roots(x: Value) -> Value:
            return x - 1.0

        with pytest.raises(QuantizationError, match="roots has nothing to quantize"):
            calibrate(roots, np.ones((3, 2), np.float32))

    def test_settings(self, model: Template) -> None:
        for settings in ({"bins": 1}, {"momentum": 1.0}):
            with pytest.raises(QuantizationError, match="bins is at least 2 and momentum"):
                calibrate(model, images(2), **settings)  # type: ignore[arg-type]

    @pytest.mark.exhaustive
    def test_data_that_are_not_finite(self, model: Template) -> None:
        x = images(4)
        x[1, 0, 0, 0] = np.nan
        x[2, 0, 0, :2] = np.inf
        found = calibrate(model, x)
        assert found["x"].nonfinite == 3
        with pytest.raises(QuantizationError, match="x: 3 of 768 observed elements are NaN or infinite"):
            prepare(model.bind({"batch": 4}), found)

    def test_another_model(self, model: Template) -> None:
        foreign = calibrate(doubled, np.ones((4, 4), np.float32))
        with pytest.raises(QuantizationError, match="the profile of doubled does not know '.*'; it has .*Calibrate"):
            prepare(model.bind({"batch": 2}), foreign, Recipe())

    @pytest.mark.exhaustive
    def test_files_that_are_no_profile(self, profile: Profile, tmp_path: Path) -> None:
        path = tmp_path / "broken.json"
        with pytest.raises(QuantizationError, match=r"cannot read the profile .*broken.json: No such file"):
            Profile.load(path)
        path.write_text("{")
        with pytest.raises(QuantizationError, match="it is not JSON"):
            Profile.load(path)
        path.write_text('{"format": "something"}')
        with pytest.raises(QuantizationError, match="is not a profile of version 1"):
            Profile.load(path)
        profile.save(path)
        plain = json.loads(path.read_text())
        for damage in ({"x": {}}, {"x": {**plain["values"]["x"], "low": "a"}}, [1]):
            path.write_text(json.dumps({**plain, "values": damage}))
            with pytest.raises(QuantizationError, match="is a broken profile"):
                Profile.load(path)
        with pytest.raises(QuantizationError, match="cannot write the profile"):
            profile.save(tmp_path / "no" / "such" / "folder.json")
