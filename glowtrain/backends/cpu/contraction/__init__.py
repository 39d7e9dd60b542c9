"""One generator for all contractions: matrix products, convolutions and their gradients, as LLVM IR text.

``generate(Contraction(...), name, target)`` gives a function specialised to its shapes. Every sum has one fixed order.
"""

from __future__ import annotations

from collections.abc import Iterator

from glowtrain.backends.cpu.contraction.choose import ContractionPlan, choose
from glowtrain.backends.cpu.contraction.describe import (
    Axis,
    Contraction,
    ContractionKernel,
    EpilogueClip,
    Operand,
    OperandAccess,
    Problem,
    normalise,
)
from glowtrain.backends.cpu.contraction.dot_product import Prepared, prepare, prepare_for_matrices
from glowtrain.backends.cpu.contraction.matrices.choose import choose_matrices
from glowtrain.backends.cpu.contraction.nest import Nest
from glowtrain.backends.cpu.contraction.pairs import padded, prepare_pairs
from glowtrain.backends.cpu.contraction.rates import Machine
from glowtrain.backends.cpu.epilogue import Epilogue
from glowtrain.backends.target import Target

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
    prepared, plan = min(plans(contraction, target, epilogue), key=lambda found: found[1].cost + found[0].cycles)
    nest = Nest(plan, name, epilogue, prepared, linkage)
    functions = nest.functions()
    operand = 0 if prepared.turned != plan.problem.swapped else 1
    packed = (operand, nest.packing) if nest.packing and nest.prepacked else None
    return ContractionKernel(
        name, functions, nest.workspace, f"{plan.describe()}; {len(nest.kernels)} kernels", nest.cut.work, packed
    )


def plans(
    contraction: Contraction, target: Target, epilogue: Epilogue | None
) -> Iterator[tuple[Prepared, ContractionPlan]]:
    """The best plan in vectors, and the best ones in pairs of bf16 and in matrices where the target multiplies
    these."""
    machine = Machine.of(target, contraction.dtype)

    def problem(prepared: Prepared) -> Problem:
        return normalise(prepared.contraction, keep_lanes=epilogue is not None, dot=prepared.dot)

    prepared = prepare(contraction, target) if contraction.sums_integers else padded(contraction)
    plain = problem(prepared)
    yield prepared, choose(plain, machine)
    in_pairs = prepare_pairs(contraction, prepared, target)
    if in_pairs is not None and (pairs := problem(in_pairs)).order_key == plain.order_key:
        yield in_pairs, choose(pairs, machine)
    in_matrices = prepare_for_matrices(contraction, target)
    if in_matrices is not None:
        plan = choose_matrices(problem(in_matrices), machine, padded=in_matrices.padded)
        if plan is not None:
            yield in_matrices, plan
