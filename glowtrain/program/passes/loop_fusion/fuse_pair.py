"""Fuse two kernels over the same index box into one loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property

from glowtrain.loops import (
    Accumulate,
    Buffer,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Ref,
    Statement,
    Store,
    address,
    affine,
    always_differ,
    expression,
    flatten,
    loads,
    needs_check,
    rewrite_body,
    unflatten,
)
from glowtrain.program.analysis.kernel_facts import box, contractions, covers, is_direct, is_injective, row_major
from glowtrain.program.program import Instruction, Kernel
from glowtrain.stages import Facts, Refused
from glowtrain.types import Shape

Sums = Callable[[Kernel], tuple[Hashable, ...]]
"""Says in which order each of a kernel's sums is taken."""


@dataclass(frozen=True)
class Limits:
    """How large a fused kernel may become, and where bits have to stay, how its sums are taken; see
    :class:`~glowtrain.stages.Facts`."""

    operands: int = Facts.max_operands
    expressions: int = Facts.max_expressions
    statements: int = Facts.max_statements
    sums: Sums | None = None


LIMITS = Limits()
"""Those of one CPU core."""


class Box:
    """A kernel that is one parallel loop over names and stores, and what fusion asks about it (computed once)."""

    def __init__(self, kernel: Kernel, loop: For) -> None:
        self.kernel, self.loop = kernel, loop

    @staticmethod
    def of(instruction: Instruction) -> Box | None:
        """``None`` for an instruction that is anything else."""
        kernel = instruction.kernel
        loop = box(kernel) if kernel is not None else None
        if kernel is None or loop is None or any(isinstance(inner, (For, Accumulate)) for inner in loop.body):
            return None
        return Box(kernel, loop)

    def over(self, indices: tuple[Index, ...], body: tuple[Statement, ...]) -> Box:
        """A box of the same name with other statements."""
        loop = For(indices, body)
        return Box(Kernel(self.kernel.name, (loop,)), loop)

    @property
    def body(self) -> tuple[Statement, ...]:
        return self.loop.body

    @property
    def indices(self) -> tuple[Index, ...]:
        return self.loop.indices

    @cached_property
    def size(self) -> int:
        """Points of the box."""
        return math.prod(index.extent for index in self.indices)

    @property
    def nodes(self) -> int:
        """Expressions, by the statement."""
        return self.kernel.survey.size

    @property
    def loads(self) -> tuple[Load, ...]:
        return self.kernel.survey.loads

    @property
    def reduces(self) -> bool:
        return bool(self.kernel.survey.reductions)

    @cached_property
    def contracts(self) -> bool:
        """Whether it holds a contraction."""
        return any(True for _ in contractions(self.body))

    @cached_property
    def stores(self) -> dict[Buffer, tuple[Store, ...]]:
        """The stores to each buffer; those to one buffer never meet."""
        found: dict[Buffer, tuple[Store, ...]] = {}
        for statement in self.body:
            if isinstance(statement, Store):
                found[statement.buffer] = (*found.get(statement.buffer, ()), statement)
        return found


OTHER_POINTS = Refused("they run over different numbers of points")


def fuse_pair(a: Box, b: Box, limits: Limits) -> Kernel | Refused:
    """``a`` then ``b`` in one loop, or why their boxes, accesses or costs do not fit."""
    if a.size != b.size:
        return OTHER_POINTS
    if refused := _too_much(a, b, limits):
        return refused
    match = _match(a, b)
    if match is None:
        return Refused("the second does not run through what the first writes, nor through the same large buffer")
    renamed = b.over(a.indices, rewrite_body(b.body, match.get))
    if a.contracts and _scattered(renamed):
        return Refused("the second goes through memory in another order than the sums")
    if not _writes_elsewhere(a, renamed):
        return Refused("they write the same elements")
    if not _same_element(a, renamed):
        return Refused("the second reads other elements than the one just written")
    if not _hazard_free(a, renamed):
        return Refused("the second writes over what the first reads")
    if a.nodes + renamed.nodes > limits.expressions:
        return Refused("together they have too many expressions")
    return Kernel(fused_name(a.kernel.name, b.kernel.name), (For(a.indices, forwarded(a.body, renamed.body)),))


