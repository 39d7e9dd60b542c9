"""Prepare: a float model with FakeQuantize where it will be rounded.

The prepared model computes in f32 what the quantized one computes in integers; gradients pass it. One FakeQuantize
stands behind each value that is rounded, and all of its readers share it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.graph import Constant, Graph, Model, Node, Replacements, Template, Value, Variable, translate
from glowtrain.names import Names
from glowtrain.onnx_io.runtimes import least_share_scale
from glowtrain.ops.quantized.convert import QuantizeLinear, limits
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.quantization.calibration.profile import Profile
from glowtrain.quantization.calibration.ranges import method_of
from glowtrain.quantization.checks import check_kind, check_model
from glowtrain.quantization.export.constants import Arrays
from glowtrain.quantization.export.fold import folded
from glowtrain.quantization.placement.placement import Kept, Placement, Weight, place_rounding
from glowtrain.quantization.placement.recipe import Recipe
from glowtrain.quantization.placement.scheme import Parameters
from glowtrain.quantization.placement.weight_scales import FINEST, Axes, weight_parameters
from glowtrain.quantization.training.dropout import Drops
from glowtrain.quantization.training.from_qdq import DYNAMIC
from glowtrain.types import Array, dtype_of

SCALE = ".scale"
"""What names of scales end in, behind the name of what they belong to."""


def prepare(
    model: Model,
    profile: Profile,
    recipe: Recipe | None = None,
    *,
    state: Mapping[str, Array] | None = None,
    learn: bool = False,
) -> Model:
    """The model with FakeQuantize on the activations and weights that ``recipe`` says, ranges from a profile.

    BatchNormalization is folded first; ``state`` holds variables' values by name. Weights stay variables, so the result
    can be trained; with ``learn`` scales are trainable variables as well (``<value>.scale``), else constants. Raises
    :class:`~glowtrain.errors.QuantizationError` for values that the profile does not know or whose range is none.
    """
    chosen = Recipe() if recipe is None else recipe
    check_request(model, chosen, profile)
    return model.map(lambda graph: prepared(folded(check_float(graph), state), profile, chosen, learn=learn).graph)


def check_request(model: Graph | Template, recipe: Recipe, profile: Profile | None) -> None:
    """Raise :class:`QuantizationError` for arguments of other classes, and a model that is quantized already."""
    check_model(model)
    check_kind("a recipe", recipe, Recipe)
    if profile is not None:
        check_kind("a profile", profile, Profile)
    if isinstance(model, Graph):
        check_float(model)


def check_float(graph: Graph) -> Graph:
    """The graph. Raises :class:`QuantizationError` if its activations are rounded already."""
    for node in graph.nodes:
        if isinstance(node.operator, (FakeQuantize, QuantizeLinear, *DYNAMIC)):
            fixed = isinstance(node.operator, (FakeQuantize, QuantizeLinear))
            other = ", or train this one on (quantization.resume_training)" if fixed else ""
            raise QuantizationError(
                f"{graph.name} is quantized already ({node.operator.key()} of {node.inputs[0]!r}): give the float "
                f"model{other}"
            )
    return graph


@dataclass(frozen=True, eq=False)
class PreparedModel:
    """A graph with FakeQuantize, what was decided about it, and the parameters of each rounded value by name.

    ``values`` maps the values of the float graph to their unrounded counterparts, where these are others, and
    ``rounded`` to what is read in their place; weights by value and axes.
    """

    graph: Graph
    placement: Placement
    parameters: Mapping[str, Parameters]
    kept: list[Kept]
    values: Mapping[Value, Value]
    rounded: Mapping[Value, Value]
    weights: Mapping[tuple[Node, int], Value]


def prepared(
    graph: Graph,
    profile: Profile,
    recipe: Recipe,
    *,
    learn: bool = False,
    fixed: Mapping[str, Parameters] | None = None,
    drops: Drops | None = None,
) -> PreparedModel:
    """:func:`prepare` of a graph that is folded and whose values are named; ``fixed`` are parameters of weights by name
    that are not to be found anew, ``drops`` the places of Dropout, which drops what is rounded."""
    return _Preparing(place_rounding(graph, recipe), profile, recipe, learn, fixed or {}, drops or Drops()).run()


@dataclass
class _Preparing:
    placement: Placement
    profile: Profile
    recipe: Recipe
    learn: bool
    fixed: Mapping[str, Parameters]
    drops: Drops
    arrays: Arrays = field(default_factory=Arrays)
    parameters: dict[str, Parameters] = field(default_factory=dict)
    scales: dict[str, Value] = field(default_factory=dict)
    rounded: dict[Value, Value] = field(default_factory=dict)
    """FakeQuantize's results of activations."""
    shared: dict[tuple[Value, Axes | None], Value] = field(default_factory=dict)
    """Those of weights, by the axes that they are read along."""
    weights: dict[tuple[Node, int], Value] = field(default_factory=dict)
    replacements: Replacements = field(default_factory=Replacements)
    kept: list[Kept] = field(default_factory=list)
    names: Names = field(default_factory=lambda: Names(separator="."))

    def run(self) -> PreparedModel:
        for value in dict.fromkeys(self.placement.sites.values()):
            self.range(value)
        self.names.take(*self.parameters)
        graph = translate(self.placement.graph, self.change)
        graph = graph.with_(outputs={name: self.output(name, graph) for name in graph.outputs})
        kept = [*self.placement.kept, *self.kept]
        values = self.replacements.values
        return PreparedModel(graph, self.placement, self.parameters, kept, values, self.rounded, self.weights)

    def range(self, value: Value) -> None:
        """The parameters of an activation; a value that was never anything but 0 stays as it is."""
        observed = self.profile[value.name]
        observed.check(value.name)
        if observed.low == observed.high == 0:
            maker = value.node.operator.key() if value.node else "input"
            self.kept.append(Kept(value.name, maker, "only zeros were observed"))
            return
        low, high = method_of(self.recipe.method).range(observed, self.recipe.activations)
        found, count = self.recipe.activations.parameters(low, high, where=value.name), shares_of(value)
        least = np.float32(least_share_scale(count) if count else 0)
        self.parameters[value.name] = replace(found, scale=np.maximum(found.scale, least))

    def change(self, node: Node, replacements: Replacements) -> tuple[Value, ...] | None:
        self.replacements = replacements
        weights = {weight.operand: weight for weight in self.placement.weights if weight.node is node}
        operands: list[Value | None] = []
        for position, value in enumerate(node.inputs):
            if value is None:
                operands.append(None)
            elif position in weights:
                operands.append(self.weight(weights[position]))
            else:
                rounded = self.operand(value, node)
                operands.append(self.drops.operand(node, position, rounded, replacements))
        if all(new is old for new, old in zip(operands, node.inputs, strict=True)):
            return None
        return Node(node.operator, operands, node.name).outputs

    def operand(self, value: Value, node: Node) -> Value:
        reads, raw = value in self.placement.everywhere or node in self.placement.readers, self.replacements.of(value)
        return self.activation(value, raw) if reads and value in self.placement.sites else raw

    def output(self, name: str, graph: Graph) -> Value:
        """A result of the graph: rounded where all readers of the value read it rounded."""
        value, result = self.placement.graph.outputs[name], graph.outputs[name]
        if value in self.placement.everywhere:
            result = self.activation(value, result)
        return self.drops.output(name, result, self.replacements)

    def activation(self, value: Value, raw: Value) -> Value:
        """What stands for an activation when it is read."""
        source = self.placement.sites[value]
        if source.name not in self.parameters:
            return raw
        if value not in self.rounded:
            parameters = self.parameters[source.name]
            count = max(math.prod(value.shape[1:]), 1)
            self.rounded[value] = self.fake(value, raw, parameters, source.name, count)
        return self.rounded[value]

    def weight(self, weight: Weight) -> Value:
        key = (weight.value, weight.axes)
        if key not in self.shared:
            # read along other axes too, a weight has other scales there, and they another name
            array, name = self.arrays.required(weight.value), self.names.fresh(_weight_name(weight))
            scheme, method = self.recipe.weights, method_of(self.recipe.weight_method)
            alike = (self.least_scale(other) for other in self.placement.weights if (other.value, other.axes) == key)
            least = functools.reduce(np.maximum, alike)
            parameters = self.fixed.get(name) or weight_parameters(array, scheme, weight.axes, method, name, least)
            self.parameters[name] = parameters
            count = max(array.size // max(parameters.scale.size, 1), 1)
            self.shared[key] = self.fake(weight.value, weight.value, parameters, name, count)
        self.weights[weight.node, weight.operand] = self.shared[key]
        return self.shared[key]

    def least_scale(self, weight: Weight) -> Array | float:
        """Scales under which the bias still fits into i32."""
        node = weight.node
        if node not in self.placement.biases or node.inputs[0] is None or node.inputs[2] is None:
            return 0.0
        source = self.placement.sites.get(node.inputs[0])
        if source is None or source.name not in self.parameters:
            return 0.0
        bias = np.abs(self.arrays.required(node.inputs[2]).astype(np.float64))
        least: Array = bias * FINEST / float(self.parameters[source.name].scale)
        if self.recipe.weights.granularity != "channel" or weight.axes is None:
            return float(least.max(initial=0.0))
        channels = weight.value.shape[weight.axes[0]]
        shared: Array = least.reshape(-1, channels).max(0)  # groups may share channels of weights
        return shared

    def fake(self, value: Value, raw: Value, parameters: Parameters, name: str, count: int) -> Value:
        """FakeQuantize of a value, with the scale that all values of one name share."""
        zero = Constant(parameters.zero_point, f"{name}.zero_point")
        if name not in self.scales:
            label = f"{name}{SCALE}"
            learnt = Variable(label, parameters.scale) if self.learn else Constant(parameters.scale, label)
            self.scales[name] = learnt
        greatest = limits(dtype_of(parameters.zero_point.dtype))[1]
        factor = 1.0 / math.sqrt(count * greatest) if self.learn else 1.0
        node = Node(FakeQuantize(parameters.axis, parameters.block_size, factor), [raw, self.scales[name], zero])
        node.outputs[0].name = f"{value.name or name}.rounded"
        return node.outputs[0]


def shares_of(value: Value | None) -> int:
    """Over how many numbers the Softmax sums that makes a value; 0 if it is another operator."""
    operator = None if value is None or value.node is None else value.node.operator
    return value.shape[operator.axis] if value is not None and isinstance(operator, Softmax) else 0


def _weight_name(weight: Weight) -> str:
    if weight.value.name:
        return weight.value.name
    return f"{weight.node.outputs[0].name}.operand{weight.operand}"


def fake_quantized(graph: Graph) -> list[Node]:
    """The graph's FakeQuantize nodes. Raises :class:`QuantizationError` if it has none."""
    found = [node for node in graph.nodes if isinstance(node.operator, FakeQuantize)]
    if not found:
        raise QuantizationError(f"{graph.name} has no FakeQuantize: it was not prepared; see quantization.prepare")
    return found
