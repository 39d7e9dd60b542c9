"""Networks in a row: the outputs of one are inputs of the next, while the first already has its next request.

Each link waits in the queue of its own network, so requests of different pipelines share batches, and two links on two
devices work at the same time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from threading import Condition
from typing import Any

from glowtrain.errors import DeadlineError, InputError
from glowtrain.presentation.words import kind_of, listed
from glowtrain.runtime.deadline import Deadline
from glowtrain.runtime.request.call import NetworkCall
from glowtrain.runtime.request.request import RequestFuture
from glowtrain.types import Array

Ask = Callable[[NetworkCall], RequestFuture]
"""How a network is asked."""


@dataclass(frozen=True)
class Link:
    """One network of a pipeline. ``feeds`` says for each of its inputs where it comes from: the name of an input of the
    pipeline, or ``"network.output"`` of a link before it; by default inputs of the same name."""

    network: str
    feeds: Mapping[str, str] = field(default_factory=dict)


class Pipeline:
    """Links in the order in which they run; ``outputs`` by name are ``"network.output"`` of any of them."""

    def __init__(self, name: str, links: Sequence[Link], outputs: Mapping[str, str]) -> None:
        self.name = name
        self.links = tuple(links)
        self.outputs = dict(outputs)

    def run(self, call: NetworkCall, ask: Ask) -> RequestFuture:
        """Ask all links, one after the other; the answer has the pipeline's outputs. Raises what asking the first one
        does, and :class:`InputError` for unknown outputs."""
        wanted = tuple(self.outputs) if call.outputs is None else tuple(call.outputs)
        if wrong := [name for name in wanted if name not in self.outputs]:
            raise InputError(f"{self.name} has no output {listed(wrong)}; it has {listed(self.outputs)}")
        return _Run(self, call, wanted, ask).start()


class Pipelines:
    """All pipelines by name, and the requests that are in them."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._all: dict[str, Pipeline] = {}
        self._flowing: set[Future[Any]] = set()

    def __contains__(self, name: object) -> bool:
        return name in self._all

    @property
    def names(self) -> tuple[str, ...]:
        """Of those that there are."""
        return tuple(self._all)

    def add(self, pipeline: Pipeline) -> None:
        """Have one more."""
        self._all[pipeline.name] = pipeline

    def run(self, call: NetworkCall, ask: Ask) -> RequestFuture:
        """What :meth:`Pipeline.run` does, of the pipeline that is called."""
        future = self._all[call.name].run(call, ask)
        with self._changed:
            self._flowing.add(future)
        future.add_done_callback(self._flowed)
        return future

    def _flowed(self, future: Future[Any]) -> None:
        with self._changed:
            self._flowing.discard(future)
            self._changed.notify_all()

    def drained(self, timeout: float | None) -> bool:
        """Wait until no request is in any of them; False where that takes longer than ``timeout`` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._flowing, timeout)


class _Run:
    """One request on its way through a pipeline."""

    def __init__(self, pipeline: Pipeline, call: NetworkCall, outputs: Sequence[str], ask: Ask) -> None:
        self.pipeline = pipeline
        self.ask = ask
        self.values: dict[str, Array] = deepcopy(dict(call.inputs))
        """What is there so far: inputs by name, results by network and output."""
        self.outputs = outputs
        self.priority = call.priority
        self.deadline = Deadline.after(call.timeout)
        self.future = RequestFuture()
        self.inner: RequestFuture | None = None
        self.future.add_done_callback(self._settled)

    def start(self) -> RequestFuture:
        """Ask the first network; its errors are raised."""
        self._ask(0)
        return self.future

    def _ask(self, index: int) -> None:
        link = self.pipeline.links[index]
        inner = self.ask(NetworkCall(link.network, self._inputs(link), priority=self.priority, timeout=self._left()))
        self.inner = inner
        inner.add_done_callback(partial(self._answered, index))
        if self.future.cancelled():
            inner.cancel()

    def _inputs(self, link: Link) -> dict[str, Array]:
        if not link.feeds:
            return {name: value for name, value in self.values.items() if "." not in name}
        missing = [source for source in link.feeds.values() if source not in self.values]
        if missing:
            raise InputError(f"{self.pipeline.name}: {listed(missing)} of network {link.network} is not there")
        return {name: self.values[source] for name, source in link.feeds.items()}

    def _left(self) -> float | None:
        left = self.deadline.left
        if left == 0:
            raise DeadlineError(f"pipeline {self.pipeline.name}: the time is over before its last network was asked")
        return left

    def _answered(self, index: int, inner: RequestFuture) -> None:
        """One network has answered: ask the next, or give the answer."""
        link = self.pipeline.links[index]
        if inner.cancelled():
            self.future.cancel()
            return
        try:
            self.values |= {f"{link.network}.{name}": value for name, value in inner.result().items()}
            if index + 1 < len(self.pipeline.links):
                self._ask(index + 1)
                return
            answer = {name: self.values[self.pipeline.outputs[name]] for name in self.outputs}
        except Exception as error:  # noqa: BLE001 - whoever asked gets it, whatever it is
            if self.future.begin():
                self.future.set_exception(error)
            return
        if self.future.begin():
            self.future.set_result(answer)

    def _settled(self, future: Future[Any]) -> None:
        if future.cancelled() and self.inner is not None:
            self.inner.cancel()


def checked(name: str, links: Any, outputs: Any) -> Pipeline:
    """A pipeline as it was asked for. Raises :class:`InputError` for links that are none, and for values that come from
    nowhere."""
    if not isinstance(links, Sequence) or not links or not all(isinstance(link, Link) for link in links):
        raise InputError(f"pipeline {name}: its links are a list of Link objects, not {kind_of(links)}")
    if not isinstance(outputs, Mapping) or not outputs:
        raise InputError(f"pipeline {name}: its outputs say for each name which network.output it is")
    before: list[str] = []
    for link in links:
        sources = [source.rpartition(".")[0] for source in link.feeds.values() if "." in source]
        if wrong := [source for source in sources if source not in before]:
            raise InputError(
                f"pipeline {name}: {link.network} takes from {listed(wrong)}, which does not run before it"
            )
        before.append(link.network)
    if wrong := [value for value in outputs.values() if value.rpartition(".")[0] not in before]:
        raise InputError(f"pipeline {name}: its outputs are of {listed(before)}, not {listed(wrong)}")
    if len(set(before)) < len(before):
        raise InputError(f"pipeline {name}: a network is in it once; add it under another name for a second time")
    return Pipeline(name, tuple(links), outputs)
