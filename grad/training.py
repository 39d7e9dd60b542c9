"""The graphs of training: one step, its gradients alone, and the loss alone.

    step ::= model (training form) + loss + gradients + optimizer's updates

All are ordinary graphs: what compiles them knows nothing of training.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from glowtrain.errors import DifferentiationError, GraphError
from glowtrain.grad.gradients import check_scalar, gradients, reached
from glowtrain.grad.parts import WHOLE, Parts
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.ops.elementwise.arithmetic import Abs
from glowtrain.ops.elementwise.cast import largest
from glowtrain.ops.elementwise.logic import LessOrEqual, Where

LOSS = "loss"
"""Name of the loss among a step's outputs."""
STEP, MICRO = "optimizer.step", "optimizer.micro"
"""A step's variables that count updates, and the batches whose gradients are added up for the next one."""


@dataclass(frozen=True)
class Updates:
    """What an optimizer makes of gradients: the inputs it reads (hyperparameters), new values of variables, and what
    the step gives besides the loss, whatever the loss is."""

    inputs: tuple[Input, ...] = ()
    values: Mapping[Variable, Value] = field(default_factory=dict)
    outputs: Mapping[str, Value] = field(default_factory=dict)


Optimize = Callable[[Mapping[Variable, Value]], Updates]
"""From the gradient of each parameter to the updates."""


def loss_graph(model: Graph, loss: Value, targets: Sequence[Input], metrics: Mapping[str, Value]) -> Graph:
    """The loss of a model (and metrics beside it) for a batch; nothing is updated."""
    check_scalar(loss)
    outputs = {LOSS: loss, **metrics}
    return Graph((*model.inputs, *targets), outputs, {}, f"{model.name}.loss")


def gradient_graph(
    model: Graph, loss: Value, targets: Sequence[Input], parameters: Sequence[Variable], parts: Parts = WHOLE
) -> Graph:
    """The gradient of the loss for each parameter, by the parameter's name; nothing is updated. Of parameters in
    ``parts`` it is that of the part."""
    found = dict(zip(parameters, gradients(loss, parameters), strict=True))
    outputs = {parameter.name: gradient for parameter, gradient in parts.trained(found).items()}
    return Graph((*model.inputs, *targets), outputs, {}, f"{model.name}.gradients")


def training_graph(
    model: Graph, loss: Value, targets: Sequence[Input], parameters: Sequence[Variable], optimize: Optimize,
    metrics: Mapping[str, Value] | None = None, parts: Parts = WHOLE, connected: Collection[Variable] = (),
) -> Graph:  # fmt: skip
    """One training step: outputs ``loss`` and the ``metrics``, before it; updates of the parameters, the optimizer's
    state and the model's own state.

    Parameters that the loss does not depend on are left alone, and of those in ``parts`` all but the part; those that
    are ``connected`` with it count as having gradients of zeros. Where the
    loss is NaN or infinite every update keeps the present value, so a bad batch cannot spoil the state. Raises
    :class:`DifferentiationError` if nothing is left to train.
    """
    if not parameters:
        raise DifferentiationError(
            f"{model.name} has no trainable parameter; check trainable= and the model's variables"
        )
    found = reached(loss, parameters, connected)
    if not found:
        raise DifferentiationError(f"the loss does not depend on any trainable parameter of {model.name}")
    optimizer = optimize(parts.trained(found))
    updates = parts.updates(guarded({**model.updates, **optimizer.values}, loss))
    outputs = {LOSS: loss, **(metrics or {}), **optimizer.outputs}
    inputs = (*model.inputs, *targets, *optimizer.inputs)
    step = parts.read_from_whole(Graph(inputs, outputs, updates, f"{model.name}.step"))
    _check_names(step)
    return step


def _check_names(step: Graph) -> None:
    """State is kept by name: a parameter must not be called like a slot of the optimizer."""
    counts = Counter(variable.name for variable in step.variables)
    twice = [name for name, count in counts.items() if count > 1]
    if twice:
        raise GraphError(f"{step.name}: several variables have the same name; rename them in the model:", twice)


def finite(value: Value) -> Value:
    """bool[]: whether a scalar is neither NaN nor infinite. (A comparison with NaN is false.)"""
    result: Value = LessOrEqual()(Abs()(value), largest(value.dtype))
    return result


def guarded(updates: Mapping[Variable, Value], loss: Value) -> dict[Variable, Value]:
    """Updates that keep the present values where a loss is NaN or infinite."""
    good = finite(loss)
    return {variable: Where()(good, value, variable) for variable, value in updates.items()}
