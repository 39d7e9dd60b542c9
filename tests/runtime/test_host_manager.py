"""The host manager: networks come and go, requests are answered."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from inspect import CO_GENERATOR
from threading import Event, Thread
from types import FrameType

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import (
    DeadlineError,
    DeviceError,
    InputError,
    ProvisionError,
    QueueFullError,
    UnavailableError,
    UnknownNetworkError,
)
from glowtrain.graph import Value
from glowtrain.runtime import HostManager, cpu_devices
from tests.runtime.devices import (
    Failing,
    Gate,
    ScriptedDevice,
    ScriptedMemory,
    counting,
    joined,
    rows,
    triple,
    tripled,
    with_factor,
)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def device(gate: Gate) -> ScriptedDevice:
    return ScriptedDevice(before=gate)


@pytest.fixture
def host(device: ScriptedDevice, gate: Gate) -> Iterator[HostManager]:
    """With the network ``net``, :func:`triple` in batches of 1 and 4."""
    with HostManager([device], time_limit=None) as made:
        made.add_network("net", triple, batch_sizes=[1, 4], queue=5)
        yield made
        gate.open()


def ask(host: HostManager, first: int, count: int = 1, **options: object) -> Future:
    return host.run("net", {"x": rows(first, count)}, **options)


def value(host: HostManager, name: str, **labels: str) -> float:
    """A number of the metrics."""
    samples = [each for each in host.metrics() if each.name == name and labels.items() <= each.labels.items()]
    return sum(each.value for each in samples)


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 4, 5, 11])
def test_any_number_of_rows(host: HostManager, count: int) -> None:
    """Batches of a compiled size, the last one filled up."""
    x = rows(10, count)
    for answer in (host.run_sync("net", {"x": x}), ask(host, 10, count).result()):
        assert set(answer) == {"y", "z"}
        np.testing.assert_array_equal(answer["y"], tripled(x))
        np.testing.assert_array_equal(answer["z"], x * -2)


def test_awaited(host: HostManager) -> None:
    async def several() -> list[dict]:
        return await asyncio.gather(*(ask(host, n) for n in range(5)))

    for number, answer in enumerate(asyncio.run(several())):
        np.testing.assert_array_equal(answer["y"], tripled(rows(number, 1)))


def test_arrays_may_be_used_again(host: HostManager, gate: Gate) -> None:
    """What is written to an array after the request was made is not seen by it."""
    gate.close()
    mine = rows(1, 4)
    future = host.run("net", {"x": mine})
    mine[:] = 77
    gate.open()
    np.testing.assert_array_equal(future.result()["y"], tripled(rows(1, 4)))


def test_by_priority(host: HostManager, gate: Gate) -> None:
    gate.close()
    blocker, done = ask(host, 0), list[str]()
    assert gate.reached.wait(60)
    waiting = {"low": ask(host, 1, 4), "high": ask(host, 2, 4, priority=2), "also low": ask(host, 3, 4)}
    for name, future in waiting.items():
        future.add_done_callback(lambda _, name=name: done.append(name))
    gate.open()
    wait([blocker, *waiting.values()])
    host.close()
    assert done == ["high", "low", "also low"]


def test_full_queues_name_the_limit(host: HostManager, gate: Gate) -> None:
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    waiting = [ask(host, n) for n in range(1, 6)]
    for attempt in (lambda: ask(host, 6), lambda: host.run_sync("net", {"x": rows(6, 1)})):
        with pytest.raises(QueueFullError, match="network net: 5 requests wait already, which is the limit"):
            attempt()
    assert waiting[2].cancel()
    waiting.append(ask(host, 6))
    gate.open()
    for future in (running, *waiting):
        assert future.cancelled() or set(future.result()) == {"y", "z"}
    assert value(host, "nv_inference_request_failure", reason="REJECTED") == 2
    assert value(host, "nv_inference_request_failure", reason="CANCELED") == 1
    assert value(host, "nv_inference_request_success") == 6
    assert host.network("net").pending == 0


def test_cancelled_requests_do_not_run(host: HostManager, gate: Gate) -> None:
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    waiting = ask(host, 1)
    assert waiting.cancel()
    assert not running.cancel()
    gate.open()
    assert wait([running, waiting], timeout=60).not_done == set()
    with pytest.raises(CancelledError):
        waiting.result()
    np.testing.assert_array_equal(ask(host, 2).result()["y"], tripled(rows(2, 1)))
    assert value(host, "nv_inference_count") == 2


@pytest.mark.parametrize("running", [False, True])
def test_deadlines(host: HostManager, gate: Gate, running: bool) -> None:
    """Whether the request waits or is being run when its time is over."""
    gate.close()
    first = ask(host, 0, timeout=0.01 if running else None)
    assert gate.reached.wait(60)
    late = first if running else ask(host, 1, timeout=0.01)
    with pytest.raises(DeadlineError, match=r"no answer within 0\.01 seconds"):
        late.result()
    gate.open()
    np.testing.assert_array_equal(ask(host, 2).result()["y"], tripled(rows(2, 1)))
    assert value(host, "nv_inference_request_failure", reason="REJECTED") == 1


def test_run_sync_in_time(host: HostManager, gate: Gate) -> None:
    """With a time-out it is answered even where the device hangs."""
    assert set(host.run_sync("net", {"x": rows(1, 1)}, timeout=60)) == {"y", "z"}
    gate.close()
    with pytest.raises(DeadlineError):
        host.run_sync("net", {"x": rows(1, 1)}, timeout=0.01)


@pytest.mark.parametrize("wrong", [{"priority": 1.5}, {"timeout": 0}, {"timeout": float("nan")}, {"outputs": 3}])
def test_bad_options(host: HostManager, wrong: dict) -> None:
    for call in (host.run, host.run_sync):
        with pytest.raises(InputError):
            call("net", {"x": rows(0, 1)}, **wrong)
    assert host.network("net").pending == 0


def test_run_sync_is_counted(host: HostManager) -> None:
    """In this thread, too."""
    for _ in range(3):
        host.run_sync("net", {"x": rows(0, 2)})
    assert value(host, "nv_inference_request_success") == 3
    assert value(host, "nv_inference_count") == 6
    assert value(host, "nv_inference_exec_count") == 3


def test_answers_are_counted_when_they_are_seen(host: HostManager) -> None:
    for number in range(1, 50):
        ask(host, 0).result()
        assert value(host, "nv_inference_request_success") == number
        assert value(host, "nv_inference_count") == number


def test_callbacks(host: HostManager, gate: Gate) -> None:
    """They run on the device's thread: what would wait for it is an error, what need not is done."""
    seen = Future[list]()
    waiting = (
        lambda: host.run_sync("net", {"x": rows(0, 1)}), lambda: host.add_network("other", triple),
        lambda: host.remove_network("net"), lambda: host.replace_network("net", triple), host.close,
    )  # fmt: skip

    def answered(first: Future) -> None:
        for attempt in waiting:
            with pytest.raises(InputError, match="it would wait for itself"):
                attempt()
        seen.set_result([ask(host, 2), host.network("net").variables()])

    gate.close()  # else the answer could be there first, and this thread would call it
    ask(host, 1).add_done_callback(answered)
    gate.open()
    again, variables = seen.result(60)
    np.testing.assert_array_equal(again.result(60)["y"], tripled(rows(2, 1)))
    assert variables == {}


