"""The walk: from a graph to what a backend runs, as a table of stages. Everything that compiles, prints, times or
checks stages goes through this table, so that all of it sees the same compiler.

    Graph -> integers -> rounded -> expanded -> optimized -> lowered -> layout -> inlined -> summed -> narrowed -> fused
          -> packed -> ordered -> rematerialized -> program -> plan
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from glowtrain.errors import GraphError
from glowtrain.graph import Graph
from glowtrain.graph import verify as verify_graph
from glowtrain.lower.expand import ExpandOperators
from glowtrain.lower.factors import RoundFactors
from glowtrain.lower.lower import Lower
from glowtrain.optimize.fixed_point import FixedPoint
from glowtrain.optimize.integer import IntegerArithmetic
from glowtrain.optimize.pipeline import Optimize
from glowtrain.program.memory.plan import Plan, PlanMemory
from glowtrain.program.memory.trace import trace
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.passes.layout import AssignLayouts
from glowtrain.program.passes.long_sums import SplitSums
from glowtrain.program.passes.loop_fusion.fuse import FuseLoops
from glowtrain.program.passes.loop_fusion.fuse_pair import Limits
from glowtrain.program.passes.loop_invariant_packing import PackLoopInvariants
from glowtrain.program.passes.narrowing import Narrow
from glowtrain.program.passes.producer_inlining import InlineProducers
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.residuals.residuals import NarrowResiduals
from glowtrain.program.passes.reuse import ReuseOperands
from glowtrain.program.passes.schedule import ScheduleLoops
from glowtrain.program.program import Program
from glowtrain.program.text import plan_text
from glowtrain.program.text import to_text as program_text
from glowtrain.program.verify import verify as verify_program
from glowtrain.stages import DEFAULT, Options, Pass, Stage, View, explainer


def _integers(options: Options) -> Pass:
    return FixedPoint() if options.fixed_point else IntegerArithmetic(explainer(options, "integers"))


def _rounded(options: Options) -> Pass:
    return RoundFactors(options.precision, options.facts.costs)


def _expanded(options: Options) -> Pass:
    return ExpandOperators(options.facts.costs)


def _layout(options: Options) -> Pass:
    return AssignLayouts(
        options.facts.preferred_layouts, not options.row_major_variables, dict(options.variable_layouts)
    )


def _inlined(options: Options) -> Pass:
    return InlineProducers(options.facts.max_inlined, explainer(options, "inlined"))


def _limits(options: Options) -> Limits:
    facts = options.facts
    return Limits(facts.max_operands, facts.max_expressions, facts.max_statements)


def _fused(options: Options) -> Pass:
    return FuseLoops(_limits(options), explainer(options, "fused"))


def _packed(options: Options) -> Pass:
    return PackLoopInvariants(options.facts.panel_row)


def _rematerialized(options: Options) -> Pass:
    facts = options.facts
    explain = explainer(options, "rematerialized")
    limits = replace(_limits(options), sums=facts.sums)
    plain = Rematerialize(options.memory, facts.rates, facts.alignment, limits, explain)
    return plain if options.residuals is None else NarrowResiduals(options.residuals, plain)


WALK: tuple[Stage, ...] = (
    Stage("integers", "what is quantized, in integers", _integers, exact=False),
    Stage("rounded", "factors of products in bf16", _rounded, exact=False),
    Stage("expanded", "composite operators written out", _expanded, minor=True),
    Stage("optimized", "the graph, simplified", lambda options: Optimize(check=options.check)),
    Stage("lowered", "a loop nest for each operator", lambda options: Lower()),
    Stage("layout", "axes in the order in which they are stored", _layout, minor=True),
    Stage("inlined", "producers inlined into their readers", _inlined, minor=True),
    Stage("summed", "long sums in parts", lambda options: SplitSums(), minor=True),
    Stage("narrowed", "without elements that nobody reads", lambda options: Narrow(), minor=True),
    Stage("fused", "loops over equal boxes fused", _fused, minor=True),
    Stage("packed", "matrices that loops multiply with, in panels", _packed, minor=True),
    Stage("ordered", "in an order with a small peak of memory", lambda options: ScheduleLoops(), minor=True),
    Stage("rematerialized", "some results computed again, some kernels in slices", _rematerialized, minor=True),
    Stage("program", "results in place of operands that nobody reads again", lambda options: ReuseOperands()),
    Stage(
        "plan",
        "every activation placed in one arena",
        lambda options: PlanMemory(options.facts.alignment),
        views=(View("lifetimes", trace),),
    ),
)
"""The neutral stages, in order; a backend adds its own, and may replace some (:meth:`Backend.stages`)."""


@dataclass(frozen=True)
class Arrival:
    """The result of a stage, and the seconds that its pass took (without verifiers)."""

    stage: Stage
    result: Any
    seconds: float


def walk(subject: Any, options: Options = DEFAULT, stages: Sequence[Stage] = WALK) -> Iterator[Arrival]:
    """Take a graph, or what an earlier stage made of one, through ``stages``.

    With ``options.check`` the verifier of each result runs; a :class:`GraphError` names the stage that broke it.
    """
    for stage in stages:
        arrival = take(subject, options, stage)
        yield arrival
        subject = arrival.result


def take(subject: Any, options: Options, stage: Stage) -> Arrival:
    """One stage of :func:`walk`."""
    step = stage.make(options)
    began = time.perf_counter()
    result = step.run(subject)
    seconds = time.perf_counter() - began
    if options.check:
        verify(result, stage.name)
    return Arrival(stage, result, seconds)


def arrive(subject: Any, options: Options = DEFAULT, stages: Sequence[Stage] = WALK) -> Any:
    """What the last of ``stages`` makes of ``subject``: by default the plan of a graph."""
    for arrival in walk(subject, options, joined(stages)):
        subject = arrival.result
    return subject


def joined(stages: Sequence[Stage]) -> tuple[Stage, ...]:
    """Stages that lead to the same result: two in one where a pass does both."""
    found: list[Stage] = []
    for stage in stages:
        fused = stage.fused
        if fused is not None and found and (found[-1].make, stage.make) == (fused.first, fused.second):
            found[-1] = replace(stage, make=fused.make)
        else:
            found.append(stage)
    return tuple(found)


def select(*names: str, stages: Sequence[Stage] = WALK) -> tuple[Stage, ...]:
    """Some stages of a walk by name, in the walk's order. Raises :class:`KeyError` for a name that is not there."""
    if unknown := set(names) - {stage.name for stage in stages}:
        raise KeyError(f"no stage {', '.join(sorted(unknown))}; there are {', '.join(s.name for s in stages)}")
    return tuple(stage for stage in stages if stage.name in names)


def until(name: str, stages: Sequence[Stage] = WALK) -> tuple[Stage, ...]:
    """The stages up to the one of this name, that one included."""
    return tuple(stages[: _position(name, stages) + 1])


def after(name: str, stages: Sequence[Stage] = WALK) -> tuple[Stage, ...]:
    """The stages after the one of this name."""
    return tuple(stages[_position(name, stages) + 1 :])


def _position(name: str, stages: Sequence[Stage]) -> int:
    (stage,) = select(name, stages=stages)
    return list(stages).index(stage)


def text_of(result: Any) -> str:
    """The text of a stage's result."""
    match result:
        case Program():
            return program_text(result)
        case Plan():
            return plan_text(result)
    return str(result)


def verify(result: Any, stage: str) -> None:
    """Run the verifier of a stage's result; what a backend makes of a plan has none.

    Raises :class:`GraphError` that names the stage.
    """
    match result:
        case Graph():
            _verify_graph(result, stage)
        case Program():
            verify_program(result, stage)
        case Plan():
            verify_plan(result)


def _verify_graph(graph: Graph, stage: str) -> None:
    try:
        verify_graph(graph)
    except GraphError as error:
        raise GraphError(f"after stage {stage}: {error}") from error
