"""Calibration methods: which range of what was observed is kept, and what is cut off.

Cutting off rare large numbers makes steps finer for all others. Sources: moving averages, Jacob et al. (2018), section
3.1; percentiles and the search for the least squared error, Wu et al., "Integer Quantization for Deep Learning
Inference" (2020), sections 4.2 and 5; entropy, Migacz, "8-bit Inference with TensorRT" (GTC 2017).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.quantization.calibration.profile import Histogram, Observed
from glowtrain.quantization.placement.scheme import Scheme

Range = tuple[float, float]


@runtime_checkable
class Method(Protocol):
    """A rule from what was observed of a value to the range that is quantized."""

    histograms: bool
    """Whether it needs histograms, and with them a second pass over the data."""

    def range(self, observed: Observed, scheme: Scheme) -> Range: ...


@dataclass(frozen=True)
class MinMax:
    """All that was observed: nothing is cut off."""

    histograms = False

    def range(self, observed: Observed, scheme: Scheme) -> Range:
        return observed.low, observed.high


@dataclass(frozen=True)
class MovingAverage:
    """The averages of the batches' least and greatest elements, recent batches counting more."""

    histograms = False

    def range(self, observed: Observed, scheme: Scheme) -> Range:
        return observed.average_low, observed.average_high


@dataclass(frozen=True)
class Percentile:
    """The range that holds this percentage of the elements; on each side the same share of the rest is cut off.

    Where only one side has elements on its side of 0, all of the rest is cut off there. Raises
    :class:`QuantizationError` for a percentage that is not in (50, 100].
    """

    percentage: float = 99.99

    histograms = True

    def __post_init__(self) -> None:
        if not 50 < self.percentage <= 100:
            raise QuantizationError(f"a percentile is above 50 and at most 100, not {self.percentage}")

    def range(self, observed: Observed, scheme: Scheme) -> Range:
        histogram = observed.required_histogram()
        sides = (observed.low < 0) + (observed.high > 0)
        share = (1 - self.percentage / 100) / max(sides, 1)
        parts = np.concatenate([[0.0], np.cumsum(histogram.counts) / histogram.counts.sum()])
        edges = histogram.edges
        low = float(edges[np.searchsorted(parts, share, "right") - 1]) if observed.low < 0 else observed.low
        high = float(edges[np.searchsorted(parts, 1 - share, "left")]) if observed.high > 0 else observed.high
        return max(low, observed.low), min(high, observed.high)


@dataclass(frozen=True)
class MeanSquare:
    """The range of the least squared error of rounding and cutting off, by the histogram.

    The ends are searched from the whole range inwards, each in ``steps`` steps, one after the other.
    """

    steps: int = 64

    histograms = True

    def range(self, observed: Observed, scheme: Scheme) -> Range:
        histogram = observed.required_histogram()
        return _search(observed, self.steps, lambda low, high: squared_error(histogram, scheme, low, high))


@dataclass(frozen=True)
class Entropy:
    """The range under which the distribution changes least: the least Kullback-Leibler divergence.

    The reference distribution has what is cut off added to its outermost bins; the other one is that of the quantized
    numbers, each step's share spread evenly over the bins that it covers and in which something was observed. It is
    compared bin by bin at the histogram's own resolution, which must be finer than the steps; otherwise every range
    would look perfect and the whole one would win.
    """

    steps: int = 64

    histograms = True

    def range(self, observed: Observed, scheme: Scheme) -> Range:
        histogram = observed.required_histogram()
        return _search(observed, self.steps, lambda low, high: divergence(histogram, scheme, low, high))


METHODS: dict[str, Callable[[], Method]] = {
    "minmax": MinMax,
    "moving-average": MovingAverage,
    "percentile": Percentile,
    "entropy": Entropy,
    "mse": MeanSquare,
}
"""The methods by name, with their usual settings."""

WEIGHT_METHODS = ("minmax", "mse")
"""Those for weights, which are known whole."""


