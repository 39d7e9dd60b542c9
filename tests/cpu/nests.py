"""Programs of nests, and their native code beside the evaluator on every kind of target."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from glowtrain.backends.target import Target
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.program import Instruction, Kernel, Program
from glowtrain.program.verify import verify
from glowtrain.types import Array
from tests.cpu.cpu_kernels import runnable, same
from tests.cpu.native_program import Native

WIDE = replace(Target.host(), name="wide", vector_bits=512)
TARGETS = {target.name: target for target in [Target.host(), WIDE, *runnable("avx2", "sse4", "scalar")]}


def program(*kernels: Any, **fields: Any) -> Program:
    """Kernels (or their statements) over the buffers that they touch, listed by kind."""
    made = tuple(k if isinstance(k, Instruction) else Kernel(f"k{n}", tuple(k)) for n, k in enumerate(kernels))
    buffers = list(dict.fromkeys(b for instruction in made for b in instruction.operands))
    inputs, outputs, variables = (
        {b.name: b for b in buffers if b.kind == kind} for kind in ("input", "output", "variable")
    )
    return Program("p", inputs, outputs, variables, made, updates=tuple(variables), **fields)


def feeds_of(random: np.random.Generator, p: Program) -> dict[str, Array]:
    """Numbers that sums round."""
    return {name: random.normal(size=b.shape).astype(b.dtype.numpy) for name, b in p.inputs.items()}


def check(p: Program, feeds: dict[str, Array], target: Target, tolerance: float = 0.0) -> None:
    """Native results are the evaluator's, and the same bits again; ``tolerance`` is absolute."""
    verify(p)
    native = Native(p, target)
    got, again = native.run(feeds), native.run(feeds)
    expected = evaluate(p, feeds)
    for results, others, wanted in zip(got, again, expected, strict=True):
        for name, array in wanted.items():
            assert np.all(same(results[name], others[name])), f"{name} differs from run to run\n{p}"
            wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in (results[name], array)]
            message = f"{name} on {target.name}\n{p}"
            if tolerance:
                np.testing.assert_allclose(*wide, rtol=0, atol=tolerance, err_msg=message)
            else:
                np.testing.assert_array_equal(*wide, err_msg=message)
