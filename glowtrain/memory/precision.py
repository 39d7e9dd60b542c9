"""In which type products are taken: the setting of a person, checked."""

from __future__ import annotations

from typing import Literal

from glowtrain.errors import InputError

Precision = Literal["bf16"] | None
"""What a person may ask for: factors of products in 16 bits, or (``None``) in the type that the model has."""
LEAST_FACTOR = 2.0**-56
"""The least magnitude of a factor in 16 bits that is not 0."""


def checked_precision(precision: str | None) -> Precision:
    """What was given, if it is ``"bf16"`` or ``None``. Raises :class:`InputError` for anything else."""
    if precision is None:
        return None
    if precision == "bf16":
        return "bf16"
    raise InputError(f"precision {precision!r}: say bf16, or nothing to multiply in the type that the model has")
