"""Faults, injected: the other requests have the right answers, and nothing is left of what went wrong.

Each test prints how many faults it injected and how many requests it checked (``pytest -rP``).
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import Any

import numpy as np
import pytest

from glowtrain.errors import DeviceError, DeviceLostError, QueueFullError, UnavailableError, UnknownNetworkError
from glowtrain.runtime import HostManager
from tests.runtime.devices import (
    BAD,
    Failing,
    Gate,
    ScriptedDevice,
    ScriptedMemory,
    counting,
    diamond,
    diamonds,
    in_four,
    joined,
    refuses_bad,
    rows,
    triple,
    tripled,
)


@dataclass
class Tally:
    """What has been asked, and what came of it."""

    asked: list[tuple[np.ndarray, Future]] = field(default_factory=list)
    injected: int = 0

    def ask(self, host: HostManager, first: int, count: int = 1, **options: Any) -> Future:
        x = rows(first, count)
        future = host.run("net", {"x": x}, **options)
        self.asked.append((x, future))
        return future

    def check(self, *allowed: type[BaseException], expected: Any = tripled) -> int:
        """Every request is over: it has its own answer, or an error of a kind that is allowed; the number of errors."""
        assert not wait([future for _, future in self.asked], timeout=60).not_done
        failed = 0
        for x, future in self.asked:
            try:
                answer = future.result()
            except allowed:
                failed += 1
            else:
                np.testing.assert_array_equal(answer["y"], expected(x))
        print(f"{self.injected} faults injected, {len(self.asked)} requests checked, {failed} of them errors")
        return failed


@pytest.fixture
def tally() -> Tally:
    return Tally()


@pytest.fixture(autouse=True)
def no_threads_left() -> Iterator[None]:
    """Every thread of the runtime ends."""
    yield
    joined("device", "runtime")


def check_clean(host: HostManager, *devices: ScriptedDevice | ScriptedMemory) -> None:
    """Nothing is on devices that are in service after everything was removed."""
    for network in host.networks():
        assert network.pending == 0
        assert len(network.queue) == network.queue.rows == 0
        host.remove_network(network.name, network.version)
    joined("runtime leaving")
    for device, status in zip(devices, host.status(), strict=True):
        assert status.used == 0
        assert status.queued == 0
        assert status.lost is not None or device.live == 0
        assert status.lost is not None or getattr(device, "used", 0) == 0


def lose(host: HostManager, device: str) -> None:
    """What the watch does about a device that has hung."""
    manager = host.managers[device]
    manager.limit = 1.0
    error = manager.overdue(manager._began + 2.0)
    assert error is not None
    assert manager.lose(error)


# --- bugs that another server had in batching -------------------------------------------------------------------------


@pytest.fixture
def busy(gate: Gate, tally: Tally) -> Iterator[HostManager]:
    """A host whose device is held by a request, so that what comes is joined."""

    def before(call: str, given: Any) -> None:
        gate(call, given)
        refuses_bad(call, given)

    device = ScriptedDevice(before=before)
    with HostManager([device], time_limit=None) as host:
        host.add_network("net", triple, batch_sizes=[1, 2, 8])
        gate.close()
        tally.ask(host, 0)
        assert gate.reached.wait(60)
        yield host
        gate.open()
        check_clean(host, device)


def test_answers_are_not_mixed_between_requests(busy: HostManager, gate: Gate, tally: Tally) -> None:
    for number in range(1, 40):
        tally.ask(busy, 100 * number, 1 + number % 11, priority=number % 3)
    gate.open()
    assert tally.check() == 0


def test_requested_outputs_are_not_ignored(busy: HostManager, gate: Gate) -> None:
    """Each of a batch has those that it asked for, in that order, and no others."""
    asked = [None, ["y"], ["z"], ["z", "y"], ["y", "z"], ["y", "y"]]
    futures = [busy.run("net", {"x": rows(n, 1)}, outputs=outputs) for n, outputs in enumerate(asked)]
    gate.open()
    for number, (outputs, future) in enumerate(zip(asked, futures, strict=True)):
        answer = future.result(60)
        assert list(answer) == list(dict.fromkeys(outputs or ["y", "z"]))
        expected = {"y": tripled(rows(number, 1)), "z": rows(number, 1) * -2}
        for name, array in answer.items():
            np.testing.assert_array_equal(array, expected[name])


def test_one_bad_request_does_not_fail_its_batch(busy: HostManager, gate: Gate, tally: Tally) -> None:
    for number in range(1, 7):
        tally.ask(busy, number)
    bad = busy.run("net", {"x": np.full((2, 3), BAD, np.float32)})
    tally.injected += 1
    gate.open()
    with pytest.raises(DeviceError, match="failed on device cpu: ArithmeticError: a bad number"):
        bad.result(60)
    assert tally.check() == 0


def test_a_bad_part_fails_its_request_alone(busy: HostManager, gate: Gate, tally: Tally) -> None:
    """Of a request that is cut into batches, one of which it shares."""
    x = rows(0, 20)
    x[17] = BAD
    bad = busy.run("net", {"x": x})
    tally.injected += 1
    for number in range(1, 7):
        tally.ask(busy, 100 * number)
    gate.open()
    assert isinstance(bad.exception(60), DeviceError)
    assert tally.check() == 0


# --- devices ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("made", [ScriptedDevice, ScriptedMemory])
@pytest.mark.parametrize("fault", ["lost", "raises"])
def test_devices_that_fail_under_load(made: Any, fault: str, tally: Tally) -> None:
    """One of two fails at its tenth run: requests that it had are answered by the other, if it is lost."""
    error = DeviceLostError("pulled out") if fault == "lost" else ArithmeticError("a glitch")
    failing = Failing("run", error, 10)
    devices = [made("a", failing), made("b")]
    with HostManager(devices, time_limit=None) as host, ThreadPoolExecutor(3) as pool:
        host.add_network("net", triple, batch_sizes=[1, 4], queue=1000, replicas=2)
        failing.number += failing.count
        futures = pool.map(lambda n: tally.ask(host, 10 * n, 1 + n % 6), range(300))
        assert len(list(futures)) == 300
        wait([future for _, future in tally.asked])
        while not failing.injected:  # the other device was quicker: ask until this one has had its runs
            wait([tally.ask(host, number) for number in range(6)])
        tally.injected += failing.injected
        failed = tally.check(DeviceError)
        # A glitch is the error of the request that was alone in its batch, or of nobody: others are tried again.
        assert failed <= (fault == "raises")
        assert failing.injected == 1
        check_clean(host, *devices)
        assert [status.lost is not None for status in host.status()] == [fault == "lost", False]


def test_the_last_device_is_lost(tally: Tally) -> None:
    """Whoever waits is told, and whoever comes."""
    gate = Gate()
    device = ScriptedDevice(before=gate)
    with HostManager([device], time_limit=None) as host:
        network = host.add_network("net", triple, batch_sizes=[1, 4])
        gate.close()
        tally.ask(host, 0)
        assert gate.reached.wait(60)
        for number in range(1, 20):
            tally.ask(host, number)
        lose(host, "cpu")
        tally.injected += 1
        assert tally.check(DeviceLostError, UnavailableError) == 20
        while network.replicas:
            Event().wait(0.001)
        with pytest.raises(UnavailableError, match="no device that it was on is in service"):
            tally.ask(host, 1)
        with pytest.raises(UnavailableError):
            host.run_sync("net", {"x": rows(0, 1)})
        assert network.state == "lost"
        check_clean(host, device)
        gate.open()


def test_a_request_that_takes_devices_out_of_service_takes_two() -> None:
    """It is tried on one other, and not on all that there are."""

    def before(call: str, given: Any) -> None:
        if call == "run" and any((array == BAD).any() for array in given.values()):
            raise DeviceLostError("gone")

    devices = [ScriptedDevice(f"cpu:{number}", before, any_thread=False) for number in range(3)]
    with HostManager(devices, time_limit=None) as host:
        host.add_network("net", triple, batch_sizes=[1], replicas=3)
        with pytest.raises(DeviceLostError):
            host.run("net", {"x": np.full((1, 3), BAD, np.float32)}).result(60)
        np.testing.assert_array_equal(host.run("net", {"x": rows(1, 1)}).result(60)["y"], tripled(rows(1, 1)))
        assert sum(status.lost is None for status in host.status()) == 1


@pytest.mark.parametrize("closing", [True, False])
def test_the_last_device_is_lost_while_requests_are_drained(closing: bool, tally: Tally) -> None:
    gate = Gate()
    device = ScriptedDevice(before=gate)
    host = HostManager([device], time_limit=None)
    network = host.add_network("net", triple, batch_sizes=[1, 4])
    gate.close()
    tally.ask(host, 0)
    assert gate.reached.wait(60)
    for number in range(1, 9):
        tally.ask(host, number)
    ending = Thread(target=host.close if closing else lambda: host.remove_network("net"))
    ending.start()
    while network._closed is None:
        Event().wait(0.001)
    lose(host, "cpu")
    tally.injected += 1
    ending.join(60)
    assert not ending.is_alive()
    assert tally.check(DeviceLostError, UnavailableError) == 9
    gate.open()
    host.close()


def test_a_device_that_hangs_is_found_by_the_watch(monkeypatch: pytest.MonkeyPatch, tally: Tally) -> None:
    """And what comes back from it later is nobody's."""
    gate = Gate()
    devices = [ScriptedDevice("a", gate), ScriptedDevice("b")]
    with HostManager(devices, time_limit=1000.0) as host:
        host.add_network("net", triple, batch_sizes=[1, 4], devices=["a"])
        gate.close()
        hung = tally.ask(host, 0, 4)
        assert gate.reached.wait(60)
        overdue = host.managers["a"].overdue
        monkeypatch.setattr(host.managers["a"], "overdue", lambda now: overdue(now + 2000.0))
        with pytest.raises(DeviceLostError, match=r"device a has hung: network net .*within 1000 seconds"):
            hung.result(60)
        tally.injected += 1
        gate.open()
        host.managers["a"]._thread.join(60)
        host.replace_network("net", triple, batch_sizes=[1, 4])
        tally.asked.clear()
        tally.ask(host, 5, 9)
        assert tally.check() == 0
        check_clean(host, *devices)


