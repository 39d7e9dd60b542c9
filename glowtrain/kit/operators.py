"""Uses of operators on a backend, by the registry's own samples, against NumPy's references in f64."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.compiler.walk import arrive, select
from glowtrain.errors import CodegenError
from glowtrain.gradcheck.operators import ladder
from glowtrain.gradcheck.operators.edges import drawn_example
from glowtrain.gradcheck.operators.oracles import applied, described, narrowed, whole
from glowtrain.gradcheck.report.report import Measure
from glowtrain.graph import Graph, Operator, registered
from glowtrain.kit.report import FAILED, RAN, REFUSED, OperatorUse
from glowtrain.loops import Accumulate, Apply, Cast, Expr, Load, Reduce, Statement, Store
from glowtrain.program.program import Program
from glowtrain.types import DType, bf16, f16, f32, f64

TYPES = (f32, f64, f16, bf16)
"""The float types of samples; operands of other types stay as they are. Gradients are checked in f32."""
AXES = "no axis", "one axis", "several axes"
ATTEMPTS = 6
"""Samples that are tried for one that the backend does not refuse."""


def operators() -> dict[str, type[Operator]]:
    """The operators that come along, by family and key."""
    classes = registered(lambda cls: cls.__module__.startswith("glowtrain.ops."))
    return {f"{family_of(cls)}-{cls.key()}": cls for cls in classes}


def family_of(operator: type[Operator]) -> str:
    """The folder of ``glowtrain/ops`` that an operator is defined in."""
    return operator.__module__.split(".")[2]


def parts_of(graph: Graph) -> frozenset[str]:
    """What the kernels of a graph are made of, as they are lowered: functions, casts, reductions, axes of operands."""
    program: Program = arrive(graph, stages=select("expanded", "lowered"))
    flat = (statement for kernel in program.kernels for statement in kernel.flat)
    return frozenset(_part(node) for statement in flat for node in (statement, *statement.nodes)) - {""}


def _part(node: Statement | Expr) -> str:
    match node:
        case Apply(function=function):
            return function
        case Cast():
            return "cast"
        case Reduce(op=op):
            return f"reduction by {op}"
        case Accumulate(op=op):
            return f"accumulation by {op}"
        case Load(fill=fill) if fill is not None:
            return "fill"
        case Load(index=index) | Store(index=index):
            return AXES[min(len(index), 2)]
    return ""


def attempted(run: Callable[[], Iterable[Measure]]) -> tuple[list[Measure], str]:
    """The measures of a run, and what the backend says that it cannot."""
    try:
        return list(run()), ""
    except CodegenError as error:
        return [], str(error)


def use_of(operator: type[Operator], dtype: DType, backend: Backend, examples: int) -> OperatorUse | None:
    """An operator in a type, on samples until so many have run; ``None`` where it does not take the type."""
    ran, failures, refusals, parts = 0, list[str](), list[str](), set[str]()
    for example in range(max(ATTEMPTS, examples)):
        sample = drawn_example(operator, 0, example)
        if dtype != f32 and not any(np.asarray(array).dtype == np.float64 for array in sample.inputs):
            continue  # the same as in f32
        use, random = applied(sample), np.random.default_rng(0)
        gradients, slack = operator.differentiable and dtype == f32, ladder.EXACT if dtype == f64 else 1.0
        run = partial(
            narrowed, backend.name, use, dtype, random, gradients=gradients, run=ladder.run_by(backend), slack=slack
        )
        measures, refusal = attempted(run)
        failures += [f"{dtype}, {described(sample)}: {m.detail}" for m in measures if m.status == "failed"]
        refusals += [refusal] if refusal else []
        if measures:
            ran += 1
            parts |= parts_of(whole(use.probe, random, gradients=gradients).graph)
        if ran == examples:
            break
    outcome = FAILED if failures else RAN if ran else REFUSED
    if outcome == REFUSED and not refusals:
        return None
    names = family_of(operator), operator.key(), dtype.name
    return OperatorUse(*names, outcome, failures or refusals, sorted(parts))
