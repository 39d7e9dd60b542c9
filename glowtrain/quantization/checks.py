"""Check the types of arguments, and say what to give instead."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Any

from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Template, no_model
from glowtrain.presentation.messages import kind_of


def check_model(model: Any) -> None:
    """Raise :class:`QuantizationError` for what is neither a graph nor a template."""
    if isinstance(model, (Graph, Template)):
        return
    raise QuantizationError(f"a model is a graph or a template, {no_model(model)}")


def check_kind(what: str, value: Any, kind: type) -> None:
    """Raise :class:`QuantizationError` for a value of another class."""
    if not isinstance(value, kind):
        raise QuantizationError(f"{what} is a {kind.__name__}, not {kind_of(value)}")


def check_count(what: str, value: Any) -> None:
    """Raise :class:`QuantizationError` for what is no whole number."""
    try:
        operator.index(value)
    except TypeError:
        raise QuantizationError(f"{what} is a whole number, not {value!r}") from None


def check_names(rule: str, names: Any) -> None:
    """Raise :class:`QuantizationError`, beginning with ``rule``, for what is no collection of names."""
    if not isinstance(names, Collection) or not all(isinstance(name, str) for name in names):
        raise QuantizationError(f"{rule}, not {names!r}")
