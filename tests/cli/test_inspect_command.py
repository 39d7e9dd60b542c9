"""glowtrain inspect prints every stage of a model, and glowtrain verify climbs them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.cli.commands import done, refused


@pytest.mark.spread(3)
@pytest.mark.parametrize(
    ("stage", "expected"),
    [
        ("summary", r"535,818 parameters"),
        ("graph", r"graph mlp\.step\("),
        ("optimized", r"<- %"),
        ("lowered", r"kernel gemm:"),
        ("program", r"kernel gemm\+"),
        ("plan", r"arena [\d,]+ bytes, peak [\d,]+ bytes\n; overhead 1\.0"),
        ("lifetimes", r"^id,lower,upper,size\n(\S+,\d+,\d+,\d+\n)+$"),
        ("llvm", r"define void @step\(ptr"),
        ("asm", r"\bret"),
        ("memory", r"the peak: .* are alive at kernel \d+ of \d+"),
    ],
)
def test_inspect_prints_every_stage(stage: str, expected: str) -> None:
    assert re.search(expected, done("inspect", "mlp", "--train", "--dims", "batch=8", "--stage", stage))


def test_inspect_a_file(trained: Path) -> None:
    said = done("inspect", trained)
    assert "hidden1.weight" in said
    assert "taking batch=64" in said


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("--memory", "small", "--residuals", "bf16"),
        ("--micro-batches", "2", "--memory", "keep"),
        ("--ema", "0.9", "--group", "*:lr_factor=0.5", "--regularize", "*:l2=1e-3", "--constrain", "*:max_norm=1"),
    ],
)
def test_verify_climbs_the_ladder(trained: Path, settings: tuple[str, ...]) -> None:
    said = done("verify", trained, "--train", "--optimizer", "sgd", "--momentum", "0.9", *settings)
    assert "compiled" in said


def test_verify_says_that_a_budget_cannot_be_kept(trained: Path) -> None:
    balanced = ("--train", "--class-weight", "balanced")
    assert "balanced follows from labels, of which there are none" in refused("verify", trained, *balanced)
    assert "of memory are too few" in refused("verify", trained, "--train", "--memory", "1KB")
