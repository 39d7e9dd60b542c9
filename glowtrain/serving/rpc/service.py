"""The calls of gRPC, from ``open_inference.proto``, and ``grpc.health.v1``."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from grpc_health.v1 import health_pb2

from glowtrain.errors import GlowtrainError, InputError, RequestTimeoutError
from glowtrain.serving.access import EVERYBODY, Access
from glowtrain.serving.admission import Admission, Admitted
from glowtrain.serving.logs import LOGGER, log_request
from glowtrain.serving.rpc import messages
from glowtrain.serving.rpc.schema import SERVICE, Message, ModelStreamInferResponse, message
from glowtrain.serving.service import InferenceService
from glowtrain.serving.status import Status, client_message, status_of

Context = Any
"""A ``grpc.aio.ServicerContext``."""
Call = Callable[[Message, Context], Awaitable[Message]]
HEALTH = ("ServerLive", "ServerReady", "Check")
"""Calls that need no token, and are answered however many others there are."""
PROBE, PROBES = 5.0, 1 << 20
"""Seconds in which the message of such a call has to come, and bytes of all of them together."""
STREAM = "ModelStreamInfer"


class _Calls:
    """A method a call, of its name: a message in, a message out."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def ServerLive(self, request: Message, context: Context) -> Message:
        return message("ServerLiveResponse")(live=True)

    async def ServerReady(self, request: Message, context: Context) -> Message:
        return message("ServerReadyResponse")(ready=self._service.ready)

    async def ModelReady(self, request: Message, context: Context) -> Message:
        return message("ModelReadyResponse")(ready=self._service.model_ready(request.name, request.version or None))

    async def ServerMetadata(self, request: Message, context: Context) -> Message:
        return message("ServerMetadataResponse")(**self._service.server_metadata())

    async def ModelMetadata(self, request: Message, context: Context) -> Message:
        said = self._service.model_metadata(request.name, request.version or None)
        return message("ModelMetadataResponse")(**said)

    async def ModelInfer(self, request: Message, context: Context) -> Message:
        with self._service.counting_refusals(request.model_name, request.model_version or None):
            began = time.monotonic()
            inference = messages.decode(request, context.time_remaining())
            self._service.output_types(inference)
            return messages.encode(await self._service.infer(inference, began))

    async def Check(self, request: Message, context: Context) -> Message:
        """Of the server, or of a model by its name."""
        whole = request.service in ("", SERVICE.full_name)
        ready = self._service.ready if whole else self._service.model_ready(request.service, None)
        status = health_pb2.HealthCheckResponse
        return status(status=status.SERVING if ready else status.NOT_SERVING)

    async def RepositoryIndex(self, request: Message, context: Context) -> Message:
        states = self._service.index(ready=request.ready)
        return message("RepositoryIndexResponse")(models=[vars(state) for state in states])

    async def RepositoryModelLoad(self, request: Message, context: Context) -> Message:
        await self._service.load(request.model_name, dict(request.parameters))
        return message("RepositoryModelLoadResponse")()

    async def RepositoryModelUnload(self, request: Message, context: Context) -> Message:
        await self._service.unload(request.model_name, dict(request.parameters))
        return message("RepositoryModelUnloadResponse")()


def handlers(
    service: InferenceService, access: Access, admission: Admission, read_timeout: ReadTimeout
) -> tuple[grpc.GenericRpcHandler, ...]:
    """What answers the calls of the service, and those of ``grpc.health.v1``. Messages are parsed here, so that broken
    ones are refused as such. All calls are streams to gRPC's library, which would otherwise wait for a call's message,
    as long as its client likes, before it says that there is a call."""
    calls = _Calls(service)
    probed = (EVERYBODY, Admission(sys.maxsize, PROBES), ReadTimeout(min(PROBE, read_timeout.patience)))

    def handler(name: str, kind: Any) -> grpc.RpcMethodHandler:
        call: Call = getattr(calls, "ModelInfer" if name == STREAM else name)
        guard = _Guard(name, kind, call, *(probed if name in HEALTH else (access, admission, read_timeout)))
        return grpc.stream_stream_rpc_method_handler(guard.stream if name == STREAM else guard.unary)

    protocol = {each.name: handler(each.name, message(each.input_type.name)) for each in SERVICE.methods}
    health = {"Check": handler("Check", health_pb2.HealthCheckRequest)}
    return (
        grpc.method_handlers_generic_handler(SERVICE.full_name, protocol),
        grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
    )


