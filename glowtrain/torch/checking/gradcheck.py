"""The gradient check of a PyTorch module: Glowtrain's gradients, and PyTorch's own."""

from __future__ import annotations

import time
from functools import cached_property
from typing import Any

import numpy as np
import torch

from glowtrain.errors import InputError
from glowtrain.grad.training import LOSS
from glowtrain.gradcheck.models.model import TOLERANCE, LossCheck, is_kink, scale_of, slopes_along
from glowtrain.gradcheck.report.report import Check, GradcheckReport, Measure, Progress, merged
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.torch.checking.backwards import wrong_backward
from glowtrain.torch.checking.eager import Eager
from glowtrain.torch.checking.objective import LossFunction, Objective, ReadObjective, objective, read_objective
from glowtrain.torch.memory import array_of
from glowtrain.torch.module import Examples
from glowtrain.torch.tracing.source_locations import innermost_line
from glowtrain.types import Array

AUTOGRAD, FORWARD = "autograd", "forward"


def gradcheck(
    module: torch.nn.Module,
    inputs: Examples,
    loss_fn: LossFunction | None = None,
    targets: Any = None,
    *,
    seed: int = 0,
    directions: int = 3,
    compiled: bool = True,
    progress: Progress | None = None,
) -> GradcheckReport:
    """Check the gradient of a PyTorch module for each trainable parameter and float input, in the mode it is in.

    ``inputs``: one, a tuple, or by name, as :func:`~glowtrain.torch.from_torch` takes them. With ``loss_fn`` what is
    differentiated is ``loss_fn(module(*inputs), *targets)``, otherwise a weighted mean of all float results. The
    oracles are those of :func:`glowtrain.gradcheck.check`, which tell whether Glowtrain's gradients are right, and
    ``autograd``: PyTorch's own gradients in f64 against them. So a ``torch.autograd.Function`` whose backward is not
    the gradient of its forward is found, and named with its submodule and line. Where the module draws random numbers,
    PyTorch's gradients are compared with differences of PyTorch's loss, each time with the same numbers. Of the loss
    itself, ``forward`` compares the two.

    The module is not changed. ``report.raise_if_failed()`` raises :class:`VerificationError`. Raises
    :class:`InputError` for inputs that do not fit and where there is nothing to check, :class:`ModelError` for what
    cannot be traced and :class:`UnsupportedOperatorError` that names operators with their lines.
    """
    begin = time.perf_counter()
    goal = objective(module, inputs, loss_fn, targets, seed)
    comparison = _Comparison(goal, read_objective(goal), seed)
    checks = comparison.ours.checks(directions, compiled=compiled, progress=progress)
    checks += comparison.checks(directions)
    return GradcheckReport(tuple(checks), seed, directions, time.perf_counter() - begin)


class _Comparison:
    """PyTorch's gradients beside ours."""

    def __init__(self, goal: Objective, found: ReadObjective, seed: int) -> None:
        arrays = {name: array_of(v.detach().contiguous()) for name, v in goal.examples.items() if _is_tensor(v)}
        self.random = found.random
        self.ours = LossCheck(found.graph, arrays, np.random.default_rng(seed), found.locations)
        self.theirs = Eager(goal, seed)
        self.name = type(goal.module).__name__

    def checks(self, directions: int) -> list[Check]:
        """The loss and the gradients. Raises :class:`InputError` for modules that PyTorch cannot compute in f64."""
        try:
            here, gradients = self.theirs.loss(), self.theirs.gradients()
        except (RuntimeError, TypeError, ValueError) as error:
            raise InputError(
                f"PyTorch cannot differentiate {self.name} in f64, in which gradients are checked"
                f"{innermost_line(error)}: {error}. Make new tensors like others (x.new_zeros(n), dtype=x.dtype)"
            ) from error
        if not self.random:
            forward = merged(LOSS, [("", self._forward(here))])
            return forward + [c for name in self.ours.names for c in self._compared(name, gradients[name])]
        if any(isinstance(node.operator, StopGradient) for node in self.ours.wide.nodes):
            told = "random numbers and detach() together: neither Glowtrain nor differences compute the same"
            return [Check(name, AUTOGRAD, "absent", 0, 0.0, 0.0, told) for name in self.ours.names]
        return [c for name in self.ours.names for c in self._differences(name, gradients[name], here, directions)]

    def _forward(self, theirs: float) -> Measure:
        ours = float(self.ours.values[self.ours.loss])
        error = abs(ours - theirs)
        return Measure(FORWARD, error, _ratio(error, theirs), f"PyTorch {theirs:.9g}, Glowtrain {ours:.9g}")

    def _compared(self, name: str, theirs: Array) -> list[Check]:
        """PyTorch's gradient for a leaf against ours; where they differ, differences of the loss say who is right."""
        ours = self.ours.gradient(name)
        apart = np.nan_to_num(np.abs(ours - theirs), nan=np.inf)
        error = float(apart.max())
        ratio = _ratio(error, max(float(np.abs(ours).max()), float(np.abs(theirs).max())))
        if ratio <= 1:
            return merged(name, [("", Measure(AUTOGRAD, error, ratio))])
        position = np.unravel_index(int(apart.argmax()), ours.shape)
        where = f"element {[int(i) for i in position]}" if position else "it"
        unit = np.zeros(ours.shape)
        unit[position] = 1.0
        judged = self.ours.along(name, unit)
        told = f"PyTorch {theirs[position]:.9g}, Glowtrain {ours[position]:.9g}"
        if judged.kind == "kink":
            return merged(name, [(where, Measure(AUTOGRAD, detail=f"{told}; {judged.detail}", kind="kink"))])
        told += f"; {self._judgement}" if judged.ratio <= 1 else f"; {judged.detail}"
        return merged(name, [(where, Measure(AUTOGRAD, error, ratio, told))])

    @cached_property
    def _judgement(self) -> str:
        return f"differences agree with Glowtrain; {self._blamed}"

    def _differences(self, name: str, gradient: Array, here: float, count: int) -> list[Check]:
        """PyTorch's gradient for a leaf against differences of its loss."""
        directions = self.ours.directions(gradient, count)
        return merged(name, [("", self._along(name, gradient, here, each)) for each in directions])

    def _along(self, name: str, gradient: Array, here: float, direction: Array) -> Measure:
        point = self.theirs.leaves[name].numpy()
        direction = direction * scale_of(point)
        expected, natural = float(np.vdot(gradient, direction)), float(np.linalg.norm(gradient * direction))
        slopes = slopes_along(lambda at: self.theirs.loss({name: at}), here, point, direction, expected, natural)
        last = slopes[-1]
        if last.ratio > 1 and is_kink(slopes):
            return Measure(AUTOGRAD, kind="kink", detail=f"slopes {last.left:.6g} and {last.right:.6g} on its sides")
        told = f"PyTorch {expected:.9g}, differences {last.central:.9g}"
        return Measure(AUTOGRAD, last.error, last.ratio, told if last.ratio <= 1 else f"{told}; {self._blamed}")

    @cached_property
    def _blamed(self) -> str:
        return wrong_backward(self.theirs) or "no Function's backward, and no submodule's gradient, is wrong by itself"


def _ratio(error: float, size: float) -> float:
    """An error over its tolerance, of numbers of a size."""
    return error / (TOLERANCE * size + 1e-12)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
