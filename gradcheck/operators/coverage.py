"""What a run of checks covered: attribute combinations, types, shapes, operands with gradients."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from glowtrain.graph import Sample
from glowtrain.types import dtype_of
from glowtrain.words import plural


@dataclass(frozen=True)
class Covered:
    """What the samples of one operator had: texts of operators with their attributes, types, ranks, empty operands.

    ``gradients``: the operands for which a gradient was found, by position.
    """

    operator: str
    samples: int = 0
    uses: frozenset[str] = frozenset()
    dtypes: frozenset[str] = frozenset()
    ranks: frozenset[int] = frozenset()
    empty: int = 0
    gradients: frozenset[int] = frozenset()

    def __or__(self, other: Covered) -> Covered:
        return Covered(
            self.operator,
            self.samples + other.samples,
            self.uses | other.uses,
            self.dtypes | other.dtypes,
            self.ranks | other.ranks,
            self.empty + other.empty,
            self.gradients | other.gradients,
        )


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
