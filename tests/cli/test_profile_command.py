"""``glowtrain profile``: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import glowtrain as gt
from glowtrain.cli import app

COMMON = "--threads", "2", "--runs", "2"


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


def done(*arguments: object) -> str:
    result = invoked(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object) -> str:
    result = invoked(*arguments)
    assert result.exit_code == 1, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.split())


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """A model in a file, for batches of 4."""
    x = gt.Input(gt.f32[4, 3], "x")
    weight = gt.Variable("head.weight", np.random.default_rng(8).normal(size=(3, 2)).astype(np.float32))
    gt.save(gt.Graph((x,), {"scores": x @ weight}), tmp_path / "fixed.onnx")
    return tmp_path / "fixed.onnx"


@pytest.mark.exhaustive
def test_kernels_layers_and_the_machine_are_printed() -> None:
    said = done("mlp", "--train", "--batch-size", 8, "--loss", "mse", "--optimizer", "sgd", "--momentum", 0.9, *COMMON)
    for shown in ("share", "Gop/s", "GB/s", "roof", "bound by", "busy", "hidden1", "hidden2", "scores", "gemm"):
        assert shown in said
    assert "between kernels" in said
    assert "a run without counters" in said
    assert "the fastest of 2 each, on 2 threads" in said
    assert "The machine on 2 threads: " in said
    assert "Gop/s of f32 arithmetic" in said


@pytest.mark.exhaustive
def test_what_is_profiled_follows_the_options(tmp_path: Path) -> None:
    found = {}
    for name, options in {"model": (), "step": ("--train",), "part": ("--train", "--trainable", "scores.*")}.items():
        done("mlp", "--dims", "batch=2", "--threads", 1, "--runs", 1, "--json", tmp_path / name, *options)
        found[name] = json.loads((tmp_path / name).read_text(encoding="utf-8"))
    assert found["model"]["threads"] == 1
    sizes = {name: len(report["kernels"]) for name, report in found.items()}
    assert sizes["model"] < sizes["part"] < sizes["step"]
    first = next(kernel for kernel in found["model"]["kernels"] if kernel["layers"] == ["hidden1"])
    assert first["operations_per_call"]["f32"] >= 2 * 2 * 784 * 512
    assert len(found["model"]["seconds_with_counters"]) == len(found["model"]["seconds_without_counters"]) == 1


@pytest.mark.exhaustive
def test_a_step_is_profiled_as_it_would_run_within_a_budget(tmp_path: Path) -> None:
    def kernels(*options: object) -> list[tuple[str, int]]:
        done("mlp", "--train", "--batch-size", 64, "--runs", 1, "--json", tmp_path / "json", *options)
        found = json.loads((tmp_path / "json").read_text(encoding="utf-8"))["kernels"]
        return [(kernel["name"], kernel["bytes_written_per_call"]) for kernel in found]

    kept, small = kernels("--memory", "keep"), kernels("--memory", "small")
    assert not [name for name, _ in kept if ".again" in name]
    assert [name for name, _ in small if ".again" in name]
    assert kernels("--micro-batches", 2) != kept != kernels("--memory", "keep", "--residuals", "bf16")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--train", "--memory", "1KB"), "alone take"),
        (("--train", "--memory", "some"), "memory"),
        (("--train", "--residuals", "f16"), "residuals 'f16': say bf16"),
        (("--train", "--micro-batches", "3"), "cannot be cut into 3 equal"),
    ],
)
def test_what_no_step_can_be_made_of_is_refused(options: tuple[str, ...], message: str) -> None:
    assert message in refused("mlp", "--batch-size", 4, *options)


@pytest.mark.parametrize("option", [("--residuals", "bf16"), ("--micro-batches", "2")])
def test_options_of_steps_need_a_step(option: tuple[str, str]) -> None:
    assert f"{option[0]}: nothing is trained without --train" in refused("mlp", *option)


@pytest.mark.exhaustive
def test_files_are_written_and_named(fixed: Path, tmp_path: Path) -> None:
    paths = {option: tmp_path / f"{option}.out" for option in ("html", "trace", "json")}
    given = [part for option, path in paths.items() for part in (f"--{option}", path)]
    said = done(fixed, *COMMON, *given)
    assert [f"wrote {path}" in said for path in paths.values()] == [True] * 3
    assert "Roofline" in paths["html"].read_text(encoding="utf-8")
    assert json.loads(paths["trace"].read_text(encoding="utf-8"))["traceEvents"]
    assert json.loads(paths["json"].read_text(encoding="utf-8"))["kernels"][0]["layers"] == ["head"]


@pytest.mark.parametrize("option", ["--html", "--trace", "--json"])
def test_files_that_cannot_be_written_are_refused_before_anything_runs(fixed: Path, option: str) -> None:
    others = [part for other in {"--html", "--trace", "--json"} - {option} for part in (other, fixed.parent / "out")]
    said = refused(fixed, option, fixed.parent / "nowhere" / "out", *others)
    assert "does not exist; create it first" in said
    assert os.listdir(fixed.parent) == ["fixed.onnx"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.onnx",), "nothing.onnx: no such file"),
        (("mlp", "--backend", "interpreter"), "runs no kernels whose times could be taken; use backend cpu"),
        (("mlp", "--backend", "evaluator", "--batch-size", 1), "takes no times of kernels; use backend cpu"),
        (("mlp", "--backend", "interpreter", "--threads", 2), "runs on one thread, not on 2"),
        (("mlp", "--train", "--optimizer", "none"), "there is no optimizer 'none'"),
    ],
)
def test_mistakes_end_in_one_message(arguments: tuple[object, ...], message: str) -> None:
    assert message in refused(*arguments)


@pytest.mark.exhaustive
def test_a_batch_that_a_model_is_not_bound_to_is_refused(fixed: Path) -> None:
    assert "--batch-size 8 is not what its inputs are bound to" in refused(fixed, "--batch-size", 8)
    assert "head" in done(fixed, "--batch-size", 4, *COMMON)
    assert "head" in done(fixed, "--batch-size", 8, "--open-batch", *COMMON)


def test_inspect_has_no_such_stage_any_more() -> None:
    result = CliRunner().invoke(app, ["inspect", "mlp", "--stage", "profile"])
    assert result.exit_code == 2
    assert "there is no stage 'profile'" in " ".join(result.stderr.replace("│", "").split())