def fuse_epilogue(a: Box, b: Box, limits: Limits) -> Kernel | Refused:
    """``a`` behind the sum that ``b`` begins with, before the rest of ``b``: what is read beside factors is computed
    there."""
    head, rest = b.body[:1], b.body[1:]
    if a.reduces or not b.contracts or not isinstance(head[0], Let) or not _apart_from(a, head):
        return Refused("it is no part of what follows a contraction")
    if len(a.body) + len(b.body) > limits.statements or a.nodes + b.nodes > limits.expressions:
        return Refused("together they have too many statements or expressions")
    if len(a.kernel.touched | b.kernel.touched) > limits.operands:
        return Refused("together they touch too many buffers")
    match = _match(a, b.over(b.indices, rest)) if a.size == b.size else None
    if match is None or not all(isinstance(at, (Index, Const)) for at in match.values()):
        return Refused("the second does not run through what the first writes as the first does")
    whole, behind = (b.over(a.indices, rewrite_body(body, match.get)) for body in (b.body, rest))
    if not (_writes_elsewhere(a, behind) and _same_element(a, behind) and _hazard_free(a, whole)):
        return Refused("they write the same elements, or the second others than it reads")
    name = fused_name(a.kernel.name, b.kernel.name)
    return Kernel(name, (For(a.indices, (*whole.body[:1], *forwarded(a.body, behind.body))),))


def _scattered(epilogue: Box) -> bool:
    """Whether quotients lead from one sum of a row to the next: lanes would be gathered and scattered one by one."""
    row = epilogue.indices[-1]
    accesses: list[Load | Store] = [*epilogue.loads, *(store for each in epilogue.stores.values() for store in each)]
    forms = (address(access.index, access.buffer.strides) for access in accesses if not is_direct(access.index))
    return any(not form.is_linear and form.of_indices and form.step(row) not in (0, 1) for form in forms)


def _apart_from(a: Box, head: Sequence[Statement]) -> bool:
    """Whether a sum has no factors of what the first body writes."""
    return a.kernel.written.isdisjoint(load.buffer for load in loads(head))


def _too_much(a: Box, b: Box, limits: Limits) -> Refused | None:
    """Results stay within bounds, and contractions keep their structure: one at most, and only at the start."""
    if len(a.body) + len(b.body) > limits.statements:
        return Refused("together they have too many statements")
    if len(a.kernel.touched | b.kernel.touched) > limits.operands:
        return Refused("together they touch too many buffers")
    if b.reduces and (b.contracts or a.contracts):
        return Refused("a contraction stands alone at the start of its kernel")
    return None


def fused_name(a: str, b: str) -> str:
    """The name of a kernel made of two."""
    names = dict.fromkeys([*a.split("+"), *b.split("+")])
    return "+".join(list(names)[:6])


def _match(a: Box, b: Box) -> dict[Expr, Expr] | None:
    """What to put for the second loop's indices so that it runs over the first one's box."""
    links = [load for load in b.loads if load.buffer in a.stores]
    whole = ((load, a.stores[load.buffer][0]) for load in links)
    link, store = next((pair for pair in whole if covers(pair[1], a.indices)), (None, None))
    if link is None or store is None:
        return _sibling_match(a, b)
    return None if needs_check(link) else _reindex(store.index, store.buffer.shape, link, b.loop)


def _reindex(at: Sequence[Expr], shape: Shape, load: Load, b: For) -> dict[Expr, Expr] | None:
    """The second box seen from the first, if the load runs through the buffer as the box runs through its points."""
    direct: dict[Expr, Expr] = {i: j for i, j in zip(load.index, at, strict=True) if isinstance(i, Index)}
    if set(direct) == {i for i in b.indices if i.extent > 1} | set(direct) and all(
        isinstance(i, Index) or (isinstance(i, Const) and extent == 1)
        for i, extent in zip(load.index, shape, strict=True)
    ):
        return {**{i: Const(0, i.dtype) for i in b.indices if i.extent == 1}, **direct}
    extents = tuple([index.extent for index in b.indices])
    if address(load.index, row_major(shape)) != address(b.indices, row_major(extents)):
        return None
    subscripts = unflatten(flatten(at, shape), extents)
    return {index: expression(affine(subscript)) for index, subscript in zip(b.indices, subscripts, strict=True)}


