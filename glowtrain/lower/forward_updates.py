"""Which variables the forward part of a training step updates: running statistics and the like, and not what an
optimizer updates."""

from __future__ import annotations

from glowtrain.graph import Graph, Template, Value, Variable
from glowtrain.graph.specialise.template import example_of
from glowtrain.graph.traversal import topological
from glowtrain.memory.residuals import Residuals, ResidualType, checked_type
from glowtrain.ops.elementwise.logic import Where


def residuals_for(model: Graph | Template, residuals: ResidualType) -> Residuals | None:
    """How activations of a step are saved for its backward part, from what a person asked for.

    Raises :class:`InputError` for anything but ``"bf16"`` and ``None``.
    """
    if checked_type(residuals) is None:
        return None
    return Residuals(forward_update_names(model if isinstance(model, Graph) else example_of(model)))


def forward_update_names(step: Graph) -> tuple[str, ...]:
    """The names of :func:`forward_updates`, in order."""
    return tuple(sorted(variable.name for variable in forward_updates(step)))


def forward_updates(step: Graph) -> list[Variable]:
    """The variables that the forward part updates, such as running statistics: they need nothing that is there for its
    trained variables alone, as the state of an optimizer does, and do not come of these, as averages of parameters
    do."""
    new = {variable: _unguarded(value, variable) for variable, value in step.updates.items()}
    trained = [value for variable, value in new.items() if variable.trainable]
    gradients = set(topological(trained)).difference(topological(step.outputs.values()))
    for node in topological(new.values()):
        if any(value is not None and value.node in gradients for value in node.inputs):
            gradients.add(node)
    return [variable for variable, value in new.items() if value.node not in gradients]


def _unguarded(value: Value, variable: Variable) -> Value:
    """What an update is where it may be left out for the sake of a loss that is no number."""
    node = value.node
    if node is not None and isinstance(node.operator, Where) and node.inputs[2] is variable:
        found = node.inputs[1]
        assert found is not None
        return found
    return value
