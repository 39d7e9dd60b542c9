"""Show progress while training runs: a bar with loss, throughput and time left, and lines for epochs."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich import console
from rich import progress as bars

from glowtrain.trainer.history import Record, numbers_of, spacing
from glowtrain.trainer.live_output import LiveOutput

ROOMY = 80
"""Columns of a terminal on which the bar has room for the speed."""


class Display:
    """Lines for epochs, and on a terminal a progress bar; in a notebook one output that changes; nothing where
    ``progress`` is False. The bar counts the batches that are done, without ``total`` no more than that.

    A terminal, and a stream that ``progress`` names, get a line for each epoch; with a number there is one each so
    many epochs. Otherwise there are some 20 of them, however many epochs. The last epoch has its line in any case.

    Without a stream they go to standard error, beside what a program prints, but in notebooks, which show that in red.
    """

    def __init__(self, progress: bool | int | TextIO | None, total: int | None, done: int) -> None:
        stream = None if progress is None or isinstance(progress, int) else progress
        self.visible = not isinstance(progress, int) or progress > 0
        notebook = console.Console().is_jupyter
        self.console = _console(stream, notebook=notebook)
        bar = self.visible and self.console.is_terminal
        chosen = progress if progress is not None and not isinstance(progress, bool) else None
        self.every = chosen if isinstance(chosen, int) else None if chosen is None and not bar else 1
        """The epochs from line to line; None where these are to be few."""
        self.output = LiveOutput() if notebook and self.visible and self.every is None else None
        self.last = ""
        """The line of the last epoch, where it has not been printed."""
        self.began = False
        self.left = "" if total is None else "  left"
        columns = (
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TextColumn("{task.fields[state]}"),
            *((bars.TimeRemainingColumn(compact=True),) if self.left else ()),
        )
        self.progress = bars.Progress(*columns, console=self.console, disable=not bar, transient=True)
        self.task = self.progress.add_task("compiling", total=total, completed=done, state="")

    def __enter__(self) -> Display:
        self.progress.start()
        if self.output is not None:
            self.output.show("compiling", self.progress.tasks[0], at_once=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()
        self._print_last()
        if self.output is not None:
            self.output.end()

    def batches(self, count: int, epoch: int, epochs: int, loss: float, rate: float) -> None:
        """Some more batches are done, the last of them with this loss."""
        if self.progress.disable and self.output is None:
            return
        description = f"epoch {epoch}/{epochs}"
        speed = f"  {rate:,.0f} examples/s" if self.output is not None or self.console.width >= ROOMY else ""
        state = f"loss {loss:.4f}{speed}"
        self.progress.update(self.task, advance=count, description=description, state=f"{state}{self.left}")
        if self.output is not None:
            self.output.show(f"{description}  {state}", self.progress.tasks[0])

    def epoch(self, record: Record, epochs: int, shares: str = "") -> None:
        """One epoch is done; ``shares``: where its time went."""
        if not self.visible:
            return
        width = self.console.width if self.console.is_terminal else None
        self.last = line(record, epochs, width, shares)
        if self.output is not None:
            self.output.last, self.last = self.last, ""
        elif self._is_listed(int(record["epoch"]), epochs):
            self._print_last()

    def _is_listed(self, epoch: int, epochs: int) -> bool:
        first, self.began = not self.began, True
        every = spacing(epochs) if self.every is None else self.every
        return epoch % every == 0 or epoch == epochs or (first and self.every is None)

    def say(self, text: str) -> None:
        """A message of its own."""
        if not self.visible:
            return
        if self.output is not None:
            self.output.say(text)
        else:
            self._print_last()
            self._print(text)

    def _print_last(self) -> None:
        if self.last:
            self._print(self.last)
        self.last = ""

    def _print(self, text: str) -> None:
        self.console.print(text, soft_wrap=not self.console.is_terminal)


def _console(stream: TextIO | None, *, notebook: bool) -> console.Console:
    """For text as it is, in notebooks too: what rich shows there needs a package that may be absent, and the variables
    by which kernels ask programs for colours make a terminal of them."""
    return console.Console(
        file=stream, stderr=stream is None and not notebook, force_terminal=False if notebook else None,
        force_jupyter=False, highlight=False, markup=False, emoji=False,
    )  # fmt: skip


def line(record: Record, epochs: int, width: int | None = None, shares: str = "") -> str:
    """An epoch in one line: ``epoch  3/10  loss 0.1234  val_loss 0.1500  val_accuracy 0.957  1.2 s  800 examples/s``.

    Where ``width`` columns are not enough for all of it, what ``shares`` says of the time, the speed and the time are
    left out, one after the other.
    """
    digits = len(str(epochs))
    parts = [f"epoch {int(record['epoch']):>{digits}}/{epochs}"]
    shown = (key for key in numbers_of(record) if key == "loss" or key.startswith(("train_", "val_")))
    parts += [f"{key} {record[key]:.4f}" for key in shown]
    timings = [
        f"{record['seconds']:.1f} s",
        f"{record['examples_per_second']:,.0f} examples/s",
        *filter(None, [shares]),
    ]
    while timings and width is not None and len("  ".join(parts + timings)) > width:
        timings.pop()
    return "  ".join(parts + timings)
