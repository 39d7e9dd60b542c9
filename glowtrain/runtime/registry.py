"""What a host has, by name: networks in their versions, pipelines and trainings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition

from glowtrain.errors import InputError, UnavailableError, UnknownNetworkError
from glowtrain.presentation.messages import listed
from glowtrain.runtime.network import Network
from glowtrain.runtime.pipeline import Pipeline, Pipelines
from glowtrain.runtime.training import TrainingNetwork


class Registry:
    """Names, and what they stand for, until it is closed. Any thread may ask for a name or change it."""

    def __init__(self) -> None:
        self.pipelines = Pipelines()
        self.trainings: tuple[TrainingNetwork, ...] = ()
        self.closed: str | None = None
        """Why nothing more is taken, if it is so."""
        self._pipelines_go_on = False
        """Whether it is closed but for requests in pipelines, which have networks to ask yet."""
        self._lock = Condition()
        self._networks: dict[str, dict[str, Network]] = {}
        """By name and version, versions ascending. Read without the lock, so a network's versions are another dict
        whenever they change."""
        self._adding: set[tuple[str, str]] = set()

    def renew(self, why: str) -> None:
        """In a child of fork: nothing is left."""
        self._lock, self.closed = Condition(), why
        for network in self.networks():
            network.renew(why)
        for training in self.trainings:
            training.renew(why)
        self._networks, self.pipelines = {}, Pipelines()

    def check_open(self) -> None:
        """Raise :class:`UnavailableError` where it is closed."""
        if self.closed is not None:
            raise UnavailableError(f"the runtime takes no requests: {self.closed}")

    def check_answers(self) -> None:
        """The same, but where networks still have requests from pipelines to answer."""
        if not self._pipelines_go_on:
            self.check_open()

    # --- networks -----------------------------------------------------------------------------------------------------

    def find(self, name: str, version: str | None) -> Network:
        """A network by name, and by version; without one the highest version (:func:`by_number`).
        Raises :class:`UnknownNetworkError` naming those that there are."""
        versions = self._networks.get(name)
        if not versions:
            known = (*self._networks, *self.pipelines.names)
            raise UnknownNetworkError(f"there is no network {name!r}; there is {listed(known) if known else 'none'}")
        if version is None:
            return next(reversed(versions.values()))
        if version not in versions:
            raise UnknownNetworkError(f"network {name} has no version {version!r}; it has {listed(versions)}")
        return versions[version]

    def has(self, network: Network) -> bool:
        """Whether a network is there, and not another one in its place."""
        return self._networks.get(network.name, {}).get(network.version) is network

    def networks(self) -> list[Network]:
        """All networks in all versions."""
        with self._lock:
            return [network for versions in self._networks.values() for network in versions.values()]

    def following(self, network: Network) -> str:
        """A version after a network's that is not there."""
        version = network.version
        while version in self._networks.get(network.name, {}) or version == network.version:
            version = str(int(version) + 1) if version.isdecimal() else f"{version}.1"
        return version

    @contextmanager
    def adding(self, name: str, version: str, *, replace: bool) -> Iterator[None]:
        """Keep a name and version for a network while it is made; :meth:`close` is followed by waiting for it.

        Raises :class:`InputError` where it is taken, unless it is to ``replace`` what is there.
        """
        with self._lock:
            self.check_open()
            there = version in self._networks.get(name, {}) and not replace
            if name in self.pipelines or there or (name, version) in self._adding:
                raise InputError(
                    f"there is a network {name}, version {version}, already; remove it first, or replace_network"
                )
            self._adding.add((name, version))
        try:
            yield
        finally:
            with self._lock:
                self._adding.discard((name, version))
                self._lock.notify_all()

    def add(self, network: Network) -> Network | None:
        """Have a network found by its name, unless it is closed; the one whose place it takes, and whose counts it goes
        on with."""
        with self._lock:
            if self.closed is not None:
                return None
            versions = self._networks.get(network.name, {})
            replaced = versions.get(network.version)
            if replaced is not None:
                network.counts = replaced.counts
            changed = {**versions, network.version: network}
            self._networks[network.name] = {version: changed[version] for version in sorted(changed, key=by_number)}
            return replaced

    def take_out(self, name: str, version: str | None) -> Network:
        """Have a network no longer found. Raises :class:`UnknownNetworkError`."""
        with self._lock:
            network = self.find(name, version)
            versions = {key: each for key, each in self._networks[name].items() if each is not network}
            self._networks[name] = versions
            if not versions:
                del self._networks[name]
        return network

    # --- what else has a name -----------------------------------------------------------------------------------------

    def add_pipeline(self, pipeline: Pipeline) -> None:
        """Have a pipeline found by its name. Raises :class:`InputError` where that is taken."""
        with self._lock:
            self.check_open()
            if pipeline.name in {*self._networks, *self.pipelines.names, *(name for name, _ in self._adding)}:
                raise InputError(f"there is a network or pipeline {pipeline.name} already")
            self.pipelines.add(pipeline)

    def drop_training(self, training: TrainingNetwork) -> None:
        """A training has ended by itself."""
        with self._lock:
            self.trainings = tuple(each for each in self.trainings if each is not training)

    def add_training(self, training: TrainingNetwork) -> None:
        """Have a training end with the rest."""
        with self._lock:
            self.trainings = (*self.trainings, training)

    # --- its end ------------------------------------------------------------------------------------------------------

    def close(self, *, drain: bool) -> bool:
        """Take nothing more; with ``drain``, what is in pipelines goes on. False where it was closed already."""
        with self._lock:
            if self.closed is not None:
                return False
            self.closed, self._pipelines_go_on = "it is closed", drain
        return True

    def empty(self) -> list[Network]:
        """Take out all networks; nobody asks them any more."""
        with self._lock:
            self._pipelines_go_on = False
            networks = self.networks()
            self._networks.clear()
        return networks

    def wait_for_adding(self, timeout: float | None) -> None:
        """Wait, for at most so many seconds, until nobody is adding a network."""
        with self._lock:
            self._lock.wait_for(lambda: not self._adding, timeout)


def by_number(version: str) -> tuple[bool, int, str]:
    """Orders versions: numbers by their value, then names."""
    number = version.isdecimal()
    return (not number, int(version) if number else 0, version)
