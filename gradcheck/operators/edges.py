"""Samples at the edges of domains: empty and single axes, rank 5, zeros, units, large, denormal and non-finite values.

Gradients need not exist there; results do, and every form of a graph must give the same. Samples with short axes, but
ordinary numbers, have gradients as others do.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from glowtrain.errors import GlowtrainError
from glowtrain.gradcheck.draw import ChoiceDraw, EdgeDraw
from glowtrain.gradcheck.operators.oracles import applied, drawn
from glowtrain.graph import Operator, Sample
from glowtrain.graph.specialise.index_ranges import index_problems

ATTEMPTS = 20
"""Draws before an operator counts as having no edges."""
CUT_ATTEMPTS = 3
"""Samples of an operator that are tried for axes that can be cut."""
SHORT = 3
"""Of five examples, the one that has short axes."""

_ZEROS = "its steps multiply by zeros (of padding, masks or unused weights), which infinities make NaN elsewhere"
_ORDER = "products and sums are formed in another order, so infinities cancel elsewhere"
_PLACES = "some operands say where to read or what comes first, and must be finite"

FINITE: dict[str, str] = {
    **dict.fromkeys(("ConvTranspose", "glowtrain.ConvInputGradient", "DFT", "STFT", "Resize"), _ZEROS),
    **dict.fromkeys(("Attention", "com.microsoft.Attention", "com.microsoft.MultiHeadAttention"), _ZEROS),
    "com.microsoft.QAttention": _ZEROS,
    **dict.fromkeys(("Det", "Einsum", "GRU", "LSTM", "RNN"), _ORDER),
    **dict.fromkeys(("GridSample", "DeformConv", "MaxRoiPool", "RoiAlign", "glowtrain.NonMaxSuppression"), _PLACES),
}
"""Operators that get no infinities and NaN, each with the reason: theirs are not those of NumPy at every place."""


def drawn_edge(operator: type[Operator], seed: int, example: int) -> Sample | None:
    """A sample at the edges of an operator's domain; every other one has special values.

    Not every use exists without elements (an index needs a place to name): what cannot be drawn, or is refused, is
    drawn again; ``None`` if that does not help.
    """
    key, finite = operator.key(), operator.key() in FINITE
    for attempt in range(ATTEMPTS):
        draw = EdgeDraw(seed, "edge", key, example, attempt, special=example % 2 == 1, finite=finite)
        try:
            sample = operator.sample(draw)
            applied(sample)
        except (GlowtrainError, LookupError, ValueError):
            continue
        return sample
    return None


def drawn_example(operator: type[Operator], seed: int, example: int) -> Sample:
    """An ordinary sample; every fifth has short axes, if the operator takes them.

    In every other one, operands that are absent at the end are not given at all, as by a call that stops before them.
    """
    short = drawn_short(operator, seed, example) if example % 5 == SHORT else None
    sample = drawn(operator, seed, example) if short is None else short
    return _ending_early(sample) if example % 2 else sample


def _ending_early(sample: Sample) -> Sample:
    given = max((number for number, array in enumerate(sample.inputs, 1) if array is not None), default=0)
    return replace(sample, inputs=sample.inputs[:given])


def drawn_short(operator: type[Operator], seed: int, example: int) -> Sample | None:
    """A sample of which one axis, or all of one extent, have no elements or one; ``None`` if the operator takes none.

    Extents that ``sample`` draws as it likes are reached too: an ordinary sample is cut, where ``infer`` allows it.
    """
    for attempt in range(CUT_ATTEMPTS):
        draw = ChoiceDraw(seed, "short", operator.key(), example, attempt)
        sample = operator.sample(draw)
        cuts = list(_cuts(sample))
        draw.random.shuffle(cuts)
        for positions, extent in cuts:
            shorter = _cut(sample, positions, extent)
            if is_use(shorter):
                return shorter
    return None


Axes = tuple[tuple[int, int], ...]
"""Axes of operands: the operand's position, and the axis."""


def _cuts(sample: Sample) -> Iterator[tuple[Axes, int]]:
    """Axes that may be cut together, those of one extent, and each by itself; and what they are cut to."""
    shapes = {number: np.shape(array) for number, array in enumerate(sample.inputs) if array is not None}
    axes = {(number, axis): n for number, shape in shapes.items() for axis, n in enumerate(shape)}
    together = [tuple(axis for axis, n in axes.items() if n == extent) for extent in sorted({*axes.values()})]
    for group in dict.fromkeys([*together, *((axis,) for axis in axes)]):
        yield from ((group, extent) for extent in (0, 1) if axes[group[0]] > extent)


def _cut(sample: Sample, axes: Axes, extent: int) -> Sample:
    arrays = list(sample.inputs)
    for number, axis in axes:
        arrays[number] = np.asarray(arrays[number])[(slice(None),) * axis + (slice(0, extent),)]
    return replace(sample, inputs=tuple(arrays))


def is_use(sample: Sample) -> bool:
    """Whether the operator takes these operands, indices among them, and its results are finite."""
    try:
        function = applied(sample).probe
        arrays = {value.name: array for value, array in zip(function.inputs, function.arrays, strict=True)}
        if index_problems(function.graph, arrays):
            return False
        with np.errstate(all="ignore"):
            results = function.at(function.arrays)
    except (GlowtrainError, LookupError):
        return False
    return all(np.isfinite(result.astype(np.float64)).all() for result in results)
