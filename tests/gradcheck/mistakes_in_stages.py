"""Mistakes in the reverse walk, in every stage of the compiler, and in optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import test_laws as laws
from changes import always, around, constant, instead, keep, never, off_by_one, result, rewrite, scale, swap, wrap
from planting import Find, Mistake, ones, operator, program, suite

from glowtrain.backends.cpu import step
from glowtrain.backends.cpu.contraction import tile
from glowtrain.backends.cpu.loop_nest import reduction, writer
from glowtrain.grad import reverse, training
from glowtrain.graph import Node
from glowtrain.loops import For, Index, Statement, Store, call, rewrite_body, substitute
from glowtrain.lower import lower, update_groups, updates
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.transcendental import Transcendental
from glowtrain.optim import adam_variants, optimizer, rules, schedules
from glowtrain.optimize import cse, scan, simplify
from glowtrain.program.analysis import kernel_key, write_coverage
from glowtrain.program.memory import packing, plan
from glowtrain.program.passes import layout, narrowing, producer_inlining, reuse, schedule
from glowtrain.program.passes.loop_fusion import fuse
from glowtrain.program.passes.rematerialisation import timeline
from tests.program import test_narrowing, test_random_rematerialisation, test_update_groups
from tests.training import test_grad, test_optim, test_parts


def trained(name: str) -> Find:
    """The optimizer's 100 steps against NumPy's."""
    return suite(test_optim.test_100_steps_agree_with_numpy, name, "interpreter")


ACCUMULATION = suite(
    test_optim.test_accumulation_updates_once_with_the_mean, lambda n: rules.SGD(0.1, accumulate=n), "interpreter"
)
GLOBAL_NORM = suite(test_optim.test_clipping_by_global_norm_scales_all_parameters_together, "interpreter")


def scheduled(schedule: schedules.Schedule, factor: Callable[[float], float]) -> Find:
    """The rates of 100 steps against the schedule's formula."""
    return suite(test_optim.test_schedules_are_computed_inside_the_step, schedule, factor)


def one_short(loops: list[Statement]) -> list[Statement]:
    """The loop ends one element before the last."""
    (loop,) = loops
    if not isinstance(loop, For) or not loop.indices:
        return loops
    *rest, last = loop.indices
    short = Index(max(last.extent - 1, 1), "short")
    return [For((*rest, short), rewrite_body(loop.body, {last: short}.get))]


def from_the_neighbour(loops: list[Statement]) -> list[Statement]:
    """Each element is computed from its neighbour, the last from the first."""
    (loop,) = loops
    if not isinstance(loop, For) or not loop.indices:
        return loops
    (store,), last = loop.body, loop.indices[-1]
    assert isinstance(store, Store)
    moved = substitute(store.value, {last: (last + 1) % max(last.extent, 1)})
    return [For(loop.indices, (Store(store.buffer, store.index, moved),))]


def branches_swapped(rule: Any, node: Node) -> Any:
    """The rule for Where, seeing each value in the place of the other."""
    condition, x, y = node.inputs
    return rule(Node(node.operator, (condition, y, x), node.name))


WALK = [
    Mistake("lost accumulation", reverse, keep("_ if _ is None else _ + X"), program("gradient")),
    Mistake("accumulated twice", reverse, scale("_ if _ is None else _ + X", 2.0), program("gradient")),
    Mistake(
        "operand used twice",
        reverse,
        rewrite("A is None or not B.dtype.is_float", "A is None or B in self.cotangents or not B.dtype.is_float"),
        suite(test_grad.test_values_used_many_times_accumulate),
    ),
    Mistake(
        "non-finite loss updates",
        training,
        keep("Where()(_, X, _)"),
        suite(test_grad.test_a_loss_that_is_not_finite_changes_nothing, float("nan"), "interpreter"),
    ),
    Mistake(
        "wrong result type", Transcendental.reference, result(lambda y: y.astype(np.float32)), operator("Tanh", "types")
    ),
    Mistake(
        "wrong function",
        Transcendental.scalar,
        instead(lambda self, x: call("sin", x)),
        operator("Tanh", "evaluator", 6),
    ),
]

