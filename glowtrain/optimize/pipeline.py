"""The graph optimizer: passes, again and again until nothing changes.

Those that look at one node at a time, and at its operands, go through the graph together (:class:`Together`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from glowtrain.errors import GlowtrainError, GraphError
from glowtrain.graph import Change, Graph, Node, Value, rewrite, verify
from glowtrain.optimize.cse import MergeEqual
from glowtrain.optimize.fold import Fold
from glowtrain.optimize.scan import DropUnreadStacks, MergeScans
from glowtrain.optimize.simplify import Simplify
from glowtrain.stages import Pass

ROUNDS = 20
"""Times that all passes, or the rules for a node, are applied at most; what still changes then is left as it is."""


class Local(Pass, Protocol):
    """A pass that changes nodes by a rule, operands first."""

    def rule(self) -> Change:
        """The rule for one walk through a graph."""


@dataclass(frozen=True)
class Together:
    """Passes in one walk through the graph: for each node, and for what takes its place, the first of the rules that
    fits, until none does. Further walks look at what is new alone."""

    passes: tuple[Local, ...]

    def run(self, graph: Graph) -> Graph:
        """The changed graph; the same object if no rule fits."""
        rules = _Rules([step.rule() for step in self.passes])
        for _ in range(ROUNDS):
            given, graph = graph, rewrite(graph, rules.change)
            if graph is given:
                break
        return graph


@dataclass
class _Rules:
    """Rules, and the nodes for which they have nothing to say: a node never changes, nor does what leads to it."""

    rules: list[Change]
    settled: set[Node] = field(default_factory=set)

    def change(self, node: Node) -> Sequence[Value] | None:
        """What takes the place of a node's outputs."""
        if node in self.settled:
            return None
        values: Sequence[Value] | None = None
        for _ in range(ROUNDS):
            found = self._first(node)
            if found is None:
                self.settled.add(node)
                break
            values, maker = found, found[0].node
            if maker is None or maker in self.settled or tuple(found) != maker.outputs:
                break
            node = maker
        return values

    def _first(self, node: Node) -> Sequence[Value] | None:
        return next((values for rule in self.rules if (values := rule(node)) is not None), None)


PASSES: tuple[Pass, ...] = (Together((Fold(), Simplify(), MergeEqual())), MergeScans(), DropUnreadStacks())
"""The default passes, in order. All are exact: results keep their bits."""


@dataclass(frozen=True)
class Optimize:
    """All of ``passes``, again and again; with ``check`` the verifier runs after each."""

    passes: tuple[Pass, ...] = PASSES
    check: bool = False

    def run(self, graph: Graph) -> Graph:
        """The changed graph."""
        return optimize(graph, self.passes, check=self.check)


def optimize(graph: Graph, passes: Sequence[Pass] = PASSES, *, check: bool = False) -> Graph:
    """Run ``passes`` until none changes the graph; with ``check``, :func:`verify` after each.

    Raises :class:`GraphError` naming the pass that failed and those that ran before it.
    """
    history: list[str] = []
    settled: dict[int, Graph] = {}
    for _ in range(ROUNDS):
        before = graph
        for number, step in enumerate(passes):
            if settled.get(number) is graph:  # nothing has changed since nothing was left for it
                continue
            with _Running(_name(step), history):
                given, graph = graph, step.run(graph)
                if check:
                    verify(graph)
            if graph is given or isinstance(step, Together):
                settled[number] = graph
        if graph is before:
            break
    return graph


def _name(step: Pass) -> str:
    """What messages call a pass."""
    return " + ".join(map(_name, step.passes)) if isinstance(step, Together) else type(step).__name__


@dataclass
class _Running:
    """Names the pass, and those before it, in errors that leave the block."""

    name: str
    history: list[str] = field(default_factory=list)

    def __enter__(self) -> None:
        """Nothing to set up."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            before = ", ".join(self.history[-10:]) or "none"
            where = f"optimization pass {self.name} failed (before it ran: {before})"
            if isinstance(error, GlowtrainError):
                raise GraphError(f"{where}: {error}") from error
            error.add_note(where)
        self.history.append(self.name)
