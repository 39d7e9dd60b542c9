"""One generator for all contractions: matrix products, convolutions and their gradients, as LLVM IR text.

``generate(Contraction(...), name, target)`` gives a function specialised to its shapes. Every sum has one fixed order.
"""

from __future__ import annotations

from glowtrain.backends.cpu.contraction.choose import choose
from glowtrain.backends.cpu.contraction.describe import (
    Axis,
    Contraction,
    ContractionKernel,
    Epilogue,
    EpilogueClip,
    Operand,
    OperandAccess,
    normalise,
)
from glowtrain.backends.cpu.contraction.nest import Nest
from glowtrain.backends.cpu.contraction.rates import Machine
from glowtrain.backends.cpu.contraction.words import prepare
from glowtrain.backends.llvm.target import Target

__all__ = [
    "Axis",
    "Contraction",
    "ContractionKernel",
    "Epilogue",
    "EpilogueClip",
    "Machine",
    "Operand",
    "OperandAccess",
    "generate",
]


def generate(
    contraction: Contraction, name: str, target: Target, epilogue: Epilogue | None = None, linkage: str = ""
) -> ContractionKernel:
    """The text of ``void @name(c, a, b, <epilogue pointers>, workspace, <epilogue indices>, begin, end)``, which runs a
    range of tasks, and its helpers.

    All functions have the attributes ``#0`` of the target; helpers are internal and named ``name.*``. The buffers
    must not overlap. ``workspace`` must be aligned to 64 bytes. ``linkage`` is the function's own.
    """
    prepared = prepare(contraction, target)
    problem = normalise(prepared.contraction, keep_lanes=epilogue is not None, dot=prepared.dot)
    plan = choose(problem, Machine.of(target, contraction.dtype))
    nest = Nest(plan, name, epilogue, prepared, linkage)
    functions = nest.functions()
    operand = 0 if prepared.turned != plan.problem.swapped else 1
    packed = (operand, nest.packing) if nest.packing and nest.ahead else None
    return ContractionKernel(
        name, functions, nest.workspace, f"{plan.describe()}; {len(nest.kernels)} kernels", nest.cut.work, packed
    )
