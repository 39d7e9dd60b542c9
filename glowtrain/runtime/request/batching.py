"""Batches of a compiled size: rows of requests side by side, the rest filled up, and answers given back row by row.

A batch is filled up with copies of its last row: whatever a model does with examples, it does it to one that it gets
anyway, and no index is out of range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.runtime.request.request import NetworkRequest, Segment
from glowtrain.types import Array


@dataclass(frozen=True)
class Batch:
    """Rows of requests, to run as a batch of ``size``; ``None`` for one request of a network without batches.
    ``again``: whether it is tried for the second time."""

    segments: tuple[Segment, ...]
    size: int | None
    again: bool = False

    @property
    def rows(self) -> int:
        """Rows that somebody asked for."""
        return sum(segment.rows for segment in self.segments)

    @property
    def requests(self) -> list[NetworkRequest]:
        return [segment.request for segment in self.segments]

    @property
    def priority(self) -> int:
        return max(segment.request.priority for segment in self.segments)

    def inputs(self) -> Mapping[str, Array]:
        """Arrays of the batch's size; those of the request itself where it is the whole batch."""
        first = self.segments[0]
        if self.size is None or first.rows == self.size == first.request.rows:
            return first.request.inputs
        return {name: _filled(self.segments, name, self.size) for name in first.request.inputs}

    def shares(self, outputs: Mapping[str, Array]) -> list[Mapping[str, Array]]:
        """The rows of each segment."""
        if self.size is None:
            return [outputs]
        found, row = [], 0
        for segment in self.segments:
            found.append(_rows(outputs, row, segment.rows, self.size))
            row += segment.rows
        return found

    def answer(self, shares: Sequence[Mapping[str, Array]]) -> None:
        """Give every request its rows."""
        for segment, share in zip(self.segments, shares, strict=True):
            try:
                segment.request.answer(segment.begin, segment.end, share)
            except Exception as error:  # noqa: BLE001 - the others are to have theirs
                segment.request.fail(error)

    def one_by_one(self, sizes: Sequence[int]) -> list[Batch]:
        """The same rows in a batch for each request, to find out which of them it was that failed."""
        return [Batch((segment,), size_for(segment.rows, sizes), again=True) for segment in self.segments]


def size_for(rows: int, sizes: Sequence[int]) -> int | None:
    """The smallest of the ascending sizes that has room for so many rows; None for a network without batches."""
    return next((size for size in sizes if size >= rows), None)


def _filled(segments: Sequence[Segment], name: str, size: int) -> Array:
    example = segments[0].request.inputs[name]
    batch, row = np.empty((size, *example.shape[1:]), example.dtype), 0
    for segment in segments:
        batch[row : row + segment.rows] = segment.request.inputs[name][segment.begin : segment.end]
        row += segment.rows
    batch[row:] = batch[row - 1]
    return batch


def _rows(outputs: Mapping[str, Array], begin: int, count: int, size: int) -> Mapping[str, Array]:
    """A request's own rows, in memory of their own: the others' must not be kept alive, nor be seen."""
    if count == size:
        return outputs
    return {name: array[begin : begin + count].copy() for name, array in outputs.items()}
