"""What a run prints on its way."""

from __future__ import annotations

import io
import re
import warnings

import pytest

import glowtrain as gt
from tests.training.trainers import Points, trainer_of

LINES = re.compile(r"epoch 1/2  loss \d\.\d{4}  [\d.]+ s  [\d,]+ examples/s\nepoch 2/2  loss .*\n")


def test_a_line_for_each_epoch_without_a_terminal(
    mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_of(mlp).fit(points, 2, 8)
    printed = capsys.readouterr()
    assert LINES.fullmatch(printed.err)
    assert printed.out == ""


def test_a_stream_of_ones_own(mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    trainer_of(mlp).fit(points, 2, 8, progress=stream)
    assert LINES.fullmatch(stream.getvalue())
    assert capsys.readouterr() == ("", "")


def test_silence(mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]) -> None:
    trainer_of(mlp).fit(points, 2, 8, progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("progress", [None, True])
def test_a_notebook_needs_no_other_package(
    progress: bool | None,
    mlp: gt.Template,
    points: Points,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer_of(mlp).fit(points, 2, 8, progress=progress)
    assert LINES.fullmatch(capsys.readouterr().out)
