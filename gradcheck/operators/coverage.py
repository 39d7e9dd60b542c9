"""What a run of checks covered: attribute combinations, types, shapes, operands with gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from glowtrain.graph import Sample, lookup
from glowtrain.presentation.messages import plural
from glowtrain.types import dtype_of

LISTED = 8
"""Attributes that are named when they stayed at their defaults; of more, the number is told."""


@dataclass(frozen=True)
class Covered:
    """What the samples of one operator had: texts of operators with their attributes, types, ranks, empty operands.

    ``gradients``: the operands for which a gradient was found, by position; ``varied``: the attributes that had a value
    other than their default.
    """

    operator: str
    samples: int = 0
    uses: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    empty: int = 0
    gradients: frozenset[int] = frozenset()
    varied: frozenset[str] = frozenset()

    def __or__(self, other: Covered) -> Covered:
        return Covered(
            self.operator,
            self.samples + other.samples,
            self.uses | other.uses,
            self.dtypes | other.dtypes,
            self.ranks | other.ranks,
            self.empty + other.empty,
            self.gradients | other.gradients,
            self.varied | other.varied,
        )

    @property
    def defaults_only(self) -> tuple[str, ...]:
        """The attributes that no sample had at another value than their default."""
        operator = lookup(self.operator)
        if operator is None or not self.samples:
            return ()
        return tuple(field.name for field in fields(operator) if field.name not in self.varied)  # type: ignore[arg-type]


def covered(sample: Sample, gradients: Iterable[int] = (), dtypes: Iterable[str] = ()) -> Covered:
    """What one sample covers; ``dtypes`` are those in which it was also run."""
    arrays = [array for array in sample.inputs if array is not None]
    names = (dtype_of(array.dtype).name for array in arrays)
    return Covered(
        sample.operator.key(),
        1,
        frozenset([str(sample.operator)]),
        frozenset([*names, *dtypes]),
        frozenset(array.ndim for array in arrays),
        int(any(not array.size for array in arrays)),
        frozenset(gradients),
        frozenset(sample.operator.stated()),
    )


def summary(every: Iterable[Covered]) -> str:
    """One line over all operators."""
    found = [entry for entry in every if entry.samples]
    dtypes = sorted({name for entry in found for name in entry.dtypes})
    ranks = sorted({rank for entry in found for rank in entry.ranks})
    least, most = (ranks[0], ranks[-1]) if ranks else (0, 0)
    uses, samples = sum(len(entry.uses) for entry in found), sum(entry.samples for entry in found)
    empty, smooth = sum(entry.empty for entry in found), sum(bool(entry.gradients) for entry in found)
    return (
        f"{plural(len(found), 'operator')}, {smooth} of them with gradients; "
        f"{plural(uses, 'combination')} of attributes, {plural(samples, 'example')} ({empty:,} without elements), "
        f"ranks {least} to {most}, {plural(len(dtypes), 'type')} ({', '.join(dtypes)})"
    )


def untested(every: Iterable[Covered]) -> str:
    """One line on the attributes that no sample had at another value than their default; empty if there are none."""
    names = [f"{entry.operator}.{name}" for entry in every for name in entry.defaults_only]
    if not names:
        return ""
    more = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"at {'its default' if len(names) == 1 else 'their defaults'} only: {', '.join(names[:LISTED])}{more}"
