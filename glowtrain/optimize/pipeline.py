"""The graph optimizer: passes, again and again until nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from types import TracebackType

from glowtrain.deferred import dataclass
from glowtrain.errors import GlowtrainError, GraphError
from glowtrain.graph import Graph, verify
from glowtrain.optimize.cse import MergeEqual
from glowtrain.optimize.fold import Fold
from glowtrain.optimize.scan import DropUnreadStacks, MergeScans
from glowtrain.optimize.simplify import Simplify
from glowtrain.stages import Pass

PASSES: tuple[Pass, ...] = (Fold(), Simplify(), MergeEqual(), MergeScans(), DropUnreadStacks())
"""The default passes, in order. All are exact: results keep their bits."""

ROUNDS = 20
"""Times that all passes run at most; a graph that still changes then is left as it is."""


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
            if settled.get(number) is graph:  # nothing has changed since it found nothing
                continue
            with _Running(type(step).__name__, history):
                given, graph = graph, step.run(graph)
                if check:
                    verify(graph)
            if graph is given:
                settled[number] = graph
        if graph is before:
            break
    return graph


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
