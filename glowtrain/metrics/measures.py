"""The metrics of one training: what compiled functions give beside the loss, and what becomes of that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Value
from glowtrain.graph.rewriting import rebuild
from glowtrain.losses.base import Attached, Loss, OutputLoss, Weighted, output_name
from glowtrain.losses.classification import ClassLoss
from glowtrain.metrics.base import Compared, Direction, MeanMetric, Metric, PredictionMetric, compared_loss
from glowtrain.metrics.choose import NAMED, CustomMetric, OfOutput
from glowtrain.presentation.messages import kind_of, unknown
from glowtrain.types import Array

OUTPUT = "output:"
"""What the names of gathered outputs begin with among those of a function that evaluates."""


@dataclass(frozen=True)
class Measures:
    """A loss and the metrics that are listed beside its own."""

    loss: Loss
    metrics: tuple[Metric, ...]

    def check(self, model: Graph) -> None:
        """Raise :class:`InputError` for a metric that cannot be taken of the model's output with this loss."""
        for metric in self.metrics:
            if not isinstance(metric, OfOutput):
                metric.check(self.loss)
        for part in self.parts.values():
            part.check(model)
        self.means(model, self.loss.attach(model))

    @cached_property
    def parts(self) -> dict[str, Measures]:
        """The metrics of single outputs, by these, each with the term of the loss that compares it. Raises
        :class:`InputError` for an output that none does."""
        of_outputs: dict[str, list[Metric]] = {}
        for metric in self.metrics:
            if isinstance(metric, OfOutput):
                of_outputs.setdefault(metric.output, []).append(metric.metric)
        terms = {each.output: loss for _, loss in self.loss.terms if (each := compared_loss(loss)) is not None}
        if problem := unknown(of_outputs, [name for name in terms if name is not None], "output", "those with losses:"):
            raise InputError(f"metrics: by outputs, as the losses are: there is {problem}")
        return {output: Measures(terms[output], tuple(metrics)) for output, metrics in of_outputs.items()}

    def means(self, model: Graph, attached: Attached) -> dict[str, Value]:
        """Scalars by name whose means over examples the metrics follow from; the loss's own are among them."""
        means = dict(attached.metrics)
        for metric in self._of_means:
            metric.check(self.loss)
            means |= metric.means(Compared.of(model, self.loss, attached))
        for output, part in self.parts.items():
            means |= part.listed_means(model, attached, f"{output}:")
        return means

    def listed_means(self, model: Graph, whole: Attached, prefix: str) -> dict[str, Value]:
        """The means of the listed metrics alone, over the inputs of a sum of losses of which this is one."""
        attached = self.loss.attach(model)
        inputs = {each.name: each for each in whole.targets}
        shared: dict[Value, Value] = {each: inputs[each.name] for each in attached.targets}
        listed = {part for metric in self._of_means for part in metric.parts}
        means = {name: value for name, value in self.means(model, attached).items() if name in listed}
        values = rebuild([*means.values()], shared)
        return {prefix + name: value for name, value in zip(means, values, strict=True)}

    def outputs(self, model: Graph, attached: Attached) -> dict[str, Value]:
        """What is gathered over batches: the output that the loss compares, or all where it may be any."""
        of_parts = {
            name: value for part in self.parts.values() for name, value in part.outputs(model, attached).items()
        }
        if not self._of_predictions:
            return of_parts
        if self._compared is not None:
            name = output_name(model, self._compared.output)
            return {OUTPUT + name: self._compared.float_output(model, self._compared.output)}
        return {OUTPUT + name: value for name, value in model.outputs.items() if value.rank}

    def finish(self, means: Mapping[str, float]) -> dict[str, float]:
        """The loss and metrics by name, of the means over examples that were taken."""
        for output, part in self.parts.items():
            own = {name: value for name, value in means.items() if name.startswith(f"{output}:")}
            results = part.finish({name.removeprefix(f"{output}:"): value for name, value in own.items()})
            others = {name: value for name, value in means.items() if name not in own}
            means = others | {f"{output}_{name}": value for name, value in results.items()}
        parts = {part for metric in self._of_means for part in metric.parts}
        finished = {name: value for name, value in means.items() if name not in parts}
        return finished | {metric.name: metric.finish(means) for metric in self._of_means if metric.parts[0] in means}

    def results(self, means: Mapping[str, float], gatherer: Gatherer) -> dict[str, Any]:
        """The loss and metrics of a data set, in the order in which they are listed."""
        results = self.finish(means) | gatherer.results()
        listed = [metric.name for metric in self.metrics]
        return {name: results[name] for name in (*(name for name in results if name not in listed), *listed)}

    def entries(self, model: Graph, *, training: bool, validation: bool) -> dict[str, Direction | None]:
        """What records of epochs hold, and whether more or less of it is better: of the loss, and of the metrics that
        are measured in ``training`` and ``validation``."""
        own = {name: _direction_of(name) for name in self.loss.attach(model).metrics}
        in_steps = own | {metric.name: metric.better for metric in self.metrics if _is_mean(metric)}
        entries: dict[str, Direction | None] = {"loss": "min"}
        if training:
            entries |= {f"train_{name}": better for name, better in in_steps.items()}
        if validation:
            every = {"loss": entries["loss"], **own, **{metric.name: metric.better for metric in self.metrics}}
            entries |= {f"val_{name}": better for name, better in every.items()}
        return entries

    def gatherer(self) -> Gatherer:
        """What takes the outputs and targets of all batches of a data set."""
        weight = self.loss.weight if isinstance(self.loss, Weighted) else None
        parts = {output: part.gatherer() for output, part in self.parts.items()}
        return Gatherer(self._compared, self._of_predictions, weight, parts)

    @property
    def _compared(self) -> OutputLoss | None:
        return compared_loss(self.loss)

    @property
    def _of_means(self) -> tuple[MeanMetric, ...]:
        return tuple(metric for metric in self.metrics if isinstance(metric, MeanMetric))

    @property
    def _of_predictions(self) -> tuple[PredictionMetric, ...]:
        return tuple(metric for metric in self.metrics if isinstance(metric, PredictionMetric))