def test_a_request_that_a_hung_device_had_is_answered_once(tally: Tally) -> None:
    """By the other one, which gives its answer first."""
    gate = Gate()
    devices = [ScriptedDevice("a", gate), ScriptedDevice("b")]
    with HostManager(devices, time_limit=None) as host:
        host.add_network("net", triple, batch_sizes=[1, 4], replicas=2)
        host.managers["b"].sources, others = (), host.managers["b"].sources
        gate.close()
        held = tally.ask(host, 0, 4)
        assert gate.reached.wait(60)
        host.managers["b"].attach(*others)
        lose(host, "a")
        tally.injected += 1
        held.result(60)
        gate.open()
        host.managers["a"]._thread.join(60)
        assert tally.check() == 0
        check_clean(host, *devices)


def test_steps_are_not_tried_again(tally: Tally) -> None:
    """A network that updates variables may have done so before its device was lost."""
    ran = []

    def before(call: str, given: Any) -> None:
        if call == "run":
            ran.append(call)
            if len(ran) == 3:
                raise ArithmeticError("a glitch")
            if len(ran) == 5:
                raise DeviceLostError("pulled out")

    devices = [ScriptedDevice("a", before), ScriptedDevice("b")]
    with HostManager(devices, time_limit=None) as host:
        host.add_network("count", counting(), devices=["a"])
        one = {"x": np.ones(1, np.float32)}
        outcomes = [host.run("count", one).exception(60) for _ in range(5)]
        assert [type(each) for each in outcomes] == [type(None), type(None), DeviceError, type(None), DeviceLostError]
        assert len(ran) == 5
        check_clean(host, *devices)


