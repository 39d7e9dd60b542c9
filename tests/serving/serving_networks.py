"""Networks that are served, a host without networks, and servers on free ports of this machine."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import glowtrain as gt
from glowtrain.errors import UnknownNetworkError
from glowtrain.graph import Template
from glowtrain.runtime import HostManager
from glowtrain.runtime.observation.metrics import Metric
from glowtrain.serving.repository import ModelOptions, Repository
from glowtrain.serving.server import Server, ServerOptions
from glowtrain.serving.service import InferenceService
from glowtrain.types import Array, Spec


def scaled(factor: float = 2.0) -> Template:
    """``y`` is x times a factor, ``z`` is x plus one: what is asked for can be told from what is not."""

    @gt.model(x=gt.f32["batch", 4])
    def model(x: Any) -> Any:
        return {"y": x * factor, "z": x + 1.0}

    return model


def several_types() -> Template:
    """Inputs and outputs of types that differ in their encodings."""

    @gt.model(a=gt.f16["batch", 2], b=gt.bf16["batch", 2], c=gt.i64["batch"], d=gt.boolean["batch", 3])
    def model(a: Any, b: Any, c: Any, d: Any) -> Any:
        return {"half": a + a, "brain": b + b, "whole": c + c, "same": d}

    return model


def one_example() -> Template:
    """A network without batches: its input has no open dimension."""

    @gt.model(x=gt.f32[3])
    def model(x: Any) -> Any:
        return {"y": x * 3.0}

    return model


Served = tuple[InferenceService, Repository]


@contextlib.contextmanager
def served(
    folder: Path | None = None, options: ModelOptions | None = None, *, load: bool = True, **models: Any
) -> Iterator[Served]:
    """A service of models of these names; not loaded where a server is to do it."""
    with HostManager() as host:
        made = Repository(host, {name: lambda model=model: model for name, model in models.items()}, folder, options)
        if load:
            made.load_all()
        yield InferenceService(host, made), made


@contextlib.contextmanager
def running(service: InferenceService, repository: Any, **options: Any) -> Iterator[Server]:
    """A server on free ports, in a thread of its own."""
    given = ServerOptions(port=0, grpc_port=0, **{"drain": 5.0, **options})
    with running_server(Server(service, repository, given)) as server:
        yield server


@contextlib.contextmanager
def running_server(server: Server) -> Iterator[Server]:
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert server.loaded.wait(60)
        yield server
    finally:
        server.stop()
        thread.join(30)
        assert not thread.is_alive()


@dataclass(frozen=True)
class FakeSignature:
    inputs: Mapping[str, Spec]
    outputs: Mapping[str, Spec]


@dataclass
class FakeNetwork:
    name: str = "slow"
    version: str = "1"
    ready: bool = True
    signature: FakeSignature = field(
        default_factory=lambda: FakeSignature({"x": gt.f32["batch", 1]}, {"y": gt.f32["batch", 1]})
    )


@dataclass
class Asked:
    """What a host was asked, and the future by which it answers."""

    name: str
    inputs: Mapping[str, Array]
    said: dict[str, Any]
    future: Future[Any] = field(default_factory=Future)

    def answer(self) -> None:
        self.future.set_result({"y": self.inputs["x"]})


class FakeHost:
    """Answers when it is told to, or with ``error``."""

    def __init__(self, *networks: FakeNetwork, error: BaseException | None = None) -> None:
        self.known = list(networks) or [FakeNetwork()]
        self.error = error
        self.asked: list[Asked] = []
        self.came = threading.Semaphore(0)

    def networks(self) -> Sequence[FakeNetwork]:
        return self.known

    def network(self, name: str, version: str | None = None) -> FakeNetwork:
        for each in self.known:
            if each.name == name and version in (None, each.version):
                return each
        raise UnknownNetworkError(f"there is no network {name!r}")

    def run(
        self, name: str, inputs: Mapping[str, Array], *, version: str | None = None,
        outputs: Collection[str] | None = None, priority: int = 0, timeout: float | None = None, quick: float = 0.0,
    ) -> Future[Any]:  # fmt: skip
        said = {"version": version, "outputs": outputs, "priority": priority, "timeout": timeout}
        asked = Asked(name, inputs, said)
        self.asked.append(asked)
        if self.error is not None:
            asked.future.set_exception(self.error)
        self.came.release()
        return asked.future

    def put_versions(self, name: str, models: Mapping[str, Any], **options: Any) -> list[FakeNetwork]:
        added = [FakeNetwork(name, version) for version in models]
        self.known += added
        return added

    def remove_network(self, name: str, version: str | None = None) -> None:
        self.known = [each for each in self.known if (each.name, each.version) != (name, version)]

    def metrics(self) -> Sequence[Metric]:
        return []


def fake_service(host: FakeHost) -> tuple[InferenceService, Repository]:
    """A service over a host that answers by hand."""
    repository = Repository(host, {})
    repository.load_all()
    return InferenceService(host, repository), repository
