"""What layer functions ask of their arguments. All raise :class:`ShapeError` naming the layer and what it was given."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any

from glowtrain.errors import ShapeError
from glowtrain.graph import Value


def check_input(
    layer: str, x: Value, example: str, least: int, most: int | None = None, *, floats: bool = True
) -> None:
    """x is a float tensor of at least rank ``least``, at most ``most``; ``example`` shows one: ``x[batch,
    features]``."""
    if not isinstance(x, Value):
        raise ShapeError(f"{layer}: takes a value of the graph, {example}, not a {type(x).__name__}")
    if x.rank < least or (most is not None and x.rank > most):
        raise ShapeError(f"{layer}: takes {example}, but x is {x.type}")
    if floats and not x.dtype.is_float:
        raise ShapeError(f"{layer}: takes floats, but x is {x.type}; cast it first")


def check_extents(layer: str, least: int = 1, **extents: Any) -> None:
    """Each is a whole number, or a sequence of them, and at least ``least``."""
    for name, value in extents.items():
        items = value if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
        if not all(_is_whole(item) and item >= least for item in items):
            raise ShapeError(f"{layer}: {name} must be whole numbers of at least {least}, not {value!r}")


def check_share(layer: str, name: str, value: Any, *, below_one: bool = False) -> None:
    """A number from 0 to 1 (1 excluded if ``below_one``)."""
    if not isinstance(value, (int, float)) or not 0 <= value <= 1 or (below_one and value == 1):
        bounds = "at least 0 and below 1" if below_one else "from 0 to 1"
        raise ShapeError(f"{layer}: {name} must be {bounds}, not {value!r}")


def _is_whole(value: Any) -> bool:
    try:
        index(value)
    except TypeError:
        return False
    return not isinstance(value, bool)
