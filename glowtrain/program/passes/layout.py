"""Memory layouts: which axis of each buffer is innermost.

Operators state the layouts they like (a convolution: activations channels-last, weights with output channels last;
then a register tile runs along channels and no im2col is needed, see oneDNN's nhwc and XNNPACK; one with few channels:
rows). Of several wishes for a group the first counts, and before all others those of operators to which layouts matter
(:meth:`~glowtrain.graph.operator.Operator.layouts_matter`). Buffers that a kernel accesses at the same place form a
group and share one layout, so that elementwise neighbours stream. Inputs and outputs are row-major: they belong to the
caller, and so may variables; or these lie as another program has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from glowtrain.loops import Buffer, Expr, Index, Let, Load, Ref, Store, affine, walk
from glowtrain.loops.affine import combine
from glowtrain.program.program import Kernel, Program

Layout = tuple[int, ...]


@dataclass(frozen=True)
class AssignLayouts:
    """The pass: layouts as operators prefer them, or with ``preferred`` False all row-major.

    With ``variables`` False variables stay row-major, and so does what shares a layout with them; those in ``fixed``,
    by name, have the layout that it says.
    """

    preferred: bool = True
    variables: bool = True
    fixed: Mapping[str, Layout] = field(default_factory=dict)

    def run(self, program: Program) -> Program:
        """The program with layouts."""
        return assign_layouts(program, variables=self.variables, fixed=self.fixed) if self.preferred else program


def assign_layouts(program: Program, *, variables: bool = True, fixed: Mapping[str, Layout] | None = None) -> Program:
    """The program with every buffer in the layout that the preferences and the groups give it."""
    decided = {program.variables[name]: layout for name, layout in (fixed or {}).items() if name in program.variables}
    groups = _Groups()
    pinned = frozenset[Buffer]().union(*(instruction.row_major for instruction in program.instructions))
    if not variables:
        pinned |= {buffer for buffer in program.buffers if buffer.kind == "variable"}
    for kernel in program.kernels:
        for a, b in _same_place(kernel):
            groups.join(a, b)
    chosen: dict[Buffer, Layout] = {}
    for buffer, layout in program.preferences:
        if _free(buffer):
            chosen.setdefault(groups.find(buffer), layout)
    new: dict[Buffer, Buffer] = {}
    for buffer in program.buffers:
        shared = chosen.get(groups.find(buffer), buffer.layout)
        if shared != buffer.layout and _free(buffer) and buffer not in pinned and len(shared) == buffer.type.rank:
            new[buffer] = replace(buffer, layout=shared)
    new.update((buffer, replace(buffer, layout=layout)) for buffer, layout in decided.items())
    return program.with_buffers(new) if new else program


def _free(buffer: Buffer) -> bool:
    return buffer.kind not in ("input", "output")


def _same_place(kernel: Kernel) -> Iterable[tuple[Buffer, Buffer]]:
    """Pairs of equally ranked buffers that agree on batch and channel position (elementwise, pooling, padding), or of
    which one is a slice of the other."""
    for store, loads in _stores(kernel):
        if store.buffer.type.rank >= 3 and _free(store.buffer):
            for load in loads:
                if _free(load.buffer) and _aligned(store, load):
                    yield store.buffer, load.buffer


def _stores(kernel: Kernel) -> Iterable[tuple[Store, tuple[Load, ...]]]:
    """The stores, each with the loads that its value takes, those of values with a name too: in the nest that updates
    a variable and its state, all loads are behind names."""
    named = dict[Expr, tuple[Load, ...]]()
    for statement in kernel.flat:
        taken = [named.get(node, ()) for node in statement.nodes if isinstance(node, Ref)]
        loads = tuple(dict.fromkeys(chain(statement.loads, *taken)))
        if isinstance(statement, Let):
            named[statement.ref] = loads
        elif isinstance(statement, Store):
            yield statement, loads


def _aligned(store: Store, load: Load) -> bool:
    a, b = store.buffer.shape, load.buffer.shape
    if len(a) != len(b):
        return False
    if a[:2] != b[:2]:
        return all(map(_shifted, store.index, load.index))
    if a == b and store.index == load.index:
        return True
    same = (x is y for x, y in zip(store.index[:2], load.index[:2], strict=True))
    return all(s or e == 1 for s, e in zip(same, a[:2], strict=True)) and not any(
        _mentions(i, store.index[1]) for i in load.index[2:]
    )


def _shifted(one: Expr, other: Expr) -> bool:
    """Whether two subscripts differ by a constant."""
    return one is other or not combine([(affine(one), 1), (affine(other), -1)]).terms


def _mentions(expr: Expr, index: Expr) -> bool:
    return expr is index if isinstance(expr, Index) else any(node is index for node in walk(expr))


class _Groups:
    """Union-find over buffers."""

    def __init__(self) -> None:
        self._parent: dict[Buffer, Buffer] = {}

    def find(self, buffer: Buffer) -> Buffer:
        while (parent := self._parent.get(buffer, buffer)) is not buffer:
            buffer = parent
        return buffer

    def join(self, a: Buffer, b: Buffer) -> None:
        a, b = self.find(a), self.find(b)
        if a is not b:
            self._parent[b] = a
