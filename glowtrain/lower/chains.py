"""Chains of elementwise operators at the end of a graph: what one alone reads, in its own shape, it computes itself.

An optimizer's update is a dozen such operators for each parameter. A nest for each of them would be written only to be
inlined into the next by the passes on programs, always: here the same expressions are found for a fraction of the time.
What other operators than elementwise ones lead from, what several read, what has another shape, and long expressions
are left to those passes, which weigh them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.deferred import dataclass
from glowtrain.graph import Graph, Node, Value
from glowtrain.loops import Expr, Statement, Tensor, pointwise, rewrite
from glowtrain.loops.equal_nodes import EqualNodes
from glowtrain.ops.core.family import Elementwise

LONGEST = 48
"""Expressions in a chain at most, half of what an inlined producer may have: moves are inlined into its subscripts."""

_LOWERING = ("lower", "called", "layouts")
"""What decides how an operator is lowered."""


@dataclass(frozen=True)
class Chained:
    """A result that its only reader computes; ``name`` is what its buffer would be called, ``size`` the number of
    expressions that it has at most."""

    name: str
    operator: Elementwise
    operands: tuple[Tensor | Chained, ...]
    size: int

    def broadcast(self, index: Sequence[Expr]) -> Expr:
        """The element for a point of the reader's index space, which is its own (see :meth:`Tensor.broadcast`)."""
        return self.operator.scalar(*(operand.broadcast(index) for operand in self.operands))


def linked(graph: Graph) -> frozenset[Value]:
    """The results that may be a :class:`Chained`: read once, by an elementwise operator of the same shape from which
    only such operators lead on, to updates."""
    outputs, ends, found = frozenset(graph.outputs.values()), set[Node](), set[Value]()
    for node in reversed(graph.nodes):
        readers = [reader for value in node.outputs for reader in graph.users.get(value, ())]
        if _is_plain(node) and ends.issuperset(readers) and outputs.isdisjoint(node.outputs):
            ends.add(node)
            found.update(_links(node, readers))
    return frozenset(found.difference(graph.updates.values()))


def lower_chain(node: Node, output: Tensor, operands: Sequence[Tensor | Chained]) -> list[Statement]:
    """The nest of an elementwise operator that computes some of its operands; what is equal in them is shared."""
    operator = node.operator
    assert isinstance(operator, Elementwise)
    shared = EqualNodes(frozenset())

    def value(*index: Expr) -> Expr:
        return rewrite(operator.scalar(*(operand.broadcast(index) for operand in operands)), shared.of, shared.memo)

    return pointwise(output, value)


def size_of(operands: Sequence[Tensor | Chained]) -> int:
    """Expressions of an operator on these operands at most."""
    return 1 + sum(x.size if isinstance(x, Chained) else 1 + x.type.rank for x in operands)


def _is_plain(node: Node) -> bool:
    """Whether the family alone says how a node is lowered."""
    cls = type(node.operator)
    return issubclass(cls, Elementwise) and all(getattr(cls, own) is getattr(Elementwise, own) for own in _LOWERING)


def _links(node: Node, readers: Sequence[Node]) -> Iterator[Value]:
    """The result of a node that its only reader can compute. What is narrower than its operands may be a rounded sum,
    which belongs behind the sum; scalars are computed once for all."""
    (result,) = node.outputs
    widths = (value.dtype.size for value in node.inputs if value is not None)
    if len(readers) == 1 and result.rank and max(widths) <= result.dtype.size:
        (reader,) = readers
        if reader.inputs.count(result) == 1 and reader.outputs[0].shape == result.shape:
            yield result
