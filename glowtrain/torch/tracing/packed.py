"""Packed sequences in a trace: padded ones, with their lengths.

How many elements a packed sequence has depends on lengths, and compiled code has fixed shapes. So ``PackedSequence`` of
a trace holds padded sequences; LSTM, GRU and RNN run over them with the lengths, and the states of each sequence stop
at its end, which gives the numbers that packed ones give. Nothing else may look into it: a mean over ``packed.data``
would take in the padding.

Lengths that do not fit make NaN of all that is computed by them, as nothing can be raised within a compiled graph; a
step looks at those that are its arguments before it runs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import nan
from typing import Any, Never

import torch
from torch import _VF

from glowtrain.errors import InputError, ModelError

LENGTHS, RECURRENT = "glowtrain::lengths", "glowtrain::packed_rnn"
KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
"""PyTorch's names of its recurrent layers."""
AS_ARGUMENT = (
    "a packed sequence is no argument, as its shape depends on lengths: give padded sequences and their lengths, and "
    "call pack_padded_sequence in the module"
)
MOVES = ("_to_copy", "to", "clone", "detach", "alias", "sort", "contiguous", "lift_fresh_copy")
"""Operators whose first result has the elements of their first operand."""


@torch.library.custom_op(LENGTHS, mutates_args=())
def checked_lengths(lengths: torch.Tensor, steps: int, exact: bool) -> torch.Tensor:
    """Stands for lengths from 1 to ``steps``, the longest of which has so many if they are ``exact``."""
    return lengths.clone()


@checked_lengths.register_fake
def _(lengths: torch.Tensor, steps: int, exact: bool) -> torch.Tensor:
    return torch.empty_like(lengths)


@torch.library.custom_op(RECURRENT, mutates_args=())
def packed_rnn(
    x: torch.Tensor, lengths: torch.Tensor, states: Sequence[torch.Tensor], params: Sequence[torch.Tensor], kind: str,
    has_biases: bool, num_layers: int, dropout: float, train: bool, bidirectional: bool,
) -> list[torch.Tensor]:  # fmt: skip
    """Stands for recurrent layers over padded sequences [T, B, C] in a traced graph; it is never run."""
    raise NotImplementedError("a traced layer is read by glowtrain, and runs nowhere else")


@packed_rnn.register_fake
def _(x: Any, lengths: Any, states: Any, params: Any, *settings: Any) -> list[torch.Tensor]:
    directions = 1 + settings[-1]
    return [x.new_empty(*x.shape[:2], directions * states[0].shape[2]), *map(torch.empty_like, states)]


def _never(*_: Any) -> Never:
    raise NotImplementedError("gradients of a traced layer are made by glowtrain")


packed_rnn.register_autograd(_never)  # so that the tape connects results with operands


class _Opaque:
    """What nobody but the functions of this module may use. (PyTorch asks objects with ``__torch_function__``.)"""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Never:
        _refuse(getattr(function, "__name__", str(function)))

    def __getattr__(self, name: str) -> Never:
        if name.startswith("__"):
            raise AttributeError(name)
        _refuse(name)


def _refuse(use: str) -> Never:
    raise ModelError(
        f"{use} of a packed sequence's own tensors is not followed, as their shape depends on lengths: compute before "
        "pack_padded_sequence and after pad_packed_sequence; LSTM, GRU and RNN take what is packed"
    )


class Padded(_Opaque):
    """In place of a packed sequence's elements: padded sequences [T, B, ...], in which padding is 0."""

    def __init__(self, tensor: torch.Tensor, lengths: torch.Tensor) -> None:
        self.tensor, self.lengths = tensor, lengths
        self.dtype, self.device = tensor.dtype, tensor.device

    def dim(self) -> int:
        """That of the elements in a row."""
        return int(self.tensor.dim()) - 1

    def size(self, axis: int) -> int:
        """That of the last axis."""
        if axis != -1:
            _refuse("size")
        return int(self.tensor.size(axis))


class BatchSizes(_Opaque):
    """In place of how many sequences have each step: all have the first one."""

    def __init__(self, steps: int, batch: int) -> None:
        self.steps, self.batch = Longest(steps), batch
        self.device = torch.device("cpu")

    def size(self, _: int) -> Longest:
        """The steps of the longest sequence."""
        return self.steps

    def __getitem__(self, step: Any) -> int:
        if step != 0:
            _refuse("batch_sizes")
        return int(self.batch)


class Longest(int):
    """How many steps the longest sequence has: no ``total_length``, which would be another number."""