# --- batches ----------------------------------------------------------------------------------------------------------


def test_requests_share_batches(host: HostManager, gate: Gate, device: ScriptedDevice) -> None:
    """What comes while the device is busy."""
    gate.close()
    futures = [ask(host, 0)]
    assert gate.reached.wait(60)
    futures += [ask(host, n) for n in range(1, 5)]
    gate.open()
    for number, future in enumerate(futures):
        np.testing.assert_array_equal(future.result()["y"], tripled(rows(number, 1)))
    assert value(host, "nv_inference_exec_count") == 2
    assert value(host, "nv_inference_count") == 5


def test_the_window_begins_with_the_oldest() -> None:
    """Of those that wait: later ones do not move it, a full batch and a deadline end it."""
    with HostManager([ScriptedDevice()], time_limit=None) as host:
        network = host.add_network("net", triple, batch_sizes=[4], max_delay=1000.0)
        (replica,) = network.replicas
        assert replica.offer(0.0) is None
        futures = [ask(host, n) for n in range(2)]
        first, second = network.queue._waiting
        assert replica.offer(0.0).at == first.arrival + 1000.0
        assert futures[0].cancel()
        assert replica.offer(0.0).at == second.arrival + 1000.0
        futures.append(ask(host, 2, priority=7))
        assert replica.offer(0.0).at == second.arrival + 1000.0
        assert replica.offer(0.0).urgency == -7
        hurried = ask(host, 3, timeout=500.0)
        *_, last = network.queue._waiting
        assert replica.offer(0.0).at == last.deadline - network.usual_seconds
        futures += [hurried, ask(host, 4, 2)]  # four rows and more: now it is full
        for number, future in enumerate(futures[1:3], 1):
            np.testing.assert_array_equal(future.result(60)["y"], tripled(rows(number, 1)))
        host.close(drain=False)
        assert all(future.done() for future in futures)


