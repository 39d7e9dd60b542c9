"""A step that is run in segments says which outputs are complete, and has the bits of one that is run whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.base import Backend
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.state import State
from glowtrain.compiler import Function
from glowtrain.compiler.service import artifact
from glowtrain.graph import Graph
from glowtrain.stages import DEFAULT, Options
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.settings import TrainingSpec
from glowtrain.types import Array
from tests.cpu.test_native_step import network

SEGMENTED = replace(DEFAULT, segmented=True)


def gradients() -> tuple[Graph, dict[str, Array]]:
    """The gradients of a network for a batch, and this."""
    step = TrainerGraphs(TrainingSpec(network.bind({"batch": 4}), "softmax_cross_entropy", "sgd")).gradients()
    graph = step if isinstance(step, Graph) else step.bind({"batch": 4})
    rng = np.random.default_rng(0)
    return graph, {"x": rng.standard_normal((4, 1, 8, 8)).astype(np.float32), "labels": rng.integers(0, 10, 4)}


def written(backend: Backend, options: Options) -> tuple[dict[str, bytes], list[tuple[str, ...]]]:
    """The outputs as each was when it was complete, and the names that each segment has completed."""
    graph, inputs = gradients()
    function = Function(graph, backend, State(graph.initial_values), options)
    outputs = {name: np.empty(type_.shape, type_.dtype.numpy) for name, type_ in graph.output_types.items()}
    complete: dict[str, bytes] = {}
    segments: list[tuple[str, ...]] = []

    def completed(names: Sequence[str]) -> None:
        segments.append(tuple(names))
        for name in names:
            assert name not in complete
            complete[name] = outputs[name].tobytes()
            outputs[name][...] = np.nan  # which nothing reads any more

    function.write(inputs, outputs, completed)
    assert all(np.isnan(array).all() for array in outputs.values()), "an output was written after it was complete"
    return complete, segments


def whole(backend: Backend) -> dict[str, bytes]:
    """The outputs of a step that is run at once."""
    graph, inputs = gradients()
    outputs = Function(graph, backend, State(graph.initial_values), DEFAULT)(inputs)
    return {name: array.tobytes() for name, array in outputs.items()}


@pytest.mark.parametrize("threads", [1, 2])
def test_outputs_are_complete_when_they_are_named_and_before_the_end(threads: int) -> None:
    backend = gt.Cpu(threads=threads)
    complete, segments = written(backend, SEGMENTED)
    assert complete == whole(backend)
    assert len(segments) > 4
    assert _before_the_last(segments) >= {"head.weight", "head.bias"}


def _before_the_last(segments: Iterable[tuple[str, ...]]) -> set[str]:
    *earlier, _ = segments
    return {name for names in earlier for name in names}


@pytest.mark.parametrize("backend", ["cpu", "interpreter"])
def test_steps_that_have_no_segments_name_all_outputs_at_their_end(backend: str) -> None:
    complete, segments = written(backend_of(backend, 1), DEFAULT)
    assert complete == whole(backend_of(backend, 1))
    assert [set(names) for names in segments] == [set(complete)]


def test_an_artifact_on_disk_knows_its_segments() -> None:
    backend, (graph, _) = gt.Cpu(threads=1), gradients()
    made = artifact(graph, backend, replace(SEGMENTED, facts=backend.facts))
    assert isinstance(made, NativeArtifact)
    assert made.segments
    read = backend.read(made.to_bytes())
    assert isinstance(read, NativeArtifact)
    assert read.segments == made.segments
