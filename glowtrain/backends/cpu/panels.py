"""The layout in which kernels read a packed operand that differs between lanes.

Columns lie in *panels* of one vector: for each word along the sum (or each element, without an instruction on words),
those of all lanes. What is missing at the ends of the sum and of the columns is 0. A panel may begin with a vector of
i32: what its sums begin with. (Kept code packs weights when it is loaded, so this imports no compiler.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from glowtrain.types import DTYPES, Array

if TYPE_CHECKING:
    from glowtrain.backends.cpu.contraction.dot import Dot

Parts = tuple[tuple[int, int], ...]
"""(extent, stride in the source) of the loops that a loop consists of, outermost first."""


@dataclass(frozen=True)
class Packing:
    """How an operand is packed; ``sums`` in the order in which they run, the last one in words.

    With a ``step`` the last sum is taken in whole steps of so many elements, of which the last one may begin earlier
    than the one before it ends (see :func:`~glowtrain.backends.cpu.contraction.matrices.block.begins`).
    """

    source: str
    offset: int
    outer: tuple[Parts, ...]
    sums: tuple[Parts, ...]
    columns: Parts
    width: int
    dot: Dot | None
    step: int = 0

    @property
    def group(self) -> int:
        """Elements of a word."""
        return 1 if self.dot is None else self.dot.group

    @property
    def correction(self) -> int:
        """See :attr:`Dot.correction`."""
        return 0 if self.dot is None else self.dot.correction

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.source].size

    @property
    def words(self) -> int:
        """Words of the innermost sum."""
        count = extent(self.sums[-1])
        return -(-count // self.step) * (self.step // self.group) if self.step else -(-count // self.group)

    @property
    def regular(self) -> int:
        """Elements of the innermost sum that come before zeros."""
        count = extent(self.sums[-1])
        return (count - 1) // self.step * self.step if self.step else count

    @property
    def zeros(self) -> int:
        """Zeros behind these: what the last step takes once more."""
        if not self.step:
            return 0
        return max(self.regular - max(extent(self.sums[-1]) - self.step, 0), 0)

    @property
    def header(self) -> int:
        """Elements before a panel's words."""
        return self.width * self.group if self.correction else 0

    @property
    def panel(self) -> int:
        """Elements of a panel."""
        rows = prod(extent(parts) for parts in self.sums[:-1]) * self.words
        return self.header + rows * self.group * self.width

    @property
    def panels(self) -> int:
        """Panels for each place of the outer loops."""
        return -(-extent(self.columns) // self.width)

    @property
    def sum_strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each sum."""
        last, rest = self.width, [extent(parts) for parts in self.sums[1:-1]]
        outer = self.words * self.group * self.width
        return (*(outer * prod(rest[at:]) for at in range(len(self.sums) - 1)), last)

    @property
    def outer_strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each outer loop."""
        extents = [extent(parts) for parts in self.outer]
        return tuple(self.panel * self.panels * prod(extents[at + 1 :]) for at in range(len(extents)))

    @property
    def nbytes(self) -> int:
        return prod(extent(parts) for parts in self.outer) * self.panels * self.panel * self.size

    @classmethod
    def of_floats(cls, facts: Mapping[str, Any]) -> Packing:
        """That of floats, of its fields as lists have them. Raises :class:`KeyError`, :class:`TypeError` and
        :class:`ValueError` for others."""
        if facts["dot"] is not None:
            raise ValueError("words of small integers are packed when code is generated")
        groups = {name: tuple(map(_parts, facts[name])) for name in ("outer", "sums")}
        own = {**facts, **groups, "columns": _parts(facts["columns"])}
        return cls(**own)

    def apply(self, flat: Array) -> Array:
        """The packed operand, as bytes, from the elements of the source in the order of memory."""
        outer, sums = (prod(map(extent, parts)) for parts in (self.outer, self.sums[:-1]))
        last, columns = extent(self.sums[-1]), extent(self.columns)
        elements = self._elements(flat).reshape(outer, sums, last, columns)
        if self.dot is None:
            return self._lanes(elements).reshape(-1).view(np.uint8)
        whole = np.zeros((outer, sums, self.words * self.group, self.panels * self.width), flat.dtype)
        first, again = self.regular, self.zeros
        whole[:, :, :first, :columns] = elements[:, :, :first]
        whole[:, :, first + again : last + again, :columns] = elements[:, :, first:]
        cut = whole.reshape(outer, sums, self.words, self.group, self.panels, self.width)
        words: Array = cut.transpose(0, 4, 1, 2, 5, 3).reshape(outer, self.panels, -1).view(np.uint8)
        if not self.correction:
            return words.reshape(-1)
        start = whole.astype(np.int32).sum((1, 2), dtype=np.int32) * np.int32(self.correction)
        return np.concatenate([start.reshape(outer, self.panels, -1).view(np.uint8), words], axis=2).reshape(-1)

    def _lanes(self, elements: Array) -> Array:
        """Panels of single elements, of a view by outer loops, outer sums, the innermost sum and columns."""
        *rows, columns = elements.shape
        full, rest = divmod(columns, self.width)
        panels = np.empty((rows[0], self.panels, *rows[1:], self.width), elements.dtype)
        whole = elements[..., : columns - rest].reshape(*rows, full, self.width)
        panels[:, :full] = whole.transpose(0, 3, 1, 2, 4)
        if rest:
            panels[:, full, :, :, :rest] = elements[..., columns - rest :]
            panels[:, full, :, :, rest:] = 0
        return panels

    def _elements(self, flat: Array) -> Array:
        """A view of the source with an axis for each part of a loop."""
        moves = [part for parts in (*self.outer, *self.sums, self.columns) for part in parts]
        spans = [stride * (count - 1) for count, stride in moves]
        low, high = (self.offset + sum(far(0, span) for span in spans) for far in (min, max))
        assert 0 <= low <= high < flat.size, "elements outside of the operand"
        counts, steps = [count for count, _ in moves], [stride * flat.itemsize for _, stride in moves]
        return np.lib.stride_tricks.as_strided(flat[self.offset :], counts, steps, writeable=False)


def _parts(lists: Sequence[Sequence[int]]) -> Parts:
    """The parts of a loop, of lists."""
    return tuple((int(count), int(stride)) for count, stride in lists)


def extent(parts: Parts) -> int:
    """The extent of a loop that consists of others."""
    return prod(count for count, _ in parts)
