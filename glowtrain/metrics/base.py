"""What a metric is: a number, by its name, that says how good a model's outputs are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from glowtrain.errors import InputError
from glowtrain.graph import Graph, Value
from glowtrain.losses.base import Attached, Loss, OutputLoss, Task, Weighted, total
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.reduce.reduction import ReduceMean, as_dtype
from glowtrain.ops.tensor.move import reshape
from glowtrain.types import Array

Direction = Literal["max", "min"]
"""Whether more of a metric is better, or less."""

CLASSES: Collection[Task] = frozenset({"classification", "binary"})
LABELS: Collection[Task] = frozenset({"classification"})
NUMBERS: Collection[Task] = frozenset({"regression"})

_TASKS: dict[Task, str] = {
    "regression": "numbers that are to be near their targets",
    "classification": "scores of classes and labels",
    "binary": "logits of yes and no",
}
"""What outputs and targets are."""


class Metric(ABC):
    """Base of all metrics: :class:`MeanMetric` and :class:`PredictionMetric`."""

    tasks: Collection[Task] = CLASSES
    """What outputs and targets it is of."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What it is called in results and records."""

    @property
    def better(self) -> Direction | None:
        """Whether more or less of it is better; None where nobody can say, or it is no single number."""
        return None

    def check(self, loss: Loss) -> None:
        """Raise :class:`InputError` for a loss of other outputs and targets."""
        compared = compared_loss(loss)
        if compared is None or compared.task is None:
            if len(loss.terms) > 1:
                raise InputError(
                    f"metrics: the loss is a sum, so {self.name!r} must say of which output it is, as losses by "
                    f"outputs do: {{'output': [{self.name!r}]}}; or give a function (outputs, inputs), metrics.custom"
                )
            raise InputError(
                f"metrics: what {loss.describe()} compares with targets is not known, so {self.name!r} cannot be "
                "taken of it; give a function (outputs, inputs) of arrays by name, gt.metrics.custom"
            )
        if compared.task not in self.tasks:
            wanted = " or of ".join(text for task, text in _TASKS.items() if task in self.tasks)
            does = f"{type(compared).__name__} compares {_TASKS[compared.task]}"
            raise InputError(f"metrics: {self.name!r} is of {wanted}; {does}")


def compared_loss(loss: Loss) -> OutputLoss | None:
    """The loss of one output and one target that a loss is, with weights of examples or without; None for others."""
    loss = loss.loss if isinstance(loss, Weighted) else loss
    return loss if isinstance(loss, OutputLoss) else None


@dataclass(frozen=True)
class Compared:
    """A loss on a graph, and the output that it compares, in the type that it is compared in."""

    loss: OutputLoss
    attached: Attached
    prediction: Value
    weight: Value | None = None
    """A weight for each example."""

    @classmethod
    def of(cls, model: Graph, loss: Loss, attached: Attached) -> Compared:
        compared = compared_loss(loss)
        assert compared is not None, loss
        weight = attached.targets[-1] if isinstance(loss, Weighted) else None
        return cls(compared, attached, compared.float_output(model, compared.output), weight)

    def mean(self, each: Value) -> Value:
        """The mean of what is one or several numbers for each example, one behind the other, by the weights of
        examples: 0 where all of these are."""
        if self.weight is None:
            mean: Value = ReduceMean(axes=None, keepdims=False)(each)
            return mean
        examples, weight = self.weight.shape[0], as_dtype(self.weight, each.dtype)
        several = each.type.size // max(examples, 1)
        together = total(weight)
        weighted = total(reshape(each, (examples, several)) * reshape(weight, (examples, 1)))
        result: Value = weighted / (Where()(together > 0.0, together, 1.0) * float(several))
        return result

    @property
    def target(self) -> Value:
        return self.attached.targets[0]


class MeanMetric(Metric):
    """A metric that follows from means over examples, which compiled functions take beside the loss."""

    parts: tuple[str, ...]
    """The names of all means that :meth:`means` may give, of which the first is always there."""

    @abstractmethod
    def means(self, compared: Compared) -> dict[str, Value]:
        """Scalars whose means over examples are those of all data. Raises :class:`InputError` for an output that the
        metric cannot be taken of."""

    def finish(self, means: Mapping[str, float]) -> float:
        """The metric, from the means of all data."""
        return means[self.parts[0]]


class PredictionMetric(Metric):
    """A metric of all predictions together: a function of NumPy arrays, ``(outputs, targets)``.

    Outputs of classes are scores [n, classes] with labels [n]; of yes and no logits, with targets of their shape: [n],
    [n, 1], or of several labels [n, labels] (of more axes, each element is an example).
    """

    @abstractmethod
    def __call__(self, outputs: Array, targets: Array, weights: Array | None = None) -> Any:
        """The metric: a number, or an array of numbers; ``weights`` [n] are those of examples."""
