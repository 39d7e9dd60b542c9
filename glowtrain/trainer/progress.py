"""Show progress while training runs: a bar with loss, throughput and time left, and a line for each epoch."""

from __future__ import annotations

from types import TracebackType
from typing import TextIO

from rich import console
from rich import progress as bars

from glowtrain.trainer.history import Record, numbers_of

ROOMY = 80
"""Columns of a terminal on which the bar has room for the speed."""


class Display:
    """A line for each epoch, or with a number for ``progress`` each so many, and on a terminal a progress bar, in a
    stream; nothing where it is False. The bar counts the batches that are done, without ``total`` no more than that.

    Without a stream they go to standard error, beside what a program prints, but in notebooks, which show that in red.
    """

    def __init__(self, progress: bool | int | TextIO | None, total: int | None, done: int) -> None:
        self.console = _console(None if progress is None or isinstance(progress, int) else progress)
        self.every = max(progress, 1) if isinstance(progress, int) else 1
        self.visible = not isinstance(progress, int) or progress > 0
        bar = self.visible and self.console.is_terminal
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
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def batches(self, count: int, epoch: int, epochs: int, loss: float, rate: float) -> None:
        """Some more batches are done, the last of them with this loss."""
        if self.progress.disable:
            return
        speed = f"  {rate:,.0f} examples/s" if self.console.width >= ROOMY else ""
        state = f"loss {loss:.4f}{speed}{self.left}"
        self.progress.update(self.task, advance=count, description=f"epoch {epoch}/{epochs}", state=state)

    def epoch(self, record: Record, epochs: int) -> None:
        """One epoch is done."""
        if self.visible and (int(record["epoch"]) % self.every == 0 or record["epoch"] == epochs):
            self.say(line(record, epochs, self.console.width if self.console.is_terminal else None))

    def say(self, text: str) -> None:
        """A message of its own."""
        if self.visible:
            self.console.print(text, soft_wrap=not self.console.is_terminal)


def _console(stream: TextIO | None) -> console.Console:
    """For text as it is, in notebooks too: what rich shows there needs a package that may be absent."""
    on_stderr = stream is None and not console.Console().is_jupyter
    return console.Console(
        file=stream, stderr=on_stderr, force_jupyter=False, highlight=False, markup=False, emoji=False
    )


def line(record: Record, epochs: int, width: int | None = None) -> str:
    """An epoch in one line: ``epoch  3/10  loss 0.1234  val_loss 0.1500  val_accuracy 0.957  1.2 s  800 examples/s``.

    Where ``width`` columns are not enough for all of it, the speed is left out, then the time.
    """
    digits = len(str(epochs))
    parts = [f"epoch {int(record['epoch']):>{digits}}/{epochs}"]
    shown = (key for key in numbers_of(record) if key == "loss" or key.startswith(("train_", "val_")))
    parts += [f"{key} {record[key]:.4f}" for key in shown]
    timings = [f"{record['seconds']:.1f} s", f"{record['examples_per_second']:,.0f} examples/s"]
    while timings and width is not None and len("  ".join(parts + timings)) > width:
        timings.pop()
    return "  ".join(parts + timings)
