"""Forward mode: how outputs change along tangents of any values, as graph code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glowtrain.errors import DifferentiationError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Input, Value, constant, rebuild
from glowtrain.ops.tensor.move import zeros


def jvp(outputs: Sequence[Value], wrt: Sequence[Value], tangents: Sequence[Any]) -> list[Value]:
    """The derivative of each output along ``tangents``, one (a value or an array) of each type of ``wrt``.

    The result has the outputs' types (zeros where an output does not depend on ``wrt``, or is not a float), and is
    graph code that can be differentiated again. Its cost is a small multiple of the outputs' for any size of ``wrt``.

    The Jacobian-vector product is the gradient, with respect to the cotangents, of the vector-Jacobian product (J.
    Townsend, "A new trick for calculating Jacobian vector products", 2017): the pullback is linear in its cotangents,
    so their own values do not matter, and what computes only them is no part of the result. Every operator with a
    gradient rule so has a forward one. Raises :class:`DifferentiationError` for tangents that do not fit, for values in
    ``wrt`` that are not floats, and where an operator on a path has no gradient rule.
    """
    directions = _directions(wrt, tangents)
    seeds = {k: Input(y.type, f"cotangent{k}") for k, y in enumerate(outputs) if y.dtype.is_float}
    pulled = pullback([outputs[k] for k in seeds], list(seeds.values()), wrt)
    pairs = [(g, direction) for g, direction in zip(pulled, directions, strict=True) if g is not None]
    found = pullback([g for g, _ in pairs], [direction for _, direction in pairs], list(seeds.values()))
    known = dict(zip(seeds, found, strict=True))
    results = [zeros(y.type) if (slope := known.get(k)) is None else slope for k, y in enumerate(outputs)]
    return rebuild(results, {seed: zeros(seed.type) for seed in seeds.values()})


def _directions(wrt: Sequence[Value], tangents: Sequence[Any]) -> list[Value]:
    if len(wrt) != len(tangents):
        raise DifferentiationError(f"{len(tangents)} tangents were given for {len(wrt)} values; each needs one")
    if len(set(wrt)) != len(wrt):
        raise DifferentiationError("a value occurs twice among those to move; add its tangents instead")
    return [_direction(value, tangent) for value, tangent in zip(wrt, tangents, strict=True)]


def _direction(value: Value, tangent: Any) -> Value:
    if not value.dtype.is_float:
        raise DifferentiationError(f"{value!r} is not of a float type: there is no derivative along it")
    direction = tangent if isinstance(tangent, Value) else constant(tangent, value.dtype)
    if direction.type != value.type:
        raise DifferentiationError(f"the tangent of {value!r} is {direction.type}; it must be {value.type}")
    return direction
