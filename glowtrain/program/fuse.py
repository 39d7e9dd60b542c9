"""Fusion: inline moves and arithmetic into readers, then merge kernels over equal boxes."""

from __future__ import annotations

from dataclasses import replace

from glowtrain.program.inline import inline
from glowtrain.program.merge import merge
from glowtrain.program.program import Program


def fuse(program: Program) -> Program:
    """The same program in fewer kernels."""
    outputs = frozenset(program.outputs.values())
    instructions = inline(program.instructions, outputs)
    return replace(program, instructions=merge(instructions, outputs))
