"""When training begins and ends: one run of a trainer at a time; Ctrl-C and the wish to end (SIGTERM) between steps,
never in the middle of one."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Protocol

from glowtrain.errors import GlowtrainError, InputError
from glowtrain.forks import renew_in_children


class Terminated(SystemExit):
    """SIGTERM was received: the process ends with the status that shells give for it, 128 + 15."""

    def __init__(self) -> None:
        super().__init__(128 + signal.SIGTERM)


class Interrupts:
    """While active, the first Ctrl-C or SIGTERM only asks to stop; :meth:`check` obeys between steps.

    A second one acts at once, and one that no :meth:`check` obeyed acts at the end. A program that handles SIGTERM
    itself goes on doing so. Outside the main thread, where signals cannot be caught, this does nothing. In a child of
    fork, as of a loader's, signals act as they did before.
    """

    def __init__(self) -> None:
        self.requested: int | None = None
        """The signal that was received and not obeyed yet."""
        self._before: dict[int, Any] = {}
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of fork nobody checks: one that is ended by a signal must end."""
        self._restore()

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._catch(signal.SIGINT)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._catch(signal.SIGTERM)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
        if self.requested is not None and error is None:
            signal.raise_signal(self.requested)

    def check(self) -> None:
        """Raise ``KeyboardInterrupt`` or :class:`Terminated` if a signal asked for it."""
        self.obey(self.requested or 0)

    def obey(self, number: int) -> None:
        """Raise what a signal asks for, 0 for none; one that was received is obeyed by that, too."""
        if not number:
            return
        self.requested = None
        if number == signal.SIGTERM:
            raise Terminated
        raise KeyboardInterrupt

    def _catch(self, number: int) -> None:
        self._before[number] = signal.signal(number, self._request)

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = number
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())


class Exclusive:
    """Lets one caller in (``with``), and refuses every other one meanwhile, by :class:`InputError`: also the same
    thread once more, as from a callback."""

    def __init__(self, refusal: str) -> None:
        self._refusal = refusal
        self._inside: int | None = None
        self._lock = threading.Lock()
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of fork, only the thread that forked can be inside."""
        self._lock = threading.Lock()
        if self._inside != threading.get_ident():
            self._inside = None

    def __enter__(self) -> None:
        with self._lock:
            if self._inside is not None:
                raise InputError(self._refusal)
            self._inside = threading.get_ident()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside = None


class HasWhole(Protocol):
    """What can be broken off: a trainer."""

    whole: bool


class Breakable:
    """A trainer is not ``whole`` if this block (``with``) is broken off, but for errors of ours: these come before
    anything ran."""

    def __init__(self, steps: HasWhole) -> None:
        self.steps = steps
        self.before = steps.whole

    def __enter__(self) -> None:
        self.steps.whole = False

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.steps.whole = True
        elif isinstance(error, GlowtrainError):
            self.steps.whole = self.before
