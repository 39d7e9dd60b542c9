"""The calls of gRPC, from ``open_inference.proto``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from glowtrain.errors import GlowtrainError, InputError
from glowtrain.serving.access import EVERYBODY, Access
from glowtrain.serving.logs import LOGGER, log_request
from glowtrain.serving.rpc import messages
from glowtrain.serving.rpc.schema import SERVICE, Message, ModelStreamInferResponse, message
from glowtrain.serving.service import InferenceService
from glowtrain.serving.status import Status, status_of, told

Context = Any
"""A ``grpc.aio.ServicerContext``."""
Call = Callable[[Message, Context], Awaitable[Message]]
HEALTH = ("ServerLive", "ServerReady")
"""Calls that need no token."""
STREAM = "ModelStreamInfer"


class _Calls:
    """A method a call, of its name: a message in, a message out."""

    def __init__(self, service: InferenceService) -> None:
        self._service = service

    async def ServerLive(self, asked: Message, context: Context) -> Message:
        return message("ServerLiveResponse")(live=True)

    async def ServerReady(self, asked: Message, context: Context) -> Message:
        return message("ServerReadyResponse")(ready=self._service.ready)

    async def ModelReady(self, asked: Message, context: Context) -> Message:
        return message("ModelReadyResponse")(ready=self._service.model_ready(asked.name, asked.version or None))

    async def ServerMetadata(self, asked: Message, context: Context) -> Message:
        return message("ServerMetadataResponse")(**self._service.server_metadata())

    async def ModelMetadata(self, asked: Message, context: Context) -> Message:
        said = self._service.model_metadata(asked.name, asked.version or None)
        return message("ModelMetadataResponse")(**said)

    async def ModelInfer(self, asked: Message, context: Context) -> Message:
        with self._service.counting_refusals(asked.model_name, asked.model_version or None):
            request = messages.decode(asked, context.time_remaining())
            self._service.output_types(request)
            return messages.encode(await self._service.infer(request))

    async def RepositoryIndex(self, asked: Message, context: Context) -> Message:
        states = self._service.index(ready=asked.ready)
        return message("RepositoryIndexResponse")(models=[vars(state) for state in states])

    async def RepositoryModelLoad(self, asked: Message, context: Context) -> Message:
        await self._service.load(asked.model_name, dict(asked.parameters))
        return message("RepositoryModelLoadResponse")()

    async def RepositoryModelUnload(self, asked: Message, context: Context) -> Message:
        await self._service.unload(asked.model_name, dict(asked.parameters))
        return message("RepositoryModelUnloadResponse")()


def handlers(service: InferenceService, access: Access) -> grpc.GenericRpcHandler:
    """What answers the calls of the service. Messages are parsed here, so that broken ones are refused as such."""
    calls = _Calls(service)
    made = {}
    for each in SERVICE.methods:
        guard = _Guard(each.name, message(each.input_type.name), access)
        if each.name == STREAM:
            made[each.name] = grpc.stream_stream_rpc_method_handler(guard.stream(calls.ModelInfer), None, _to_bytes)
        else:
            call: Call = getattr(calls, each.name)
            made[each.name] = grpc.unary_unary_rpc_method_handler(guard.unary(call), None, _to_bytes)
    return grpc.method_handlers_generic_handler(SERVICE.full_name, made)


def _to_bytes(answer: Message) -> bytes:
    found: bytes = answer.SerializeToString()
    return found


class _Guard:
    """Around a call: the token, the message, errors as statuses, and the log."""

    def __init__(self, name: str, kind: Any, access: Access) -> None:
        self._name = name
        self._kind = kind
        self._access = EVERYBODY if name in HEALTH else access

    def unary(self, call: Call) -> Callable[[bytes, Context], Awaitable[Message]]:
        async def guarded(data: bytes, context: Context) -> Message:
            began = time.perf_counter()
            try:
                self._check(context)
                answer = await call(self._parsed(data), context)
            except Exception as error:  # noqa: BLE001  whatever it is, the client is told a status and no more
                status = self._failed(error, began)
                await context.abort(status.grpc, told(error))
            log_request("grpc", self._name, "OK", 200, time.perf_counter() - began)
            return answer

        return guarded

    def stream(self, call: Call) -> Callable[[AsyncIterator[bytes], Context], AsyncIterator[Message]]:
        """Requests are answered in their order; an error is the answer to its request, and the stream goes on."""

        async def guarded(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[Message]:
            try:
                self._check(context)
            except GlowtrainError as error:
                await context.abort(status_of(error).grpc, told(error))
            async for data in requests:
                yield await self._answered(call, data, context)

        return guarded

    async def _answered(self, call: Call, data: bytes, context: Context) -> Message:
        began = time.perf_counter()
        try:
            answer = ModelStreamInferResponse(infer_response=await call(self._parsed(data), context))
        except Exception as error:  # noqa: BLE001  the same
            self._failed(error, began)
            return ModelStreamInferResponse(error_message=told(error))
        log_request("grpc", self._name, "OK", 200, time.perf_counter() - began)
        return answer

    def _check(self, context: Context) -> None:
        metadata = context.invocation_metadata() or ()
        self._access.check([value for key, value in metadata if key == "authorization"])

    def _parsed(self, data: bytes) -> Message:
        try:
            return self._kind.FromString(data)
        except DecodeError as error:
            raise InputError(f"the request is no message of {self._name}: {error}") from None

    def _failed(self, error: Exception, began: float) -> Status:
        status = status_of(error)
        if not isinstance(error, GlowtrainError):
            LOGGER.error("call failed", exc_info=error, extra={"fields": {"call": self._name}})
        log_request("grpc", self._name, status.grpc.name, status.http, time.perf_counter() - began)
        return status
