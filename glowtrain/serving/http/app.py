"""The protocol's routes over HTTP."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from glowtrain.errors import GlowtrainError, InputError, RequestTimeoutError
from glowtrain.serving.access import Access
from glowtrain.serving.http import messages
from glowtrain.serving.http.bodies import parse_json, read_body
from glowtrain.serving.http.events import CLIENT_GONE, Events
from glowtrain.serving.http.large_json import JsonMessages
from glowtrain.serving.metrics import CONTENT_TYPE
from glowtrain.serving.requests import InferAnswer, flag_of
from glowtrain.serving.service import InferenceService
from glowtrain.serving.status import status_of, told

Endpoint = Callable[[Request], Awaitable[Response]]
OPENAPI = "open_inference.yaml"
"""What the routes take and give, in the words of OpenAPI."""
PATIENCE = 60.0
"""Seconds that a request has to arrive in, unless it is said."""


def application(
    service: InferenceService,
    access: Access,
    limit: int,
    patience: float = PATIENCE,
    json: JsonMessages | None = None,
) -> Starlette:
    """The application. ``limit``: the most bytes of a request's body, as it comes and when it is decompressed;
    ``patience``: the seconds that it has to come in; ``json``: who reads and writes it."""
    return Starlette(
        routes=list(_Routes(service, access, limit, patience, json or JsonMessages())),
        middleware=[Middleware(Events)],
        exception_handlers={
            HTTPException: _no_route,
            GlowtrainError: _refused,
            ClientDisconnect: _gone,
            Exception: _failed,
        },
    )


class _Routes:
    """What is at each path."""

    def __init__(
        self, service: InferenceService, access: Access, limit: int, patience: float, json: JsonMessages
    ) -> None:
        self._service = service
        self._access = access
        self._limit = limit
        self._patience = patience
        self._json = json

    def __iter__(self) -> Iterator[Route]:
        yield _get("/v2/health/live", self._live)
        yield _get("/v2/health/ready", self._ready)
        for path, endpoint in (("/v2", self._server), ("/metrics", self._metrics), (f"/v2/{OPENAPI}", self._openapi)):
            yield _get(path, self._asked(endpoint))
        for model in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}"):
            yield _get(model, self._asked(self._model))
            yield _get(f"{model}/ready", self._asked(self._model_ready))
            yield _post(f"{model}/infer", self._asked(self._infer))
        yield _post("/v2/repository/index", self._asked(self._index))
        yield _post("/v2/repository/models/{name}/load", self._asked(self._load))
        yield _post("/v2/repository/models/{name}/unload", self._asked(self._unload))

    def _asked(self, endpoint: Endpoint) -> Endpoint:
        """For those that know a token."""

        @functools.wraps(endpoint)
        async def checked(request: Request) -> Response:
            self._access.check(request.headers.getlist("authorization"))
            return await endpoint(request)

        return checked

    async def _live(self, request: Request) -> Response:
        return JSONResponse({"live": True})

    async def _ready(self, request: Request) -> Response:
        ready = self._service.ready
        return JSONResponse({"ready": ready}, 200 if ready else 503)

    async def _server(self, request: Request) -> Response:
        return JSONResponse(self._service.server_metadata())

    async def _metrics(self, request: Request) -> Response:
        return Response(self._service.metrics(), headers={"content-type": CONTENT_TYPE})

    async def _openapi(self, request: Request) -> Response:
        text = (resources.files(__package__) / OPENAPI).read_bytes()
        return Response(text, media_type="application/yaml")

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self._service.model_metadata(*_model_of(request)))

    async def _model_ready(self, request: Request) -> Response:
        name, version = _model_of(request)
        ready = self._service.model_ready(name, version)
        return JSONResponse({"name": name, "ready": ready}, 200 if ready else 503)

    async def _infer(self, request: Request) -> Response:
        name, version = _model_of(request)
        with self._service.counting_refusals(name, version):
            length = request.headers.get(messages.HEADER_LENGTH)
            decoded = await self._json.decode(name, version, await self._body(request), length)
            messages.check_encodings(decoded, self._service.output_types(decoded))
            answer: InferAnswer = await _unless_gone(request, self._service.infer(decoded))
            body, size = await self._json.encode(decoded, answer)
        if size is None:
            return Response(body, media_type="application/json")
        return Response(body, media_type="application/octet-stream", headers={messages.HEADER_LENGTH: str(size)})

    async def _body(self, request: Request) -> bytes | bytearray:
        headers = request.headers
        encoding, length = headers.get("content-encoding"), headers.get("content-length")
        try:
            async with asyncio.timeout(self._patience):
                return await read_body(request.stream(), length, encoding, self._limit)
        except TimeoutError:
            raise RequestTimeoutError(f"the request has not come within {self._patience:g} seconds") from None

    async def _index(self, request: Request) -> Response:
        said = await self._object(request)
        states = self._service.index(ready=flag_of(said, "ready") or False)
        return JSONResponse([vars(state) for state in states])

    async def _load(self, request: Request) -> Response:
        await self._service.load(request.path_params["name"], await self._parameters(request))
        return Response(media_type="application/json")

    async def _unload(self, request: Request) -> Response:
        await self._service.unload(request.path_params["name"], await self._parameters(request))
        return Response(media_type="application/json")

    async def _parameters(self, request: Request) -> dict[str, Any]:
        parameters = (await self._object(request)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise InputError("'parameters' is no object of JSON")
        return parameters

    async def _object(self, request: Request) -> dict[str, Any]:
        """The body as an object of JSON, which may be left out."""
        body = await self._body(request)
        said = parse_json(body) if body.strip() else {}
        if not isinstance(said, dict):
            raise InputError("the request is no object of JSON")
        return said


def _get(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["GET"])


def _post(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["POST"])


def _model_of(request: Request) -> tuple[str, str | None]:
    return request.path_params["name"], request.path_params.get("version")


async def _unless_gone(request: Request, answering: Coroutine[Any, Any, Any]) -> Any:
    """What ``answering`` gives. Where the client goes away before, that is cancelled; raises ``ClientDisconnect``."""
    answer, gone = asyncio.create_task(answering), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        if not answer.done():
            raise ClientDisconnect
        return answer.result()
    finally:
        answer.cancel()
        gone.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _error(status: int, message: str, headers: Any = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


CLOSE = {"connection": "close"}


async def _refused(request: Request, error: Exception) -> Response:
    """What is left of a body that was not read is not waited for: the connection ends."""
    status = status_of(error).http
    headers = {401: {"www-authenticate": "Bearer"}, 408: CLOSE, 413: CLOSE, 429: {"retry-after": "1"}}
    return _error(status, told(error), headers.get(status))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, f"{request.method} {request.url.path}: {error.detail}", error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _failed(request: Request, error: Exception) -> Response:
    """An error that nobody foresaw; Starlette raises it on, so that it is logged with where it came from."""
    return _error(500, told(error))
