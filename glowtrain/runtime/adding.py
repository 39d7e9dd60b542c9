"""From a model to a network on devices: prepared, placed, run once; all of it or nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from glowtrain.errors import DeviceError, InputError, ProvisionError
from glowtrain.graph import Graph
from glowtrain.presentation.messages import plural
from glowtrain.runtime.deadline import NEVER
from glowtrain.runtime.device.device_manager import DeviceManager
from glowtrain.runtime.models import Model, ServedModel, Terms, prepared
from glowtrain.runtime.network import Network, Service
from glowtrain.runtime.observation.trace import RuntimeTrace
from glowtrain.runtime.placement.provisioner import Provisioner
from glowtrain.runtime.placement.replica import Replica
from glowtrain.runtime.retiring import leave
from glowtrain.runtime.signature import NetworkSignature
from glowtrain.runtime.warm_up import DependentRowsError, warm_up

Accept = Callable[[NetworkSignature], None]
"""Looks at what a network takes and gives, and raises an error where that cannot be."""


@dataclass(frozen=True)
class NewNetwork:
    """A network as it was asked for (:meth:`HostManager.add_network`): so many ``replicas`` of it on some of the
    devices of ``managers``."""

    name: str
    version: str
    model: Model
    terms: Terms
    service: Service
    managers: Sequence[DeviceManager]
    replicas: int
    accept: Accept | None = None


class Adding:
    """Making networks that nobody can find yet, and whose events go to a ``trace``."""

    def __init__(self, provisioner: Provisioner, trace: RuntimeTrace | None) -> None:
        self._provisioner = provisioner
        self._trace = trace

    def networks(self, new: Sequence[NewNetwork]) -> list[Network]:
        """All of them or none: where one cannot be made, those before it leave the devices. Raises as :meth:`network`
        does."""
        made: list[Network] = []
        with ExitStack() as undo:
            for each in new:
                network = self.network(each)
                undo.callback(leave, network.replicas, NEVER)
                made.append(network)
            undo.pop_all()
        return made

    def network(self, new: NewNetwork) -> Network:
        """A network that is placed, and has run. Where the first axis of a bound graph turns out not to be one of
        examples, and nobody said that it is, it takes one request at a time.

        Raises what :meth:`HostManager.add_network` does; nothing is left on the devices then.
        """
        try:
            return self._placed(new, prepared(new.name, new.model, new.terms))
        except DependentRowsError:
            if new.terms.wants_batches or not isinstance(new.model, Graph):
                raise
        return self._placed(new, prepared(new.name, new.model, new.terms, batched=False))

    def _placed(self, new: NewNetwork, served: ServedModel) -> Network:
        if new.accept is not None:
            new.accept(served.signature)
        network = Network(new.name, new.version, served.signature, served.service(new.service), self._trace)
        if network.updates and new.replicas > 1:
            raise InputError(f"network {new.name} updates variables: they would differ in its {new.replicas} replicas")
        if new.replicas > len(new.managers):
            devices = plural(len(new.managers), "device")
            raise InputError(f"network {new.name}: there cannot be {new.replicas} replicas on {devices}")
        try:
            with ExitStack() as undo:
                for _ in range(new.replicas):
                    network.attach(self._replica(network, served, new.managers, undo))
                undo.pop_all()
        except (MemoryError, DeviceError) as error:
            if not isinstance(error, MemoryError) and not isinstance(error.__cause__, MemoryError):
                raise
            rows = f" with batches of {served.sizes[-1]:,} rows; make them smaller" if served.sizes else ""
            raise ProvisionError(f"network {new.name}: the memory does not suffice{rows}: {error}") from error
        return network

    def _replica(
        self, network: Network, served: ServedModel, wanted: Sequence[DeviceManager], undo: ExitStack
    ) -> Replica:
        """One more placement, on devices that have none of this network where there are enough of them; it has run."""
        busy = {manager for replica in network.replicas for manager in replica.placement.managers}
        free = [manager for manager in wanted if manager not in busy]
        placement = self._provisioner.place(
            network.name, served.partitions, free if len(free) >= served.stages else wanted
        )
        undo.callback(placement.release)
        warm_up(placement, served)
        replica = Replica(network, placement)
        undo.callback(replica.first.detach, replica)
        return replica