@pytest.mark.parametrize("made", [ScriptedDevice, ScriptedMemory])
@pytest.mark.parametrize("lost", range(3))
def test_a_part_of_a_network_is_lost(made: Any, lost: int, tally: Tally) -> None:
    """While the other parts run: they are not taken along, and what they hold of the runs is released."""
    failing = Failing("run", DeviceLostError("pulled out"), 30)
    devices = [made(f"d{number}", failing if number == lost else None) for number in range(3)]
    with HostManager(devices, time_limit=None) as host:
        host.add_network("net", diamond, batch_sizes=[1, 2], partition=in_four, queue=1000)
        for number in range(200):
            try:
                tally.ask(host, number, 1 + number % 4)
            except UnavailableError:
                break
        wait([future for _, future in tally.asked])
        tally.injected += failing.injected
        failed = tally.check(DeviceLostError, UnavailableError, expected=diamonds)
        assert failing.injected == 1
        assert failed > 0
        check_clean(host, *devices)
        assert [status.lost is not None for status in host.status()] == [number == lost for number in range(3)]


@pytest.mark.parametrize("call", ["run", "upload", "download"])
@pytest.mark.parametrize("device", range(3))
def test_parts_that_raise(call: str, device: int, tally: Tally) -> None:
    """One run fails at one call of one device; the others go on, and its tensors are released everywhere."""
    hooks = [Failing(call, ArithmeticError("a glitch"), 40) for _ in range(3)]
    devices = [ScriptedMemory(f"d{number}", hooks[number] if number == device else None) for number in range(3)]
    with HostManager(devices, time_limit=None) as host:
        host.add_network("net", diamond, batch_sizes=[1], partition=in_four, queue=1000)
        for number in range(60):
            tally.ask(host, number)
        wait([future for _, future in tally.asked])
        tally.injected += hooks[device].injected
        failed = tally.check(DeviceError, expected=diamonds)
        assert failed == hooks[device].injected <= 1
        check_clean(host, *devices)
        assert all(status.lost is None for status in host.status())


