"""Profiles from files that do not fit: the file is named."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.errors import QuantizationError
from glowtrain.graph import Template, Value
from glowtrain.quantization import Profile, calibrate, prepare, quantize
from glowtrain.types import f32

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def model(*, wide: bool = False) -> Template:
    @gt.model(x=f32["batch", 4])
    def small(x: Value) -> Value:
        return nn.linear(nn.relu(nn.linear(x, 6 if wide else 5, name="first")), 3, name="second")

    return small


def written(path: Path, profile: Profile) -> Profile:
    profile.save(path)
    return Profile.load(path)


def test_of_another_model(tmp_path: Path) -> None:
    path = tmp_path / "wide.json"
    found = written(path, calibrate(model(wide=True), X))
    with pytest.raises(QuantizationError, match=f"the profile of small in {path} is of another model than small"):
        quantize(model(), X, profile=found)


def test_of_other_weights(tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    state = {"first.bias": np.ones(5, np.float32)}
    found = written(path, calibrate(model(), X, state=state))
    with pytest.raises(QuantizationError, match=f"the profile of small in {path} was taken with other weights"):
        quantize(model(), X, profile=found)


@pytest.mark.parametrize(
    ("names", "said"),
    [((), "does not know 'x'; it is empty. Calibrate"), (("Relu",), "does not know 'x'; it has Relu: was it made")],
)
def test_without_values(names: tuple[str, ...], said: str, tmp_path: Path) -> None:
    path, whole = tmp_path / "few.json", calibrate(model(), X)
    found = written(path, replace(whole, values={name: whole[name] for name in names}))
    for use in (lambda: quantize(model(), X, profile=found), lambda: prepare(model(), found).bind({"batch": 2})):
        with pytest.raises(QuantizationError, match=f"the profile of small in {path} {said}"):
            use()


def test_values_of_another_kind(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text('{"format": "glowtrain.profile", "version": 1, "model": "m", "examples": 1, "values": []}')
    with pytest.raises(QuantizationError, match=f"{path} is a broken profile: TypeError values must be an object"):
        Profile.load(path)


def test_one_that_was_not_read_from_a_file() -> None:
    with pytest.raises(QuantizationError, match="the profile of a model does not know 'x'; it is empty"):
        quantize(model(), X, profile=Profile())


def test_a_file_is_no_part_of_what_is_written(tmp_path: Path) -> None:
    first = written(tmp_path / "a.json", calibrate(model(), X))
    first.save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
