"""From QDQ form back to a form that can be trained: integers become floating-point variables behind FakeQuantize."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.graph import Constant, Graph, Node, Value, Variable, rewrite
from glowtrain.modes.training_and_inference import inference
from glowtrain.names import Names
from glowtrain.ops.microsoft.linear import DynamicQuantizeMatMul
from glowtrain.ops.quantized.convert import INTEGERS, DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.ops.quantized.integer_products import ConvInteger, MatMulInteger
from glowtrain.quantization.export.constants import Arrays
from glowtrain.quantization.export.qdq import qdq
from glowtrain.types import Array, DType

SUFFIXES = (".quantized", "_quantized")
"""What quantizers append to the names of weights; the variables are called as the weights were."""
DYNAMIC = (DynamicQuantizeLinear, DynamicQuantizeMatMul, ConvInteger, MatMulInteger)
"""Operators on activations whose scales are found while the model runs."""


def resumed(graph: Graph) -> Graph:
    """A graph in QDQ or QOperator form with FakeQuantize in place of its pairs of QuantizeLinear and DequantizeLinear,
    and integer weights and biases as the floating-point variables that they stand for.

    Raises :class:`QuantizationError` where there is nothing of the kind.
    """
    plain = qdq(inference(graph))
    names = Names((value.name for value in (*plain.inputs, *plain.variables)), separator=".")
    result = rewrite(plain, _Resuming(names).node)
    if not any(isinstance(node.operator, FakeQuantize) for node in result.nodes):
        raise QuantizationError(f"{graph.name} {_why_nothing(plain)}")
    return result


def _why_nothing(graph: Graph) -> str:
    """Why a graph is not to be trained on as a quantized one."""
    dynamic = {node.operator.key() for node in graph.nodes if isinstance(node.operator, DYNAMIC)}
    if dynamic:
        return (
            f"quantizes its activations while it runs ({', '.join(sorted(dynamic))}), so there are no scales to train "
            "with; quantize the float model that it was made from"
        )
    return (
        "is not quantized: no DequantizeLinear reads a QuantizeLinear or integer weights, and no operator computes "
        "with quantized tensors; prepare a float model with prepare_training"
    )


@dataclass
class _Resuming:
    names: Names
    arrays: Arrays = field(default_factory=Arrays)
    made: dict[tuple[Value | None, ...], Value] = field(default_factory=dict)
    """What stands for the numbers of integers with a scale and a zero point: one for all who read them."""

    def node(self, node: Node) -> Sequence[Value] | None:
        operator = node.operator
        if not isinstance(operator, DequantizeLinear) or operator.output_dtype:
            return None
        settings = self.settings(node)
        if settings is None:
            return None
        integers, array = node.inputs[0], None if node.inputs[0] is None else self.arrays.of(node.inputs[0])
        if integers is None or (array is not None and not array.ndim):
            return None  # a number of a formula, not a parameter
        if node.inputs in self.made:
            return (self.made[node.inputs],)
        result = self.weight(node, integers, array) if array is not None else self.pair(node, integers)
        if result is None:
            return None
        self.made[node.inputs] = result
        return (result,)

    def settings(self, node: Node) -> tuple[Array, Array] | None:
        """The scale and the zero point of a node; ``None`` where they are computed from inputs."""
        x, scale, zero = (*node.inputs, None)[:3]
        if x is None or scale is None:
            return None
        factor = self.arrays.of(scale)
        dtype: DType = node.outputs[0].dtype if isinstance(node.operator, QuantizeLinear) else x.dtype
        offset = np.zeros(scale.shape, dtype.numpy) if zero is None else self.arrays.of(zero)
        if factor is None or offset is None or not scale.dtype.is_float:
            return None
        if factor.size == 1 and not getattr(node.operator, "block_size", 0):
            factor = factor.reshape(())
        return factor, offset.reshape(factor.shape)

    def pair(self, after: Node, integers: Value) -> Value | None:
        """FakeQuantize, where a QuantizeLinear before has the same scale and zero point."""
        before = integers.node
        if before is None or not isinstance(before.operator, QuantizeLinear) or before.operator.precision:
            return None
        x, first, second = before.inputs[0], self.settings(before), self.settings(after)
        if x is None or first is None or second is None or integers.dtype not in INTEGERS:
            return None
        if not all(map(np.array_equal, first, second)) or x.dtype != after.outputs[0].dtype:
            return None
        ways = [_way(node, x.rank) for node in (before, after)]
        if ways[0] != ways[1] and first[0].size != 1:
            return None
        return self.rounded(x, before, first, x.name or after.outputs[0].name, self.passed_on(x, first))

    def passed_on(self, x: Value, settings: tuple[Array, Array]) -> Node | None:
        """The FakeQuantize whose numbers ``x`` passes on: it goes on having its scale, also when that is learned."""
        value: Value | None = x
        while value is not None and value.node is not None and value.node.operator.quantized == "passes":
            value = value.node.inputs[0]
        maker = None if value is None else value.node
        if maker is None or not isinstance(maker.operator, FakeQuantize):
            return None
        arrays = [self.arrays.of(value) for value in maker.inputs[1:] if value is not None]
        same = all(
            array is not None and np.array_equal(array, own) for array, own in zip(arrays, settings, strict=True)
        )
        return maker if same else None

    def weight(self, node: Node, integers: Value, array: Array) -> Value:
        """A variable for the real numbers that constant integers stand for, rounded again if they were rounded."""
        settings = self.settings(node)
        assert settings is not None
        name = self.names.fresh(_base_name(integers.name or node.outputs[0].name))
        operator = node.operator
        assert isinstance(operator, DequantizeLinear)
        variable = Variable(name, operator.reference(array, *settings))
        return self.rounded(variable, node, settings, name) if integers.dtype in INTEGERS else variable

    def rounded(
        self, x: Value, node: Node, settings: tuple[Array, Array], name: str, source: Node | None = None
    ) -> Value:
        scale, zero = Constant(settings[0], f"{name}.scale"), Constant(settings[1], f"{name}.zero_point")
        operands = (scale, zero) if source is None else source.inputs[1:]
        result = Node(FakeQuantize(*_way(node, x.rank)), [x, *operands]).output
        result.name = f"{name}.rounded"
        return result


def _way(node: Node, rank: int) -> tuple[int, int]:
    """Along which axis and in which blocks scales differ."""
    operator = node.operator
    assert isinstance(operator, (QuantizeLinear, DequantizeLinear))
    return (operator.axis % rank if rank and operator.axis < rank else operator.axis), operator.block_size


def _base_name(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name or "weight"
