"""Matrix products."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from glowtrain.graph import Value
from glowtrain.ops.contraction.products import Einsum, Gemm, MatMul
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import reshape
from glowtrain.torch.aten.table import AtenCall, aten


@aten("linear.default")
def linear(call: AtenCall, x: Value, weight: Value, bias: Value | None = None) -> Any:
    """x W' + b over the last axis: one product of matrices, whatever axes stand before."""
    if weight.rank == 1:
        product = MatMul()(x, weight)
        return product if bias is None else product + bias
    rows = reshape(x, (math.prod(x.shape[:-1]), x.shape[-1]))
    operands = (rows, weight) if bias is None else (rows, weight, bias)
    return reshape(Gemm(transB=True)(*operands), call.shape)


@aten("matmul.default", "mm.default", "bmm.default", "mv.default")
def matmul(call: AtenCall, x: Value, y: Value) -> Any:
    return MatMul()(x, y)


@aten("dot.default", "vdot.default")
def dot(call: AtenCall, x: Value, y: Value) -> Any:
    return ReduceSum(axes=(0,), keepdims=False)(x * y)


@aten("inner.default")
def inner(call: AtenCall, x: Value, y: Value) -> Any:
    """All rows of one with all rows of the other; a scalar multiplies."""
    if not x.rank or not y.rank:
        return x * y
    rows, others = (reshape(each, (math.prod(each.shape[:-1]), each.shape[-1])) for each in (x, y))
    return reshape(Gemm(transB=True)(rows, others), call.shape)


@aten("addmm.default", "addmv.default", "baddbmm.default")
def addmm(call: AtenCall, x: Value, first: Value, second: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    return _sum_of(call, x, MatMul()(first, second), beta, alpha)


@aten("addbmm.default")
def addbmm(call: AtenCall, x: Value, first: Value, second: Value, beta: Any = 1, alpha: Any = 1) -> Any:
    """The products' sum."""
    return _sum_of(call, x, Einsum(equation="bij,bjk->ik")(first, second), beta, alpha)


def _sum_of(call: AtenCall, x: Value, product: Value, beta: Any, alpha: Any) -> Value:
    scaled = product if alpha == 1 else product * call.cast(alpha)
    return scaled if beta == 0 else scaled + (x if beta == 1 else x * call.cast(beta))


@aten("outer.default", "ger.default")
def outer(call: AtenCall, x: Value, y: Value) -> Any:
    return x[:, None] * y[None, :]


@aten("einsum.default")
def einsum(call: AtenCall, equation: str, operands: Sequence[Value], path: Any = None) -> Any:
    return Einsum(equation=equation.replace(" ", ""))(*operands)


@aten("bilinear.default")
def bilinear(call: AtenCall, first: Value, second: Value, weight: Value, bias: Value | None = None) -> Any:
    result = Einsum(equation="...i,oij,...j->...o")(first, weight, second)
    return result if bias is None else result + bias
