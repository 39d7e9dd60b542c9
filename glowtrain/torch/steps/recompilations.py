"""Warn once of each cause for which a step is compiled again and again, with what to do about it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from glowtrain.torch.tracing.source_locations import warn_caller

FEW = 3
"""Values of a number or an attribute for which a step is compiled without a word."""
MANY = 8
"""Shapes of batches for which it is."""
SHOWN = 4
"""Extents of an axis that a message lists."""


class RecompilationWarning(UserWarning):
    """A step is compiled again and again, for values that could be tensors or for too many shapes."""


class Recompilations:
    """What one step was compiled for."""

    def __init__(self) -> None:
        self._advised: set[str] = set()
        self.forget()

    def forget(self) -> None:
        """The step is compiled for nothing any more. What was warned of is not warned of again."""
        self._values: defaultdict[str, set[Any]] = defaultdict(set)
        """Those that Python code has read, by label."""
        self._numbers: defaultdict[Hashable, defaultdict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        """Numbers that were arguments, by what else the arguments were, then by the argument."""
        self._shapes: defaultdict[Hashable, dict[Hashable, Sequence[torch.Size]]] = defaultdict(dict)
        """Those of a batch's tensors, by the number of their axes."""

    def read(self, key: Iterable[tuple[str, Any]], changes: Iterable[str]) -> None:
        """Python code reads these values by now, of which some were others before."""
        for label, value in key:
            self._values[label].add(value) if len(self._values[label]) <= FEW else None
        many = [label for label in changes if len(self._values[label]) > FEW]
        if many:
            self._advise(
                "values",
                f"{', '.join(many)} had more than {FEW} values by now, and the step is compiled for each, "
                "as Python code runs only while a step is compiled: make a tensor of it (a buffer, or an argument of "
                "the step that the loss gets, with targets=)",
            )

    def compile(self, batch: Sequence[Any]) -> None:
        """The step is about to be compiled for a batch."""
        leaves = list(named_leaves(batch))
        self._count_numbers(leaves)
        self._count_shapes([(name, leaf) for name, leaf in leaves if isinstance(leaf, torch.Tensor)])

    def drop(self, limit: int) -> None:
        """More shapes were compiled than are kept."""
        self._advise(
            "limit",
            f"steps are compiled for more than {limit} shapes of batches: each one more drops the one that was used "
            "longest ago, which is compiled again when it is met again. Pad batches to a few sizes "
            "(glowtrain.torch.PadCollate), or leave out the last smaller one (DataLoader(drop_last=True))",
        )

    def _count_numbers(self, leaves: Sequence[tuple[str, Any]]) -> None:
        others = tuple(leaf.shape if isinstance(leaf, torch.Tensor) else type(leaf) for _, leaf in leaves)
        met = self._numbers[others]
        for name, leaf in leaves:
            if isinstance(leaf, (int, float)) and not isinstance(leaf, bool) and len(met[name]) < FEW:
                met[name].add(repr(leaf))
                if len(met[name]) == FEW:
                    self._advise(
                        "numbers",
                        f"{name} of the step, a number, had {FEW} values, the last one {leaf!r}, and the step is "
                        "compiled for each: pass torch.tensor(value), which is compiled once",
                    )

    def _count_shapes(self, tensors: Sequence[tuple[str, torch.Tensor]]) -> None:
        names = tuple(name for name, _ in tensors)
        met = self._shapes[names, tuple(tensor.dim() for _, tensor in tensors)]
        shapes = tuple(tensor.shape for _, tensor in tensors)
        if shapes in met or len(met) == MANY:
            return
        met[shapes] = shapes
        if len(met) == MANY:
            axes = list(_varying(names, list(met.values())))
            self._advise(
                "shapes",
                f"the step was compiled for {MANY} shapes of batches by now, each for itself: "
                f"{'; '.join(said for _, said in axes)}. {' '.join(_remedies([axis for axis, _ in axes]))}",
            )

    def _advise(self, cause: str, advice: str) -> None:
        if cause not in self._advised:
            self._advised.add(cause)
            warn_caller(advice, RecompilationWarning)


def named_leaves(batch: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """The tensors and numbers of a batch as people call them: ``argument 1['mask']``."""
    for (first, *rest), leaf in pytree.tree_flatten_with_path(tuple(batch))[0]:
        yield f"argument {first.idx}{pytree.keystr(tuple(rest))}", leaf


def _varying(names: Sequence[str], met: Sequence[Sequence[torch.Size]]) -> Iterator[tuple[int, str]]:
    """Axes that had several extents, and what is said of each."""
    for number, name in enumerate(names):
        for axis in range(len(met[0][number])):
            extents = list(dict.fromkeys(shapes[number][axis] for shapes in met))
            if len(extents) > 1:
                more = ", ..." if len(extents) > SHOWN else ""
                yield axis, f"axis {axis} of {name} had {', '.join(map(str, extents[:SHOWN]))}{more}"


def _remedies(axes: Sequence[int]) -> Iterator[str]:
    if any(axes):
        yield (
            "Pad to a few lengths, DataLoader(collate_fn=glowtrain.torch.PadCollate(lengths=..., values=...)), with a "
            "loss that leaves the padding out (ignore_index=)."
        )
    if 0 in axes:
        yield "Leave out a smaller last batch, DataLoader(drop_last=True), or fill it up, PadCollate(..., batch=...)."
