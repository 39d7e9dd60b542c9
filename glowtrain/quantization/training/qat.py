"""Quantization-aware training: models that a :class:`~glowtrain.Trainer` trains as they will be rounded.

    float model --prepare_training--> Trainer --freeze--> Trainer --convert--> integers
    int8 file   --resume_training-->  Trainer ----------------------convert--> integers

All are graphs and templates like any other; nothing in the trainer knows of quantization.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TextIO

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.errors import QuantizationError
from glowtrain.graph import Constant, Graph, Node, Template, Value, Variable, rewrite
from glowtrain.losses import Loss, LossFunction
from glowtrain.names import matches
from glowtrain.ops.elementwise.transcendental import Exp
from glowtrain.ops.quantized.convert import limits
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.optim import Optimizer
from glowtrain.quantization.calibration.profile import Profile
from glowtrain.quantization.checks import check_model, check_names
from glowtrain.quantization.export.constants import constant_values
from glowtrain.quantization.export.fold import folded
from glowtrain.quantization.placement.prepare import SCALE, check_float, check_request, fake_quantized, prepared
from glowtrain.quantization.placement.recipe import Recipe
from glowtrain.quantization.training.batch_norm import freeze, unfolded
from glowtrain.quantization.training.dropout import without_dropout
from glowtrain.quantization.training.from_qdq import resumed
from glowtrain.settings import values_of
from glowtrain.trainer import Trainer
from glowtrain.trainer.feed import Data
from glowtrain.trainer.fitting.moments import Callback
from glowtrain.types import Array

Learned = bool | Sequence[str]
"""Which scales are learned: all but those of a model's inputs, whose grid is the data's; none; or those whose names
match a pattern."""

WeightStart = Literal["range", "mean"]
WEIGHT_STARTS: tuple[WeightStart, ...] = ("range", "mean")

LOG_SCALE = ".log_scale"


def prepare_training(
    model: Graph | Template,
    profile: Profile,
    recipe: Recipe | None = None,
    *,
    state: Mapping[str, Array] | None = None,
    learn_scales: Learned = True,
    scale_rate: float = 1.0,
    batch_statistics: bool = True,
    weight_start: WeightStart = "range",
) -> Graph | Template:
    """The float model with FakeQuantize where ``recipe`` says, to be trained: ranges from a profile, scales learned.

    ``state`` holds variables' values by name. With ``batch_statistics`` BatchNormalization goes on normalising by the
    batch's statistics while its factor is folded into the weights that are rounded; otherwise it is frozen from the
    start (as :func:`~glowtrain.quantization.training.batch_norm.freeze` does later). Dropout drops what is rounded (see
    :mod:`~glowtrain.quantization.training.dropout`) while the model is trained, and is not exported. Scales of weights
    begin with what the recipe makes of their range, or, with ``weight_start`` "mean", at 2 · mean |w| / sqrt(high)
    (LSQ's, for few bits). For ``learn_scales`` and ``scale_rate`` see :func:`learn`. Raises
    :class:`~glowtrain.errors.QuantizationError` as ``prepare`` does.
    """
    chosen = Recipe() if recipe is None else recipe
    check_request(model, chosen, profile)
    if weight_start not in WEIGHT_STARTS:
        raise QuantizationError(f"weight_start is one of {', '.join(WEIGHT_STARTS)}, not {weight_start!r}")

    def change(graph: Graph) -> Graph:
        plain, drops = without_dropout(folded(check_float(graph), state, dropout=True))
        rounded = prepared(plain, profile, chosen, drops=drops).graph
        if weight_start == "mean":
            rounded = rewrite(rounded, _from_mean)
        if batch_statistics:
            rounded = unfolded(rounded, graph, state)
        return learned(rounded, learn_scales, scale_rate)

    return model.map(change)


def resume_training(
    model: Graph | Template, *, learn_scales: Learned = True, scale_rate: float = 1.0
) -> Graph | Template:
    """A quantized model (QDQ or QOperator form), such as one loaded from a file, as one to be trained on.

    Pairs of QuantizeLinear and DequantizeLinear become FakeQuantize with the model's scales and zero points, integer
    weights and biases the floating-point variables that they stand for. The result computes what the model does, up to
    the rounding of biases. Raises :class:`~glowtrain.errors.QuantizationError` where there is no such pair.
    """

    check_model(model)
    return model.map(lambda graph: learned(resumed(graph), learn_scales, scale_rate))


def finetune(
    model: Graph | Template,
    examples: Data,
    loss: str | Loss | LossFunction,
    optimizer: Optimizer,
    *,
    epochs: int,
    frozen_epochs: int = 0,
    batch_size: int | None = None,
    drop_last: bool = False,
    validation: Data | None = None,
    backend: str | Backend = "cpu",
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    progress: bool | int | TextIO | None = None,
) -> Trainer:
    """Train a prepared model; the trainer at the end, whose ``model()`` is ready for ``convert``.

    In the last ``frozen_epochs`` BatchNormalization has the running statistics that it has then, as in the exported
    model. A schedule of the learning rate, and the optimizer's state, go on through all ``epochs``. Raises what
    :meth:`Trainer.fit` raises, and :class:`~glowtrain.errors.QuantizationError` for more frozen epochs than epochs and
    a model that is not prepared.
    """
    if not 0 <= frozen_epochs <= epochs:
        raise QuantizationError(f"frozen_epochs must be from 0 to the {epochs} epochs, not {frozen_epochs}")

    def fit(trainer: Trainer, count: int) -> None:
        trainer.fit(
            examples, count, batch_size, validation, drop_last=drop_last, callbacks=callbacks, progress=progress
        )

    check_model(model)
    trainer = Trainer(model, loss, optimizer, backend=backend, seed=seed)
    fake_quantized(trainer.graphs.example)
    if epochs > frozen_epochs:
        fit(trainer, epochs - frozen_epochs)
    if frozen_epochs:
        trainer = frozen_trainer(trainer)
        fit(trainer, frozen_epochs)
    return trainer


def frozen_trainer(trainer: Trainer) -> Trainer:
    """A trainer that goes on where another stands, with BatchNormalization frozen (see
    :func:`~glowtrain.quantization.training.batch_norm.freeze`): the same parameters, optimizer's state, counters and
    history."""
    result = Trainer(**values_of(replace(trainer.spec, model=freeze(trainer.spec.model))))
    for name in result.state.names:
        result.state.write(name, trainer.state.read(name))
    result.hyper.update(trainer.hyper)
    result.history, result.position = trainer.history, trainer.position
    return result


def learn(model: Graph | Template, which: Learned = True, rate: float = 1.0) -> Graph | Template:
    """A prepared model whose constant scales are trained: scale = start · exp(rate · variable).

    The variables are called ``<value>.log_scale`` and begin at 0, so scales stay positive and change in proportion:
    a step of Adam changes each by about its learning rate times ``rate``, whatever its size, and weight decay draws
    them back to where they began (logarithms of scales are trained by Jain et al. 2020, arXiv:1903.08066; the gradient
    is that of LSQ, with its factor 1 / sqrt(N · high)). ``which``: True for all scales but those of inputs, or patterns
    of names. Raises :class:`~glowtrain.errors.QuantizationError` for a pattern that fits no scale.
    """
    check_model(model)
    return model.map(lambda graph: learned(graph, which, rate))


def learned(graph: Graph, which: Learned = True, rate: float = 1.0) -> Graph:
    """:func:`learn` of a graph."""
    if not math.isfinite(rate) or rate <= 0:
        raise QuantizationError(f"the rate at which scales are learned must be a positive number, not {rate}")
    if which is False:
        return graph
    names = {_scale_name(node) for node in graph.nodes if isinstance(node.operator, FakeQuantize)}
    for pattern in _patterns(which):
        if not any(matches(name, [pattern]) for name in names):
            known = ", ".join(sorted(names)) or "none"
            raise QuantizationError(f"no scale of {graph.name} is called {pattern!r}; there are: {known}")
    given = {value.name for value in graph.inputs} if which is True else set()
    return rewrite(graph, _Learning(_patterns(which), given, rate, constant_values(graph)).node)


def _from_mean(node: Node) -> Sequence[Value] | None:
    """FakeQuantize of weights around 0 with LSQ's first scales (Esser et al. 2020, section 2.1)."""
    operator, (x, scale, zero) = node.operator, (*node.inputs, None, None)[:3]
    if not isinstance(operator, FakeQuantize) or not isinstance(x, Variable) or not isinstance(scale, Constant):
        return None
    if not isinstance(zero, Constant) or zero.array.any():
        return None
    positions = np.arange(scale.array.size).reshape(scale.shape)
    owner = np.broadcast_to(operator.layout(x, scale, zero).spread(positions), x.shape).ravel()
    sums = np.bincount(owner, np.abs(x.initial, dtype=np.float64).ravel(), positions.size)
    means = (sums / np.bincount(owner, minlength=positions.size)).reshape(scale.shape)
    first = np.where(means > 0, 2 * means / math.sqrt(limits(zero.dtype)[1]), scale.array)
    return Node(operator, [x, Constant(first.astype(scale.array.dtype), scale.name), zero], node.name).outputs


def _patterns(which: Learned) -> tuple[str, ...]:
    if isinstance(which, bool):
        return ("*",) if which else ()
    check_names("which scales are learned is True, False or patterns of names", which)
    return (which,) if isinstance(which, str) else tuple(which)


def _scale_name(node: Node) -> str:
    """The name of what a FakeQuantize rounds, as its scale's name has it."""
    x, scale, _ = (value for value in node.inputs if value is not None)
    return scale.name.removesuffix(SCALE) or x.name


@dataclass
class _Learning:
    patterns: Sequence[str]
    left: Collection[str]
    """Names of scales that stay as they are."""
    rate: float
    constants: set[Value]
    """Values that no input reaches."""
    scales: dict[Value, Value] = field(default_factory=dict)

    def node(self, node: Node) -> Sequence[Value] | None:
        if not isinstance(node.operator, FakeQuantize):
            return None
        x, scale, zero = (value for value in node.inputs if value is not None)
        name = _scale_name(node)
        if not isinstance(scale, Constant) or name in self.left:
            return None
        if not matches(name, self.patterns):
            return None
        if scale not in self.scales:
            self.scales[scale] = self.positive(scale, name)
        operator = node.operator.replace(step_gradient=self.gradient_factor(x, scale, zero))
        return Node(operator, [x, self.scales[scale], zero], node.name).outputs

    def positive(self, scale: Constant, name: str) -> Value:
        moved = Variable(f"{name}{LOG_SCALE}", np.zeros_like(scale.array))
        result: Value = scale * Exp()(moved if self.rate == 1.0 else moved * self.rate)
        result.name = scale.name or f"{name}{SCALE}"
        return result

    def gradient_factor(self, x: Value, scale: Value, zero: Value) -> float:
        """1 / sqrt(N · high) for the N weights, or features of one example, that share a scale."""
        shared = x.type.size // scale.type.size if x in self.constants else math.prod(x.shape[1:])
        return 1.0 / math.sqrt(max(shared, 1) * limits(zero.dtype)[1])
