"""Requests and answers of the protocol, independent of the transport: what HTTP and gRPC decode to and encode from."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Collection, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from glowtrain.errors import DeadlineError, InputError
from glowtrain.presentation.messages import listed
from glowtrain.types import Array

DEFAULT_PRIORITY = 100
"""The level of requests that say none; 1 is the most urgent."""
_REFUSED = {
    "sequence_id": "requests are not parts of sequences here: networks have no state between them",
    "shared_memory_region": "there are no regions of shared memory: send the tensor's bytes",
    "classification": "outputs are not turned into classes: ask for the tensor",
}
"""Parameters of Triton's extensions that change what an answer means, and why they are not taken."""
MEANT = (*_REFUSED, "priority", "timeout")
"""Parameters that are looked at, whichever way they come."""


@dataclass(frozen=True)
class RequestedOutput:
    """An output that is asked for, and whether its bytes are, where the way has both encodings (``None``: unsaid)."""

    name: str
    binary: bool | None = None


@dataclass(frozen=True)
class InferRequest:
    """Inputs for a model. ``outputs``: those asked for, all if there are none; ``timeout`` is in seconds.

    What a request asks for is in it, and in nothing that other requests see.
    """

    model: str
    version: str | None
    inputs: Mapping[str, Array]
    id: str = ""
    outputs: tuple[RequestedOutput, ...] = ()
    binary_output: bool = False
    priority: int = 0
    timeout: float | None = None

    def since(self, began: float) -> InferRequest:
        """The request with what is left of its time since ``began``, by ``time.monotonic``. Raises
        :class:`DeadlineError`."""
        if self.timeout is None:
            return self
        left = began + self.timeout - time.monotonic()
        if left <= 0:
            raise DeadlineError(f"no answer within {self.timeout:g} seconds: the request took as long to be read")
        return replace(self, timeout=left)


@asynccontextmanager
async def in_time(request: InferRequest, began: float) -> AsyncIterator[None]:
    """Raises :class:`DeadlineError` where a request that ``began`` then is not answered within its time."""
    left = request.since(began).timeout
    try:
        async with asyncio.timeout(left):
            yield
    except TimeoutError:
        raise DeadlineError(f"no answer within {request.timeout:g} seconds: it took as long to be written") from None


@dataclass(frozen=True)
class InferAnswer:
    """A model's outputs, in the order in which they were asked for."""

    model: str
    version: str
    id: str
    outputs: Mapping[str, Array] = field(default_factory=dict)


def check_names(names: Iterable[str], what: str) -> list[str]:
    """The names. Raises :class:`InputError` if one comes twice."""
    seen: dict[str, None] = {}
    for name in names:
        if name in seen:
            raise InputError(f"the {what} {name!r} is given twice")
        seen[name] = None
    return list(seen)


def check_parameters(parameters: Collection[str], where: str) -> None:
    """Raise :class:`InputError` for parameters that would change an answer's meaning, and are not supported."""
    for name, reason in _REFUSED.items():
        if name in parameters:
            raise InputError(f"{where}: parameter {name!r}: {reason}")


def priority_of(parameters: Mapping[str, Any]) -> int:
    """The host's priority, of which higher is more urgent, for the protocol's ``priority``: 1 is the most urgent level,
    and 0 or none the default one, which is :data:`DEFAULT_PRIORITY`."""
    level = _whole(parameters, "priority")
    return DEFAULT_PRIORITY - level if level else 0


def timeout_of(parameters: Mapping[str, Any]) -> float | None:
    """Seconds, for the protocol's ``timeout`` in microseconds; 0 is none."""
    microseconds = _whole(parameters, "timeout")
    return microseconds / 1e6 if microseconds else None


def flag_of(parameters: Mapping[str, Any], name: str) -> bool | None:
    """A parameter that is true or false. Raises :class:`InputError`."""
    value = parameters.get(name)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"parameter {name!r} is true or false, not {value!r:.40}")
    return value


def size_of(parameters: Mapping[str, Any], name: str, where: str) -> int | None:
    """A parameter that counts bytes. Raises :class:`InputError`."""
    try:
        size: int | None = _whole(parameters, name, None)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return size


def _whole(parameters: Mapping[str, Any], name: str, default: Any = 0) -> Any:
    value = parameters.get(name)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise InputError(f"parameter {name!r} is an integer from 0 on, not {value!r:.40}")
    return value


def check_outputs(requested: Iterable[str], available: Collection[str], model: str) -> None:
    """Raise :class:`InputError` for outputs that a model does not have."""
    strange = [name for name in requested if name not in available]
    if strange:
        raise InputError(f"model {model!r} has no output {listed(strange)}; it has {listed(available)}")
