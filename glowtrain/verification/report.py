"""What a climb of the ladder found."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from glowtrain.errors import VerificationError
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Cell, Table


@dataclass(frozen=True)
class Rung:
    """One form of the graph. ``error``: the largest distance of a result from the reference, over what is allowed."""

    name: str
    seconds: float
    error: float = 0.0
    result: str = ""
    problem: str = ""

    @property
    def ok(self) -> bool:
        return self.error <= 1.0 and not self.problem


@dataclass(frozen=True)
class VerificationReport(Displayable):
    """All rungs, in order; ``place`` is the node or instruction at which the first bad one begins to differ."""

    name: str
    results: int
    rungs: tuple[Rung, ...]
    place: str = ""

    def __repr__(self) -> str:
        bad = self.first_bad
        return f"<Report on {self.name}: {f'rung {bad.name} differs' if bad else 'every rung agrees'}>"

    @property
    def ok(self) -> bool:
        return self.first_bad is None

    @property
    def first_bad(self) -> Rung | None:
        """The first rung that differs."""
        return next((rung for rung in self.rungs if not rung.ok), None)

    def require(self) -> None:
        """Raise :class:`VerificationError` if any rung differs."""
        bad = self.first_bad
        if bad is not None:
            why = (
                bad.problem
                or f"{bad.result} is {bad.error:.3g} times as far from the f64 reference as rounding explains"
            )
            raise VerificationError(
                f"{self.name}: rung {bad.name} differs: {why}" + (f"; first at {self.place}" if self.place else "")
            )

    def _contents(self) -> Iterator[str | Table]:
        yield f"{self.name}: {plural(self.results, 'result')} on every rung"
        yield Table(("rung", "", "error / allowed>", "worst result", "seconds>"), map(_row, self.rungs))
        if self.place:
            yield self.place


def _row(rung: Rung) -> tuple[Cell, ...]:
    verdict = ("ok", "passed") if rung.ok else ("differs", "failed")
    return rung.name, verdict, f"{rung.error:.3g}", _spaced(rung.problem or rung.result), f"{rung.seconds:.2f}"


def _spaced(text: str) -> str:
    """With a space behind each comma, so that a table breaks lists of attributes between words."""
    return re.sub(r",(?=\S)", ", ", text)
