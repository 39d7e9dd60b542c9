"""Convert: a prepared model as one with QuantizeLinear and DequantizeLinear, weights as integers.

In this form (QDQ) ONNX Runtime and Glowtrain recognise integer operators: a contraction between DequantizeLinear and
QuantizeLinear, with its bias as i32 whose scale is that of the products, s_x · s_w, and whose zero point is 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.graph import Constant, Graph, Model, Node, Replacements, Value, translate
from glowtrain.modes.training_and_inference import inference
from glowtrain.onnx_io.runtimes import reciprocal
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear, limits
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.quantization.checks import check_model
from glowtrain.quantization.export.constants import Arrays, with_state
from glowtrain.quantization.placement.prepare import fake_quantized, shares_of
from glowtrain.quantization.placement.scheme import Parameters, check_parameters
from glowtrain.quantization.training.batch_norm import frozen
from glowtrain.types import Array, dtype_of, i32


def convert(model: Model, *, state: Mapping[str, Array] | None = None) -> Model:
    """The QDQ form of a prepared model, ready for ``gt.save``.

    ``state`` holds variables' values by name (those of a trained model); scales and weights become constants, and
    BatchNormalization is folded with its running statistics, if it is not frozen yet. Raises
    :class:`~glowtrain.errors.QuantizationError` for a model that is not prepared and scales that are not positive.
    """
    check_model(model)
    return model.map(lambda graph: converted(inference(frozen(with_state(graph, state or {})))))


def converted(graph: Graph) -> Graph:
    """:func:`convert` of a graph whose variables begin with their final values."""
    converting = _Converting()
    for node in fake_quantized(graph):
        converting.notice(*node.inputs[:2])
    return translate(graph, converting.change)


def reaching(scale: Array, steps: int, top: float) -> Array:
    """Scales with which ``steps`` of them reach no further than ``top``, where Clip ends.

    Training may have widened them. Nothing beyond it is rounded, and other runtimes compute in integers only where they
    need not clip before they round. Powers of two stay so.
    """
    widest = np.float32(top / steps)
    if widest * np.float32(steps) > np.float32(top):
        widest = np.nextafter(widest, np.float32(0))
    power_of_two = np.frexp(scale)[0] == 0.5
    return np.where(power_of_two, scale, np.minimum(scale, widest)).astype(np.float32)


@dataclass
class _Converting:
    shares: dict[Value | None, int] = field(default_factory=dict)
    """Scales of what Softmax gives, and over how many numbers."""
    tops: dict[Value | None, float] = field(default_factory=dict)
    """The greatest number that is rounded with a scale, where Clip says it; else infinity."""
    arrays: Arrays = field(default_factory=Arrays)
    constants: dict[Value, Constant] = field(default_factory=dict)

    def notice(self, x: Value | None, scale: Value | None) -> None:
        """What is rounded with a scale, which several may share."""
        count = shares_of(x)
        if count:
            self.shares[scale] = min(count, self.shares.get(scale, count))
        self.tops[scale] = max(self.top(x), self.tops.get(scale, -math.inf))

    def change(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        if isinstance(node.operator, FakeQuantize):
            return (self.rounded(node, node.operator, replacements),)
        if node.operator.quantized == "contraction" and len(node.inputs) > 2 and node.inputs[2] is not None:
            return self.biased(node, replacements)
        return None

    def parameters(self, node: Node) -> Parameters:
        """The parameters of a FakeQuantize."""
        assert isinstance(node.operator, FakeQuantize)
        _, scale, zero = (value for value in node.inputs if value is not None)
        arrays = self.arrays.required(scale), self.arrays.required(zero)
        check_parameters(*arrays, where=scale.name)
        if scale in self.shares:
            arrays = reciprocal(arrays[0], self.shares[scale]), arrays[1]
        top, steps = self.tops[scale], limits(zero.dtype)[1] - int(arrays[1].min())
        if 0 < top < math.inf and steps > 0:
            arrays = reaching(arrays[0], steps, top), arrays[1]
        return Parameters(*arrays, node.operator.axis, node.operator.block_size)

    def top(self, x: Value | None) -> float:
        """The number that Clip ends at."""
        if x is None or x.node is None or not isinstance(x.node.operator, Clip):
            return math.inf
        end = (*x.node.inputs, None, None)[2]
        known = None if end is None else self.arrays.of(end)
        return math.inf if known is None else float(known.item())

    def constant(self, value: Value, array: Array) -> Constant:
        """A constant that stands for a scale or a zero point; one for all that share it."""
        if value not in self.constants:
            self.constants[value] = Constant(array, value.name)
        return self.constants[value]

    def rounded(self, node: Node, operator: FakeQuantize, replacements: Replacements) -> Value:
        x, scale, zero = (value for value in node.inputs if value is not None)
        found = self.parameters(node)
        settings = operator.axis, operator.block_size
        operands = self.constant(scale, found.scale), self.constant(zero, found.zero_point)
        array = self.arrays.of(x)
        name = x.name or node.outputs[0].name.removesuffix(".rounded")
        if array is None:
            integers = Node(QuantizeLinear(*settings), [replacements.of(x), *operands]).output
            integers.name = f"{name}.quantized"
        else:
            integers = Constant(found.quantized(array), f"{name}.quantized")
        result = Node(DequantizeLinear(*settings), [integers, *operands]).output
        result.name = f"{name}.dequantized"
        return result

    def biased(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        """A contraction of two rounded operands, its bias as i32 in the scale of the products."""
        bias, makers = node.inputs[2], [None if value is None else value.node for value in node.inputs[:2]]
        assert bias is not None
        array, scale = self.arrays.of(bias), self.scale_of_products(node, makers)
        if array is None or scale is None or array.ndim != 1 or array.size % scale.size:
            return None
        if scale.size > 1:
            scale = np.tile(scale, array.size // scale.size)  # groups that share channels of weights, one after another
        operands = replacements.operands(node)
        operands[2] = self.bias(bias, array, scale)
        return Node(node.operator, operands, node.name).outputs

    def scale_of_products(self, node: Node, makers: list[Node | None]) -> Array | None:
        """s_x · s_w for each channel; ``None`` where products have no such scale."""
        if any(maker is None or not isinstance(maker.operator, FakeQuantize) for maker in makers):
            return None
        if any(getattr(node.operator, factor, 1.0) != 1.0 for factor in ("alpha", "beta")):
            return None
        x, w = (self.parameters(maker) for maker in makers if maker is not None)
        _, weight = (value for value in node.inputs[:2] if value is not None)
        types = [None if value is None else value.type for value in node.inputs]
        axes = node.operator.weight_axes(1, *types)
        if x.scale.size != 1 or w.block_size or axes is None:
            return None
        if w.scale.ndim and w.axis % max(weight.rank, 1) != axes[0]:
            return None
        product: Array = (x.scale.reshape(-1) * w.scale.reshape(-1)).astype(np.float32)
        return product

    def bias(self, value: Value, array: Array, scale: Array) -> Value:
        """DequantizeLinear of the bias's integers. Raises :class:`QuantizationError` where they do not fit into i32."""
        low, high = limits(i32)
        integers = np.rint(array.astype(np.float64) / scale)
        if (integers < low).any() or (integers > high).any() or not (scale > 0).all():
            rule = "the bias is too large for the scale of the products in i32"
            raise QuantizationError(f"{value.name or 'a bias'}: {rule}; keep the operator in float (keep=...)")
        name = value.name or "bias"
        scales = Constant(scale if scale.size > 1 else scale.reshape(()), f"{name}.scale")
        zero = Constant(np.zeros(scales.shape, np.int32), f"{name}.zero_point")
        quantized = Constant(integers.astype(np.int32), f"{name}.quantized")
        assert dtype_of(quantized.array.dtype) == i32
        result = Node(DequantizeLinear(0), [quantized, scales, zero]).output
        result.name = f"{name}.dequantized"
        return result
