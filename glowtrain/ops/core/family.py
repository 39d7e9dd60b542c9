"""What operators of one family share: shape rules, lowering, the domain they are tested on."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from glowtrain.errors import ShapeError
from glowtrain.graph import Draw, Operator, Sample, Value
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, For, Statement, Tensor, indices_of, pointwise
from glowtrain.types import DType, Shape, TensorType

Grads = tuple[Any, ...]


def broadcast_shapes(shapes: Sequence[Shape]) -> Shape:
    """NumPy's broadcast of shapes. Raises :class:`ShapeError` naming the axis that does not fit."""
    return _broadcast(tuple(shapes))


@lru_cache(maxsize=1024)
def _broadcast(shapes: tuple[Shape, ...]) -> Shape:
    """The same few shapes meet again and again."""
    if len(set(shapes)) == 1:
        return shapes[0]
    rank = max((len(shape) for shape in shapes), default=0)
    padded = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result = []
    for axis, extents in enumerate(zip(*padded, strict=True)):
        distinct = {extent for extent in extents if extent != 1}
        if len(distinct) > 1:
            raise ShapeError(f"extents {sorted(distinct)} on axis {axis - rank} do not broadcast")
        result.append(distinct.pop() if distinct else 1)
    return tuple(result)


def normalize_axis(operator: Operator, axis: int, type_: TensorType, *, extra: int = 0) -> int:
    """A non-negative axis of ``type_`` (``extra`` more are allowed, for operators that insert axes)."""
    rank = type_.rank + extra
    if not -rank <= axis < rank:
        raise operator.fail(f"axis {axis} is outside [{-rank}, {rank - 1}]", type_)
    return axis % rank


def normalize_axes(operator: Operator, axes: Sequence[int], type_: TensorType, *, extra: int = 0) -> tuple[int, ...]:
    """Non-negative axes, each at most once."""
    result = tuple(normalize_axis(operator, axis, type_, extra=extra) for axis in axes)
    if len(set(result)) != len(result):
        raise operator.fail(f"axes {list(axes)} name an axis twice", type_)
    return result


class Elementwise(Operator):
    """Output element = a scalar function of the operands' elements at the same (broadcast) position.

    A subclass gives ``reference``, ``vjp`` (of the broadcast result's shape) and ``scalar``.
    """

    elementwise: ClassVar[bool] = True
    broadcasts: ClassVar[bool] = True
    kinds: ClassVar[frozenset[str]] = frozenset({"float"})
    """Kinds of element types that are allowed."""
    arity: ClassVar[int] = 1
    """Number of operands; -1 for any positive number."""
    domain_range: ClassVar[tuple[float, float]] = (-2.0, 2.0)
    """Where samples are drawn from."""
    kinks: ClassVar[tuple[float, ...]] = ()
    """Places where the function is not differentiable; samples stay away from them."""

    def infer(self, *inputs: TensorType) -> TensorType:
        self.check_operands(*inputs)
        first, dtype = inputs[0], self.result_dtype(*inputs)
        shapes = [type_.shape for type_ in inputs]
        if dtype is first.dtype and shapes.count(first.shape) == len(shapes):
            return first  # as most are
        try:
            return TensorType(dtype, broadcast_shapes(shapes))
        except ShapeError as error:
            raise self.fail(str(error), *inputs) from None

    def check_operands(self, *inputs: TensorType) -> None:
        """All operands present, of one allowed element type."""
        if (self.arity >= 0 and len(inputs) != self.arity) or not inputs:
            raise self.fail(
                f"takes {self.arity if self.arity >= 0 else 'at least 1'} operand(s), not {len(inputs)}", *inputs
            )
        dtypes = [type_.dtype for type_ in inputs]
        if dtypes.count(dtypes[0]) != len(dtypes):
            raise self.fail("operands must have one element type", *inputs)
        if dtypes[0].kind not in self.kinds:
            raise self.fail(f"element type must be {' or '.join(sorted(self.kinds))}, not {dtypes[0]}", *inputs)

    def result_dtype(self, *inputs: TensorType) -> DType:
        """Element type of the result: that of the operands unless overridden."""
        return inputs[0].dtype

    def nonsmooth(self) -> tuple[float, ...]:
        """Where the function is not differentiable, for these attributes: :attr:`kinks` unless overridden."""
        return self.kinks

    def scalar(self, *inputs: Any) -> Expr:
        """The function on scalars, in the loop language."""
        raise self.lacks("scalar", "the function of one element")

    def lowers(self, *inputs: Value | None) -> bool:
        return _gives(self, Elementwise, "scalar")

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        return pointwise(outputs[0], lambda *i: self.scalar(*(x.broadcast(i) for x in inputs)))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        op = cls.draw_operator(draw)
        arity = cls.arity if cls.arity >= 0 else draw.integer(1, 3)
        shape = draw.shape()
        shapes = [shape] + [broadcastable(draw, shape) for _ in range(arity - 1)]
        return Sample(op, tuple(draw.floats(s, *cls.domain_range, avoid=op.nonsmooth()) for s in shapes))


def broadcastable(draw: Draw, shape: Shape) -> Shape:
    """A shape that broadcasts to ``shape``: leading axes dropped, some extents 1."""
    kept = shape[draw.integer(0, len(shape)) :]
    return tuple(1 if draw.boolean() else extent for extent in kept)


class Move(Operator):
    """Output element = the element of the first operand at another position.

    A subclass gives ``infer``, ``reference``, ``vjp`` and ``source``.
    """

    quantized: ClassVar[Quantized] = "passes"
    moves: ClassVar[bool] = True
    copies: ClassVar[bool] = True

    def source(self, index: Sequence[Expr], shape: Shape) -> Sequence[Expr | int]:
        """Subscripts in an operand of ``shape`` of the element that goes to ``index``."""
        raise self.lacks("source", "where each element comes from")

    def lowers(self, *inputs: Value | None) -> bool:
        return _gives(self, Move, "source")

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        x = inputs[0]
        indices = indices_of(outputs[0].shape)
        return [For(indices, (outputs[0].store(indices, x[self.source(indices, x.shape)]),))]


def _gives(operator: Operator, family: type[Operator], method: str) -> bool:
    """Whether a class of a family says how it is lowered: by the family's method, or by a ``lower`` of its own."""
    cls = type(operator)
    return any(getattr(cls, name) is not getattr(family, name) for name in (method, "lower"))
