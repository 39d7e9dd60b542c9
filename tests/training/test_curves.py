"""Pictures of training: what their axes say, and the files that they are written to."""

from __future__ import annotations

import base64
import math
import xml.etree.ElementTree as xml
from pathlib import Path

import pytest

from glowtrain.errors import InputError
from glowtrain.presentation import figures
from glowtrain.trainer.history import History
from tests.notebooks import outputs_of

pytest.importorskip("matplotlib")


def history(epochs: int, decay: float = 0.02) -> History:
    """A loss that falls, and an accuracy that rises."""
    losses = [2.3 * math.exp(-decay * epoch) for epoch in range(epochs)]
    return History(
        [
            {"epoch": number, "loss": loss, "val_loss": 1.2 * loss, "val_accuracy": 1 - loss / 3, "seconds": 1.0}
            for number, loss in enumerate(losses, 1)
        ]
    )


def texts(path: Path) -> list[str]:
    """The words and numbers of an SVG file, in the order of its axes."""
    return [node.text or "" for node in xml.parse(path).iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize(("epochs", "ticks"), [(1, "1"), (2, "1 2"), (3, "1 2 3"), (7, "1 2 3 4 5 6 7")])
def test_epochs_are_whole_numbers(epochs: int, ticks: str, tmp_path: Path) -> None:
    history(epochs).plot(tmp_path / "loss.svg")
    said = texts(tmp_path / "loss.svg")
    assert said[said.index("validation") + 1 : said.index("epoch")] == ticks.split()


def test_accuracy_is_drawn_and_time_is_not(tmp_path: Path) -> None:
    history(3).plot(tmp_path / "loss.svg")
    assert {"loss", "accuracy", "epoch", "training", "validation"} <= set(texts(tmp_path / "loss.svg"))
    assert "seconds" not in texts(tmp_path / "loss.svg")


def test_accuracy_of_training_is_drawn_beside_that_of_validation_and_alone(tmp_path: Path) -> None:
    def marks(*keys: str) -> int:
        records = [{"epoch": epoch, "loss": 1.0, **dict.fromkeys(keys, 0.5)} for epoch in (1, 2, 3)]
        History(records).plot(tmp_path / "loss.svg")
        assert ("accuracy" in texts(tmp_path / "loss.svg")) == bool(keys)
        return (tmp_path / "loss.svg").read_text().count("<use ")

    alone, both = marks("train_accuracy"), marks("train_accuracy", "val_accuracy")
    assert alone > marks() + 3
    assert both > alone


@pytest.mark.exhaustive
def test_a_loss_over_decades_has_a_logarithmic_axis(tmp_path: Path) -> None:
    history(200).plot(tmp_path / "decades.svg")
    assert {"2", "1", "0.5", "0.2", "0.1", "0.05"} <= set(texts(tmp_path / "decades.svg"))
    history(20).plot(tmp_path / "less.svg")
    assert "0.05" not in texts(tmp_path / "less.svg")


def test_a_loss_that_is_not_positive_is_drawn(tmp_path: Path) -> None:
    records = [{"epoch": number, "loss": loss} for number, loss in enumerate((3.0, 0.0, -3.0), 1)]
    History(records).plot(tmp_path / "loss.svg")
    assert "accuracy" not in texts(tmp_path / "loss.svg")


def test_the_suffix_says_what_is_written(tmp_path: Path) -> None:
    history(3).plot(tmp_path / "loss.PNG")
    assert (tmp_path / "loss.PNG").read_bytes().startswith(b"\x89PNG")
    for name in ("loss.jpeg", "loss"):
        with pytest.raises(InputError, match=r"a plot is drawn into a file whose name ends in \.png or \.svg"):
            history(3).plot(tmp_path / name)
        assert not (tmp_path / name).exists()


def test_many_epochs_are_a_line_and_few_have_marks(tmp_path: Path) -> None:
    def marks(epochs: int) -> int:
        history(epochs).plot(tmp_path / "loss.svg")
        return (tmp_path / "loss.svg").read_text().count("<use ")

    assert marks(20) > 3 * 20 > marks(200)


def test_the_figure_is_returned_and_may_be_changed(tmp_path: Path) -> None:
    figure = history(3).plot(tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes() == figures.saved(figure, "png")
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "accuracy"]
    figure.axes[0].set_title("of my own")
    assert (tmp_path / "loss.png").read_bytes() != figures.saved(figure, "png")


def test_without_a_path_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert len(history(3).plot().axes) == 2
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("before", ["", "import matplotlib.pyplot"])
def test_a_notebook_shows_it_once(before: str, tmp_path: Path) -> None:
    drawn = "from glowtrain.trainer.history import History\n"
    drawn += "History([{'epoch': n, 'loss': 2.0 / n, 'val_loss': 2.5 / n} for n in (1, 2, 3)]).plot()"
    [shown] = outputs_of(f"{before}\n{drawn}", folder=tmp_path)
    assert [output.output_type for output in shown] == ["execute_result"]
    assert base64.b64decode(shown[0].data["image/png"]).startswith(b"\x89PNG")
    if not before:
        assert shown[0].metadata["image/png"] == {"width": 640, "height": 360}