LOWERING = [
    Mistake("loop one short", Elementwise.lower, result(one_short), operator("Tanh", "planned", 6)),
    Mistake(
        "neighbour of the last element",
        Elementwise.lower,
        result(from_the_neighbour),
        operator("Sigmoid", "compiled", 6),
    ),
    Mistake(
        "part of an update at its beginning",
        updates._pieces,
        rewrite("A[B] + C.shape[B]", "A[B]"),
        suite(test_parts.test_a_step_updates_the_part_alone, "columns", "sgd"),
    ),
    Mistake(
        "updated before others read it",
        lower._Lowering._place,
        result(lambda place: -1),
        suite(test_update_groups.test_a_group_stands_behind_all_that_reads_its_variables),
    ),
    Mistake(
        "two updates of what the other reads",
        update_groups,
        always("_.get(_, _) is _"),
        suite(test_update_groups.test_variables_exchange_their_values),
    ),
    Mistake("stale value", lower, always('_.buffer.kind != "variable" or _'), program("plan")),
    Mistake(
        "last step of a scan in the wrong slot",
        lower,
        rewrite("copy(A.at(B), C)", "copy(A.at(B - 1), C)"),
        operator("Scan", "evaluator", 9),
    ),
    Mistake("scan stack written backwards", lower._step, swap("X if _ else Y"), operator("Scan", "evaluator", 9)),
    Mistake(
        "state of a scan overwritten while it is read",
        lower,
        rewrite("A.at(B + 1)", "A.at(B)"),
        operator("Scan", "evaluator", 9),
    ),
    Mistake(
        "overlapping buffers",
        plan.lifetimes,
        result(lambda found: {buffer: (first, first) for buffer, (first, _) in found.items()}),
        program("plan"),
    ),
    Mistake(
        "buffers that end where others begin",
        packing,
        rewrite("(A <= B) & (C >= D)", "(A < B) & (C > D)"),
        program("plan"),
    ),
    Mistake("sizes rounded down", plan, rewrite("-(-max(A, 1) // B)", "A // B"), program("plan")),
    Mistake(
        "carried buffer planned as local",
        plan,
        always("_.get(_, 0) == 1 and _"),
        operator("Scan", "planned", 24),
    ),
    Mistake(
        "part that a trip writes planned as the whole",
        plan,
        rewrite("covers(_, A)", "len(A) > 0"),
        suite(laws.test_rows_that_trips_write_one_by_one_are_carried),
    ),
    Mistake(
        "what all trips write counts for each",
        write_coverage,
        constant("tuple(_ - set(_) - set(_))", ()),
        suite(laws.test_rows_that_trips_write_one_by_one_are_carried),
    ),
    Mistake(
        "made again of what was updated meanwhile",
        timeline.Timeline.unchanged,
        instead(lambda *_: True),
        suite(test_random_rematerialisation.test_random_programs_are_changed_and_keep_their_results),
    ),
    Mistake(
        "rows from the first one on",
        narrowing._over,
        rewrite("A + B if B else A", "A"),
        suite(test_narrowing.test_random_graphs_compute_the_same),
    ),
    Mistake(
        "rows without the last one",
        narrowing._along_axis,
        rewrite("min(A + 1, B)", "min(A, B)"),
        suite(test_narrowing.test_random_graphs_compute_the_same),
    ),
    Mistake(
        "result in the place of an operand that is read elsewhere",
        reuse,
        never("same_element(_, _)"),
        suite(test_random_rematerialisation.test_random_programs_are_changed_and_keep_their_results),
    ),
    Mistake("write overtakes a read", schedule.predecessors, constant("_.get(_, ())", ()), program("plan", seed=1)),
    Mistake("read overtakes a write", schedule.predecessors, never("_ in _"), program("plan")),
    Mistake(
        "inlined past an update",
        producer_inlining,
        rewrite("min(A, default=math.inf)", "math.inf"),
        program("plan"),
    ),
    Mistake("merged past what lies between", fuse, never("conflict(_, _)"), program("plan")),
    Mistake(
        "layout of the caller's arrays changed",
        layout,
        always('_.kind not in ("input", "output")'),
        operator("Conv", "compiled", 6),
    ),
    Mistake(
        "uneven constants folded to one",
        producer_inlining.fold_constants,
        always("_.size == 1 or _"),
        program("plan"),
    ),
]

