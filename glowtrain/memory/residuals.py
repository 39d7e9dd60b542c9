"""How results wait for the backward pass, as a person asks for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from glowtrain.errors import InputError

ResidualType = Literal["bf16"] | None
"""What a person may ask for: 16 bits, or (``None``) the type in which the forward part computed them."""


@dataclass(frozen=True)
class Residuals:
    """What waits for the backward pass waits in bf16. ``forward`` names variables whose new values are results of the
    forward part, such as running statistics: these, and all outputs, are computed of what was not rounded."""

    forward: tuple[str, ...] = ()


def checked_type(given: str | None) -> ResidualType:
    """What was given, if it is ``"bf16"`` or ``None``. Raises :class:`InputError` for anything else."""
    if given is None:
        return None
    if given == "bf16":
        return "bf16"
    raise InputError(f"residuals {given!r}: say bf16, or nothing to keep what the backward pass reads as it is")