def pack(x: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[Padded, BatchSizes]:
    """torch._VF._pack_padded_sequence: padding becomes 0."""
    padded = x.transpose(0, 1) if batch_first else x
    steps, batch = padded.shape[:2]
    if lengths.shape != (batch,):
        raise ModelError(f"{batch} sequences have lengths of shape {list(lengths.shape)}")
    lengths = checked_lengths(lengths, steps, False)
    fits = ((lengths >= 1) & (lengths <= steps)).all()
    return Padded(_spoilt(_filled(padded, lengths, 0), fits), lengths), BatchSizes(steps, batch)


def pad(data: Padded, _: Any, batch_first: bool, value: float, total: int) -> tuple[torch.Tensor, torch.Tensor]:
    """torch._VF._pad_packed_sequence, of as many steps as were packed, or of ``total``."""
    if not isinstance(data, Padded):
        raise ModelError(AS_ARGUMENT)
    steps = data.tensor.shape[0]
    y = _filled(data.tensor, data.lengths, value)
    if isinstance(total, Longest):
        y = _spoilt(y, checked_lengths(data.lengths, steps, True).amax() == steps)
    elif total > steps:
        y = torch.cat([y, y.new_full((total - steps, *y.shape[1:]), value)])
    return y.transpose(0, 1) if batch_first else y, data.lengths


def _filled(padded: torch.Tensor, lengths: torch.Tensor, value: float) -> torch.Tensor:
    """Sequences [T, B, ...] with a value for padding."""
    inside = torch.arange(padded.shape[0])[:, None] < lengths
    return padded.masked_fill(~inside.reshape(*inside.shape, *[1] * (padded.dim() - 2)), value)


def _spoilt(y: torch.Tensor, fits: torch.Tensor) -> torch.Tensor:
    """NaN unless lengths fit."""
    if not y.is_floating_point():
        raise ModelError("whole numbers are packed: pack what an embedding makes of them")
    return y.masked_fill(~fits, nan)


def _layers(kind: str) -> Callable[..., Any]:
    """Recurrent layers of a kind, over packed sequences or others."""
    function, operator = getattr(_VF, kind), getattr(torch.ops.aten, kind).input

    def run(x: Any, *operands: Any) -> Any:
        if not isinstance(x, Padded):  # one sequence, or a batch of equal lengths
            cast = kind.startswith("rnn") and torch.is_autocast_enabled("cpu")  # the products of its steps
            return (operator.decompose if cast else function)(x, *operands)
        _, states, params, *settings = operands
        own = [states] if isinstance(states, torch.Tensor) else list(states)
        values, params = x.tensor, list(params)
        if torch.is_autocast_enabled("cpu"):
            narrow = torch.get_autocast_dtype("cpu")
            values, own, params = values.to(narrow), *([each.to(narrow) for each in row] for row in (own, params))
        y, *finals = packed_rnn(values, x.lengths, own, params, kind, *settings)
        return Padded(y, x.lengths), *finals

    return run


PACKED: dict[Any, Callable[..., Any]] = {
    _VF._pack_padded_sequence: pack,
    _VF._pad_packed_sequence: pad,
    **{getattr(_VF, kind): _layers(kind) for kind in KINDS},
}
"""What is traced in place of functions."""


@dataclass(frozen=True)
class LengthUse:
    """Where lengths are an argument, by number: they must be from 1 to ``steps``, the longest of so many if
    ``exact``."""

    argument: int
    steps: int
    exact: bool

    def check(self, lengths: torch.Tensor) -> None:
        """Raise :class:`InputError` for others."""
        least, most = (int(each) for each in lengths.aminmax())
        if least < 1 or most > self.steps:
            raise InputError(f"lengths of packed sequences must be from 1 to {self.steps}, not from {least} to {most}")
        if self.exact and most != self.steps:
            raise InputError(
                f"pad_packed_sequence makes {most} steps of this batch, whose sequences are padded to {self.steps}: "
                "give it total_length=x.size(1) (of x that was packed), or pad to the longest sequence only"
            )


def length_uses(graph: torch.fx.Graph, inputs: Sequence[str]) -> list[LengthUse]:
    """Where a traced graph uses arguments as lengths."""
    return list(dict.fromkeys(_uses(graph, inputs)))


def _uses(graph: torch.fx.Graph, inputs: Sequence[str]) -> Iterator[LengthUse]:
    for node in graph.nodes:
        if node.op == "call_function" and str(node.target).startswith(LENGTHS.replace("::", ".")):
            source, steps, exact = node.args
            while source.op == "call_function" and _passes_on(source):
                source = source.args[0]
            if source.name in inputs:
                yield LengthUse(list(inputs).index(source.name), steps, exact)


def _passes_on(node: torch.fx.Node) -> bool:
    """Whether a node has the elements of its first operand, in whatever order."""
    if node.target is torch.ops.glowtrain.lengths.default:
        return True
    if node.target is operator.getitem:
        return bool(node.args[1] == 0)
    return isinstance(node.target, torch._ops.OpOverload) and node.target._opname in MOVES