class ReadTimeout:
    """Waits for clients, of ``patience`` seconds at most; less once the server ends."""

    def __init__(self, patience: float) -> None:
        self.patience = patience
        self._waiting: set[asyncio.Timeout] = set()

    async def next(self, context: Context) -> bytes | None:
        """A call's next message; None at the end of them. Raises :class:`RequestTimeoutError`.

        gRPC's iterator over the messages would keep the last one until the garbage collector comes.
        """
        try:
            async with asyncio.timeout(self.patience) as wait:
                self._waiting.add(wait)
                try:
                    data: bytes = await context.read()
                    return None if data is grpc.aio.EOF else data
                finally:
                    self._waiting.discard(wait)
        except TimeoutError:
            raise RequestTimeoutError(f"the call's message has not come within {self.patience:g} seconds") from None

    def shorten(self, patience: float) -> None:
        """From now on, wait for so many seconds."""
        self.patience = min(self.patience, patience)
        for wait in self._waiting:
            wait.reschedule(asyncio.get_running_loop().time() + self.patience)


@dataclass
class _Guard:
    """Around a call: the token, how many there may be, the message, errors as statuses, and the log."""

    name: str
    kind: Any
    call: Call
    access: Access
    admission: Admission
    read_timeout: ReadTimeout

    async def unary(self, requests: object, context: Context) -> None:
        """One message is answered by one."""
        began = time.perf_counter()
        try:
            self._check(context)
            with self.admission.request() as admitted:
                await self._only(admitted, context)
        except Exception as error:  # noqa: BLE001  whatever it is, the client is told a status and no more
            self._refuse(error, began, context)
        else:
            log_request("grpc", self.name, "OK", 200, time.perf_counter() - began)

    async def _only(self, admitted: Admitted, context: Context) -> None:
        data = await self._next(admitted, context)
        if data is None:
            raise InputError(f"the call of {self.name} has no message")
        await self._write(await self.call(self._parsed(data), context), admitted, context)

    async def stream(self, requests: object, context: Context) -> None:
        """Requests are answered in their order; an error is the answer to its request, and the stream goes on."""
        began = time.perf_counter()
        try:
            self._check(context)
            going_on = True
            while going_on:
                with self.admission.request() as admitted:
                    going_on = await self._one_of_many(admitted, context)
        except GlowtrainError as error:
            self._refuse(error, began, context)

    def _refuse(self, error: Exception, began: float, context: Context) -> None:
        """End a call with a status. ``context.abort`` raises an error that gRPC keeps, with the request and whatever
        else its frames have, until the garbage collector looks at all there is."""
        context.set_code(self._failed(error, began).grpc)
        context.set_details(client_message(error))

    async def _one_of_many(self, admitted: Admitted, context: Context) -> bool:
        """Answer the next request of a stream; False at its end."""
        data = await self._next(admitted, context)
        if data is None:
            return False
        began = time.perf_counter()
        try:
            answer = ModelStreamInferResponse(infer_response=await self.call(self._parsed(data), context))
        except Exception as error:  # noqa: BLE001  the same
            self._failed(error, began)
            answer = ModelStreamInferResponse(error_message=client_message(error))
        else:
            log_request("grpc", self.name, "OK", 200, time.perf_counter() - began)
        await self._write(answer, admitted, context)
        return True

    async def _next(self, admitted: Admitted, context: Context) -> bytes | None:
        data = await self.read_timeout.next(context)
        admitted.hold(len(data or b""))
        return data

    async def _write(self, answer: Message, admitted: Admitted, context: Context) -> None:
        data = answer.SerializeToString()
        admitted.answer(len(data))
        await context.write(data)  # as long as the connection may live, at most

    def _check(self, context: Context) -> None:
        metadata = context.invocation_metadata() or ()
        self.access.check([value for key, value in metadata if key == "authorization"])

    def _parsed(self, data: bytes) -> Message:
        messages.check_beside(data)
        try:
            return self.kind.FromString(data)
        except DecodeError as error:
            raise InputError(f"the request is no message of {self.name}: {error}") from None

    def _failed(self, error: Exception, began: float) -> Status:
        status = status_of(error)
        if not isinstance(error, GlowtrainError):
            LOGGER.error("call failed", exc_info=error, extra={"fields": {"call": self.name}})
        log_request("grpc", self.name, status.grpc.name, status.http, time.perf_counter() - began)
        return status
