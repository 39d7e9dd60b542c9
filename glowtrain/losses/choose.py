"""Losses by name, outputs of the model and functions as losses, and what a trainer takes for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glowtrain.errors import BindingError, DifferentiationError, InputError
from glowtrain.graph import Graph, Input, Value
from glowtrain.losses.base import Attached, Loss, LossFunction, LossSum, OutputLoss, output_of, scalar
from glowtrain.losses.classification import (
    bce_with_logits,
    focal,
    nll,
    soft_target_cross_entropy,
    softmax_cross_entropy,
)
from glowtrain.losses.embedding import cosine, cosine_embedding, triplet
from glowtrain.losses.regression import huber, kl, l1, mse
from glowtrain.presentation.messages import kind_of, nearest
from glowtrain.types import Spec, TensorType


@dataclass(frozen=True)
class ModelOutput(Loss):
    """A scalar output of the model is the loss; all data go to the model's own inputs."""

    output: str

    @property
    def targets(self) -> tuple[str, ...]:
        return ()

    def attach(self, model: Graph) -> Attached:
        if self.output not in model.outputs:
            near = nearest(self.output, NAMED)
            losses = f"the nearest is {near!r}" if near else f"there are: {', '.join(NAMED)}"
            outputs = ", ".join(map(repr, model.outputs)) or "none"
            raise InputError(
                f"there is no loss {self.output!r} ({losses}), and {model.name} has no output {self.output!r}; "
                f"it has {outputs}"
            )
        return Attached((), scalar(output_of(model, self.output), f"output {self.output!r}"))


@dataclass(frozen=True)
class Custom(Loss):
    """A Python function of the model's outputs and of all inputs, by name; ``extra`` declares the inputs it adds."""

    function: LossFunction
    extra: Mapping[str, Spec | TensorType]

    @property
    def targets(self) -> tuple[str, ...]:
        return tuple(self.extra)

    def attach(self, model: Graph) -> Attached:
        targets = tuple(Input(_bound(spec, name, model), name) for name, spec in self.extra.items())
        inputs = {value.name: value for value in (*model.inputs, *targets)}
        value = self.function(model.outputs, inputs)
        if not isinstance(value, Value):
            raise DifferentiationError(f"the loss function {self.name} must give a Value, not {type(value).__name__}")
        return Attached(targets, scalar(value, f"the loss function {self.name}"))

    @property
    def name(self) -> str:
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def describe(self) -> str:
        return f"Custom({self.name}, {dict(self.extra)})"


def _bound(spec: Spec | TensorType, name: str, model: Graph) -> TensorType:
    if isinstance(spec, TensorType):
        return spec
    try:
        return spec.bind(model.dims)
    except KeyError as error:
        known = ", ".join(model.dims) or "none"
        advice = "declare the input with fixed extents, or load the model with that dimension symbolic"
        raise BindingError(
            f"loss input {name!r}: {model.name} has no dimension {error} (it has: {known}); {advice}"
        ) from None


def custom(function: LossFunction, **extra: Spec | TensorType) -> Loss:
    """Any function ``(outputs, inputs) -> Value`` as a loss; inputs that the model lacks are declared by keyword.

    ``custom(lambda out, inp: mean((out["y"] - inp["t"]) ** 2), t=gt.f32["batch", 1])``
    """
    return Custom(function, extra)


NAMED: dict[str, Callable[..., Loss]] = {
    "softmax_cross_entropy": softmax_cross_entropy,
    "nll": nll,
    "mse": mse,
    "l1": l1,
    "huber": huber,
    "bce_with_logits": bce_with_logits,
    "focal": focal,
    "soft_target_cross_entropy": soft_target_cross_entropy,
    "kl": kl,
    "cosine": cosine,
    "cosine_embedding": cosine_embedding,
    "triplet": triplet,
}
"""The losses by name."""


def by_name(name: str, output: str | None = None) -> Loss:
    """The loss of that name in :data:`NAMED`, on an ``output`` of the model, else the model's scalar output.

    Raises :class:`InputError` where an output is named for a loss that compares several.
    """
    if name not in NAMED:
        return ModelOutput(name)
    loss = NAMED[name]()
    if output is None:
        return loss
    if not isinstance(loss, OutputLoss):
        raise InputError(f"{name} compares several outputs with each other, so none can be chosen for it")
    return replace(loss, output=output)


