"""Batches of sequences of several lengths, padded to a few declared lengths: a step is compiled once for each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from glowtrain.errors import InputError
from glowtrain.presentation.messages import kind_of, plural


@dataclass(frozen=True)
class PadCollate:
    """A ``collate_fn`` of ``torch.utils.data.DataLoader``: ``PadCollate(lengths=(32, 64, 128), values=(0, -100))``.

    The parts of examples that have axes, sequences ``[T, ...]``, become ``[B, L, ...]``, where L is the least of
    ``lengths`` in which the longest sequence of the batch fits. ``values`` are what padding consists of, in the
    structure of one example (a tuple, a dict, a single value): what is None there is stacked as it is. With ``batch``,
    a batch with fewer examples is filled up to so many by rows of these values, also for what has no axes.

    The model and the loss see the padding: the loss must leave it out, as ``cross_entropy(..., ignore_index=-100)``
    does for labels padded with -100, or ``(losses * mask).sum() / mask.sum()``.

    Raises :class:`InputError` for lengths that are none, for examples of other structures, shapes or values than
    declared, and those that are longer than the last length.
    """

    lengths: Sequence[int]
    values: Any
    _: KW_ONLY
    batch: int | None = None

    def __post_init__(self) -> None:
        numbers = [*self.lengths, *([] if self.batch is None else [self.batch])]
        if not self.lengths or not all(type(number) is int and number > 0 for number in numbers):
            raise InputError(
                f"lengths and batch must be positive whole numbers, not {self.lengths!r} and {self.batch!r}"
            )
        object.__setattr__(self, "lengths", tuple(sorted(self.lengths)))

    def __call__(self, examples: Sequence[Any]) -> Any:
        """A batch of examples."""
        values, structure = pytree.tree_flatten(self.values)
        columns = [[_tensor(part) for part in column] for column in zip(*self._parts(examples, structure), strict=True)]
        padded = [column for column, value in zip(columns, values, strict=True) if value is not None]
        length = self._length(max((len(part) for column in padded for part in column if part.dim()), default=0))
        rows = len(examples) if self.batch is None else self.batch
        if len(examples) > rows:
            raise InputError(f"a batch has {len(examples)} examples, more than batch={rows}")
        stacked = [_stacked(column, value, rows, length) for column, value in zip(columns, values, strict=True)]
        return pytree.tree_unflatten(stacked, structure)

    def _parts(self, examples: Sequence[Any], structure: pytree.TreeSpec) -> list[list[Any]]:
        try:
            return [structure.flatten_up_to(example) for example in examples]
        except ValueError as error:
            raise InputError(f"values={self.values!r} is not in the structure of an example: {error}") from None

    def _length(self, longest: int) -> int:
        for length in self.lengths:
            if length >= longest:
                return length
        raise InputError(
            f"a sequence has {longest} elements, more than the last of lengths={self.lengths}: cut it off, or declare "
            "a greater length"
        )


def _tensor(part: Any) -> torch.Tensor:
    try:
        return torch.as_tensor(part)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"a part of an example is {kind_of(part)}, neither a tensor nor numbers: {error}") from None


def _stacked(column: Sequence[torch.Tensor], value: Any, rows: int, length: int) -> torch.Tensor:
    """One part of all examples, in rows of padding where there are not as many examples."""
    first = column[0]
    if value is None:
        if len(column) < rows:
            raise InputError(
                f"{plural(len(column), 'example')} cannot be filled up to batch={rows}: a part of them has no padding, "
                "None, in values="
            )
        _check_shapes(column, [part.shape for part in column])
        return torch.stack(list(column))
    rest = [part.shape[1:] for part in column]
    _check_shapes(column, rest)
    shape = (rows, length, *rest[0]) if first.dim() else (rows,)
    padded = torch.full(shape, value, dtype=first.dtype)
    if not first.is_floating_point() and torch.full((), value, dtype=first.dtype).item() != value:
        raise InputError(f"{value!r} of values= cannot be an element of {first.dtype}")
    for row, part in zip(padded, column, strict=False):
        row[: len(part)].copy_(part) if part.dim() else row.copy_(part)
    return padded


def _check_shapes(column: Sequence[torch.Tensor], shapes: Sequence[torch.Size]) -> None:
    """Raise :class:`InputError` where examples differ in more than their lengths."""
    met = {(part.dim(), shape, part.dtype) for part, shape in zip(column, shapes, strict=True)}
    if len(met) > 1:
        described = sorted({f"{str(part.dtype).removeprefix('torch.')}{list(part.shape)}" for part in column})
        raise InputError(f"examples of one batch do not fit each other: {', '.join(described)}")
