"""Try whether what a model says about an example depends on its batch: on the examples beside it, on where it is among
them, or on how many there are. Only where it does not may examples be divided into batches, or requests share them.

It is a trial, on random numbers: what shows with others alone is not found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from glowtrain.graph import Graph
from glowtrain.graph.specialise.index_ranges import IndexRange
from glowtrain.types import Array

Arrays = Mapping[str, Array]

LARGE = 16
"""What the numbers of examples are about that may make a difference to one beside them; its own are about 1."""
TOLERANCE = 1e-2
"""What half of an answer's elements may differ by from those of the same example elsewhere, as a part of the largest:
a batch of another size may take sums in another order, and then an integer may be rounded to the next."""


def batch_dependence(graphs: Mapping[int, Graph], run: Callable[[int, Arrays], Arrays]) -> str | None:
    """What an example's outputs depend on, in words; None where nothing shows.

    ``graphs``: a model by the size of its batch, which updates nothing and has an output for each example; ``run``
    gives the outputs of one of them. Each runs at least once.
    """
    generator = np.random.default_rng(7)
    example: dict[str, Array] = {}
    answer: dict[str, Array] = {}
    for size, graph in graphs.items():
        inputs = example_inputs(graph, generator)
        example = example or {name: array[0] for name, array in inputs.items()}
        _put(example, inputs, 0, -1)
        outputs = run(size, inputs)
        answer = answer or {name: array[0] for name, array in outputs.items()}
        companies = {}
        for row, scale in ((0, LARGE), (-1, -LARGE)) if size > 1 else ():
            others = example_inputs(graph, generator, scale)
            _put(example, others, row)
            companies[row] = run(size, others)
        for name, array in outputs.items():
            if what := _dependence(array, answer[name], {row: found[name] for row, found in companies.items()}):
                return f"output {name!r} of an example depends on {what}"
    return None


def example_inputs(graph: Graph, generator: np.random.Generator, scale: int = 0) -> dict[str, Array]:
    """Inputs that a graph takes, indices in range among them. Other numbers are small, or all about ``scale``."""
    allowed = {use.input.name: use.allowed for use in graph.index_uses if use.rearranged}
    moved = {use.input.name for use in graph.index_uses if not use.rearranged}
    found = {}
    for value in graph.inputs:
        numbers = np.zeros(value.shape) if value.name in moved else None
        if numbers is None:
            numbers = _numbers(value.shape, value.dtype.numpy, allowed.get(value.name), generator, scale)
        found[value.name] = np.asarray(numbers, value.dtype.numpy, order="C")
    return found


def _numbers(
    shape: tuple[int, ...], dtype: np.dtype, allowed: IndexRange | None, generator: np.random.Generator, scale: int
) -> Array:
    if allowed is not None:
        low, high = np.max(allowed.low), np.min(allowed.high)
        return generator.integers(int(low), int(high) + 1, shape)
    if dtype.kind in "iu" and scale:
        return generator.integers(1, 2 * LARGE, shape)
    if dtype.kind in "iub":
        return generator.integers(0, 2, shape)
    numbers = generator.normal(size=shape)
    return np.abs(numbers) * scale if scale else numbers


def _put(example: Arrays, inputs: Arrays, *rows: int) -> None:
    """Have an example in some rows of inputs."""
    for name, array in inputs.items():
        for row in rows:
            array[row] = example[name]


def _dependence(array: Array, answer: Array, companies: Mapping[int, Array]) -> str | None:
    """What an output depends on: the example's is in its first and last row, and in those of ``companies`` among
    others. Both ends are tried: one of them could be the largest of all."""
    if any(array[row].tobytes() != others[row].tobytes() for row, others in companies.items()):
        return "the examples beside it"
    if not _close(array[0], array[-1]):
        return "where in its batch it is"
    return None if _close(array[0], answer) else "how many there are in its batch"


def _close(one: Array, other: Array) -> bool:
    """Whether half of the elements are the same but for rounding, of those that are finite."""
    whole = one.dtype.kind in "iub"
    one, other = (np.ravel(each).astype(np.float64) for each in (one, other))
    finite = np.isfinite(one) & np.isfinite(other)
    if not finite.any():
        return True
    one, other = one[finite], other[finite]
    limit = TOLERANCE * max(np.abs(one).max(), np.abs(other).max()) + whole
    return bool(np.median(np.abs(one - other)) <= limit)
