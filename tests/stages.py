"""Single stages of the walk, for tests that look at what stands between."""

from __future__ import annotations

from glowtrain.compiler.walk import arrive, select
from glowtrain.graph import Graph
from glowtrain.program.program import Program
from glowtrain.stages import Options


def lower(graph: Graph) -> Program:
    """The program of a graph, not optimized."""
    program: Program = arrive(graph, stages=select("expanded", "lowered"))
    return program


def fuse(program: Program) -> Program:
    """A program after inlining and loop fusion."""
    fused: Program = arrive(program, stages=select("inlined", "fused"))
    return fused


def scheduled(program: Program, *, check: bool = False) -> Program:
    """A lowered program as it is planned."""
    stages = select("layout", "inlined", "fused", "ordered", "rematerialized", "program")
    finished: Program = arrive(program, Options(check=check), stages)
    return finished
