"""Callbacks of futures, which run on the runtime's own threads: whatever they do, everybody else has an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from glowtrain.errors import DeadlineError, InputError
from glowtrain.runtime import HostManager
from tests.runtime.devices import Gate, ScriptedDevice, rows, triple, tripled
from tests.runtime.test_training import BATCH, _batches, _trainer


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def host(gate: Gate) -> Iterator[HostManager]:
    """With the network ``net``, whose device is busy."""
    with HostManager([ScriptedDevice(before=gate)], time_limit=None) as made:
        made.add_network("net", triple, batch_sizes=[1, 4])
        gate.close()
        made.run("net", {"x": rows(0, 1)})
        assert gate.reached.wait(60)
        yield made
        gate.open()


def ask(host: HostManager, number: int, **options: Any) -> Future[Any]:
    return host.run("net", {"x": rows(number, 1)}, **options)


class Exit(BaseException):
    """As ``SystemExit`` is, which pytest would take for its own."""


@pytest.mark.parametrize("error", [SystemExit(1), KeyboardInterrupt(), Exit(), ValueError()])
def test_one_that_raises_takes_nobody_along(
    host: HostManager, gate: Gate, error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    """The others of its batch have their answers, and the device goes on."""

    def leave(future: Future[Any]) -> None:
        raise error

    futures = [ask(host, number) for number in range(1, 5)]
    futures[0].add_done_callback(leave)
    gate.open()
    for number, future in enumerate(futures, 1):
        np.testing.assert_array_equal(future.result(60)["y"], tripled(rows(number, 1)))
    np.testing.assert_array_equal(ask(host, 9).result(60)["y"], tripled(rows(9, 1)))
    assert host.status()[0].lost is None
    assert type(error).__name__ in caplog.text


def test_one_of_a_late_request_does_not_end_the_watch(host: HostManager) -> None:
    def leave(future: Future[Any]) -> None:
        raise SystemExit

    ask(host, 1, timeout=0.01).add_done_callback(leave)
    for number in range(2):
        with pytest.raises(DeadlineError):
            ask(host, number, timeout=0.01).result(60)


def said_in_a_callback(future: Future[Any], call: Callable[[], object]) -> Future[str]:
    """The error that a call in the future's callback is."""
    found: Future[str] = Future()

    def called(_: Future[Any]) -> None:
        try:
            call()
        except InputError as error:
            found.set_result(str(error))
        else:
            found.set_result("no error")

    future.add_done_callback(called)
    return found


@pytest.mark.parametrize("wait", ["close", "remove_network", "run_sync", "add_network"])
def test_those_of_late_requests_do_not_wait_for_others(host: HostManager, wait: str) -> None:
    """They run on the thread that looks for what is late, and for devices that have hung."""
    calls: dict[str, Callable[[], object]] = {
        "close": host.close,
        "remove_network": lambda: host.remove_network("net"),
        "run_sync": lambda: host.run_sync("net", {"x": rows(1, 1)}),
        "add_network": lambda: host.add_network("other", triple),
    }
    found = said_in_a_callback(ask(host, 1, timeout=0.01), calls[wait])
    assert f"{wait} was called by the runtime's own thread" in found.result(60)
    with pytest.raises(DeadlineError):
        ask(host, 2, timeout=0.01).result(60)
    assert len(host.networks()) == 1


@pytest.mark.spread(1)
@pytest.mark.parametrize("wait", ["wait", "variables", "finish", "fit"])
def test_those_of_steps_do_not_wait_for_steps(wait: str) -> None:
    gate = Gate()
    with HostManager([ScriptedDevice(before=gate)], time_limit=None) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH)
        gate.close()
        futures = [training.step(batch) for batch in _batches(3)]
        method = getattr(training, wait)
        found = said_in_a_callback(futures[0], lambda: method(_batches(1)) if wait == "fit" else method())
        gate.open()
        assert f"{wait} was called by a device's own thread" in found.result(60)
        assert all(np.isfinite(future.result(60)) for future in futures)
        training.finish()
