"""Bodies of requests: read up to a limit, decompressed up to it, and parsed as JSON."""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any, NoReturn

from glowtrain.errors import InputError, RequestSizeError
from glowtrain.memory.byte_size import byte_text

Body = bytes | bytearray
_WINDOW = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""zlib's names for the encodings of content."""


async def read_body(
    stream: AsyncIterator[bytes], length: str | None, encoding: str | None, limit: int, hold: Callable[[int], None]
) -> Body:
    """A request's body, from ``stream``. ``length`` and ``encoding`` are what its headers say; ``hold`` counts bytes as
    they come, and may raise an error.

    Raises :class:`RequestSizeError` as soon as it is known to be, or to decompress to, more than ``limit`` bytes, and
    :class:`InputError` for a damaged or unknown encoding.
    """
    if length is not None and length.isdigit() and int(length) > limit:
        raise _too_large(limit)
    body = bytearray()
    async for chunk in stream:
        if len(body) + len(chunk) > limit:
            raise _too_large(limit)
        hold(len(chunk))
        body += chunk
    encoding = (encoding or "").strip().lower()  # RFC 9110, 8.4.1: names of codings are case-insensitive
    if encoding in ("", "identity"):
        return body
    found = await asyncio.to_thread(_decompressed, body, encoding, limit)  # 64 MiB take some 0.3 s
    hold(len(found))
    return found


def _too_large(limit: int) -> RequestSizeError:
    return RequestSizeError(f"the request has more than {byte_text(limit)}, which is the most that this server takes")


def _decompressed(body: Body, encoding: str, limit: int) -> bytes:
    if encoding not in _WINDOW:
        raise InputError(f"Content-Encoding {encoding!r} is not supported; gzip, deflate and identity are")
    reader = zlib.decompressobj(_WINDOW[encoding])
    try:
        found = reader.decompress(body, limit + 1)
    except zlib.error as error:
        raise InputError(f"the body is no {encoding} data: {error}") from None
    if len(found) > limit:
        raise _too_large(limit)
    if not reader.eof or reader.unused_data:
        raise InputError(f"the {encoding} data of the body ends too early or too late")
    return found


def parse_json(text: Body) -> Any:
    """What a text of JSON says. Raises :class:`InputError` where it is none, too deep, or says a thing twice."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_without_repetition)
    except RecursionError:
        raise InputError("the JSON is nested too deeply: no request of the protocol is") from None
    except ValueError as error:
        raise InputError(f"the request is no JSON: {error}") from None


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"an object has {next(name for name in names if names.count(name) > 1)!r} twice")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"there is no {constant} in it")
