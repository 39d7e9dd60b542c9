"""LSTM, GRU and RNN: layers over layers, each an operator of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from glowtrain.errors import ModelError
from glowtrain.graph import Graph, Input, Value
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.activation import Sigmoid
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.sequence.recurrent import GRU, LSTM, RNN
from glowtrain.ops.tensor.move import Concat, Transpose, reshape
from glowtrain.torch.aten.random import dropped
from glowtrain.torch.aten.table import AtenCall, aten


@dataclass(frozen=True)
class Stack:
    """Layers of one kind. ``order``: our gates, as numbers of PyTorch's; ``make`` gives a layer's operator."""

    make: Callable[..., Any]
    order: tuple[int, ...]


LSTM_STACK = Stack(LSTM, (0, 3, 1, 2))
"""Ours: input, output, forget, cell; PyTorch's: input, forget, cell, output."""
GRU_STACK = Stack(lambda **options: GRU(linear_before_reset=1, **options), (1, 0, 2))
"""Ours: update, reset, new; PyTorch's: reset, update, new."""
TANH_STACK = Stack(RNN, (0,))


def _relu_layer(direction: str, **options: Any) -> Any:
    return RNN(activations=("Relu",) * (2 if direction == "bidirectional" else 1), direction=direction, **options)


RELU_STACK = Stack(_relu_layer, (0,))


