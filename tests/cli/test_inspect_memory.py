"""``glowtrain inspect --stage memory``: what it prints and draws, and what it refuses."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import glowtrain as gt
from glowtrain.cli import app
from glowtrain.cli.commands.inspect.stages import text_of
from glowtrain.compiler.walk import arrive
from glowtrain.program.parse import parse_plan
from glowtrain.program.text import arrays_of, plan_text
from glowtrain.stages import Options
from tests.compiler.networks import training_step

STAYS = "parameters", "optimizer", "other state", "arena"
COMMON = "mlp", "--train", "--dims", "batch=8", "--threads", "2"


def invoked(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


def done(*arguments: object) -> str:
    result = invoked(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def refused(*arguments: object, status: int = 1) -> str:
    result = invoked(*arguments)
    assert result.exit_code == status, result.output
    assert "Traceback" not in result.output
    return " ".join(result.stderr.replace("│", "").split())


def bytes_of(said: str, part: str) -> int:
    found = re.search(rf"^{part} +([\d,]+)\b", said, re.MULTILINE)
    assert found is not None, said
    return int(found[1].replace(",", ""))


def test_parts_add_up_and_the_peak_is_named() -> None:
    said = done(*COMMON, "--stage", "memory", "--optimizer", "adam")
    parts = ("parameters", "optimizer", "constants", "outputs", "arena")
    rest = bytes_of(said, "workspace") if "workspace" in said else 0
    assert bytes_of(said, "total") == rest + sum(bytes_of(said, part) for part in parts)
    assert bytes_of(said, "parameters") == 4 * 535_818
    assert bytes_of(said, "optimizer") == 2 * 4 * 535_818 + 8
    plan = done(*COMMON, "--stage", "plan")
    assert f"arena {bytes_of(said, 'arena'):,} bytes" in plan
    assert "the peak: " in said
    assert "made by" in said


@pytest.mark.exhaustive
def test_a_budget_decides_what_is_computed_again() -> None:
    step = "cnn", "--train", "--dims", "batch=64"
    kept, small = (done(*step, "--stage", "memory", "--memory", memory) for memory in ("keep", "80%"))
    assert "nothing is computed again (everything is kept)" in kept
    assert "computed again rather than kept: " in small
    assert "variables and arena are to take 80% of what they take with everything kept" in small
    whole, part = (sum(bytes_of(said, name) for name in STAYS) for said in (kept, small))
    assert part <= 0.8 * whole
    assert f"arena {bytes_of(small, 'arena'):,} bytes" in done(*step, "--stage", "plan", "--memory", "80%")
    assert f"arena {bytes_of(small, 'arena'):,} bytes" in done(*step, "--memory", "80%")


def test_a_model_alone_has_no_optimizer_and_no_gradients() -> None:
    said = done("mlp", "--dims", "batch=8", "--stage", "memory")
    assert bytes_of(said, "parameters") == 4 * 535_818
    assert "optimizer" not in said
    assert "gradients" not in said.replace("activations and gradients", "")


@pytest.mark.exhaustive
def test_a_plan_says_what_is_computed_again_and_still_parses() -> None:
    said = done("cnn", "--train", "--dims", "batch=64", "--stage", "plan")
    assert re.search(
        r"^; (computed again rather than kept: \d+ results?, |nothing is computed again)", said, re.MULTILINE
    )
    graph, _ = training_step()
    backend = gt.Cpu()
    given = Options(facts=backend.facts)
    plan = arrive(graph, given)
    commented = text_of(graph, "plan", backend, given)
    assert commented.startswith("; nothing is computed again (")
    assert plan_text(parse_plan(commented, arrays_of(plan.program))) == plan_text(plan)


@pytest.mark.spread(1)
@pytest.mark.parametrize("ending", [".html", ".png", ".svg"])
def test_pictures_are_written_and_named(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"memory{ending}"
    assert f"wrote {path}" in done(*COMMON, "--stage", "memory", "--plot", path)
    begins = {".html": b"<!doctype html>", ".png": b"\x89PNG", ".svg": b"<?xml"}
    assert path.read_bytes().startswith(begins[ending])


def test_mistakes_are_refused_before_anything_is_compiled(tmp_path: Path) -> None:
    memory = (*COMMON, "--stage", "memory", "--plot")
    assert "ends in one of .html, .png, .svg" in refused(*memory, tmp_path / "memory.pdf")
    assert "does not exist; create it first" in refused(*memory, tmp_path / "nowhere" / "memory.png")
    assert "--plot draws --stage memory, and nothing of plan" in refused(
        *COMMON, "--stage", "plan", "--plot", tmp_path / "memory.png", status=2
    )
    assert "memory 'much': say a positive number of bytes" in refused(*COMMON, "--memory", "much")
    assert "bytes of memory are too few" in refused(*COMMON, "--memory", "1KB")
    assert "there is no stage 'memori'" in refused(*COMMON, "--stage", "memori", status=2)
    assert os.listdir(tmp_path) == []


def test_a_backend_without_a_plan_says_so() -> None:
    said = refused("mlp", "--stage", "memory", "--backend", "interpreter")
    assert "backend interpreter has no planned memory; use backend cpu" in said


@pytest.mark.exhaustive
def test_parts_of_a_batch_are_named_where_a_budget_needs_them(tmp_path: Path) -> None:
    """And taken where they are asked for."""

    @gt.model(x=gt.f32["batch", 1, 8, 8])
    def pictures(x: gt.Value) -> gt.Value:
        for number in range(3):
            x = gt.nn.relu(gt.nn.conv(x, 8, 3, padding="same", name=f"conv{number}"))
        return gt.nn.linear(gt.nn.mean(x, [2, 3]), 4, name="scores")

    path = tmp_path / "pictures.onnx"
    gt.save(pictures, path)
    step = (path, "--train", "--dims", "batch=64", "--stage", "plan", "--memory", "200KB")
    said = refused(*step)
    found = re.search(r"micro_batches=(\d+) \(--micro-batches \1\) takes ([\d,]+)", said)
    assert found is not None, said
    assert int(found[2].replace(",", "")) <= 200 << 10
    assert f"repeat scan t<{found[1]} parts:" in done(*step, "--micro-batches", found[1])
    assert "--micro-batches: nothing is trained without --train" in refused(path, "--micro-batches", "4")
    assert "cannot be cut into 5 equal micro-batches" in refused(*step, "--micro-batches", "5")


@pytest.mark.exhaustive
def test_residuals_in_bf16_are_counted(tmp_path: Path) -> None:
    @gt.model(x=gt.f32["batch", 16])
    def deep(x: gt.Value) -> gt.Value:
        for number in range(4):
            x = x + gt.nn.linear(gt.nn.gelu(gt.nn.linear(x, 64, name=f"up{number}")), 16, name=f"down{number}")
        return gt.nn.linear(x, 4, name="scores")

    path = tmp_path / "deep.onnx"
    gt.save(deep, path)
    step = (path, "--train", "--dims", "batch=64", "--stage")
    line = r"rounded to bf16 until the backward pass: \d+ results, ([\d.]+) KiB in place of ([\d.]+) KiB"
    for stage in ("plan", "memory"):
        found = re.search(line, done(*step, stage, "--residuals", "bf16"))
        assert found is not None
        assert float(found[2]) == pytest.approx(2 * float(found[1]), rel=0.01)
        assert not re.search(line, done(*step, stage))
    assert "--residuals: nothing is trained without --train" in refused(path, "--residuals", "bf16")
    assert "residuals 'f16': say bf16" in refused(*step, "plan", "--residuals", "f16")
