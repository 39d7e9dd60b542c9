"""The node tests of the ``onnx`` package as models with data: for checks that ONNX's own test runner does not make."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, TensorProto, numpy_helper
from onnx.backend.test.loader import load_model_tests

from glowtrain.graph import Graph, Template
from glowtrain.onnx_io.read.load import load_numeric
from glowtrain.onnx_io.read.parameters import class_of, key_of
from glowtrain.onnx_io.read.source import subgraphs
from glowtrain.onnx_io.schema.tensors import FLOATS, element_type


@dataclass(frozen=True, eq=False)
class NodeTest:
    """A node test: a model, and inputs by name for each of its calls."""

    name: str
    proto: ModelProto
    calls: tuple[dict[str, Any], ...]

    def load(self) -> Graph | Template:
        """The model. Raises what :func:`glowtrain.load` raises."""
        return load_numeric(self.proto)

    @property
    def operators(self) -> tuple[str, ...]:
        """The ONNX operators on differentiable ways from the model's inputs of floats, those of bodies too."""
        graph = self.proto.graph
        reached = {tensor.name for tensor in graph.initializer if tensor.data_type in FLOATS}
        reached |= {value.name for value in graph.input if element_type(value.type) in FLOATS}
        return tuple(dict.fromkeys(_reached(graph, reached)))


@functools.cache
def node_tests() -> tuple[NodeTest, ...]:
    """Every node test, in the order of the package. The first call takes seconds: the package makes them then."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # the onnx package overflows on purpose where it makes its tests
        cases = load_model_tests(kind="node")
    return tuple(NodeTest(case.name, case.model, tuple(_calls(case))) for case in cases if case.model is not None)


def _calls(case: Any) -> Iterator[dict[str, Any]]:
    given = {tensor.name for tensor in case.model.graph.initializer}
    names = [value.name for value in case.model.graph.input if value.name not in given]
    for inputs, _ in case.data_sets or ():
        yield dict(zip(names, map(_array, inputs), strict=True))


def _array(value: Any) -> Any:
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else value


def _reached(graph: GraphProto, reached: set[str]) -> Iterator[str]:
    """The operators that read what is reached, or what comes of it by operators that are differentiable."""
    for node in graph.node:
        bodies, cls = tuple(subgraphs(node)), class_of(node)
        if bodies or (not reached.isdisjoint(node.input) and (cls is None or cls.differentiable)):
            yield key_of(node)
            for body in bodies:
                yield from _reached(body, reached | {value.name for value in body.input})
            reached |= {name for name in node.output if name}
