"""Random graphs with fan-out, broadcasting, views, reductions, contractions, loops, gradients and state."""

from __future__ import annotations

from typing import Any

import numpy as np

from glowtrain.grad.reverse import pullback
from glowtrain.graph import Draw, Graph, Input, Value, Variable, constant
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.elementwise.activation import Relu, Sigmoid
from glowtrain.ops.elementwise.arithmetic import Abs, Neg
from glowtrain.ops.elementwise.extrema import Max
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.indexing.scatter import ScatterElements
from glowtrain.ops.normalize.batch_and_layer import LayerNormalization
from glowtrain.ops.pooling.pooling import AveragePool
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMean, ReduceSum
from glowtrain.ops.reduce.softmax import LogSoftmax, Softmax
from glowtrain.ops.tensor.move import Concat, Expand, Flatten, Reshape, Slice, Squeeze, Transpose, Unsqueeze
from glowtrain.ops.tensor.pad import Pad, Tile
from glowtrain.ops.tensor.split import Split
from glowtrain.types import TensorType, f64, i64

MAX_ELEMENTS = 400


def permutation(draw: Draw, count: int) -> tuple[int, ...]:
    left = list(range(count))
    return tuple(left.pop(draw.integer(0, len(left) - 1)) for _ in range(count))


class RandomGraph:
    """Grows a pool of f64 values by operators whose results stay bounded."""

    def __init__(self, draw: Draw) -> None:
        self.draw, self.integer, self.choice = draw, draw.integer, draw.choice
        self.random = np.random.default_rng(self.integer(0, 1 << 16))
        self.inputs = tuple(Input(f64[self.shape()], f"in{k}") for k in range(self.integer(1, 2)))
        self.variables = tuple(
            Variable(f"v{k}", self.random.normal(size=self.shape())) for k in range(self.integer(1, 2))
        )
        self.pool: list[Value] = [*self.inputs, *self.variables]

    def shape(self) -> tuple[int, ...]:
        return self.draw.shape(1, 4, max_extent=4)

    def value(self) -> Value:
        """Any value, recent ones more often."""
        return self.pool[-1 - min(self.integer(0, len(self.pool) - 1), self.integer(0, len(self.pool) - 1))]

    def ranked(self, low: int, high: int = 4) -> Value:
        """A value reshaped or unsqueezed to a rank between ``low`` and ``high``."""
        value = self.value()
        while value.rank < low:
            value = Unsqueeze(axes=(self.integer(0, value.rank),))(value)
        return value if value.rank <= high else Reshape(shape=(*value.shape[: high - 1], -1))(value)

    def array(self, shape: tuple[int, ...]) -> Value:
        return constant(self.random.normal(size=shape))

    def grow(self, steps: int) -> None:
        kinds = [self.unary, self.unary, self.binary, self.binary, self.move, self.move, self.move]
        kinds += [
            self.reduction,
            self.reduction,
            self.row,
            self.contraction,
            self.index,
            self.window,
            self.scan,
            self.mirror,
        ]
        for _ in range(steps):
            for value in self.choice(kinds)():
                if value.type.size <= MAX_ELEMENTS:
                    self.pool.append(value)

    def unary(self) -> list[Value]:
        return [self.choice([Relu, Tanh, Sigmoid, Neg, Abs])()(self.value())]

    def binary(self) -> list[Value]:
        a, b = self.value(), self.value()
        b = b if _fits(a, b) else self.choice([constant(0.5), self.array(a.shape[-1:]), a])
        match self.integer(0, 4):
            case 0:
                return [a + b]
            case 1:
                return [a - b]
            case 2:
                return [Tanh()(a) * b]
            case 3:
                return [Max()(a, b)]
            case _:
                return [Where()(a > 0.1, a, b)]

    def move(self) -> list[Value]:
        value = self.ranked(1)
        axis, rank = self.integer(0, value.rank - 1), value.rank
        extent = value.shape[axis]
        match self.integer(0, 8):
            case 0:
                return [Transpose(perm=permutation(self.draw, rank))(value)]
            case 1:
                return [
                    Reshape(shape=self.choice([(-1,), (value.shape[0], -1), (-1, value.shape[-1]), (1, -1, 1)]))(value)
                ]
            case 2:
                start = self.integer(0, extent - 1)
                return [Slice(starts=(start,), ends=(extent,), axes=(axis,), steps=(self.integer(1, 2),))(value)]
            case 3:
                return [Slice(starts=(extent - 1,), ends=(-extent - 1,), axes=(axis,), steps=(-1,))(value)]
            case 4:
                return [Concat(axis=axis)(value, self.choice([value, Neg()(value), Tanh()(value)]))]
            case 5:
                return [Expand(shape=(self.integer(1, 3), *value.shape))(value)] if rank < 4 else [Flatten()(value)]
            case 6:
                pads = tuple(self.integer(0, 1) for _ in range(2 * rank))
                mode = self.choice(["constant", "edge"])
                return [Pad(pads=pads, mode=mode)(value)]
            case 7:
                return [Tile(repeats=tuple(self.integer(1, 2) for _ in range(rank)))(value)]
            case _:
                if extent == 1:
                    return [Squeeze(axes=(axis,))(value)] if rank > 1 else [value]
                return list(Split(split=(1, extent - 1), axis=axis)(value))

    def mirror(self) -> list[Value]:
        """A value beside itself in another order: its reader wants two elements at once."""
        value = self.ranked(1)
        axis = self.integer(0, value.rank - 1)
        if self.integer(0, 1):
            value = ReduceSum(axes=(axis,), keepdims=False)(
                Unsqueeze(axes=(axis,))(value) * self.array((2, *(1,) * (value.rank - axis)))
            )
        extent = value.shape[axis]
        mirrored = Slice(starts=(extent - 1,), ends=(-extent - 1,), axes=(axis,), steps=(-1,))(value) * 0.5
        return [value + mirrored if self.integer(0, 1) else mirrored + value]

    def reduction(self) -> list[Value]:
        value = self.ranked(1)
        axes = tuple(sorted({self.integer(0, value.rank - 1), self.integer(0, value.rank - 1)}))
        operator = self.choice([ReduceSum, ReduceMean, ReduceMax])
        return [operator(axes=axes, keepdims=bool(self.integer(0, 1)))(value)]

    def row(self) -> list[Value]:
        value = self.ranked(1)
        axis = self.integer(0, value.rank - 1)
        if self.integer(0, 1):
            return [self.choice([Softmax, LogSoftmax])(axis=axis)(value)]
        shape = value.shape[axis:]
        return [LayerNormalization(axis=axis, epsilon=0.1)(value, self.array(shape), self.array(shape))[0]]

    def contraction(self) -> list[Value]:
        a = self.ranked(2)
        b = self.value()
        if b.rank < 2 or b.shape[-2] != a.shape[-1] or not _batches(a, b):
            b = (
                Transpose(perm=(*range(a.rank - 2), a.rank - 1, a.rank - 2))(a)
                if self.integer(0, 1)
                else self.array((a.shape[-1], 3))
            )
        return [(a @ b) * 0.25]

    def index(self) -> list[Value]:
        value = self.ranked(1)
        axis = self.integer(0, value.rank - 1)
        extent = value.shape[axis]
        if self.integer(0, 1):
            places = self.random.integers(-extent, extent, self.shape()[:2])
            return [Gather(axis=axis)(value, constant(places, i64))]
        places = self.random.integers(0, extent, value.shape)
        return [ScatterElements(axis=axis, reduction="add")(value, constant(places, i64), Tanh()(value))]

    def window(self) -> list[Value]:
        value = self.ranked(3)
        spatial = value.rank - 2
        kernel = tuple(min(extent, self.integer(1, 2)) for extent in value.shape[2:])
        pads = tuple(self.integer(0, 1) for _ in range(spatial)) * 2
        strides = tuple(self.integer(1, 2) for _ in range(spatial))
        if self.integer(0, 2) == 0:
            return [AveragePool(kernel_shape=kernel, strides=strides, count_include_pad=True)(value)]
        weight = self.array((2, value.shape[1], *kernel))
        return [Conv(pads=pads, strides=strides, kernel_shape=kernel)(value, weight, self.array((2,))) * 0.25]

    def scan(self) -> list[Value]:
        """h' = tanh(x + h @ w), stacked, forwards or backwards."""
        value = self.ranked(2, 2)
        width = value.shape[1]
        state, x, w = Input(f64[1, width], "state"), Input(f64[width,], "x"), Input(f64[width, width], "w")
        after = Tanh()(x + state @ w)
        body = Graph((state, x, w), {"after": after, "y": Reshape(shape=(width,))(after) * 2})
        directions = (self.integer(0, 1),), (self.integer(0, 1),)
        scan = Scan(body, 1, scan_input_directions=directions[0], scan_output_directions=directions[1], num_captured=1)
        return list(scan(self.array((1, width)), value, self.array((width, width))))

    def graph(self, steps: int = 10) -> Graph:
        """One to three outputs, updates, and sometimes gradients with respect to the variables."""
        self.grow(self.integer(1, steps))
        outputs = {f"out{k}": self.value() for k in range(self.integer(1, 3))}
        loss = ReduceSum(keepdims=False)(Tanh()(next(iter(outputs.values()))))
        updates: dict[Variable, Value] = {}
        gradients = pullback([loss], [constant(1.0)], self.variables)
        for variable, gradient in zip(self.variables, gradients, strict=True):
            match self.integer(0, 3):
                case 0 if gradient is not None:
                    updates[variable] = variable - 0.1 * gradient
                case 1:
                    others = [v for v in self.pool if v.type == variable.type]
                    updates[variable] = self.choice(others)
                case 2 if gradient is not None:
                    outputs[f"d{variable.name}"] = gradient
        return Graph(self.inputs, outputs, updates, name="random")

    def feeds(self) -> dict[str, Any]:
        return {value.name: self.random.normal(size=value.shape) for value in self.inputs}


def _fits(a: Value, b: Value) -> bool:
    try:
        return TensorType(f64, np.broadcast_shapes(a.shape, b.shape)).size <= MAX_ELEMENTS
    except ValueError:
        return False


def _batches(a: Value, b: Value) -> bool:
    try:
        return (
            TensorType(f64, (*np.broadcast_shapes(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])).size
            <= MAX_ELEMENTS
        )
    except ValueError:
        return False
