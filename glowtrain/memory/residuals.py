"""How activations are saved for the backward pass: the setting of a person, checked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glowtrain.errors import InputError

ResidualType = Literal["bf16"] | None
"""What a person may ask for: 16 bits, or (``None``) the type in which the forward part computed them."""


@dataclass(frozen=True)
class Residuals:
    """Activations are saved for the backward pass in bf16. ``forward`` names variables whose new values are results of
    the forward part, such as running statistics: these, and all outputs, are computed of what was not rounded."""

    forward: tuple[str, ...] = ()


def checked_type(residuals: str | None) -> ResidualType:
    """What was given, if it is ``"bf16"`` or ``None``. Raises :class:`InputError` for anything else."""
    if residuals is None:
        return None
    if residuals == "bf16":
        return "bf16"
    raise InputError(f"residuals {residuals!r}: say bf16, or nothing to keep what the backward pass reads as it is")
