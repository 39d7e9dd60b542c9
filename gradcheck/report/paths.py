"""What a survey of gradient paths found: operators, cuts, and what gets a gradient; as tables or as JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from rich.console import Group, RenderableType
from rich.text import Text

from glowtrain.errors import DifferentiationError
from glowtrain.files import write_atomically
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import LISTED, plural
from glowtrain.presentation.tables import COLOURS, Table

Verdict = Literal["verified", "unverified", "cut", "constant"]
"""Of an operator: its gradient is checked by every run over the registry; it has one that is not; it passes none on; it
computes with integers, behind a cut."""
Role = Literal["parameter", "input", "constant"]
"""What may get a gradient. A constant looks like a parameter, but no gradient reaches it, so that it cannot be one."""
Standing = Literal["gradient", "cut", "unreached", "integer"]
"""A gradient arrives; only by ways that are cut; there is no way; none can be, since it is not of a float type."""

VERDICTS = {"verified": "passed", "unverified": "kink", "cut": "failed", "constant": "absent"}
"""How verdicts are coloured."""
LAYERS = 4
"""Layers of an operator that a table names before it counts the rest."""


@dataclass(frozen=True)
class OperatorOnPath:
    """An operator between what is differentiated by and the results: how often, with which verdict, in which layers."""

    operator: str
    uses: int
    gradient: Verdict
    layers: tuple[str, ...]


@dataclass(frozen=True)
class CutOnPath:
    """Nodes of one operator that pass no gradient for one reason.

    ``nodes`` and ``layers`` are their names; ``blocks`` what gets no gradient and has its ways cut by them.
    """

    operator: str
    why: str
    advice: str
    nodes: tuple[str, ...]
    layers: tuple[str, ...]
    blocks: tuple[str, ...]


@dataclass(frozen=True)
class LeafOnPath:
    """A parameter, an input, or a constant that looks like a parameter, and whether a gradient reaches it.

    ``required``: a missing gradient is a failure.
    """

    name: str
    type: str
    role: Role
    standing: Standing
    required: bool
    cut_by: tuple[str, ...] = ()
    advice: str = ""


@dataclass(frozen=True)
class GradientPaths(Displayable):
    """The ways of gradients from ``of`` (outputs, or the loss) back through a model."""

    model: str
    of: tuple[str, ...]
    operators: tuple[OperatorOnPath, ...]
    cuts: tuple[CutOnPath, ...]
    leaves: tuple[LeafOnPath, ...]
    frozen: tuple[str, ...]
    """Variables that are not trained: running statistics and the like."""

    def __repr__(self) -> str:
        return f"<Report: {self.summary()}>"

    @property
    def passed(self) -> bool:
        """Whether a gradient reaches all that it is required for."""
        return not self.missing

    @property
    def missing(self) -> tuple[LeafOnPath, ...]:
        """What gets no gradient though it is required."""
        return tuple(leaf for leaf in self.leaves if leaf.required and leaf.standing != "gradient")

    def of_role(self, role: Role) -> tuple[LeafOnPath, ...]:
        """The parameters, the inputs, or the constants."""
        return tuple(leaf for leaf in self.leaves if leaf.role == role)

    def raise_if_missing(self) -> None:
        """Raise :class:`DifferentiationError` that names what gets no gradient, and why."""
        if self.missing:
            roles = Counter(leaf.role for leaf in self.missing)
            told = " and ".join(plural(count, role) for role, count in roles.items())
            groups = [f"\n  {names}: {why}" for names, why in _together(self.missing)]
            more = f"\n  and {len(groups) - LISTED:,} more" if len(groups) > LISTED else ""
            raise DifferentiationError(f"{self.model}: no gradient reaches {told}:{''.join(groups[:LISTED])}{more}")

    def summary(self) -> str:
        """One line: what gets a gradient, and how many nodes pass it on by a rule that is verified."""
        roles: tuple[Role, ...] = ("parameter", "input", "constant")
        counts = [(role, leaves) for role in roles if (leaves := self.of_role(role))]
        got = ", ".join(f"{_reached(leaves)} of {len(leaves):,} {role}s" for role, leaves in counts) or "nothing"
        verified = sum(entry.uses for entry in self.operators if entry.gradient == "verified")
        nodes = sum(entry.uses for entry in self.operators)
        frozen = f"; {plural(len(self.frozen), 'variable')} not trained" if self.frozen else ""
        return f"gradients reach {got}; {verified:,} of {nodes:,} nodes pass them on by a verified rule{frozen}"

    def to_json(self, path: Path | str | None = None) -> str:
        """The report as JSON text, also written to ``path``, whole or not at all."""
        text = json.dumps({"passed": self.passed, **asdict(self)}, indent=1)
        if path is not None:
            write_atomically(Path(path), f"{text}\n".encode())
        return text

    def table(self) -> Table:
        """A line for each operator on a path, by verdict."""
        rows = [
            (entry.operator, str(entry.uses), (entry.gradient, VERDICTS[entry.gradient]), some(entry.layers, LAYERS))
            for entry in self.operators
        ]
        return Table(("operator", "nodes>", "gradient", "layers"), rows)

    def _contents(self) -> Iterator[str | Table]:
        yield f"{self.model}: ways of the gradient of {some(self.of)}"
        yield self.table()
        yield from (f"no gradient for {names}: {why}" for names, why in _together(self.missing))
        yield self.summary()

    def __rich__(self) -> Group:
        title = f"{self.model}: ways of the gradient of {some(self.of)}"
        unchecked = [entry.operator for entry in self.operators if entry.gradient == "unverified"]
        parts = [*([_unverified(unchecked)] if unchecked else []), *map(_told, self.cuts)]
        lost = [leaf for leaf in self.leaves if leaf.standing in ("unreached", "integer")]
        parts += [Text(f"no gradient for {names}\n  {why}") for names, why in _together(lost)]
        spaced: list[RenderableType] = [line for part in parts for line in ("", part)]
        return Group(Text(title), self.table(), *spaced, "", Text(self.summary()))


def some(names: Collection[str], most: int = LISTED) -> str:
    """Names for people: of many the first few, and how many more there are."""
    shown = ", ".join(list(names)[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most:,} more"


def _reached(leaves: Collection[LeafOnPath]) -> int:
    return sum(leaf.standing == "gradient" for leaf in leaves)


def _why(leaf: LeafOnPath) -> str:
    reasons = {
        "cut": f"cut by {some(leaf.cut_by)}",
        "unreached": "what is differentiated does not depend on it",
        "integer": "not of a float type",
    }
    return "; ".join(filter(None, (reasons[leaf.standing], leaf.advice)))


def _together(leaves: Iterable[LeafOnPath]) -> Iterator[tuple[str, str]]:
    """Names with the reason that they share: ``2 parameters fc1.weight, fc1.bias``, ``cut by Round``."""
    groups: dict[tuple[Role, str], list[str]] = {}
    for leaf in leaves:
        groups.setdefault((leaf.role, _why(leaf)), []).append(leaf.name)
    for (role, why), names in groups.items():
        yield f"{plural(len(names), role)} {some(names)}", why


def _unverified(operators: Collection[str]) -> Text:
    """What to do about rules of other packages."""
    options = " ".join(f"--op {name}" for name in operators)
    return Text(f"unverified: nobody but their authors has checked these rules; glowtrain gradcheck {options} does")


def _told(cut: CutOnPath) -> Text:
    """A cut in a few lines: where, why, what it costs, what to do."""
    where = some(cut.nodes) + (f" (layer {some(cut.layers)})" if cut.layers and cut.layers != cut.nodes else "")
    cost = f"no gradient for {some(cut.blocks)}" if cut.blocks else "nothing: what is behind it has other ways"
    lines = [("why", cut.why), ("costs", cost)] + ([("do", cut.advice)] if cut.blocks else [])
    text = Text.assemble(("cut", COLOURS["failed" if cut.blocks else "absent"]), f" by {cut.operator}: {where}")
    for head, line in lines:
        text.append(f"\n  {head:<6} {line}")
    return text
