"""Mistakes in the reverse walk, in every stage of the compiler, and in optimizers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import test_laws as laws
from planting import Find, Mistake, Patch, edit, edit_everywhere, operator, program, suite

from glowtrain.backends.cpu import step as codegen
from glowtrain.backends.cpu.contraction import tile
from glowtrain.backends.cpu.loop_nest import reduction, writer
from glowtrain.grad import training
from glowtrain.graph import reverse
from glowtrain.loops import For, Index, Tensor
from glowtrain.lower import lower
from glowtrain.ops.elementwise import transcendental
from glowtrain.ops.elementwise.activation import Sigmoid
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.optim import optimizer, rules, schedules
from glowtrain.optimize import cse, scan, simplify
from glowtrain.program.analysis import kernel_key as structure
from glowtrain.program.memory import plan
from glowtrain.program.passes import layout, schedule
from glowtrain.program.passes import producer_inlining as inline
from glowtrain.program.passes.loop_fusion import fuse as merge
from tests.training import test_grad, test_optim


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


def short_by_one(patch: Patch) -> None:
    """The loop ends one element before the last."""
    original = Tanh.lower

    def lower(self: Tanh, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Any]:
        (loop,) = original(self, outputs, *inputs)
        assert isinstance(loop, For)
        if not loop.indices:
            return [loop]
        last = Index(max(loop.indices[-1].extent - 1, 1), "short")
        (store,) = loop.body
        whole = replace(
            store, index=(*store.index[:-1], last), value=self.scalar(inputs[0][(*loop.indices[:-1], last)])
        )
        return [For((*loop.indices[:-1], last), (whole,))]

    patch.setattr(Tanh, "lower", lower)


def off_by_one(patch: Patch) -> None:
    """The last element of a row is computed from its neighbour."""

    def lower(self: Sigmoid, outputs: tuple[Tensor, ...], *inputs: Tensor) -> list[Any]:
        loop = original(self, outputs, *inputs)[0]
        assert isinstance(loop, For)
        if not loop.indices:
            return [loop]
        *rest, i = loop.indices
        moved = (i + 1) % max(i.extent, 1)
        return [For(loop.indices, (outputs[0].store(loop.indices, self.scalar(inputs[0][(*rest, moved)])),))]

    original = Sigmoid.lower
    patch.setattr(Sigmoid, "lower", lower)


WALK = [
    Mistake(
        "lost accumulation",
        edit(reverse._Walk, "add", ("cotangent if known is None else known + cotangent", "cotangent")),
        program("gradient"),
    ),
    Mistake(
        "accumulated twice",
        edit(reverse._Walk, "add", ("known + cotangent", "known + cotangent + cotangent")),
        program("gradient"),
    ),
    Mistake(
        "operand used twice",
        edit(
            reverse._Walk,
            "add",
            ("if cotangent is None or not", "if cotangent is None or value in self.cotangents or not"),
        ),
        suite(test_grad.test_values_used_many_times_accumulate),
    ),
    Mistake(
        "non-finite loss updates",
        edit(training, "_guarded", ("Where()(good, value, variable)", "value")),
        suite(test_grad.test_a_loss_that_is_not_finite_changes_nothing, float("nan"), "interpreter"),
    ),
    Mistake(
        "wrong result type",
        edit(transcendental.Transcendental, "reference", ("numpy(x)", "numpy(x).astype(np.float32)")),
        operator("Tanh", "types"),
    ),
    Mistake(
        "wrong function",
        edit(transcendental.Transcendental, "scalar", ("self.onnx.lower()", '"sin"')),
        operator("Tanh", "evaluator", 6),
    ),
]

LOWERING = [
    Mistake("loop one short", short_by_one, operator("Tanh", "planned", 6)),
    Mistake("neighbour of the last element", off_by_one, operator("Sigmoid", "compiled", 6)),
    Mistake(
        "stale value",
        edit(lower._Lowering, "_stage", ('tensor.buffer.kind != "variable" or', "True or")),
        program("plan"),
    ),
    Mistake(
        "last step of a scan in the wrong slot",
        edit(lower._Lowering, "_scan", ("steps % 2, i64", "0, i64")),
        operator("Scan", "evaluator", 9),
    ),
    Mistake(
        "scan stack written backwards",
        edit(lower, "_step", ("if direction else", "if not direction else")),
        operator("Scan", "evaluator", 9),
    ),
    Mistake(
        "state of a scan overwritten while it is read",
        edit(lower._Lowering, "_scan", ("_parity(time + 1)", "_parity(time)")),
        operator("Scan", "evaluator", 9),
    ),
    Mistake(
        "overlapping buffers",
        edit(
            plan,
            "_intervals",
            ("return intervals", "return {buffer: (first, first) for buffer, (first, _) in intervals.items()}"),
        ),
        program("plan"),
    ),
    Mistake(
        "buffers that end where others begin",
        edit(
            plan, "_place", ("if intervals[other][0] <= last and first <=", "if intervals[other][0] < last and first <")
        ),
        program("plan"),
    ),
    Mistake(
        "sizes rounded down",
        edit(plan, "_rounded", ("-(-max(size, 1) // ALIGNMENT)", "(size // ALIGNMENT)")),
        program("plan"),
    ),
    Mistake(
        "carried buffer planned as local",
        edit(
            plan,
            "_number",
            ("{b for b in inner if outside.get(b, 0) == 1 and _written_first(instruction.body, b)}", "set(inner)"),
        ),
        operator("Scan", "planned", 24),
    ),
    Mistake(
        "write overtakes a read",
        edit(schedule, "predecessors", ("before.update(readers.get(buffer, ()))", "pass")),
        program("plan", seed=1),
    ),
    Mistake(
        "read overtakes a write",
        edit(
            schedule,
            "predecessors",
            ("{writer[buffer] for buffer in instruction.operands if buffer in writer}", "set()"),
        ),
        program("plan"),
    ),
    Mistake(
        "inlined past an update",
        edit(inline._Inlining, "_unchanged", ("not any(", "True or not any(")),
        program("plan"),
    ),
    Mistake(
        "merged past what lies between",
        edit(merge._Merging, "_place", ("if conflict(first, instruction):", "if False:")),
        program("plan"),
    ),
    Mistake(
        "layout of the caller's arrays changed",
        edit(layout, "_free", ('buffer.kind not in ("input", "output")', "True")),
        operator("Conv", "compiled", 6),
    ),
    Mistake(
        "uneven constants folded to one",
        edit(inline, "fold_constants", ("initial.size == 1 or bool(np.all(initial == initial.flat[0]))", "True")),
        program("plan"),
    ),
]

PASSES = [
    Mistake(
        "attributes ignored in common subexpressions",
        edit_everywhere(
            cse,
            "exact_attributes",
            ("return tuple(value if isinstance(value, Graph) else repr(value) for value in values)", "return ()"),
        ),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "random draws merged",
        edit(cse._Merger, "node", ("if node.operator.random:", "if False:")),
        suite(laws.test_random_draws_differ),
    ),
    Mistake(
        "neutral element of the wrong operator",
        edit_everywhere(simplify, "neutral_right", ('"Add": -0.0', '"Add": 1.0')),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "permutations composed the wrong way",
        edit_everywhere(
            simplify,
            "transpose_of_transpose",
            ("tuple(before[axis] for axis in after)", "tuple(after[axis] for axis in before)"),
        ),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "cast through a narrower type dropped",
        edit_everywhere(simplify, "holds_all", ("digits >= needed and largest >= magnitude", "True")),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "known condition takes the other branch",
        edit_everywhere(simplify, "known_condition", ("chosen = x\n", "chosen = y\n")),
        suite(laws.test_passes_keep_results),
    ),
    Mistake(
        "scans in two directions merged",
        edit(scan, "_loop", ("scan.input_directions, ", "")),
        suite(laws.test_passes_keep_results),
    ),
]

CODE = [
    Mistake(
        "tail one lane short",
        edit(writer.Nests, "_rest", ("lane_mask(width, rest)", "lane_mask(width, rest - 1)")),
        operator("Tanh", "compiled", 12),
    ),
    Mistake(
        "tail left out",
        edit(writer.Nests, "_rest", ("if rest and self.target.masked:", "if False:"), ("elif rest:", "elif False:")),
        operator("Tanh", "compiled", 12),
    ),
    Mistake(
        "tail of a reduction unmasked",
        edit(reduction, "lane_mask", ("lane < count", "lane <= count")),
        suite(laws.test_tails_of_reductions),
    ),
    Mistake(
        "last vector left out",
        edit(writer.Nests, "_vectors", ("start + count * width, begin", "start + (count - 1) * width, begin")),
        suite(laws.test_long_rows),
    ),
    Mistake(
        "wrong identity of a product",
        edit(reduction, "identity", ('("mul", "and")', '("and",)')),
        operator("ReduceProd", "compiled", 12),
    ),
    Mistake(
        "first product beside the padding left out",
        edit(tile.Tile, "_point", ("max(low, before[0])", "max(low, before[0]) + 1")),
        operator("Conv", "compiled", 24),
    ),
    Mistake(
        "another kernel's code",
        edit(structure._Numbering, "_part", ('"const", repr(value)', '"const", 0')),
        suite(laws.test_kernels_are_told_apart),
    ),
    Mistake(
        "wrong buffer in the table",
        edit(
            codegen._Module,
            "_pointer",
            ("2 + self.externals.index(buffer)", "1 + len(self.externals) - self.externals.index(buffer)"),
        ),
        suite(laws.test_outputs_are_told_apart),
    ),
    Mistake(
        "result a little off",
        edit(transcendental.Transcendental, "scalar", ("x)", "x) * 1.0001")),
        operator("Tanh", "compiled", 6),
    ),
]


OPTIMIZERS = [
    Mistake(
        "momentum not multiplied",
        edit(rules.SGD, "rule", ('h["momentum"] * slots["momentum"] + fresh', 'slots["momentum"] + fresh')),
        trained("momentum"),
    ),
    Mistake(
        "momentum restarts",
        edit(rules.SGD, "rule", ('{"momentum": buffer}', '{"momentum": fresh}')),
        trained("momentum"),
    ),
    Mistake(
        "Nesterov looks back", edit(rules.SGD, "rule", ('g + h["momentum"] * buffer', "buffer")), trained("nesterov")
    ),
    Mistake("first step damped", edit(rules.SGD, "shared", ("t < 0.5", "t < -0.5")), trained("dampening")),
    Mistake(
        "bias correction missing",
        edit(rules.Adam, "shared", ('Reciprocal()(one_minus_power(hyper["beta1"], updates))', "1.0 + 0.0 * updates")),
        trained("adam"),
    ),
    Mistake("bias correction one step late", edit(rules.Adam, "shared", ("t + 1.0", "t + 2.0")), trained("adam")),
    Mistake(
        "second moment corrected as the first",
        edit(rules.Adam, "shared", ('hyper["beta2"]', 'hyper["beta1"]')),
        trained("adam"),
    ),
    Mistake("square of the gradient missing", edit(rules.Adam, "rule", ("(g * g)", "g")), trained("adam")),
    Mistake(
        "epsilon inside of the root",
        edit(rules.Adam, "rule", ('Sqrt()(v) * h["root"] + h["eps"]', 'Sqrt()(v + h["eps"]) * h["root"]')),
        trained("adam betas"),
    ),
    Mistake(
        "decay through the moments",
        edit(optimizer._Step, "update", ("gradient if optimizer.decoupled else gradient +", "gradient +")),
        trained("adamw"),
    ),
    Mistake(
        "decay without the learning rate",
        edit(optimizer._Step, "update", ('h["lr"] * h["weight_decay"]', 'h["weight_decay"]')),
        trained("adamw"),
    ),
    Mistake(
        "mean not subtracted",
        edit(rules.RMSProp, "rule", ('variance - new["mean"] * new["mean"]', "variance")),
        trained("rmsprop centered"),
    ),
    Mistake(
        "decay of the rate counts from 1",
        edit(rules.Adagrad, "shared", ("1.0 + t *", "1.0 + (t + 1.0) *")),
        trained("adagrad decay"),
    ),
    Mistake(
        "sum of squares forgotten", edit(rules.Adagrad, "rule", ('slots["sum"] + g * g', "g * g")), trained("adagrad")
    ),
    Mistake(
        "excluded parameter decays",
        edit(optimizer.Optimizer, "decays", ("return not any(", "return True or not any(")),
        suite(test_optim.test_weight_decay_with_exclusions, rules.SGD, ("*.bias",)),
    ),
    Mistake(
        "norm of each by itself",
        edit(
            optimizer._Step,
            "clipped",
            (
                "norm = global_norm(list(result.values()), self.dtype)",
                "norm = global_norm(list(result.values())[:1], self.dtype)",
            ),
        ),
        GLOBAL_NORM,
    ),
    Mistake(
        "small gradients scaled up",
        edit(
            optimizer._Step,
            "clipped",
            ('Min()(self.h["clip_norm"] / (norm + 1e-6), 1.0)', 'self.h["clip_norm"] / (norm + 1e-6)'),
        ),
        GLOBAL_NORM,
    ),
    Mistake(
        "clipping on one side",
        edit(optimizer._Step, "clipped", ("Clip()(g, -bound, bound)", "Clip()(g, None, bound)")),
        suite(test_optim.test_clipping_by_value, "interpreter"),
    ),
    Mistake(
        "accumulator not reset",
        edit(optimizer._Step, "averaged", ("Where()(self.last, 0.0, new)", "new")),
        ACCUMULATION,
    ),
    Mistake(
        "accumulated sum for the mean",
        edit(optimizer._Step, "averaged", ("new * (1.0 / self.optimizer.accumulate)", "new")),
        ACCUMULATION,
    ),
    Mistake(
        "slots change between updates",
        edit(optimizer._Step, "keep", ("Where()(self.last, value, variable)", "value")),
        ACCUMULATION,
    ),
    Mistake(
        "schedule one step ahead",
        edit(schedules.Warmup, "factor", ("t + 1.0", "t + 2.0")),
        scheduled(schedules.Warmup(20), lambda t: min((t + 1) / 20, 1)),
    ),
    Mistake(
        "schedule goes on beyond its end",
        edit(schedules.Cosine, "factor", ('Min()(t / numbers["steps"], 1.0)', 't / numbers["steps"]')),
        scheduled(schedules.Cosine(50, 0.1), lambda t: test_optim.cosine(t, 50, 0.1)),
    ),
    Mistake(
        "second schedule does not start at 0",
        edit(schedules.Chain, "evaluate", ('t - numbers["steps"]', "t")),
        scheduled(
            schedules.Warmup(20).then(schedules.Cosine(40)),
            lambda t: test_optim.warmup(t, 20) if t < 20 else test_optim.cosine(t - 20, 40),
        ),
    ),
    Mistake(
        "step counter stands still",
        edit(optimizer._Step, "counters", ("self.count + 1}", "self.count + 0}")),
        trained("adam"),
    ),
]

IN_STAGES = [*WALK, *LOWERING, *PASSES, *CODE, *OPTIMIZERS]
