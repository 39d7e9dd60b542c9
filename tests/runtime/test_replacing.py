"""Networks that take the place of one of their own name and version."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError
from glowtrain.graph import Template
from glowtrain.runtime import HostManager
from tests.runtime.devices import Gate, ScriptedDevice

X = np.ones((1, 2), np.float32)


def scaled(factor: float) -> Template:
    @gt.model(x=gt.f32["batch", 2])
    def model(x: Any) -> Any:
        return {"y": x * factor}

    return model


def first(host: HostManager, version: str | None = None) -> float:
    return float(host.run_sync("scaled", {"x": X}, version=version)["y"][0, 0])


def test_a_version_takes_its_own_place_and_not_that_of_the_newest() -> None:
    with HostManager() as host:
        for version in ("1", "2"):
            host.add_network("scaled", scaled(float(version)), version=version)
        host.add_network("scaled", scaled(5.0), version="1", replace=True)
        assert (first(host, "1"), first(host, "2"), first(host)) == (5.0, 2.0, 2.0)
        assert [network.version for network in host.networks()] == ["1", "2"]


def test_without_being_asked_nothing_is_replaced() -> None:
    with HostManager() as host:
        host.add_network("scaled", scaled(2.0))
        with pytest.raises(InputError, match="there is a network scaled, version 1, already"):
            host.add_network("scaled", scaled(3.0))
        assert first(host) == 2.0


def test_one_that_cannot_take_the_place_leaves_it() -> None:
    with HostManager() as host:
        host.add_network("scaled", scaled(2.0))
        with pytest.raises(InputError, match="batch_sizes"):
            host.add_network("scaled", scaled(3.0), batch_sizes=[], replace=True)
        assert first(host) == 2.0


def test_the_one_that_is_replaced_answers_what_it_was_asked() -> None:
    """Its requests wait for others to share a batch with, as it happens."""
    with HostManager() as host:
        host.add_network("scaled", scaled(2.0), max_delay=0.2)
        asked = [host.run("scaled", {"x": X}) for _ in range(3)]
        host.add_network("scaled", scaled(3.0), replace=True)
        assert [float(future.result()["y"][0, 0]) for future in asked] == [2.0] * 3
        assert first(host) == 3.0


@pytest.mark.parametrize("order", [("2", "1"), ("10", "9", "2"), ("nightly", "10", "2"), ("1", "2", "1")])
def test_the_version_that_is_meant_is_the_highest_whatever_came_last(order: tuple[str, ...]) -> None:
    """Numbers by their value, then names."""
    with HostManager() as host:
        for version in order:
            host.add_network("scaled", scaled(2.0), version=version, batch_sizes=[1], replace=True)
        highest = "nightly" if "nightly" in order else max(order, key=int)
        assert host.network("scaled").version == highest
        host.remove_network("scaled", highest)
        assert host.network("scaled").version == max({*order} - {highest}, key=int)


def test_one_that_takes_its_own_place_counts_on() -> None:
    """Counters of Prometheus only grow."""
    with HostManager() as host:
        for _ in range(3):
            host.add_network("scaled", scaled(2.0), batch_sizes=[1], replace=True)
            first(host)
        samples = {sample.name: sample.value for sample in host.metrics()}
        assert (samples["nv_inference_request_success"], samples["nv_inference_count"]) == (3, 3)


def test_a_quick_network_runs_in_the_thread_that_asks() -> None:
    """Once it is known to be quick, and unless there is a deadline, which another thread looks after."""
    with HostManager() as host:
        network = host.add_network("scaled", scaled(2.0))
        host.run("scaled", {"x": X}, quick=60.0).result(60)
        while not network.usual_seconds:
            pass
        for _ in range(100):
            done = host.run("scaled", {"x": X}, quick=60.0)
            if done.done():  # the device's thread may have been about to sleep
                break
            done.result(60)
        assert done.done()
        assert done.result(0)["y"][0, 0] == 2.0


def test_many_rows_are_not_run_in_the_thread_that_asks_because_one_was_quick() -> None:
    """Where 64 rows may take 64 times as long as one, the thread that asks goes on."""
    gate = Gate()
    with HostManager([ScriptedDevice(before=gate)]) as host:
        network = host.add_network("scaled", scaled(2.0), max_batch=64)
        network.usual_seconds = 1.0
        gate.close()
        future = host.run("scaled", {"x": np.repeat(X, 64, 0)}, quick=2.0)
        assert gate.reached.wait(60)
        assert not future.done()
        gate.open()
        assert future.result(60)["y"][63, 0] == 2.0
