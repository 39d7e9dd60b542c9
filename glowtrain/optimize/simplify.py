"""Algebraic rules that keep every bit of the result.

A rule looks at one node, and its operands, and gives the values that take the place of its outputs, or ``None``.
What is not exact has no rule: x + 0 turns -0 into 0, (x · a) · b rounds once more than x · (a · b).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.graph import Change, Constant, Graph, Node, Value, constant, rewrite
from glowtrain.ops.elementwise.arithmetic import Add, Div, Mean, Mul, Neg, Pow, Sub, Sum
from glowtrain.ops.elementwise.extrema import Max, Min
from glowtrain.ops.elementwise.logic import Cast, Greater, Identity, Not, Where
from glowtrain.ops.indexing.gather import Gather, neighbours
from glowtrain.ops.pooling.max_pool import MaxPool, MaxPoolGradient
from glowtrain.ops.random.philox import Dropout
from glowtrain.ops.reduce.reduction import ReduceMax, ReduceMean, ReduceMin, ReduceProd, ReduceSum
from glowtrain.ops.tensor.move import Concat, Expand, Reshape, Reshaping, Slice, Transpose, reshape
from glowtrain.ops.tensor.pad import Pad, Tile
from glowtrain.ops.tensor.split import Split
from glowtrain.types import DType, boolean, i64, u32, u64


@dataclass(frozen=True)
class Simplify:
    """Apply :data:`RULES` to every node, the first that fits."""

    def run(self, graph: Graph) -> Graph:
        """The simpler graph; the same object if no rule fits."""
        return rewrite(graph, self.rule())

    def rule(self) -> Change:
        """The rule for one walk."""
        return _first


def _first(node: Node) -> Sequence[Value] | None:
    for rule in _rules_of(type(node.operator)):  # type: ignore[arg-type]
        values = rule(node)
        if values is not None:
            return values
    return None


@functools.lru_cache(maxsize=1024)
def _rules_of(operator: type) -> tuple[Change, ...]:
    """The rules for a class of operators."""
    return tuple(rule for kinds, rule in RULES if issubclass(operator, kinds))


def _operand(node: Node, place: int = 0) -> Value:
    value = node.inputs[place]
    assert value is not None
    return value


def _is_filled(value: Value | None, number: float) -> bool:
    """Whether a constant has only this number; 0.0 and -0.0 are different."""
    if not isinstance(value, Constant):
        return False
    array = value.array
    same = array == number
    if number == 0 and array.dtype.kind not in "iub":
        same = same & (np.signbit(array.astype(np.float64)) == (math.copysign(1, number) < 0))
    return bool(np.all(same))


def neutral_right(node: Node) -> Sequence[Value] | None:
    """x · 1, x / 1, x ** 1, x - 0, x + (-0) are x, where broadcasting leaves its shape."""
    neutral = {"Mul": 1.0, "Div": 1.0, "Pow": 1.0, "Sub": 0.0, "Add": -0.0}[node.operator.key()]
    x, y = _operand(node), node.inputs[1]
    return (x,) if x.type == node.output.type and _is_filled(y, neutral) else None


def neutral_left(node: Node) -> Sequence[Value] | None:
    """1 · x and -0 + x are x."""
    neutral = -0.0 if isinstance(node.operator, Add) else 1.0
    x = _operand(node, 1)
    return (x,) if x.type == node.output.type and _is_filled(node.inputs[0], neutral) else None


def integer_constants(node: Node) -> Sequence[Value] | None:
    """(x + a) + b = x + (a + b) and (x · a) · b = x · (a · b) for integers, which wrap around."""
    inner = _operand(node).node
    outer_constant = node.inputs[1]
    if inner is None or type(inner.operator) is not type(node.operator) or not node.output.dtype.is_integer:
        return None
    inner_constant = inner.inputs[1]
    if not isinstance(inner_constant, Constant) or not isinstance(outer_constant, Constant):
        return None
    merged = node.operator(inner_constant, outer_constant)
    return (node.operator(inner.inputs[0], merged),)


def subtracted_constant(node: Node) -> Sequence[Value] | None:
    """x - a = x + (-a) for integers, which wrap around, so that constants meet."""
    subtrahend = node.inputs[1]
    if not isinstance(subtrahend, Constant) or not node.output.dtype.is_integer:
        return None
    negative = constant((0 - subtrahend.array).astype(subtrahend.array.dtype))
    return (Add()(node.inputs[0], negative),)


def undone(node: Node) -> Sequence[Value] | None:
    """-(-x) and not(not x) are x."""
    inner = _operand(node).node
    return (_operand(inner),) if inner is not None and type(inner.operator) is type(node.operator) else None


def unchanged(node: Node) -> Sequence[Value] | None:
    """Moves that leave every element in its place."""
    x, operator = _operand(node), node.operator
    if x.type != node.output.type:
        return None
    if isinstance(operator, Transpose):
        moved = [axis for axis in operator.order(x.rank) if x.shape[axis] != 1]
        return (x,) if moved == sorted(moved) else None
    if isinstance(operator, Slice):
        return (x,) if operator.ranges(x.type) == [range(extent) for extent in x.shape] else None
    if isinstance(operator, Pad):
        return None if any(operator.pads) else (x,)
    return (x,)


def only_operand(node: Node) -> Sequence[Value] | None:
    """Sum, Mean, Max, Min and Concat of one operand, and Split into one piece."""
    if len(node.inputs) != 1 or len(node.outputs) != 1:
        return None
    return (_operand(node),)


def cast_of_cast(node: Node) -> Sequence[Value] | None:
    """A cast to the same type is none; a cast through a type that holds all values of the first is one cast."""
    x, operator = _operand(node), node.operator
    assert isinstance(operator, Cast)
    if x.dtype == operator.to:
        return (x,)
    inner = x.node
    if inner is None or not isinstance(inner.operator, Cast):
        return None
    source = _operand(inner)
    return (
        (operator(source),)
        if holds_all(x.dtype, source.dtype) and wrap_equally(source.dtype, x.dtype, operator.to)
        else None
    )


def wrap_equally(source: DType, wide: DType, to: DType) -> bool:
    """Whether numbers too large for ``to`` come out the same from ``source`` and, if ``wide`` holds them, from there:
    floats wrap as far as i32 holds them, or i64 for some (:func:`glowtrain.loops.functions.truncated`)."""
    return not (source == u32 and wide.is_float) or to.is_float or to in (boolean, u32, i64, u64)


def holds_all(wide: DType, narrow: DType) -> bool:
    """Whether every number of one element type is a number of the other, as far as this knows the types."""
    if wide == narrow or (narrow.kind == "bool" and not wide.is_stored):
        return True
    if wide.kind == "bool" or wide.is_stored or narrow.is_stored:
        return False
    digits, largest = _precision(wide)
    needed, magnitude = _precision(narrow)
    signed = wide.kind != "uint" or narrow.kind == "uint"
    floats = wide.is_float or not narrow.is_float
    return signed and floats and digits >= needed and largest >= magnitude


def _precision(dtype: DType) -> tuple[int, int]:
    """Binary digits of an integer that are kept, and the binary exponent of the largest number."""
    if dtype.is_float:
        return {"f64": (53, 1024), "f32": (24, 128), "f16": (11, 16), "bf16": (8, 128)}[dtype.name]
    bits = 8 * dtype.size - (dtype.kind == "int")
    return bits, bits


def transpose_of_transpose(node: Node) -> Sequence[Value] | None:
    """Two permutations are one."""
    x, operator = _operand(node), node.operator
    inner = x.node
    assert isinstance(operator, Transpose)
    if inner is None or not isinstance(inner.operator, Transpose):
        return None
    before, after = inner.operator.order(x.rank), operator.order(x.rank)
    return (Transpose(perm=tuple(before[axis] for axis in after))(_operand(inner)),)


def reshape_of_reshape(node: Node) -> Sequence[Value] | None:
    """Only the last shape counts."""
    inner = _operand(node).node
    if inner is None or not isinstance(inner.operator, Reshaping):
        return None
    shape = node.output.shape
    return (Reshape(shape=shape, allowzero=0 in shape)(_operand(inner)),)


def expanded_operand(node: Node) -> Sequence[Value] | None:
    """Operators that broadcast do so by themselves."""
    operator, wanted = node.operator, [output.type for output in node.outputs]
    if not operator.broadcasts or isinstance(operator, Expand):
        return None
    for place, value in enumerate(node.inputs):
        inner = value.node if value is not None else None
        if inner is None or not isinstance(inner.operator, Expand):
            continue
        inputs = [*node.inputs[:place], inner.inputs[0], *node.inputs[place + 1 :]]
        fresh = Node(operator, inputs, node.name)
        if [output.type for output in fresh.outputs] == wanted:
            return fresh.outputs
    return None


def expand_of_expand(node: Node) -> Sequence[Value] | None:
    """Only the last shape counts."""
    inner = _operand(node).node
    if inner is None or not isinstance(inner.operator, Expand):
        return None
    return (Expand(shape=node.output.shape)(_operand(inner)),)


def constant_condition(node: Node) -> Sequence[Value] | None:
    """Where with a condition that is true, or false, everywhere; or with one value in both places."""
    condition, x, y = (_operand(node, place) for place in range(3))
    if x is y or _is_filled(condition, True):
        chosen = x
    elif _is_filled(condition, False):
        chosen = y
    else:
        return None
    shape = node.output.shape
    return (chosen if chosen.shape == shape else Expand(shape=shape)(chosen),)


def reduction_of_one(node: Node) -> Sequence[Value] | None:
    """A maximum, minimum or product over axes of extent 1 only changes the shape; so does a sum of integers."""
    x, operator = _operand(node), node.operator
    if isinstance(operator, (ReduceSum, ReduceMean)) and not x.dtype.is_integer:
        return None
    axes: Any = operator.reduced(x.type)  # type: ignore[attr-defined]
    if any(x.shape[axis] != 1 for axis in axes):
        return None
    shape = node.output.shape
    return (x if x.shape == shape else Reshape(shape=shape, allowzero=0 in shape)(x),)


def concat_of_split(node: Node) -> Sequence[Value] | None:
    """All pieces of a tensor joined again."""
    operator, first = node.operator, _operand(node).node
    assert isinstance(operator, Concat)
    if first is None or not isinstance(first.operator, Split) or node.inputs != first.outputs:
        return None
    whole = _operand(first)
    return (whole,) if operator.axis % whole.rank == first.operator.axis % whole.rank else None


def split_of_concat(node: Node) -> Sequence[Value] | None:
    """Tensors that were joined, taken apart in the same places."""
    operator, x = node.operator, _operand(node)
    inner = x.node
    assert isinstance(operator, Split)
    if inner is None or not isinstance(inner.operator, Concat):
        return None
    if operator.axis % x.rank != inner.operator.axis % x.rank:
        return None
    parts = [value for value in inner.inputs if value is not None]
    return parts if [value.type for value in parts] == [value.type for value in node.outputs] else None


def gathered_neighbours(node: Node) -> Sequence[Value] | None:
    """Elements at constant indices that follow one another are a slice."""
    data, indices, operator = _operand(node), _operand(node, 1), node.operator
    assert isinstance(operator, Gather)
    axis = operator.axis % data.rank
    found = neighbours(indices, data.shape[axis])
    if found is None:
        return None
    part = Slice(starts=(found.start,), ends=(found.stop,), axes=(axis,))(data)
    return (reshape(part, node.output.shape),)


def no_dropout(node: Node) -> Sequence[Value] | None:
    """Dropout outside of training."""
    assert isinstance(node.operator, Dropout)
    if node.operator.training_mode:
        return None
    x = _operand(node)
    return x, Expand(shape=x.shape)(constant(True))


def masked_before_pool(node: Node) -> Sequence[Value] | None:
    """A gradient that comes through a maximum pool of x, and is kept where x > a, is kept there by the maxima.

    An element that gets something of a window's cotangent is that window's maximum. So x need not be there any more.
    """
    condition, gradient = _operand(node).node, _operand(node, 1).node
    if condition is None or gradient is None or not _is_filled(node.inputs[2], 0.0):
        return None
    pool = _pool_of(gradient) if isinstance(gradient.operator, MaxPoolGradient) else None
    compares = isinstance(condition.operator, Greater) and condition.inputs[1] is not None
    if pool is None or not compares or condition.inputs[0] is not pool.inputs[0]:
        return None
    bound, cotangent = _operand(condition, 1), _operand(gradient)
    if bound.type.size != 1 or _operand(node, 1).type != node.output.type:
        return None
    kept = Greater()(pool.outputs[0], reshape(bound, ()))
    return (gradient.operator(Where()(kept, cotangent, 0.0), gradient.inputs[1]),)


def _pool_of(gradient: Node) -> Node | None:
    """The pool whose indices a gradient reads, as they are or in other integers."""
    maker = _operand(gradient, 1).node
    if maker is not None and isinstance(maker.operator, Cast):
        maker = _operand(maker).node
    return maker if maker is not None and isinstance(maker.operator, MaxPool) else None


RULES: tuple[tuple[tuple[type, ...], Change], ...] = (
    ((Identity,), only_operand),
    ((Mul, Div, Pow, Sub, Add), neutral_right),
    ((Mul, Add), neutral_left),
    ((Mul, Add), integer_constants),
    ((Sub,), subtracted_constant),
    ((Neg, Not), undone),
    ((Transpose, Reshaping, Expand, Slice, Tile, Pad), unchanged),
    ((Sum, Mean, Max, Min, Concat, Split), only_operand),
    ((Cast,), cast_of_cast),
    ((Transpose,), transpose_of_transpose),
    ((Reshaping,), reshape_of_reshape),
    ((Expand,), expand_of_expand),
    ((Where,), constant_condition),
    ((Where,), masked_before_pool),
    ((ReduceSum, ReduceMean, ReduceMax, ReduceMin, ReduceProd), reduction_of_one),
    ((Concat,), concat_of_split),
    ((Split,), split_of_concat),
    ((Gather,), gathered_neighbours),
    ((Dropout,), no_dropout),
    ((object,), expanded_operand),
)
"""Operators and the rule that may simplify them, in the order in which they are tried."""
