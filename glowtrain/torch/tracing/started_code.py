"""Notice each piece of Python code before it first runs within a block.

What a trace depends on is what the code reads that ran. That is little beside all that this code names: methods that a
configuration has, loaders of files, other models of a package.
"""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any, Self

from glowtrain.torch.tracing.drawn import Generators
from glowtrain.torch.tracing.surroundings import Surroundings

Tell = Callable[[CodeType, dict[str, Any]], None]


class StartedCode:
    """Calls ``tell`` with code and its globals before it runs for the first time, in the thread that enters this.

    It takes the place of a profiler (``sys.setprofile``), which goes on afterwards. What Python's garbage collector
    runs meanwhile, finalizers and other callbacks of it, is nobody's code here.
    """

    def __init__(self, tell: Tell | None = None) -> None:
        self._tell = tell
        self._seen: dict[tuple[int, int], CodeType] = {}
        self._before: Any = None
        self._collecting = 0
        """The thread that collects garbage."""

    def __enter__(self) -> Self:
        self._before = sys.getprofile()
        if self._tell is not None:
            gc.callbacks.append(self._collection_ends)  # before what needs it: making a list longer may collect garbage
            gc.callbacks.insert(0, self._collection_starts)
        self.go_on()
        return self

    def __exit__(self, *_: object) -> None:
        if self._tell is None:
            return
        gc.callbacks.remove(self._collection_starts)
        gc.callbacks.remove(self._collection_ends)
        sys.setprofile(self._before if callable(self._before) else None)
        if hasattr(self._before, "enable"):  # cProfile's is no function
            self._before.enable()

    def go_on(self) -> None:
        """Notice code from now on."""
        if self._tell is not None:
            sys.setprofile(self._event)

    def pause(self) -> None:
        """Notice nothing until :meth:`go_on`: the insides of operators are long, and read nothing of a person's."""
        if self._tell is not None:
            sys.setprofile(None)

    def _collection_starts(self, phase: str, _: Any) -> None:
        """Called before other callbacks of the collector."""
        if phase == "start":
            self._collecting = threading.get_ident()

    def _collection_ends(self, phase: str, _: Any) -> None:
        """Called after other callbacks of the collector."""
        if phase == "stop":
            self._collecting = 0

    def _event(self, frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if self._collecting == threading.get_ident():
            return
        if event == "call" and self._tell and (id(code), id(frame.f_globals)) not in self._seen:
            self._seen[id(code), id(frame.f_globals)] = code  # which keeps it, and its identity
            self._tell(code, frame.f_globals)


@dataclass
class TraceObserver:
    """What is noticed of the code that a trace runs: nothing by itself but draws from global generators."""

    started: StartedCode = field(default_factory=StartedCode)
    draws: Generators = field(default_factory=Generators)
    surroundings: Surroundings = field(default_factory=Surroundings)
