"""Contractions: sums of products of two operands."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import ShapeError
from glowtrain.graph import Draw, Operator, Sample, Value, operator
from glowtrain.graph.operator import Quantized
from glowtrain.loops import Expr, For, Statement, Tensor, cast, indices_of, reduce
from glowtrain.ops.core.family import Grads, broadcast_shapes, broadcastable
from glowtrain.ops.elementwise.cast import convert
from glowtrain.ops.reduce.reduction import ReduceSum, accumulator, unbroadcast, widened
from glowtrain.ops.tensor.move import Slice, Transpose, reshape
from glowtrain.types import Array, Shape, TensorType, dtype_of, f64

NUMBERS = frozenset({"f64", "f32", "f16", "bf16", "i64", "i32", "u64", "u32"})


def product(a: Expr, b: Expr) -> Expr:
    """a * b in the accumulator's type."""
    return cast(a, accumulator(a.dtype)) * cast(b, accumulator(b.dtype))


def swapped(x: Value) -> Value:
    """The transpose of the last two axes."""
    result: Value = Transpose(perm=(*range(x.rank - 2), x.rank - 1, x.rank - 2))(x)
    return result


@operator
@dataclass(frozen=True)
class MatMul(Operator):
    """Y = A B over the last two axes, as ``numpy.matmul``: leading axes broadcast; a vector A is a row, B a column."""

    quantized: ClassVar[Quantized] = "contraction"

    def infer(self, *inputs: Any) -> TensorType:
        a, b = self._operands(*inputs)
        rows, columns = a.shape[:-1][-1:], b.shape[-1:] if b.rank > 1 else ()
        inner = b.shape[-2] if b.rank > 1 else b.shape[0]
        if a.shape[-1] != inner:
            raise self.fail(f"the last axis of A has extent {a.shape[-1]} but the rows of B are {inner}", a, b)
        try:
            batch = broadcast_shapes([a.shape[:-2], b.shape[:-2]])
        except ShapeError as error:
            raise self.fail(f"leading axes: {error}", a, b) from None
        return a.with_shape((*batch, *rows, *columns))

    def factors(self, *inputs: TensorType | None) -> tuple[int, ...]:
        return 0, 1

    def weight_axes(self, operand: int, *inputs: TensorType | None) -> tuple[int, int] | None:
        matrix = inputs[operand]
        if matrix is None or matrix.rank < 2:
            return None
        rows, columns = matrix.rank - 2, matrix.rank - 1
        return (rows, columns) if operand == 0 else (columns, rows)

    def _operands(self, *inputs: TensorType) -> tuple[TensorType, TensorType]:
        if len(inputs) != 2:
            raise self.fail(f"takes 2 operands, not {len(inputs)}", *inputs)
        a, b = inputs
        if a.dtype != b.dtype or a.dtype.name not in NUMBERS:
            raise self.fail("A and B must have one element type, floating or an integer of 32 or 64 bits", a, b)
        if not a.rank or not b.rank:
            raise self.fail("A and B need at least one axis; multiply scalars with Mul", a, b)
        return a, b

    def reference(self, *inputs: Array) -> Array:
        a, b = inputs
        return np.asarray(np.matmul(widened(a), widened(b)), a.dtype)

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        a, b = inputs
        left = reshape(a, (1, *a.shape)) if a.rank == 1 else a
        right = reshape(b, (*b.shape, 1)) if b.rank == 1 else b
        batch = broadcast_shapes([left.shape[:-2], right.shape[:-2]])
        g = reshape(g, (*batch, left.shape[-2], right.shape[-1]))
        da = unbroadcast(g @ swapped(right), left.shape)
        return reshape(da, a.shape), reshape(self._right_gradient(g, left, right), b.shape)

    def _right_gradient(self, g: Value, left: Value, right: Value) -> Value:
        """A matrix shared by a whole batch of rows gets one contraction over batch and rows."""
        if right.rank == 2 and left.rank > 2:
            rows = math.prod(left.shape[:-1])
            left, g = reshape(left, (rows, left.shape[-1])), reshape(g, (rows, g.shape[-1]))
        return unbroadcast(swapped(left) @ g, right.shape)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y,), (a, b) = outputs, inputs
        indices = indices_of(y.shape)
        row = indices[len(indices) - 1 - (len(b.shape) > 1)] if len(a.shape) > 1 else None
        column = indices[-1] if len(b.shape) > 1 else None
        batch = indices[: len(indices) - (row is not None) - (column is not None)]

        def term(k: Expr) -> Expr:
            x = a.load([*_aligned(batch, a.shape[:-2]), *([] if row is None else [row]), k])
            z = b.load([*_aligned(batch, b.shape[:-2]), k, *([] if column is None else [column])])
            return product(x, z)

        return [For(indices, (y.store(indices, reduce("add", (a.shape[-1],), term)),))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, k, n = draw.shape(3, 3, max_extent=4)
        batch = draw.shape(max_rank=2, max_extent=3)
        shape_a = (k,) if draw.integer(0, 4) == 0 else (*broadcastable(draw, batch), m, k)
        shape_b = (k,) if draw.integer(0, 4) == 0 else (*broadcastable(draw, batch), k, n)
        return Sample(cls(), (draw.floats(shape_a), draw.floats(shape_b)))


def _aligned(batch: Sequence[Expr], shape: Shape) -> list[Expr | int]:
    """Batch subscripts of an operand whose leading axes are ``shape``."""
    trailing = batch[len(batch) - len(shape) :]
    return [0 if extent == 1 else index for extent, index in zip(shape, trailing, strict=True)]


@operator
@dataclass(frozen=True)
class Gemm(Operator):
    """Y[M, N] = alpha A' B' + beta C, where A' and B' are the (transposed) matrices and C broadcasts to [M, N].

    Integers are scaled in f64, and the result is cut off towards 0.
    """

    alpha: float = 1.0
    beta: float = 1.0
    transA: bool = False
    transB: bool = False

    quantized: ClassVar[Quantized] = "contraction"

    def factors(self, *inputs: TensorType | None) -> tuple[int, ...]:
        return 0, 1

    def weight_axes(self, operand: int, *inputs: TensorType | None) -> tuple[int, int] | None:
        turned = self.transA if operand == 0 else self.transB
        return (0, 1) if turned == (operand == 1) else (1, 0)

    def infer(self, *inputs: Any) -> TensorType:
        a, b = inputs[:2]
        c = inputs[2] if len(inputs) > 2 else None
        dtypes = {type_.dtype for type_ in (a, b, c) if type_ is not None}
        if len(dtypes) > 1 or a.dtype.name not in NUMBERS:
            raise self.fail("operands must have one element type, floating or an integer of 32 or 64 bits", *inputs)
        if a.rank != 2 or b.rank != 2:
            raise self.fail("A and B must be matrices; use MatMul for other ranks", *inputs)
        rows, inner = a.shape[::-1] if self.transA else a.shape
        inner_b, columns = b.shape[::-1] if self.transB else b.shape
        if inner != inner_b:
            raise self.fail(f"A gives {inner} terms to each sum but B gives {inner_b}", *inputs)
        padded = () if c is None else (*(1 for _ in range(2 - c.rank)), *c.shape)
        if c is not None and (len(padded) > 2 or padded[0] not in (1, rows) or padded[1] not in (1, columns)):
            raise self.fail(f"C does not broadcast to [{rows}, {columns}]", *inputs)
        return TensorType(a.dtype, (rows, columns))

    def reference(self, *inputs: Any) -> Array:
        a, b = (widened(x) for x in inputs[:2])
        result = (a.T if self.transA else a) @ (b.T if self.transB else b)
        result = result if self.alpha == 1 else result * self.alpha
        if len(inputs) > 2 and inputs[2] is not None:
            c = widened(inputs[2])
            result = result + (c if self.beta == 1 else c * self.beta)
        return convert(np.asarray(result), dtype_of(inputs[0].dtype))

    def vjp(self, g: Value, y: Value, *inputs: Any) -> Grads:
        a, b = inputs[:2]
        if self.transA:
            da = Gemm(alpha=self.alpha, transA=self.transB, transB=True)(b, g)
        else:
            da = Gemm(alpha=self.alpha, transB=not self.transB)(g, b)
        if self.transB:
            db = Gemm(alpha=self.alpha, transA=True, transB=self.transA)(g, a)
        else:
            db = Gemm(alpha=self.alpha, transA=not self.transA)(a, g)
        if len(inputs) == 2 or inputs[2] is None:
            return (da, db, None)[: len(inputs)]
        dc = unbroadcast(g, inputs[2].shape)
        return da, db, dc if self.beta == 1 else dc * self.beta

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        (y,), (a, b) = outputs, inputs[:2]
        c = inputs[2] if len(inputs) > 2 else None
        i, j = indices = indices_of(y.shape)

        def term(k: Expr) -> Expr:
            return product(a[(k, i) if self.transA else (i, k)], b[(j, k) if self.transB else (k, j)])

        value = reduce("add", (a.shape[0 if self.transA else 1],), term)
        summed, value = value.dtype, _scaled(value, self.alpha)
        if c is not None:
            bias = _scaled(cast(c.broadcast(indices), summed), self.beta)
            wide = f64 if f64 in (value.dtype, bias.dtype) else summed
            value = cast(value, wide) + cast(bias, wide)
        return [For(indices, (y.store(indices, value),))]

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        m, k, n = draw.shape(3, 3, max_extent=4)
        trans_a, trans_b = draw.boolean(), draw.boolean()
        alpha, beta = draw.choice((1.0, 0.5, -2.0)), draw.choice((1.0, 0.25, -1.5))
        a = draw.floats((k, m) if trans_a else (m, k))
        b = draw.floats((n, k) if trans_b else (k, n))
        c = draw.floats(broadcastable(draw, (m, n))) if draw.integer(0, 3) else None
        return Sample(cls(alpha=alpha, beta=beta, transA=trans_a, transB=trans_b), (a, b, c))


def _scaled(value: Expr, factor: float) -> Expr:
    """Integers in f64, unless the factor is 1."""
    if factor == 1:
        return value
    return (value if value.dtype.is_float else cast(value, f64)) * factor


Labels = tuple[str, ...]


@operator
@dataclass(frozen=True)
class Einsum(Operator):
    """A sum of products named by an equation such as ``bij,bjk->bik``, with ``...`` and with the implicit form.

    A label that stands twice in a term takes the diagonal. Decomposes, two operands at a time from the left, into
    MatMul (or Mul, where nothing is contracted), ReduceSum, Transpose and Reshape.
    """

    equation: str

    def infer(self, *inputs: Any) -> TensorType:
        if not inputs or len({type_.dtype for type_ in inputs}) > 1 or not inputs[0].dtype.is_number:
            raise self.fail("takes one or more numeric operands of one element type", *inputs)
        terms, output = self._terms([type_.shape for type_ in inputs], *inputs)
        extents: dict[str, int] = {}
        for labels, type_ in zip(terms, inputs, strict=True):
            for label, extent in zip(labels, type_.shape, strict=True):
                known = extents.get(label, 1 if label.isdigit() else extent)
                if known != extent and not (label.isdigit() and 1 in (known, extent)):
                    raise self.fail(f"label {_shown(label)} has extents {known} and {extent}", *inputs)
                extents[label] = max(known, extent) if 0 not in (known, extent) else 0
        unknown = [label for label in output if label not in extents]
        if unknown or len(set(output)) != len(output):
            raise self.fail("each output label must stand once, and in some operand", *inputs)
        return TensorType(inputs[0].dtype, tuple(extents[label] for label in output))

    def _terms(self, shapes: Sequence[Shape], *types: TensorType) -> tuple[list[Labels], Labels]:
        """The labels of each operand's axes and of the result's; axes under ``...`` are numbered from the right."""
        left, arrow, right = self.equation.replace(" ", "").partition("->")
        parts = left.split(",")
        if len(parts) != len(shapes):
            raise self.fail(f"the equation names {len(parts)} operands, but {len(shapes)} are given", *types)
        terms = [self._labels(part, len(shape), *types) for part, shape in zip(parts, shapes, strict=True)]
        dots = max((sum(label.isdigit() for label in labels) for labels in terms), default=0)
        ellipsis = tuple(str(position) for position in reversed(range(dots)))
        if arrow:
            return terms, self._labels(right, len(right.replace("...", "")) + dots * ("..." in right), *types)
        written = left.replace(",", "").replace("...", "")
        return terms, (*ellipsis, *sorted(label for label in set(written) if written.count(label) == 1))

    def _labels(self, part: str, rank: int, *types: TensorType) -> Labels:
        before, dots, after = part.partition("...")
        if any(label not in string.ascii_letters for label in before + after):
            raise self.fail(f"{part!r} is not a list of letters with at most one '...'", *types)
        hidden = rank - len(before) - len(after)
        if hidden < 0 or (hidden and not dots):
            raise self.fail(f"{part!r} does not describe an operand of rank {rank}", *types)
        return (*before, *(str(position) for position in reversed(range(hidden))), *after)

    def reference(self, *inputs: Array) -> Array:
        terms, output = self._terms([x.shape for x in inputs])
        distinct = dict.fromkeys(label for labels in (*terms, output) for label in labels)
        names = {label: number for number, label in enumerate(distinct)}
        arguments: list[Any] = []
        for x, labels in zip(inputs, terms, strict=True):
            arguments += [widened(x), [names[label] for label in labels]]
        result = np.einsum(*arguments, [names[label] for label in output], optimize=len(inputs) > 2)
        return np.asarray(result, inputs[0].dtype)

    def decompose(self, *inputs: Value) -> Value:
        terms, output = self._terms([x.shape for x in inputs])
        extents: dict[str, int] = {}
        for x, labels in zip(inputs, terms, strict=True):
            sizes = zip(labels, x.shape, strict=True)
            extents |= {label: extent for label, extent in sizes if extent != 1 or label not in extents}
        operands = [_Labelled.of(x, labels, extents) for x, labels in zip(inputs, terms, strict=True)]
        total = operands[0]
        for position in range(1, len(operands)):
            later = {label for operand in operands[position + 1 :] for label in operand.labels}
            total = total.times(operands[position], later.union(output))
        return reshape(total.ordered(output), tuple(extents[label] for label in output))

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        equation, ranks = draw.choice(_EQUATIONS)
        extents = {label: draw.integer(1, 3) for label in "abcdijk012"}
        extents["i"], extents["j"] = draw.shape(2, 2, max_extent=3)
        terms, _ = cls(equation)._terms([(1,) * rank for rank in ranks])
        shapes = [tuple(extents[label] for label in labels) for labels in terms]
        return Sample(cls(equation), tuple(draw.floats(shape) for shape in shapes))


_EQUATIONS: tuple[tuple[str, tuple[int, ...]], ...] = (
    ("ij->ji", (2,)),
    ("ij->", (2,)),
    ("ii->i", (2,)),
    ("iji->j", (3,)),
    ("...i->...", (3,)),
    ("ij,jk", (2, 2)),
    ("ij,jk->ki", (2, 2)),
    ("aij,ajk->aik", (3, 3)),
    ("abid,ajbd->abij", (4, 4)),
    ("i,j->ij", (1, 1)),
    ("ij,kj->i", (2, 2)),
    ("...ij,...jk->...ik", (4, 3)),
    ("ab,ab->a", (2, 2)),
    ("abc,cd,db->ad", (3, 2, 2)),
)


def _shown(label: str) -> str:
    return "..." if label.isdigit() else repr(label)


@dataclass(frozen=True)
class _Labelled:
    """A value whose axes carry distinct labels."""

    value: Value
    labels: Labels

    @staticmethod
    def of(x: Value, labels: Labels, extents: dict[str, int]) -> _Labelled:
        """Drop axes that only broadcast, and take the diagonal of repeated labels."""
        kept = [axis for axis, label in enumerate(labels) if x.shape[axis] == extents[label]]
        named = _Labelled(reshape(x, tuple(x.shape[axis] for axis in kept)), tuple(labels[axis] for axis in kept))
        for label in dict.fromkeys(labels):
            while named.labels.count(label) > 1:
                named = named.diagonal(label)
        return named

    def diagonal(self, label: str) -> _Labelled:
        """Take the diagonal of the first two axes called ``label``; it becomes the last axis."""
        first = self.labels.index(label)
        second = self.labels.index(label, first + 1)
        extent, shape = self.value.shape[first], self.value.shape
        rest = [axis for axis in range(len(shape)) if axis not in (first, second)]
        pairs = Transpose(perm=(*rest, first, second))(self.value)
        flat = reshape(pairs, (*(shape[axis] for axis in rest), extent * extent))
        value: Value = Slice((0,), (extent * extent,), (len(rest),), (extent + 1,))(flat)
        return _Labelled(value, (*(self.labels[axis] for axis in rest), label))

    def ordered(self, labels: Sequence[str]) -> Value:
        """Axes in the order of ``labels`` (those that are here); all others are summed."""
        dropped = tuple(axis for axis, label in enumerate(self.labels) if label not in labels)
        value = ReduceSum(axes=dropped, keepdims=False)(self.value) if dropped else self.value
        here = [label for label in self.labels if label in labels]
        perm = tuple(here.index(label) for label in labels if label in here)
        result: Value = value if perm == tuple(range(len(perm))) else Transpose(perm=perm)(value)
        return result

    def times(self, other: _Labelled, wanted: set[str]) -> _Labelled:
        """The product, summed over labels that nobody wants any more."""
        shared = [label for label in self.labels if label in other.labels]
        batch = [label for label in shared if label in wanted]
        inner = [label for label in shared if label not in wanted]
        left = [label for label in self.labels if label in wanted and label not in shared]
        right = [label for label in other.labels if label in wanted and label not in shared]
        a, b = self.ordered([*batch, *left, *inner]), other.ordered([*batch, *inner, *right])
        outer, rows, columns = a.shape[: len(batch)], a.shape[len(batch) :][: len(left)], b.shape[b.rank - len(right) :]
        if inner:
            terms = math.prod(b.shape[len(batch) :][: len(inner)])
            a, b = reshape(a, (*outer, math.prod(rows), terms)), reshape(b, (*outer, terms, math.prod(columns)))
            result = reshape(a @ b, (*outer, *rows, *columns))
        else:
            result = reshape(a, (*a.shape, *(1 for _ in right))) * reshape(b, (*outer, *(1 for _ in left), *columns))
        return _Labelled(result, (*batch, *left, *right))
