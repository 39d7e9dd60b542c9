"""Programs of kernels that are written by hand or drawn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from glowtrain.loops import Buffer
from glowtrain.program.program import Instruction, Kernel, Program


def program(*kernels: Any, inputs: Sequence[Buffer] = (), outputs: Sequence[Buffer] = (), **fields: Any) -> Program:
    """Kernels, or their statements, over these buffers."""
    instructions = tuple(k if isinstance(k, Instruction) else Kernel("k", tuple(k)) for k in kernels)
    return Program(
        "p",
        {b.name: b for b in inputs},
        {b.name: b for b in outputs},
        fields.pop("variables", {}),
        instructions,
        **fields,
    )
