"""The protocol's routes over HTTP."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from importlib import resources
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from glowtrain.errors import BusyError, GlowtrainError, InputError, RequestTimeoutError
from glowtrain.serving.access import Access
from glowtrain.serving.admission import Admission, Admitted
from glowtrain.serving.http import messages
from glowtrain.serving.http.bodies import parse_json, read_body
from glowtrain.serving.http.events import CLIENT_GONE, Events
from glowtrain.serving.http.large_json import JsonMessages
from glowtrain.serving.metrics import CONTENT_TYPE
from glowtrain.serving.requests import flag_of, in_time
from glowtrain.serving.service import InferenceService
from glowtrain.serving.status import client_message, shortened, status_of

Endpoint = Callable[[Request], Awaitable[Response]]
AdmittedEndpoint = Callable[[Request, Admitted], Awaitable[Response]]
OPENAPI = "open_inference.yaml"
"""What the routes take and give, in the words of OpenAPI."""
PATIENCE = 60.0
"""Seconds that a request has to arrive in, and an answer to be taken, unless it is said."""
GLANCE = 0.02
"""Seconds until somebody looks whether the client is still there: most requests have been answered by then."""


def application(
    service: InferenceService,
    access: Access,
    limit: int,
    patience: float = PATIENCE,
    json: JsonMessages | None = None,
    admission: Admission | None = None,
) -> Starlette:
    """The application. ``limit``: the most bytes of a request's body, as it comes and when it is decompressed;
    ``patience``: the seconds that it has to come in; ``json``: who reads and writes it; ``admission``: how many
    requests there may be at once."""
    admission = admission or Admission(limit, limit)
    app = Starlette(
        routes=list(_Routes(service, access, limit, patience, json or JsonMessages(), admission)),
        middleware=[Middleware(Events, ends=lambda: not service.open)],
        exception_handlers={
            HTTPException: _no_route,
            GlowtrainError: _refused,
            ClientDisconnect: _gone,
            Exception: _failed,
        },
    )
    app.router.redirect_slashes = False  # it would send clients wherever their Host says
    return app


class _Admitting:
    """Answers those that know a token, as many at once as may be; until an answer has been taken, it counts."""

    def __init__(self, endpoint: AdmittedEndpoint, access: Access, admission: Admission) -> None:
        self._endpoint = endpoint
        self._access = access
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send)
        self._access.check(request.headers.getlist("authorization"))
        with self._admission.request() as admitted:
            response = await self._endpoint(request, admitted)
            body = bytes(response.body)
            admitted.answer(len(body))
            await send({"type": "http.response.start", "status": 200, "headers": response.raw_headers})
            await send({"type": "http.response.body", "body": body, "more_body": True})
            await send({"type": "http.response.body", "body": b""})  # it waits until what is before it has been taken


class _Routes:
    """What is at each path."""

    def __init__(
        self, service: InferenceService, access: Access, limit: int, patience: float, json: JsonMessages,
        admission: Admission,
    ) -> None:  # fmt: skip
        self._service = service
        self._access = access
        self._admission = admission
        self._limit = limit
        self._patience = patience
        self._json = json

    def __iter__(self) -> Iterator[Route]:
        models = ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        for model in models:  # first, as most requests are for them
            yield self._post(f"{model}/infer", self._infer)
        yield _get("/v2/health/live", self._live)
        yield _get("/v2/health/ready", self._ready)
        for path, endpoint in (("/v2", self._server), ("/metrics", self._metrics), (f"/v2/{OPENAPI}", self._openapi)):
            yield self._get(path, endpoint)
        yield self._get("/v2/models", self._models)
        for model in models:
            yield self._get(model, self._model)
            yield self._get(f"{model}/ready", self._model_ready)
        yield self._post("/v2/repository/index", self._index)
        yield self._post("/v2/repository/models/{name}/load", self._load)
        yield self._post("/v2/repository/models/{name}/unload", self._unload)

    def _get(self, path: str, endpoint: Endpoint) -> Route:
        """A route for those that know a token."""

        async def checked(request: Request) -> Response:
            self._access.check(request.headers.getlist("authorization"))
            return await endpoint(request)

        return _get(path, checked)

    def _post(self, path: str, endpoint: AdmittedEndpoint) -> Route:
        return Route(path, _Admitting(endpoint, self._access, self._admission), methods=["POST"])

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

    async def _models(self, request: Request) -> Response:
        return JSONResponse({"models": self._service.models()})

    async def _model(self, request: Request) -> Response:
        return JSONResponse(self._service.model_metadata(*_model_of(request)))

    async def _model_ready(self, request: Request) -> Response:
        name, version = _model_of(request)
        ready = self._service.model_ready(name, version)
        return JSONResponse({"name": name, "ready": ready}, 200 if ready else 503)

    async def _infer(self, request: Request, admitted: Admitted) -> Response:
        name, version = _model_of(request)
        began = time.monotonic()
        with self._service.counting_refusals(name, version):
            given = await self._body(request, admitted)
        async with _unless_gone(request):
            with self._service.counting_refusals(name, version):
                length = _header(request, messages.HEADER_LENGTH)
                decoded = await self._json.decode(name, version, given, length)
                del given
                messages.check_encodings(decoded, self._service.output_types(decoded))
                answer = await self._service.infer(decoded, began)
            async with in_time(decoded, began):
                body, size = await self._json.encode(decoded, answer)
        if size is None:
            return Response(body, media_type="application/json")
        return Response(body, media_type="application/octet-stream", headers={messages.HEADER_LENGTH: str(size)})

    async def _body(self, request: Request, admitted: Admitted) -> bytes | bytearray:
        encoding, length = _header(request, "content-encoding"), _header(request, "content-length")
        try:
            async with asyncio.timeout(self._patience):
                return await read_body(request.stream(), length, encoding, self._limit, admitted.hold)
        except TimeoutError:
            raise RequestTimeoutError(f"the request has not come within {self._patience:g} seconds") from None

    async def _index(self, request: Request, admitted: Admitted) -> Response:
        said = await self._object(request, admitted)
        states = self._service.index(ready=flag_of(said, "ready") or False)
        return JSONResponse([vars(state) for state in states])

    async def _load(self, request: Request, admitted: Admitted) -> Response:
        await self._service.load(request.path_params["name"], await self._parameters(request, admitted))
        return Response(media_type="application/json")

    async def _unload(self, request: Request, admitted: Admitted) -> Response:
        await self._service.unload(request.path_params["name"], await self._parameters(request, admitted))
        return Response(media_type="application/json")

    async def _parameters(self, request: Request, admitted: Admitted) -> dict[str, Any]:
        parameters = (await self._object(request, admitted)).get("parameters") or {}
        if not isinstance(parameters, dict):
            raise InputError("'parameters' is no object of JSON")
        return parameters

    async def _object(self, request: Request, admitted: Admitted) -> dict[str, Any]:
        """The body as an object of JSON, which may be left out."""
        body = await self._body(request, admitted)
        said = parse_json(body) if body.strip() else {}
        if not isinstance(said, dict):
            raise InputError("the request is no object of JSON")
        return said


def _get(path: str, endpoint: Endpoint) -> Route:
    return Route(path, endpoint, methods=["GET"])


def _header(request: Request, name: str) -> str | None:
    """What a header says; one that is there several times says a list (RFC 9110, 5.3), which none here may be."""
    return ", ".join(request.headers.getlist(name)) if name in request.headers else None


def _model_of(request: Request) -> tuple[str, str | None]:
    return request.path_params["name"], request.path_params.get("version")


@asynccontextmanager
async def _unless_gone(request: Request) -> AsyncIterator[None]:
    """Cancels what is within where the client goes away before it ends, and raises ``ClientDisconnect``."""
    watching: list[asyncio.Task[None]] = []

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        leaving.reschedule(0)  # within the task: a callback of it could come when the time-out has ended

    def watch() -> None:
        watching.append(asyncio.create_task(leave()))

    glance = asyncio.get_running_loop().call_later(GLANCE, watch)
    try:
        async with asyncio.timeout(None) as leaving:
            yield
    except TimeoutError:
        raise ClientDisconnect from None
    finally:
        glance.cancel()
        for task in watching:
            task.cancel()


def _error(status: int, message: str, headers: Any = None) -> Response:
    return JSONResponse({"error": message}, status, headers)


CLOSE, LATER = {"connection": "close"}, {"retry-after": "1"}


async def _refused(request: Request, error: Exception) -> Response:
    """What is left of a body that was not read is not waited for: the connection ends."""
    status = status_of(error).http
    headers = {401: {"www-authenticate": "Bearer"}, 408: CLOSE, 413: CLOSE, 429: LATER}
    return _error(status, client_message(error), LATER if isinstance(error, BusyError) else headers.get(status))


async def _no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    asked = shortened(f"{request.method} {request.scope['path']}")
    return _error(error.status_code, f"{asked}: {error.detail}", error.headers)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_GONE)


async def _failed(request: Request, error: Exception) -> Response:
    """An error that nobody foresaw; Starlette raises it on, so that it is logged with where it came from."""
    return _error(500, client_message(error))
