"""The host manager: networks on the devices of this machine, and requests to them as they come.

Its five parts are those that Glow's runtime planned: a :class:`DeviceManager` for each device, a partition of each
network (:mod:`glowtrain.runtime.partition`), the :class:`Provisioner` that places it, the :class:`Executor` that runs
it, and this one, through which everybody else goes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from threading import Condition, Event, Thread
from types import TracebackType
from typing import Any

from glowtrain.backends.device import Device
from glowtrain.errors import InputError, UnavailableError, UnknownNetworkError
from glowtrain.forks import renew_in_children
from glowtrain.graph import Graph
from glowtrain.presentation.words import kind_of, listed
from glowtrain.runtime.checks import count, positive, seconds, text
from glowtrain.runtime.device.device_manager import DeviceManager, DeviceStatus
from glowtrain.runtime.device.host_device import as_devices
from glowtrain.runtime.models import Model, ServedModel, Terms, prepared
from glowtrain.runtime.network import Network, Service
from glowtrain.runtime.observation.metrics import Metric
from glowtrain.runtime.observation.trace import RuntimeTrace
from glowtrain.runtime.partition.partition import Partition
from glowtrain.runtime.pipeline import Link, Pipeline, Pipelines, checked
from glowtrain.runtime.placement.provisioner import Provisioner
from glowtrain.runtime.placement.replica import Replica
from glowtrain.runtime.request.call import NetworkCall
from glowtrain.runtime.request.request import NetworkRequest, RequestFuture
from glowtrain.runtime.training import TrainingNetwork, placed_training
from glowtrain.runtime.warm_up import DependentRowsError, warm_up
from glowtrain.trainer import Trainer
from glowtrain.types import Array


@dataclass(frozen=True)
class Destination:
    """The devices that a network may go onto, and how often."""

    managers: tuple[DeviceManager, ...]
    replicas: int


TIME_LIMIT = 60.0
"""Seconds that a device may take for one run, unless it is told: then it counts as hung."""


class HostManager:
    """Networks on ``devices``: names of backends or :class:`~glowtrain.backends.device.Device` objects (see
    :func:`~glowtrain.runtime.device.host_device.cpu_devices`); by default one of all cores.

    A device that takes longer than ``time_limit`` seconds over one run goes out of service (None: it never does). With
    ``trace`` the latest events are remembered, for :attr:`trace`. To be closed, best by ``with``: then requests that
    wait are answered first.
    """

    def __init__(
        self,
        devices: Sequence[str | Device] | None = None,
        *,
        time_limit: float | None = TIME_LIMIT,
        trace: bool = False,
    ) -> None:
        if time_limit is not None and not positive(time_limit):
            raise InputError(f"time_limit is a number of seconds above 0, or None, not {time_limit!r}")
        self.managers = {device.name: DeviceManager(device, time_limit) for device in as_devices(devices)}
        self.provisioner = Provisioner(tuple(self.managers.values()))
        self.trace = RuntimeTrace() if trace else None
        self._lock = Condition()
        self._networks: dict[str, dict[str, Network]] = {}
        """By name and version; the version that was added last is the one that is meant. Read without the lock, so a
        network's versions are another dict whenever they change."""
        self._retiring: tuple[Network, ...] = ()
        self._adding: set[tuple[str, str]] = set()
        self._trainings: list[TrainingNetwork] = []
        self._pipelines = Pipelines()
        self._flows_end = False
        """Whether it is closed but for requests in pipelines, which have networks to ask yet."""
        self._closed: str | None = None
        self._ended = Event()
        self._tick = 0.05 if time_limit is None else min(0.05, time_limit / 4)
        self._watch = Thread(target=self._watching, name="runtime watch", daemon=True)
        self._watch.start()
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of fork, which has none of the threads."""
        self._lock, self._closed = Condition(), "it was made in another process, which forked; make one here"
        for network in (*self.networks(), *self._retiring):
            network.renew(self._closed)
        for manager in self.managers.values():
            manager.renew(self._closed)
        self._networks, self._retiring, self._pipelines = {}, (), Pipelines()

    def __enter__(self) -> HostManager:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=error is None)

    # --- networks -----------------------------------------------------------------------------------------------------

    def add_network(
        self,
        name: str,
        model: Model,
        *,
        version: str = "1",
        max_batch: int | None = None,
        batch_sizes: Sequence[int] | None = None,
        dims: Mapping[str, int] | None = None,
        max_delay: float = 0.0,
        queue: int = 256,
        devices: Sequence[str] | None = None,
        replicas: int = 1,
        partition: Partition | Callable[[Graph], Partition] | None = None,
        replace: bool = False,
    ) -> Network:
        """Compile a model, put it onto devices and run it once at each batch size; then it is ready.

        A model whose inputs share an open first dimension, or that is bound to one and gives as many outputs, is
        batched: requests may have any number of rows, and are cut and joined to batches of the compiled sizes:
        ``batch_sizes``, by default powers of two up to ``max_batch`` (8). ``dims`` binds what else is open. A request
        waits at most ``max_delay`` seconds for others to share a batch with, and no more than ``queue`` requests wait.
        It goes onto one of ``devices`` (names; by default any) so many times as ``replicas`` says, or in the parts of
        a ``partition``, a function from the bound graph for several sizes. With ``replace`` it takes the place of one
        of its name and version, which answers until then.

        Raises :class:`InputError` for what cannot be meant, a name that is there already included,
        :class:`ProvisionError` where it fits nowhere, :class:`DeviceError` where a device fails: nothing is left then.
        """
        self._check_thread("add_network")
        service = Service(max_delay=seconds("max_delay", max_delay), queue=count("queue", queue))
        where = Destination(tuple(self._chosen(devices)), count("replicas", replicas))
        text("a network's name", name), text("a version", version)
        self._begin_adding(name, version, replace=replace)
        try:
            terms = Terms(max_batch, batch_sizes, dims, partition)
            network = self._served(name, version, model, terms, service, where)
            self._register(network)
        finally:
            with self._lock:
                self._adding.discard((name, version))
                self._lock.notify_all()
        return network

    def _register(self, network: Network) -> None:
        replaced = None
        with self._lock:
            if self._closed is None:
                versions = self._networks.get(network.name, {})
                replaced = versions.get(network.version)
                self._networks[network.name] = {**versions, network.version: network}
        if replaced is not None:
            self._retire(replaced, "it was replaced", drain=True, timeout=None)
        if self._closed is not None:
            self._retire(network, self._closed, drain=False, timeout=None)
            self._check_open()

    def _served(
        self, name: str, version: str, model: Model, terms: Terms, service: Service, where: Destination
    ) -> Network:
        """A network that is placed, and that nobody knows yet. Where the first axis of a bound graph turns out not to
        be one of examples, and nobody said that it is, it takes one request at a time."""
        form = prepared(name, model, terms)
        try:
            return self._placed(name, version, form, service, where)
        except DependentRowsError:
            if terms.batches_asked or not isinstance(model, Graph):
                raise
        return self._placed(name, version, prepared(name, model, terms, batched=False), service, where)

    def add_training(
        self,
        name: str,
        trainer: Trainer,
        *,
        batch_size: int,
        devices: Sequence[str] | None = None,
        parts: int | None = None,
        queue: int = 16,
    ) -> TrainingNetwork:
        """Put a trainer's step for batches of a size onto devices, and its variables; no more than ``queue`` steps
        wait. On several ``devices`` (by default all), each batch is cut into equal ``parts``, by default one for each
        of them; the variables are then those that one device has after adding up the gradients of as many batches.

        Raises :class:`InputError` for what cannot be meant, :class:`ProvisionError` where it fits nowhere,
        :class:`DeviceError` where a device fails: nothing is left then.
        """
        self._check_open()
        managers = self._chosen(devices)
        parts = len(managers) if parts is None else count("parts", parts)
        managers = managers[:parts]
        count("batch_size", batch_size)
        with ExitStack() as undo:
            placed = placed_training(text("a training's name", name), trainer, batch_size, parts, managers, undo)
            undo.pop_all()
        training = TrainingNetwork(name, trainer, batch_size, parts, placed, count("queue", queue))
        with self._lock:
            self._trainings.append(training)
        if self._closed is not None:
            training.close(self._closed)
            self._check_open()
        return training

    def add_pipeline(self, name: str, links: Sequence[Link], outputs: Mapping[str, str]) -> Pipeline:
        """Networks in a row under one name, for :meth:`run` (see :class:`Link`); ``outputs`` says which
        ``"network.output"`` each output is. The networks are looked up at each request, so they can be replaced.

        Raises :class:`InputError` for a name that is there already, and for values that come from nowhere.
        """
        pipeline = checked(text("a pipeline's name", name), links, outputs)
        with self._lock:
            self._check_open()
            if name in self._networks or name in self._pipelines:
                raise InputError(f"there is a network or pipeline {name} already")
            self._pipelines.add(pipeline)
        return pipeline

    def _begin_adding(self, name: str, version: str, *, replace: bool) -> None:
        with self._lock:
            self._check_open()
            there = version in self._networks.get(name, {}) and not replace
            if name in self._pipelines or there or (name, version) in self._adding:
                raise InputError(
                    f"there is a network {name}, version {version}, already; remove it first, or replace_network"
                )
            self._adding.add((name, version))

    def _placed(self, name: str, version: str, form: ServedModel, service: Service, where: Destination) -> Network:
        network = Network(name, version, form.signature, form.service(service), self.trace)
        if network.updates and where.replicas > 1:
            raise InputError(f"network {name} updates variables: they would differ in its {where.replicas} replicas")
        with ExitStack() as undo:
            for _ in range(where.replicas):
                network.attach(self._replica(network, form, where.managers, undo))
            undo.pop_all()
        return network

    def _replica(
        self, network: Network, form: ServedModel, wanted: Sequence[DeviceManager], undo: ExitStack
    ) -> Replica:
        """One more placement, on devices that have none of this network where there are enough of them; it has run."""
        busy = {manager for replica in network.replicas for manager in replica.placed.managers}
        free = [manager for manager in wanted if manager not in busy]
        placed = self.provisioner.place(network.name, form.partitions, free if len(free) >= form.stages else wanted)
        undo.callback(placed.release)
        warm_up(placed, form)
        replica = Replica(network, placed)
        undo.callback(replica.first.detach, replica)
        return replica

    def _chosen(self, names: Sequence[str] | None) -> list[DeviceManager]:
        if names is None:
            return list(self.managers.values())
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InputError(f"devices are a list of names, not {kind_of(names)}")
        wrong = [repr(name) for name in names if name not in self.managers]
        if wrong or not names:
            raise InputError(
                f"there is no device {', '.join(wrong) or 'in an empty list'}; there is {listed(self.managers)}"
            )
        return [self.managers[name] for name in names]

    def network(self, name: str, version: str | None = None) -> Network:
        """A network by name, and by version; by default the one that was added last. Raises
        :class:`UnknownNetworkError` naming those that there are."""
        versions = self._networks.get(name)
        if not versions:
            known = (*self._networks, *self._pipelines.names)
            raise UnknownNetworkError(f"there is no network {name!r}; there is {listed(known) if known else 'none'}")
        if version is None:
            return next(reversed(versions.values()))
        if version not in versions:
            raise UnknownNetworkError(f"network {name} has no version {version!r}; it has {listed(versions)}")
        return versions[version]

    def networks(self) -> list[Network]:
        """All networks in all versions."""
        with self._lock:
            return [network for versions in self._networks.values() for network in versions.values()]

    def replace_network(self, name: str, model: Model, *, version: str | None = None, **options: Any) -> Network:
        """Put another model in a network's place, as its next ``version``, with the options of :meth:`add_network`.

        The old one answers until the new one is ready, and whatever was asked of it by then; no request is lost. Raises
        as :meth:`add_network` does; the old one stays then.
        """
        old = self.network(name)
        new = self.add_network(name, model, version=self._following(old) if version is None else version, **options)
        with suppress(UnknownNetworkError):  # somebody else has removed it meanwhile
            self.remove_network(name, old.version)
        return new

    def _following(self, network: Network) -> str:
        """A version after a network's that is not there."""
        version = network.version
        while version in self._networks.get(network.name, {}) or version == network.version:
            version = str(int(version) + 1) if version.isdecimal() else f"{version}.1"
        return version

    def remove_network(
        self, name: str, version: str | None = None, *, drain: bool = True, timeout: float | None = None
    ) -> None:
        """Take a network out: it takes no more requests, answers those that wait (or with ``drain=False`` fails them),
        for at most ``timeout`` seconds, and leaves its devices. Raises :class:`UnknownNetworkError`, and
        :class:`DeviceError` where a device did not unload it; it is taken out all the same."""
        self._check_thread("remove_network")
        with self._lock:
            network = self.network(name, version)
            versions = {key: each for key, each in self._networks[name].items() if each is not network}
            self._networks[name] = versions
            if not versions:
                del self._networks[name]
        _raise_first(self._retire(network, "it was removed", drain, timeout))

    def _retire(self, network: Network, why: str, drain: bool, timeout: float | None) -> list[Exception]:
        """Take a network out that nobody can find any more; what its devices did not do."""
        until = None if timeout is None else time.monotonic() + timeout
        network.close(why)
        with self._lock:
            self._retiring = (*self._retiring, network)
        gone = UnavailableError(f"network {network.name}, version {network.version}: {why}")
        if not drain or not network.drained(timeout):
            network.fail_waiting(gone)
            network.drained(_left(until))  # what runs ends by itself
        replicas, network.replicas = network.replicas, ()
        network.fail_waiting(gone)
        self._leave(replicas, until)
        with self._lock:
            self._retiring = tuple(each for each in self._retiring if each is not network)
        return [replica.problem for replica in replicas if replica.problem is not None]

    def _leave(self, replicas: Sequence[Replica], until: float | None) -> None:
        """Have placements leave their devices; it is waited for until a time."""
        leaving = [Thread(target=replica.leave, name="runtime leaving", daemon=True) for replica in replicas]
        for thread in leaving:
            thread.start()
        for thread in leaving:
            thread.join(_left(until))

    # --- requests -----------------------------------------------------------------------------------------------------

    def run(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Collection[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> RequestFuture:
        """Ask a network; the answer is a dict of arrays by name, of the ``outputs`` asked for. It can be awaited, and
        cancelled as long as it waits. Higher priorities go first. Without an answer within ``timeout`` seconds it is a
        :class:`DeadlineError`.

        Raises :class:`UnknownNetworkError`, :class:`InputError` for what does not fit the network,
        :class:`QueueFullError` naming the limit, :class:`UnavailableError`.
        """
        call = NetworkCall(name, inputs, version, outputs, priority, timeout)
        self._check_open()
        if name in self._pipelines:
            return self._pipelines.run(call, self._enqueued)
        return self._enqueued(call)

    def _enqueued(self, call: NetworkCall) -> RequestFuture:
        return self._asked(call, Network.enqueue, copied=True)

    def run_sync(
        self,
        name: str,
        inputs: Mapping[str, Any],
        *,
        version: str | None = None,
        outputs: Collection[str] | None = None,
        priority: int = 0,
        timeout: float | None = None,
    ) -> dict[str, Array]:
        """The answer itself: :meth:`run` and waiting for it. Where nothing waits and the device is free, this thread
        runs it."""
        if name in self._pipelines:
            return self._waited(self.run(name, inputs, outputs=outputs, priority=priority, timeout=timeout))
        call = NetworkCall(name, inputs, version, outputs, priority, timeout)
        self._check_open()
        return self._waited(self._asked(call, Network.enqueue if timeout else Network.run_or_enqueue, copied=False))

    def _asked(
        self, call: NetworkCall, ask: Callable[[Network, NetworkRequest], RequestFuture], *, copied: bool
    ) -> RequestFuture:
        """Ask a network; where it was replaced after it had been found, the one in its place."""
        while True:
            if self._closed is not None and not self._flows_end:
                self._check_open()
            network = self.network(call.name, call.version)
            request = network.request(call, copied=copied)
            try:
                if network.admit(request):
                    return ask(network, request)
            except BaseException as error:
                if not isinstance(error, Exception):  # an interrupt, in whatever moment: nothing waits for it
                    network.forget(request, error)
                raise
            if self._networks.get(call.name, {}).get(network.version) is network:
                raise network.unavailable()

    def _waited(self, future: RequestFuture) -> dict[str, Array]:
        """The answer, once it is there."""
        if not future.done():
            try:
                self._check_thread("run_sync")
            except InputError:
                future.cancel()
                raise
        try:
            answer: dict[str, Array] = future.result()
        except BaseException:
            future.cancel()  # nobody waits for it, if it was not its own error
            raise
        return answer

    # --- what can be seen ---------------------------------------------------------------------------------------------

    def status(self) -> list[DeviceStatus]:
        """The devices as they are now."""
        return [manager.status for manager in self.managers.values()]

    def metrics(self) -> list[Metric]:
        """What all networks have done, in numbers."""
        return [sample for network in self.networks() for sample in network.samples()]

    # --- its end ------------------------------------------------------------------------------------------------------

    def close(self, *, drain: bool = True, timeout: float | None = None) -> None:
        """End everything: no more requests; those that wait are answered, for at most ``timeout`` seconds (or with
        ``drain=False`` failed); networks leave their devices, whose threads end. Raises :class:`DeviceError` where a
        device did not unload a network; everything has ended all the same."""
        self._check_thread("close")
        with self._lock:
            if self._closed is not None:
                return
            self._closed, self._flows_end = "it is closed", drain
        until = None if timeout is None else time.monotonic() + timeout
        if drain:
            self._pipelines.drained(timeout)
        with self._lock:
            self._flows_end = False
            networks = self.networks()
            self._networks.clear()
        for network in networks:
            network.close("the runtime is closed")
        problems = []
        for network in networks:
            problems += self._retire(network, "the runtime is closed", drain, _left(until))
        for training in self._trainings:
            training.close("the runtime is closed")
        with self._lock:
            self._lock.wait_for(lambda: not self._adding, _left(until))
        self._ended.set()
        self._watch.join()
        for manager in self.managers.values():
            manager.close(_left(until))
        _raise_first(problems)

    def _check_thread(self, what: str) -> None:
        """Raise :class:`InputError` on a device's own thread for what waits for devices."""
        if any(manager.on_thread for manager in self.managers.values()):
            raise InputError(
                f"{what} was called by a device's own thread, which answers requests: it would wait for itself; in a "
                "callback of a future use run, or another thread"
            )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise UnavailableError(f"the runtime takes no requests: {self._closed}")

    # --- watching -----------------------------------------------------------------------------------------------------

    def _watching(self) -> None:
        """Answer what is late, and take out devices that have hung."""
        while not self._ended.wait(self._tick):
            now = time.monotonic()
            for manager in self.managers.values():
                if (error := manager.overdue(now)) is not None:
                    manager.lose(error)
                manager.check(now)
            for network in (*self.networks(), *self._retiring):
                network.queue.expire(now)
                self._leave(network.drop_lost(), until=now)


def _raise_first(problems: Sequence[Exception]) -> None:
    if problems:
        raise problems[0]


def _left(until: float | None) -> float | None:
    return None if until is None else max(until - time.monotonic(), 0.0)
