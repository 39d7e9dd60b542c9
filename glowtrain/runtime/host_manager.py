"""The host manager: networks on the devices of this machine, and requests to them as they come.

The runtime's five parts are those that Glow planned: a :class:`DeviceManager` for each device, a partition of each
network (:mod:`glowtrain.runtime.partition`), the :class:`Provisioner` that places it, the :class:`Executor` that runs
it, and this one, through which everybody else goes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from glowtrain.backends.device import Device
from glowtrain.errors import InputError, UnknownNetworkError
from glowtrain.forks import renew_in_children
from glowtrain.graph import Graph
from glowtrain.presentation.messages import kind_of, listed
from glowtrain.runtime.adding import Accept, Adding, NewNetwork
from glowtrain.runtime.checks import count, positive, seconds, text
from glowtrain.runtime.deadline import Deadline
from glowtrain.runtime.device.device_manager import DeviceManager, DeviceStatus
from glowtrain.runtime.device.host_device import as_devices
from glowtrain.runtime.models import Model, Terms
from glowtrain.runtime.network import Network, Service
from glowtrain.runtime.observation.metrics import Metric
from glowtrain.runtime.observation.trace import RuntimeTrace
from glowtrain.runtime.partition.partition import Partition
from glowtrain.runtime.pipeline import Link, Pipeline, checked
from glowtrain.runtime.placement.provisioner import Provisioner
from glowtrain.runtime.registry import Registry
from glowtrain.runtime.request.call import NetworkCall
from glowtrain.runtime.request.request import NetworkRequest, RequestFuture
from glowtrain.runtime.retiring import Retiring
from glowtrain.runtime.training import TrainingNetwork
from glowtrain.runtime.training_parts import place_training
from glowtrain.runtime.watch import RuntimeWatch
from glowtrain.trainer import Trainer
from glowtrain.types import Array

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
        self._registry = Registry()
        self._retiring = Retiring()
        self._adding = Adding(self.provisioner, self.trace)
        self._watch = RuntimeWatch(tuple(self.managers.values()), self._registry, self._retiring, time_limit)
        renew_in_children(self)

    def renew(self) -> None:
        """In a child of fork, which has none of the threads."""
        why = "it was made in another process, which forked; make one here"
        self._registry.renew(why)
        self._retiring.renew(why)
        for manager in self.managers.values():
            manager.renew(why)

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
        accept: Accept | None = None,
    ) -> Network:
        """Compile a model, put it onto devices and run it once at each batch size; then it is ready.

        A model whose inputs share an open first dimension, or that is bound to one and gives as many outputs, is
        batched: requests may have any number of rows, and are cut and joined to batches of the compiled sizes:
        ``batch_sizes``, by default powers of two up to ``max_batch`` (8). ``dims`` binds what else is open. A request
        waits at most ``max_delay`` seconds for others to share a batch with, and no more than ``queue`` requests wait.
        It goes onto one of ``devices`` (names; by default any) so many times as ``replicas`` says, or in the parts of
        a ``partition``, a function from the bound graph for several sizes. With ``replace`` it takes the place of one
        of its name and version, which answers until then. What ``accept`` raises for its signature is raised before
        anything is compiled.

        Raises :class:`InputError` for what cannot be meant, a name that is there already included,
        :class:`ProvisionError` where it fits nowhere, :class:`DeviceError` where a device fails: nothing is left then.
        """
        self._check_thread("add_network")
        service = Service(max_delay=seconds("max_delay", max_delay), queue=count("queue", queue))
        managers, replicas = self._chosen(devices), count("replicas", replicas)
        text("a network's name", name), text("a version", version)
        terms = Terms(max_batch, batch_sizes, dims, partition)
        new = NewNetwork(name, version, model, terms, service, managers, replicas, accept)
        return self._added([new], replace=replace)[0]

    def put_versions(
        self,
        name: str,
        models: Mapping[str, Model],
        *,
        max_batch: int | None = None,
        batch_sizes: Sequence[int] | None = None,
        max_delay: float = 0.0,
        queue: int = 256,
        replicas: int = 1,
        accept: Accept | None = None,
    ) -> list[Network]:
        """Add several versions of a network, or replace those that are there: all of them or none. Requests are
        answered by what was there until every version is ready. Options and errors are those of :meth:`add_network`;
        after an error everything is as it was."""
        self._check_thread("put_versions")
        service = Service(max_delay=seconds("max_delay", max_delay), queue=count("queue", queue))
        managers, terms, replicas = self._chosen(None), Terms(max_batch, batch_sizes), count("replicas", replicas)
        text("a network's name", name), [text("a version", version) for version in models]
        new = [
            NewNetwork(name, version, model, terms, service, managers, replicas, accept)
            for version, model in models.items()
        ]
        return self._added(new, replace=True)

    def _added(self, new: Sequence[NewNetwork], *, replace: bool) -> list[Network]:
        """Networks that have been made and are found by their names from now on: all of them or none."""
        with ExitStack() as names:
            for each in new:
                names.enter_context(self._registry.adding(each.name, each.version, replace=replace))
            networks = self._adding.networks(new)
            self._register(networks)
        return networks

    def _register(self, networks: Sequence[Network]) -> None:
        """Have networks found by their names; those whose places they take leave, or they do, where all is closed."""
        replaced = [self._registry.add(network) for network in networks]
        for old in filter(None, replaced):
            self._retiring.retire(old, "it was replaced", drain=True, deadline=Deadline(None))
        if (closed := self._registry.closed) is not None:
            for network in networks:
                self._retiring.retire(network, closed, drain=False, deadline=Deadline(None))
            self._registry.check_open()

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
        of them; the variables are then those that one device has after adding up the gradients of as many batches. The
        trainer's budget of memory is that of a step, or of the gradients of each part.

        Raises :class:`InputError` for what cannot be meant, :class:`ProvisionError` where it fits nowhere,
        :class:`DeviceError` where a device fails: nothing is left then.
        """
        self._registry.check_open()
        managers = self._chosen(devices)
        parts = len(managers) if parts is None else count("parts", parts)
        managers = managers[:parts]
        count("batch_size", batch_size), count("queue", queue)
        with ExitStack() as undo:
            placement = place_training(text("a training's name", name), trainer, batch_size, parts, managers, undo)
            undo.pop_all()
        training = TrainingNetwork(name, trainer, batch_size, parts, placement, queue, self._registry.drop_training)
        self._registry.add_training(training)
        if (closed := self._registry.closed) is not None:
            training.close(closed)
            self._registry.check_open()
        return training

    def add_pipeline(self, name: str, links: Sequence[Link], outputs: Mapping[str, str]) -> Pipeline:
        """Networks in a row under one name, for :meth:`run` (see :class:`Link`); ``outputs`` says which
        ``"network.output"`` each output is. The networks are looked up at each request, so they can be replaced.

        Raises :class:`InputError` for a name that is there already, and for values that come from nowhere.
        """
        pipeline = checked(text("a pipeline's name", name), links, outputs)
        self._registry.add_pipeline(pipeline)
        return pipeline

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
        """A network by name, and by version; by default the highest: numbers by their value, then
        names. Raises :class:`UnknownNetworkError` naming those that there are."""
        return self._registry.find(name, version)

    def networks(self) -> list[Network]:
        """All networks in all versions."""
        return self._registry.networks()

    def replace_network(self, name: str, model: Model, *, version: str | None = None, **options: Any) -> Network:
        """Put another model in a network's place, as its next ``version``, with the options of :meth:`add_network`.

        The old one answers until the new one is ready, and whatever was asked of it by then; no request is lost. Raises
        as :meth:`add_network` does; the old one stays then.
        """
        old = self.network(name)
        version = self._registry.following(old) if version is None else version
        new = self.add_network(name, model, version=version, **options)
        with suppress(UnknownNetworkError):  # somebody else has removed it meanwhile
            self.remove_network(name, old.version)
        return new

    def remove_network(
        self, name: str, version: str | None = None, *, drain: bool = True, timeout: float | None = None
    ) -> None:
        """Take a network out: it takes no more requests, answers those that wait (or with ``drain=False`` fails them),
        for at most ``timeout`` seconds, and leaves its devices. Raises :class:`UnknownNetworkError`, and
        :class:`DeviceError` where a device did not unload it; it is taken out all the same."""
        self._check_thread("remove_network")
        deadline = Deadline.after(timeout)
        network = self._registry.take_out(name, version)
        _raise_first(self._retiring.retire(network, "it was removed", drain, deadline))

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
        quick: float = 0.0,
    ) -> RequestFuture:
        """Ask a network; the answer is a dict of arrays by name, of the ``outputs`` asked for. It can be awaited, and
        cancelled as long as it waits. Higher priorities go first. Without an answer within ``timeout`` seconds it is a
        :class:`DeadlineError`. Where nothing waits, the device is free, and the network has taken less than ``quick``
        seconds of late for so many rows, this thread runs it: another would not have begun by then.

        Raises :class:`UnknownNetworkError`, :class:`InputError` for what does not fit the network,
        :class:`QueueFullError` naming the limit, :class:`UnavailableError`.
        """
        return self._started(NetworkCall(name, inputs, version, outputs, priority, timeout), quick)

    def _started(self, call: NetworkCall, quick: float = 0.0) -> RequestFuture:
        self._registry.check_open()
        if call.name in self._registry.pipelines:
            return self._registry.pipelines.run(call, self._enqueued, lambda each: self.network(each).signature.inputs)
        return self._enqueued(call, quick)

    def _enqueued(self, call: NetworkCall, quick: float = 0.0) -> RequestFuture:
        def ask(network: Network, request: NetworkRequest) -> RequestFuture:
            here = request.deadline is None and 0 < request.rows * network.usual_seconds < quick
            return network.run_or_enqueue(request) if here else network.enqueue(request)

        return self._asked(call, ask, copied=True)

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
        call = NetworkCall(name, inputs, version, outputs, priority, timeout)
        if name in self._registry.pipelines:
            return self._waited(self._started(call))
        self._registry.check_open()
        later = timeout or self._watch.on_thread  # a device that hangs must not have the thread that looks for that
        return self._waited(self._asked(call, Network.enqueue if later else Network.run_or_enqueue, copied=False))

    def _asked(
        self, call: NetworkCall, ask: Callable[[Network, NetworkRequest], RequestFuture], *, copied: bool
    ) -> RequestFuture:
        """Ask a network; where it was replaced after it had been found, the one in its place."""
        while True:
            self._registry.check_answers()
            network = self.network(call.name, call.version)
            request = network.request(call, copied=copied)
            try:
                if network.admit(request):
                    future = ask(network, request)
                    if request.deadline is not None:
                        self._watch.by(request.deadline)
                    return future
            except BaseException as error:
                if not isinstance(error, Exception):  # an interrupt, at whatever moment: nothing waits for it
                    network.forget(request, error)
                raise
            if self._registry.has(network):
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
        deadline, why = Deadline.after(timeout), "the runtime is closed"
        if not self._registry.close(drain=drain):
            return
        if drain:
            self._registry.pipelines.drained(deadline.left)
        networks = self._registry.empty()
        for network in networks:
            network.close(why)
        problems = [problem for each in networks for problem in self._retiring.retire(each, why, drain, deadline)]
        for training in self._registry.trainings:
            problems += training.close(why, drain=drain, deadline=deadline)
        self._registry.wait_for_adding(deadline.left)
        self._watch.end()
        for manager in self.managers.values():
            manager.close(deadline.left)
        _raise_first(problems)

    def _check_thread(self, what: str) -> None:
        """Raise :class:`InputError` on a thread that answers requests, for what waits for answers."""
        if self._watch.on_thread or any(manager.on_thread for manager in self.managers.values()):
            whose = "the runtime's own thread" if self._watch.on_thread else "a device's own thread"
            raise InputError(
                f"{what} was called by {whose}, which answers requests: it would wait for itself; in a callback of a "
                "future use run, or another thread"
            )


def _raise_first(problems: Sequence[Exception]) -> None:
    if problems:
        raise problems[0]
