"""Functions: a bounded number of specialisations, instances in a pool, and calls from several threads."""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.state import ReadWriteLock, State, address_of
from glowtrain.compiler import Function, compile_artifact
from glowtrain.compiler.specialisation import IDLE
from glowtrain.errors import BindingError, InputError
from glowtrain.types import Array
from tests.compiler.instances import taken


@gt.model(x=gt.f32["batch", 32])
def network(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 64, name="hidden")), 8, name="head")


def batch(rows: int) -> dict[str, Array]:
    return {"x": np.full((rows, 32), rows, np.float32)}


def resident() -> int:
    """Bytes of memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class TestSpecialisations:
    def test_the_one_used_longest_ago_goes_first(self) -> None:
        function = gt.compile(network, "interpreter", specialisations=2)
        one, two = (function.specialised(batch(n)) for n in (1, 2))
        assert function.specialised(batch(1)) is one
        function.specialised(batch(3))
        assert function.specialised(batch(1)) is one
        assert function.specialised(batch(2)) is not two

    def test_what_goes_is_freed(self) -> None:
        function = gt.compile(network, specialisations=1)
        first = weakref.ref(function.specialised(batch(1)).executable)
        function.specialised(batch(2))
        gc.collect()
        assert first() is None

    @pytest.mark.exhaustive
    def test_300_shapes_in_bounded_memory(self) -> None:
        """Eight are kept: after those, and what Python and LLVM allocate once, memory hardly grows."""
        function = gt.compile(network, specialisations=8)
        for rows in range(1, 60):
            function(batch(rows))
        before = resident()
        for rows in range(60, 300):
            function(batch(rows))
        gc.collect()
        assert len(function._kept) == 8
        assert resident() - before < 30 << 20

    def test_variables_outlive_specialisations(self) -> None:
        function = gt.compile(network, specialisations=1)
        wanted = function(batch(1))["output"]
        function.state.write("head.bias", function.state.read("head.bias") + np.float32(1))
        function(batch(2))
        np.testing.assert_allclose(function(batch(1))["output"], wanted + 1, rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize("count", [0, -1, 1.5, "all"])
    def test_at_least_one_is_kept(self, count: Any) -> None:
        with pytest.raises(InputError, match=f"keeps at least 1 specialisation, not {count!r}"):
            gt.compile(network, specialisations=count)


class TestPool:
    def test_calls_run_at_the_same_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Two calls hold an instance each, until both have one."""
        monkeypatch.setattr("glowtrain.compiler.specialisation.IDLE", 2)
        special = gt.compile(network).specialised(batch(4))
        meet = threading.Barrier(2, timeout=60)

        def hold(_: int) -> object:
            with special.state.lock.reading(), taken(special) as instance:
                meet.wait()
                return instance

        with ThreadPoolExecutor(2) as pool:
            a, b = pool.map(hold, range(2))
        assert a is not b

    def test_there_are_no_more_instances_than_cores(self) -> None:
        special = gt.compile(network).specialised(batch(4))
        lock, inside = threading.Lock(), [0, 0]

        def hold(_: int) -> None:
            with taken(special):
                with lock:
                    inside[0] += 1
                    inside[1] = max(inside)
                time.sleep(0.001)
                with lock:
                    inside[0] -= 1

        with ThreadPoolExecutor(IDLE + 3) as pool:
            list(pool.map(hold, range(20 * IDLE)))
        assert inside[1] <= IDLE
        assert len(special._idle) <= IDLE

    def test_eight_threads_get_right_answers(self) -> None:
        function = gt.compile(network)
        random = np.random.default_rng(0)
        inputs = [{"x": random.standard_normal((int(n), 32)).astype(np.float32)} for n in random.integers(1, 6, 64)]
        wanted = [function(x)["output"].tobytes() for x in inputs]
        with ThreadPoolExecutor(8) as pool:
            found = list(pool.map(lambda x: function(x)["output"].tobytes(), inputs * 8))
        assert found == wanted * 8

    def test_a_layout_that_another_function_wants_is_not_changed_under_a_call(self) -> None:
        """Both functions read one convolution's weights, which one wants channels-last."""
        random = np.random.default_rng(0)
        w = gt.Variable("w", random.standard_normal((8, 8, 3, 3)).astype(np.float32))
        x, plain = gt.Input(gt.f32[2, 8, 9, 9], "x"), gt.Input(gt.f32[8, 8, 3, 3], "plain")
        conv = gt.ops.convolution.convolution.Conv()
        state = State({})
        first = gt.compile(gt.Graph((x,), {"y": conv(x, w)}), state=state)
        second = gt.compile(gt.Graph((plain,), {"y": plain + w}), state=state)
        feeds = {"x": random.standard_normal((2, 8, 9, 9)).astype(np.float32)}, {"plain": np.zeros(w.shape, np.float32)}
        wanted = [f(feed)["y"].tobytes() for f, feed in zip((first, second), feeds, strict=True)]

        def call(number: int) -> bool:
            function = (first, second)[number % 2]
            return bool(function(feeds[number % 2])["y"].tobytes() == wanted[number % 2])

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(call, range(400)))


