"""How the compiler stores the values of a whole graph: which of them, and in which order of axes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from glowtrain.compiler.walk import after, until, walk
from glowtrain.grad.halves import is_costly
from glowtrain.graph import Graph, Value
from glowtrain.loops import Let, statements
from glowtrain.lower.lower import values_by_buffer
from glowtrain.ops.tensor.memory_order import MemoryOrder
from glowtrain.program.program import Program
from glowtrain.stages import Options, Stage

Layout = tuple[int, ...]
"""The axes of a value in the order in which they lie in memory, outermost first."""
FUSED = "packed"
"""The stage after which kernels are what they are."""


@dataclass(frozen=True)
class Storage:
    """``layouts`` of the values that are not row-major. Values that are ``inlined`` are computed by what reads them;
    those that are ``fused`` are made and read within one kernel, and so in no memory."""

    layouts: Mapping[Value, Layout] = field(default_factory=dict)
    inlined: Collection[Value] = frozenset()
    fused: Collection[Value] = frozenset()

    def layout(self, value: Value) -> Layout:
        """The order of a value's axes."""
        return self.layouts.get(value, tuple(range(value.rank)))

    def is_inlined(self, value: Value) -> bool:
        """Whether readers compute a value themselves."""
        return value in self.inlined


def storage(graph: Graph, stages: Sequence[Stage], options: Options) -> Storage:
    """That of a graph for a backend whose walk has these ``stages``, the graph's own behind it. A backend that lowers
    nothing stores every value row-major."""
    names = [stage.name for stage in stages]
    if "layout" not in names or FUSED not in names:
        return Storage()
    values = values_by_buffer(graph)
    programs = {a.stage.name: a.result for a in walk(graph, options, until(FUSED, after("optimized", stages)))}
    laid_out = {buffer.name: buffer.layout for buffer in programs["layout"].buffers}
    stored = {buffer.name for buffer in programs[FUSED].buffers}
    laid_out.update({name: layout for name, layout in _kept_in_loops(programs[FUSED]) if name not in stored})
    known = {value: laid_out[name] for name, value in values.items() if name in laid_out}
    layouts = {v: layout for v, layout in known.items() if layout != tuple(range(v.rank)) and len(layout) == v.rank}
    outside = {v for name, v in values.items() if v.node is not None and name not in stored}
    inlined = frozenset(filter(_is_cheap, outside))
    return Storage(layouts, inlined, outside - inlined - frozenset(graph.roots))


def _kept_in_loops(program: Program) -> Iterator[tuple[str, Layout]]:
    """The values that are no more than names within a kernel, with the layout of what is stored there: in its order
    they are computed."""
    for kernel in program.kernels:
        for statement in statements(kernel.body):
            if isinstance(statement, Let):
                yield statement.ref.name, kernel.writes[0].layout


def _is_cheap(value: Value) -> bool:
    node = value.node
    return node is not None and not node.operator.random and is_costly(node) is False


def permuted(value: Value, order: Layout) -> Value:
    """A value with its axes in this order."""
    if order == tuple(range(value.rank)):
        return value
    result: Value = MemoryOrder(order)(value)
    return result
