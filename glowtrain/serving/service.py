"""The inference service behind both transports: the server's and models' state, answers, and the repository."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from typing import Any

from glowtrain.errors import (
    BusyError,
    DeadlineError,
    GlowtrainError,
    InputError,
    RequestSizeError,
    RequestTimeoutError,
    UnavailableError,
    UnknownNetworkError,
)
from glowtrain.serving.host import ServedNetwork, ServingHost
from glowtrain.serving.logs import LOGGER
from glowtrain.serving.metrics import OTHER, REJECTED, Refusals, exposition
from glowtrain.serving.repository import ModelState, Repository
from glowtrain.serving.requests import InferAnswer, InferRequest, check_outputs
from glowtrain.serving.tensors import datatype
from glowtrain.serving.threads import in_daemon
from glowtrain.types import Spec
from glowtrain.version import __version__

SERVER = "glowtrain"
EXTENSIONS = ("binary_tensor_data", "model_repository", "parameters", "schedule_policy")
"""Of the protocol, by the names that Triton gives them."""
PLATFORM = "glowtrain_onnx"
QUICK = 1e-3
"""Seconds of a network that runs in the event loop's own thread: waking another takes as long on a busy machine."""


class InferenceService:
    """Answers the protocol's requests from a host and a repository of models."""

    def __init__(self, host: ServingHost, repository: Repository) -> None:
        self._host = host
        self._repository = repository
        self._refusals = Refusals()
        self.open = True
        """Whether anything new should come."""
        self._one_at_a_time = asyncio.Lock()
        """For what changes the repository: clients that ask again and again take no threads."""

    def close(self) -> None:
        """No longer be ready: nothing new should come."""
        self.open = False

    @property
    def ready(self) -> bool:
        """Whether every model that was asked for is loaded and answers without compiling anything."""
        return self.open and self._repository.complete and all(network.ready for network in self._host.networks())

    def model_ready(self, name: str, version: str | None) -> bool:
        """Whether a model is. Raises :class:`UnknownNetworkError` for one that the repository does not have either."""
        try:
            return self.open and self._host.network(name, version).ready
        except UnknownNetworkError:
            if self._repository.has(name, version):
                return False
            raise

    def server_metadata(self) -> dict[str, Any]:
        """The server's name, version, and the extensions of the protocol that it has."""
        return {"name": SERVER, "version": __version__, "extensions": list(EXTENSIONS)}

    def models(self) -> list[str]:
        """The names of models that are loaded."""
        return sorted({network.name for network in self._host.networks()})

    def model_metadata(self, name: str, version: str | None) -> dict[str, Any]:
        """A model's versions, inputs and outputs. Raises :class:`UnknownNetworkError`."""
        network = self._network(name, version)
        versions = [each.version for each in self._host.networks() if each.name == name]
        return {
            "name": name,
            "versions": versions,
            "platform": PLATFORM,
            "inputs": _described(network.signature.inputs),
            "outputs": _described(network.signature.outputs),
        }

    def output_types(self, request: InferRequest) -> dict[str, str]:
        """The protocol's types of a model's outputs. Raises :class:`InputError` for one that is asked for and is not
        there, :class:`UnknownNetworkError`."""
        network = self._network(request.model, request.version)
        wanted(request, network)
        return {name: datatype(spec.dtype) for name, spec in network.signature.outputs.items()}

    @contextmanager
    def counting_refusals(self, model: str, version: str | None) -> Iterator[None]:
        """Count what is raised within of a request that is refused before the host has seen it.

        Raises :class:`UnknownNetworkError` before that.
        """
        network = self._network(model, version)
        try:
            yield
        except (InputError, RequestSizeError, RequestTimeoutError, BusyError):
            self._refusals.add(network.name, network.version, OTHER)
            raise

    def metrics(self) -> str:
        """The numbers of all networks, for Prometheus."""
        return exposition(self._refusals.added(self._host.metrics()))

    async def infer(self, request: InferRequest, began: float) -> InferAnswer:
        """The answer to a request that ``began`` to be read then, by ``time.monotonic``. To cancel it takes the request
        back.

        Raises :class:`InputError`, and the subclasses of :class:`RequestError` that the host does.
        """
        try:
            request = request.since(began)
        except DeadlineError:
            self._refusals.add(request.model, self._network(request.model, request.version).version, REJECTED)
            raise
        network, future = self._asked(request)
        answer = future.result() if future.done() else await asyncio.wrap_future(future)
        return InferAnswer(
            request.model, network.version, request.id, {name: answer[name] for name in wanted(request, network)}
        )

    def _network(self, name: str, version: str | None) -> ServedNetwork:
        """A network by name. Raises :class:`UnknownNetworkError`, :class:`UnavailableError` for one that is about to be
        there."""
        try:
            return self._host.network(name, version)
        except UnknownNetworkError:
            if self._repository.is_loading(name, version):
                raise UnavailableError(f"model {name!r} is being loaded; ask again later") from None
            raise

    def _asked(self, request: InferRequest) -> tuple[ServedNetwork, Future[Any]]:
        """The network that takes a request: where one goes out of service just then, the one in its place."""
        network = self._network(request.model, request.version)
        while True:
            try:
                return network, self._host.run(
                    request.model, request.inputs, version=network.version, outputs=wanted(request, network),
                    priority=request.priority, timeout=request.timeout, quick=QUICK,
                )  # fmt: skip
            except (UnknownNetworkError, UnavailableError):
                present = self._network(request.model, request.version)
                if present is network:
                    raise
                network = present

    def index(self, *, ready: bool = False) -> list[ModelState]:
        """Every version of every model of the repository, or only those that are ready."""
        return [each for each in self._repository.index() if not ready or each.state == "READY"]

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load a model, or load it anew. Raises :class:`InputError`, :class:`ModelError`, :class:`ProvisionError`."""
        self._check_open_to_clients()
        if parameters:
            raise InputError(f"a model is loaded as its folder says; parameters {sorted(parameters)} are not taken")
        try:
            await self._alone(partial(self._repository.load, name), "serving: loading")
        except GlowtrainError as error:
            LOGGER.warning("loading failed", extra={"fields": {"model": name, "error": str(error)}})
            error.args = (self._repository.public(error),)
            raise
        versions = [each.version for each in self._repository.index() if each.name == name and each.state == "READY"]
        LOGGER.info("loaded", extra={"fields": {"model": name, "versions": versions}})

    async def unload(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Unload all versions of a model; their requests are answered first. Raises :class:`UnknownNetworkError`."""
        self._check_open_to_clients()
        if set(parameters) - {"unload_dependents"}:  # no model depends on another here
            raise InputError(f"parameters {sorted(parameters)} are not taken; unload_dependents is")
        await self._alone(partial(self._repository.unload, name), "serving: unloading")
        LOGGER.info("unloaded", extra={"fields": {"model": name}})

    async def _alone(self, change: Callable[[], None], name: str) -> None:
        """Change the repository when nobody else does. Who goes away meanwhile leaves what has begun alone, and others
        wait for it all the same."""
        await self._one_at_a_time.acquire()
        changing = asyncio.create_task(in_daemon(change, name))
        changing.add_done_callback(lambda _: self._one_at_a_time.release())
        await asyncio.shield(changing)

    def _check_open_to_clients(self) -> None:
        if not self._repository.has_folder:
            raise InputError("clients load and unload models only of a server that was started with a repository")


def _described(specs: Mapping[str, Spec]) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": datatype(spec.dtype),
            "shape": [extent if isinstance(extent, int) else -1 for extent in spec.shape],
        }
        for name, spec in specs.items()
    ]


def wanted(request: InferRequest, network: ServedNetwork) -> list[str]:
    """The outputs that a request asks for. Raises :class:`InputError` for one that the network does not have."""
    names = [output.name for output in request.outputs] or list(network.signature.outputs)
    check_outputs(names, network.signature.outputs, request.model)
    return names
