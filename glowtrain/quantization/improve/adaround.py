"""AdaRound: weights are rounded up or down as the layer's results want it, not each to the nearest.

Nagel et al., "Up or Down? Adaptive Rounding for Post-Training Quantization" (2020): each weight is s · (floor(w / s) +
h) with h in [0, 1] a stretched sigmoid of a trained number, eqs. 21 to 25; a penalty drives h to 0 or 1. Layers are
treated in order, each on what it reads when the ones before it are rounded already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain import optim
from glowtrain.backends.base import Backend
from glowtrain.compiler import Function, compile
from glowtrain.graph import Graph, Input, Node, Template, Value, Variable, constant
from glowtrain.ops.elementwise.activation import Sigmoid
from glowtrain.ops.elementwise.extrema import Clip, Max, Min
from glowtrain.ops.quantized.convert import DequantizeLinear, limits
from glowtrain.ops.reduce.reduction import ReduceMean, ReduceSum
from glowtrain.quantization.calibration.batches import Batch
from glowtrain.quantization.placement.prepare import PreparedModel
from glowtrain.quantization.placement.scheme import Parameters
from glowtrain.trainer import Trainer
from glowtrain.types import Array, TensorType, dtype_of, f32, type_of

LOW, HIGH = -0.1, 1.1
"""The ends between which the sigmoid is stretched."""
PENALTY = 0.01
SHARPEST, BLUNTEST = 2.0, 20.0
"""The exponent of the penalty falls from the greater to the lesser one, after a warm-up without penalty."""
WARM_UP = 0.2
RATE = 1e-2


def round_weights(
    floats: Graph | Template,
    ready: Callable[[Graph], PreparedModel],
    fed: Sequence[Batch],
    steps: int,
    backend: str | Backend = "cpu",
) -> tuple[dict[str, Array], dict[str, Parameters]]:
    """Weights, by variable, that lie on the steps of their scales, and these scales: each layer trained for ``steps``
    steps. ``ready`` prepares a float graph.

    A layer whose error over the calibration data does not fall keeps its weights, which are rounded to the nearest.
    """
    wanted = compile(floats.map(lambda graph: _form(ready(graph), "float")), backend)
    rounded = compile(floats.map(lambda graph: _form(ready(graph), "rounded")), backend)
    wanted(fed[0])
    graph = rounded.specialised(fed[0]).graph
    found, parameters = dict[str, Array](), dict[str, Parameters]()
    for layer in _layers(ready(_float_graph(floats, graph))):
        examples = list(_examples(layer.name, wanted, rounded, fed))
        better = _Rounding(layer, examples, steps, backend).run()
        if better is not None:
            found[layer.name], parameters[layer.name] = better, layer.parameters
            if layer.name in rounded.state:  # nothing that is looked at reads the last layer's weight
                rounded.state.write(layer.name, better)
    return found, parameters


def _float_graph(floats: Graph | Template, like: Graph) -> Graph:
    return floats if isinstance(floats, Graph) else floats.bind(like.dims)


@dataclass(frozen=True, eq=False)
class RoundedLayer:
    """A contraction whose weight is a variable of its own, and the weight's parameters."""

    name: str
    node: Node
    weight: Variable
    parameters: Parameters


def _layers(ready: PreparedModel) -> Iterator[RoundedLayer]:
    users = ready.placement.graph.users
    for weight in ready.placement.weights:
        value = weight.value
        if weight.operand == 1 and isinstance(value, Variable) and len(users[value]) == 1:
            yield RoundedLayer(value.name, weight.node, value, ready.parameters[value.name])


def _form(ready: PreparedModel, form: str) -> Graph:
    """A graph whose outputs are the results of each layer ("float"), or what it reads ("rounded")."""
    outputs: dict[str, Value] = {}
    for layer in _layers(ready):
        result = layer.node.outputs[0]
        if form == "float":
            outputs[layer.name] = result
            continue
        fresh = ready.values.get(result, result).node
        assert fresh is not None
        operand = fresh.inputs[0]
        assert operand is not None
        outputs[layer.name] = operand
    return ready.graph.with_(outputs=outputs, updates={}, results=None)


def _examples(name: str, wanted: Function, rounded: Function, fed: Sequence[Batch]) -> Iterator[tuple[Array, Array]]:
    """What a layer reads once the ones before it are rounded, and what it should give, by batches of one shape."""
    for batch in fed:
        pair = rounded(batch)[name], wanted(batch)[name]
        if pair[0].shape[0] == pair[1].shape[0]:
            yield pair


