"""Failures of a device that tests inject, to see what follows them."""

from __future__ import annotations

from contextlib import AbstractContextManager

Injection = AbstractContextManager[None] | None
"""The failure, as long as it lasts; ``None`` where a backend cannot inject it."""


class Faults:
    """What :attr:`glowtrain.backends.base.Backend.faults` injects, in this process; by default nothing.

    What has been loaded and bound before the failure meets it as well. Once it is over, what is compiled and bound anew
    runs.
    """

    def memory_limit(self, nbytes: int) -> Injection:
        """No memory of more than ``nbytes`` can be had: asking for it raises :class:`DeviceError`."""
        return None

    def failed_allocation(self) -> Injection:
        """The device is out of memory, however little is asked for: that raises :class:`DeviceError`."""
        return None

    def lost_device(self) -> Injection:
        """The device is lost: runs, and reading what only it had, raise :class:`DeviceLostError`."""
        return None

    def hang(self) -> Injection:
        """Kernels do not end: a run raises :class:`DeviceError` once the backend's own time limit is over."""
        return None
