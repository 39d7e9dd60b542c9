"""Results, gradients and second derivatives of operators against PyTorch's, on samples of the operators' own domains.

    python tests/peers/against_pytorch.py [OPERATOR ...] [--examples 40] [--seed 0]

prints a line for each operator of the registry that has a gradient: what was compared and the worst error, in f64,
relative to the largest element where that is above 1; or why PyTorch has nothing to compare with.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import counterparts_moves
import counterparts_normalizations
import counterparts_pointwise
import counterparts_sampling
import counterparts_sequences
import counterparts_windows
import numpy as np
import torch
from counterparts import COUNTERPARTS, as_tensor
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

import glowtrain.ops
from glowtrain.gradcheck.operators.differences import Probe
from glowtrain.gradcheck.operators.oracles import Applied, applied, described, drawn, operands_with_gradients
from glowtrain.graph import Operator, Sample, lookup, registered
from glowtrain.types import Array

MODULES = (
    counterparts_moves,
    counterparts_normalizations,
    counterparts_pointwise,
    counterparts_sampling,
    counterparts_sequences,
    counterparts_windows,
    glowtrain.ops,
)
"""Imported for what they register."""
BOUND = 1e-10
ORDERS = ("result", "gradient", "second")

OPTIMIZERS = "a step of an optimizer, which PyTorch does not offer as a function of its state; see test_optimizers.py"
WITHOUT: dict[str, str] = {
    "Scan": "PyTorch has no such operator; it runs a subgraph",
    "ai.onnx.preview.FlexAttention": "its functions of scores are subgraphs",
    "MaxRoiPool": "PyTorch's is in torchvision, and rounds regions otherwise",
    "glowtrain.Unique": "torch.unique has no gradient",
    "glowtrain.FakeQuantize": "PyTorch's lets gradients through up to half a step outside of the range",
    "ai.onnx.preview.training.Adagrad": OPTIMIZERS,
    "ai.onnx.preview.training.Adam": OPTIMIZERS,
    "ai.onnx.preview.training.Momentum": OPTIMIZERS,
}
"""Differentiable operators that PyTorch has no counterpart of, and why."""


@dataclass
class Tally:
    """What was compared for one operator. ``drawn``: the operands that have gradients in the examples, ``operands``:
    those whose gradients were compared; ``skipped``: examples that PyTorch cannot express; ``once``: examples whose
    counterpart PyTorch differentiates only once."""

    examples: int = 0
    skipped: int = 0
    once: int = 0
    drawn: set[int] = field(default_factory=set)
    operands: set[int] = field(default_factory=set)
    errors: dict[str, float] = field(default_factory=lambda: dict.fromkeys(ORDERS, 0.0))
    worst: str = ""

    def add(self, order: str, found: Array, expected: Array, sample: Sample) -> None:
        """Take in a pair of arrays."""
        error = distance(found, expected)
        if not error <= self.errors[order]:
            self.errors[order] = error
            if error > BOUND:
                self.worst = f"{order} of {described(sample)}: {error:.1e}"


def distance(found: Array, expected: Array) -> float:
    """The largest difference, relative to the largest element above 1; infinite for other shapes, NaN, other types."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return float("inf")
    if found.dtype.kind != "f":
        return 0.0 if (found == expected).all() else float("inf")
    same = (found == expected) | (np.isnan(found) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        error = np.where(same, 0.0, np.abs(found - expected))
    scale = max(1.0, float(np.max(np.abs(expected), initial=0.0, where=np.isfinite(expected))))
    worst = float(np.max(error, initial=0.0)) / scale
    return worst if np.isfinite(worst) else float("inf")


def check(cls: type[Operator], examples: int, seed: int = 0) -> Tally:
    """An operator against its counterpart on examples."""
    entry, tally = COUNTERPARTS[cls.key()], Tally()
    for example in range(examples):
        whole = drawn(cls, seed, example)
        tally.drawn.update(operands_with_gradients(whole))
        sample = entry.fitted(whole)
        if sample is None:
            tally.skipped += 1
            continue
        tally.examples += 1
        _Comparison(sample, entry.function, tally, np.random.default_rng([seed, example])).run()
    return tally


class _Comparison:
    """One sample: the operator's probe beside PyTorch's graph."""

    def __init__(self, sample: Sample, function: Any, tally: Tally, random: np.random.Generator) -> None:
        self.sample, self.tally, self.random = sample, tally, random
        self.use: Applied = applied(sample)
        self.probe: Probe = self.use.probe
        tensors = [None if array is None else as_tensor(array) for array in sample.inputs]
        self.leaves = [t for t in tensors if t is not None]
        for place in self.probe.wanted:
            self.leaves[place].requires_grad_()
        with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
            warnings.simplefilter("ignore")
            results = function(sample.operator, *tensors)
        self.results = list(results) if isinstance(results, tuple) else [results]

    def run(self) -> None:
        """Results, gradients, gradients of gradients."""
        for tensor, array in zip(self.results, self.probe.at(self.probe.arrays), strict=False):
            if tensor is not None:
                self._add("result", array, tensor)
        sources = [k for k in self.probe.results if k < len(self.results) and self.results[k] is not None]
        first = self._limited(sources).derivative(self.random) if sources else None
        if first is not None:
            self._gradients(first, self._limited(sources))

    def _gradients(self, first: Probe, probe: Probe) -> None:
        count = len(probe.inputs)
        seeds = [as_tensor(array).requires_grad_() for array in first.arrays[count:]]
        leaves = [self.leaves[place] for place in probe.wanted]
        slopes = self._slopes([self.results[k] for k in probe.results], leaves, seeds)
        arrays, flowing = iter(first.at(first.arrays)), []
        for place, slope, rule in zip(probe.wanted, slopes, probe.pulled(first.inputs[count:]), strict=True):
            if rule is not None:
                self.tally.operands.add(self._position(place))
                flowing.append(slope)
            self._add("gradient", np.zeros(slope.shape) if rule is None else next(arrays), slope)
        self._second(first, flowing, [*leaves, *seeds])

    def _limited(self, sources: Sequence[int]) -> Probe:
        """The probe of the results that PyTorch has."""
        probe = self.probe
        return Probe(probe.inputs, probe.arrays, probe.outputs, probe.wanted, tuple(sources))

    @staticmethod
    def _slopes(outputs: list[Tensor], leaves: list[Tensor], seeds: list[Tensor]) -> tuple[Tensor, ...]:
        pairs = [(y, seed) for y, seed in zip(outputs, seeds, strict=True) if y.requires_grad]
        if not pairs:
            return tuple(torch.zeros_like(leaf) for leaf in leaves)
        rest, cotangents = zip(*pairs, strict=True)
        return torch.autograd.grad(rest, leaves, cotangents, create_graph=True, materialize_grads=True)

    def _second(self, first: Probe, slopes: list[Tensor], leaves: list[Tensor]) -> None:
        second = first.derivative(self.random)
        if second is None:
            return
        count = len(first.inputs)
        cotangents = [as_tensor(array) for array in second.arrays[count:]]
        pairs = [(s, c) for s, c in zip(slopes, cotangents, strict=True) if s.requires_grad]
        try:
            known = self._slopes([s for s, _ in pairs], leaves, [c for _, c in pairs])
        except RuntimeError as error:
            if "not implemented" not in str(error):
                raise
            self.tally.once += 1
            return
        pulled = first.pulled(second.inputs[count:])
        arrays = iter(second.at(second.arrays))
        for k, rule in enumerate(pulled):
            self._add("second", np.zeros(known[k].shape) if rule is None else next(arrays), known[k])

    def _position(self, place: int) -> int:
        present = [position for position, array in enumerate(self.sample.inputs) if array is not None]
        return present[place]

    def _add(self, order: str, found: Array, expected: Tensor) -> None:
        self.tally.add(order, np.asarray(found), expected.numpy(force=True), self.sample)


def differentiable() -> list[str]:
    """The keys of all operators with gradients."""
    return [cls.key() for cls in registered(lambda cls: cls.differentiable)]


def operator_of(key: str) -> type[Operator]:
    """The operator of a key."""
    cls = lookup(key)
    assert cls is not None, key
    return cls


def main() -> int:
    """Print the table; 1 if anything is further than the bound."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("operators", nargs="*", help="keys; all by default")
    parser.add_argument("--examples", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    keys, failed, total = chosen.operators or differentiable(), 0, Tally()
    print(f"{'operator':48s} {'examples':8s} {'operands':8s} {'result':>8s} {'gradient':>8s} {'second':>8s}")
    for key in keys:
        if key not in COUNTERPARTS:
            print(f"{key:48s} {WITHOUT.get(key, 'no counterpart')}")
            continue
        tally = check(operator_of(key), chosen.examples, chosen.seed)
        errors = " ".join(f"{tally.errors[order]:8.1e}" for order in ORDERS)
        notes = [f"{tally.skipped} without counterpart"] * bool(tally.skipped)
        notes += [f"{tally.once} without PyTorch's second derivative"] * bool(tally.once)
        wrong = max(tally.errors.values()) > BOUND
        failed, total.examples = failed + wrong, total.examples + tally.examples
        print(
            f"{key:48s} {tally.examples:8d} {len(tally.operands):8d} {errors}  {'; '.join(notes)}".rstrip(), flush=True
        )
        if wrong:
            print(f"    FAIL {tally.worst}", flush=True)
    compared = [key for key in keys if key in COUNTERPARTS]
    print(f"{len(compared)} of {len(keys)} operators, {total.examples} examples, {failed} failed (bound {BOUND:.0e})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
