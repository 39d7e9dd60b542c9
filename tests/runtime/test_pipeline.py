"""Networks in a row."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from time import sleep
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import DeadlineError, InputError, RequestError, UnavailableError, UnknownNetworkError
from glowtrain.graph import Template
from glowtrain.runtime import HostDevice, HostManager, Link, Pipeline
from glowtrain.types import Array
from tests.runtime.devices import Gate, ScriptedDevice


def _scaled(name: str, by: float) -> Template:
    @gt.model(x=gt.f32["batch", 3])
    def net(x: gt.Value) -> dict[str, gt.Value]:
        return {"y": x * by, "sum": x + 1.0}

    return net


def _rows(count: int) -> Array:
    return np.arange(count * 3, dtype=np.float32).reshape(count, 3)


def _host(*devices: HostDevice) -> HostManager:
    host = HostManager(devices or (HostDevice("a", threads=1), HostDevice("b", threads=1)))
    first, *_, last = (*host.managers, *host.managers)
    host.add_network("double", _scaled("double", 2.0), devices=[first])
    host.add_network("triple", _scaled("triple", 3.0), devices=[last])
    return host


def _chain(host: HostManager) -> Pipeline:
    links = [Link("double"), Link("triple", {"x": "double.y"})]
    return host.add_pipeline("six", links, {"y": "triple.y", "half": "double.sum"})


def test_values_pass_from_network_to_network() -> None:
    with _host() as host:
        _chain(host)
        for rows in (1, 5, 20):
            answer = host.run_sync("six", {"x": _rows(rows)})
            assert np.array_equal(answer["y"], _rows(rows) * 6)
            assert np.array_equal(answer["half"], _rows(rows) + 1)
        assert list(host.run_sync("six", {"x": _rows(1)}, outputs=["y"])) == ["y"]


def test_many_requests_are_not_mixed_up() -> None:
    with _host() as host:
        _chain(host)
        futures = [host.run("six", {"x": _rows(1 + number % 4) + number}) for number in range(100)]
        for number, future in enumerate(futures):
            assert np.array_equal(future.result()["y"], (_rows(1 + number % 4) + number) * 6)


def test_a_network_can_be_replaced_under_a_pipeline() -> None:
    with _host() as host:
        _chain(host)
        host.replace_network("triple", _scaled("triple", 5.0))
        assert np.array_equal(host.run_sync("six", {"x": _rows(2)})["y"], _rows(2) * 10)
        host.remove_network("triple")
        with pytest.raises(UnknownNetworkError, match="triple"):
            host.run_sync("six", {"x": _rows(2)})


def test_errors_reach_who_asked() -> None:
    with _host() as host:
        _chain(host)
        with pytest.raises(InputError, match="f32"):
            host.run("six", {"x": np.zeros((2, 4), np.float32)})
        with pytest.raises(InputError, match="no output"):
            host.run("six", {"x": _rows(1)}, outputs=["z"])
        assert np.array_equal(host.run_sync("six", {"x": _rows(1)})["y"], _rows(1) * 6)


def _until(holds: Callable[[], bool]) -> None:
    """Wait until something is so; the test's own time limit ends it if it never is."""
    while not holds():
        sleep(0.001)


class Held(HostDevice):
    """Waits with its runs until it is let go."""

    def __init__(self, name: str) -> None:
        super().__init__(name, threads=1)
        self.free, self.entered = Event(), Event()
        self.free.set()

    def load(self, executable, variables):
        resident = super().load(executable, variables)
        run = resident.run

        def held(inputs):
            self.entered.set()
            self.free.wait()
            return run(inputs)

        resident.run = held
        return resident


def test_cancelling_takes_the_request_out_of_the_queue_it_waits_in() -> None:
    last = Held("b")
    with _host(HostDevice("a", threads=1), last) as host:
        _chain(host)
        last.free.clear()
        last.entered.clear()
        running = host.run("triple", {"x": _rows(8)})
        assert last.entered.wait(60)
        waiting = host.run("six", {"x": _rows(1)})
        _until(lambda: len(host.network("triple").queue) == 1)
        assert waiting.cancel()
        _until(lambda: not len(host.network("triple").queue))
        last.free.set()
        assert np.array_equal(running.result()["y"], _rows(8) * 3)


def test_the_deadline_is_that_of_all_networks_together() -> None:
    last = Held("b")
    with _host(HostDevice("a", threads=1), last) as host:
        _chain(host)
        last.free.clear()
        with pytest.raises(DeadlineError):
            host.run("six", {"x": _rows(1)}, timeout=0.05).result()
        last.free.set()


@pytest.mark.parametrize(
    ("links", "outputs", "match"),
    [
        ([], {"y": "a.y"}, "list of Link"),
        (
            [Link("double"), Link("triple", {"x": "other.y"})],
            {"y": "triple.y"},
            "takes from 'other.y', which does not run before it",
        ),
        ([Link("triple", {"x": "double.y"}), Link("double")], {"y": "triple.y"}, "takes from 'double.y'"),
        ([Link("double")], {}, "outputs"),
        ([Link("double")], {"y": "triple.y"}, "outputs are of 'double'"),
        ([Link("double"), Link("double")], {"y": "double.y"}, "in it once"),
        ([Link("double")], {"y": 5}, "outputs are of 'double', not 5"),
        ([Link(5)], {"y": "5.y"}, "a link is of a network by name, not 5"),
        ([Link("double", 5)], {"y": "double.y"}, "feeds of double say for each input"),
        ([Link("double", {"x": 5})], {"y": "double.y"}, "feeds of double say for each input"),
    ],
)
def test_pipelines_that_cannot_be_meant(links: list[Any], outputs: dict[str, Any], match: str) -> None:
    with _host() as host, pytest.raises(InputError, match=match):
        host.add_pipeline("six", links, outputs)


