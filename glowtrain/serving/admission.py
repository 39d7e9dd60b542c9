"""How much is worked on at once: requests, and the bytes that they and their answers hold."""

from __future__ import annotations

from types import TracebackType

from glowtrain.errors import BusyError
from glowtrain.memory.byte_size import byte_text


class Admission:
    """Bounds ``requests`` at once, and the ``size`` of what they hold together, in bytes. Only the event loop's thread
    asks it."""

    def __init__(self, requests: int, size: int) -> None:
        self.requests = requests
        self.size = size
        self.admitted = self.held = 0
        """Requests, and their bytes, as they are now."""

    def request(self) -> Admitted:
        """One more, within ``with``, which raises :class:`BusyError` where there are as many as there may be."""
        return Admitted(self)


class Admitted:
    """A request that is worked on, from its head until its answer has been taken."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self._held = 0

    def __enter__(self) -> Admitted:
        if self._admission.admitted >= self._admission.requests:
            raise BusyError(f"the server works on {self._admission.requests:,} requests, its limit; ask again later")
        self._admission.admitted += 1
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._admission.admitted -= 1
        self._admission.held -= self._held

    def hold(self, size: int) -> None:
        """Count bytes of what a client sent. Raises :class:`BusyError` where there would be more than there may be."""
        if self._admission.held + size > self._admission.size:
            limit = byte_text(self._admission.size)
            raise BusyError(f"the requests that the server works on have {limit}, its limit; ask again later")
        self.answer(size)

    def answer(self, size: int) -> None:
        """Count bytes of an answer: it exists already, so others have to wait for room."""
        self._admission.held += size
        self._held += size
