"""Folding what follows a contraction into its weights: the form in which models are quantized.

Jacob et al. (2018), section 3.2: a BatchNormalization with running statistics is w · γ/σ and (b - μ) · γ/σ + β.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glowtrain.graph import Graph, Node, Replacements, Value, Variable, translate
from glowtrain.modes.training_and_inference import inference
from glowtrain.names import Names
from glowtrain.ops.contraction.products import Gemm, MatMul
from glowtrain.ops.elementwise.arithmetic import Add
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization
from glowtrain.ops.pooling.pooling import GlobalAveragePool
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.tensor.move import Flatten
from glowtrain.quantization.export.constants import Arrays, named, only_reader, with_state
from glowtrain.types import Array


def folded(graph: Graph, state: Mapping[str, Array] | None = None, *, dropout: bool = False) -> Graph:
    """The inference form of a graph with BatchNormalization and biases folded into contractions, and values named.

    Means over images are GlobalAveragePool, as runtimes have it for integers.

    ``state`` holds variables' values by name; they are the initial ones of the result. Folded weights are variables
    under the same names. Dropout is left out, or with ``dropout`` left where it is.
    """
    graph = named(inference(with_state(graph, state or {}), dropout=dropout))
    while (changed := _Folding(graph, Arrays()).run()) is not graph:
        graph = changed
    return graph


@dataclass
class _Folding:
    graph: Graph
    arrays: Arrays

    def __post_init__(self) -> None:
        values = (value for node in self.graph.nodes for value in node.outputs)
        self.names = Names(
            (value.name for value in (*self.graph.inputs, *self.graph.variables, *values)), separator="."
        )

    def run(self) -> Graph:
        return translate(self.graph, self.change)

    def change(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        if isinstance(node.operator, BatchNormalization):
            return self.batch_normalization(node, replacements)
        if isinstance(node.operator, Add):
            return self.bias(node, replacements)
        if isinstance(node.operator, ReduceMean):
            return _pooled(node, node.operator, replacements)
        return None

    def contraction(self, value: Value | None) -> Node | None:
        """The contraction with known weights and bias that makes a value which nothing else reads."""
        if value is None or value.node is None or only_reader(self.graph, value) is None:
            return None
        node = value.node
        if node.operator.quantized != "contraction" or not all(_plain(node, name) for name in ("alpha", "beta")):
            return None
        parameters = [self.arrays.of(operand) for operand in node.inputs[1:] if operand is not None]
        return None if any(array is None for array in parameters) else node

    def batch_normalization(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        operator, contraction = node.operator, self.contraction(node.inputs[0])
        assert isinstance(operator, BatchNormalization)
        statistics = [None if value is None else self.arrays.of(value) for value in node.inputs[1:]]
        if contraction is None or operator.training_mode or any(array is None for array in statistics):
            return None
        types = [None if value is None else value.type for value in contraction.inputs]
        axes = contraction.operator.weight_axes(1, *types)
        if axes is None or (isinstance(contraction.operator, MatMul) and contraction.outputs[0].rank != 2):
            return None
        gamma, beta, mean, variance = (np.asarray(array, np.float64) for array in statistics)
        factor = gamma / np.sqrt(variance + operator.epsilon)
        return self.scaled(contraction, axes[0], factor, beta - mean * factor, node, replacements)

    def scaled(
        self, node: Node, axis: int, factor: Array, offset: Array, last: Node, replacements: Replacements
    ) -> tuple[Value, ...] | None:
        """The contraction with its results multiplied by ``factor`` and moved by ``offset``, under the last's name."""
        weight, bias = node.inputs[1], node.inputs[2] if len(node.inputs) > 2 else None
        assert weight is not None
        array = self.arrays.required(weight)
        repeats, remainder = divmod(len(factor), array.shape[axis])
        if remainder or (repeats > 1 and not hasattr(node.operator, "group")):
            return None
        dtype = array.dtype
        if repeats > 1:  # ConvTranspose shares an axis of weights between groups, whose channels come one after another
            each = factor.reshape(repeats, 1, -1)
            grouped = array.reshape(repeats, array.shape[0] // repeats, array.shape[1], -1)
            product = (grouped * each[..., None]).reshape(array.shape)
        else:
            product = array * factor.reshape([-1 if a == axis else 1 for a in range(array.ndim)])
        shift = offset if bias is None else self.arrays.required(bias).reshape(-1) * factor + offset
        name = self.name(weight, f"{last.outputs[0].name}.weight")
        shifts = np.broadcast_to(shift, factor.shape).astype(dtype)
        bias_name = self.name(bias, f"{name.removesuffix('.weight')}.bias")
        parameters = Variable(name, product.astype(dtype)), Variable(bias_name, shifts)
        operator = Gemm() if isinstance(node.operator, MatMul) else node.operator
        data = replacements.operands(node)[0]
        return Node(operator, (data, *parameters), node.name).outputs

    def bias(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        """MatMul of matrices plus one number for each column, as Gemm."""
        for product, offset in (node.inputs, node.inputs[::-1]):
            contraction = self.contraction(product)
            if contraction is None or offset is None or not isinstance(contraction.operator, MatMul):
                continue
            array, result = self.arrays.of(offset), contraction.outputs[0]
            if array is None or result.rank != 2 or contraction.inputs[1] is None or contraction.inputs[1].rank != 2:
                continue
            if array.shape not in ((result.shape[1],), (1, result.shape[1])) or node.outputs[0].type != result.type:
                continue
            term = offset if array.ndim == 1 else Variable(self.name(offset, f"{node.outputs[0].name}.bias"), array[0])
            operands = [*replacements.operands(contraction), term]
            return Node(Gemm(), operands, contraction.name).outputs
        return None

    def name(self, value: Value | None, otherwise: str) -> str:
        """The name of a folded parameter: the one it has, unless others read that one as it is."""
        if isinstance(value, Variable) and len(self.graph.users[value]) == 1:
            return value.name
        return self.names.fresh(otherwise)


def _pooled(node: Node, operator: ReduceMean, replacements: Replacements) -> tuple[Value, ...] | None:
    """The mean over all places of an image, as GlobalAveragePool: other means are normalizations, which need floats."""
    x = node.inputs[0]
    if x is None or x.rank < 4 or not operator.axes or {axis % x.rank for axis in operator.axes} != {*range(2, x.rank)}:
        return None
    pooled = Node(GlobalAveragePool(), [replacements.of(x)], node.name)
    if operator.keepdims:
        return pooled.outputs
    pooled.output.name = f"{node.output.name}.pooled"
    return Node(Flatten(), pooled.outputs).outputs


def _plain(node: Node, attribute: str) -> bool:
    """Whether a factor of Gemm is absent or 1."""
    return bool(getattr(node.operator, attribute, 1.0) == 1.0)