def test_names_are_taken_once() -> None:
    with _host() as host:
        _chain(host)
        with pytest.raises(InputError, match="already"):
            _chain(host)
        with pytest.raises(InputError, match="already"):
            host.add_network("six", _scaled("six", 1.0))


def test_a_name_is_taken_while_its_network_is_loaded() -> None:
    gate = Gate("load")
    with HostManager([ScriptedDevice(before=gate)], time_limit=None) as host, ThreadPoolExecutor(1) as pool:
        gate.close()
        adding = pool.submit(host.add_network, "both", _scaled("both", 2.0))
        assert gate.reached.wait(60)
        with pytest.raises(InputError, match="there is a network or pipeline both already"):
            host.add_pipeline("both", [Link("a")], {"y": "a.y"})
        gate.open()
        assert adding.result(60) is host.network("both")


@pytest.mark.parametrize("drain", [True, False])
def test_closed_while_requests_are_on_their_way(drain: bool) -> None:
    """Those between two networks are answered like those that wait for one."""
    gate = Gate()
    host = _host(ScriptedDevice("a", gate), ScriptedDevice("b"))
    _chain(host)
    gate.close()
    futures = [host.run("six", {"x": _rows(8)}) for _ in range(5)]
    assert gate.reached.wait(60)
    closing = Thread(target=host.close, kwargs={"drain": drain})
    closing.start()
    while host._registry.closed is None:
        sleep(0)
    with pytest.raises(UnavailableError):
        host.run("six", {"x": _rows(1)})
    gate.open()
    closing.join(60)
    assert not closing.is_alive()
    for future in futures:
        if drain:
            assert np.array_equal(future.result(60)["y"], _rows(8) * 6)
        else:
            assert isinstance(future.exception(60), RequestError)


def test_arrays_may_be_used_again() -> None:
    """Those that a later network takes, too."""
    gate = Gate()
    with _host(ScriptedDevice("a", gate), ScriptedDevice("b")) as host:
        host.add_pipeline("both", [Link("double", {"x": "x"}), Link("triple", {"x": "x"})], {"y": "triple.y"})
        gate.close()
        mine = _rows(4)
        future = host.run("both", {"x": mine})
        assert gate.reached.wait(60)
        mine[:] = 77
        gate.open()
        assert np.array_equal(future.result(60)["y"], _rows(4) * 3)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"inputs": 5}, "inputs must be a dict from names to arrays, not 5"),
        ({"inputs": {"x": _rows(1), "typo": _rows(1)}}, "six: 'typo' is not an input; it has 'x'"),
        ({"outputs": "half"}, "outputs are a list of names, not a text"),
        ({"outputs": ["none"]}, "six has no output 'none'; it has 'y', 'half'"),
        ({"version": "1"}, "six is a pipeline, which has no versions"),
    ],
)
def test_requests_that_cannot_be_meant(said: dict[str, Any], match: str) -> None:
    with _host() as host:
        _chain(host)
        for ask in (host.run, host.run_sync):
            with pytest.raises(InputError, match=match):
                ask("six", **{"inputs": {"x": _rows(1)}, **said})


def test_each_network_takes_the_inputs_of_its_own_names() -> None:
    """Where it is not said where they come from."""

    @gt.model(x=gt.f32["batch", 3], more=gt.f32["batch", 3])
    def plus(x: gt.Value, more: gt.Value) -> dict[str, gt.Value]:
        return {"y": x + more}

    with _host() as host:
        host.add_network("plus", plus)
        host.add_pipeline("both", [Link("double"), Link("plus")], {"double": "double.y", "sum": "plus.y"})
        answer = host.run_sync("both", {"x": _rows(2), "more": _rows(2) + 1})
        np.testing.assert_array_equal(answer["double"], _rows(2) * 2)
        np.testing.assert_array_equal(answer["sum"], _rows(2) * 2 + 1)
        with pytest.raises(InputError, match="'more' is missing"):
            host.run_sync("both", {"x": _rows(2)})


def test_names_may_have_dots() -> None:
    @gt.model(x=gt.f32["batch", 3])
    def dotted(x: gt.Value) -> dict[str, gt.Value]:
        return {"out.y": x * 3.0}

    with _host() as host:
        host.add_network("v2.dotted", dotted)
        links = [Link("v2.dotted"), Link("double", {"x": "v2.dotted.out.y"})]
        host.add_pipeline("six", links, {"y": "double.y", "half": "v2.dotted.out.y"})
        answer = host.run_sync("six", {"x": _rows(2)})
        np.testing.assert_array_equal(answer["y"], _rows(2) * 6)
        np.testing.assert_array_equal(answer["half"], _rows(2) * 3)


def test_outputs_that_are_one_value_share_no_memory() -> None:
    with _host() as host:
        host.add_pipeline("two", [Link("double")], {"one": "double.y", "two": "double.y"})
        answer = host.run_sync("two", {"x": _rows(2)}, timeout=float("inf"))
        np.testing.assert_array_equal(answer["one"], answer["two"])
        assert not np.shares_memory(answer["one"], answer["two"])


def test_an_output_that_no_network_has() -> None:
    with _host() as host:
        host.add_pipeline("none", [Link("double")], {"y": "double.none"})
        with pytest.raises(InputError, match="none: its output 'double.none' is not there"):
            host.run_sync("none", {"x": _rows(2)})
