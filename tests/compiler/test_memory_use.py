"""What a function says of its memory is what its instances allocate."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.executable import NativeInstance
from glowtrain.compiler import Function
from glowtrain.errors import BackendError, InputError
from tests.compiler.instances import taken
from tests.compiler.networks import mlp, training_step


def instance_of(function: Function, inputs: dict[str, np.ndarray]) -> NativeInstance:
    with taken(function.specialised(inputs)) as instance:
        assert isinstance(instance, NativeInstance)
        return instance


@pytest.mark.parametrize("threads", [1, 3])
def test_every_part_is_what_an_instance_has(threads: int) -> None:
    graph, inputs = training_step()
    function = gt.compile(graph, threads=threads)
    use, instance = function.memory(), instance_of(function, inputs)
    assert use.arena == instance.arena.nbytes > 0
    assert use.workspace == instance.workspace.nbytes
    assert use.outputs == sum(array.nbytes for array in instance.outputs.values()) > 0
    assert use.constants == sum(array.nbytes for array in instance.executable.artifact.constants.values())
    assert use.variables == sum(array.nbytes for array in map(function.state.read, function.state.names))
    assert use.parameters == 4 * (64 * 24 + 24 + 24 * 10 + 10)
    assert use.total == use.variables + use.constants + use.outputs + use.workspace + use.arena
    assert use.threads == threads


def test_workspace_is_that_of_all_threads() -> None:
    @gt.model(x=gt.f32["batch", 512])
    def wide(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 3000)

    graph = wide.bind({"batch": 2000})  # with a budget, of which each call packs the weights for itself
    one, three = (gt.compile(graph, threads=threads, memory="keep").memory() for threads in (1, 3))
    assert three.workspace == 3 * one.workspace > 0
    assert (three.arena, three.variables) == (one.arena, one.variables)


def test_the_latest_call_counts_and_a_batch_that_is_given() -> None:
    function = gt.compile(mlp, threads=1)
    small, large = (np.zeros((size, 1, 8, 8), np.float32) for size in (4, 400))
    function({"x": small})
    assert function.memory().title == "mlp, batch=4"
    assert function.memory({"x": large}).arena > function.memory({"x": small}).arena == function.memory().arena


def test_the_evaluator_has_no_workspace() -> None:
    graph, _ = training_step()
    planned, compiled = (gt.compile(graph, backend, threads=1).memory() for backend in ("evaluator", "cpu"))
    assert (planned.workspace, planned.arena, planned.variables) == (0, compiled.arena, compiled.variables)


def test_the_text_has_every_part_and_the_sum() -> None:
    graph, _ = training_step()
    use = gt.compile(graph, threads=2).memory()
    lines = str(use).splitlines()
    assert lines[0].startswith("mlp.step: ")
    assert [line.split()[0] for line in lines[1:]] == ["parameters", "other", "constants", "outputs", "arena", "total"]
    assert f"{use.total:,} bytes" in lines[-1]
    assert sum(size for name, size, _ in use.rows() if name != "total") == use.total


def test_nothing_compiled_and_nothing_planned_are_errors() -> None:
    with pytest.raises(InputError, match="mlp has not been compiled yet, so its memory is not known: run it first"):
        gt.compile(mlp).memory()
    graph, _ = training_step()
    with pytest.raises(BackendError, match="has no planned memory; use backend cpu"):
        gt.compile(graph, "interpreter").memory()


def test_inputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match=r"'x' must be f32\[8,1,8,8\], not float32\[4, 1, 8, 8\]"):
        gt.compile(mlp.bind({"batch": 8})).memory({"x": np.zeros((4, 1, 8, 8), np.float32)})
