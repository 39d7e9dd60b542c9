"""What ``x[key]`` means for a value: a slice, a reshape and a gather, as NumPy's basic indexing and one array.

Shapes are known while a graph is built, so masks of bools, whose results have another size in each call, are refused.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.errors import GraphError
from glowtrain.types import Shape, TensorType


@dataclass(frozen=True)
class Indexing:
    """``ranges`` are taken of the axes, the rest is reshaped to ``shape``, then ``indices`` are taken of ``axis``."""

    ranges: tuple[range, ...]
    shape: Shape
    axis: int = 0
    indices: Any = None

    @property
    def bounds(self) -> dict[str, tuple[int, ...]]:
        """The ranges as Slice has them: an end before the first element is written as -(extent + 1) or less."""
        return {
            "starts": tuple(taken.start for taken in self.ranges),
            "ends": tuple(taken.stop if taken.stop >= 0 else -(2**31) for taken in self.ranges),
            "axes": tuple(range(len(self.ranges))),
            "steps": tuple(taken.step for taken in self.ranges),
        }


def indexing(type_: TensorType, key: Any) -> Indexing:
    """What a key takes of a tensor. Raises :class:`GraphError` for keys that do not fit or have no fixed size."""
    ranges: list[range] = []
    shape: list[int] = []
    axis, indices = 0, None
    for part in _parts(type_, key):
        if part is None:
            shape.append(1)
            continue
        extent = type_.shape[len(ranges)]
        ranges.append(_range(part, extent, f"{type_} on axis {len(ranges)}"))
        if isinstance(part, slice):
            shape.append(len(ranges[-1]))
        elif not _is_integer(part):
            if indices is not None:
                raise GraphError(f"only one array can index {type_}; use GatherND for several")
            axis, indices = len(shape), _indices(part)
            shape.append(extent)
    return Indexing(tuple(ranges), tuple(shape), axis, indices)


def _parts(type_: TensorType, key: Any) -> Iterator[Any]:
    """The parts of a key with ``...`` written out, and with ``:`` for the axes that it leaves out."""
    parts = list(key) if isinstance(key, tuple) else [key]
    named = sum(part is not None and part is not Ellipsis for part in parts)
    if named > type_.rank or sum(part is Ellipsis for part in parts) > 1:
        raise GraphError(f"{type_} has {type_.rank} axes: it cannot be indexed by {len(parts)} parts")
    if not any(part is Ellipsis for part in parts):
        parts.append(Ellipsis)
    for part in parts:
        if part is Ellipsis:
            yield from [slice(None)] * (type_.rank - named)
        else:
            yield part


def _range(part: Any, extent: int, where: str) -> range:
    if isinstance(part, slice):
        return range(*part.indices(extent))
    if not _is_integer(part):
        return range(extent)
    index = operator.index(part)
    if not -extent <= index < extent:
        raise GraphError(f"index {index} is outside of {where}")
    return range(index % extent, index % extent + 1)


def _is_integer(part: Any) -> bool:
    return isinstance(part, (int, np.integer)) and not isinstance(part, bool)


def _indices(part: Any) -> Any:
    """A value or an array of integers."""
    indices = part if hasattr(part, "dtype") else np.asarray(part)
    kind = getattr(indices.dtype, "kind", "")
    if kind in ("int", "uint"):
        return indices
    if kind not in tuple("iu"):
        raise GraphError(f"a value is indexed by integers, slices, ..., None and one array of integers, not {part!r}")
    return np.asarray(indices, np.int64)
