"""Map errors to statuses of both transports: HTTP's numbers and gRPC's codes."""

from __future__ import annotations

from dataclasses import dataclass

import grpc

from glowtrain.errors import (
    AccessError,
    BindingError,
    BusyError,
    DeadlineError,
    DeviceLostError,
    GlowtrainError,
    InputError,
    ModelError,
    ProvisionError,
    QueueFullError,
    RequestSizeError,
    RequestTimeoutError,
    UnavailableError,
    UnknownNetworkError,
)


@dataclass(frozen=True)
class Status:
    """HTTP's number, and gRPC's code."""

    http: int
    grpc: grpc.StatusCode


_STATUSES: tuple[tuple[type[GlowtrainError], Status], ...] = (
    (UnknownNetworkError, Status(404, grpc.StatusCode.NOT_FOUND)),
    (RequestSizeError, Status(413, grpc.StatusCode.RESOURCE_EXHAUSTED)),
    (RequestTimeoutError, Status(408, grpc.StatusCode.DEADLINE_EXCEEDED)),
    (QueueFullError, Status(429, grpc.StatusCode.RESOURCE_EXHAUSTED)),
    (BusyError, Status(503, grpc.StatusCode.RESOURCE_EXHAUSTED)),
    (DeadlineError, Status(504, grpc.StatusCode.DEADLINE_EXCEEDED)),
    (UnavailableError, Status(503, grpc.StatusCode.UNAVAILABLE)),
    (DeviceLostError, Status(503, grpc.StatusCode.UNAVAILABLE)),
    (AccessError, Status(401, grpc.StatusCode.UNAUTHENTICATED)),
    (InputError, Status(400, grpc.StatusCode.INVALID_ARGUMENT)),
    (BindingError, Status(400, grpc.StatusCode.INVALID_ARGUMENT)),
    (ModelError, Status(400, grpc.StatusCode.INVALID_ARGUMENT)),
    (ProvisionError, Status(503, grpc.StatusCode.RESOURCE_EXHAUSTED)),
)
"""The first counts whose class an error is of."""
LONGEST = 2000
"""Bytes of a text that clients are told: gRPC sends three for each that is not ASCII, and 8 KB at most."""
_FAILED = Status(500, grpc.StatusCode.INTERNAL)


def status_of(error: BaseException) -> Status:
    """The status of an error; that of a failure within the server for all that are not foreseen here."""
    return next((status for kind, status in _STATUSES if isinstance(error, kind)), _FAILED)


def client_message(error: BaseException) -> str:
    """What a client is told of an error: its beginning, where it repeats a long name of the client's; of those that
    nobody foresaw, not more than that they happened."""
    if isinstance(error, GlowtrainError):
        return shortened(str(error))
    return "the server failed at this request; its log says why"


def shortened(text: str) -> str:
    """The beginning of a text that clients make as long as they like."""
    encoded = text.encode(errors="replace")
    return encoded.decode() if len(encoded) <= LONGEST else f"{encoded[:LONGEST].decode(errors='ignore')}..."
