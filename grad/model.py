"""The gradient of a model's output, as a model: to compile, to save as ONNX, to differentiate again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from glowtrain.errors import BindingError, DifferentiationError, InputError, ModelError, ShapeError
from glowtrain.grad.flow import Flow
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Graph, Input, Template, Value, Variable, constant, no_model
from glowtrain.graph.specialise.template import example_of
from glowtrain.names import Names, matches
from glowtrain.ops.tensor.move import Expand, zeros
from glowtrain.presentation.messages import unknown

Differentiated = TypeVar("Differentiated", bound=Graph | Template)

GRADIENT, COTANGENT = "gradient", "cotangent"
"""What is added to names: of what is differentiated by, for the gradient; of the output, for what is multiplied."""


def gradient_model(
    model: Differentiated, of: str | None = None, by: str | Sequence[str] | None = None, *, total: bool = False
) -> Differentiated:
    """The model of an output and of its gradient by inputs or variables: of a graph a graph, of a template a template.

    ``of``: an output of floats, by default the only one. ``by``: names of inputs and variables, or patterns of them; by
    default all inputs of floats that the output depends on differentiably. Results are the output under its own name,
    and ``<name>.gradient`` for each of ``by``, of its type.

    A tensor has a gradient for each of its elements, so an output of more than one is multiplied by a further input of
    its type, ``<of>.cotangent``, and summed: ones give the gradient of the sum of all elements, a single one that
    of one element (a vector-Jacobian product). With ``total`` it is that of the sum, without the input. The model is
    differentiated as it is: see :func:`glowtrain.onnx_io.inference` for what it computes after training.

    Raises :class:`InputError` for names that are not there and for what is not of a float type;
    :class:`DifferentiationError` where the output does not depend on what was named, or not differentiably.
    """
    if not isinstance(model, (Graph, Template)):
        raise InputError(f"gradient_model takes a graph or a template, {no_model(model)}")
    change = _Gradient(of, None if by is None else (by,) if isinstance(by, str) else tuple(by), total)
    if isinstance(model, Template):
        change.check(model)
    changed: Any = model.map(change)
    result: Differentiated = changed
    return result


@dataclass(frozen=True)
class _Gradient:
    """From a graph to that of an output and its gradients."""

    of: str | None
    by: tuple[str, ...] | None
    total: bool

    def check(self, template: Template) -> None:
        """Raise now what would be raised when the template is bound, if it can be bound to anything yet."""
        try:
            graph = example_of(template)
        except (BindingError, ShapeError, ModelError):
            return
        self(graph)

    def __call__(self, graph: Graph) -> Graph:
        name = self._output(graph)
        output, leaves = graph.outputs[name], self._leaves(graph)
        taken = Names([*(v.name for v in graph.inputs), *(v.name for v in graph.variables), name])
        flow = Flow([output])
        reached = [leaf for leaf in leaves if self._is_reached(graph.name, name, leaf, flow)]
        if not reached:
            told = f"{graph.name}: output {name!r} depends differentiably on no input of floats"
            raise DifferentiationError(told if self.by else f"{told}; name variables to differentiate by")
        cotangent = self._cotangent(output, taken.fresh(f"{name}.{COTANGENT}"))
        found = zip(pullback([output], [cotangent], reached), reached, strict=True)
        gradients = {taken.fresh(f"{leaf.name}.{GRADIENT}"): _whole(gradient, leaf) for gradient, leaf in found}
        added = (cotangent,) if isinstance(cotangent, Input) else ()
        return graph.with_(
            inputs=(*graph.inputs, *added), outputs={name: output, **gradients}, updates={}, results=None,
            name=f"{graph.name}.{GRADIENT}",
        )  # fmt: skip

    def _output(self, graph: Graph) -> str:
        """The name of the output. Raises :class:`InputError`."""
        floats = [name for name, value in graph.outputs.items() if value.dtype.is_float and name not in graph.trimmed]
        if self.of is None:
            if len(floats) != 1:
                raise InputError(f"{graph.name} has {len(floats)} outputs of floats; name one: {', '.join(floats)}")
            return floats[0]
        if problem := unknown([self.of], graph.outputs, "output"):
            raise InputError(f"{graph.name} has {problem}")
        if self.of in graph.trimmed:
            raise InputError(
                f"{graph.name}: the size of output {self.of!r} is found at run time; differentiate another"
            )
        if self.of not in floats:
            type_ = graph.outputs[self.of].type
            raise InputError(f"{graph.name}: output {self.of!r} is {type_}, which is not a float type: no gradient")
        return self.of

    def _leaves(self, graph: Graph) -> list[Value]:
        """What the gradient is by. Raises :class:`InputError`."""
        every: list[Value] = [*graph.inputs, *graph.variables]
        if self.by is None:
            return [value for value in graph.inputs if value.dtype.is_float]
        names = [value.name for value in every]
        strange = [name for name in self.by if not any(matches(known, [name]) for known in names)]
        if strange:
            raise InputError(f"{graph.name} has {unknown(strange, names, 'input or variable')}")
        wrong = [
            f"{value.name} ({value.type})" for value in every if value.name in self.by and not value.dtype.is_float
        ]
        if wrong:
            raise InputError(f"{graph.name}: {', '.join(wrong)}: not of a float type, so there is no gradient by it")
        return [value for value in every if value.dtype.is_float and matches(value.name, self.by)]

    def _is_reached(self, model: str, output: str, leaf: Value, flow: Flow) -> bool:
        """Whether there is a gradient by a leaf. Raises :class:`DifferentiationError` if one was asked for by name."""
        reach = flow.of(leaf)
        if reach.differentiable or self.by is None or leaf.name not in self.by:
            return reach.differentiable
        kind = "variable" if isinstance(leaf, Variable) else "input"
        told = f"{model}: output {output!r} does not depend on {kind} {leaf.name!r}"
        if reach.depends:
            told += " differentiably: cut by " + "; ".join(f"{cut.node}: {cut.why}" for cut in reach.cuts)
        raise DifferentiationError(told)

    def _cotangent(self, output: Value, name: str) -> Value:
        """What the output's elements are multiplied by: ones, or an input."""
        if not output.shape:
            return constant(1.0, output.dtype)
        if self.total:
            ones: Value = Expand(shape=output.shape)(constant(1.0, output.dtype))
            return ones
        return Input(output.type, name)


def _whole(gradient: Value | None, leaf: Value) -> Value:
    """A gradient that is there: zeros where a rule gives none at this binding."""
    return zeros(leaf.type) if gradient is None else gradient
