"""LSTM, GRU and RNN: the input's products hoisted out of the loop, then one Scan per direction.

X is [T, B, I] (``layout=0``) or [B, T, I] (``layout=1``), with D = 1 or 2 directions and H hidden units. In a batch
with ``sequence_lens``, a row's states stop changing at its end, and its outputs beyond are zero; read backwards, it
starts with the initial state at its own last element.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from glowtrain.graph import Draw, Graph, Input, Operator, Sample, Value, constant, operator
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.activation import (
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    Sigmoid,
    Softplus,
    Softsign,
    ThresholdedRelu,
)
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.elementwise.logic import Less, Where
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.reduce.reduction import filled, widened
from glowtrain.ops.tensor.move import Concat, Slice, Transpose, reshape
from glowtrain.ops.tensor.split import Split
from glowtrain.types import Array, DType, TensorType, boolean

Function = Callable[[Any], Any]


class GateActivation(NamedTuple):
    """An activation in its two meanings, with the defaults of the parameters that it takes (alpha, then beta)."""

    graph: Callable[..., Value]
    numpy: Callable[..., Array]
    defaults: tuple[float, ...] = ()


def _sigmoid(x: Array) -> Array:
    return np.asarray(0.5 * (np.tanh(0.5 * x) + 1))


ACTIVATIONS: dict[str, GateActivation] = {
    "relu": GateActivation(Relu(), lambda x: np.maximum(x, 0)),
    "tanh": GateActivation(Tanh(), np.tanh),
    "sigmoid": GateActivation(Sigmoid(), _sigmoid),
    "affine": GateActivation(lambda x, a, b: x * a + b, lambda x, a, b: a * x + b, (1.0, 0.0)),
    "leakyrelu": GateActivation(lambda x, a: LeakyRelu(alpha=a)(x), lambda x, a: np.where(x < 0, a * x, x), (0.01,)),
    "thresholdedrelu": GateActivation(
        lambda x, a: ThresholdedRelu(alpha=a)(x), lambda x, a: np.where(x > a, x, 0), (1.0,)
    ),
    "scaledtanh": GateActivation(lambda x, a, b: Tanh()(x * b) * a, lambda x, a, b: a * np.tanh(b * x), (1.0, 1.0)),
    "hardsigmoid": GateActivation(
        lambda x, a, b: HardSigmoid(alpha=a, beta=b)(x), lambda x, a, b: np.clip(a * x + b, 0, 1), (0.2, 0.5)
    ),
    "elu": GateActivation(
        lambda x, a: Elu(alpha=a)(x), lambda x, a: np.where(x < 0, a * np.expm1(np.minimum(x, 0)), x), (1.0,)
    ),
    "softsign": GateActivation(Softsign(), lambda x: x / (1 + np.abs(x))),
    "softplus": GateActivation(Softplus(), lambda x: np.logaddexp(x, 0)),
}


@dataclass(frozen=True)
class Recurrent(Operator):
    """What the three share. A subclass gives the cell, in graph code and in NumPy."""

    activation_alpha: tuple[float, ...] = ()
    activation_beta: tuple[float, ...] = ()
    activations: tuple[str, ...] = ()
    clip: float | None = None
    direction: str = "forward"
    hidden_size: int | None = None
    layout: int = 0

    gates: ClassVar[int]
    """Number of gates: W, R and B hold one block of H rows for each."""
    functions: ClassVar[tuple[str, ...]]
    """Default activations of one direction."""
    states: ClassVar[int] = 1
    state_inputs: ClassVar[tuple[int, ...]] = (5,)

    @property
    def directions(self) -> int:
        return 2 if self.direction == "bidirectional" else 1

    def cell(self, x: Any, r: Any, extra: Sequence[Any], states: Sequence[Any], f: Sequence[Function]) -> list[Any]:
        """The new states [B, H] from a step's ``x`` [B, gates H], which holds the input's products and the biases.

        ``r`` is [H, gates H], ``extra`` comes from :meth:`extras`. The equations serve values and arrays alike.
        """
        raise NotImplementedError

    def extras(self, bias: Any, peepholes: Any) -> list[Any]:
        """What else a cell reads: ``bias`` [gates H] is the recurrent one of a direction, ``peepholes`` [3 H]."""
        return []

    def input_bias(self, bias: Any, concat: Callable[[Sequence[Any]], Any]) -> Any:
        """What is added to the input's products, from a direction's biases [2 gates H]."""
        half = bias.shape[0] // 2
        return _cut(bias, 0, 0, half) + _cut(bias, 0, half, 2 * half)

    def infer(self, *inputs: Any) -> tuple[TensorType, ...]:
        x, w, r = inputs[:3]
        optional = (*inputs[3:], *(None,) * (8 - len(inputs)))
        if x.rank != 3 or w.rank != 3 or r.rank != 3 or len(inputs) > 4 + 1 + self.states + (self.states == 2):
            raise self.fail("takes X, W and R of rank 3, then optional operands", *inputs)
        self._check_attributes(r.shape[2], *inputs)
        (steps, batch), hidden = x.shape[:2][:: -1 if self.layout else 1], r.shape[2]
        count, rows = self.directions, self.gates * hidden
        per_state = (batch, count, hidden) if self.layout else (count, batch, hidden)
        wanted = {
            "W": (w, (count, rows, x.shape[2])),
            "R": (r, (count, rows, hidden)),
            "B": (optional[0], (count, 2 * rows)),
            "sequence_lens": (optional[1], (batch,)),
            "initial_h": (optional[2], per_state),
            "initial_c": (optional[3], per_state),
            "P": (optional[4], (count, 3 * hidden)),
        }
        for name, (type_, shape) in wanted.items():
            if type_ is not None and type_.shape != shape:
                raise self.fail(f"{name} must have shape {list(shape)}, not {list(type_.shape)}", *inputs)
            if type_ is not None and name != "sequence_lens" and type_.dtype != x.dtype:
                raise self.fail(f"{name} must have X's element type", *inputs)
        whole = (batch, steps, count, hidden) if self.layout else (steps, count, batch, hidden)
        return (x.with_shape(whole), *(x.with_shape(per_state) for _ in range(self.states)))

    def _check_attributes(self, hidden: int, *inputs: TensorType) -> None:
        if not inputs[0].dtype.is_float:
            raise self.fail("X must be floating", *inputs)
        if self.direction not in ("forward", "reverse", "bidirectional") or self.layout not in (0, 1):
            raise self.fail("direction must be forward, reverse or bidirectional, and layout 0 or 1", *inputs)
        if self.hidden_size not in (None, hidden):
            raise self.fail(f"hidden_size is {self.hidden_size}, but R has {hidden} columns", *inputs)
        names = self.activations or self.functions * self.directions
        if len(names) != len(self.functions) * self.directions:
            count = len(self.functions) * self.directions
            raise self.fail(f"activations must name {count} functions, not {len(names)}", *inputs)
        unknown = [name for name in names if name.lower() not in ACTIVATIONS]
        if unknown:
            raise self.fail(f"{unknown[0]!r} is not one of the activations {', '.join(ACTIVATIONS)}", *inputs)

    def chosen(self, meaning: str) -> list[list[Function]]:
        """The activations of each direction ("graph" or "numpy"), with their parameters and the clip applied.

        ``activation_alpha`` and ``activation_beta`` go, in order, to the functions that take such a parameter.
        """
        alphas, betas = iter(self.activation_alpha), iter(self.activation_beta)
        found: list[Function] = []
        for name in self.activations or self.functions * self.directions:
            activation = ACTIVATIONS[name.lower()]
            sources = zip(activation.defaults, (alphas, betas), strict=False)
            parameters = [next(given, default) for default, given in sources]
            found.append(self._clipped(getattr(activation, meaning), parameters, meaning))
        size = len(self.functions)
        return [found[start : start + size] for start in range(0, len(found), size)]

    def _clipped(self, function: Callable[..., Any], parameters: Sequence[float], meaning: str) -> Function:
        bound = self.clip
        if bound is None:
            return lambda x: function(x, *parameters)
        if meaning == "numpy":
            return lambda x: function(np.clip(x, -bound, bound), *parameters)
        return lambda x: function(Clip()(x, -bound, bound), *parameters)

    def decompose(self, *inputs: Any) -> Any:
        x, w, r, bias, lengths, *starts, peepholes = self._operands(inputs)
        if self.layout:
            x = Transpose(perm=(1, 0, 2))(x)
            starts = [None if start is None else Transpose(perm=(1, 0, 2))(start) for start in starts]
        outputs = []
        for position in range(self.directions):
            parts = [None if v is None else self.part(v, position) for v in (w, r, bias, *starts, peepholes)]
            outputs.append(self._direction(position, x, lengths, parts))
        columns = zip(zip(*outputs, strict=True), (1, 0, 0), strict=False)
        joined = [Concat(axis=axis)(*column) if self.directions > 1 else column[0] for column, axis in columns]
        if self.layout:
            joined = [Transpose(perm=(2, 0, 1, 3))(joined[0]), *(Transpose(perm=(1, 0, 2))(v) for v in joined[1:])]
        return tuple(joined)

    def part(self, operand: Any, position: int) -> Any:
        """What one direction reads of an operand whose first axis is directions."""
        return one_direction(operand, position)

    def _operands(self, inputs: Sequence[Any]) -> list[Any]:
        """X, W, R, B, sequence_lens, the initial states, P; ``None`` where absent."""
        padded = [*inputs, *(None,) * (8 - len(inputs))]
        return [*padded[: 5 + self.states], padded[7]]

    def _direction(self, position: int, x: Value, lengths: Value | None, parts: Sequence[Any]) -> list[Value]:
        """One direction's Y [T, 1, B, H] and final states [1, B, H] from its W, R, B, initial states and P."""
        w, r, bias, *starts, peepholes = parts
        projected, r, further = self.products(x, w, r)
        (steps, batch, _), hidden = x.shape, r.shape[0]
        backwards = self.direction == "reverse" or position == 1
        if bias is not None:
            projected = projected + self.input_bias(bias, lambda parts: Concat(axis=0)(*parts))
        recurrent_bias = None if bias is None else _cut(bias, 0, bias.shape[0] // 2, bias.shape[0])
        captured = [r, *self.extras(recurrent_bias, peepholes), *further]
        scanned = [projected] if lengths is None else [projected, _running(steps, lengths)]
        body = _body(self, position, x.dtype, batch, hidden, [v.type for v in captured], lengths is not None)
        initial = [filled(0.0, x.type.with_shape((batch, hidden))) if start is None else start for start in starts]
        scan = Scan(
            body, len(scanned), (), (), (int(backwards),) * len(scanned), (int(backwards),), num_captured=len(captured)
        )
        *states, y = scan(*initial, *scanned, *captured)
        return [reshape(y, (steps, 1, batch, hidden)), *(reshape(v, (1, batch, hidden)) for v in states)]

    def products(self, x: Value, w: Any, r: Any) -> tuple[Value, Value, Sequence[Value]]:
        """The input's products [T, B, gates H], the recurrent weight [H, gates H], what the cell gets behind extras."""
        return x @ Transpose(perm=(1, 0))(w), Transpose(perm=(1, 0))(r), ()

    def array_products(self, x: Array, w: Array) -> Array:
        """The first of :meth:`products` in NumPy."""
        return x @ w.T

    def reference(self, *inputs: Any) -> tuple[Array, ...]:
        x, w, r, bias, lengths, *starts, peepholes = self._operands(inputs)
        if self.layout:
            x, starts = np.swapaxes(x, 0, 1), [None if s is None else np.swapaxes(s, 0, 1) for s in starts]
        outputs = []
        for position in range(self.directions):
            parts = [None if v is None else widened(v[position]) for v in (w, r, bias, *starts, peepholes)]
            outputs.append(self._loop(position, widened(x), lengths, parts))
        stacked = [np.stack(column, axis) for column, axis in zip(zip(*outputs, strict=True), (1, 0, 0), strict=False)]
        if self.layout:
            stacked = [stacked[0].transpose(2, 0, 1, 3), *(np.swapaxes(v, 0, 1) for v in stacked[1:])]
        return tuple(np.ascontiguousarray(v, x.dtype) for v in stacked)

    def _loop(self, position: int, x: Array, lengths: Array | None, parts: Sequence[Any]) -> list[Array]:
        """One direction's Y [T, B, H] and final states [B, H], step by step."""
        w, r, bias, *starts, peepholes = parts
        projected = self.array_products(x, w) + (0 if bias is None else self.input_bias(bias, np.concatenate))
        extra = self.extras(None if bias is None else bias[bias.shape[0] // 2 :], peepholes)
        states = [
            np.zeros((x.shape[1], r.shape[0] // self.gates), x.dtype) if start is None else start for start in starts
        ]
        y = np.zeros((x.shape[0], *states[0].shape), x.dtype)
        order = range(x.shape[0])
        for step in reversed(order) if self.direction == "reverse" or position == 1 else order:
            new = self.cell(projected[step], r.T, extra, states, self.chosen("numpy")[position])
            runs = np.ones((x.shape[1], 1), bool) if lengths is None else (step < lengths)[:, None]
            states = [np.where(runs, after, before) for after, before in zip(new, states, strict=True)]
            y[step] = np.where(runs, states[0], 0)
        return [y, *states]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        steps, batch = draw.integer(1, 3), draw.integer(1, 3)
        width, hidden = (max(extent, 1) for extent in draw.shape(2, 2, max_extent=3))
        direction, layout = draw.choice(("forward", "reverse", "bidirectional")), draw.integer(0, 1)
        attributes = {"hidden_size": draw.choice((None, hidden)), **cls.draw_activations(draw, direction)}
        rnn, rows = cls(direction=direction, layout=layout, **attributes), cls.gates * hidden
        count = rnn.directions
        per_state = (batch, count, hidden) if layout else (count, batch, hidden)
        x = draw.floats((batch, steps, width) if layout else (steps, batch, width))
        w, r = draw.floats((count, rows, width)), draw.floats((count, rows, hidden), -1.0, 1.0)
        bias = draw.floats((count, 2 * rows), -0.5, 0.5) if draw.boolean() else None
        lengths = draw.integers((batch,), 1, steps).astype(np.int32) if draw.boolean() else None
        starts = [draw.floats(per_state, -1.0, 1.0) if draw.boolean() else None for _ in range(cls.states)]
        tail = [draw.floats((count, 3 * hidden)) if draw.boolean() else None] if cls.states == 2 else []
        return Sample(rnn, (x, w, r, bias, lengths, *starts, *tail))

    @classmethod
    def draw_activations(cls, draw: Draw, direction: str) -> dict[str, Any]:
        """Smooth activations, so that a numerical gradient meets no kink."""
        if draw.boolean():
            return {}
        smooth = ("Tanh", "Sigmoid", "Affine", "ScaledTanh", "Softplus")
        count = len(cls.functions) * (2 if direction == "bidirectional" else 1)
        names = tuple(draw.choice(smooth) for _ in range(count))
        taken = [len(ACTIVATIONS[name.lower()].defaults) for name in names]
        alphas = tuple(draw.choice((0.7, 0.9, 1.1)) for count in taken if count > 0)
        betas = tuple(draw.choice((0.4, 0.6, 0.8)) for count in taken if count > 1)
        return {"activations": names, "activation_alpha": alphas, "activation_beta": betas, "clip": 40.0}


def _cut(x: Any, axis: int, start: int, end: int) -> Any:
    """Elements [start, end) along an axis of a value or an array."""
    if isinstance(x, Value):
        return Slice(starts=(start,), ends=(end,), axes=(axis,))(x)
    return x[(slice(None),) * axis + (slice(start, end),)]


def _pieces(x: Any, count: int) -> Any:
    """Equal pieces along axis 1 of a value or an array."""
    return Split(num_outputs=count, axis=1)(x) if isinstance(x, Value) else np.split(x, count, axis=1)


def one_direction(x: Value, position: int) -> Value:
    """One direction of a tensor whose first axis is directions."""
    return reshape(x if x.shape[0] == 1 else _cut(x, 0, position, position + 1), x.shape[1:])


def _running(steps: int, lengths: Value) -> Value:
    """[T, B, 1]: whether a row has not ended at a step."""
    times = constant(np.arange(steps).reshape(steps, 1, 1), lengths.dtype)
    result: Value = Less()(times, reshape(lengths, (1, lengths.shape[0], 1)))
    return result


def _body(
    rnn: Recurrent, position: int, dtype: DType, batch: int, hidden: int, captured: Sequence[TensorType], masked: bool
) -> Graph:
    """The loop's body."""
    states = [Input(TensorType(dtype, (batch, hidden)), name) for name in ("h", "c")[: rnn.states]]
    x = Input(TensorType(dtype, (batch, rnn.gates * hidden)), "x")
    running = [Input(TensorType(boolean, (batch, 1)), "running")] if masked else []
    whole = [Input(type_, f"p{number}") for number, type_ in enumerate(captured)]
    new = rnn.cell(x, whole[0], whole[1:], states, rnn.chosen("graph")[position])
    y = new[0]
    if masked:
        y = Where()(running[0], new[0], 0.0)
        new = [Where()(running[0], after, before) for after, before in zip(new, states, strict=True)]
    outputs = {f"{state.name}.next": value for state, value in zip(states, new, strict=True)}
    return Graph((*states, x, *running, *whole), {**outputs, "y": y}, name=f"{rnn.onnx.lower()}_cell")


@operator
@dataclass(frozen=True)
class RNN(Recurrent):
    """H_t = f(X_t W^T + H_(t-1) R^T + Wb + Rb).

    Operands X, W [D, H, I], R [D, H, H], then optionally B [D, 2H], sequence_lens [B], initial_h. Results Y and Y_h.
    """

    gates: ClassVar[int] = 1
    functions: ClassVar[tuple[str, ...]] = ("Tanh",)

    def cell(self, x: Any, r: Any, extra: Sequence[Any], states: Sequence[Any], f: Sequence[Function]) -> list[Any]:
        return [f[0](x + states[0] @ r)]


@operator
@dataclass(frozen=True)
class GRU(Recurrent):
    """z, r = f(X W^T + H R^T + biases); h = g(X W_h^T + (r H) R_h^T + biases); H' = (1 - z) h + z H.

    With ``linear_before_reset`` the reset gate acts on the product: r (H R_h^T + Rb_h).

    Operands X, W [D, 3H, I], R [D, 3H, H] (gates z, r, h), then optionally B [D, 6H], sequence_lens [B], initial_h.
    Results Y and Y_h.
    """

    linear_before_reset: int = 0

    gates: ClassVar[int] = 3
    functions: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh")

    def extras(self, bias: Any, peepholes: Any) -> list[Any]:
        if bias is None or not self.linear_before_reset:
            return []
        hidden = bias.shape[0] // 3
        return [_cut(bias, 0, 2 * hidden, 3 * hidden)]

    def input_bias(self, bias: Any, concat: Callable[[Sequence[Any]], Any]) -> Any:
        if not self.linear_before_reset:
            return super().input_bias(bias, concat)
        hidden = bias.shape[0] // 6
        both = _cut(bias, 0, 0, 2 * hidden) + _cut(bias, 0, 3 * hidden, 5 * hidden)
        return concat([both, _cut(bias, 0, 2 * hidden, 3 * hidden)])

    def cell(self, x: Any, r: Any, extra: Sequence[Any], states: Sequence[Any], f: Sequence[Function]) -> list[Any]:
        (h,), size = states, states[0].shape[1]
        if self.linear_before_reset:
            products = h @ r
            z, reset = _pieces(f[0](_cut(x, 1, 0, 2 * size) + _cut(products, 1, 0, 2 * size)), 2)
            inner = _cut(products, 1, 2 * size, 3 * size)
            new = f[1](_cut(x, 1, 2 * size, 3 * size) + reset * (inner + extra[0] if extra else inner))
        else:
            gates = f[0](_cut(x, 1, 0, 2 * size) + h @ _cut(r, 1, 0, 2 * size))
            z, reset = _pieces(gates, 2)
            new = f[1](_cut(x, 1, 2 * size, 3 * size) + (reset * h) @ _cut(r, 1, 2 * size, 3 * size))
        return [(1 - z) * new + z * h]

    @classmethod
    def draw_activations(cls, draw: Draw, direction: str) -> dict[str, Any]:
        return {**super().draw_activations(draw, direction), "linear_before_reset": draw.integer(0, 1)}


@operator
@dataclass(frozen=True)
class LSTM(Recurrent):
    """i, o, f = f(X W^T + H R^T + P C + biases), c = g(...); C' = f C + i c; H' = o h(C'), o looking at C'.

    Operands X, W [D, 4H, I], R [D, 4H, H] (gates i, o, f, c), then optionally B [D, 8H], sequence_lens [B], initial_h,
    initial_c and the peepholes P [D, 3H] (i, o, f). Results Y, Y_h and Y_c. ``input_forget`` sets f = 1 - i.
    """

    input_forget: int = 0

    gates: ClassVar[int] = 4
    functions: ClassVar[tuple[str, ...]] = ("Sigmoid", "Tanh", "Tanh")
    states: ClassVar[int] = 2
    state_inputs: ClassVar[tuple[int, ...]] = (5, 6)

    def extras(self, bias: Any, peepholes: Any) -> list[Any]:
        if peepholes is None:
            return []
        hidden = peepholes.shape[0] // 3
        return [_cut(peepholes, 0, position * hidden, (position + 1) * hidden) for position in range(3)]

    def cell(self, x: Any, r: Any, extra: Sequence[Any], states: Sequence[Any], f: Sequence[Function]) -> list[Any]:
        c = states[1]
        i, o, forget, new = _pieces(self.summed(x, states[0], r), 4)
        if extra:
            i, forget = i + extra[0] * c, forget + extra[2] * c
        i = f[0](i)
        kept = 1 - i if self.input_forget else f[0](forget)
        following = kept * c + i * f[1](new)
        o = f[0](o + extra[1] * following if extra else o)
        return [o * f[2](following), following]

    def summed(self, x: Any, h: Any, r: Any) -> Any:
        """What goes into the gates, but for peepholes."""
        return x + h @ r

    @classmethod
    def draw_activations(cls, draw: Draw, direction: str) -> dict[str, Any]:
        return {**super().draw_activations(draw, direction), "input_forget": draw.integer(0, 1)}