def test_a_bound_graph_is_batched() -> None:
    with HostManager([ScriptedDevice()]) as host:
        host.add_network("net", triple.bind({"batch": 3}))
        np.testing.assert_array_equal(host.run_sync("net", {"x": rows(0, 7)})["y"], tripled(rows(0, 7)))


@gt.model(x=gt.f32["batch", 1])
def beside_the_largest(x: Value) -> dict[str, Value]:
    return {"y": x - gt.ops.ReduceMax((0,))(x)}


@pytest.mark.parametrize("sizes", [[2], [1, 2, 4, 8]])
def test_examples_that_see_each_other_are_not_joined(sizes: list[int]) -> None:
    """Even where the order of the others makes no difference."""
    with HostManager([ScriptedDevice()]) as host:
        with pytest.raises(InputError, match="depends on the examples beside it"):
            host.add_network("net", beside_the_largest, batch_sizes=sizes)
        network = host.add_network("net", beside_the_largest.bind({"batch": 2}))
        assert network.sizes == ()


# --- networks ---------------------------------------------------------------------------------------------------------


def test_versions(host: HostManager) -> None:
    host.add_network("net", with_factor(7), version="b", batch_sizes=[1])
    x = rows(1, 1)
    for version, expected in ((None, x * 7), ("b", x * 7), ("1", tripled(x))):
        np.testing.assert_array_equal(host.run_sync("net", {"x": x}, version=version)["y"], expected)
    with pytest.raises(InputError, match="there is a network net, version b, already"):
        host.add_network("net", triple, version="b")
    with pytest.raises(UnknownNetworkError, match="network net has no version '3'; it has '1', 'b'"):
        host.run("net", {"x": x}, version="3")
    host.remove_network("net")
    np.testing.assert_array_equal(host.run_sync("net", {"x": x})["y"], tripled(x))
    host.remove_network("net")
    with pytest.raises(UnknownNetworkError, match="there is no network 'net'"):
        host.run("net", {"x": x})


def test_replacing_takes_a_free_version(host: HostManager) -> None:
    host.add_network("net", with_factor(2), version="0", batch_sizes=[1])
    assert host.replace_network("net", with_factor(4), batch_sizes=[1]).version == "2"


