"""Records of settings: signatures, documentation and the command line follow from their fields."""

from __future__ import annotations

import copy
import inspect
import pickle
from dataclasses import dataclass, replace
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain import nn
from glowtrain.bundles.writing import BundleSpec
from glowtrain.cli import app
from glowtrain.cli.terminal.console import command
from glowtrain.cli.terminal.records import From, Given
from glowtrain.errors import InputError
from glowtrain.graph import Value
from glowtrain.memory.resources import Resources
from glowtrain.settings import changed, documentation, setting, settings_of, takes, values_of
from glowtrain.trainer.settings import TrainingSettings, TrainingSpec
from glowtrain.types import f32

DOORS = {"compile": gt.compile, "Trainer": gt.Trainer, "bundle": gt.bundle, "bundle_size": gt.bundle_size}


@nn.model(x=f32["batch", 4])
def linear(x: Value) -> Value:
    return nn.linear(x, 3)


def arguments(function: Any) -> set[str]:
    return set(inspect.signature(function).parameters)


@dataclass(frozen=True, kw_only=True)
class Noisy(TrainingSettings):
    """A setting more."""

    gradient_noise: float = setting(0.0, "Noise that is added to gradients.", "Normal.", metavar="S", least=0)


def test_a_setting_is_one_field() -> None:
    """It is an argument, a line of documentation, an option of the command line, and a value that the command gets."""

    @takes(Noisy)
    def train(spec: Noisy) -> float:
        """Train."""
        return spec.gradient_noise

    assert train(gradient_noise=0.5, threads=2) == 0.5
    assert inspect.signature(train).parameters["gradient_noise"].default == 0.0
    assert "``gradient_noise``: Noise that is added to gradients. Normal." in (train.__doc__ or "")

    met = []

    @command
    def noisy(settings: Annotated[Given, From(Noisy)], extra: int = 0) -> None:
        """Train."""
        met.append((Noisy(**settings), extra))

    line = typer.Typer()
    line.command()(noisy)
    result = CliRunner().invoke(line, ["--gradient-noise", "0.25", "--extra", "3", "--micro-batches", "2"])
    assert result.exit_code == 0, result.output
    assert met == [(Noisy(gradient_noise=0.25, micro_batches=2), 3)]
    assert CliRunner().invoke(line, ["--gradient-noise", "-1"]).exit_code == 2
    assert "Noise that is added" in CliRunner().invoke(line, ["--help"]).output


@pytest.mark.parametrize("door", [DOORS["Trainer"], DOORS["bundle"], DOORS["bundle_size"]])
def test_whatever_trains_takes_every_setting_of_training(door: Any) -> None:
    assert {field.name for field, _ in settings_of(TrainingSettings)} <= arguments(door)


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_whatever_is_compiled_takes_the_resources_and_says_so(door: Any) -> None:
    text = door.__init__.__doc__ if inspect.isclass(door) else door.__doc__
    for field, each in settings_of(Resources):
        assert field.name in arguments(door)
        assert f"``{field.name}``:" in text, each.help


@pytest.mark.parametrize("name", ["train", "bundle", "size", "inspect", "profile", "verify"])
def test_commands_have_the_settings_of_training(name: str) -> None:
    """But for what they have otherwise: the seed of inputs, threads of the ladder; metrics are of whole data sets."""
    options = {option for each in _command(name).params for option in each.opts}
    for field, each in settings_of(TrainingSettings):
        no_data = field.name == "metrics" and name != "train"
        if each.listed and not no_data and (name, field.name) != ("verify", "threads"):
            assert (each.flag or f"--{field.name.replace('_', '-')}") in options


def _command(name: str) -> Any:
    group: Any = typer.main.get_command(app)
    return group.commands[name]


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS)
def test_unknown_arguments_have_a_nearest_one(door: Any) -> None:
    with pytest.raises(TypeError, match=r"takes no argument 'memroy' \(the nearest is 'memory'\)"):
        door(linear, memroy="small")


def test_missing_arguments_name_the_function_and_not_its_record() -> None:
    with pytest.raises(TypeError, match=r"Trainer\(\): missing a required argument: 'loss'"):
        gt.Trainer(linear)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"compile\(\): multiple values for argument 'backend'"):
        gt.compile(linear, "cpu", backend="cpu")  # type: ignore[misc]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"memory": "lots"}, "memory 'lots'"),
        ({"residuals": "f8"}, "residuals 'f8'"),
        ({"micro_batches": 0}, "micro_batches must be a whole number"),
        ({"metrics": "auc"}, r"metrics must be True, False or a list such as .*, not 'auc' \(str\)"),
        ({"metrics": ["f1", "acc"]}, r"there is no metric 'acc' \(the nearest is 'accuracy'\)"),
    ],
)
def test_a_record_is_checked_where_it_is_made(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TrainingSettings(**wrong)


def test_a_record_is_a_value() -> None:
    spec = TrainingSpec(linear, "mse", gt.optim.SGD(0.1), memory="64MB", trainable=("linear.*",))
    assert TrainingSpec(**values_of(spec)) == spec
    assert hash(replace(spec, seed=1)) != hash(spec)
    assert changed(spec, TrainingSettings) == ["memory", "trainable"]
    assert changed(spec, Resources) == ["memory"]


def test_copies_of_trainers_have_all_settings() -> None:
    given = {"memory": "keep", "residuals": "bf16", "micro_batches": 2, "seed": 3, "freeze_statistics": True}
    trainer = gt.Trainer(linear, "mse", gt.optim.SGD(0.1), **given)  # type: ignore[arg-type]
    for twin in (copy.deepcopy(trainer), pickle.loads(pickle.dumps(trainer))):
        assert {name: getattr(twin.spec, name) for name in given} == given


def test_every_setting_of_a_bundle_is_described() -> None:
    described = {field.name for field, _ in settings_of(BundleSpec)}
    assert arguments(gt.bundle) - described == {"model", "out"}
    assert documentation(BundleSpec).count("``: ") == len(described)
