"""Devices to cut networks for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from glowtrain.backends.device import DeviceFacts
from glowtrain.graph import Operator
from glowtrain.runtime import HostDevice


class PlainDevice(HostDevice):
    """One that supports what a test says, with the facts that it says."""

    def __init__(
        self,
        name: str,
        backend: str = "interpreter",
        *,
        supports: Callable[[Operator], bool] = lambda operator: True,
        facts: DeviceFacts | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(name, backend, **settings)
        self.facts = facts or self.facts
        self._supports = supports

    def supports(self, operator: Operator) -> bool:
        return self._supports(operator)


def plain_devices(count: int, backend: str = "interpreter", memory: int | None = None) -> list[PlainDevice]:
    """Devices of one kind, each with one thread."""
    return [PlainDevice(f"{backend}:{k}", backend, memory=memory, threads=1) for k in range(count)]