def test_replaced_between_being_found_and_being_asked(host: HostManager, monkeypatch: pytest.MonkeyPatch) -> None:
    """No request is lost: it goes to the new one, or is an error of a name that is not there."""
    network, find = host.network("net"), host.network
    found = iter([network, find])

    def late(name: str, version: str | None = None) -> object:
        each = next(found)
        if each is not network:
            return find(name, version)
        monkeypatch.setattr(host, "network", find)
        host.replace_network("net", with_factor(5), batch_sizes=[1, 4])
        return network

    monkeypatch.setattr(host, "network", late)
    np.testing.assert_array_equal(ask(host, 1).result()["y"], rows(1, 1) * 5)


def test_removed_between_being_found_and_being_asked(host: HostManager, monkeypatch: pytest.MonkeyPatch) -> None:
    network, find = host.network("net"), host.network

    def late(name: str, version: str | None = None) -> object:
        monkeypatch.setattr(host, "network", find)
        host.remove_network("net")
        return network

    monkeypatch.setattr(host, "network", late)
    with pytest.raises(UnknownNetworkError):
        host.run_sync("net", {"x": rows(1, 1)})


def test_removed_while_it_is_replaced(host: HostManager, device: ScriptedDevice) -> None:
    """Whoever replaces a network that somebody else removes has replaced it."""
    removed = []

    def remove(call: str, given: object) -> None:
        if call == "load" and not removed:
            removed.append(Thread(target=host.remove_network, args=("net", "1")))
            removed[0].start()
            while host.networks():
                pass

    device.before = remove
    assert host.replace_network("net", with_factor(5), batch_sizes=[1]).version == "2"
    removed[0].join(60)
    assert [network.version for network in host.networks()] == ["2"]


def test_replaced_under_load(host: HostManager) -> None:
    """Each request is answered, by the one or the other."""
    factors, stop, wrong = [3.0, 5.0, 7.0, 9.0], Event(), []
    host.remove_network("net")
    host.add_network("net", with_factor(factors[0]), batch_sizes=[1, 4], queue=10_000)

    def asking(number: int) -> int:
        count = 0
        while not stop.is_set():
            x = rows(1 + number * 100 + count % 50, 1 + count % 5)
            answers = [host.run_sync("net", {"x": x}), host.run("net", {"x": x}, priority=count % 2).result()]
            wrong.extend(y for y in answers if not any((y["y"] == x * np.float32(f)).all() for f in factors))
            count += 2
        return count

    with ThreadPoolExecutor(3) as pool:
        counts = [pool.submit(asking, number) for number in range(3)]
        for factor in factors[1:]:
            host.replace_network("net", with_factor(factor), batch_sizes=[1, 4], queue=10_000)
        stop.set()
        assert min(count.result(60) for count in counts) > 0
    assert not wrong
    assert [network.version for network in host.networks()] == ["4"]


@pytest.mark.parametrize("drain", [True, False])
@pytest.mark.parametrize("closing", [True, False])
def test_removed_with_requests(
    host: HostManager, gate: Gate, device: ScriptedDevice, drain: bool, closing: bool
) -> None:
    """What runs is answered; what waits is answered too, or fails; nothing is left on the device."""
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    waiting = [ask(host, n) for n in range(1, 4)]
    end = host.close if closing else lambda drain: host.remove_network("net", drain=drain)
    removing = Thread(target=end, kwargs={"drain": drain})
    removing.start()
    if not drain:
        wait(waiting, timeout=60)
    gate.open()
    removing.join(60)
    assert all(future.done() for future in (running, *waiting))
    np.testing.assert_array_equal(running.result()["y"], tripled(rows(0, 1)))
    for number, future in enumerate(waiting, 1):
        if drain:
            np.testing.assert_array_equal(future.result()["y"], tripled(rows(number, 1)))
        else:
            assert isinstance(future.exception(), UnavailableError)
    assert device.live == 0
    assert host.status()[0].used == 0
    with pytest.raises(UnavailableError if closing else UnknownNetworkError):
        ask(host, 9)


