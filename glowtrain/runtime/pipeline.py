"""Networks in a row: the outputs of one are inputs of the next, while the first already has its next request.

Each link waits in the queue of its own network, so requests of different pipelines share batches, and two links on two
devices work at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from threading import Condition
from typing import Any

from glowtrain.errors import DeadlineError, InputError
from glowtrain.presentation.messages import kind_of, listed
from glowtrain.runtime.deadline import Deadline
from glowtrain.runtime.request.call import NetworkCall
from glowtrain.runtime.request.request import RequestFuture
from glowtrain.runtime.signature import requested_outputs
from glowtrain.types import Array

Ask = Callable[[NetworkCall], RequestFuture]
"""How a network is asked."""
InputsOf = Callable[[str], Collection[str]]
"""What a network takes, by its name. Raises :class:`UnknownNetworkError`."""


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

    def run(self, call: NetworkCall, ask: Ask, inputs_of: InputsOf) -> RequestFuture:
        """Ask all links, one after the other; the answer has the pipeline's outputs. Raises what asking the first one
        does, :class:`InputError` for unknown inputs and outputs, and :class:`UnknownNetworkError`."""
        if call.version is not None:
            raise InputError(f"{self.name} is a pipeline, which has no versions; {call.version!r} is asked for")
        outputs = requested_outputs(self.name, self.outputs, call.outputs)
        feeds = [link.feeds or {name: name for name in inputs_of(link.network)} for link in self.links]
        self._check_inputs(call.inputs, feeds)
        return _Run(self, call, outputs, feeds, ask).start()

    def _check_inputs(self, inputs: object, feeds: Sequence[Mapping[str, str]]) -> None:
        if not isinstance(inputs, Mapping):
            raise InputError(f"{self.name}: inputs must be a dict from names to arrays, not {kind_of(inputs)}")
        known = dict.fromkeys(source for each in feeds for source in each.values() if not self._is_made(source))
        if wrong := [name for name in inputs if name not in known]:
            raise InputError(f"{self.name}: {listed(wrong)} is not an input; it has {listed(known)}")

    def _is_made(self, source: str) -> bool:
        return any(source.startswith(f"{link.network}.") for link in self.links)


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

    def run(self, call: NetworkCall, ask: Ask, inputs_of: InputsOf) -> RequestFuture:
        """What :meth:`Pipeline.run` does, of the pipeline that is called."""
        future = self._all[call.name].run(call, ask, inputs_of)
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
    """One request on its way through a pipeline. ``feeds``: where the inputs of each link come from."""

    def __init__(
        self,
        pipeline: Pipeline,
        call: NetworkCall,
        outputs: Sequence[str],
        feeds: Sequence[Mapping[str, str]],
        ask: Ask,
    ) -> None:
        self.pipeline = pipeline
        self.ask = ask
        self.values: dict[str, Array] = deepcopy(dict(call.inputs))
        """What is there so far: inputs by name, results by network and output."""
        self.outputs = outputs
        self.feeds = feeds
        self.priority = call.priority
        self.deadline = Deadline(None if call.timeout is None else time.monotonic() + call.timeout)
        self.future = RequestFuture()
        self.inner: RequestFuture | None = None
        self.future.add_done_callback(self._settled)

    def start(self) -> RequestFuture:
        """Ask the first network; its errors are raised."""
        self._ask(0)
        return self.future

    def _ask(self, index: int) -> None:
        link = self.pipeline.links[index]
        inner = self.ask(NetworkCall(link.network, self._inputs(index), priority=self.priority, timeout=self._left()))
        self.inner = inner
        inner.add_done_callback(partial(self._answered, index))
        if self.future.cancelled():
            inner.cancel()

    def _inputs(self, index: int) -> dict[str, Array]:
        """What a link takes; an input of the same name that nobody gave is for its network to miss."""
        link, feeds = self.pipeline.links[index], self.feeds[index]
        missing = [source for source in link.feeds.values() if source not in self.values]
        if missing:
            raise InputError(f"{self.pipeline.name}: {listed(missing)} of network {link.network} is not there")
        return {name: self.values[source] for name, source in feeds.items() if source in self.values}

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
            answer = self._answer()
        except Exception as error:  # noqa: BLE001 - whoever asked gets it, whatever it is
            if self.future.begin():
                self.future.set_exception(error)
            return
        if self.future.begin():
            self.future.set_result(answer)

    def _answer(self) -> dict[str, Array]:
        """The outputs asked for, each in memory of its own."""
        sources = {name: self.pipeline.outputs[name] for name in self.outputs}
        if missing := [source for source in sources.values() if source not in self.values]:
            raise InputError(f"{self.pipeline.name}: its output {listed(missing)} is not there")
        first = {source: name for name, source in reversed(sources.items())}
        return {
            name: self.values[source] if first[source] == name else self.values[source].copy()
            for name, source in sources.items()
        }

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
        _check_link(name, link)
        sources = [source for source in link.feeds.values() if "." in source]
        if wrong := [source for source in sources if not _is_of(source, before)]:
            raise InputError(
                f"pipeline {name}: {link.network} takes from {listed(wrong)}, which does not run before it"
            )
        before.append(link.network)
    if wrong := [value for value in outputs.values() if not isinstance(value, str) or not _is_of(value, before)]:
        raise InputError(f"pipeline {name}: its outputs are of {listed(before)}, not {listed(wrong)}")
    if len(set(before)) < len(before):
        raise InputError(f"pipeline {name}: a network is in it once; add it under another name for a second time")
    return Pipeline(name, tuple(links), outputs)


def _check_link(name: str, link: Link) -> None:
    network: object = link.network
    feeds: object = link.feeds
    if not isinstance(network, str):
        raise InputError(f"pipeline {name}: a link is of a network by name, not {kind_of(network)}")
    if not isinstance(feeds, Mapping) or not all(isinstance(each, str) for pair in feeds.items() for each in pair):
        raise InputError(f"pipeline {name}: feeds of {network} say for each input, by name, where it comes from")


def _is_of(value: str, networks: Collection[str]) -> bool:
    """Whether a value is ``"network.output"`` of one of them; both names may have dots."""
    return any(value.startswith(f"{network}.") for network in networks)
