"""One generator for all contractions: matrix products, convolutions and their gradients, as LLVM IR text.

``generate(Contraction(...), name, target)`` gives a function specialised to its shapes. Every sum has one fixed order.
"""

from __future__ import annotations

from glowtrain.backends.cpu.contraction.choose import choose
from glowtrain.backends.cpu.contraction.cost import Machine
from glowtrain.backends.cpu.contraction.describe import Access, Clip, Contraction, Epilogue, Kernel, normalise
from glowtrain.backends.cpu.contraction.nest import Nest
from glowtrain.backends.cpu.target import Target

__all__ = ["Access", "Clip", "Contraction", "Epilogue", "Kernel", "Machine", "generate", "generate_for"]


def generate(contraction: Contraction, name: str, target: Target, epilogue: Epilogue | None = None) -> Kernel:
    """The text of ``void @name(ptr c, ptr a, ptr b, ptr workspace, <epilogue params>)`` and its helpers.

    All functions have the attributes ``#0`` of the target; helpers are internal and named ``name.*``. The buffers
    must not overlap. ``workspace`` must be aligned to 64 bytes.
    """
    return generate_for(contraction, name, machine_of(target, contraction.dtype), epilogue)


def machine_of(target: Target, dtype: str) -> Machine:
    """A target as choosing sees it. Without vector registers a scalar processor is taken to have 16 for floats."""
    registers = target.vector_registers if target.vector_bits else max(16, target.vector_registers)
    l1, l2 = (48 << 10, 1 << 20) if target.vector_bits == 512 else (32 << 10, 512 << 10)
    return Machine(target.width(dtype), registers, target.has_fma, l1, l2)


def generate_for(contraction: Contraction, name: str, machine: Machine, epilogue: Epilogue | None = None) -> Kernel:
    """:func:`generate` for a machine given by its numbers."""
    plan = choose(normalise(contraction, keep_lanes=epilogue is not None), machine, one_chunk=epilogue is not None)
    nest = Nest(plan, name, epilogue)
    text = nest.text()
    return Kernel(name, text, nest.workspace, f"{plan.describe()}; {len(nest.kernels)} kernels")
