"""How compiled code is called: with a table of pointers, which begins with the arena, the workspaces and the pool of
threads; then come the buffers outside of the arena. And what a module for an object file says of its functions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from glowtrain.native import NativeFunction
from glowtrain.types import Array, TensorType

if TYPE_CHECKING:
    from glowtrain.backends.cpu.panels import Packing
    from glowtrain.program.memory.plan import Plan

ARENA, WORKSPACES, POOL, FIRST_SLOT = range(4)
"""What the table begins with; then the buffers outside of the arena."""


@dataclass(frozen=True)
class Slot:
    """A tensor outside of the arena: an input, output or variable by name, or a constant by its number; or a copy of
    the variable of this name, whose axes lie as ``layout`` says, in the encoding of ``packing``."""

    kind: Literal["input", "output", "variable", "constant", "packed", "unused"]
    name: str
    type: TensorType
    layout: tuple[int, ...]
    packing: Packing | None = None


@dataclass(frozen=True)
class LinkableFunction:
    """A function of a module: the plan that it carries out, its symbol, the bytes of workspace that each thread needs,
    what its table holds after the first entries, constants as the code reads them by the names of their slots, and the
    functions of this process that it calls."""

    plan: Plan
    entry: str
    workspace: int
    slots: tuple[Slot, ...]
    constants: Mapping[str, Array]
    natives: tuple[NativeFunction, ...]

    @property
    def layouts(self) -> dict[str, tuple[int, ...]]:
        """The order of each variable's axes in memory."""
        return {slot.name: slot.layout for slot in self.slots if slot.kind == "variable"}


@dataclass(frozen=True)
class LinkableModule:
    """Functions over the same variables as one text, which alone sees them: who calls them stands behind it, in the
    same module."""

    text: str
    functions: Mapping[str, LinkableFunction]
