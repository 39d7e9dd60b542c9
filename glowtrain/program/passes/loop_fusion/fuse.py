"""Fusion: inline moves and arithmetic into readers, then merge kernels over equal boxes."""

from __future__ import annotations

from dataclasses import replace

from glowtrain.loops import Buffer
from glowtrain.program.passes.loop_fusion.merge import merge
from glowtrain.program.passes.producer_inlining import inline
from glowtrain.program.program import Program


def fuse(program: Program) -> Program:
    """The same program in fewer kernels."""
    outputs = frozenset(program.outputs.values())
    instructions = merge(inline(program.instructions, outputs), outputs)
    touched = frozenset[Buffer]().union(*(instruction.touched for instruction in instructions))
    constants = tuple(buffer for buffer in program.constants if buffer in touched)
    return replace(program, instructions=instructions, constants=constants)