@aten("lstm.input")
def lstm(
    call: AtenCall, x: Value, states: Sequence[Value], params: Sequence[Value], has_biases: bool, num_layers: int,
    dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> Any:  # fmt: skip
    projected = len(params) != num_layers * (1 + bidirectional) * (2 + 2 * has_biases)
    kind = _ProjectedLayers if projected else _Layers
    layers = kind(call, LSTM_STACK, params, has_biases, num_layers, dropout if train else 0.0, bidirectional)
    y, finals = layers.run(x, states, batch_first)
    return y, *finals


def _enter(name: str, stack: Stack) -> None:
    """Enter a kind of layers that has one state."""

    def reading(
        call: AtenCall, x: Value, state: Value, params: Sequence[Value], has_biases: bool, num_layers: int,
        dropout: float, train: bool, bidirectional: bool, batch_first: bool,
    ) -> Any:  # fmt: skip
        layers = _Layers(call, stack, params, has_biases, num_layers, dropout if train else 0.0, bidirectional)
        y, finals = layers.run(x, [state], batch_first)
        return y, *finals

    aten(f"{name}.input")(reading)


STACKS = {"lstm": LSTM_STACK, "gru": GRU_STACK, "rnn_tanh": TANH_STACK, "rnn_relu": RELU_STACK}
for _name in ("gru", "rnn_tanh", "rnn_relu"):
    _enter(_name, STACKS[_name])


@aten("glowtrain.lengths.default")
def checked_lengths(_: AtenCall, operand: Value, steps: int, exact: bool) -> Value:
    return operand


@aten("glowtrain.packed_rnn.default")
def packed_rnn(
    call: AtenCall, x: Value, lengths: Value, states: Sequence[Value], params: Sequence[Value], kind: str,
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> list[Value]:  # fmt: skip
    if len(params) != num_layers * (1 + bidirectional) * (2 + 2 * has_biases):
        raise ModelError("LSTM(proj_size=) takes no packed sequences here: pad them, and leave the padding out later")
    rate = dropout if train else 0.0
    layers = _Layers(call, STACKS[kind], params, has_biases, num_layers, rate, bidirectional, lengths)
    y, finals = layers.run(x, states, batch_first=False)
    return [y, *finals]


@dataclass(frozen=True)
class _Layers:
    """A call of a stack; ``params`` are PyTorch's, by layer, then direction: W, R, and both biases if there are any.
    ``lengths`` are those of sequences that end before the last step."""

    call: AtenCall
    stack: Stack
    params: Sequence[Value]
    has_biases: bool
    count: int
    dropout: float
    bidirectional: bool
    lengths: Value | None = None

    @property
    def directions(self) -> int:
        return 1 + self.bidirectional

    def run(self, x: Value, states: Sequence[Value], batch_first: bool) -> tuple[Value, list[Value]]:
        """The outputs of the last layer, and the final states of all: each [layers directions, B, H].

        Without an axis for the batch, there is one sequence.
        """
        single = x.rank == 2
        if single:
            x = reshape(x, (x.shape[0], 1, x.shape[1]))
            states = [reshape(state, (state.shape[0], 1, state.shape[1])) for state in states]
        elif batch_first:
            x = Transpose(perm=(1, 0, 2))(x)
        finals: list[list[Value]] = [[] for _ in states]
        for layer, operands in enumerate(self._operands()):
            x, own = self._layer(x, operands, [self._rows(state, layer) for state in states])
            if self.dropout and layer < self.count - 1:
                x = dropped(self.call, x, self.dropout)[0]
            for collected, final in zip(finals, own, strict=True):
                collected.append(final)
        joined = [Concat(axis=0)(*each) if len(each) > 1 else each[0] for each in finals]
        if single:
            return reshape(x, (x.shape[0], x.shape[2])), [reshape(f, (f.shape[0], f.shape[2])) for f in joined]
        return Transpose(perm=(1, 0, 2))(x) if batch_first else x, joined

    def _layer(self, x: Value, operands: Sequence[Value | None], states: Sequence[Value]) -> tuple[Value, list[Value]]:
        direction = "bidirectional" if self.bidirectional else "forward"
        y, *finals = self.stack.make(direction=direction)(x, *operands, self.lengths, *states)
        steps, _, batch, hidden = y.shape
        return reshape(Transpose(perm=(0, 2, 1, 3))(y), (steps, batch, self.directions * hidden)), finals

    def _rows(self, state: Value, layer: int) -> Value:
        first = layer * self.directions
        return state if self.count == 1 else state[first : first + self.directions]

    def _operands(self) -> Iterator[list[Value | None]]:
        """W, R and B of each layer: [directions, gates H, ...]."""
        size = 4 if self.has_biases else 2
        for layer in range(self.count):
            first = layer * self.directions * size
            parts = [self.params[first + d * size : first + (d + 1) * size] for d in range(self.directions)]
            w, r = (_stacked([self._gates(part[i]) for part in parts]) for i in (0, 1))
            biases = [Concat(axis=0)(self._gates(part[2]), self._gates(part[3])) for part in parts if self.has_biases]
            yield [w, r, _stacked(biases) if biases else None]

    def _gates(self, rows: Value) -> Value:
        """Rows in the order of our gates."""
        order = self.stack.order
        if order == tuple(range(len(order))):
            return rows
        size = rows.shape[0] // len(order)
        result: Value = Concat(axis=0)(*(rows[gate * size : (gate + 1) * size] for gate in order))
        return result


class _ProjectedLayers(_Layers):
    """Layers of an LSTM whose hidden states are projected (``proj_size``): a Scan for each direction, of which the last
    parameter is the projection (Sak et al., 2014)."""

    def _operands(self) -> Iterator[list[Value | None]]:
        """The parameters of each layer, by direction."""
        count = len(self.params) // self.count
        for first in range(0, len(self.params), count):
            yield list(self.params[first : first + count])

    def _layer(self, x: Value, operands: Sequence[Value | None], states: Sequence[Value]) -> tuple[Value, list[Value]]:
        count = len(operands) // self.directions
        results, finals = [], []
        for number in range(self.directions):
            own = operands[number * count : (number + 1) * count]
            y, *last = self._direction(x, own, [state[number] for state in states], backwards=number > 0)
            results.append(y)
            finals.append([reshape(state, (1, *state.shape)) for state in last])
        if self.directions == 1:
            return results[0], finals[0]
        return Concat(axis=2)(*results), [Concat(axis=0)(*each) for each in zip(*finals, strict=True)]

    def _direction(
        self, x: Value, operands: Sequence[Value | None], states: Sequence[Value], *, backwards: bool
    ) -> tuple[Value, ...]:
        """The results of all steps, and the last states."""
        w, r, *biases, projection = (operand for operand in operands if operand is not None)
        terms = x @ Transpose(perm=(1, 0))(w)
        for bias in biases:
            terms = terms + bias
        captured = Transpose(perm=(1, 0))(r), Transpose(perm=(1, 0))(projection)
        back = (int(backwards),)
        start = states[0], states[1]
        scan = Scan(_projected_step(*start, terms, *captured), 1, (), (), back, back, num_captured=2)
        h, c, y = scan(*start, terms, *captured)
        return y, h, c


def _projected_step(h: Value, c: Value, terms: Value, recurrent: Value, projection: Value) -> Graph:
    """One step of an LSTM with a projection. ``terms``, of all steps, are what the input adds to the gates."""
    types = h.type, c.type, terms.type.with_shape(terms.shape[1:]), recurrent.type, projection.type
    names = "h", "c", "term", "recurrent", "projection"
    inputs = tuple(Input(type_, name) for type_, name in zip(types, names, strict=True))
    hidden, cell, term, weight, down = inputs
    gates, size = term + hidden @ weight, c.shape[1]
    taken, kept, new, shown = (gates[:, gate * size : (gate + 1) * size] for gate in range(4))
    cell = Sigmoid()(kept) * cell + Sigmoid()(taken) * Tanh()(new)
    hidden = (Sigmoid()(shown) * Tanh()(cell)) @ down
    return Graph(inputs, {"h": hidden, "c": cell, "y": hidden}, name="lstm")


def _stacked(parts: Sequence[Value]) -> Value:
    rows = [reshape(part, (1, *part.shape)) for part in parts]
    result: Value = Concat(axis=0)(*rows) if len(rows) > 1 else rows[0]
    return result
