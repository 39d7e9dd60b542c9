"""What makes a step compile again and again is said once, with what to do; and that it compiles, on a terminal."""

from __future__ import annotations

import io
import re
import sys
import time
import warnings
from collections.abc import Iterator

import pytest
import torch
from steps import compiled
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import glowtrain.torch as gtt
from glowtrain.torch.steps import progress
from glowtrain.torch.steps.recompilations import MANY


def rows(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(count, 6), torch.zeros(count, 3)


def said_of(step: gtt.CompiledStep, batches: Iterator[tuple[torch.Tensor, ...]]) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for batch in batches:
            step(*batch)
    assert all(each.filename == __file__ for each in said)
    return [str(each.message) for each in said if each.category is gtt.RecompilationWarning]


def test_many_sizes_of_batches_are_named_once() -> None:
    step = compiled(nn.Linear(6, 3), mse_loss, backend="interpreter")
    assert said_of(step, map(rows, range(1, MANY))) == []
    (said,) = said_of(step, map(rows, range(1, 12)))
    assert "axis 0 of argument 0 had 1, 2, 3, 4, ...; axis 0 of argument 1 had 1, 2, 3, 4, ...." in said
    assert "DataLoader(drop_last=True)" in said
    assert "lengths=" not in said


def test_many_lengths_of_sequences_are_named_with_what_pads_them() -> None:
    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
            return self.layer(inputs["x"]).transpose(1, 2) * inputs["scale"]

    step = compiled(Tagger(), backend="interpreter")
    batches = ({"x": torch.zeros(2, n, 6), "scale": torch.ones(())} for n in range(1, 10))
    (said,) = said_of(step, ((x, torch.zeros(2, x["x"].shape[1], dtype=torch.long)) for x in batches))
    assert "axis 1 of argument 0['x'] had 1, 2, 3, 4, ...; axis 1 of argument 1 had" in said
    assert "collate_fn=glowtrain.torch.PadCollate(lengths=..., values=...)" in said
    assert "drop_last" not in said


def test_modes_are_no_shapes() -> None:
    """Each shape counts once, in whichever mode, and those of other arguments for themselves."""
    module = nn.Linear(6, 3)
    step = compiled(module, mse_loss, backend="interpreter")
    for mode in (True, False):
        module.train(mode)
        assert said_of(step, map(rows, range(1, MANY))) == []


def test_numbers_are_named() -> None:
    def scaled(scores: torch.Tensor, target: torch.Tensor, factors: dict[str, float], flag: bool) -> torch.Tensor:
        return cross_entropy(scores, target) * factors["a"] * factors["b"] + flag

    step = compiled(nn.Linear(6, 3), scaled, targets=3, backend="interpreter")
    x, y = torch.zeros(4, 6), torch.zeros(4, dtype=torch.long)
    calls = ((x, y, {"a": 1.0, "b": 0.5 * number}, number > 1) for number in range(4))
    (said,) = said_of(step, calls)
    assert said.startswith("argument 2['b'] of the step, a number, had 3 values, the last one 1.0")
    assert "pass torch.tensor(value)" in said


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_terminal_shows_what_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    step = compiled(nn.Linear(6, 3), mse_loss)
    step(*rows(4))
    first = stream.getvalue()
    step(*rows(4))
    assert stream.getvalue() == first
    step(*rows(5))
    assert sys.stderr is stream
    shown = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", stream.getvalue())
    assert "compiling step 1 of Linear, for (f32[4,6], f32[4,3])" in shown
    assert "compiling step 2 of Linear, for (f32[5,6], f32[5,3])" in shown
    assert stream.getvalue().endswith("\x1b[2K")  # the line is cleared


@pytest.mark.usefixtures("impatient")
def test_files_and_pipes_show_nothing(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    compiled(nn.Linear(6, 3), mse_loss)(*rows(4))
    assert capfd.readouterr() == ("", "")


def test_what_is_quick_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with progress.spinner("compiling"):
        time.sleep(0.05)
    assert stream.getvalue() == ""


def test_an_error_ends_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)

    def fail() -> None:
        time.sleep(0.2)
        raise KeyError

    with pytest.raises(KeyError), progress.spinner("compiling"):
        fail()
    shown = stream.getvalue()
    time.sleep(0.2)
    assert stream.getvalue() == shown