def _sibling_match(a: Box, b: Box) -> dict[Expr, Expr] | None:
    """Siblings: equal extents in order, and they read a large buffer in common."""
    if [i.extent for i in a.indices] != [i.extent for i in b.indices]:
        return None
    if a.contracts or a.reduces != b.reduces:
        return None
    common = set(a.kernel.reads) & set(b.kernel.reads)
    if not any(buffer.type.size >= max(a.size, 1) for buffer in common):
        return None
    return dict(zip(b.indices, a.indices, strict=True))


def _writes_elsewhere(a: Box, renamed: Box) -> bool:
    """Whether no two points write the same element, one in each body."""
    common = a.stores.keys() & renamed.stores.keys()
    return all(_all_apart(store, renamed.stores[buffer], a, renamed) for buffer in common for store in a.stores[buffer])


def _same_element(a: Box, renamed: Box) -> bool:
    """Whether the second body reads what the first writes at the very element just written, or what it leaves alone."""
    read = [(load, a.stores[load.buffer]) for load in renamed.loads if load.buffer in a.stores]
    return all(
        (load.fill is None and any(_same(load, store) for store in stores)) or _all_apart(load, stores, a, renamed)
        for load, stores in read
    )


def _hazard_free(a: Box, renamed: Box) -> bool:
    """Whether the second body's writes leave alone what the first reads elsewhere."""
    for load in (*a.loads, *renamed.loads):
        stores = renamed.stores.get(load.buffer)
        if not stores:
            continue
        whole = load.buffer.type.size == a.size
        in_place = any(_same(load, store) and (whole or is_injective(store, a.indices)) for store in stores)
        if not in_place and not _all_apart(load, stores, a, renamed):
            return False
    return True


def _all_apart(access: Load | Store, stores: Sequence[Store], a: Box, b: Box) -> bool:
    """Whether an access meets none of these stores, at whatever points. Sums read buffers that their kernel does not
    write, and a contraction has the one that takes its sums to itself.
    """
    return not a.reduces and not b.reduces and all(_apart(access, store, a.indices) for store in stores)


def _apart(one: Load | Store, other: Store, own: Sequence[Index]) -> bool:
    """Whether two accesses of a buffer are of different elements, each at any point of a box."""
    pairs = zip(one.index, other.index, strict=True)
    return any(always_differ(affine(mine), affine(theirs), frozenset(own)) for mine, theirs in pairs)


def _same(load: Load, store: Store) -> bool:
    """Whether both mean the same element of their buffer."""
    if load.index == store.index:
        return True
    strides = row_major(store.buffer.shape)
    return address(load.index, strides) == address(store.index, strides)


@dataclass
class _Forward:
    """What was stored so far, and the values."""

    stored: dict[Buffer, list[tuple[Store, Expr]]]

    def change(self, expr: Expr) -> Expr | None:
        if not isinstance(expr, Load):
            return None
        return next((value for store, value in reversed(self.stored.get(expr.buffer, [])) if _same(expr, store)), None)


def forwarded(a: Sequence[Statement], b: Sequence[Statement]) -> tuple[Statement, ...]:
    """Both bodies, with loads of what the first stores replaced by the stored scalars."""
    read = {load.buffer for load in loads(b)}
    body: list[Statement] = []
    stored: dict[Buffer, list[tuple[Store, Expr]]] = {}
    for statement in a:
        if isinstance(statement, Store) and statement.buffer in read:
            value = statement.value
            if not isinstance(value, (Ref, Const)):
                ref = Ref(value.dtype, statement.buffer.name)
                body.append(Let(ref, value))
                value = ref
            statement = Store(statement.buffer, statement.index, value)
            stored.setdefault(statement.buffer, []).append((statement, value))
        body.append(statement)
    return (*body, *(rewrite_body(b, _Forward(stored).change) if stored else b))
