"""Profiles of other models, and calibration data that have no scale: messages say what is wrong, and what to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.errors import BindingError, InputError, QuantizationError
from glowtrain.graph import Value
from glowtrain.quantization import METHODS, Profile, Recipe, calibrate, prepare_training
from glowtrain.types import f32
from tests.quantization.models import chain, images, mobile, rows, state_of

TINY = np.float32(1e-44)


class TestProfiles:
    def test_another_model_with_the_same_names(self) -> None:
        profile = gt.quantize(chain(), rows()).profile
        with pytest.raises(QuantizationError) as error:
            gt.quantize(chain(9), rows(), profile=profile)
        said = str(error.value)
        assert "the profile of chain is of another model than chain: 'first' is made by Gemm(f32[4,8])" in said
        assert "there, by Gemm(f32[4,9])" in said
        assert "(and 1 more); calibrate this one" in said

    def test_another_operator(self) -> None:
        @gt.model(x=f32["batch", 4])
        def plain(x: Value) -> Value:
            return nn.relu(x * 2)

        @gt.model(x=f32["batch", 2, 4])
        def deeper(x: Value) -> Value:
            return nn.relu(x * 2)

        profile = calibrate(plain, rows())
        with pytest.raises(QuantizationError, match="'x' is made by an input of f32, rank 2 there, by .* rank 3 here"):
            gt.quantize(deeper, rows().reshape(8, 2, 4), profile=profile)

    def test_other_weights(self) -> None:
        profile = calibrate(chain(), rows())
        said = r"taken with other weights: those that make 'first' \(and 1 more\) differ from chain's; calibrate again"
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(chain(seed=1), rows(), profile=profile)

    @pytest.mark.exhaustive
    def test_other_weights_that_batch_normalization_folds(self) -> None:
        network = mobile()
        profile = calibrate(network, images(4), state=state_of(network))
        with pytest.raises(QuantizationError, match="taken with other weights"):
            gt.quantize(network, images(4), state=state_of(network, seed=2), profile=profile)

    @pytest.mark.exhaustive
    def test_the_same_model(self, tmp_path: Path) -> None:
        """Under any batch size, from a file, as a graph, saved and loaded, and after more training."""
        network = mobile()
        state = state_of(network)
        calibrate(network, images(4), state=state).save(tmp_path / "p.json")
        profile = Profile.load(tmp_path / "p.json")
        first = gt.quantize(network, images(3), state=state, profile=profile)
        gt.quantize(network.bind({"batch": 2}), images(2), state=state, profile=profile)
        gt.quantize(first.exact, images(4), profile=profile)
        prepare_training(network, profile, state=state_of(network, seed=2))

    def test_a_file_of_the_same_model(self, tmp_path: Path) -> None:
        gt.save(chain().bind({"batch": 2}), tmp_path / "net.onnx")
        for _ in range(2):
            profile = gt.quantize(gt.load(tmp_path / "net.onnx"), rows()).profile
            gt.quantize(gt.load(tmp_path / "net.onnx"), rows(), profile=profile)

    def test_an_old_file_says_nothing_of_the_model(self, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        calibrate(chain(), rows()).save(path)
        plain = json.loads(path.read_text())
        assert plain["values"]["first"]["made_by"] == "Gemm(f32[4,8]) of f32, rank 2"
        for entry in plain["values"].values():
            del entry["made_by"]
            entry.pop("weights", None)
        path.write_text(json.dumps(plain))
        gt.quantize(chain(seed=1), rows(), profile=Profile.load(path))

    @pytest.mark.spread(4)
    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            ({"low": float("nan")}, "low and high must be finite numbers in this order, not nan"),
            ({"high": float("inf")}, "low and high must be finite"),
            ({"low": 5, "high": -5}, "low and high must be finite numbers in this order, not 5 and -5"),
            ({"average_low": float("-inf")}, "average_low and average_high must be finite"),
            ({"elements": -3}, "elements must not be negative, as -3 is"),
            ({"low": 10**400}, "OverflowError"),
            ({"histogram": {"low": 0, "high": 1, "counts": [0, 0]}}, "not all be 0"),
            ({"histogram": {"low": 1, "high": 0, "counts": [1]}}, "low and high"),
        ],
    )
    def test_numbers_that_are_none(self, damage: dict[str, Any], said: str, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        calibrate(chain(), rows()).save(path)
        plain = json.loads(path.read_text())
        plain["values"]["x"] |= damage
        path.write_text(json.dumps(plain))
        with pytest.raises(QuantizationError, match=f"p.json is a broken profile: 'x': .*{said}"):
            Profile.load(path)


class TestData:
    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (rows(0), "there are no calibration data"),
            ([], "there are no calibration data"),
            ({}, "no array for the input 'x'; they have nothing"),
            ([{"x": rows()}, {"x": rows(0)}], r"batch 1 of the calibration data has no examples: x \[0, 4\]"),
            (np.float32(3), "x is one number, not an array of examples"),
            (None, "calibration data are arrays by input name.*not NoneType"),
        ],
    )
    def test_no_examples(self, data: Any, said: str) -> None:
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(chain(), data)

    @pytest.mark.parametrize("settings", [{"batch_size": 0}, {"batch_size": -2}, {"examples": 0}])
    def test_settings_that_leave_none(self, settings: dict[str, int]) -> None:
        ((name, value),) = settings.items()
        with pytest.raises(QuantizationError, match=f"at least one example: {name} is {value}"):
            gt.quantize(chain(), rows(), **settings)  # type: ignore[arg-type]

    def test_data_of_another_shape_or_type(self) -> None:
        with pytest.raises(BindingError, match=r"input x has shape \(8, 5\) but axis 1 is 4 \(f32\[batch,4\]\)"):
            gt.quantize(chain(), np.zeros((8, 5), np.float32))
        with pytest.raises(InputError, match=r"'x' must be f32\[16,4\], not float64"):
            gt.quantize(chain(), rows().astype(np.float64))


@pytest.mark.parametrize("method", METHODS)
class TestActivations:
    @pytest.mark.spread(1)
    def test_constant_ones(self, method: str) -> None:
        """All equal: the range reaches to 0. All zero: kept in float, and listed."""
        for value in (1.0, -3.0):
            found = gt.quantize(chain(), np.full((8, 4), value, np.float32), Recipe(method=method))
            assert not found.kept
            assert found.example.parameters["x"].scale == pytest.approx(abs(value) / 255, rel=1e-2)
        found = gt.quantize(chain(), np.zeros((8, 4), np.float32), Recipe(method=method))
        assert [(kept.name, kept.reason) for kept in found.kept] == [
            ("x", "only zeros were observed"),
            ("Relu", "only zeros were observed"),
        ]

    @pytest.mark.spread(4)
    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_none(self, method: str, bad: float) -> None:
        x = rows()
        x[3, 2] = bad
        said = r"x: 1 of 64 observed elements are NaN or infinite.*look at the calibration data, or keep what reads it"
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(chain(), x, Recipe(method=method))

    def test_overflow_inside(self, method: str) -> None:
        with pytest.raises(QuantizationError, match="Relu: .* observed elements are NaN or infinite"):
            gt.quantize(chain(), rows() / np.abs(rows()).max() * np.float32(3e38), Recipe(method=method))

    @pytest.mark.spread(1)
    def test_ranges_that_are_too_small(self, method: str) -> None:
        """Smaller than a scale in f32: named. A little larger: parts of the range have no scale, the whole one has."""
        said = r"x: the range \[0, 9.8\S*e-45\] is beyond what a scale in f32 can say; keep its readers in float"
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(chain(), np.full((8, 4), TINY), Recipe(method=method))
        found = gt.quantize(chain(), np.full((8, 4), 2e-35, np.float32), Recipe(method=method))
        assert found.example.parameters["x"].scale == pytest.approx(2e-35 / 255, rel=1e-2)


def test_histograms_of_tiny_ranges_count_every_element() -> None:
    x = np.full((8, 4), TINY)
    x[:, 0] = 0
    histogram = calibrate(chain(), x)["x"].required_histogram()
    assert histogram.counts.sum() == x.size
