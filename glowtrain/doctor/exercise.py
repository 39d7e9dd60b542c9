"""A training run that is the same everywhere: ten steps of a small network, and a digest of its parameters after them.

All targets must come to the same digest: one where multiply-adds are rounded once, another where products are rounded
before they are added.

The network has a convolution, batch and layer normalization, attention, an LSTM, and Adam. Its parameters and data are
numbers that floats hold exactly, made of Philox's raw words, which NumPy promises to keep: two machines begin with the
same bits. Compiled code shares out whatever can be shared, however small.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from glowtrain import nn, optim
from glowtrain.backends.discovery import backend_for
from glowtrain.backends.state import State
from glowtrain.backends.target import Target
from glowtrain.backends.thread_count import default
from glowtrain.compiler.walk import arrive, until
from glowtrain.graph import Graph, Value
from glowtrain.optim import HYPER
from glowtrain.stages import DEFAULT
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.settings import TrainingSpec
from glowtrain.types import Array, TensorType, f32

STEPS, RATE = 10, 0.01
BATCH, SIDE, FEATURES, CLASSES = 64, 16, 16, 5
"""Large enough for threads to wake while a step runs."""
EVERYWHERE = "host", "scalar"
"""Targets that run on several numbers of threads."""
VECTORS = "avx2", "avx512", "neon"
"""Further targets, on one thread, if they run here."""
UNFUSED = "host", "sse4"
"""Targets that run, on one thread, without fused multiply-adds as well."""


def network(x: Value) -> Value:
    """Images to scores."""
    x = nn.conv(x, FEATURES, 3, padding="same", bias=False, name="conv")
    x = nn.max_pool(nn.relu(nn.batch_norm(x, name="norm")), 2)
    tokens = nn.transpose(nn.reshape(x, (BATCH, FEATURES, SIDE**2 // 4)), 0, 2, 1)
    tokens = tokens + nn.attention(nn.layer_norm(tokens, name="before"), 2, name="attention")
    return nn.linear(nn.flatten(nn.lstm(tokens, 8, name="memory")), CLASSES, name="scores")


@dataclass(frozen=True)
class ExerciseRun:
    """One run: the target's name, its threads, and a digest of all parameters' bytes after the last step; and whether
    multiply-adds are fused.
    """

    target: str
    threads: int
    digest: str
    fused: bool = True


def runs(progress: Callable[[str], None] = lambda _: None) -> Iterator[ExerciseRun]:
    """The run on every target that there is here, on several numbers of threads."""
    adam = optim.Adam(lr=RATE)
    model = nn.model(x=f32[BATCH, 2, SIDE, SIDE])(network)
    graphs = TrainerGraphs(TrainingSpec(model, "softmax_cross_entropy", adam))
    graph = graphs.step_of(graphs.example)
    hyper = {HYPER + name: np.asarray(value, np.float32) for name, value in adam.hyper().items()}
    plan = arrive(graph, DEFAULT, until("plan"))
    for target, fused in arithmetics():
        progress(f"target {target}")
        named = Target.named(target)
        processor = named if fused is None else replace(named, fused=fused)
        backend = backend_for(processor).for_checks(1)
        artifact = backend.compile(plan, DEFAULT)
        for threads in numbers_of_threads() if fused is None and target in EVERYWHERE else (1,):
            state = State(initial(graph))
            step = backend.for_checks(threads).load(artifact).bind(state)
            for number in range(STEPS):
                step.run({**batch(graph, number), **hyper})
            yield ExerciseRun(target, threads, digest(graph, state), bool(processor.fused))


def arithmetics() -> tuple[tuple[str, bool | None], ...]:
    """The targets, as they are and without fused multiply-adds."""
    unfused = [name for name in UNFUSED if Target.named(name).runs_here]
    return (*((name, None) for name in targets()), *((name, False) for name in unfused))


def targets() -> tuple[str, ...]:
    """The names of targets that run here, the processor itself first."""
    return tuple(name for name in (*EVERYWHERE, *VECTORS) if Target.named(name).runs_here)


def numbers_of_threads() -> Sequence[int]:
    """One twice, as a run must be the same again; then two, and as many as steps run on."""
    return (1, 1, *sorted({2, default()} - {1}))


def initial(graph: Graph) -> dict[str, Array]:
    """Variables before the first step: weights between -1/4 and 1/4, and what a network begins with otherwise."""
    found = {}
    for number, variable in enumerate(graph.variables):
        drawn = variable.trainable and not variable.name.endswith("scale")
        found[variable.name] = weights(number, variable.type) if drawn else variable.initial
    return found


def weights(number: int, type_: TensorType) -> Array:
    """Multiples of 2**-25, each drawn alike."""
    return ((words(number, type_.size) >> 40) / 2.0**25 - 0.25).astype(np.float32).reshape(type_.shape)


def batch(graph: Graph, number: int) -> dict[str, Array]:
    """The examples of a step: multiples of 1/64 between -2 and 2, and labels."""
    found = {}
    for position, value in enumerate(value for value in graph.inputs if not value.name.startswith(HYPER)):
        drawn = words(1000 * (number + 1) + position, value.type.size) >> 56
        numbers = (drawn / 64 - 2) if value.dtype.is_float else drawn % CLASSES
        found[value.name] = numbers.astype(value.dtype.numpy).reshape(value.shape)
    return found


def words(key: int, count: int) -> Array:
    """The first u64 of Philox's for a key."""
    return np.asarray(np.random.Philox(key=key).random_raw(count))


def digest(graph: Graph, state: State) -> str:
    """A short hash of the names and bytes of all parameters."""
    hasher = hashlib.sha256()
    for name in sorted(variable.name for variable in graph.variables if variable.trainable):
        hasher.update(name.encode() + b"\0" + np.ascontiguousarray(state.read(name).astype("<f4")).tobytes())
    return hasher.hexdigest()[:16]
