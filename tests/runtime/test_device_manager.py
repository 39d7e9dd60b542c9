"""The manager of a device: the order of its tasks, threads that use it themselves, faults, and its end."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Event, Thread, get_ident

import pytest

from glowtrain.errors import DeviceError, DeviceLostError, ProvisionError
from glowtrain.runtime.device.device_manager import DeviceManager, Offer, Task
from tests.runtime.devices import Failing, ScriptedDevice


@pytest.fixture
def manager() -> Iterator[DeviceManager]:
    made = DeviceManager(ScriptedDevice(), limit=1000.0)
    yield made
    made.close()


class Held:
    """A task that holds the device until it is let go."""

    def __init__(self, manager: DeviceManager) -> None:
        self.began, self.go, self.lost = Event(), Event(), list[DeviceLostError]()
        manager.submit(Task(self._run, self.lost.append, what="a held task"))
        assert self.began.wait(60)

    def _run(self) -> None:
        self.began.set()
        assert self.go.wait(60)


class Supply:
    """A source of tasks that note their names."""

    def __init__(self, done: list[str], *names: str, urgency: int = 0, at: float = 0.0) -> None:
        self.done, self.names, self.urgency, self.at = done, list(names), urgency, at
        self.empty = Event()

    def offer(self, now: float) -> Offer | None:
        return Offer(self.urgency, 0.0, self.at) if self.names else None

    def take(self, now: float) -> Task | None:
        name = self.names.pop(0)
        return Task(lambda: self._run(name), lambda lost: None)

    def _run(self, name: str) -> None:
        self.done.append(name)
        if not self.names:
            self.empty.set()


def nothing(lost: DeviceLostError) -> None:
    """For tasks that nobody waits for."""


def test_by_priority_then_arrival_then_sources(manager: DeviceManager) -> None:
    held, done = Held(manager), list[str]()
    last = Supply(done, "source", urgency=-9)
    manager.attach(last)
    for name, priority in (("a", 0), ("b", 2), ("c", 0), ("d", 2)):
        manager.submit(Task(lambda name=name: done.append(name), nothing, priority))
    held.go.set()
    assert last.empty.wait(60)
    assert done == ["b", "d", "a", "c", "source"]


def test_the_source_of_the_highest_priority_goes_first(manager: DeviceManager) -> None:
    held, done = Held(manager), list[str]()
    low, high = Supply(done, "low"), Supply(done, "high", "high", urgency=-1)
    manager.attach(low), manager.attach(high)
    held.go.set()
    assert low.empty.wait(60)
    assert done == ["high", "high", "low"]


def test_a_source_that_has_something_later_is_asked_then(manager: DeviceManager) -> None:
    done = list[str]()
    soon = Supply(done, "soon", at=time.monotonic() + 0.02)
    manager.attach(soon)
    assert soon.empty.wait(60)


def test_run_here_is_in_this_thread(manager: DeviceManager) -> None:
    idents = []
    assert manager.run_here(lambda: Task(lambda: idents.append(get_ident()), nothing))
    assert idents == [get_ident()]
    assert manager.status.tasks == 1


def test_run_here_gives_way(manager: DeviceManager) -> None:
    """To what runs; and to nothing else where there is nothing to be taken."""
    assert not manager.run_here(lambda: None)
    held = Held(manager)
    assert not manager.run_here(lambda: Task(lambda: None, nothing))
    held.go.set()
    assert manager.call(lambda: 7, "a call") == 7


def test_run_here_lets_others_have_the_device(manager: DeviceManager) -> None:
    """A thread that asks again and again does not keep the device from requests that wait, in whatever moment they
    came: here while the thread itself has the device."""
    done = list[str]()
    supply = Supply(done, "waiting")

    def arriving() -> None:
        manager.sources = (supply,)
        manager.wake()

    assert manager.run_here(lambda: Task(arriving, nothing))
    while manager.run_here(lambda: Task(lambda: done.append("again"), nothing)):
        assert len(done) < 1_000_000
    assert supply.empty.wait(60)
    assert done == ["waiting"]


def test_an_interrupt_leaves_the_device(manager: DeviceManager) -> None:
    """Ctrl-C while this thread uses the device is this thread's, not the device's."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    for take in (lambda: Task(interrupted, nothing), interrupted):
        with pytest.raises(KeyboardInterrupt):
            manager.run_here(take)
    assert manager.lost is None
    assert manager.call(lambda: 7, "a call") == 7
    assert manager.run_here(lambda: Task(lambda: None, nothing))


def test_calls_give_results_and_errors(manager: DeviceManager) -> None:
    def wrong() -> None:
        raise ValueError("mine")

    assert manager.call(get_ident, "a call") != get_ident()
    with pytest.raises(ValueError, match="mine"):
        manager.call(wrong, "a call")
    assert manager.lost is None


def test_calls_from_its_own_thread(manager: DeviceManager) -> None:
    """A callback of a future may remove a network, on whichever thread it is called."""
    assert manager.call(lambda: manager.call(lambda: 7, "inside"), "outside") == 7