PASSES = [
    Mistake(
        "attributes ignored in common subexpressions",
        cse.exact_attributes,
        instead(lambda _: ()),
        suite(laws.test_passes_keep_results),
    ),
    Mistake("random draws merged", cse._Merger, never("_.operator.random"), suite(laws.test_random_draws_differ)),
    Mistake(
        "neutral element of the wrong operator",
        simplify.neutral_right,
        constant("-0.0", 1.0),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "permutations composed the wrong way",
        simplify.transpose_of_transpose,
        swap("tuple(X[_] for _ in Y)"),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "cast through a narrower type dropped",
        simplify.holds_all,
        rewrite("A and B and _ >= _ and _ >= _", "A and B"),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "known condition takes the other branch",
        simplify.constant_condition,
        around(branches_swapped),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "scans in two directions merged",
        scan,
        constant("_.input_directions", ()),
        suite(laws.test_passes_keep_results),
    ),
]

CODE = [
    Mistake("tail one lane short", writer.Nests, off_by_one("first_lanes(_, X)", -1), operator("Tanh", "compiled", 12)),
    Mistake("tail left out", writer.Nests._rest, instead(lambda *_: None), operator("Tanh", "compiled", 12)),
    Mistake(
        "tail of a reduction unmasked", reduction.first_lanes, off_by_one("_ < X"), suite(laws.test_tails_of_reductions)
    ),
    Mistake("rest of a row left out", writer.Nests._lanes, never("_ * _ < _.extent"), suite(laws.test_long_rows)),
    Mistake(
        "wrong identity of a product",
        reduction.identity,
        constant('("mul", "and")', ("and",)),
        operator("ReduceProd", "compiled", 12),
    ),
    Mistake(
        "as many partial sums as two vectors hold",
        reduction._Job._used,
        result(lambda count: min(count, 2)),
        operator("ReduceSum", "targets", 12),
    ),
    Mistake(
        "first product beside the padding left out",
        tile.RegisterTile,
        off_by_one("max(_, _[0])"),
        operator("Conv", "compiled", 24),
    ),
    Mistake("another kernel's code", kernel_key, constant('"const", X, _', 0), suite(laws.test_kernels_are_told_apart)),
    Mistake(
        "wrong buffer in the table",
        step,
        rewrite("FIRST_SLOT + A[B]", "FIRST_SLOT - 1 + len(A) - A[B]"),
        suite(laws.test_outputs_are_told_apart),
    ),
    Mistake(
        "result a little off",
        Transcendental.scalar,
        result(lambda value: value * 1.0001),
        operator("Tanh", "compiled", 6),
    ),
]


