"""Networks that leave: they answer what was asked of them, and give their devices' memory back."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Lock, Thread

from glowtrain.errors import UnavailableError
from glowtrain.runtime.deadline import Deadline
from glowtrain.runtime.network import Network
from glowtrain.runtime.placement.replica import Replica


class Retiring:
    """The networks that are leaving: nobody finds them any more, but they may have requests."""

    def __init__(self) -> None:
        self.networks: tuple[Network, ...] = ()
        self._lock = Lock()

    def renew(self, why: str) -> None:
        """In a child of fork: nothing is left."""
        for network in self.networks:
            network.renew(why)
        self.networks, self._lock = (), Lock()

    def retire(self, network: Network, why: str, drain: bool, deadline: Deadline) -> list[Exception]:
        """Answer what waits (or, without ``drain``, fail it) until a deadline, and leave the devices. What was raised
        where a device did not unload it."""
        network.close(why)
        with self._lock:
            self.networks = (*self.networks, network)
        gone = UnavailableError(f"network {network.name}, version {network.version}: {why}")
        if not drain or not network.drained(deadline.left):
            network.fail_queued(gone)
            network.drained(deadline.left)  # what runs ends by itself
        replicas, network.replicas = network.replicas, ()
        network.fail_queued(gone)
        leave(replicas, deadline)
        with self._lock:
            self.networks = tuple(each for each in self.networks if each is not network)
        return [replica.problem for replica in replicas if replica.problem is not None]


def leave(replicas: Sequence[Replica], deadline: Deadline) -> None:
    """Have placements leave their devices, all at the same time; it is waited for until a deadline."""
    leaving = [Thread(target=replica.leave, name="runtime leaving", daemon=True) for replica in replicas]
    for thread in leaving:
        thread.start()
    for thread in leaving:
        thread.join(deadline.left)
