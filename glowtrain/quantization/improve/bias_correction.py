"""Bias correction: what rounding moves the mean of a layer's results by is taken from its bias.

Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction" (2019), section 4.2, with means
over calibration data instead of BatchNormalization's statistics. Layers are corrected in order, each after the ones
before it, since their corrections change what it reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.compiler import Function, compile
from glowtrain.graph import Graph, Node, Template, Value, Variable
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.quantization.calibration.batches import Batch
from glowtrain.quantization.placement.prepare import PreparedModel
from glowtrain.types import Array


def correct_biases(
    exact: Graph | Template,
    floats: Graph | Template,
    ready: Callable[[Graph], PreparedModel],
    fed: Sequence[Batch],
    backend: str | Backend = "cpu",
) -> dict[str, Array]:
    """Biases, by variable, under which the rounded form of ``floats`` has the means of the model ``exact``.

    ``floats`` are the model with weights that may be rounded already; ``ready`` prepares a float graph. Contractions
    without a bias of their own have none to correct.
    """
    wanted = _means(compile(exact.map(lambda graph: _mean_form(ready(graph), "float")), backend), fed)
    rounded = compile(floats.map(lambda graph: _mean_form(ready(graph), "rounded")), backend)
    names = list(wanted)
    for name in names:
        difference = wanted[name] - _means(rounded, fed)[name]
        bias = rounded.state.read(name)
        rounded.state.write(name, (bias + difference).astype(bias.dtype))
    return {name: rounded.state.read(name) for name in names}


def _mean_form(ready: PreparedModel, form: str) -> Graph:
    """A graph whose outputs are the means of each corrected contraction's results over all but the channels."""
    outputs: dict[str, Value] = {}
    for name, node in corrected(ready).items():
        value = node.outputs[0] if form == "float" else ready.values.get(node.outputs[0], node.outputs[0])
        channel = 1 if node.inputs[1] is not None and node.inputs[1].rank > 2 else value.rank - 1
        axes = tuple(axis for axis in range(value.rank) if axis != channel)
        outputs[name] = ReduceMean(axes=axes, keepdims=False)(value)
    return ready.graph.with_(outputs=outputs, updates={}, results=None)


def corrected(ready: PreparedModel) -> dict[str, Node]:
    """The contractions of the float graph whose bias is a variable of their own, by its name, in order."""
    graph, found = ready.placement.graph, dict[str, Node]()
    for node in graph.nodes:
        if not any(weight.node is node and weight.operand == 1 for weight in ready.placement.weights):
            continue
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        if isinstance(bias, Variable) and bias.rank == 1 and len(graph.users[bias]) == 1:
            found[bias.name] = node
    return found


def _means(function: Function, fed: Sequence[Batch]) -> dict[str, Array]:
    """Means over all batches, by how many examples they have."""
    sums: dict[str, Array] = {}
    total = 0
    for batch in fed:
        count = max(len(array) if array.ndim else 1 for array in batch.values())
        total += count
        for name, mean in function(batch).items():
            sums[name] = sums.get(name, np.zeros(())) + mean.astype(np.float64) * count
    return {name: array / total for name, array in sums.items()}
