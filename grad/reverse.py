"""Reverse accumulation: cotangents of outputs pulled back to any values they depend on.

One walk over the nodes in reverse topological order (Griewank and Walther, Evaluating Derivatives, 2008, ch. 3).
The result is graph code, so it can be differentiated again.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from glowtrain.errors import DifferentiationError
from glowtrain.grad.scan import ScanGradient, step_seeds
from glowtrain.graph.operator import as_tuple
from glowtrain.graph.traversal import topological
from glowtrain.graph.value import Node, Value, layers
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.reduce.reduction import unbroadcast
from glowtrain.presentation.messages import kind_of, page


def pullback(
    outputs: Sequence[Value],
    cotangents: Sequence[Value | None],
    wrt: Sequence[Value],
    boundary: Collection[Value] = (),
) -> tuple[Value | None, ...]:
    """The sum over ``outputs`` of cotangent times Jacobian, with respect to each value of ``wrt``.

    ``wrt`` may hold leaves and intermediate values; values of ``boundary`` count as leaves. ``None`` among the
    cotangents stands for zero, ``None`` in the result for a value that no differentiable path reaches. Raises
    :class:`DifferentiationError` where an operator on a path has no gradient rule, or where a rule gives a cotangent
    of the wrong type.
    """
    walk = _Walk(frozenset(wrt))
    for output, cotangent in zip(outputs, cotangents, strict=True):
        walk.add(output, cotangent, "the caller")
    walk.run(outputs, boundary)
    return tuple(walk.cotangents.get(value) for value in wrt)


@dataclass
class _Walk:
    """Cotangents gathered so far. ``wrt``: what they are wanted for."""

    wrt: Collection[Value]
    cotangents: dict[Value, Value] = field(default_factory=dict)

    def run(self, outputs: Sequence[Value], boundary: Collection[Value]) -> None:
        """Visit every node between ``outputs`` and ``boundary`` that a wanted value reaches, last first."""
        order = topological(outputs, boundary)
        active = _active(order, self.wrt)
        with layers() as enter:
            for node in reversed(order):
                if any(output in active for output in node.outputs):
                    enter(node.layer)
                    self.visit(node, active)

    def visit(self, node: Node, active: Collection[Value]) -> None:
        """Add the node's contribution to the cotangents of its operands."""
        cotangents = tuple(self.cotangents.get(output) for output in node.outputs)
        if all(cotangent is None for cotangent in cotangents):
            return
        operator = node.operator
        if operator.has("vjp"):
            single = len(node.outputs) == 1
            g, y = (cotangents[0], node.outputs[0]) if single else (cotangents, node.outputs)
            self.add_each(node, _one_each(node, operator.vjp(g, y, *node.inputs)), active)
        elif isinstance(operator, Scan) and operator.is_canonical:
            self.add_each(node, _through_steps(operator, node, cotangents), active)
        elif operator.has("decompose"):
            self.visit_decomposition(node, cotangents, active)
        else:
            name = type(operator).__name__
            raise DifferentiationError(
                f"{node} has no gradient rule, and a gradient is wanted through it; give the class {name} a vjp (or a "
                f"decompose), see {page('operators.md')}, or set differentiable = False and a reason"
            )

    def visit_decomposition(self, node: Node, cotangents: Sequence[Value | None], active: Collection[Value]) -> None:
        """Differentiate what the operator decomposes into; its operands are the leaves of that walk."""
        results = as_tuple(node.operator.decompose(*node.inputs))
        operands = [value for value in dict.fromkeys(node.inputs) if value is not None]
        wanted = [value for value in operands if value in active]
        gradients = pullback(results, cotangents, wanted, boundary=frozenset(operands))
        for value, gradient in zip(wanted, gradients, strict=True):
            self.add(value, gradient, node)

    def add_each(self, node: Node, gradients: Sequence[Value | None], active: Collection[Value]) -> None:
        """Accumulate one cotangent for each operand; those of a broadcasting operator have its result's shape."""
        for value, gradient in zip(node.inputs, gradients, strict=True):
            if value is not None and value in active:
                if gradient is not None and node.operator.broadcasts:
                    gradient = unbroadcast(gradient, value.shape)
                self.add(value, gradient, node)

    def add(self, value: Value, cotangent: Value | None, source: Node | str) -> None:
        """Accumulate into a value's cotangent. Integer and boolean values have none."""
        if cotangent is None or not value.dtype.is_float:
            return
        if cotangent.type != value.type:
            rule = f"gave a cotangent of type {cotangent.type} for a value of type {value.type}"
            raise DifferentiationError(f"{source} {rule}")
        known = self.cotangents.get(value)
        self.cotangents[value] = cotangent if known is None else known + cotangent


def _through_steps(scan: Scan, node: Node, cotangents: Sequence[Value | None]) -> Sequence[Value | None]:
    """The cotangents of a canonical Scan's operands: a walk over its body, run backwards in time.

    Raises :class:`DifferentiationError` for a loop over parts of a batch, which is a training step already.
    """
    if scan.parts:
        raise DifferentiationError(f"{node}: a loop over parts of a batch has no gradient; differentiate the whole")
    seeds = step_seeds(scan, cotangents)
    by_input = pullback(tuple(scan.body.outputs.values()), seeds, scan.body.inputs)
    operands = [value for value in node.inputs if value is not None]
    return ScanGradient(scan, operands, node.outputs, cotangents, seeds, by_input).gradients()


def _one_each(node: Node, gradients: Any) -> Sequence[Value | None]:
    """What a rule gave, if it is one cotangent for each operand. Raises :class:`DifferentiationError`."""
    found = type(gradients).__name__
    if isinstance(gradients, (tuple, list)):
        strange = [kind_of(item) for item in gradients if item is not None and not isinstance(item, Value)]
        if not strange and len(gradients) == len(node.inputs):
            return tuple(gradients)
        found = f"{strange[0]} among them" if strange else f"{len(gradients)} of them"
    raise DifferentiationError(
        f"the vjp of {node.operator.key()} must return a tuple with a cotangent for each of its "
        f"{len(node.inputs)} operands (None where no gradient flows), such as (g * x,), not {found}"
    )


def _active(order: Sequence[Node], wrt: Collection[Value]) -> set[Value]:
    """The values through which a gradient can flow back to ``wrt``."""
    active = set(wrt)
    for node in order:
        if node.operator.differentiable and any(value in active for value in node.inputs if value is not None):
            active.update(output for output in node.outputs if output.dtype.is_float)
    return active
