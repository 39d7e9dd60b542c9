"""Steps of bundles have the bits of the trainer's, and touch no memory but what they were given."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.bundles.contents import PREDICT, Contents
from glowtrain.bundles.memory import VariableSlot, lay_out
from glowtrain.bundles.module import BundleModule
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Value
from glowtrain.quantization import calibrate, prepare_training, quantize
from glowtrain.types import Array
from tests.bundles.in_process import Instance, Loaded, compiled, contents, trainer_and_bundle
from tests.bundles.networks import BATCH, CASES, Batch, Case, classifier
from tests.compiler.networks import mlp
from tests.program.random_graphs import RandomGraph

ROOT = Path(__file__).parents[2]
STEPS = 5


def batches(case: Case, count: int, seed: int = 1) -> list[Batch]:
    random = np.random.default_rng(seed)
    return [case.batch(random) for _ in range(count)]


def train_both(case: Case, instance: Instance) -> None:
    """Steps and a prediction by a trainer and by an instance of its bundle."""
    trainer = case.trainer
    *training, last = batches(case, STEPS + 1)
    for batch in training:
        loss = trainer.step(batch)
        assert float(instance.run("step", batch)["loss"]) == loss
        expected = trainer.variables()
        for name, value in instance.values().items():
            assert value.tobytes() == expected[name].tobytes(), name
    inputs = {name: last[name] for name in trainer.graphs.specs}
    predicted = trainer.predict(inputs)
    arrays = predicted.values() if isinstance(predicted, dict) else [predicted]
    found = instance.run("predict", inputs)
    assert [array.tobytes() for array in found.values()] == [array.tobytes() for array in arrays]


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", CASES)
def test_steps_and_a_prediction_have_the_bits_of_the_trainer(name: str) -> None:
    case = CASES[name]()
    _, loaded = trainer_and_bundle(case.trainer)
    train_both(case, loaded.instance())


@pytest.mark.exhaustive
def test_no_memory_beside_what_is_given_is_touched() -> None:
    command = [sys.executable, "-m", "tests.bundles.guarded"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@pytest.mark.exhaustive
def test_a_trainer_is_bundled_as_it_is_now() -> None:
    case = CASES["cnn"]()
    case.trainer.step(batches(case, 1, seed=5)[0])
    case.trainer.hyper["lr"] = 0.5
    _, loaded = trainer_and_bundle(case.trainer)
    train_both(case, loaded.instance())


def test_hyperparameters_are_those_of_each_step() -> None:
    case = CASES["mlp, clipped"]()
    trainer, loaded = trainer_and_bundle(case.trainer)
    instance = loaded.instance()
    for rate, batch in zip((0.1, 0.01, 1.0), batches(case, 3), strict=True):
        trainer.hyper["lr"] = rate
        instance.run("step", batch, {**loaded.module.hyper, "lr": rate})
        trainer.step(batch)
        for name, value in instance.values().items():
            assert value.tobytes() == trainer.variables()[name].tobytes(), (rate, name)


def test_metrics_of_a_step_come_out_beside_the_loss() -> None:
    trainer = gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.SGD(0.1), metrics=True)
    case = replace(classifier(mlp, 1, 8, 8), trainer=trainer)
    _, loaded = trainer_and_bundle(trainer)
    outputs = loaded.instance().run("step", batches(case, 1)[0])
    assert list(outputs) == ["loss", "accuracy"]
    assert 0 <= outputs["accuracy"] <= 1


def test_means_of_listed_metrics_come_out_of_a_step() -> None:
    settings = {"metrics": ["top_2", "perplexity", "f1"], "train_metrics": True}
    trainer = gt.Trainer(mlp, "softmax_cross_entropy", gt.optim.SGD(0.1), **settings)  # type: ignore[arg-type]
    case = replace(classifier(mlp, 1, 8, 8), trainer=trainer)
    _, loaded = trainer_and_bundle(trainer)
    (batch,) = batches(case, 1)
    outputs = loaded.instance().run("step", batch)
    trainer.step(batch)
    assert list(outputs) == ["loss", "accuracy", "top_2", "cross_entropy"]
    perplexity = np.exp(outputs["cross_entropy"], dtype=np.float64)
    assert trainer.measured == {name: outputs[name] for name in ("accuracy", "top_2")} | {"perplexity": perplexity}


# ---- quantized models


@cache
def calibration() -> dict[str, Array]:
    return {"x": np.random.default_rng(4).normal(size=(16, 1, 8, 8)).astype(np.float32)}


def test_a_quantized_model_predicts_the_same_bits() -> None:
    model = quantize(mlp, calibration()).model
    batch = {"x": calibration()["x"][:BATCH]}
    module = compiled(contents(model, dims={"batch": BATCH}))
    assert not module.memory.slots
    found = Loaded(module).instance().run("predict", batch)
    expected = gt.compile(model)(batch)
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in expected.items()}


@pytest.mark.exhaustive
def test_a_model_that_learns_to_be_quantized_trains() -> None:
    model = prepare_training(mlp, calibrate(mlp, calibration()))
    case = classifier(model, 1, 8, 8)
    _, loaded = trainer_and_bundle(case.trainer)
    train_both(case, loaded.instance())


# ---- any program


def random_contents(seed: int) -> tuple[Contents, dict[str, Array]]:
    """A random graph with state as a step and, once more, as a function that changes nothing."""
    draw = RandomGraph(ChoiceDraw(seed))
    graph = draw.graph()
    roles = {variable.name: "parameter" for variable in graph.variables}
    return Contents("any", {"first": graph, PREDICT: graph.with_(updates={})}, roles, {}), draw.feeds()


@pytest.mark.exhaustive
@given(st.integers(0, 1 << 30))
def test_any_program_with_state_has_the_bits_of_compiled_code(seed: int) -> None:
    what, feeds = random_contents(seed)
    instance = Loaded(compiled(what, known=False)).instance()
    function = gt.compile(what.graphs["first"])
    for variable in what.variables:
        assert instance.set(variable.name, variable.initial) == 0
    for _ in range(2):
        found, expected = instance.run("first", feeds), function(feeds)
        assert {n: a.tobytes() for n, a in found.items()} == {n: np.asarray(a).tobytes() for n, a in expected.items()}
    for variable in what.graphs["first"].updates:
        assert instance.get(variable.name).tobytes() == function.state.read(variable.name).tobytes()


# ---- several at once


@pytest.mark.exhaustive
def test_instances_of_one_model_do_not_see_each_other() -> None:
    case = CASES["cnn"]()
    trainer, loaded = trainer_and_bundle(case.trainer)
    one, other = loaded.instance(), loaded.instance()
    for batch, another in zip(batches(case, 3), batches(case, 3, seed=9), strict=True):
        loss = trainer.step(batch)
        other.run("step", another)
        assert float(one.run("step", batch)["loss"]) == loss
    assert any(one.get(name).tobytes() != other.get(name).tobytes() for name in trainer.parameters())


@pytest.mark.exhaustive
def test_bundles_of_two_models_share_a_process() -> None:
    cases = [CASES["mlp"](), CASES["gpt"]()]
    instances = [trainer_and_bundle(case.trainer)[1].instance() for case in cases]
    for case, instance in zip(cases, instances, strict=True):
        train_both(case, instance)


@pytest.mark.exhaustive
def test_threads_step_instances_of_their_own_at_once() -> None:
    case = CASES["cnn"]()
    trainer, loaded = trainer_and_bundle(case.trainer)
    data = batches(case, 20)
    instances, losses = [loaded.instance() for _ in range(4)], dict[int, list[float]]()

    def work(number: int) -> None:
        losses[number] = [float(instances[number].run("step", batch)["loss"]) for batch in data]

    workers = [threading.Thread(target=work, args=(number,)) for number in range(len(instances))]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    expected = [trainer.step(batch) for batch in data]
    assert [losses[number] for number in range(len(instances))] == [expected] * len(instances)


BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
PARALLEL = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)  # fmt: skip
THREADS = 3


def test_steps_shared_out_by_the_caller_have_the_bits_of_one_thread() -> None:
    case = wide()
    trainer, loaded = trainer_and_bundle(case.trainer, threads=THREADS)
    shared: list[tuple[int, int]] = []

    def parallel(own: int, body: int, context: int, tasks: int, each: int) -> None:
        assert own == 77
        shared.append((tasks, each))
        call, ranges = BODY(body), [(at, min(tasks, at + each)) for at in range(0, tasks, each)]

        def work(thread: int) -> None:
            for begin, end in ranges[thread::THREADS]:
                call(context, thread, begin, end)

        workers = [threading.Thread(target=work, args=(thread,)) for thread in range(THREADS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    callback = PARALLEL(parallel)
    instance = loaded.instance(parallel=ctypes.cast(callback, ctypes.c_void_p).value, context=77)
    alone = loaded.instance()
    for batch in batches(case, 2):
        loss = trainer.step(batch)
        assert float(instance.run("step", batch)["loss"]) == loss
        assert float(alone.run("step", batch)["loss"]) == loss
        for name, value in instance.values().items():
            assert value.tobytes() == alone.get(name).tobytes() == trainer.variables()[name].tobytes(), name
    assert len(shared) > 2
    assert all(0 < each < tasks for tasks, each in shared)


def wide() -> Case:
    """A model whose kernels are worth sharing out."""

    @gt.model(x=gt.f32["batch", 512])
    def layers(x: Value) -> Value:
        return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 512, name="hidden")), 10, name="head")

    return classifier(layers, 512)


# ---- planted mistakes are seen


def differs(module: BundleModule, case: Case) -> bool:
    try:
        train_both(case, Loaded(module).instance())
    except AssertionError:
        return True
    return False


def planted(case: Case) -> BundleModule:
    return compiled(contents(case.trainer, dims={"batch": BATCH}))


def test_a_wrong_slot_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["mlp"]()
    module = planted(case)
    slots = module.memory.by_name
    hidden = [name for name in slots if name.startswith("hidden.weight")]
    assert len(hidden) > 1
    swapped = {**slots, hidden[0]: slots[hidden[1]], hidden[1]: slots[hidden[0]]}
    monkeypatch.setattr(type(module.memory), "by_name", swapped)
    assert differs(module, case)


@pytest.mark.exhaustive
def test_strides_of_another_layout_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["cnn"]()
    module = planted(case)
    assert any(slot.layout != tuple(range(slot.type.rank)) for slot in module.memory.slots)
    strides = VariableSlot.strides.fget
    monkeypatch.setattr(VariableSlot, "strides", property(lambda slot: tuple(reversed(strides(slot)))))
    assert differs(module, case)


@pytest.mark.exhaustive
def test_memory_that_is_too_small_by_a_line_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES["cnn"]()
    module = planted(case)
    arena = type(module.interface).arena.fget
    monkeypatch.setattr(type(module.interface), "arena", property(lambda interface: arena(interface) - 64))
    assert differs(module, case)


def test_places_do_not_overlap() -> None:
    for make in CASES.values():
        graph = make().trainer.graphs
        step = graph.step_of(graph.example)
        roles = {variable.name: "parameter" for variable in step.variables}
        memory = lay_out(step.variables, roles, {}, 64, initialised=True)
        ends = sorted((slot.offset, slot.offset + slot.type.nbytes) for slot in memory.slots)
        assert all(end <= begin for (_, end), (begin, _) in pairwise(ends))
        assert ends[-1][1] <= memory.size
        assert all(slot.offset % 64 == 0 for slot in memory.slots)
