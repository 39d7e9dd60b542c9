"""Requests to a host: answered in batches of the compiled sizes, in order, in time, or with an error."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError, Future, wait

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import DeadlineError, InputError, QueueFullError
from glowtrain.graph import Template, Value
from glowtrain.runtime import HostManager, watch
from tests.runtime.devices import Gate, ScriptedDevice, ask, rows, triple, tripled


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


def test_rows_of_a_cancelled_request_that_are_in_no_batch_yet_do_not_run(host: HostManager, gate: Gate) -> None:
    gate.close()
    running = ask(host, 0, 100)
    assert gate.reached.wait(60)
    assert not running.cancel()
    gate.open()
    with pytest.raises(CancelledError):
        running.result(60)
    np.testing.assert_array_equal(ask(host, 2).result()["y"], tripled(rows(2, 1)))
    assert value(host, "nv_inference_count") < 100
    assert value(host, "nv_inference_request_failure", reason="CANCELED") == 1
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


def test_a_deadline_waits_for_no_round_of_the_watch(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one is in an hour; a later deadline that came first does not matter either."""
    monkeypatch.setattr(watch, "TICK", 3600.0)
    with HostManager([ScriptedDevice(before=gate)], time_limit=None) as host:
        host.add_network("net", triple, batch_sizes=[1])
        gate.close()
        running = ask(host, 0)
        assert gate.reached.wait(60)
        patient, late, later = (ask(host, 1, timeout=timeout) for timeout in (1800.0, 0.01, 0.02))
        for each in (late, later):
            assert isinstance(each.exception(60), DeadlineError)
        gate.open()
        assert set(running.result()) == set(patient.result()) == {"y", "z"}


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


@gt.model(x=gt.u8["batch", 4])
def beside_the_largest_byte(x: Value) -> dict[str, Value]:
    """Nobody sees it as long as all images are of zeros and ones."""
    numbers = gt.ops.Cast(gt.f32)(x)
    return {"y": numbers / gt.ops.ReduceMax((0, 1))(numbers)}


@gt.model(x=gt.f32["batch", 1])
def where_one_is_large(x: Value) -> dict[str, Value]:
    return {"y": x + gt.ops.Cast(gt.f32)(gt.ops.ReduceMax((0,))(x) > 5.0)}


@gt.model(x=gt.f32["batch", 3])
def numbered(x: Value) -> dict[str, Value]:
    return {"y": x + gt.ops.CumSum(0)(x * 0.0 + 1.0)}


@gt.model(x=gt.f32["batch", 3])
def counted(x: Value) -> dict[str, Value]:
    return {"y": x * gt.ops.ReduceSum((0,))(x * 0.0 + 1.0)}


@gt.model(x=gt.f32["batch", 3])
def noisy(x: Value) -> dict[str, Value]:
    return {"y": x + gt.ops.RandomNormalLike(seed=3.0)(x)}


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (beside_the_largest_byte, "the examples beside it"),
        (where_one_is_large, "the examples beside it"),
        (numbered, "where in its batch it is"),
        (counted, "how many there are in its batch"),
        (noisy, "where in its batch it is"),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
def test_examples_that_see_their_batch_are_not_joined(model: Template, what: str) -> None:
    with HostManager() as host:
        with pytest.raises(InputError, match=f"depends on {what}"):
            host.add_network("net", model)
        assert host.networks() == []
        host.add_network("net", model, max_batch=1)


def test_versions_are_put_all_or_none() -> None:
    """Those that were made before the one that cannot be leave their devices."""
    with HostManager([ScriptedDevice()]) as host:
        host.put_versions("net", {"1": triple, "2": triple})
        (before,) = host.status()
        with pytest.raises(InputError, match="the examples beside it"):
            host.put_versions("net", {"1": triple, "3": triple, "2": beside_the_largest})
        assert host.status()[0].used == before.used
        assert [network.version for network in host.networks()] == ["1", "2"]
        host.put_versions("net", {"3": triple})
        assert host.status()[0].used > before.used
        assert host.network("net").version == "3"
