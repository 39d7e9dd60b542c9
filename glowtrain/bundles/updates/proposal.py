"""What of a model to train within a budget of memory.

The last layers down to some depth have their biases trained: that needs signs of activations at most. Weights among
them follow, those first whose squared gradients are the largest for the bytes that they take, whole or a part of their
rows, as many as there is room for beside the smallest arena. That is done for several depths, and the choice with the
largest sum of squared gradients is proposed. Every choice is planned, so its bytes are those that compiled code takes.
Lin et al. 2022, On-Device Training Under 256KB Memory (arXiv:2206.15472), choose among the same (biases of the last
layers, weights of some, fractions of these) by accuracies after trial runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from glowtrain.backends.discovery import backend_for
from glowtrain.backends.target import Target
from glowtrain.bundles.arguments import target_of
from glowtrain.bundles.contents import bound_model
from glowtrain.bundles.devices.fitting import most
from glowtrain.bundles.updates.fisher import fisher
from glowtrain.bundles.updates.layers import LayerParameters, layers_of, learning
from glowtrain.bundles.updates.planned import Planner, StepBytes
from glowtrain.data import batches, count_examples
from glowtrain.errors import InputError, MemoryBudgetError
from glowtrain.grad.parts import Bounds
from glowtrain.graph import Graph, Template, Variable
from glowtrain.losses import Loss, LossFunction, as_loss
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.ops.reduce.reduction import accumulator
from glowtrain.optim import Optimizer
from glowtrain.stages import Options
from glowtrain.trainer.feed import Data
from glowtrain.trainer.graphs import fixed_batch
from glowtrain.trainer.selection.patterns import described
from glowtrain.trainer.selection.shorten import patterns_for
from glowtrain.trainer.steps import Steps
from glowtrain.types import Array

BATCHES, BATCH = 8, 32
"""How many batches gradients are taken of, and how many examples one has where the model leaves it open."""
DEPTHS = 6
"""Depths that are tried."""
PARTS = (1, 2, 4, 8)
"""A weight is trained as a whole, or this part of it."""


@dataclass(frozen=True)
class Choice:
    """Something that is trained: patterns of it, the ``share`` of all squared gradients that it has, and the bytes of
    its parameters and of the optimizer's state for it."""

    trainable: tuple[str, ...]
    share: float
    parameters: int
    optimizer: int


@dataclass(frozen=True)
class Depth:
    """The best that was found where the biases of so many of the last layers are trained."""

    layers: int
    trainable: tuple[str, ...]
    share: float
    bytes: StepBytes


@dataclass(frozen=True)
class Proposal:
    """What to train within ``limit`` bytes, as a trainer and ``--trainable`` take it, and what that takes; its parts,
    and what was found at other depths. ``freeze_statistics``: the model has running statistics, which stay as they are.
    """

    limit: int
    trainable: tuple[str, ...]
    share: float
    bytes: StepBytes
    choices: tuple[Choice, ...]
    depths: tuple[Depth, ...]
    freeze_statistics: bool


def propose(
    model: Graph | Template,
    examples: Data,
    budget: float | str,
    *,
    loss: str | Loss | LossFunction = "softmax_cross_entropy",
    optimizer: Optimizer,
    dims: Mapping[str, int] | None = None,
    target: Target | str = "host",
    fixed_point: bool = False,
    seed: int = 0,
) -> Proposal:
    """What to train of a model on such examples, where parameters that are trained, the optimizer's state and the arena
    have ``budget`` bytes; what is not trained is constant, as in a bundle.

    The step is planned for ``target`` and the batch that ``dims`` or the model says. Gradients are taken here, of
    batches drawn by ``seed``; what has none is not proposed. Raises :class:`MemoryBudgetError` where not even the last
    layer's bias can be trained, and :class:`InputError` for a model with nothing to train, gradients that are all 0,
    and a budget that is none.
    """
    limit, attached = parse_bytes(budget, "budget"), as_loss(loss)
    bound = bound_model(model, dims or {})
    layers = layers_of(bound)
    names = [variable.name for layer in layers for variable in (*layer.biases, *layer.weights)]
    if not names:
        raise InputError(f"{model.name} has nothing to train")
    options = Options(facts=backend_for(target_of(target)).facts, fixed_point=fixed_point)
    planner = Planner(bound, attached, optimizer, options, limit)
    scores = _scores(model, examples, attached, optimizer, names, seed)
    learned = learning(layers, scores)
    if not learned:
        raise InputError(f"{model.name}: nothing to train has a gradient other than 0 on these examples")
    return _Search(learned, scores, planner).proposal()


