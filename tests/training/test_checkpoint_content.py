"""What is in a checkpoint: another model's is refused, and one that was damaged or made up, without a trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

import glowtrain as gt
from glowtrain.errors import CheckpointError
from tests.training.trainers import Points, trainer_of


def scaled(factor: float, power: float = 1.0, drop: float = 0.5, *, first: str = "relu") -> gt.Template:
    """Two layers with constants and attributes between them."""

    @gt.model(x=gt.f32["batch", 6])
    def net(x: gt.Value) -> gt.Value:
        hidden = gt.nn.linear(x, 8, name="first")
        hidden = gt.nn.relu(hidden * np.full(8, factor, np.float32)) if first == "relu" else gt.nn.relu(hidden) * factor
        return gt.nn.linear(gt.nn.dropout(hidden, drop), 3, name="second") * power

    return net


class Halving(gt.optim.SGD):
    """SGD with a factor of its own."""

    factor = 0.5

    def rule(self, p: gt.Value, g: gt.Value, slots: Any, h: Any) -> Any:
        return super().rule(p, g * self.factor, slots, h)


class Doubling(Halving):
    """The same under the same name, with another factor."""

    factor = 2.0
    name = "halving"  # type: ignore[assignment]


def loss_of(weight: float) -> gt.losses.Loss:
    def weighted(out: Any, inp: Any) -> gt.Value:
        return gt.nn.mean((out["output"] - inp["t"]) ** 2.0) * weight

    return gt.losses.custom(weighted, t=gt.f32["batch", 3])


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (scaled(3.0), {}, "structure of the model differs"),
        (scaled(2.0, 2.0), {}, "structure of the model differs"),
        (scaled(2.0, drop=0.25), {}, "structure of the model differs"),
        (scaled(2.0, first="after"), {}, "structure of the model differs"),
        (scaled(2.0), {"loss": loss_of(2.0)}, "structure of the loss differs"),
        (scaled(2.0), {"optimizer": Doubling()}, "structure of the optimizer differs"),
        (scaled(2.0), {"optimizer": Halving(no_decay=("*.bias",))}, "structure of the optimizer differs"),
    ],
    ids=["constant", "last constant", "ratio", "order", "loss", "rule", "no_decay"],
)
def test_a_checkpoint_of_another_model_is_refused(
    model: gt.Template, settings: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    shared: dict[str, Any] = {"loss": loss_of(1.0), "optimizer": Halving()}
    trainer_of(scaled(2.0), **shared).save(path)
    trainer_of(scaled(2.0), **shared).restore(path)
    other = trainer_of(model, **{**shared, **settings})
    with pytest.raises(CheckpointError, match=message) as caught:
        other.restore(path)
    assert str(caught.value).count("structure of") == 1


@pytest.mark.parametrize("first", [2, 5])
def test_how_a_graph_was_bound_does_not_matter(mlp: gt.Template, tmp_path: Path, first: int) -> None:
    path = tmp_path / "run.safetensors"
    trainer_of(mlp.bind({"batch": first})).save(path)
    trainer_of(mlp.bind({"batch": 3})).restore(path)
    trainer_of(mlp).restore(path)


def test_a_loss_of_fixed_extents_has_checkpoints_too(mlp: gt.Template, tmp_path: Path) -> None:
    loss = gt.losses.custom(lambda out, inp: gt.nn.mean((out["output"] - inp["t"]) ** 2.0), t=gt.f32[7, 3])
    trainer_of(mlp.bind({"batch": 7}), loss=loss).save(tmp_path / "run.safetensors")
    trainer_of(mlp.bind({"batch": 7}), loss=loss).restore(tmp_path / "run.safetensors")


def test_flipped_bits_are_found(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path, trainer = tmp_path / "run.safetensors", trainer_of(mlp)
    trainer.fit(points, 2, 8, validation=points, patience=2, restore_best=True, checkpoint=path)
    whole, before = path.read_bytes(), trainer.variables()
    header = 8 + int.from_bytes(whole[:8], "little")
    rng = np.random.default_rng(11)
    inside = rng.integers(header, len(whole), 40)
    for index, bit in zip([*inside, *rng.integers(8, header, 40)], rng.integers(0, 8, 80), strict=True):
        damaged = bytearray(whole)
        damaged[index] ^= 1 << int(bit)
        path.write_bytes(damaged)
        if index < header and bytes(damaged[8:header]).split() == whole[8:header].split():
            continue  # in the header's padding
        with pytest.raises(CheckpointError):
            trainer.restore(path)
    assert all(array.tobytes() == before[name].tobytes() for name, array in trainer.variables().items())
    path.write_bytes(whole)
    trainer.restore(path)


def edited(path: Path, change: Callable[[dict[str, Any]], None], arrays: dict[str, Any] | None = None) -> None:
    """A checkpoint with other metadata, as one without a checksum."""
    with safe_open(path, framework="numpy") as file:
        about = json.loads(file.metadata()["glowtrain"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    about["format"] = 1
    del about["sha256"]
    about["fingerprint"] = {what: text for what, text in about["fingerprint"].items() if "structure" not in what}
    change(about)
    save_file({**tensors, **(arrays or {})}, path, {"glowtrain": json.dumps(about)})


def test_files_of_the_first_format_are_read(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path, trainer = tmp_path / "run.safetensors", trainer_of(mlp)
    trainer.fit(points, 2, 8, checkpoint=path)
    edited(path, lambda about: None)
    old = trainer_of(mlp)
    old.restore(path)
    assert old.history.deterministic() == trainer.history.deterministic()
    assert all(array.tobytes() == old.variables()[name].tobytes() for name, array in trainer.variables().items())
    with pytest.raises(CheckpointError, match="optimizer differs"):
        trainer_of(mlp, optimizer=Halving()).restore(path)


WRONG: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no position": (lambda about: about.pop("position"), "position must be"),
    "position is a list": (lambda about: about.update(position=[1]), "position must be"),
    "unknown count": (lambda about: about["position"].update(places=1), "position must be"),
    "epoch is text": (lambda about: about["position"].update(epoch="1"), "position must be"),
    "epoch is negative": (lambda about: about["position"].update(epoch=-1), "position must be"),
    "batch is true": (lambda about: about["position"].update(batch=True), "position must be"),
    "loss_sum is nan": (lambda about: about["position"].update(loss_sum=float("nan")), "position must be"),
    "mass is nan": (lambda about: about["position"].update(mass=float("nan")), "position must be"),
    "mass is text": (lambda about: about["position"].update(mass="1"), "position must be"),
    "metric_sums is a list": (lambda about: about["position"].update(metric_sums=[]), "position must be"),
    "a metric's sum is text": (lambda about: about["position"].update(metric_sums={"a": ""}), "position must be"),
    "seed is text": (lambda about: about.update(seed="0"), "seed must be a whole number"),
    "fingerprint is a list": (lambda about: about.update(fingerprint=["model"]), "fingerprint must be"),
    "hyper is a list": (lambda about: about.update(hyper=[]), "hyper must be numbers"),
    "lr is text": (lambda about: about["hyper"].update(lr="x"), "hyper must be numbers"),
    "lr is beyond floats": (lambda about: about["hyper"].update(lr=10**400), "hyper must be numbers"),
    "lr is nan": (lambda about: about["hyper"].update(lr=float("nan")), "adam: lr must be a number"),
    "lr is negative": (lambda about: about["hyper"].update(lr=-1.0), "adam: lr must be a number"),
    "history is a number": (lambda about: about.update(history=3), "history must be records"),
    "a record is a number": (lambda about: about.update(history=[3]), "history must be records"),
    "a loss is text": (lambda about: about["history"][0].update(loss="low"), "history must be records"),
    "no loss": (lambda about: about["history"][0].pop("loss"), "history must be records"),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize(("change", "message"), WRONG.values(), ids=list(WRONG))
def test_wrong_metadata_leave_the_trainer_as_it_was(
    mlp: gt.Template, points: Points, tmp_path: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    path = tmp_path / "run.safetensors"
    trainer_of(mlp).fit(points, 2, 8, checkpoint=path)
    edited(path, change)
    trainer = trainer_of(mlp)
    trainer.fit(points, 1, 8)
    before, hyper, position = trainer.variables(), dict(trainer.hyper), trainer.position
    with pytest.raises(CheckpointError, match=message):
        trainer.restore(path)
    assert all(array.tobytes() == before[name].tobytes() for name, array in trainer.variables().items())
    assert (dict(trainer.hyper), trainer.position, len(trainer.history)) == (hyper, position, 1)


def test_best_parameters_of_other_types_are_refused(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    path, trainer = tmp_path / "run.safetensors", trainer_of(mlp)
    trainer.fit(points, 1, 8, checkpoint=path)
    for arrays, message in (
        ({"best:first.bias": np.zeros(3, np.float32)}, r"best variable 'first\.bias' is f32\[3\]"),
        ({"best:third": np.zeros(3, np.float32)}, "best variables in the checkpoint, but not here: third"),
    ):
        trainer.save(path)
        edited(path, lambda about: None, arrays)
        with pytest.raises(CheckpointError, match=message):
            trainer.restore(path)


def test_metadata_nested_too_deeply_are_refused(mlp: gt.Template, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save_file({"w": np.zeros(3, np.float32)}, path, {"glowtrain": "[" * 100_000 + "]" * 100_000})
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        trainer_of(mlp).restore(path)


def test_a_pipe_is_no_checkpoint_to_go_on_from(mlp: gt.Template, points: Points, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    try:
        with pytest.raises(CheckpointError, match="not a regular file"):
            trainer_of(mlp).fit(points, 1, 8, checkpoint=pipe, resume=True)
    finally:
        os.close(writer)


def test_every_optimizer_has_a_fingerprint(mlp: gt.Template) -> None:
    rules = gt.optim.OPTIMIZERS.values()
    found = {trainer_of(mlp, optimizer=rule())._fingerprint["structure of the optimizer"] for rule in rules}
    assert len(found) == len(rules)