def method_of(method: str | Method) -> Method:
    """A method by name. Raises :class:`QuantizationError` listing the ones there are."""
    if isinstance(method, Method) and not isinstance(method, type):
        return method
    if not isinstance(method, str):
        known = ", ".join(METHODS)
        rule = f"a calibration method is one of {known}, or an object such as MinMax()"
        raise QuantizationError(f"{rule}, not {method!r}")
    if method not in METHODS:
        raise QuantizationError(f"there is no calibration method {method!r}; choose from {', '.join(METHODS)}")
    return METHODS[method]()


def _search(observed: Observed, steps: int, cost: Callable[[float, float], float]) -> Range:
    """The range of the least cost: both ends drawn in together, then each alone."""
    low, high = min(observed.low, 0.0), max(observed.high, 0.0)
    best = (low, high)
    if low == high:
        return best
    least = _cost_of(cost, best)
    for candidates in (_together, _upper, _lower):
        for candidate in candidates(best if candidates is not _together else (low, high), steps):
            found = _cost_of(cost, candidate)
            if found < least:
                best, least = candidate, found
    return best


def _cost_of(cost: Callable[[float, float], float], candidate: Range) -> float:
    """The cost of a range; infinite for one that is too small for a scale."""
    try:
        return cost(*candidate)
    except QuantizationError:
        return float("inf")


def _together(whole: Range, steps: int) -> Iterator[Range]:
    return ((whole[0] * k / steps, whole[1] * k / steps) for k in range(steps - 1, 0, -1))


def _upper(whole: Range, steps: int) -> Iterator[Range]:
    return ((whole[0], whole[1] * k / steps) for k in range(steps - 1, 0, -1)) if whole[1] > 0 else iter(())


def _lower(whole: Range, steps: int) -> Iterator[Range]:
    return ((whole[0] * k / steps, whole[1]) for k in range(steps - 1, 0, -1)) if whole[0] < 0 else iter(())


def squared_error(histogram: Histogram, scheme: Scheme, low: float, high: float) -> float:
    """The mean squared error of quantizing the histogram's elements, taken at the centres of their bins."""
    centres = histogram.centres.astype(np.float32)
    rounded = scheme.parameters(low, high).rounded(centres)
    errors = (rounded.astype(np.float64) - centres) ** 2
    return float(errors @ histogram.counts / histogram.counts.sum())


def divergence(histogram: Histogram, scheme: Scheme, low: float, high: float) -> float:
    """The Kullback-Leibler divergence, in nats, of the quantized distribution from the observed one."""
    centres, counts = histogram.centres, histogram.counts.astype(np.float64)
    zero_bin = int(np.searchsorted(histogram.edges, 0.0, "right")) - 1
    if 0 <= zero_bin < len(counts):
        counts[zero_bin] = 0.0  # zero is exact under every range, and after ReLU there is nothing but zeros
    if not counts.any():
        return 0.0
    steps = scheme.parameters(low, high).quantized(centres.astype(np.float32)).astype(np.int64)
    parameters = scheme.parameters(low, high)
    scale, zero = float(parameters.scale), int(parameters.zero_point.astype(np.int64))
    least, greatest = scheme.limits
    inside = (centres >= (least - zero - 0.5) * scale) & (centres <= (greatest - zero + 0.5) * scale)
    kept = np.flatnonzero(inside)
    if not kept.size:
        return float("inf")
    reference = np.where(inside, counts, 0.0)
    reference[kept[0]] += counts[: kept[0]].sum()
    reference[kept[-1]] += counts[kept[-1] + 1 :].sum()
    labels = steps[kept] - steps[kept].min()
    present = counts[kept] > 0
    mass = np.bincount(labels, weights=counts[kept])
    bins = np.maximum(np.bincount(labels, weights=present.astype(np.float64)), 1)
    spread = np.where(present, (mass / bins)[labels], 0.0)
    p, q = reference[kept] / reference.sum(), spread / max(spread.sum(), 1.0)
    empty = (p > 0) & (q == 0)  # an outermost bin in which nothing but what was cut off lies
    q = np.where(empty, 1.0 / counts.sum(), q)
    there = p > 0
    return float((p[there] * np.log(p[there] / q[there])).sum())