class TestTurns:
    def test_a_trainer_called_from_several_threads_takes_turns(self) -> None:
        random = np.random.default_rng(0)
        data = {"x": random.standard_normal((16, 32)).astype(np.float32), "labels": random.integers(0, 8, 16)}
        trainers = [gt.Trainer(network, gt.losses.softmax_cross_entropy(), gt.optim.SGD(0.1)) for _ in range(2)]
        for _ in range(64):
            trainers[0].step(data)
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda _: trainers[1].step(data), range(64)))
        assert all(
            trainers[0].variables()[name].tobytes() == trainers[1].variables()[name].tobytes()
            for name in trainers[0].variables()
        )

    def test_readers_meet_and_writers_are_alone(self) -> None:
        lock, inside, most = ReadWriteLock(), [0, 0], [0, 0]
        guard = threading.Lock()

        def enter(kind: int) -> None:
            with lock.writing() if kind else lock.reading():
                with guard:
                    inside[kind] += 1
                    most[kind] = max(most[kind], inside[kind])
                    assert not (inside[0] and inside[1])
                with guard:
                    inside[kind] -= 1

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: enter(n % 5 == 0), range(2000)))
        assert most[1] == 1

    def test_the_lock_may_be_taken_again(self) -> None:
        lock = ReadWriteLock()
        with lock.writing(), lock.writing(), lock.reading():
            pass
        with lock.reading(), lock.reading():
            pass

    def test_a_writer_is_not_kept_out_by_readers(self) -> None:
        lock, written = ReadWriteLock(), threading.Event()

        def write() -> None:
            with lock.writing():
                written.set()

        with lock.reading():
            writer = threading.Thread(target=write)
            writer.start()
            while not lock._waiting:
                pass
            late = threading.Thread(target=lambda: lock.reading().__enter__(), daemon=True)
            late.start()
            assert not written.wait(0.05)
        assert written.wait(60)
        writer.join()
        late.join(60)


@pytest.mark.parametrize("backend", ["cpu", "interpreter", "evaluator"])
@pytest.mark.parametrize("other", [np.zeros((32, 5), np.float32), np.zeros((32, 64))], ids=["shape", "dtype"])
def test_a_state_with_a_variable_of_another_type_is_refused(backend: str, other: Array) -> None:
    with pytest.raises(InputError, match=r"variable hidden\.weight is float32\[32, 64\] here, and float"):
        gt.compile(network, backend, State({"hidden.weight": other}))(batch(2))


def test_what_is_no_function() -> None:
    with pytest.raises(InputError, match="compile takes a graph or a template"):
        Function("mlp", gt.Cpu())  # type: ignore[arg-type]
    with pytest.raises(InputError, match="a backend is a name or a Backend, not"):
        gt.compile(network, 3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"compile_artifact takes a graph, not Template; bind its dimensions"):
        compile_artifact(network)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"compile_artifact takes a graph, not 'mlp\.onnx' \(str\)"):
        compile_artifact("mlp.onnx")  # type: ignore[arg-type]


class TestFastCalls:
    """What most calls are like is decided once; all others get the same answers as ever."""

    @pytest.mark.parametrize(
        ("inputs", "message"),
        [
            ({}, "'x' is missing"),
            ({"x": np.ones((2, 32)), "z": 1}, "must be|is not an input"),
            ({"x": np.ones((2, 32))}, "must be f32"),
            ({"x": np.ones((2, 32), np.int32)}, "must be f32"),
            ({"x": np.ones((2, 32), np.float32), "z": np.ones(3)}, "'z' is not an input"),
            ({"x": np.ones((2, 33), np.float32)}, "axis 1 is 32"),
            ([1.0], "x"),
        ],
    )
    def test_mistakes_after_a_good_call(self, inputs: Any, message: str) -> None:
        f = gt.compile(network)
        f({"x": np.ones((2, 32), np.float32)})
        with pytest.raises((InputError, BindingError), match=message):
            f(inputs)

    def test_shapes_that_alternate(self) -> None:
        f = gt.compile(network)
        for rows in (2, 3, 2, 2, 3, 1, 2):
            assert f({"x": np.ones((rows, 32), np.float32)})["output"].shape == (rows, 8)
        assert f({"x": [[1.0] * 32] * 5})["output"].shape == (5, 8)

    def test_arrays_of_every_kind_of_memory(self) -> None:
        f = gt.compile(network)
        x = np.random.default_rng(0).normal(size=(6, 32)).astype(np.float32)
        expected = f({"x": x})["output"]
        frozen = x.copy()
        frozen.flags.writeable = False
        wide = np.repeat(x, 2, axis=1)
        for same in (frozen, np.asfortranarray(x), wide[:, ::2], x.view(np.ndarray)):
            assert np.array_equal(f({"x": same})["output"], expected)
        assert f({"x": x[:0]})["output"].shape == (0, 8)

    def test_an_array_that_changes_its_shape(self) -> None:
        f, x = gt.compile(network), np.ones((4, 32), np.float32)
        f({"x": x})
        x.shape = (2, 64)
        with pytest.raises(BindingError, match="axis 1 is 32"):
            f({"x": x})

    def test_indices_are_looked_at_in_every_call(self) -> None:
        @gt.model(index=gt.i64[3])
        def table(index: gt.Value) -> gt.Value:
            return gt.nn.embedding(index, 5, 2)

        f = gt.compile(table)
        f({"index": np.array([0, 4, 2])})
        with pytest.raises(InputError, match="index"):
            f({"index": np.array([0, 5, 2])})


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (4, 5)])
@pytest.mark.parametrize("dtype", [gt.f32, gt.bf16, gt.i64, gt.boolean])
def test_addresses(shape: tuple[int, ...], dtype: Any) -> None:
    array = np.zeros(shape, dtype.numpy)
    assert address_of(array) == array.ctypes.data
    array.flags.writeable = False
    assert address_of(array) == array.ctypes.data
