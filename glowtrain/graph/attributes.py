"""The attributes of operators: what their annotations say, and the values at which they are tested.

A field states its domain by :func:`attribute`. Without one, bools, enumerations and ``Literal`` s have few values, and
numbers are taken around their defaults; nothing else is varied.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import sys
import types
import typing
from collections.abc import Sequence
from typing import Any

from glowtrain.errors import PluginError

DOMAIN = "domain"
"""The key of a field's domain in its metadata."""
STEPS = 4
"""The equal steps in which an interval is covered."""
AROUND = (0.5, 0.75, 1.5, 2.0)
"""What a number is tested at without a domain, as factors on its default."""
FROM_ZERO = (0.25, 0.5, 1.0)
"""What a number is tested at without a domain if its default is 0."""


def attribute(
    default: Any = dataclasses.MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[Any] | None = None,
) -> Any:
    """A field of an operator with the domain on which it is tested: numbers from ``low`` to ``high``, or ``choices``.

    The default belongs to the domain. Raises ``ValueError`` unless there is an interval or there are choices.
    """
    if choices is not None and low is None and high is None:
        domain = tuple(choices)
    elif choices is None and low is not None and high is not None and low <= high:
        domain = _between(low, high)
    else:
        raise ValueError(f"an attribute is tested from low to high or at choices, not {low=}, {high=}, {choices=}")
    return dataclasses.field(default=default, metadata={DOMAIN: domain})


def tested_values(cls: type, field: dataclasses.Field[Any]) -> tuple[Any, ...]:
    """The values at which a field of an operator is tested: the default first, if it has one, and maybe no other."""
    values = field.metadata.get(DOMAIN)
    if values is None:
        values = _usual(field_types(cls).get(field.name), field.default)
    first = () if field.default is dataclasses.MISSING else (field.default,)
    return tuple(value for index, value in enumerate((*first, *values)) if value not in (*first, *values)[:index])


_FIELD_TYPES: dict[type, dict[str, Any]] = {}


def field_types(cls: type) -> dict[str, Any]:
    """The annotation of every field of an operator, with ``None`` taken out of unions.

    Raises :class:`PluginError` for an annotation that names what its module does not.
    """
    if cls not in _FIELD_TYPES:
        _FIELD_TYPES[cls] = _read_annotations(cls)
    return _FIELD_TYPES[cls]


def _read_annotations(cls: type) -> dict[str, Any]:
    owners = {name: owner for owner in reversed(cls.__mro__) for name in vars(owner).get("__annotations__", {})}
    try:
        hints = {field.name: _hint(owners[field.name], field.type) for field in dataclasses.fields(cls)}
    except NameError as error:
        raise PluginError(
            f"{cls.__module__}.{cls.__qualname__}: an annotation cannot be read: {error}; "
            "what annotations name must be imported at the top of the module"
        ) from None
    return {name: _without_none(hint) for name, hint in hints.items()}


def _hint(owner: type, annotation: Any) -> Any:
    """What an annotation of a class says. Those of its class variables, which are many, are not read."""
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, dict(vars(owner)), vars(sys.modules[owner.__module__]))["it"]


def _without_none(hint: Any) -> Any:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not types.NoneType]
        return options[0] if len(options) == 1 else Any
    return hint


def _between(low: float, high: float) -> tuple[float, ...]:
    if isinstance(low, int) and isinstance(high, int):
        return tuple(dict.fromkeys(low + (high - low) * step // STEPS for step in range(STEPS + 1)))
    return tuple(low + (high - low) * step / STEPS for step in range(STEPS + 1))


def _usual(hint: Any, default: Any) -> tuple[Any, ...]:
    """Values for a field that states no domain."""
    if hint is bool:
        return (False, True)
    if typing.get_origin(hint) is typing.Literal:
        return typing.get_args(hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return tuple(hint)
    if hint in (int, float) and default is not None:
        return _near(hint, 1 if default is dataclasses.MISSING else default)
    return ()


def _near(kind: type, default: float) -> tuple[float, ...]:
    """Numbers from half to twice a default; from 0 on if it is 0."""
    if not math.isfinite(default):
        return ()
    if kind is int:
        size = abs(int(default))
        sizes = (1, 2) if size == 0 else (math.ceil(size / 2), size, size + size // 2, 2 * size)
        return tuple(-n if default < 0 else n for n in sizes)
    return FROM_ZERO if default == 0 else tuple(factor * default for factor in AROUND)