def test_removing_does_not_wait_longer_than_it_may(host: HostManager, gate: Gate, device: ScriptedDevice) -> None:
    """What runs then still ends in its own time, and the memory comes back after it."""
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    waiting = ask(host, 1)
    host.remove_network("net", timeout=0.01)
    assert isinstance(waiting.exception(), UnavailableError)
    assert not running.done()
    assert device.live > 0
    gate.open()
    np.testing.assert_array_equal(running.result(60)["y"], tripled(rows(0, 1)))
    joined("runtime leaving")
    assert device.live == 0
    assert host.status()[0].used == 0


def test_deadlines_of_a_network_that_is_being_removed(host: HostManager, gate: Gate) -> None:
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    late = ask(host, 1, timeout=0.01)
    removing = Thread(target=host.remove_network, args=("net",))
    removing.start()
    assert isinstance(late.exception(60), DeadlineError)
    gate.open()
    removing.join(60)
    assert set(running.result()) == {"y", "z"}


def test_added_while_it_is_closed(device: ScriptedDevice) -> None:
    """A network that came too late is nowhere, and nobody waits for ever."""
    host = HostManager([device])
    closing = Thread(target=host.close)

    def close(call: str, given: object) -> None:
        if call == "load" and host._registry.closed is None:
            closing.start()
            while host._registry.closed is None:
                pass

    device.before = close
    with pytest.raises(UnavailableError, match="it is closed"):
        host.add_network("net", triple, batch_sizes=[1, 4])
    closing.join(60)
    assert not closing.is_alive()
    assert device.live == 0
    assert host.status()[0].used == 0


def test_training_added_while_it_is_closed(device: ScriptedDevice) -> None:
    loss = gt.losses.mse("target", "y")
    trainer = gt.Trainer(_linear, loss, gt.optim.SGD(0.1), threads=1)
    host = HostManager([device])

    def close(call: str, given: object) -> None:
        if call == "load":
            host._registry.closed = "it is closed"

    device.before = close
    with pytest.raises(UnavailableError, match="it is closed"):
        host.add_training("net", trainer, batch_size=2)
    assert device.live == 0
    assert host.status()[0].used == 0
    host._registry.closed = None
    host.close()


@gt.model(x=gt.f32["batch", 3])
def _linear(x: Value) -> dict[str, Value]:
    return {"y": gt.nn.linear(x, 2)}


def test_one_name_is_added_once(device: ScriptedDevice) -> None:
    with HostManager([device]) as host, ThreadPoolExecutor(4) as pool:
        tries = [pool.submit(host.add_network, "net", triple, batch_sizes=[1]) for _ in range(4)]
        assert sum(each.exception() is None for each in tries) == 1
        assert all(isinstance(each.exception(), (InputError, type(None))) for each in tries)
        assert len(host.networks()) == 1


def test_replicas_share_the_queue() -> None:
    """Two devices at once: each has a batch before either is let go."""
    gates = [Gate(), Gate()]
    devices = [ScriptedDevice(f"cpu:{number}", gate) for number, gate in enumerate(gates)]
    with HostManager(devices, time_limit=None) as host:
        host.add_network("net", triple, batch_sizes=[1, 4], replicas=2)
        for gate in gates:
            gate.close()
        long = ask(host, 0, 8)
        for gate in gates:
            assert gate.reached.wait(60)
        for gate in gates:
            gate.open()
        np.testing.assert_array_equal(long.result(60)["y"], tripled(rows(0, 8)))
    assert [device.live for device in devices] == [0, 0]


def test_networks_that_update_have_one_replica_and_no_batches() -> None:
    with HostManager(cpu_devices(2, threads=1)) as host:
        with pytest.raises(InputError, match="would differ in its 2 replicas"):
            host.add_network("count", counting(), replicas=2)
        assert all(status.used == 0 for status in host.status())
        network = host.add_network("count", counting())
        futures = [host.run("count", {"x": np.ones(1, np.float32)}) for _ in range(20)]
        assert sorted(float(each.result()["total"][0]) for each in futures) == list(range(1, 21))
        assert network.variables()["total"] == 20


