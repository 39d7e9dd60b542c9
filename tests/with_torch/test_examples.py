"""The scripts of examples/torch, as they are and with their two lines: the same losses."""

from __future__ import annotations

import copy
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from eager import eager_step
from torch import nn

import glowtrain.torch

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "torch"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*.py"))


def followed(losses: list[tuple[float, float]]) -> Callable[..., Callable[..., torch.Tensor]]:
    """compile_step, whose steps a copy of the module follows by PyTorch; the losses of both."""
    real = glowtrain.torch.compile_step

    def compile_step(
        module: nn.Module, loss_fn: Any, optimizer: torch.optim.Optimizer, **options: Any
    ) -> Callable[..., torch.Tensor]:
        other, theirs = copy.deepcopy((module, optimizer))
        step = real(module, loss_fn, optimizer, **options)

        def both(*batch: torch.Tensor) -> torch.Tensor:
            for group, own in zip(theirs.param_groups, optimizer.param_groups, strict=True):
                group.update({name: value for name, value in own.items() if name != "params"})
            other.train(module.training)
            expected = eager_step(other, loss_fn, theirs, batch, **options)
            loss: torch.Tensor = step(*batch)
            losses.append((float(loss), float(expected)))
            return loss

        return both

    return compile_step


@pytest.mark.parametrize("name", SCRIPTS)
def test_fifty_steps_of_a_script_are_those_of_pytorch(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    losses: list[tuple[float, float]] = []
    monkeypatch.setattr(glowtrain.torch, "compile_step", followed(losses))
    monkeypatch.setattr("sys.argv", [name, "--quick"])
    runpy.run_path(str(FOLDER / name), run_name="__main__")
    assert len(losses) >= 50
    assert max(abs(ours - theirs) for ours, theirs in losses[:50]) < 1e-4
    assert losses[-1][0] < 0.8 * losses[0][0]
    assert "loss" in capsys.readouterr().out


def test_the_scripts_run_without_the_two_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", [SCRIPTS[0], "--quick", "--eager"])
    runpy.run_path(str(FOLDER / SCRIPTS[0]), run_name="__main__")
    assert "accuracy" in capsys.readouterr().out


@pytest.mark.parametrize("name", SCRIPTS)
def test_two_lines_make_the_difference(name: str) -> None:
    """Below the line that looks for --eager stand an import and the compiled step, and nothing else."""
    lines = (FOLDER / name).read_text(encoding="utf-8").splitlines()
    start = lines.index('if "--eager" not in sys.argv:')
    block = [line.strip() for line in lines[start + 1 : start + 5] if line.startswith("    ")]
    assert block[0] == "import glowtrain.torch"
    assert block[1].startswith("step = glowtrain.torch.compile_step(")
    assert len(block) == 2
