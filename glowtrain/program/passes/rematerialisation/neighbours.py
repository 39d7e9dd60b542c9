"""Fuse a kernel that recomputes a buffer with the kernel that runs next, so that what only that one reads is not
stored.

Loop fusion ran before there were copies, and would move them to where they were kept from. Here kernels stay where
they are: only neighbours are fused, and only where no more is alive for it than anywhere else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from glowtrain.loops import Buffer, Expr, For, Let, Ref, Statement, Store, rewrite_body
from glowtrain.loops.equal_nodes import EqualNodes
from glowtrain.program.passes.loop_fusion.fuse_pair import Box, Limits, fuse_epilogue, fuse_pair, fused_name
from glowtrain.program.passes.partial_sums import without_stores
from glowtrain.program.passes.rematerialisation.orders import keeps_orders
from glowtrain.program.passes.rematerialisation.recomputation import SUFFIX
from glowtrain.program.passes.schedule import lifetimes, live_bytes
from glowtrain.program.program import Instruction, Kernel


def fuse_neighbours(instructions: Sequence[Instruction], limits: Limits, most: int) -> list[Instruction]:
    """The same with fewer kernels, of which none has more than ``most`` bytes alive that had not before; what nobody
    reads any more is not computed."""
    return _Neighbours(without_unread(instructions, limits), limits, most).run()


def without_unread(instructions: Sequence[Instruction], limits: Limits) -> list[Instruction]:
    """The instructions without stores to activations that nobody reads, because what read them reads copies; where
    sums keep their order without."""
    readers = Counter(buffer for instruction in instructions for buffer in instruction.reads)
    kept: list[Instruction] = []
    for instruction in reversed(instructions):
        less = _without_unread(instruction, readers)
        if less is not None and less is not instruction and not _keeps(limits, [instruction], less):
            less = instruction
        readers.subtract(instruction.reads)
        if less is not None:
            readers.update(less.reads)
            kept.append(less)
    return kept[::-1]


def _without_unread(instruction: Instruction, readers: Counter[Buffer]) -> Instruction | None:
    """An instruction as far as somebody reads what it writes."""
    kernel = instruction.kernel
    own = set(instruction.reads)
    unread = {b for b in instruction.writes if b.kind == "activation" and b not in own and not readers[b]}
    if not unread:
        return instruction
    if unread == instruction.written:
        return None
    return instruction if kernel is None or Box.of(kernel) is None else without_stores(kernel, unread)


def _keeps(limits: Limits, before: Sequence[Instruction], after: Instruction) -> bool:
    kernel = after.kernel
    return kernel is None or keeps_orders(limits.sums, before, [kernel])


def in_one(a: Instruction, b: Instruction, limits: Limits) -> Kernel | None:
    """Both in one loop, if they fit; what the first makes may be read behind a sum with which the second begins."""
    one, two = Box.of(a), Box.of(b)
    if one is None or two is None:
        return None
    ways = (way(one, two, limits) for way in (fuse_pair, fuse_epilogue))
    return next((found for found in ways if isinstance(found, Kernel)), None)


class _Neighbours:
    """Instructions, with holes where two became one; when each buffer is alive, and the bytes that are."""

    def __init__(self, instructions: Sequence[Instruction], limits: Limits, most: int) -> None:
        self.slots: list[Instruction | None] = list(instructions)
        self.limits, self.most = limits, most
        self.lives = lifetimes(instructions)
        self.live = live_bytes(instructions)
        self.readers = Counter(buffer for instruction in instructions for buffer in instruction.reads)

    def run(self) -> list[Instruction]:
        """Everything fused that can be, from the first pair to the last."""
        before: list[int] = []
        for slot in range(len(self.slots)):
            while before and self._fused(before[-1], slot):
                self.slots[before.pop()] = None
            before.append(slot)
        return [instruction for instruction in self.slots if instruction is not None]

    def _fused(self, first: int, second: int) -> bool:
        """Put one kernel in place of a copy and what follows it, if they fit."""
        a, b = self.slots[first], self.slots[second]
        assert a is not None
        assert b is not None
        if not a.name.endswith(SUFFIX):
            return False
        found = in_one(a, b, self.limits)
        if found is None:
            return False
        fused = tidied(self._without_private(found, a, b), _name(a.name, b.name))
        if not _keeps(self.limits, [a, b], fused):
            return False
        alive = self._alive(fused, first, second)
        if alive > max(self.live[first], self.live[second], self.most):
            return False
        self._put(fused, first, second, alive)
        return True

    def _without_private(self, fused: Kernel, a: Instruction, b: Instruction) -> Kernel:
        own = set(fused.reads)
        others = {x: self.readers[x] - (x in a.reads) - (x in b.reads) for x in fused.writes}
        unread = [x for x in fused.writes if x.kind == "activation" and x not in own and not others[x]]
        return without_stores(fused, unread)

    def _alive(self, fused: Kernel, first: int, second: int) -> int:
        """The bytes alive while a fused kernel runs: what lives through the first one, and what it touches itself."""
        touched = [b for b in fused.operands if b in self.lives]
        through = self.live[first] - sum(b.type.nbytes for b in self._held(first))
        others = [b for b in self._held(first) if self.lives[b][1] > second and b not in touched]
        return through + sum(b.type.nbytes for b in (*touched, *others))

    def _held(self, slot: int) -> list[Buffer]:
        """What is alive at a slot and touched there or by the instruction that follows."""
        behind = next((at for at in self.slots[slot + 1 :] if at is not None), None)
        here = self.slots[slot]
        assert here is not None
        found = dict.fromkeys((*here.operands, *(behind.operands if behind is not None else ())))
        return [b for b in found if b in self.lives and self.lives[b][0] <= slot <= self.lives[b][1]]

    def _put(self, fused: Kernel, first: int, second: int, alive: int) -> None:
        a, b = self.slots[first], self.slots[second]
        assert a is not None
        assert b is not None
        self.readers.subtract((*a.reads, *b.reads))
        self.readers.update(fused.reads)
        for buffer in (*a.operands, *b.operands):
            if buffer in self.lives:
                begin, end = self.lives[buffer]
                self.lives[buffer] = max(begin, second) if begin >= first else begin, max(end, second)
        self.slots[second], self.live[second] = fused, alive


def _name(a: str, b: str) -> str:
    """The name of two kernels, of which the first makes something again; so does what is made of two such."""
    both = b.endswith(SUFFIX)
    return fused_name(a.removesuffix(SUFFIX), b.removesuffix(SUFFIX)) + SUFFIX if both else fused_name(a, b)


def tidied(kernel: Kernel, name: str) -> Kernel:
    """A fused kernel in which nothing is computed twice, and all is read before something is written, so that results
    may take the places of operands."""
    (loop,) = kernel.body
    assert isinstance(loop, For)
    body = _shared(loop.body, EqualNodes(kernel.written))
    if kernel.written.isdisjoint(kernel.reads):
        body = [*(s for s in body if not isinstance(s, Store)), *(s for s in body if isinstance(s, Store))]
    return Kernel(name, (For(loop.indices, tuple(body)),))


def _shared(body: Sequence[Statement], equal: EqualNodes) -> list[Statement]:
    """Statements of which no two names have equal values."""
    named: dict[Expr, Ref] = {}
    same: dict[Expr, Expr] = {}
    result: list[Statement] = []
    for statement in body:
        (changed,) = rewrite_body((statement,), lambda expr: same.get(expr) or equal.of(expr))
        if isinstance(changed, Let) and named.setdefault(changed.value, changed.ref) is not changed.ref:
            same[changed.ref] = named[changed.value]
        else:
            result.append(changed)
    return result