@dataclass
class _Rounding:
    layer: RoundedLayer
    examples: list[tuple[Array, Array]]
    steps: int
    backend: str | Backend

    def __post_init__(self) -> None:
        parameters = self.layer.parameters
        spread = DequantizeLinear(parameters.axis, parameters.block_size).layout(
            self.layer.weight.initial, parameters.scale, parameters.zero_point
        )
        self.scale = spread.spread(parameters.scale)
        self.zero = spread.spread(parameters.zero_point).astype(np.float32)
        self.units = self.layer.weight.initial / self.scale
        self.floor = np.floor(self.units)
        first = self.examples[0][0].shape
        self.examples = [pair for pair in self.examples if pair[0].shape == first]

    def run(self) -> Array | None:
        """The weights, if they are better than the nearest ones."""
        rest = np.clip(self.units - self.floor, 1e-4, 1 - 1e-4)
        start = -np.log((HIGH - LOW) / (rest - LOW) - 1).astype(np.float32)
        trainer = Trainer(self.graph(start), "loss", optim.Adam(lr=RATE), backend=self.backend)
        for step in range(self.steps):
            x, y = self.examples[step % len(self.examples)]
            trainer.step({"x": x, "y": y, **self.schedule(step)})
        numbers = trainer.parameters()["rounding"]
        up = (_stretched(numbers) >= 0.5).astype(np.float32)
        chosen = self.clipped(self.floor + up) * self.scale
        nearest = self.clipped(np.rint(self.units)) * self.scale
        chosen, nearest = (array.astype(np.float32) for array in (chosen, nearest))
        error = self.measure()
        return chosen if self.total(error, chosen) < self.total(error, nearest) else None

    def total(self, error: Function, weight: Array) -> float:
        """The mean squared error over all examples."""
        return sum(float(error({"x": x, "y": y, "weight": weight})["error"]) for x, y in self.examples)

    def schedule(self, step: int) -> dict[str, Array]:
        part = (step / max(self.steps, 1) - WARM_UP) / (1 - WARM_UP)
        exponent = BLUNTEST + (SHARPEST - BLUNTEST) * max(part, 0.0)
        weight = PENALTY if part > 0 else 0.0
        return {"exponent": np.array(exponent, np.float32), "penalty": np.array(weight, np.float32)}

    def bounds(self) -> tuple[Array, Array]:
        low, high = limits(dtype_of(self.layer.parameters.zero_point.dtype))
        return (np.float32(low) - self.zero), (np.float32(high) - self.zero)

    def clipped(self, units: Array) -> Array:
        low, high = self.bounds()
        result: Array = np.clip(units, low, high)
        return result

    def graph(self, start: Array) -> Graph:
        """The loss of a batch: the squared error of the layer's results, and the penalty."""
        x, y = (Input(type_of(array), name) for array, name in zip(self.examples[0], ("x", "y"), strict=True))
        exponent, penalty = (Input(TensorType(f32), name) for name in ("exponent", "penalty"))
        h = _stretched_value(Variable("rounding", start))
        low, high = (np.broadcast_to(bound, start.shape).astype(np.float32) for bound in self.bounds())
        units = Min()(Max()(constant(self.floor.astype(np.float32)) + h, constant(low)), constant(high))
        weight = units * constant(np.broadcast_to(self.scale, start.shape).astype(np.float32))
        difference = self.result(x, weight) - y
        error = ReduceMean(keepdims=False)(difference * difference) * float(y.shape[-1] if y.rank < 3 else y.shape[1])
        away = constant(1.0, f32) - abs(h * 2.0 - 1.0) ** exponent
        loss = error + penalty * ReduceSum(keepdims=False)(away)
        return Graph((x, y, exponent, penalty), {"loss": loss}, name=f"rounding {self.layer.name}")

    def result(self, x: Value, weight: Value) -> Value:
        node = self.layer.node
        rest = [constant(value.initial) if isinstance(value, Variable) else value for value in node.inputs[2:]]
        return Node(node.operator, [x, weight, *rest]).outputs[0]

    def measure(self) -> Function:
        """The mean squared error of a batch under given weights."""
        x, y = (Input(type_of(array), name) for array, name in zip(self.examples[0], ("x", "y"), strict=True))
        weight = Input(self.layer.weight.type, "weight")
        difference = self.result(x, weight) - y
        error = ReduceMean(keepdims=False)(difference * difference)
        return compile(Graph((x, y, weight), {"error": error}), self.backend)


def _stretched(numbers: Array) -> Array:
    result: Array = np.clip((HIGH - LOW) / (1 + np.exp(-numbers)) + LOW, 0, 1)
    return result


def _stretched_value(numbers: Value) -> Value:
    result: Value = Clip()(Sigmoid()(numbers) * (HIGH - LOW) + LOW, constant(0.0, f32), constant(1.0, f32))
    return result
