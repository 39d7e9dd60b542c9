"""Training on devices: the bits of one device, whatever it is cut into; and what becomes of failures."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import (
    DeviceError,
    DeviceLostError,
    DifferentiationError,
    InputError,
    MemoryBudgetError,
    NonFiniteError,
    ProvisionError,
    QueueFullError,
    UnavailableError,
)
from glowtrain.graph import Template
from glowtrain.memory.budget import Memory
from glowtrain.runtime import HostDevice, HostManager, TrainingNetwork, cpu_devices
from glowtrain.runtime.conformance import PoisonedDevice
from glowtrain.trainer.micro_batches.split import MicroBatches
from glowtrain.types import Array
from tests.backends import plain_backends
from tests.runtime.devices import Failing as FailingCall
from tests.runtime.devices import Gate, ScriptedDevice, joined

BATCH = 12


def _model() -> Template:
    """A convolution, batch normalisation and dropout: running statistics and a counter beside the parameters."""

    @gt.model(x=gt.f32["batch", 1, 8, 8])
    def net(x: gt.Value) -> dict[str, gt.Value]:
        h = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 4, 3, name="conv"), name="norm"))
        return {"scores": gt.nn.linear(gt.nn.flatten(gt.nn.dropout(h, 0.3)), 5, name="head")}

    return net


def _trainer(
    accumulate: int = 1, trainable: Sequence[str] | None = None, memory: Memory = None, micro_batches: MicroBatches = 1
) -> gt.Trainer:
    loss, adam = gt.losses.softmax_cross_entropy("labels", "scores"), gt.optim.Adam(lr=0.01, accumulate=accumulate)
    return gt.Trainer(_model(), loss, adam, trainable=trainable, threads=1, memory=memory, micro_batches=micro_batches)


def _batches(count: int, seed: int = 0) -> Iterator[dict[str, Array]]:
    generator = np.random.default_rng(seed)
    for _ in range(count):
        x = generator.normal(size=(BATCH, 1, 8, 8)).astype(np.float32)
        yield {"x": x, "labels": generator.integers(0, 5, BATCH)}


def _rows(batch: Mapping[str, Array], part: int, parts: int) -> dict[str, Array]:
    size = BATCH // parts
    return {name: array[part * size : (part + 1) * size] for name, array in batch.items()}


@pytest.mark.exhaustive
@pytest.mark.parametrize(("devices", "parts"), [(1, 1), (1, 3), (2, 2), (2, 4), (3, 3), (3, 6)])
def test_any_number_of_devices_gives_the_bits_of_one(devices: int, parts: int) -> None:
    alone, split = _trainer(accumulate=parts), _trainer()
    for batch in _batches(4):
        for part in range(parts):
            alone.step(_rows(batch, part, parts))
    with HostManager(cpu_devices(devices, threads=1)) as host:
        training = host.add_training("net", split, batch_size=BATCH, parts=parts)
        losses = training.fit(_batches(4))
        training.finish()
        assert all(status.used == 0 for status in host.status())
    assert len(losses) == 4
    expected = alone.variables()
    for name, array in split.variables().items():
        assert array.tobytes() == expected[name].tobytes(), name


@pytest.mark.exhaustive
def test_parts_of_parameters_train_to_the_same_bits() -> None:
    trainable = ["conv.weight[1:3]", "*.bias"]
    alone, split = _trainer(accumulate=2, trainable=trainable), _trainer(trainable=trainable)
    for batch in _batches(3):
        for part in range(2):
            alone.step(_rows(batch, part, 2))
    with HostManager(cpu_devices(2, threads=1)) as host:
        training = host.add_training("net", split, batch_size=BATCH)
        training.fit(_batches(3))
        training.finish()
    expected, begun = alone.variables(), _trainer().variables()
    for name, array in split.variables().items():
        assert array.tobytes() == expected[name].tobytes(), name
    assert np.array_equal(expected["conv.weight"][0], begun["conv.weight"][0])
    assert not np.array_equal(expected["conv.weight"][1], begun["conv.weight"][1])


@pytest.mark.exhaustive
@pytest.mark.parametrize("parts", [1, 2])
def test_a_trainer_s_budget_is_kept_on_devices(parts: int) -> None:
    used, states = [], []
    for memory in ("keep", "small"):
        trainer = _trainer(memory=memory)
        with HostManager(cpu_devices(1, threads=1)) as host:
            training = host.add_training("net", trainer, batch_size=BATCH, parts=parts)
            used.append(sum(status.used for status in host.status()))
            training.fit(_batches(2))
            training.finish()
            with pytest.raises(MemoryBudgetError, match="bytes of memory are too few"):
                host.add_training("less", _trainer(memory="10KB"), batch_size=BATCH, parts=parts)
            assert all(status.used == 0 for status in host.status())
        states.append({name: array.tobytes() for name, array in trainer.variables().items()})
    assert used[1] < used[0] or parts > 1  # gradients alone keep nothing that could be made again here
    assert states[1] == states[0]


@pytest.mark.parametrize(("micro_batches", "why"), [(2, "cut into parts= already"), ("auto", "say a number")])
def test_parts_are_said_once(micro_batches: MicroBatches, why: str) -> None:
    with HostManager(cpu_devices(1, threads=1)) as host, pytest.raises(InputError, match=why):
        host.add_training("net", _trainer(micro_batches=micro_batches), batch_size=BATCH, parts=2)


@pytest.mark.exhaustive
def test_devices_have_the_same_variables() -> None:
    with HostManager(cpu_devices(3, threads=1)) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH)
        training.fit(_batches(3))
        training.wait()
        every = [next(iter(placed.variables.values()))[1].read_all() for placed in training._placements]
        for other in every[1:]:
            assert all(array.tobytes() == every[0][name].tobytes() for name, array in other.items() if name in every[0])


@pytest.mark.exhaustive
def test_a_device_with_memory_of_its_own_trains_to_the_same_bits() -> None:
    usual, poisoned = _trainer(), _trainer()
    with HostManager([HostDevice("cpu", threads=1)]) as host:
        first = host.add_training("net", usual, batch_size=BATCH, parts=2)
        losses = first.fit(_batches(3))
        first.finish()
    with HostManager([PoisonedDevice(delay=0.001)]) as host:
        second = host.add_training("net", poisoned, batch_size=BATCH, parts=2)
        assert second.fit(_batches(3)) == losses
        second.finish()
    assert all(array.tobytes() == usual.variables()[name].tobytes() for name, array in poisoned.variables().items())


@pytest.mark.parametrize("backend", plain_backends())
@pytest.mark.parametrize("count", [1, 2])
def test_every_backend_trains(backend: str, count: int) -> None:
    """As all others do, if not to the bit. Hyperparameters and the counter of random numbers have no axes, and none is
    added on the way."""

    def losses(made: str) -> list[float]:
        with HostManager([HostDevice(str(number), made) for number in range(count)]) as host:
            return host.add_training("net", _trainer(), batch_size=BATCH).fit(_batches(3))

    np.testing.assert_allclose(losses(backend), losses("cpu"), rtol=1e-3)


@pytest.mark.exhaustive
def test_hyperparameters_are_those_of_the_time_of_asking() -> None:
    plain, trainer = _trainer(), _trainer()
    batches = list(_batches(3))
    for rate, batch in zip((0.01, 0.1, 0.001), batches, strict=True):
        plain.hyper["lr"] = rate
        plain.step(batch)
    with HostManager(["cpu"]) as host:
        training = host.add_training("net", trainer, batch_size=BATCH, parts=1)
        for rate, batch in zip((0.01, 0.1, 0.001), batches, strict=True):
            trainer.hyper["lr"] = rate
            training.step(batch)
        training.finish()
    assert all(array.tobytes() == plain.variables()[name].tobytes() for name, array in trainer.variables().items())


def test_a_loss_that_is_not_finite_updates_nothing() -> None:
    trainer = _trainer()
    with HostManager(cpu_devices(2, threads=1)) as host:
        training = host.add_training("net", trainer, batch_size=BATCH)
        good, bad = _batches(2)
        training.step(good).result()
        before = training.variables()
        bad["x"][BATCH - 1] = np.nan
        with pytest.raises(NonFiniteError, match="nan"):
            training.step(bad).result()
        after = training.variables()
        assert all(array.tobytes() == after[name].tobytes() for name, array in before.items())
        assert np.isfinite(training.step(good).result())


def test_bad_batches_are_refused_before_anything_runs() -> None:
    with HostManager(["cpu"]) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH, parts=1, queue=2)
        (batch,) = _batches(1)
        with pytest.raises(InputError, match="batches of 12 examples"):
            training.step({name: array[:5] for name, array in batch.items()})
        with pytest.raises(InputError, match="labels"):
            training.step({"x": batch["x"]})
        with pytest.raises(InputError, match="ahead"):
            training.fit([batch], ahead=2)


def test_what_cannot_be_meant_is_refused() -> None:
    with HostManager(cpu_devices(2, threads=1)) as host:
        for wrong in ({"batch_size": 0}, {"batch_size": 12, "parts": 0}, {"batch_size": 12, "parts": 5}):
            with pytest.raises(InputError):
                host.add_training("net", _trainer(), **wrong)
        with pytest.raises(InputError, match="no device 'gpu'"):
            host.add_training("net", _trainer(), batch_size=12, devices=["gpu"])
        assert all(status.used == 0 for status in host.status())


@pytest.mark.exhaustive
def test_memory_that_does_not_suffice_leaves_nothing() -> None:
    devices = [HostDevice("large", threads=1), HostDevice("small", memory=1000, threads=1)]
    with HostManager(devices) as host:
        with pytest.raises(ProvisionError, match="small has 1,000 of its 1,000 bytes left"):
            host.add_training("net", _trainer(), batch_size=12)
        assert all(status.used == 0 for status in host.status())


class Failing(HostDevice):
    """Raises an error at one of its runs."""

    def __init__(self, name: str, at: int, error: Exception) -> None:
        super().__init__(name, threads=1)
        self.runs, self.at, self.error = 0, at, error

    def load(self, executable, variables):
        resident = super().load(executable, variables)
        run = resident.run

        def counted(inputs):
            self.runs += 1
            if self.runs == self.at:
                raise self.error
            return run(inputs)

        resident.run = counted
        return resident


@pytest.mark.exhaustive
def test_gradients_that_fail_update_nothing_and_the_next_step_goes_on() -> None:
    broken, whole = _trainer(), _trainer()
    batches = list(_batches(3))
    with HostManager([HostDevice("good", threads=1), Failing("bad", 3, RuntimeError("a fault"))]) as host:
        training = host.add_training("net", broken, batch_size=BATCH)
        training.step(batches[0]).result()
        with pytest.raises(DeviceError, match="a fault"):
            training.step(batches[1]).result()
        training.step(batches[2]).result()
        training.finish()
    with HostManager(cpu_devices(2, threads=1)) as host:
        training = host.add_training("net", whole, batch_size=BATCH)
        training.fit([batches[0], batches[2]])
        training.finish()
    assert all(array.tobytes() == whole.variables()[name].tobytes() for name, array in broken.variables().items())


def test_a_device_that_is_lost_with_gradients_leaves_the_variables_of_the_others() -> None:
    batches = list(_batches(2))
    with HostManager([HostDevice("good", threads=1), Failing("bad", 3, DeviceLostError("unplugged"))]) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH)
        training.step(batches[0]).result()
        before = training.variables()
        with pytest.raises(DeviceLostError, match="unplugged"):
            training.step(batches[1]).result()
        with pytest.raises(UnavailableError, match="unplugged"):
            training.step(batches[1])
        assert all(array.tobytes() == before[name].tobytes() for name, array in training.variables().items())


def test_an_update_that_fails_on_one_device_is_said() -> None:
    (batch,) = _batches(1)
    with HostManager([HostDevice("good", threads=1), Failing("bad", 2, RuntimeError("a fault"))]) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH)
        with pytest.raises(DeviceLostError, match="the update failed on device bad"):
            training.step(batch).result()
        with pytest.raises(UnavailableError, match="go back to a checkpoint"):
            training.variables()


def test_steps_that_wait_are_bounded_and_can_be_cancelled() -> None:
    (batch,) = _batches(1)
    with HostManager([PoisonedDevice(delay=0.02)]) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH, parts=1, queue=2)
        running = training.step(batch)
        waiting = [training.step(batch), training.step(batch)]
        with pytest.raises(QueueFullError, match="2 steps wait"):
            training.step(batch)
        assert waiting[1].cancel()
        assert np.isfinite(running.result())
        assert np.isfinite(waiting[0].result())
        assert training.wait()


def test_a_loss_that_reads_what_batches_update_cannot_be_cut() -> None:
    """A running mean that the model itself reads: part 1 would have to wait for part 0."""

    @gt.model(x=gt.f32["batch", 4])
    def net(x: gt.Value) -> dict[str, gt.Value]:
        return {"y": gt.nn.linear(x, 1, name="head")}

    graph = net.bind({"batch": 4})
    mean = gt.Variable("mean", np.zeros((), np.float32), trainable=False)
    x = graph.inputs[0]
    centred = graph.outputs["y"] - mean
    changed = graph.with_(
        outputs={"y": centred}, updates={mean: mean * 0.9 + gt.ops.ReduceMean(keepdims=0)(x) * 0.1}, template=None
    )
    trainer = gt.Trainer(changed, gt.losses.mse("t", "y"), gt.optim.SGD(lr=0.1), threads=1)
    with pytest.raises(DifferentiationError, match="its loss reads mean"):
        trainer.graphs.split_step(changed, 2)


@gt.model(x=gt.i64["batch", 3])
def _embedded(x: gt.Value) -> dict[str, gt.Value]:
    return {"scores": gt.nn.linear(gt.nn.mean(gt.nn.embedding(x, 7, 4), axes=1), 5)}


@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("wrong", [np.full((4, 3), 7), np.full((4, 3), -8), np.zeros((4, 2), np.int64)])
def test_batches_that_would_read_elsewhere(parts: int, wrong: Array) -> None:
    """Indices and shapes are checked before a device has them."""
    loss = gt.losses.softmax_cross_entropy("labels", "scores")
    trainer = gt.Trainer(_embedded, loss, gt.optim.SGD(0.1), threads=1)
    with HostManager(cpu_devices(2, threads=1)) as host:
        training = host.add_training("net", trainer, batch_size=4, parts=parts)
        fitting = {"x": np.ones((4, 3), np.int64), "labels": np.zeros(4, np.int64)}
        with pytest.raises(InputError, match="'x' must"):
            training.step(fitting | {"x": wrong})
        assert np.isfinite(training.step(fitting).result())


@pytest.mark.spread(1)
@pytest.mark.parametrize("parts", [1, 2])
def test_arrays_of_a_step_may_be_written_to(parts: int) -> None:
    """A source that gives the same array again and again, while steps wait."""
    batches, losses = list(_batches(5)), []
    for same in (False, True):
        buffer = {name: array.copy() for name, array in batches[0].items()}
        with HostManager(cpu_devices(parts, threads=1)) as host:
            training = host.add_training("net", _trainer(), batch_size=BATCH)
            steps = []
            for batch in batches:
                for name, array in batch.items():
                    buffer[name][...] = array
                steps.append(training.step(buffer if same else batch))
            losses.append([step.result() for step in steps])
    assert losses[0] == losses[1]


# --- its end ----------------------------------------------------------------------------------------------------------


def test_steps_that_wait_may_all_be_cancelled() -> None:
    gate = Gate()
    with HostManager([ScriptedDevice(before=gate)], time_limit=None) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH, queue=2000)
        (batch,) = _batches(1)
        gate.close()
        first = training.step(batch)
        assert gate.reached.wait(60)
        waiting = [training.step(batch) for _ in range(1500)]
        last = training.step(batch)
        assert all(future.cancel() for future in waiting)
        gate.open()
        assert first.result(60) > last.result(60) > 0


@pytest.mark.parametrize("drain", [True, False])
def test_the_end_does_not_wait_longer_than_it_may(drain: bool) -> None:
    gate = Gate()
    host = HostManager([ScriptedDevice(before=gate)], time_limit=None)
    training = host.add_training("net", _trainer(), batch_size=BATCH)
    gate.close()
    running, *waiting = [training.step(batch) for batch in _batches(3)]
    assert gate.reached.wait(60)
    host.close(drain=drain, timeout=0.05)
    assert not running.done()
    for future in waiting:
        with pytest.raises(UnavailableError, match="training net: the runtime is closed"):
            future.result(0)
    gate.open()
    assert np.isfinite(running.result(60))


def test_the_end_fails_steps_that_need_not_be_made() -> None:
    """Without draining; the one that runs is waited for."""
    gate = Gate()
    host = HostManager([ScriptedDevice(before=gate)], time_limit=None)
    training = host.add_training("net", _trainer(), batch_size=BATCH)
    gate.close()
    running, waiting = [training.step(batch) for batch in _batches(2)]
    assert gate.reached.wait(60)
    waiting.add_done_callback(lambda _: gate.open())
    host.close(drain=False)
    assert np.isfinite(running.result(0))
    assert isinstance(waiting.exception(0), UnavailableError)


def test_everything_ends_where_a_device_does_not_unload() -> None:
    device = ScriptedDevice(before=FailingCall("free", ValueError("no"), ever=True))
    host = HostManager([device, *cpu_devices(1, threads=1)])
    host.add_training("net", _trainer(), batch_size=BATCH)
    with pytest.raises(DeviceError, match="unloading failed on device cpu: ValueError: no"):
        host.close()
    joined("device cpu", "runtime watch")


@pytest.mark.exhaustive
def test_what_is_finished_is_let_go() -> None:
    with HostManager(cpu_devices(2, threads=1)) as host:
        trainer = _trainer()
        training = host.add_training("net", trainer, batch_size=BATCH)
        training.fit(_batches(1))
        training.finish()
        with pytest.raises(UnavailableError, match="training net has left its devices: it is finished"):
            training.variables()
        left = weakref.ref(training), weakref.ref(trainer)
        del training, trainer
        gc.collect()
        assert [each() for each in left] == [None, None]


@pytest.mark.parametrize("wrong", [{"queue": 0}, {"batch_size": 0}, {"parts": 5}])
def test_what_cannot_be_meant_leaves_nothing(wrong: dict) -> None:
    with HostManager(cpu_devices(2, threads=1)) as host:
        with pytest.raises(InputError):
            host.add_training("net", _trainer(), **{"batch_size": BATCH, **wrong})
        assert [status.used for status in host.status()] == [0, 0]


@pytest.mark.parametrize("trainer", [None, 5, _model()])
def test_only_trainers_are_trained(trainer: object) -> None:
    with (
        HostManager(cpu_devices(1, threads=1)) as host,
        pytest.raises(InputError, match="it is a Trainer that is trained, not"),
    ):
        host.add_training("net", trainer, batch_size=BATCH)  # type: ignore[arg-type]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_child_of_fork_does_not_wait_for_steps() -> None:
    gate = Gate()
    with HostManager([ScriptedDevice(before=gate)], time_limit=None) as host:
        training = host.add_training("net", _trainer(), batch_size=BATCH)
        gate.close()
        running = training.step(next(_batches(1)))
        assert gate.reached.wait(60)
        child = os.fork()
        if not child:
            os._exit(_wrong_in_the_child(training))
        gate.open()
        assert os.waitpid(child, 0)[1] == 0
        assert np.isfinite(running.result(60))


def _wrong_in_the_child(training: TrainingNetwork) -> int:
    """The number of what went wrong."""
    (batch,) = _batches(1)
    for number, attempt in enumerate((lambda: training.step(batch), training.variables, training.finish), 1):
        try:
            attempt()
        except UnavailableError:
            continue
        except BaseException:  # noqa: BLE001 - a child does not go on into pytest
            return number
        return number
    return 0 if training.wait(60) else 4
