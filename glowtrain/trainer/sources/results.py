"""Collect what a model gives over all batches of a source: means of scalars, and concatenated outputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import InputError
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.graphs import DEFAULT_BATCH
from glowtrain.trainer.predict import Predictor
from glowtrain.trainer.sources.cut import ArraySource
from glowtrain.trainer.sources.source import BatchRow, BatchSource
from glowtrain.types import Array

Outputs = TypeVar("Outputs")
Evaluate = Callable[[Mapping[str, Any]], Mapping[str, Any]]
"""From a batch's arrays to scalars by name."""
Measured = Iterable[tuple[float, Mapping[str, Any]]]
"""What batches count in means, and what was measured of each."""
Mass = Callable[[Mapping[str, Any], int], list[float] | None]
"""What batches one behind the other count in means; None where it is their examples."""


def measured(function: Evaluate, source: BatchSource, mass: Mass) -> Iterator[tuple[float, Mapping[str, Any]]]:
    """A function's results on the batches of a source, and what each counts by its ``mass``. Raises
    :class:`BatchError`."""
    yield from ((counted(row, mass), outputs) for row, outputs in results(source, lambda row, _: function(row.arrays)))


def counted(row: BatchRow, mass: Mass) -> float:
    """What a batch counts in means."""
    (counts,) = mass(row.arrays, 1) or [float(row.size)]
    return counts


def means(measured: Measured) -> dict[str, float]:
    """The means of scalars, by name, over what batches count."""
    sums: dict[str, float] = {}
    together = 0.0
    for counts, outputs in measured:
        together += counts
        for name, value in outputs.items():
            sums[name] = sums.get(name, 0.0) + float(value) * counts
    return {name: value / (together or 1.0) for name, value in sums.items()}


def predict_arrays(
    predictor: Predictor, arrays: Mapping[str, ExampleArray], batch_size: int | None = None
) -> dict[str, Any]:
    """Outputs by name, for arrays of examples, be they in memory or not.

    Raises :class:`InputError` for more examples than a batch, not all in memory, that cannot be divided into batches;
    :class:`BatchError`.
    """
    if not any(isinstance(array, StoredArray) for array in arrays.values()):
        return predictor(arrays, batch_size)  # type: ignore[arg-type]
    size = batch_size or predictor.fixed or DEFAULT_BATCH
    source = ArraySource(arrays, size)
    if source.batches > 1 and (why := predictor.obstacle({name: a[: size + 1] for name, a in arrays.items()}, size)):
        raise InputError(f"{source.examples} examples that are read batch by batch cannot be run so: {why}")
    return predictions(predictor, source)


def predictions(predictor: Predictor, source: BatchSource) -> dict[str, Array]:
    """Outputs by name, those of all batches one behind the other. Raises :class:`BatchError`."""
    parts: dict[str, list[Array]] = {}
    for _, outputs in results(source, lambda row, _: _joinable(predictor, row)):
        for name, array in outputs.items():
            parts.setdefault(name, []).append(array)
    return {name: np.concatenate(arrays) for name, arrays in parts.items()}


def results(source: BatchSource, call: Callable[[BatchRow, int], Outputs]) -> Iterator[tuple[BatchRow, Outputs]]:
    """The batches of a source, and what ``call`` gives for each and its number. Raises :class:`BatchError`."""
    with source.epoch(Position()) as rows:
        done = 0
        while (row := rows.next(done, 1)) is not None:
            with rows.naming(done):
                outputs = call(row, done)
            yield row, outputs
            done += 1


def _joinable(predictor: Predictor, row: BatchRow) -> Mapping[str, Array]:
    """The outputs of a batch, which must be one for each example."""
    outputs = predictor(row.arrays, None if predictor.fixed is not None else row.size)
    for name, value in outputs.items():
        if not isinstance(value, np.ndarray) or value.shape[:1] != (row.size,):
            raise InputError(
                f"output {name!r} is not one for each of {row.size} examples, so those of several batches cannot be "
                "joined: call predict for each batch"
            )
    return outputs
