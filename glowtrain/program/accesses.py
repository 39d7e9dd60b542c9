"""Questions that passes ask about kernels: what defines a buffer, what a kernel costs, who must run before whom."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from glowtrain.loops import Apply, Buffer, Cast, Const, Expr, For, Index, Load, Reduce, Statement, Store, address, statements, walk
from glowtrain.program.program import Instruction, Kernel

CHEAP = frozenset({"add", "sub", "mul", "neg", "abs", "min", "max", "select", "not", "and", "or", "eq", "ne", "lt", "le", "gt", "ge"})


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a row-major layout."""
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True)
class Definition:
    """``buffer[indices] = value`` for every element, and nothing else in the kernel."""

    indices: tuple[Expr, ...]
    value: Expr


def definition(kernel: Kernel) -> Definition | None:
    """The definition of a kernel's only result, if the kernel is one plain store over the whole buffer."""
    match kernel.body:
        case (For(indices=indices, body=(Store() as store,), serial=False),) if covers(store, indices):
            return Definition(store.index, store.value)
    return None


def covers(store: Store, indices: Sequence[Index]) -> bool:
    """Whether a store under these loops writes every element of its buffer exactly once, subscript = index."""
    wanted = [i for i in store.index if not (isinstance(i, Const) and i.value == 0)]
    used = [i for i in indices if i.extent != 1 or i in wanted]
    return set(wanted) == set(used) and len(wanted) == len(set(wanted)) and math.prod(
        i.extent for i in used
    ) == store.buffer.type.size


def box(kernel: Kernel) -> For | None:
    """The kernel's loop, if it is a single parallel one."""
    match kernel.body:
        case (For(serial=False) as loop,):
            return loop
    return None


def is_move(expr: Expr) -> bool:
    """Only rearranges: an element of a buffer, or a constant."""
    return isinstance(expr, (Const, Load))


def has_reduce(expr: Expr) -> bool:
    return any(isinstance(node, Reduce) for node in walk(expr))


def is_cheap(expr: Expr) -> bool:
    """Costs no more than a few cycles per element."""
    nodes = [node for node in walk(expr) if isinstance(node, (Apply, Reduce))]
    return len(nodes) <= 6 and all(isinstance(node, Apply) and node.function in CHEAP for node in nodes)


def contraction_operands(expr: Expr) -> tuple[Reduce, Load, Load] | None:
    """The parts of a sum of products of two loads, if ``expr`` is one."""
    match expr:
        case Reduce(op="add", body=Apply(function="mul", arguments=(a, b))):
            loads = _uncast(a), _uncast(b)
            if isinstance(loads[0], Load) and isinstance(loads[1], Load) and expr.dtype.is_float:
                return expr, loads[0], loads[1]
    return None


def _uncast(expr: Expr) -> Expr:
    return expr.value if isinstance(expr, Cast) and isinstance(expr.value, Load) else expr


def contractions(body: Sequence[Statement]) -> Iterator[tuple[Reduce, Load, Load]]:
    """Every contraction in a body."""
    for statement in statements(body):
        if isinstance(statement, Store):
            for node in walk(statement.value):
                found = contraction_operands(node)
                if found is not None:
                    yield found


def is_linear(load: Load) -> bool:
    """Whether the load's address is affine in loop indices alone, and so are the subscripts that need a bounds check."""
    return address(load.index, load.buffer.strides).is_linear


def conflict(first: Instruction, second: Instruction) -> bool:
    """Whether two instructions must keep their order."""
    writes = set(first.writes)
    return bool(writes & set(second.operands)) or bool(set(first.reads) & set(second.writes))