def test_lost_devices_fail_everything_once(manager: DeviceManager) -> None:
    held, lost = Held(manager), list[str]()
    for name in ("first", "second"):
        manager.submit(Task(lambda: lost.append("ran"), lambda error, name=name: lost.append(name)))
    error = DeviceLostError("gone")
    assert manager.lose(error)
    assert not manager.lose(DeviceLostError("again"))
    assert (held.lost, lost) == ([error], ["first", "second"])
    with pytest.raises(DeviceLostError, match="gone"):
        manager.call(lambda: 7, "a call")
    assert not manager.run_here(lambda: Task(lambda: None, nothing))
    assert manager.status.lost == "gone"
    held.go.set()
    manager._thread.join(60)
    assert not manager._thread.is_alive()
    assert len(held.lost) == 1


@pytest.mark.parametrize("error", [ValueError("broken"), SystemExit(1), DeviceLostError("broken")])
def test_devices_that_do_not_begin(error: BaseException) -> None:
    manager = DeviceManager(ScriptedDevice(before=Failing("begin", error)))
    with pytest.raises(DeviceLostError):
        manager.call(lambda: 7, "a call")
    manager._thread.join(60)
    assert not manager._thread.is_alive()


def test_a_source_that_raises_is_not_the_end_in_silence() -> None:
    """The device's thread does not die and leave everybody waiting."""

    class Wrong(Supply):
        def offer(self, now: float) -> Offer | None:
            raise ValueError("wrong")

    manager = DeviceManager(ScriptedDevice())
    manager.attach(Wrong([]))
    manager._thread.join(60)
    with pytest.raises(DeviceLostError, match="ValueError: wrong"):
        manager.call(lambda: 7, "a call")


def test_overdue_after_the_limit() -> None:
    manager = DeviceManager(ScriptedDevice(), limit=10.0)
    held, now = Held(manager), time.monotonic()
    assert manager.overdue(now) is None
    error = manager.overdue(now + 11.0)
    assert "device cpu has hung: a held task has not returned within 10 seconds" in str(error)
    held.go.set()
    manager.call(lambda: None, "a call")
    manager.close()
    assert manager.overdue(now + 1e9) is None


@pytest.mark.parametrize("error", [DeviceLostError("unplugged"), OSError("no such bus")])
def test_idle_devices_are_asked_whether_they_work(error: Exception) -> None:
    """Not before they have been idle for long, nor while they work; one that does not is out of service."""
    asked, device = list[str](), ScriptedDevice()
    manager = DeviceManager(device)
    device.probe = lambda: asked.append("works")  # type: ignore[method-assign]
    now = time.monotonic()
    manager.check(now)
    assert not asked
    held = Held(manager)
    manager.check(now + 1000.0)
    held.go.set()
    manager.call(lambda: None, "a call")
    assert not asked
    while not asked:  # the call may be ending yet
        manager.check(now + 1000.0)
    manager.check(now + 1001.0)
    manager.call(lambda: None, "a call")
    assert asked == ["works"]

    def broken() -> None:
        raise error

    device.probe = broken  # type: ignore[method-assign]
    while manager.lost is None:
        manager.check(now + 2000.0)
    assert str(error) in str(manager.status.lost)


def test_memory_is_accounted_for() -> None:
    manager = DeviceManager(ScriptedDevice(memory=1000))
    manager.reserve(600, "one")
    with pytest.raises(ProvisionError, match="has 400 of its 1,000 bytes left, and two needs 401"):
        manager.reserve(401, "two")
    manager.reserve(400, "three")
    manager.give_back(600)
    assert manager.used == manager.status.used == 400
    manager.close()


def test_memory_is_reserved_by_threads_at_once() -> None:
    manager, barrier = DeviceManager(ScriptedDevice(memory=100)), Barrier(8)

    def reserve(number: int) -> bool:
        barrier.wait()
        try:
            manager.reserve(30, "one")
        except ProvisionError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(reserve, range(8))) == 3
    assert manager.used == 90
    manager.close()


def test_closing_does_what_waits_and_no_more() -> None:
    closed, manager = list[bool](), DeviceManager(ScriptedDevice())
    manager.device.close = lambda: closed.append(True)  # type: ignore[method-assign]
    held, done = Held(manager), list[str]()
    manager.submit(Task(lambda: done.append("waiting"), nothing))
    closing = Thread(target=manager.close)
    closing.start()
    while not manager._closing:
        time.sleep(0)
    manager.submit(Task(lambda: done.append("late"), lambda lost: done.append(str(lost))))
    held.go.set()
    closing.join(60)
    assert done == ["device cpu is closed", "waiting"]
    assert closed == [True]
    with pytest.raises(DeviceLostError, match="closed"):
        manager.call(lambda: 7, "a call")
    assert not manager.run_here(lambda: Task(lambda: None, nothing))


def test_a_device_that_does_not_close() -> None:
    """Its error is to be seen, and ends nothing else."""
    manager = DeviceManager(ScriptedDevice())

    def close() -> None:
        raise DeviceError("stuck")

    manager.device.close = close  # type: ignore[method-assign]
    manager.close()
    assert "stuck" in str(manager.status.lost)


def test_the_device_may_be_closed_by_its_own_thread() -> None:
    manager = DeviceManager(ScriptedDevice())
    manager.submit(Task(manager.close, nothing))
    manager._thread.join(60)
    assert not manager._thread.is_alive()