def test_networks_that_fit_nowhere(host: HostManager) -> None:
    with HostManager([ScriptedDevice("small", memory=10)]) as small:
        with pytest.raises(ProvisionError, match="fits on no device: device small has 10 of its 10 bytes left"):
            small.add_network("net", triple)
        assert small.networks() == []


def test_a_device_that_does_not_unload(host: HostManager, device: ScriptedDevice) -> None:
    """It is said, and the network is gone all the same."""
    device.before = Failing("free", ValueError("stuck"))
    with pytest.raises(DeviceError, match="unloading failed on device cpu: ValueError: stuck"):
        host.remove_network("net")
    assert host.networks() == []
    assert host.status()[0].used == 0
    assert device.live == 1


def test_nothing_is_left_on_devices_of_their_own_memory() -> None:
    device = ScriptedMemory(delay=0.0)
    with HostManager([device]) as host:
        host.add_network("net", triple, batch_sizes=[1, 4])
        resident = device.used
        device.before = Failing("download", ValueError("lost on the way"), 2)
        with pytest.raises(DeviceError, match="lost on the way"):
            host.run_sync("net", {"x": rows(0, 4)})
        assert device.used == resident
        np.testing.assert_array_equal(host.run_sync("net", {"x": rows(0, 4)})["y"], tripled(rows(0, 4)))
        assert device.used == resident


# --- other processes, and interrupts ----------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_of_fork_is_told(host: HostManager, gate: Gate) -> None:
    """It has none of the threads; nothing there waits for them, whatever locks they had."""
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    network, held, done = host.network("net"), Event(), Event()

    def hold() -> None:
        with host.managers["cpu"]._changed, network._changed, network.counts._lock, host._registry._lock:
            held.set()
            assert done.wait(60)

    holding = Thread(target=hold)
    holding.start()
    assert held.wait(60)
    child = os.fork()
    if not child:
        os._exit(_wrong_in_the_child(host))
    done.set(), holding.join()
    gate.open()
    assert os.waitpid(child, 0)[1] == 0
    assert set(running.result()) == {"y", "z"}


def _wrong_in_the_child(host: HostManager) -> int:
    """The number of what went wrong."""
    x = {"x": rows(0, 1)}
    tries = [lambda: host.run("net", x), lambda: host.run_sync("net", x), lambda: host.add_network("a", triple)]
    for number, attempt in enumerate(tries, 1):
        try:
            attempt()
        except UnavailableError:
            continue
        except BaseException:  # noqa: BLE001 - a child does not go on into pytest
            return number
        return number
    host.status(), host.metrics(), host.close()
    return 0


class Interrupt:
    """Ctrl-C at the number-th time that this thread enters or leaves a function of the runtime, which is when Python
    looks for it."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self, frame: FrameType, event: str, argument: object) -> Interrupt | None:
        near = any(f"glowtrain{os.sep}runtime" in each.f_code.co_filename for each in (frame, frame.f_back) if each)
        if not near or frame.f_code.co_flags & CO_GENERATOR:
            return None
        self.left -= event in ("call", "return")
        if not self.left:
            raise KeyboardInterrupt
        return self

    def during(self, call: Callable[[], object]) -> bool:
        """Whether the call was interrupted."""
        before = sys.gettrace()
        sys.settrace(self)
        try:
            call()
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(before)
        return False


@pytest.mark.parametrize("later", [False, True])
def test_interrupted_anywhere(host: HostManager, later: bool) -> None:
    """At every call, one after the other: network and device are then as if nobody had asked. ``later``: in
    requests that another thread runs."""
    number, x = 1, {"x": rows(1, 1)}
    while Interrupt(number).during(lambda: host.run_sync("net", x, timeout=60 if later else None)):
        number += 1
        np.testing.assert_array_equal(ask(host, 2).result(60)["y"], tripled(rows(2, 1)))
    assert number > 50
    host.close()
    assert host.status()[0].lost is None
    assert host.status()[0].used == 0