def test_a_device_without_memory_leaves_what_it_has(tally: Tally) -> None:
    """A network that does not fit, again and again, while another one runs."""
    device = ScriptedDevice()
    with HostManager([device], time_limit=None) as host, ThreadPoolExecutor(1) as pool:
        host.add_network("net", triple, batch_sizes=[1, 4], queue=10_000)
        used, live = host.status()[0].used, device.live
        stop = Event()

        def asking() -> None:
            while not stop.is_set():
                tally.ask(host, len(tally.asked) % 1000).result(60)

        load = pool.submit(asking)
        for call in ("place", "load") * 3:
            device.before = Failing(call, DeviceError("no memory left"))
            with pytest.raises(DeviceError, match="no memory left"):
                host.add_network("other", triple, batch_sizes=[2])
            tally.injected += 1
        stop.set()
        load.result(60)
        assert tally.check() == 0
        assert (host.status()[0].used, device.live) == (used, live)
        check_clean(host, device)


# --- clients, queues, networks ----------------------------------------------------------------------------------------


def test_clients_that_go_away(tally: Tally, random: np.random.Generator) -> None:
    device = ScriptedDevice()
    with HostManager([device], time_limit=None) as host:
        host.add_network("net", triple, batch_sizes=[1, 4], queue=1000)
        for number in range(500):
            future = tally.ask(host, number, 1 + number % 6, priority=number % 2)
            if random.integers(2):
                tally.injected += future.cancel()
        assert tally.check(CancelledError) == tally.injected > 0
        check_clean(host, device)


def test_queues_that_are_full(tally: Tally) -> None:
    """Of a network under load from several threads: a rejection names the limit, the others are answered."""
    device = ScriptedDevice()
    refused = []
    with HostManager([device], time_limit=None) as host, ThreadPoolExecutor(4) as pool:
        network = host.add_network("net", triple, batch_sizes=[1, 4], queue=3)

        def asking(number: int) -> None:
            try:
                tally.ask(host, number, 1 + number % 9)
            except QueueFullError as error:
                refused.append(str(error))
                tally.asked[-1][1].result(60)

        list(pool.map(asking, range(2000)))
        tally.injected += len(refused)
        assert tally.check() == 0
        assert refused
        assert all("3 requests wait already, which is the limit" in each for each in refused)
        assert len(tally.asked) + len(refused) == 2000
        assert network.counts.success == len(tally.asked)
        check_clean(host, device)


@pytest.mark.parametrize("end", ["remove", "remove now", "close", "close now"])
def test_the_end_under_load(end: str, tally: Tally) -> None:
    """Whoever was taken in is answered, with an error only where it was to be so; nobody waits for ever."""
    devices = [ScriptedDevice("a"), ScriptedDevice("b")]
    host = HostManager(devices, time_limit=None)
    host.add_network("net", triple, batch_sizes=[1, 4], queue=50, replicas=2)
    enough = [Event() for _ in range(3)]

    def asking(thread: int) -> str:
        for number in range(1_000_000):
            try:
                tally.ask(host, 1000 * thread + number % 999, 1 + number % 6, priority=number % 3)
            except QueueFullError:
                continue
            except (UnavailableError, UnknownNetworkError) as error:
                return type(error).__name__
            if number > 50:
                enough[thread].set()
        return "nothing"

    with ThreadPoolExecutor(3) as pool:
        threads = [pool.submit(asking, number) for number in range(3)]
        assert all(each.wait(60) for each in enough)
        drain = not end.endswith("now")
        host.close(drain=drain) if end.startswith("close") else host.remove_network("net", drain=drain)
        tally.injected += 1
        ends = {each.result(60) for each in threads}
    assert ends <= ({"UnavailableError", "UnknownNetworkError"} if end.startswith("close") else {"UnknownNetworkError"})
    assert all(future.done() for _, future in tally.asked)
    assert tally.check(*([] if drain else [UnavailableError])) >= 0
    check_clean(host, *devices)
    host.close()
