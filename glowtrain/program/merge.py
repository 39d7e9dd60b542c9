"""Merging of kernels that run over the same index box into one.

A producer and its elementwise readers become one loop in which the intermediate is a scalar: the epilogue of a
contraction, an optimizer's several states, a copy into a variable or an output (which thereby becomes an update in
place). Siblings that read the same data share the pass over it, e.g. the two sums of a batch normalisation's
gradient.
"""

from __future__ import annotations

import math
from collections import Counter
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
    Ref,
    Statement,
    Store,
    address,
    affine,
    expression,
    expressions,
    flatten,
    loads,
    needs_check,
    rewrite_body,
    statements,
    unflatten,
    walk,
)
from glowtrain.program.accesses import box, conflict, contracts, covers, row_major
from glowtrain.program.program import Instruction, Kernel, Repeat

MAX_OPERANDS = 24
"""A merged kernel keeps at most this many buffers: more pointers than registers gain nothing."""
MAX_NODES = 400
"""A merged kernel has at most this many expressions: LLVM's time grows faster than its code."""
MAX_STATEMENTS = 40
"""A merged kernel is at most this long: beyond that nothing is left in registers anyway."""


def merge(instructions: Sequence[Instruction], kept: frozenset[Buffer] = frozenset()) -> tuple[Instruction, ...]:
    """Merge kernels until nothing fits any more. ``kept``: buffers read from outside these instructions."""
    prepared: list[Instruction] = []
    for instruction in instructions:
        if isinstance(instruction, Repeat):
            outside = frozenset(b for other in instructions if other is not instruction for b in other.reads) | kept
            instruction = Repeat(instruction.name, instruction.index, merge(instruction.body, outside))
        prepared.append(instruction)
    return tuple(_Merging(prepared, kept).run())


class _Merging:
    def __init__(self, order: list[Instruction], kept: frozenset[Buffer]) -> None:
        self.order = order
        self.kept = kept
        self.readers = Counter(buffer for instruction in order for buffer in instruction.reads)

    def run(self) -> list[Instruction]:
        position = 0
        while position < len(self.order):
            if not self._absorb(position):
                position += 1
        return self.order

    def _absorb(self, position: int) -> bool:
        """Merge one later kernel into the one at ``position``, if any fits."""
        first = self.order[position]
        if not isinstance(first, Kernel) or box(first) is None:
            return False
        for later in range(position + 1, len(self.order)):
            second = self.order[later]
            if isinstance(second, Kernel) and not first.touched.isdisjoint(second.touched):
                merged = merged_kernel(first, second)
                if merged is not None and self._place(position, later, merged):
                    return True
        return False

    def _place(self, position: int, later: int, merged: Kernel) -> bool:
        """Put ``merged`` in place of both, with what the later one needs moved before it. False if order forbids it."""
        first, second = self.order[position], self.order[later]
        touched, written = set(second.touched), set(second.written)
        before: list[Instruction] = []
        rest: list[Instruction] = []
        for instruction in reversed(self.order[position + 1 : later]):
            if instruction.written.isdisjoint(touched) and instruction.touched.isdisjoint(written):
                rest.append(instruction)
                continue
            if conflict(first, instruction):
                return False
            before.append(instruction)
            touched |= instruction.touched
            written |= instruction.written
        self.readers.subtract([*first.reads, *second.reads])
        merged = self._without_private(merged)
        self.readers.update(merged.reads)
        self.order[position : later + 1] = [*reversed(before), merged, *reversed(rest)]
        return True

    def _without_private(self, kernel: Kernel) -> Kernel:
        """Drop stores to activations that nobody reads."""
        loop = box(kernel)
        assert loop is not None
        stores = [s for s in loop.body if isinstance(s, Store) and not self._private(s.buffer, kernel)]
        if contracts(kernel) and all(s.buffer in kernel.reads for s in stores):
            stores.append(_partial_sums(loop.body, kernel))
        body = tuple(s for s in loop.body if not isinstance(s, Store) or s in stores)
        return Kernel(kernel.name, (For(loop.indices, _used_lets(body)),))

    def _private(self, buffer: Buffer, kernel: Kernel) -> bool:
        """Whether nothing but ``kernel`` itself could want this buffer's contents."""
        read = buffer in kernel.reads or self.readers[buffer] > 0
        return buffer.kind == "activation" and buffer not in self.kept and not read


def _partial_sums(body: Sequence[Statement], kernel: Kernel) -> Store:
    """A store that nothing in the kernel reads: a blocked contraction keeps its partial sums there."""
    return next(s for s in body if isinstance(s, Store) and s.buffer not in kernel.reads)


