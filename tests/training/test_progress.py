"""What a run prints on its way."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

import glowtrain as gt
from glowtrain.trainer.history import spacing
from tests.notebooks import outputs_of
from tests.training.trainers import Points, trainer_of

LINES = re.compile(r"epoch 1/2  loss \d\.\d{4}  [\d.]+ s  [\d,]+ examples/s\nepoch 2/2  loss .*\n")


def epochs_in(printed: str) -> list[int]:
    return [int(number) for number in re.findall(r"^epoch +(\d+)/", printed, re.MULTILINE)]


def test_a_line_for_each_of_few_epochs_without_a_terminal(
    mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_of(mlp).fit(points, 2, 8)
    printed = capsys.readouterr()
    assert LINES.fullmatch(printed.err)
    assert printed.out == ""


@pytest.mark.parametrize("progress", [None, True])
def test_few_lines_for_many_epochs_without_a_terminal(
    progress: bool | None, mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_of(mlp).fit(points, 95, 32, progress=progress)
    assert epochs_in(capsys.readouterr().err) == [1, *range(5, 95, 5), 95]


def test_the_last_epoch_has_a_line_wherever_training_ends(
    mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    def after_seven(moment: gt.callbacks.Moment) -> None:
        if moment.record is not None and moment.record["epoch"] == 7:
            moment.stop("enough")

    trainer_of(mlp).fit(points, 95, 32, callbacks=[after_seven])
    assert epochs_in(capsys.readouterr().err) == [1, 5, 7]


def test_the_last_epoch_has_its_line_before_what_is_said_of_an_interrupt(
    mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(moment: gt.callbacks.Moment) -> None:
        if moment.record is None and moment.epoch == 8:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer_of(mlp).fit(points, 95, 32, callbacks=[interrupt])
    printed = capsys.readouterr().err
    assert epochs_in(printed) == [1, 5, 7]
    assert printed.splitlines()[-1].startswith("interrupted in epoch 8 after batch 1")


def test_a_number_says_how_many_epochs_lie_between_lines(
    mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer_of(mlp).fit(points, 95, 32, progress=40)
    assert epochs_in(capsys.readouterr().err) == [40, 80, 95]
    trainer_of(mlp).fit(points, 50, 32, progress=1)
    assert epochs_in(capsys.readouterr().err) == [*range(1, 51)]


def test_a_stream_of_ones_own_gets_every_epoch(
    mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = io.StringIO()
    trainer_of(mlp).fit(points, 2, 8, progress=stream)
    assert LINES.fullmatch(stream.getvalue())
    trainer_of(mlp).fit(points, 50, 32, progress=stream)
    assert epochs_in(stream.getvalue()) == [1, 2, *range(1, 51)]
    assert capsys.readouterr() == ("", "")


def test_silence(mlp: gt.Template, points: Points, capsys: pytest.CaptureFixture[str]) -> None:
    trainer_of(mlp).fit(points, 2, 8, progress=False)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("epochs", [1, 20, 21, 40, 41, 100, 101, 1000, 12345, 10**6])
def test_no_more_than_twenty_epochs_are_listed(epochs: int) -> None:
    assert 8 <= max(epochs // spacing(epochs), 20 - epochs) <= 20


SETUP = """
import warnings
warnings.simplefilter("error")
import numpy as np
import glowtrain as gt

@gt.model(x=gt.f32["batch", 3])
def net(x):
    return gt.nn.linear(x, 2)

random = np.random.default_rng(0)
data = random.normal(size=(64, 3)).astype(np.float32), random.normal(size=(64, 2)).astype(np.float32)
trainer = gt.Trainer(net, "mse", gt.optim.SGD(lr=0.01))
"""


def test_a_notebook_shows_one_output_that_changes(tmp_path: Path) -> None:
    """In a real kernel: its output is no terminal, though it asks programs for colours."""
    setup, fitted, true, history, tenth, silent, interrupted = outputs_of(
        SETUP,
        "_ = trainer.fit(data, 300, 8)",
        "_ = trainer.fit(data, 5, 8, progress=True)",
        "trainer.history",
        "_ = trainer.fit(data, 20, 8, progress=10)",
        "_ = trainer.fit(data, 5, 8, progress=False)",
        "def stop(moment):\n    raise KeyboardInterrupt\n"
        "try:\n    trainer.fit(data, 5, 8, callbacks=[stop])\nexcept KeyboardInterrupt:\n    pass",
        folder=tmp_path,
    )
    assert setup == silent == []
    assert [output.output_type for output in (*fitted, *true)] == ["display_data"] * 2
    assert fitted[0].data["text/plain"].startswith("epoch 300/300  loss ")
    assert "\n" not in fitted[0].data["text/plain"]
    assert "<progress" not in fitted[0].data["text/html"]
    assert true[0].data["text/plain"].startswith("epoch 305/305  loss ")
    assert history[0].data["text/plain"].startswith("<History of 305 epochs; ")
    assert history[0].data["text/html"].count("<tr>") == 1 + 17
    assert epochs_in("".join(output.text for output in tenth)) == [310, 320, 325]
    assert "interrupted in epoch 331 after batch 1 of 8" in interrupted[0].data["text/plain"]


def test_an_output_changes_while_batches_are_done(tmp_path: Path) -> None:
    """What each change sent to the browser, by a display that keeps it."""
    _, sent = outputs_of(
        SETUP,
        "from glowtrain.trainer import live_output\nimport IPython.display\n"
        "live_output.PERIOD, sent = 0, []\n"
        "class Kept(IPython.display.DisplayHandle):\n"
        "    def update(self, shown):\n        sent.append((shown._repr_html_(), repr(shown)))\n"
        "IPython.display.DisplayHandle = Kept\n"
        "_ = trainer.fit(data, 3, 8, callbacks=[lambda moment: None])\n"
        "print(*(text for _, text in sent), sep='\\n---\\n')\n"
        "print(sum('<progress value=' in html for html, _ in sent), '<progress' in sent[-1][0])",
        folder=tmp_path,
    )
    printed = "".join(output.get("text", "") for output in sent)
    assert "epoch 2/3  loss " in printed
    assert re.search(r"^epoch 2/3  loss \S+  \S+ examples/s  \d+ s left\nepoch 1/3  loss ", printed, re.MULTILINE)
    assert printed.endswith("24 False\n")
