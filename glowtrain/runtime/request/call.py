"""What is asked of a network or a pipeline, as the caller said it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from glowtrain.runtime.checks import check_request


@dataclass(frozen=True)
class NetworkCall:
    """One call of the network ``name``, or of the pipeline; see :meth:`HostManager.run`. ``version`` is None for the
    highest, ``outputs`` for all of them, and ``timeout`` (seconds) for as long as it takes.

    Raises :class:`InputError` for a priority or a time-out that is none; a network looks at the rest.
    """

    name: str
    inputs: Mapping[str, Any]
    version: str | None = None
    outputs: Collection[str] | None = None
    priority: int = 0
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_request(self.priority, self.timeout)