def _used_lets(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Drop names that nothing uses."""
    used: set[Expr] = set()
    kept: list[Statement] = []
    for statement in reversed(body):
        if isinstance(statement, Let) and statement.ref not in used:
            continue
        kept.append(statement)
        used.update(
            node for s in statements([statement]) for e in expressions(s) for node in walk(e) if isinstance(node, Ref)
        )
    return tuple(reversed(kept))


def merged_kernel(first: Kernel, second: Kernel) -> Kernel | None:
    """``first`` then ``second`` in one loop, or ``None`` where their boxes, accesses or costs do not fit."""
    a, b = box(first), box(second)
    if a is None or b is None or not _flat(b.body) or not _flat(a.body):
        return None
    if len(a.body) + len(b.body) > MAX_STATEMENTS or contracts(second):
        return None
    if len(first.touched | second.touched) > MAX_OPERANDS:
        return None
    if contracts(first) and _reduces(b.body):
        return None
    match = _match(first, second, a, b)
    if match is None:
        return None
    renamed = rewrite_body(b.body, match.get)
    if not _same_element(a, renamed) or not _hazard_free(a, renamed):
        return None
    if _nodes(a.body) + _nodes(renamed) > MAX_NODES:
        return None
    return Kernel(_joined(first.name, second.name), (For(a.indices, _forwarded(a.body, renamed)),))


def _flat(body: Sequence[Statement]) -> bool:
    return all(isinstance(statement, (Let, Store)) for statement in body)


def _reduces(body: Sequence[Statement]) -> bool:
    return any(isinstance(node, Reduce) for s in body for e in expressions(s) for node in walk(e))


def _nodes(body: Sequence[Statement]) -> int:
    return sum(1 for s in body for e in expressions(s) for _ in walk(e))


def _joined(a: str, b: str) -> str:
    names = dict.fromkeys([*a.split("+"), *b.split("+")])
    return "+".join(list(names)[:6])


def _match(first: Kernel, second: Kernel, a: For, b: For) -> dict[Expr, Expr] | None:
    """What to put for the second loop's indices so that it runs over the first one's box."""
    if _size(a) != _size(b):
        return None
    written = {s.buffer: s for s in a.body if isinstance(s, Store)}
    links = [load for load in loads(b.body) if load.buffer in written]
    for load in links:
        store = written[load.buffer]
        if not covers(store, a.indices) or needs_check(load):
            return None
        return _reindex(store.index, store.buffer.shape, load, b)
    return _sibling_match(first, second, a, b)


def _size(loop: For) -> int:
    return math.prod(index.extent for index in loop.indices)


def _reindex(at: Sequence[Expr], shape: Sequence[int], load: Load, b: For) -> dict[Expr, Expr] | None:
    """The second box seen from the first, if the load runs through the buffer as the box runs through its points."""
    direct: dict[Expr, Expr] = {i: j for i, j in zip(load.index, at, strict=True) if isinstance(i, Index)}
    if set(direct) == {i for i in b.indices if i.extent > 1} | set(direct) and all(
        isinstance(i, Index) or (isinstance(i, Const) and extent == 1)
        for i, extent in zip(load.index, shape, strict=True)
    ):
        return {**{i: Const(0, i.dtype) for i in b.indices if i.extent == 1}, **direct}
    extents = [index.extent for index in b.indices]
    if address(load.index, row_major(shape)) != address(b.indices, row_major(extents)):
        return None
    places = unflatten(flatten(at, shape), extents)
    return {index: expression(affine(place)) for index, place in zip(b.indices, places, strict=True)}


def _sibling_match(first: Kernel, second: Kernel, a: For, b: For) -> dict[Expr, Expr] | None:
    """Siblings: equal extents in order, and they read a large buffer in common."""
    if [i.extent for i in a.indices] != [i.extent for i in b.indices]:
        return None
    if contracts(first) or _reduces(a.body) != _reduces(b.body):
        return None
    common = set(first.reads) & set(second.reads)
    if not any(buffer.type.size >= max(_size(a), 1) for buffer in common):
        return None
    return dict(zip(b.indices, a.indices, strict=True))


def _same_element(a: For, renamed: Sequence[Statement]) -> bool:
    """Whether the second body reads what the first writes at the very element just written."""
    written = {s.buffer: s for s in a.body if isinstance(s, Store)}
    return all(
        _at(load.index, load.buffer) == _at(written[load.buffer].index, load.buffer) and load.fill is None
        for load in loads(renamed)
        if load.buffer in written
    )


def _hazard_free(a: For, renamed: Sequence[Statement]) -> bool:
    """Whether the second body's writes leave alone what the first reads elsewhere, and write nothing twice."""
    stores = {s.buffer: s for s in renamed if isinstance(s, Store)}
    if any(isinstance(s, Store) and s.buffer in stores for s in a.body):
        return False
    if not all(covers_flat(s, a) for s in stores.values() if any(load.buffer is s.buffer for load in loads(a.body))):
        return False
    return all(
        _at(load.index, load.buffer) == _at(stores[load.buffer].index, load.buffer)
        for body in (a.body, renamed)
        for load in loads(body)
        if load.buffer in stores
    )


def covers_flat(store: Store, loop: For) -> bool:
    """Whether a store hits distinct elements at distinct points of the loop."""
    return store.buffer.type.size == _size(loop)


def _at(index: Sequence[Expr], buffer: Buffer) -> object:
    return address(index, row_major(buffer.shape))


@dataclass
class _Forward:
    """Values stored so far, by buffer."""

    refs: dict[Buffer, Expr]

    def change(self, expr: Expr) -> Expr | None:
        return self.refs.get(expr.buffer) if isinstance(expr, Load) else None


def _forwarded(a: Sequence[Statement], b: Sequence[Statement]) -> tuple[Statement, ...]:
    """Both bodies, with loads of what the first stores replaced by the stored scalars."""
    read = {load.buffer for load in loads(b)}
    body: list[Statement] = []
    refs: dict[Buffer, Expr] = {}
    for statement in a:
        if isinstance(statement, Store) and statement.buffer in read:
            value = statement.value
            if not isinstance(value, (Ref, Const)):
                ref = Ref(value.dtype, statement.buffer.name)
                body.append(Let(ref, value))
                value = ref
            refs[statement.buffer] = value
            statement = Store(statement.buffer, statement.index, value)
        body.append(statement)
    return (*body, *rewrite_body(b, _Forward(refs).change))