def _is_mean(metric: Metric) -> bool:
    return isinstance(metric.metric if isinstance(metric, OfOutput) else metric, MeanMetric)


def _direction_of(name: str) -> Direction | None:
    """Whether more of a loss's own metric is better, which may have a target's name before its own."""
    return next((metric.better for own, metric in NAMED.items() if name == own or name.endswith(f"_{own}")), None)


@dataclass
class Gatherer:
    """The outputs and targets of a data set, batch by batch, and metrics of them. ``loss`` is what compares one output
    with one target, if one does, and ``weight`` the array of weights of examples, if there is one."""

    loss: OutputLoss | None
    metrics: tuple[PredictionMetric, ...]
    weight: str | None = None
    parts: Mapping[str, Gatherer] = field(default_factory=dict)
    weights: list[Array] = field(default_factory=list)
    batches: list[tuple[dict[str, Array], dict[str, Array]]] = field(default_factory=list)

    def take(self, outputs: Mapping[str, Any], arrays: Mapping[str, Array]) -> dict[str, Any]:
        """Gather the outputs and targets of a batch; the means among its results."""
        for output, part in self.parts.items():
            part.take({name: value for name, value in outputs.items() if name == OUTPUT + output}, arrays)
        if self.metrics:
            gathered = {name.removeprefix(OUTPUT): value for name, value in outputs.items() if name.startswith(OUTPUT)}
            names = arrays if self.loss is None else self.loss.targets
            self.batches.append((gathered, {name: np.array(arrays[name]) for name in names}))
            self.weights += [] if self.weight is None else [np.array(arrays[self.weight], np.float64)]
        return {name: value for name, value in outputs.items() if not name.startswith(OUTPUT)}

    @property
    def lists(self) -> list[list[Any]]:
        """All that is gathered, each a list with an element for each batch, or an empty one."""
        return [self.batches, self.weights, *(each for part in self.parts.values() for each in part.lists)]

    def results(self) -> dict[str, Any]:
        """The metrics by name, as numbers and lists of them. Raises :class:`InputError` for what is none."""
        results = {metric.name: metric(*self._compared(metric), self._weighting(metric)) for metric in self.metrics}
        of_parts = {f"{output}_{name}": v for output, part in self.parts.items() for name, v in part.results().items()}
        return of_parts | {name: _plain(name, result) for name, result in results.items()}

    def _compared(self, metric: PredictionMetric) -> tuple[Any, Any]:
        """Outputs and targets as a metric takes them."""
        if not isinstance(metric, CustomMetric):
            return self._examples
        return self._by_name if self.loss is None else self._arrays

    def _weighting(self, metric: PredictionMetric) -> Array | None:
        """The weights of what a metric takes."""
        if not self.weights or isinstance(metric, CustomMetric):
            return None
        if not isinstance(self.loss, ClassLoss):
            return np.concatenate(self.weights)
        rows = [
            np.repeat(weights, labels.size // len(weights))[_counted(self.loss, labels)]
            for weights, (_, targets) in zip(self.weights, self.batches, strict=True)
            for labels in targets.values()
        ]
        return np.concatenate(rows)

    @cached_property
    def _examples(self) -> tuple[Array, Array]:
        """One example for each label, without those that are ignored."""
        if not isinstance(self.loss, ClassLoss):
            return self._arrays
        rows = [_labelled(self.loss, *outputs.values(), *targets.values()) for outputs, targets in self.batches]
        scores, labels = zip(*rows, strict=True)
        return np.concatenate(scores), np.concatenate(labels)

    @cached_property
    def _arrays(self) -> tuple[Array, Array]:
        """The output and the target that the loss compares."""
        (outputs,), (targets,) = (tuple(part.values()) for part in self._by_name)
        return outputs, targets

    @cached_property
    def _by_name(self) -> tuple[dict[str, Array], dict[str, Array]]:
        outputs, targets = zip(*self.batches, strict=True)
        return _joined(outputs), _joined(targets)


def _labelled(loss: ClassLoss, scores: Array, labels: Array) -> tuple[Array, Array]:
    """Scores [n, classes] and labels [n] of a batch, without those that the loss ignores."""
    scores = np.moveaxis(scores, loss.axis, -1)
    scores, labels = scores.reshape(-1, scores.shape[-1]), labels.reshape(-1)
    counted = _counted(loss, labels)
    return scores[counted], labels[counted]


def _counted(loss: ClassLoss, labels: Array) -> Array:
    """Which of all labels, one behind the other, the loss does not ignore."""
    labels = labels.reshape(-1)
    return np.ones(labels.shape, bool) if loss.ignore_index is None else np.asarray(labels != loss.ignore_index)


def _joined(batches: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The arrays of all batches, one behind the other."""
    joined = {}
    for name in batches[0]:
        arrays = [batch[name] for batch in batches]
        if len(shapes := {array.shape[1:] for array in arrays}) > 1 or not all(array.ndim for array in arrays):
            shown = ", ".join(map(str, sorted(shapes)))
            raise InputError(f"metrics: {name!r} of several batches cannot be joined: examples are of shapes {shown}")
        joined[name] = np.concatenate(arrays)
    return joined


def _plain(name: str, result: Any) -> Any:
    """A number as a float, an array as lists."""
    array = np.asarray(result)
    if array.dtype.kind not in "biuf":
        raise InputError(f"metrics: {name!r} must be a number or an array of numbers, not {kind_of(result)}")
    return array.tolist() if array.ndim else float(array)