OPTIMIZERS = [
    Mistake(
        "momentum not multiplied",
        rules.SGD.rule,
        rewrite('_["momentum"] * A["momentum"]', 'A["momentum"]'),
        trained("momentum"),
    ),
    Mistake(
        "momentum restarts", rules.SGD.rule, rewrite('{"momentum": _ + A}', '{"momentum": A}'), trained("momentum")
    ),
    Mistake("Nesterov looks back", rules.SGD.rule, keep("_ + _ if self.nesterov else X"), trained("nesterov")),
    Mistake("first step damped", rules.SGD.shared, constant("_ < X", -0.5), trained("dampening")),
    Mistake(
        "bias correction missing",
        rules.MomentOptimizer.shared,
        wrap('Reciprocal()(one_minus_power(_["beta1"], _))', ones),
        trained("adam"),
    ),
    Mistake("bias correction one step late", rules.MomentOptimizer.shared, off_by_one("_ + 1.0"), trained("adam")),
    Mistake(
        "second moment corrected as the first",
        rules.MomentOptimizer.shared,
        constant('"beta2"', "beta1"),
        trained("adam"),
    ),
    Mistake("square of the gradient missing", rules.MomentOptimizer.moments, keep("X * X"), trained("adam")),
    Mistake(
        "epsilon inside of the root",
        rules.Adam.rule,
        rewrite("Sqrt()(A) * B + C", "Sqrt()(A + C) * B"),
        trained("adam betas"),
    ),
    Mistake("decay through the moments", optimizer, never("_ if X else _ + _ * _"), trained("adamw")),
    Mistake(
        "decay without the learning rate",
        optimizer,
        rewrite('_["lr"] * A["weight_decay"]', 'A["weight_decay"]'),
        trained("adamw"),
    ),
    Mistake("mean not subtracted", rules.RMSProp.rule, keep("X - A * A"), trained("rmsprop centered")),
    Mistake(
        "decay of the rate counts from 1", rules.Adagrad.shared, off_by_one("1.0 + X * _"), trained("adagrad decay")
    ),
    Mistake("sum of squares forgotten", rules.Adagrad.rule, keep('_["sum"] + X'), trained("adagrad")),
    Mistake("largest square forgotten", rules.Adam.rule, keep('Max()(_["largest"], X)'), trained("amsgrad")),
    Mistake("product of momenta forgotten", adam_variants.NAdam.rule, keep('X * _["now"]'), trained("nadam")),
    Mistake("never rectified", adam_variants.RAdam.shared, constant("_ > X", 1e9), trained("radam")),
    Mistake("largest gradient does not fade", adam_variants.Adamax.rule, keep('_["beta2"] * X'), trained("adamax")),
    Mistake("changes not kept", rules.Adadelta.rule, keep('X * _["delta"]'), trained("adadelta rho")),
    Mistake("direction not a sign", adam_variants.Lion.rule, keep("Sign()(X)"), trained("lion")),
    Mistake(
        "norm not a root",
        adam_variants.orthogonal,
        keep("Sqrt()(X)"),
        suite(test_optim.test_muon_agrees_with_numpy, (3, 4), "interpreter"),
    ),
    Mistake(
        "excluded parameter decays",
        optimizer.Optimizer.decays,
        instead(lambda *_: True),
        suite(test_optim.test_weight_decay_with_exclusions, rules.SGD, ("*.bias",)),
    ),
    Mistake(
        "norm of each by itself",
        optimizer,
        wrap("global_norm(X, _)", lambda gradients: gradients[:1]),
        GLOBAL_NORM,
    ),
    Mistake("small gradients scaled up", optimizer, keep("Min()(X, 1.0)"), GLOBAL_NORM),
    Mistake(
        "clipping on one side",
        optimizer,
        constant("Clip()(_, X, _)", None),
        suite(test_optim.test_clipping_by_value, "interpreter"),
    ),
    Mistake("accumulator not reset", optimizer, keep("Where()(_, 0.0, X)"), ACCUMULATION),
    Mistake("accumulated sum for the mean", optimizer, keep("X * (1.0 / _)"), ACCUMULATION),
    Mistake("slots change between updates", optimizer.Accumulation.at_last, keep("Where()(_, X, _)"), ACCUMULATION),
    Mistake(
        "schedule one step ahead",
        schedules.Warmup.factor,
        off_by_one("_ + 1.0"),
        scheduled(schedules.Warmup(20), lambda t: min((t + 1) / 20, 1)),
    ),
    Mistake(
        "schedule goes on beyond its end",
        schedules.Cosine.factor,
        keep("Min()(X, 1.0)"),
        scheduled(schedules.Cosine(50, 0.1), lambda t: test_optim.cosine(t, 50, 0.1)),
    ),
    Mistake(
        "second schedule does not start at 0",
        schedules.Chain.evaluate,
        keep('X - _["steps"]'),
        scheduled(
            schedules.Warmup(20).then(schedules.Cosine(40)),
            lambda t: test_optim.warmup(t, 20) if t < 20 else test_optim.cosine(t - 20, 40),
        ),
    ),
    Mistake("step counter stands still", optimizer, constant("{self.count: self.count + X}", 0), trained("adam")),
]

IN_STAGES = [*WALK, *LOWERING, *PASSES, *CODE, *OPTIMIZERS]
