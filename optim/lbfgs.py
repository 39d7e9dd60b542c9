"""L-BFGS: a quasi-Newton method for the loss of all data at once, in NumPy over a compiled gradient.

Source: Nocedal and Wright, Numerical Optimization (2006): the two loops are algorithm 7.4, the scale of the first
matrix (7.20), the line search for the strong Wolfe conditions algorithms 3.5 and 3.6 with cubic interpolation (3.59).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from glowtrain.presentation.messages import plural
from glowtrain.types import Array

DECREASE, CURVATURE = 1e-4, 0.9
"""c₁ and c₂ of the Wolfe conditions."""
TRIALS = 25
"""Evaluations of one line search at most."""
EXPAND = 4.0
"""What a step grows by until it is too long."""
MARGIN = 0.1
"""How near to an end of its bracket an interpolated step may be, as a part of it."""

Function = Callable[[Array], tuple[float, Array]]
"""A function's value and gradient, f64[n]."""


@dataclass(frozen=True)
class Iterate:
    """A point of a function."""

    x: Array
    value: float
    gradient: Array

    @property
    def steepness(self) -> float:
        """The largest element of the gradient."""
        return float(np.abs(self.gradient).max(initial=0.0))


@dataclass
class Minimization:
    """What minimizing has come to. ``losses``: the value at the beginning, and after each iteration; ``gradient``: the
    largest element of the gradient at the end; ``evaluations`` of the function; ``stopped``: why it ended."""

    losses: list[float] = field(default_factory=list)
    gradient: float = math.nan
    evaluations: int = 0
    stopped: str = ""

    @property
    def iterations(self) -> int:
        """Steps that were taken."""
        return max(len(self.losses) - 1, 0)

    def __repr__(self) -> str:
        """``<Minimization: loss 0.6931 -> 0.1203 in 14 iterations; the gradient is small>``"""
        first, last = (f"{self.losses[end]:.6g}" if self.losses else "none" for end in (0, -1))
        return f"<Minimization: loss {first} -> {last} in {plural(self.iterations, 'iteration')}; {self.stopped}>"


class LBFGS:
    """Minimizes a function from a point on; ``point`` is the best so far, at any time.

    ``history``: pairs of steps and changes of the gradient that stand for the matrix of second derivatives. It ends
    where no element of the gradient is above ``tolerance``, after ``iterations``, or where no step along the direction
    makes the function smaller: then what is left is rounding.
    """

    def __init__(self, function: Function, x: Array, *, iterations: int, history: int, tolerance: float) -> None:
        self.function = function
        self.iterations, self.tolerance = iterations, tolerance
        self.pairs: deque[tuple[Array, Array]] = deque(maxlen=history)
        self.result = Minimization()
        self.point = self.at(x)

    def at(self, x: Array) -> Iterate:
        """The function at a point; infinite where it has no number."""
        value, gradient = self.function(x)
        self.result.evaluations += 1
        good = math.isfinite(value) and bool(np.isfinite(gradient).all())
        return Iterate(x, value if good else math.inf, gradient)

    def run(self) -> Minimization:
        """Minimize."""
        result = self.result
        result.losses = [self.point.value]
        while not (stopped := self._stopped()):
            following = self._step(self.direction())
            if following is None and self.pairs:
                self.pairs.clear()  # the steepest descent, before it is given up
                continue
            if following is None:
                stopped = "no step makes the loss smaller"
                break
            self._remember(following)
            result.losses.append(following.value)
        result.stopped, result.gradient = stopped, self.point.steepness
        return result

    def _stopped(self) -> str:
        if not math.isfinite(self.point.value):
            return "the loss is NaN or infinite"
        if self.point.steepness <= self.tolerance:
            return "the gradient is small"
        done = self.result.iterations
        return f"{plural(done, 'iteration')} {'is' if done == 1 else 'are'} done" if done >= self.iterations else ""

    def direction(self) -> Array:
        """Minus the approximate inverse of the second derivatives times the gradient."""
        q, shares = self.point.gradient.copy(), []
        for s, y in reversed(self.pairs):
            shares.append((s @ q) / (y @ s))
            q -= shares[-1] * y
        if self.pairs:
            s, y = self.pairs[-1]
            q *= (s @ y) / (y @ y)
        for (s, y), share in zip(self.pairs, reversed(shares), strict=True):
            q += (share - (y @ q) / (y @ s)) * s
        return -q

    def _remember(self, following: Iterate) -> None:
        s, y = following.x - self.point.x, following.gradient - self.point.gradient
        if s @ y > np.finfo(np.float64).eps * (y @ y):
            self.pairs.append((s, y))
        self.point = following

    def _step(self, direction: Array) -> Iterate | None:
        """A point along a direction that fulfils the Wolfe conditions, or one that is at least lower; None for none."""
        slope = float(self.point.gradient @ direction)
        if not slope < 0:
            return None
        first = 1.0 if self.pairs else min(1.0, 1.0 / float(np.abs(direction).sum()))
        return _LineSearch(self, direction, slope).search(first)


