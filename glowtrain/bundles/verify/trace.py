"""What a bundle's functions compute on made-up batches, as bits: each loss, and checksums of variables and outputs.

Batches are numbers that every processor makes alike, so that the bits are the same everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_for
from glowtrain.backends.state import State
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import STEP, Contents
from glowtrain.bundles.weights import file_of
from glowtrain.compiler import Function
from glowtrain.graph import Graph
from glowtrain.optim import HYPER
from glowtrain.stages import Options
from glowtrain.types import Array, TensorType

MULTIPLIER, INCREMENT = 1664525, 1013904223
"""Of the congruential generator modulo 2**32 (Press et al., Numerical Recipes), whose upper bits are used."""


class BatchGenerator:
    """The words of which batches are made, one after another."""

    def __init__(self, seed: int = 0) -> None:
        self._last = np.uint32(seed)

    def batch(self, type_: TensorType) -> Array:
        """Multiples of 1/64 from -2 up to 2; integers are 0 or 1."""
        words = self._next(type_.size) >> 24
        numbers = (words.astype(np.float64) - 128) / 64 if type_.dtype.is_float else words & 1
        return numbers.astype(type_.dtype.numpy).reshape(type_.shape)

    def _next(self, count: int) -> Array:
        """The word n steps on is powers[n] * last + increments[n]."""
        powers = np.cumprod(np.full(count, MULTIPLIER, np.uint32), dtype=np.uint32)
        sums = np.cumsum(np.concatenate([np.ones(1, np.uint32), powers])[:count], dtype=np.uint32)
        words: Array = powers * self._last + sums * np.uint32(INCREMENT)
        if count:
            self._last = words[-1]
        return words


@dataclass(frozen=True)
class StepTrace:
    """A step: its loss as hexadecimal bits, and checksums of the variables after it, together (as they are saved) and
    by name."""

    loss: str
    saved: str
    variables: Mapping[str, str]


@dataclass(frozen=True)
class BitTrace:
    """All steps, and checksums of the outputs of the other functions, by their names."""

    steps: tuple[StepTrace, ...]
    outputs: Mapping[str, Mapping[str, str]]

    def __str__(self) -> str:
        """What a bundle's example prints."""
        lines = [f"step {n}: loss {step.loss}, variables {step.saved}" for n, step in enumerate(self.steps, 1)]
        lines += [
            f"{function}: {name} {bits}" for function, all_ in self.outputs.items() for name, bits in all_.items()
        ]
        return "\n".join([*lines, ""])


def trace_of(
    contents: Contents, backend: Backend, steps: int, seed: int = 0, *, options: Options | None = None
) -> BitTrace:
    """What a backend computes here: the steps, if there are any to train, then the other functions once. ``options``:
    what the bundle is compiled with, as residuals in bf16 and fixed point decide about bits."""
    options = options or Options(facts=backend.facts)
    state = State({variable.name: variable.initial for variable in contents.variables})
    generator, trained, outputs = BatchGenerator(seed), list[StepTrace](), dict[str, Mapping[str, str]]()
    for name, graph in contents.graphs.items():
        runs = _runs(contents, graph, Function(graph, backend, state, options), generator)
        if name == STEP:
            trained = [_step(graph, next(runs), state) for _ in range(steps)]
        else:
            outputs[name] = {printable(output): checksum(array) for output, array in next(runs).items()}
    return BitTrace(tuple(trained), outputs)


def backend_like(target: Target) -> Backend:
    """A backend of this processor that computes the bits that code for a target computes there."""
    return backend_for(replace(Target.host(), fused=target.fused))


def checksum(array: Array) -> str:
    """CRC-32 of an array's bytes, row-major."""
    return f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"


def printable(name: str) -> str:
    """A name in one line of ASCII."""
    return name.encode("unicode_escape").decode()


def _runs(
    contents: Contents, graph: Graph, function: Function, generator: BatchGenerator
) -> Iterator[Mapping[str, Array]]:
    """The outputs of a function for one batch after the other, in the graph's order."""
    hyper = {
        value.name: np.asarray(contents.hyper[value.name.removeprefix(HYPER)], value.dtype.numpy)
        for value in graph.inputs
        if value.name.startswith(HYPER)
    }
    while True:
        batch = {value.name: generator.batch(value.type) for value in graph.inputs if value.name not in hyper}
        outputs = function({**batch, **hyper})
        yield {name: outputs[name] for name in graph.outputs}


def _step(graph: Graph, outputs: Mapping[str, Array], state: State) -> StepTrace:
    variables = {name: state.read(name) for name in state.names}
    loss = np.asarray(outputs[next(iter(graph.outputs))])
    return StepTrace(
        np.frombuffer(loss.tobytes(), np.uint8)[::-1].tobytes().hex(),
        f"{zlib.crc32(file_of(variables)):08x}",
        {name: checksum(array) for name, array in variables.items()},
    )