def _scores(
    model: Graph | Template, examples: Data, loss: Loss, optimizer: Optimizer, names: Sequence[str], seed: int
) -> dict[str, Array]:
    """Squared gradients of all parameters, by name."""
    steps = Steps(model, loss, optimizer, trainable=names, seed=seed, freeze_statistics=True)
    arrays = steps.signature.named(examples)
    size = fixed_batch(steps.graphs.specs) or BATCH
    whole = max(1, count_examples(arrays) // size)
    drawn = islice(batches(arrays, size, seed=seed, epoch=0), min(whole, BATCHES * max(1, BATCH // size)))
    return fisher(steps, drawn)


@dataclass(frozen=True)
class _Candidate:
    """A weight, or a part of it, with its squared gradients and what it adds to what is kept from step to step."""

    variable: Variable
    bounds: Bounds | None
    score: float
    nbytes: int

    @property
    def pattern(self) -> str:
        return described({self.variable.name: self.bounds})[0]


class _Search:
    """Choices within the budget, for one depth after another."""

    def __init__(self, layers: Sequence[LayerParameters], scores: Mapping[str, Array], planner: Planner) -> None:
        self.layers, self.scores, self.planner = layers, scores, planner
        self.names = [variable.name for layer in layers for variable in (*layer.biases, *layer.weights)]
        self.others = {variable.name for variable in planner.model.variables if variable.trainable}
        self.total = sum(float(array.sum()) for array in scores.values()) or 1.0

    def proposal(self) -> Proposal:
        deepest = self._deepest()
        tried = sorted({math.ceil(deepest * part / DEPTHS) for part in range(1, DEPTHS + 1)})
        found = [self._at(depth) for depth in tried]
        best = max(found, key=lambda each: (each[0].share, -each[0].bytes.total))
        depth, biases, weights = best
        return Proposal(
            self.planner.limit, depth.trainable, depth.share, depth.bytes,
            tuple(self._choices(biases, weights)), tuple(each for each, _, _ in found),
            any(node.operator.running_inputs for node in self.planner.model.nodes),
        )  # fmt: skip

    def _deepest(self) -> int:
        """The most of the last layers whose biases can be trained."""
        deepest = most(len(self.layers), lambda depth: self._fits(self._biases(depth), []))
        if not deepest:
            least = self.planner.bytes(self._biases(1) or self.names[:1]).total
            raise MemoryBudgetError(
                f"{self.planner.model.name}: {self.planner.limit:,} bytes are too few to train anything: the step that "
                f"trains {(self._biases(1) or self.names[:1])[0]} takes {least:,}"
            )
        return deepest

    def _fits(self, biases: Sequence[str], weights: Sequence[_Candidate]) -> bool:
        trainable = self._trainable(biases, weights)
        return not trainable or self.planner.fits(trainable)

    def _biases(self, depth: int) -> list[str]:
        return [variable.name for layer in self.layers[:depth] for variable in layer.biases]

    def _at(self, depth: int) -> tuple[Depth, list[str], list[_Candidate]]:
        """The best choice of weights beside the biases of some layers."""
        biases, weights = self._biases(depth), list[_Candidate]()
        spare = self.planner.limit - (self.planner.least(biases).total if biases else 0)
        for candidate in self._candidates(depth):
            known = [each.variable for each in weights]
            if candidate.variable not in known and candidate.nbytes <= spare:
                weights.append(candidate)
                spare -= candidate.nbytes
        weights = weights[: most(len(weights), lambda count: self._fits(biases, weights[:count]))]
        trainable = self._trainable(biases, weights)
        share = self._share(biases) + sum(each.score for each in weights) / self.total
        return Depth(depth, tuple(trainable), share, self.planner.bytes(trainable)), biases, weights

    def _candidates(self, depth: int) -> list[_Candidate]:
        """Weights and parts of them, those first that have most squared gradients for their bytes."""
        found = [
            self._candidate(variable, part)
            for layer in self.layers[:depth]
            for variable in layer.weights
            if variable.name in self.scores
            for part in PARTS
            if part <= variable.shape[0]
        ]
        return sorted(found, key=lambda each: -each.score / each.nbytes)

    def _candidate(self, variable: Variable, part: int) -> _Candidate:
        """The neighbouring rows, one ``part`` of all of them, that have the largest squared gradients."""
        slots, squares = self._slots(variable), self.scores[variable.name]
        if part == 1:
            return _Candidate(variable, None, float(squares.sum()), variable.type.nbytes + slots * variable.type.size)
        count = variable.shape[0] // part
        rows = squares.reshape(variable.shape[0], -1).sum(1)
        sums = np.convolve(rows, np.ones(count), "valid")
        begin = int(sums.argmax())
        bounds = (range(begin, begin + count), *(range(extent) for extent in variable.shape[1:]))
        kept = slots * count * (variable.type.size // variable.shape[0])
        return _Candidate(variable, bounds, float(sums[begin]), variable.type.nbytes + kept)

    def _trainable(self, biases: Sequence[str], weights: Sequence[_Candidate]) -> list[str]:
        """Patterns that mean just these."""
        whole = [*biases, *(each.variable.name for each in weights if each.bounds is None)]
        return [
            *patterns_for(whole, self.others - set(whole)),
            *(each.pattern for each in weights if each.bounds is not None),
        ]

    def _share(self, names: Sequence[str]) -> float:
        return sum(float(self.scores[name].sum()) for name in names if name in self.scores) / self.total

    def _choices(self, biases: Sequence[str], weights: Sequence[_Candidate]) -> Iterator[Choice]:
        """The parts of a choice."""
        if biases:
            known = {variable.name: variable for layer in self.layers for variable in layer.biases}
            chosen = [known[name] for name in biases]
            size = sum(variable.type.nbytes for variable in chosen)
            kept = sum(self._slots(variable) * variable.type.size for variable in chosen)
            patterns = patterns_for(biases, self.others - set(biases))
            yield Choice(tuple(patterns), self._share(biases), size, kept)
        for each in weights:
            size = each.variable.type.nbytes
            yield Choice((each.pattern,), each.score / self.total, size, each.nbytes - size)

    def _slots(self, variable: Variable) -> int:
        """Bytes that the optimizer keeps for each element that is trained."""
        optimizer = self.planner.optimizer
        return (len(optimizer.slots()) + (optimizer.accumulate > 1)) * accumulator(variable.dtype).size