@dataclass(frozen=True)
class _Trial:
    """A step along a line, the point there, and the slope of the function along the line."""

    step: float
    point: Iterate
    slope: float

    @property
    def value(self) -> float:
        return self.point.value


class _LineSearch:
    """The search along one direction from the present point."""

    def __init__(self, method: LBFGS, direction: Array, slope: float) -> None:
        self.method, self.direction = method, direction
        self.start = _Trial(0.0, method.point, slope)
        self.left = TRIALS

    def trial(self, step: float) -> _Trial:
        """The function at a step."""
        self.left -= 1
        point = self.method.at(self.method.point.x + step * self.direction)
        return _Trial(step, point, float(point.gradient @ self.direction))

    def too_long(self, trial: _Trial, low: _Trial) -> bool:
        """Whether a step decreases the function too little, or less than a shorter one."""
        enough = self.start.value + DECREASE * trial.step * self.start.slope
        return not trial.value <= enough or (low.step > 0 and trial.value >= low.value)

    def flat(self, trial: _Trial) -> bool:
        """Whether the slope has become small enough."""
        return abs(trial.slope) <= CURVATURE * abs(self.start.slope)

    def search(self, step: float) -> Iterate | None:
        """Algorithm 3.5: lengthen the step until an acceptable one lies between it and the one before."""
        low = self.start
        while self.left:
            trial = self.trial(step)
            if self.too_long(trial, low):
                return self.zoom(low, trial)
            if self.flat(trial):
                return trial.point
            if trial.slope >= 0:
                return self.zoom(trial, low)
            low, step = trial, EXPAND * step
        return self.lower(low)

    def zoom(self, low: _Trial, high: _Trial) -> Iterate | None:
        """Algorithm 3.6: between a step that decreases the function enough and one behind which it rises."""
        while self.left and abs(high.step - low.step) > np.finfo(np.float64).eps * max(low.step, high.step):
            trial = self.trial(between(low, high))
            if self.too_long(trial, low):
                high = trial
                continue
            if self.flat(trial):
                return trial.point
            if trial.slope * (high.step - low.step) >= 0:
                high = low
            low = trial
        return self.lower(low)

    def lower(self, trial: _Trial) -> Iterate | None:
        """The point of a trial that is lower than the start, though the slope is not small."""
        return trial.point if trial.value < self.start.value else None


def between(low: Any, high: Any) -> float:
    """The step where the cubic through two trials is least, not too near to either; their middle where there is none.

    Equation (3.59).
    """
    width, middle = high.step - low.step, (low.step + high.step) / 2
    if not math.isfinite(high.value):
        return float(middle)
    d1 = low.slope + high.slope - 3 * (low.value - high.value) / (low.step - high.step)
    square = d1 * d1 - low.slope * high.slope
    if not square >= 0:
        return float(middle)
    d2 = math.copysign(math.sqrt(square), width)
    divisor = high.slope - low.slope + 2 * d2
    step = high.step - width * (high.slope + d2 - d1) / divisor if divisor else middle
    edge = MARGIN * abs(width)
    return float(np.clip(step, min(low.step, high.step) + edge, max(low.step, high.step) - edge))
