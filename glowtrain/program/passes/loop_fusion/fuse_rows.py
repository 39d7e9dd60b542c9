"""Fuse a kernel that sums rows with one that goes through the same rows after it, in one loop over rows: a row is read
from memory once, and is still in the cache when it is read again.

    for i<n: s[i] = sum(r<m: x[i, r])                          for i<n:
    for i<n, k<m: y[i, k] = x[i, k] - s[i]          =>             let s = sum(r<m: x[i, r])
                                                                   for k<m: y[i, k] = x[i, k] - s
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from glowtrain.loops import (
    Buffer,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Statement,
    Store,
    address,
    loads,
    rewrite_body,
    substitute,
    walk,
)
from glowtrain.program.analysis.kernel_facts import covers, row_major
from glowtrain.program.passes.loop_fusion.fuse_pair import Box, Limits, forwarded, fused_name
from glowtrain.program.program import Instruction, Kernel
from glowtrain.stages import Refused

SHORTEST = 16
"""Elements of a row: with fewer of them, lanes run better along the rows' index."""
LARGEST = 1 << 17
"""Bytes of a row, of all tensors together: half of a small second-level cache."""


@dataclass(frozen=True)
class RowLoop:
    """A kernel that is one loop over rows: ``head`` for each row, and a loop through the row.

    ``outer`` is ``None`` for an elementwise kernel, in which any indices may be those of the rows.
    """

    kernel: Kernel
    outer: tuple[Index, ...] | None
    head: tuple[Statement, ...]
    inner: For

    @staticmethod
    def of(instruction: Instruction) -> RowLoop | None:
        """``None`` for an instruction that is anything else."""
        kernel = instruction.kernel
        if kernel is None:
            return None
        match kernel.body:
            case (For(indices=outer, body=(*head, For(serial=False) as inner), serial=False),):
                return RowLoop(kernel, outer, tuple(head), inner) if _flat(head) and _flat(inner.body) else None
            case (For(serial=False) as loop,) if _flat(loop.body) and not kernel.survey.reductions:
                return RowLoop(kernel, None, (), loop)
        return None


def _flat(body: Sequence[Statement]) -> bool:
    return all(isinstance(statement, (Let, Store)) for statement in body)


def fuse_rows(a: Box, b: RowLoop, limits: Limits) -> Kernel | Refused:
    """``a``, which sums rows, and then ``b`` in one loop over rows, or why they do not fit."""
    if not a.reduces:
        return Refused("the first sums nothing")
    if set(a.stores) & set(b.kernel.writes) or set(a.kernel.reads) & set(b.kernel.writes):
        return Refused("the second writes what the first touches")
    names = _matched(a, b)
    if names is None:
        return Refused("the second does not read one result of the first for each row")
    outer = tuple(index for index in b.inner.indices if index in names.values()) if b.outer is None else b.outer
    inner = For(tuple(index for index in b.inner.indices if index not in outer), b.inner.body)
    if refused := _too_much(a, b, inner, limits):
        return refused
    body = rewrite_body(a.body, names.get)
    if not all(_sweeps(reduction, outer, inner) for reduction in _reductions(body)):
        return Refused("the second goes through other rows than those that are summed")
    head, (row,) = _split(forwarded(body, (*b.head, inner)))
    return Kernel(fused_name(a.kernel.name, b.kernel.name), (For(outer, (*head, row)),))


def _split(body: Sequence[Statement]) -> tuple[tuple[Statement, ...], tuple[Statement, ...]]:
    return tuple(body[:-1]), tuple(body[-1:])


def _matched(a: Box, b: RowLoop) -> dict[Expr, Expr] | None:
    """For each index of the first the one of the second that runs through the same rows."""
    links = [load for load in loads(b.kernel.body) if load.buffer in a.stores]
    names: dict[Expr, Expr] = {index: Const(0, index.dtype) for index in a.indices if index.extent == 1}
    for load in links:
        store, *others = a.stores[load.buffer]
        if others or load.fill is not None or not covers(store, a.indices):
            return None
        pairs = zip(store.index, load.index, load.buffer.shape, strict=True)
        for own, other in ((own, other) for own, other, extent in pairs if extent > 1):
            if not isinstance(own, Index) or not isinstance(other, Index) or own.extent != other.extent:
                return None
            if names.setdefault(own, other) is not other:
                return None
    rows = [index for index in names.values() if isinstance(index, Index)]
    candidates = b.inner.indices if b.outer is None else tuple(index for index in b.outer if index.extent > 1)
    complete = set(names) == set(a.indices) and len(set(rows)) == len(rows) and set(rows) <= set(candidates)
    return names if complete and (b.outer is None or set(rows) == set(candidates)) else None


def _too_much(a: Box, b: RowLoop, inner: For, limits: Limits) -> Refused | None:
    """Why one kernel of both is worth nothing, or too large; ``inner`` is its loop through a row."""
    length = math.prod(index.extent for index in inner.indices)
    large = [buffer for buffer in a.kernel.touched | b.kernel.touched if buffer.type.size >= a.size * length]
    if length < SHORTEST or length * sum(buffer.dtype.size for buffer in large) > LARGEST:
        return Refused("rows are too short, or too long to stay in the cache")
    if len(a.kernel.touched | b.kernel.touched) > limits.operands:
        return Refused("together they touch too many buffers")
    if a.nodes + b.kernel.survey.size > limits.expressions:
        return Refused("together they have too many expressions")
    return None


def _reductions(body: Sequence[Statement]) -> list[Reduce]:
    values = [statement.value for statement in body if isinstance(statement, (Let, Store))]
    return [node for value in values for node in walk(value) if isinstance(node, Reduce)]


def _sweeps(reduction: Reduce, outer: Sequence[Index], inner: For) -> bool:
    """Whether a sum runs through elements side by side that the inner loop goes through, too."""
    summed = [index for index in reduction.indices if index.extent > 1]
    own = [index for index in inner.indices if index.extent > 1]
    if [index.extent for index in summed] != [index.extent for index in own]:
        return False
    if {load.buffer for load in loads(inner.body)}.isdisjoint(
        node.buffer for node in walk(reduction.body) if isinstance(node, Load)
    ):
        return False
    body = substitute(reduction.body, dict(zip(summed, own, strict=True)))
    read = {_element(node) for node in walk(body) if isinstance(node, Load) and _along(node, outer, own)}
    return bool(read & {_element(load) for load in loads(inner.body)})


def _along(load: Load, outer: Sequence[Index], row: Sequence[Index]) -> bool:
    """Whether neighbours of a row are neighbours in memory, and each element belongs to one row alone."""
    used = {node for subscript in load.index for node in walk(subscript) if isinstance(node, Index)}
    form = address(load.index, load.buffer.strides)
    return {*row, *(i for i in outer if i.extent > 1)} <= used and any(form.coefficient(index) == 1 for index in row)


def _element(load: Load) -> tuple[Buffer, object]:
    form = address(load.index, row_major(load.buffer.shape))
    return load.buffer, (form.constant, frozenset(form.terms))
