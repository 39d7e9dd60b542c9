"""The compiled step: it allocates nothing, moves no parameter, and gives the same bits every time."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.executable import NativeInstance
from glowtrain.backends.state import State
from glowtrain.compiler.service import build
from glowtrain.graph import Graph
from glowtrain.stages import DEFAULT
from glowtrain.types import Array


class _MallocInfo(ctypes.Structure):
    """glibc's ``struct mallinfo2``."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in [
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        ]
    )


_mallinfo = ctypes.CDLL(None).mallinfo2
_mallinfo.restype = _MallocInfo


def bytes_in_use() -> int:
    """Bytes that the C allocator has handed out: from its heap and by mapping."""
    info = _mallinfo()
    return int(info.uordblks + info.hblkhd)


@gt.model(x=gt.f32["batch", 1, 8, 8])
def network(x: gt.Value) -> gt.Value:
    """Convolution, batch norm, pooling, linear."""
    y = gt.nn.batch_norm(gt.nn.conv(x, 8, 3, padding=1, name="conv"), name="norm")
    return gt.nn.linear(gt.nn.flatten(gt.nn.max_pool(gt.nn.relu(y), 2)), 10, name="head")


def training_step() -> tuple[Graph, dict[str, Array]]:
    """The graph of a training step with Adam, and one batch."""
    trainer = gt.Trainer(network.bind({"batch": 4}), gt.losses.softmax_cross_entropy("labels"), gt.optim.Adam(lr=1e-2))
    rng = np.random.default_rng(0)
    data = {"x": rng.standard_normal((4, 1, 8, 8)).astype(np.float32), "labels": rng.integers(0, 10, 4)}
    graph = trainer.graph
    hyper = {
        value.name: np.asarray(0.5 if value.name != "hyper.lr" else 1e-2, value.dtype.numpy)
        for value in graph.inputs
        if value.name not in data
    }
    return graph, {**data, **hyper}


def instance() -> tuple[NativeInstance, dict[str, Array]]:
    """A bound training step and its inputs."""
    graph, inputs = training_step()
    state = State({variable.name: variable.initial for variable in graph.variables})
    bound = build(graph, Cpu(), DEFAULT).bind(state)
    assert isinstance(bound, NativeInstance)
    return bound, inputs


def test_steps_after_the_first_neither_allocate_nor_move_anything() -> None:
    bound, inputs = instance()
    bound.run(inputs)
    addresses = list(bound.table)
    step, table = bound.executable.step, ctypes.addressof(bound.table)
    counts = [0] * 20
    for trial in range(20):
        before = bytes_in_use()
        step(table)
        counts[trial] = bytes_in_use() - before
    # Python's own objects move the counter now and then; a step that allocates would do so every time.
    assert counts.count(0) >= 15, counts
    before = bytes_in_use()
    kept = [np.zeros(1 << 16, np.uint8)]
    assert bytes_in_use() > before, "the counter does not see allocations"
    del kept
    bound.run(inputs)
    inputs_moved = {slot for _, slot in bound._inputs}
    assert all(
        old == new
        for slot, (old, new) in enumerate(zip(addresses, bound.table, strict=True))
        if slot not in inputs_moved
    )


def test_parameters_are_updated_where_they_lie() -> None:
    bound, inputs = instance()
    name, layout, _ = next(v for v in bound._variables if v[0].endswith("head.weight"))
    bound.run(inputs)
    storage = bound.state.storage(name, layout)
    before = storage.copy()
    bound.run(inputs)
    assert bound.state.storage(name, layout) is storage
    assert not np.array_equal(before, storage)


def digest() -> str:
    """The bytes of all variables after five steps."""
    bound, inputs = instance()
    for _ in range(5):
        bound.run(inputs)
    whole = hashlib.sha256()
    for name in sorted(bound.state.names):
        whole.update(bound.state.read(name).tobytes())
    return whole.hexdigest()


def test_the_same_bits_in_every_run() -> None:
    assert digest() == digest()


@pytest.mark.exhaustive
def test_the_same_bits_in_a_fresh_process() -> None:
    code, root = "from tests.cpu import test_native_step as t; print(t.digest())", Path(__file__).parents[2]
    fresh = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert fresh.stdout.strip() == digest()
