"""Weights that nothing updates are read from packed copies: with the same bits, and always of the present values."""

from __future__ import annotations

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.base import Batches
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.panels import Packing
from glowtrain.backends.state import State
from glowtrain.backends.table import Slot
from glowtrain.compiler import Function
from glowtrain.types import Array

ROWS = 24


@gt.model(x=gt.f32["batch", 40])
def network(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 72, name="hidden")), 33, name="head")


def batch(rows: int = ROWS) -> dict[str, Array]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, 40)).astype(np.float32)}


def result(function: Function, rows: int = ROWS) -> Array:
    (output,) = function(batch(rows)).values()
    return np.asarray(output)


def executable(function: Function, rows: int = ROWS) -> Any:
    return function.specialised(batch(rows)).executable


def copies(function: Function, rows: int = ROWS) -> list[Slot]:
    return [slot for slot in executable(function, rows).artifact.slots if slot.kind == "packed"]


def plain(state: State) -> Array:
    """What a function gives that reads the variables themselves."""
    return result(gt.compile(network, gt.Cpu("avx2", cache=None), state))


@pytest.fixture
def function() -> Function:
    return gt.compile(network, gt.Cpu("avx2", cache=None))


def test_weights_are_packed_and_biases_are_not(function: Function) -> None:
    assert [slot.name for slot in copies(function)] == ["hidden.weight", "head.weight"]
    np.testing.assert_array_equal(result(function), plain(function.state))


@pytest.mark.parametrize("how", ["a state of others", "a budget of memory", "no vectors"])
def test_not_where_memory_or_other_functions_count(how: str) -> None:
    """Copies take memory; and variables that a step updates would be copied after each one."""
    target = "scalar" if how == "no vectors" else "avx2"
    state, memory = State({}) if how == "a state of others" else None, "keep" if how == "a budget of memory" else None
    assert not copies(gt.compile(network, gt.Cpu(target, cache=None), state, memory=memory))


def test_what_is_written_is_read(function: Function) -> None:
    before = result(function)
    function.state.write("hidden.weight", function.state.read("hidden.weight") * 2)
    after = result(function)
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, plain(function.state))


@pytest.mark.parametrize("many", [False, True])
def test_what_a_step_updates_is_read(function: Function, many: bool) -> None:
    """Of a graph over the same variables, however many steps it takes in a call."""
    graph = network.bind({"batch": ROWS})
    trainer = gt.Trainer(graph, gt.losses.softmax_cross_entropy("labels"), gt.optim.SGD(lr=0.1))
    step = gt.compile(trainer.graph, gt.Cpu("avx2", cache=None), function.state)
    feeds = {value.name: np.zeros(value.type.shape, value.type.dtype.numpy) for value in trainer.graph.inputs}
    feeds.update(batch(), **{"hyper.lr": np.asarray(0.1, np.float32)})
    before = result(function)
    if many:
        shared = {name: array for name, array in feeds.items() if not array.shape}
        rows = {name: np.concatenate([array] * 2) for name, array in feeds.items() if array.shape}
        step.run_many(Batches(2, rows, shared, "loss"))
    else:
        step(feeds)
    after = result(function)
    assert not np.array_equal(before, after)
    np.testing.assert_array_equal(after, plain(function.state))


def test_frozen_weights_of_a_step_are_not_copied_again() -> None:
    """A step packs what it only reads; what it updates is none of that."""
    graph = network.bind({"batch": ROWS})
    trainer = gt.Trainer(graph, gt.losses.softmax_cross_entropy("labels"), gt.optim.SGD(lr=0.1), trainable=["head.*"])
    step = gt.compile(trainer.graph, gt.Cpu("avx2", cache=None))
    feeds = {value.name: np.zeros(value.type.shape, value.type.dtype.numpy) for value in trainer.graph.inputs}
    step(feeds)
    packed = [slot.name for slot in step.specialised(feeds).executable.artifact.slots if slot.kind == "packed"]
    moves = step.state.moves
    step(feeds)
    assert packed == ["hidden.weight"]
    assert step.state.moves == moves


def test_all_shapes_share_a_copy_which_goes_with_the_last() -> None:
    function = gt.compile(network, gt.Cpu("avx2", cache=None))
    result(function, ROWS)
    (slot, *_) = copies(function, ROWS)
    assert slot in copies(function, 2 * ROWS)
    assert isinstance(slot.packing, Packing)
    result(function, 2 * ROWS)
    state = function.state
    one, other = (state.packed(slot.name, slot.layout, slot.packing) for _ in range(2))
    assert one is other
    held = weakref.ref(one)
    del one, other
    gc.collect()
    assert held() is not None
    del function
    gc.collect()
    assert held() is None


def test_kept_code_packs_as_new_code_does(tmp_path: Path) -> None:
    backend = gt.Cpu("avx2", cache=tmp_path)
    made, read = (gt.compile(network, backend) for _ in range(2))
    np.testing.assert_array_equal(result(made), result(read))
    assert copies(made) == copies(read) != []
    artifact = executable(made).artifact
    assert NativeArtifact.from_bytes(artifact.to_bytes()).slots == artifact.slots


def test_copies_are_counted(function: Function) -> None:
    with_copies = function.memory(batch())
    without = gt.compile(network, gt.Cpu("avx2", cache=None), memory="keep").memory(batch())
    assert with_copies.total > without.total


def test_pickled_functions_pack_anew(function: Function) -> None:
    again = pickle.loads(pickle.dumps(function))
    assert [slot.name for slot in copies(again)] == ["hidden.weight", "head.weight"]
    np.testing.assert_array_equal(result(again), result(function))
