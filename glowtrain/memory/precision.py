"""In which type products are taken: the setting of a person, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from glowtrain.errors import InputError

LEAST_FACTOR = 2.0**-56
"""The least magnitude of a factor in 16 bits that is not 0."""
NARROW, WIDE = "bf16", "f32"
ALL = "*"
"""The pattern of all layers."""
EXAMPLE = {ALL: NARROW, "head": WIDE}


@dataclass(frozen=True)
class RoundedFactors:
    """Factors of products are in 16 bits, but for those of products in the layers of these names."""

    wide: tuple[str, ...] = ()


Precision = str | Mapping[str, str] | RoundedFactors | None
"""What a person may ask for: ``"bf16"``, types by patterns of layers' names, or (``None``) the type that the model has;
and what became of it for a model."""


def types_of(precision: str | Mapping[str, str]) -> dict[str, str]:
    """The types of products by patterns of layers' names, of which the last that fits a layer counts.

    Raises :class:`InputError` for what is neither ``"bf16"`` nor patterns with bf16 and f32, and where none has bf16.
    """
    types: dict[Any, Any] = dict(precision) if isinstance(precision, Mapping) else {ALL: precision}
    for pattern, given in types.items():
        if not isinstance(pattern, str) or given not in (NARROW, WIDE):
            where = "" if pattern == ALL else f" of {pattern!r}"
            raise InputError(
                f"precision {given!r}{where}: say {NARROW}, or types by patterns of layers as in {EXAMPLE}, or nothing "
                "to multiply in the type that the model has"
            )
    if NARROW not in types.values():
        raise InputError(f"precision: nothing is {NARROW}, so nothing would be rounded; leave it out, or say {EXAMPLE}")
    return types


def checked_precision(precision: Precision) -> None:
    """Raise :class:`InputError` for what is no precision (see :func:`types_of`)."""
    if precision is not None and not isinstance(precision, RoundedFactors):
        types_of(precision)


def precision_in(texts: Sequence[str]) -> Precision:
    """A precision from the command line: ``bf16`` for all layers, ``PATTERN:TYPE`` for some, the later over the
    earlier ones."""
    if len(texts) == 1 and ":" not in texts[0]:
        return texts[0]
    split = (text.rpartition(":") for text in texts)
    return {pattern or ALL: given for pattern, _, given in split} or None
