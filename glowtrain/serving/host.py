"""What serving needs of a host of networks: the face of :class:`glowtrain.runtime.HostManager` that it uses."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Protocol

from glowtrain.graph import Graph, Template
from glowtrain.runtime.observation.metrics import Metric
from glowtrain.types import Array, Spec


class TensorSpecs(Protocol):
    """What a network takes and gives, by name; extents that are open have names."""

    @property
    def inputs(self) -> Mapping[str, Spec]: ...

    @property
    def outputs(self) -> Mapping[str, Spec]: ...


class ServedNetwork(Protocol):
    """One version of a network."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def signature(self) -> TensorSpecs: ...

    @property
    def ready(self) -> bool:
        """Whether every batch size that may be formed is compiled and has run."""
        ...


class ServingHost(Protocol):
    """Networks by name and version, and requests to them. Every method may be called from any thread."""

    def networks(self) -> Sequence[ServedNetwork]:
        """All of them, the versions of each ascending."""
        ...

    def network(self, name: str, version: str | None = None) -> ServedNetwork:
        """One of them; the highest version without one. Raises :class:`UnknownNetworkError`."""
        ...

    def run(
        self,
        name: str,
        inputs: Mapping[str, Array],
        *,
        version: str | None = None,
        outputs: Collection[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
        quick: float = 0.0,
    ) -> Future[Any]:
        """The outputs, by name, that will come; to cancel them is to take the request back. More urgent requests have
        the higher priority; ``timeout`` is in seconds. A network that takes less than
        ``quick`` seconds may run in this thread. Raises :class:`InputError`, :class:`RequestError`."""
        ...

    def put_versions(
        self,
        name: str,
        models: Mapping[str, Graph | Template],
        *,
        max_batch: int | None = None,
        batch_sizes: Sequence[int] | None = None,
        max_delay: float = 0.0,
        queue: int = 256,
        replicas: int = 1,
        accept: Callable[[TensorSpecs], None] | None = None,
    ) -> Sequence[ServedNetwork]:
        """Load versions, all of them or none; they may take the places of those that are there. What ``accept`` raises
        for what one takes and gives is raised before that. See :meth:`glowtrain.runtime.HostManager.put_versions`."""
        ...

    def remove_network(self, name: str, version: str | None = None) -> None:
        """Answer what was asked of a version, and unload it. Raises :class:`UnknownNetworkError`."""
        ...

    def metrics(self) -> Sequence[Metric]:
        """What the networks have done."""
        ...
