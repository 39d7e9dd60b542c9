"""Networks come and go, and no request is lost or waits for ever."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor, wait
from threading import Event, Thread

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.base import Backend, Executable
from glowtrain.compiler.service import build
from glowtrain.errors import (
    BindingError,
    DeadlineError,
    DeviceError,
    InputError,
    ProvisionError,
    UnavailableError,
    UnknownNetworkError,
)
from glowtrain.graph import Value
from glowtrain.runtime import HostDevice, HostManager, cpu_devices
from glowtrain.runtime.partition import needs
from glowtrain.runtime.request.queue import RequestQueue
from glowtrain.stages import Options
from glowtrain.verification import random_inputs
from tests.runtime.devices import (
    Failing,
    Gate,
    ScriptedDevice,
    ScriptedMemory,
    ask,
    counting,
    joined,
    rows,
    triple,
    tripled,
    with_factor,
)


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


@pytest.mark.parametrize("end", ["remove", "close"])
def test_late_requests_of_a_network_that_ends_at_once(
    host: HostManager, gate: Gate, end: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device has put one aside as too late, and the watch, which was to tell it, comes no more."""
    monkeypatch.setattr(RequestQueue, "expire", lambda queue, now: None)
    gate.close()
    running = ask(host, 0)
    assert gate.reached.wait(60)
    late = ask(host, 1, timeout=0.001)
    Event().wait(0.01)
    gate.open()
    assert set(running.result(60)) == {"y", "z"}
    assert set(ask(host, 2).result(60)) == {"y", "z"}  # it waited behind the late one
    if end == "remove":
        host.remove_network("net", timeout=0)
    else:
        host.close(timeout=0)
    assert isinstance(late.exception(60), UnavailableError)


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


def test_dimensions_are_bound_by_name(host: HostManager) -> None:
    @gt.model(x=gt.f32["batch", "time"])
    def steps(x: Value) -> dict[str, Value]:
        return {"y": x * 2.0}

    with pytest.raises(BindingError, match=r"no dimension 'tiem' \(the nearest is 'time'\)"):
        host.add_network("steps", steps, dims={"time": 3, "tiem": 3})
    with pytest.raises(BindingError, match=r"bind the others: dims=\{'time': \.\.\.\}"):
        host.add_network("steps", steps)
    assert host.add_network("steps", steps, dims={"time": 3}).ready


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


@pytest.mark.parametrize("memory", [None, "64MB"])
def test_weights_are_read_from_copies_where_memory_is_not_limited(memory: str | None) -> None:
    @gt.model(x=gt.f32[1, 64, 14, 14])
    def convolution(x: Value) -> dict[str, Value]:
        return {"y": gt.nn.conv(x, 64, kernel=3, padding=1, name="conv")}

    graph, device = convolution.bind({}), HostDevice("device", memory=memory)
    inputs = random_inputs(graph)
    options = [Options(facts=device.backend.facts, pack_variables=copies) for copies in (False, True)]
    plain, copying = (build(graph, device.backend, each).memory.constants for each in options)
    assert copying > plain
    with HostManager([device]) as host:
        network = host.add_network("net", graph)
        own = sum(array.nbytes for array in network.variables().values())
        assert (host.status()[0].used - own >= copying) == (memory is None)
        np.testing.assert_array_equal(host.run_sync("net", inputs)["y"], gt.compile(graph)(inputs)["y"])
        (manager, variables), *_ = network.replicas[0].placement.variables.values()
        doubled = 2 * network.variables()["conv.weight"]
        manager.call(lambda: variables.write("conv.weight", doubled), "writing")
        function = gt.compile(graph)
        function.state.write("conv.weight", doubled)
        np.testing.assert_array_equal(host.run_sync("net", inputs)["y"], function(inputs)["y"])


def test_what_is_updated_has_no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def noted(graph: gt.Graph, backend: Backend, options: Options) -> Executable:
        asked.append(options.pack_variables)
        return build(graph, backend, options)

    monkeypatch.setattr(needs, "build", noted)
    with HostManager() as host:
        host.add_network("count", counting())
        assert asked == [False]
        host.add_network("net", triple, batch_sizes=[1, 2])
    assert asked == [False, True, True]


@pytest.mark.parametrize("error", [MemoryError("30 GiB"), DeviceError("loading failed")])
def test_batches_for_which_the_memory_does_not_suffice(
    host: HostManager, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    if isinstance(error, DeviceError):
        error.__cause__ = MemoryError("30 GiB")

    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("glowtrain.runtime.adding.warm_up", fails)
    with pytest.raises(ProvisionError, match="the memory does not suffice with batches of 4 rows; make them smaller"):
        host.add_network("large", triple, batch_sizes=[4])
