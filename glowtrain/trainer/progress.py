"""What a person sees while training runs: a bar with loss, throughput and time left, and a line for each epoch."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from glowtrain.trainer.history import Record


class Display:
    """A progress bar on a terminal, and epoch lines; silent when ``visible`` is false.

    ``visible=None`` shows both where the output is a terminal; what :meth:`say` tells is printed elsewhere, too.
    """

    def __init__(self, visible: bool | None, total: int, done: int, console: Console | None = None) -> None:
        self.console = console or Console()
        self.tells = visible is not False
        self.visible = self.console.is_terminal if visible is None else visible
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True),
        )
        self.progress = Progress(*columns, console=self.console, disable=not self.visible, transient=True)
        self.task = self.progress.add_task("compiling", total=total, completed=done, state="")

    def __enter__(self) -> Display:
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def batch(self, epoch: int, epochs: int, loss: float, rate: float) -> None:
        """One batch is done."""
        state = f"loss {loss:.4f}  {rate:,.0f} examples/s  left"
        self.progress.update(self.task, advance=1, description=f"epoch {epoch}/{epochs}", state=state)

    def epoch(self, record: Record, epochs: int) -> None:
        """One epoch is done."""
        if self.visible:
            self.console.print(line(record, epochs), highlight=False, soft_wrap=True)

    def say(self, text: str) -> None:
        """A message of its own."""
        if self.tells:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def line(record: Record, epochs: int) -> str:
    """An epoch in one line: ``epoch  3/10  loss 0.1234  val_loss 0.1500  val_accuracy 0.957  1.2 s``."""
    width = len(str(epochs))
    parts = [f"epoch {int(record['epoch']):>{width}}/{epochs}"]
    parts += [f"{key} {value:.4f}" for key, value in record.items() if key == "loss" or key.startswith("val_")]
    if "seconds" in record:
        parts.append(f"{record['seconds']:.1f} s")
        parts.append(f"{record['examples_per_second']:,.0f} examples/s")
    return "  ".join(parts)
