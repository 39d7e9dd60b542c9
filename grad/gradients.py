"""Gradients of a scalar with respect to any values, as graph code."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TypeVar

from glowtrain.errors import DifferentiationError
from glowtrain.grad.flow import Flow
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Value, constant
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.tensor.move import zeros

Leaf = TypeVar("Leaf", bound=Value)


def gradients(loss: Value, wrt: Sequence[Value]) -> list[Value]:
    """d loss / d value for each value of ``wrt``, each of the value's type: zeros where the loss does not depend on it.

    The result is graph code and can be differentiated again. Raises :class:`DifferentiationError` if the loss is not a
    float scalar, if something in ``wrt`` is not a float tensor, or if operators without a gradient cut every path from
    all of ``wrt`` to the loss; the message names them.
    """
    found = _gradients(loss, wrt)
    if wrt and all(gradient is None for gradient in found):
        _refuse_if_cut(loss, wrt)
    return [zeros(value.type) if gradient is None else gradient for value, gradient in zip(wrt, found, strict=True)]


def reached(loss: Value, wrt: Sequence[Leaf], connected: Collection[Leaf] = ()) -> dict[Leaf, Value]:
    """The gradients for those of ``wrt`` that a differentiable path connects with the loss, in order; zeros for those
    that are ``connected`` by another notion.

    Raises :class:`DifferentiationError` as :func:`gradients` does.
    """
    found = _gradients(loss, wrt)
    if all(gradient is None for gradient in found) and not connected:
        _refuse_if_cut(loss, wrt)
    pairs = zip(wrt, found, strict=True)
    every = {value: zeros(value.type) if g is None and value in connected else g for value, g in pairs}
    return {value: gradient for value, gradient in every.items() if gradient is not None}


def stop_gradient(value: Value) -> Value:
    """The same value, as a constant to differentiation: no gradient flows through it."""
    result: Value = StopGradient()(value)
    return result


def _gradients(loss: Value, wrt: Sequence[Value]) -> tuple[Value | None, ...]:
    check_scalar(loss)
    for value in wrt:
        if not value.dtype.is_float:
            raise DifferentiationError(f"{value!r} is not of a float type: there is no gradient with respect to it")
    return pullback([loss], [constant(1.0, loss.dtype)], wrt)


def check_scalar(loss: Value) -> None:
    """Raise :class:`DifferentiationError` unless ``loss`` is a float scalar."""
    if loss.shape != () or not loss.dtype.is_float:
        advice = "reduce it, for example to its mean" if loss.shape else "cast it to a float type"
        raise DifferentiationError(f"the loss must be a scalar of a float type, its type is {loss.type}; {advice}")


def _refuse_if_cut(loss: Value, wrt: Sequence[Value]) -> None:
    flow = Flow([loss])
    cuts = {f"{cut.node}: {cut.why}": cut for value in wrt for cut in flow.of(value).cuts if cut.kind != "stopped"}
    if cuts:
        names = ", ".join(value.name or str(value.type) for value in wrt[:4]) + (", ..." if len(wrt) > 4 else "")
        raise DifferentiationError(f"no gradient reaches {names}: the path to the loss is cut by " + "; ".join(cuts))
