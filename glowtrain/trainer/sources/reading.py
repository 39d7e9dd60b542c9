"""Read batches as sources give them: named, checked against the first one, converted to arrays by input name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.trainer.arrays import mismatch
from glowtrain.trainer.feed import NamesByKeys, by_position, ones_for, without
from glowtrain.trainer.signature import BatchSignature
from glowtrain.trainer.sources.source import BatchRow
from glowtrain.trainer.sources.tensors import array_of, is_array
from glowtrain.types import Array, Shape, Spec

Kind = tuple[np.dtype[Any], Shape]
"""Element type and the extents behind the first."""


class BatchReader:
    """Makes rows of one batch each of what a source gives.

    A batch is a dict by name, a tuple or list by place, or an array for a model that takes nothing else.
    ``inputs_only`` leaves targets out, where there are any. With ``copies``, arrays are never over the source's own
    memory, which it may use again.
    """

    def __init__(self, signature: BatchSignature, *, inputs_only: bool = False, copies: bool = False) -> None:
        self.signature = signature
        self.inputs_only = inputs_only
        self.copies = copies
        inputs, targets = signature.names
        self.optional = None if inputs_only else signature.graphs.optional
        targets = tuple(target for target in targets if target != self.optional)
        self.names = inputs if inputs_only else (*inputs, *targets)
        self._by_keys = NamesByKeys(inputs, targets, inputs_only=inputs_only)
        self._specs: dict[str, Spec] = {**signature.graphs.specs, **signature.targets}
        self._first: dict[str, Kind] = {}

    def __call__(self, batch: Any) -> BatchRow:
        """The batch as a row. Raises :class:`InputError` for one that does not fit."""
        values = self._named(batch)
        given = {name: array_of(name, value) for name, value in values.items()}
        for name, array in given.items():
            if is_array(values[name]):
                self._check(name, array)
        arrays = self.signature.arrays(given, self.names) if self.inputs_only else self.signature.checked(given)
        own = {name: self._kept(array, given[name]) for name, array in arrays.items()}
        return BatchRow(own, 1, _examples(own))

    def _named(self, batch: Any) -> dict[str, Any]:
        if self.optional is None:
            return self._required(batch)
        rest, weights = without(batch, self.optional, len(self.names))
        values = self._required(rest)
        return {**values, self.optional: ones_for(values) if weights is None else weights}

    def _required(self, batch: Any) -> dict[str, Any]:
        """The values of what a batch must have."""
        if isinstance(batch, Mapping):
            return self._by_keys(batch)
        if is_array(batch) and len(self.names) == 1:
            return {self.names[0]: batch}
        if self.inputs_only and isinstance(batch, (tuple, list)):
            batch = batch[: len(self.names)]
        return by_position(batch, self.names, "the batch")

    def _check(self, name: str, array: Array) -> None:
        """Raise :class:`InputError` for an array unlike that of the first batch, which must be what the input takes.

        What may differ is the number of examples, and extents to which the input gives a name.
        """
        kind, first, spec = (array.dtype, array.shape[1:]), self._first.get(name), self._specs[name]
        if kind == first:
            return
        if first is None:
            fitting = self.signature.target(name, array) if name in self.signature.targets else array
            if problem := mismatch(name, fitting, spec):
                raise InputError(problem)
            self._first[name] = kind
        elif not _varies(kind, first, spec):
            extents = ",".join(map(str, ("*", *first[1])))
            found = f"{array.dtype}[{','.join(map(str, array.shape))}]"
            raise InputError(f"{name!r} is {found}, where {first[0]}[{extents}] is expected, as in the first batch")

    def _kept(self, array: Array, given: Array) -> Array:
        """The array in memory that nobody else writes, in the order of its elements."""
        if self.copies and np.may_share_memory(array, given):
            return np.array(array, order="C")
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _varies(kind: Kind, first: Kind, spec: Spec) -> bool:
    """Whether two kinds differ only in extents that have names in the input."""
    (dtype, extents), (other, before) = kind, first
    if dtype != other or not len(extents) == len(before) == len(spec.shape) - 1:
        return False
    return all(
        now == then or isinstance(free, str) for now, then, free in zip(extents, before, spec.shape[1:], strict=True)
    )


def _examples(arrays: Mapping[str, Array]) -> int:
    """The examples of a batch: the first extent where all arrays have it in common, else the batch is one example.

    Raises :class:`InputError` for none.
    """
    extents = {array.shape[:1] for array in arrays.values()}
    if extents == {(0,)}:
        raise InputError("the batch has no examples")
    common = next(iter(extents)) if len(extents) == 1 else ()
    return common[0] if common else 1