def weighted(loss: str | Loss, weight: str = "weight") -> Loss:
    """The loss with a weight for each example, from one more input: sum(weight * loss) / sum(weight) for a mean.

    Raises :class:`InputError` for a loss of which nothing says what it is for each example, such as a function.
    """
    return as_loss(loss).weighted(weight)


def by_outputs(losses: Mapping[str, str | Loss]) -> Loss:
    """The sum of losses of one output each, by the names of outputs. Targets of those that are given by their names
    are called ``<output>_target``. Raises :class:`InputError` for what is no loss of one output."""
    if not losses:
        raise InputError("loss: the dict by outputs is empty")
    return _sum_of([term for output, loss in losses.items() for term in _of_output(loss, output)])


def losses_in(texts: Sequence[str], output: str | None = None) -> Loss:
    """The loss that the command line says: a name, of an ``output`` (also ``digit=mse``), or several such as
    ``digit=mse`` and ``ink=0.5*l1``, which :func:`by_outputs` adds up. Raises :class:`InputError`."""
    if len(texts) == 1 and "*" not in texts[0] and not ("=" in texts[0] and output):
        own, _, name = texts[0].rpartition("=")
        return by_name(name, own or output)
    if output is not None or (wrong := [text for text in texts if "=" not in text]):
        problem = "--output is of one loss" if output is not None else f"{wrong[0]!r} says of which it is not"
        raise InputError(f"losses of several outputs are named with these, --loss digit=mse --loss ink=l1: {problem}")
    return _sum_of([term for text in texts for term in _of_text(*text.split("=", 1))])


def _of_text(output: str, text: str) -> list[tuple[float, Loss]]:
    factor, star, name = text.rpartition("*")
    try:
        scale = float(factor) if star else 1.0
    except ValueError:
        raise InputError(f"--loss {output}={text}: {factor!r} is no number, as in {output}=0.5*mse") from None
    return [(scale * own, term) for own, term in _of_output(name, output)]


def _sum_of(terms: Sequence[tuple[float, Loss]]) -> Loss:
    return terms[0][1] if len(terms) == 1 and terms[0][0] == 1.0 else LossSum(tuple(terms))


def _of_output(loss: Any, output: str) -> list[tuple[float, Loss]]:
    """The terms of a loss, of an output."""
    terms = as_loss(loss).terms if isinstance(loss, (str, Loss)) else ()
    compared = [(factor, term) for factor, term in terms if isinstance(term, OutputLoss)]
    if not terms or len(compared) < len(terms):
        raise InputError(
            f"loss: {output!r} must have a loss that compares one output with a target, not {kind_of(loss)}"
        )
    target = {"target": f"{output}_target"} if isinstance(loss, str) else {}
    return [(factor, replace(term, output=output, **target)) for factor, term in compared]


def as_loss(loss: str | Loss | LossFunction | Mapping[str, str | Loss]) -> Loss:
    """A loss from what a trainer takes: a loss, its name, the name of a scalar output of the model, a function, or
    losses by outputs."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, Mapping):
        return by_outputs(loss)
    if isinstance(loss, str):
        return by_name(loss)
    if callable(loss):
        _refuse_maker(loss)
        if hasattr(loss, "state_dict"):
            raise InputError(
                f"{kind_of(loss)} is a module of PyTorch: use one of gt.losses, or glowtrain.torch.compile_step"
            )
        return Custom(loss, {})
    raise InputError(f"loss must be one of gt.losses, the name of one or of an output, or a function, not {loss!r}")


def _refuse_maker(function: Any) -> None:
    """Raise :class:`InputError` for what makes a loss in place of one."""
    if function in NAMED.values() or (isinstance(function, type) and issubclass(function, Loss)):
        name = function.__name__
        raise InputError(f"{name} makes a loss and is not one itself: call it, as in gt.losses.{name}()")
