"""One output of a notebook's cell that changes while training runs: a bar, the last epoch, messages."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from glowtrain.presentation.displayable import fragment

if TYPE_CHECKING:
    from rich.progress import Task

PERIOD = 0.1
"""Seconds from change to change, each of which is a message to the browser."""


class LiveOutput:
    """The output of one call of ``fit``, by the display handle of IPython, which runs where this is made.

    ``last`` is the line of the last epoch. A saved notebook has what stood there at the end.
    """

    def __init__(self) -> None:
        self.last = ""
        self._messages: list[str] = []
        self._state, self._bar = "", ""
        self._handle: Any = None
        self._shown = 0.0

    def show(self, state: str, task: Task, *, at_once: bool = False) -> None:
        """Batches are done: the state in words, and how far the task is."""
        if not at_once and time.monotonic() - self._shown < PERIOD:
            return
        done = f' value="{task.completed:.0f}" max="{task.total:.0f}"' if task.total else ""
        self._bar = f"<progress{done}></progress>"
        self._state = f"{state}{_left(task)}"
        self._update()

    def say(self, text: str) -> None:
        """A message that stays."""
        self._messages.append(text)
        self._update()

    def end(self) -> None:
        """Training has ended: the bar goes, the last epoch and the messages stay."""
        self._state, self._bar = "", ""
        self._update()

    def _update(self) -> None:
        from IPython.display import DisplayHandle  # noqa: PLC0415  (there where a notebook runs)

        self._shown = time.monotonic()
        if self._handle is None:
            handle: Any = DisplayHandle
            self._handle = handle()
            self._handle.display(self)
        else:
            self._handle.update(self)

    def _lines(self) -> list[str]:
        return [text for text in (self._state, self.last, *self._messages) if text]

    def __repr__(self) -> str:
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return fragment(self._lines(), self._bar)


def _left(task: Task) -> str:
    """``  12 s left``, where that is known."""
    remaining = task.time_remaining
    if task.total is None or remaining is None:
        return ""
    minutes, seconds = divmod(round(remaining), 60)
    return f"  {minutes} min {seconds} s left" if minutes else f"  {seconds} s left"
