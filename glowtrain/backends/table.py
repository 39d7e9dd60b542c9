"""The table of pointers that a step is given: its first entries; then come the buffers outside of the arena."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from glowtrain.types import TensorType

if TYPE_CHECKING:
    from glowtrain.backends.cpu.panels import Packing

ARENA, WORKSPACES, POOL, FIRST_SLOT = range(4)
"""What the table begins with; then the buffers outside of the arena."""


@dataclass(frozen=True)
class Slot:
    """A tensor outside of the arena: an input, output or variable by name, or a constant by its number; or a copy of
    the variable of this name, whose axes lie as ``layout`` says, in the form of ``packing``."""

    kind: Literal["input", "output", "variable", "constant", "packed", "unused"]
    name: str
    type: TensorType
    layout: tuple[int, ...]
    packing: Packing | None = None
