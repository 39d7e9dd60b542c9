"""Kernels in ranges of their tasks: whatever the cuts and the order, the bits of the step that runs all at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.cpu.contraction.nest import Nest
from glowtrain.backends.cpu.step import Invocation, generate
from glowtrain.backends.cpu.tasks import Work
from glowtrain.backends.llvm.toolchain import compile_text
from glowtrain.backends.llvm.values import I64, LlvmValue
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, Variable
from glowtrain.loops import Accumulate, Buffer, Const, For, Load, Statement, Store, indices_of, reduce
from glowtrain.ops.sequence.recurrent import LSTM
from glowtrain.program.memory.plan import Plan
from glowtrain.program.program import Kernel, Program
from glowtrain.types import Array, f32, i64
from tests.cpu.cpu_kernels import runnable
from tests.cpu.in_pieces import InPieces, Ranges, share, shuffled
from tests.cpu.native_program import Native, spread
from tests.cpu.nests import program
from tests.program.random_graphs import RandomGraph
from tests.program.random_programs import RandomPrograms

TARGETS = {target.name: target for target in [Target.host(), *runnable("avx512", "avx2", "sse4", "scalar")]}
COUNTS = (1, 2, 3, 7)
LETTERS = 40


def trained(model: gt.Template) -> Graph:
    return gt.Trainer(model.bind({"batch": 5}), gt.losses.softmax_cross_entropy(), gt.optim.Adam(1e-3)).graph


@gt.model(tokens=gt.i64["batch", 16])
def gpt(tokens: gt.Value) -> dict[str, gt.Value]:
    """A block of a character-level transformer, as in examples/char_gpt.py."""
    x = gt.nn.embedding(tokens, LETTERS, 24) + gt.nn.parameter("positions", (16, 24), gt.nn.Normal(0.02))
    x = x + gt.nn.attention(gt.nn.layer_norm(x), 3, causal=True)
    x = x + gt.nn.linear(gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(x), 48)), 24)
    return {"scores": gt.nn.linear(gt.nn.layer_norm(x), LETTERS)}


def language_model() -> Graph:
    rule = gt.optim.AdamW(2e-3, weight_decay=0.1, no_decay=gt.optim.vectors, clip_norm=1.0)
    return gt.Trainer(gpt.bind({"batch": 3}), gt.losses.softmax_cross_entropy(), rule).graph


def recurrent() -> Graph:
    random = np.random.default_rng(0)
    x = Input(gt.f32[7, 4, 6], "x")
    w, r = (Variable(n, random.normal(size=(1, 32, k)).astype(np.float32)) for n, k in (("w", 6), ("r", 8)))
    y, _, _ = LSTM(hidden_size=8)(x, w, r)
    return gt.Trainer(Graph((x,), {"y": y}), gt.losses.mse("target"), gt.optim.SGD(0.1, momentum=0.9)).graph


def quantized() -> Graph:
    batch = np.random.default_rng(0).normal(size=(5, 1, 14, 14)).astype(np.float32)
    return gt.quantize(models.build("cnn", (1, 14, 14)), {"x": batch}).graph


GRAPHS: dict[str, Callable[[], Graph]] = {
    **{name: lambda name=name: trained(models.build(name, (1, 14, 14))) for name in models.MODELS},
    "gpt": language_model, "lstm": recurrent, "quantized": quantized,
}  # fmt: skip


@cache
def plan_of(name: str) -> Plan:
    return arrive(GRAPHS[name]())


def numbers(p: Program) -> dict[str, Array]:
    """Inputs as a model may get them."""
    random, found = np.random.default_rng(1), dict[str, Array]()
    for name, buffer in p.inputs.items():
        if name.startswith("hyper."):
            found[name] = np.asarray(1e-2, buffer.dtype.numpy)
        else:
            drawn = random.normal(size=buffer.shape) if buffer.dtype.is_float else random.integers(0, 10, buffer.shape)
            found[name] = drawn.astype(buffer.dtype.numpy)
    return found


def bits(native: Native, feeds: dict[str, Array]) -> dict[str, bytes]:
    """Outputs and variables after two steps."""
    _, state = native.run(feeds)
    outputs, state = native.run(feeds, state)
    return {name: array.tobytes() for name, array in (*outputs.items(), *state.items())}


def different(given: Program | Plan, feeds: dict[str, Array], target: Target, counts: tuple[int, ...]) -> list[str]:
    """What is not the same when every call is cut."""
    p, plan = (given.program, given) if isinstance(given, Plan) else (given, None)
    whole, pieces, random = bits(Native(p, target, plan), feeds), InPieces(p, target, plan), np.random.default_rng(2)
    found = []
    for count in counts:
        cut = bits(pieces.tell(shuffled(count, random)), feeds)
        found += [f"{name} in {count}" for name in whole if cut[name] != whole[name]]
    return found


# ---- any cut, any order


@pytest.mark.spread(2)
@pytest.mark.parametrize("target", sorted(TARGETS))
@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_models(name: str, target: str) -> None:
    plan = plan_of(name)
    assert not different(plan, numbers(plan.program), TARGETS[target], COUNTS)


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_random_programs(target: str) -> None:
    """Nests of all kinds, and repeats of them."""
    for seed in range(20):
        programs = RandomPrograms(ChoiceDraw(5000 + seed + 100 * sorted(TARGETS).index(target)))
        p = programs.program()
        assert not different(p, programs.feeds(p), TARGETS[target], COUNTS), p


@pytest.mark.spread(2)
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_random_graphs(target: str) -> None:
    for seed in range(8):
        drawing = RandomGraph(ChoiceDraw(seed + 50 * sorted(TARGETS).index(target)))
        plan = arrive(drawing.graph())
        assert not different(plan, drawing.feeds(), TARGETS[target], COUNTS), plan.program


@pytest.mark.spread(1)
@pytest.mark.parametrize("name", ["neon", "generic", "riscv64"])
def test_models_compile_for_other_processors(name: str) -> None:
    target = Target.named(name)
    assert compile_text(generate(plan_of("transformer"), target).text, target)


def test_addresses_do_not_follow_task_loops_inside_one_another() -> None:
    """Of two loops whose first trips LLVM does not know it would look for the cheapest steps of all addresses together,
    for several times as long as all else takes: the trips that others lie in are hidden from it, but for the test at a
    loop's top.
    """
    text, seen = generate(plan_of("cnn"), Target.named("avx512")).text, 0
    for function in text.split("\ndefine ")[1:]:
        for trip in re.findall(r"(%v\d+) = phi i64 \[ %", function)[:-1]:
            uses = {use.strip() for use in re.findall(rf"= ([^\n]*?) i64 [^\n]*{trip}\b", function)}
            assert uses <= {"add nuw nsw", "freeze", "icmp slt"}, (trip, function)
            seen += "freeze" in uses
    assert seen > 4


# ---- what such a mistake would show


def broken(name: str, ranges: Callable[[Invocation], Ranges]) -> bool:
    """Whether the results differ when a model is cut in this way."""
    plan = plan_of(name)
    feeds = numbers(plan.program)
    whole = bits(Native(plan.program, Target.host(), plan), feeds)
    return whole != bits(InPieces(plan.program, Target.host(), plan).tell(ranges), feeds)


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "lstm", "quantized"])
def test_a_task_left_out_shows(name: str) -> None:
    """An end that is one too low."""
    assert broken(name, lambda call: [(0, max(call.work.tasks - 1, 1))])


def test_a_task_that_runs_twice_shows() -> None:
    """Ranges that overlap: what a step updates in place is updated twice."""
    assert broken("mlp", lambda call: [(0, call.work.tasks), (call.work.tasks - 1, call.work.tasks)])


@pytest.mark.exhaustive
def test_a_workspace_that_is_taken_to_hold_something_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the range with task 0 packs; the others read what they find."""
    write = Nest._copied

    def once(
        nest: Nest, operand: str, source: LlvmValue, target: LlvmValue, moves: list[object], *, padded: bool = False
    ) -> None:
        with nest.f.when(nest.f.compare("eq", LlvmValue("%begin", I64), 0)):
            write(nest, operand, source, target, moves, padded=padded)  # type: ignore[arg-type]

    def halves(call: Invocation) -> Ranges:
        middle = call.work.tasks // 2
        return [(0, middle), (middle, call.work.tasks)] if middle else [(0, 1)]

    monkeypatch.setattr(Nest, "_copied", once)
    assert broken("transformer", halves)
    assert not broken("transformer", lambda call: [(0, call.work.tasks)])


# ---- what is a task


def work_of(*statements: Statement, target: str = "avx2") -> Work:
    """The work of one kernel, whose ranges give the bits of the whole."""
    p = program(Kernel("k", statements))
    assert not Target.named(target).runs_here or not different(p, numbers(p), Target.named(target), COUNTS)
    (call,) = generate(spread(p), Target.named(target)).calls
    return call.work


def scaled(*shape: int, layout: tuple[int, ...] = ()) -> For:
    x, y = Buffer("x", f32[shape], "input"), Buffer("y", f32[shape], "output", layout)
    indices = indices_of(shape)
    return For(indices, (Store(y, indices, Load(x, indices) * 2.0),))


def test_vectors_of_a_flat_nest_are_tasks() -> None:
    """Of 8 lanes on AVX2, all axes being one; the rest belongs to the last vector."""
    assert work_of(scaled(10, 10, 10)).tasks == 125
    assert work_of(scaled(1003)).tasks == 125
    assert work_of(scaled(7)).tasks == 1


def test_elements_are_tasks_without_vectors() -> None:
    assert work_of(scaled(50), target="scalar").tasks == 50


def test_several_short_loops_are_cut_together() -> None:
    assert work_of(scaled(3, 5, 7, 16, layout=(1, 0, 2, 3))).tasks >= 3 * 5 * 7


def test_long_outer_loops_are_cut_alone() -> None:
    x, y = Buffer("x", f32[40, 50], "input"), Buffer("y", f32[40], "output")
    (i,) = indices_of((40,))
    total = reduce("add", (50,), lambda r: Load(x, (i, r)))
    assert work_of(For((i,), (Store(y, (i,), total),)), target="scalar").tasks == 40


def test_rows_are_tasks() -> None:
    x, y = Buffer("x", f32[4, 11, 20], "input"), Buffer("y", f32[4, 11, 20], "output")
    (i, j), (k,) = indices_of((4, 11)), indices_of((20,), "k")
    total = reduce("max", (20,), lambda r: Load(x, (i, j, r)))
    row = For((k,), (Store(y, (i, j, k), Load(x, (i, j, k)) - total),))
    assert work_of(For((i, j), (row,))).tasks == 44


def test_a_sum_that_all_tasks_use_is_computed_once() -> None:
    """y = x * sum(x): a second range would sum again."""
    x, y = Buffer("x", f32[999], "input"), Buffer("y", f32[999], "output")
    (i,) = indices_of((999,))
    total = reduce("add", (999,), lambda r: Load(x, (r,)))
    assert work_of(For((i,), (Store(y, (i,), Load(x, (i,)) * total),))).tasks == 1


def test_a_serial_loop_is_one_task() -> None:
    y, (i,) = Buffer("y", f32[99], "output"), indices_of((99,))
    assert work_of(For((i,), (Store(y, (i,), Load(y, (i - 1,), 1.0) * 0.5),), True)).tasks == 1


def scattered(*at: str) -> list[Statement]:
    """An output that is cleared, and another one, of a kernel of its own, to which rows of a table are added."""
    x, places = Buffer("x", f32[40, 48], "input"), Buffer("places", i64[40], "input")
    table = Buffer("table", f32[5, 48], "variable", initial=np.zeros((5, 48), np.float32))
    n, c = indices_of((40, 48))
    where = {"place": Load(places, (n,)), "row": n % 5, "column": c, "one": Const(0, i64)}
    return [For((n, c), (Accumulate("add", table, tuple(where[name] for name in at), Load(x, (n, c))),))]


def test_accumulation_is_cut_where_a_subscript_tells_the_task() -> None:
    """Columns of a table, whatever the rows are."""
    assert work_of(*scattered("place", "column")).tasks == 6


@pytest.mark.parametrize("at", [("place", "one"), ("row", "one")])
def test_accumulation_in_shared_elements_is_one_task(at: tuple[str, str]) -> None:
    assert work_of(*scattered(*at)).tasks == 1


def test_several_nests_in_a_kernel_are_one_task() -> None:
    x, t, y = Buffer("x", f32[64, 64], "input"), Buffer("t", f32[64, 64]), Buffer("y", f32[64, 64], "output")
    (i, j), (k, m) = indices_of((64, 64)), indices_of((64, 64), "k")
    first, second = (
        For((i, j), (Store(t, (i, j), Load(x, (j, i))),)),
        For((k, m), (Store(y, (k, m), Load(t, (63 - k, m))),)),
    )
    assert work_of(first, second).tasks == 1


def product(m: int, n: int, k: int) -> For:
    a, b, c = Buffer("a", f32[m, k], "input"), Buffer("b", f32[k, n], "input"), Buffer("c", f32[m, n], "output")
    i, j = indices_of((m, n))
    return For((i, j), (Store(c, (i, j), reduce("add", (k,), lambda r: Load(a, (i, r)) * Load(b, (r, j)))),))


@pytest.mark.parametrize("shape", [(300, 64, 90), (1500, 300, 80), (16, 1024, 700), (90, 90, 4000)])
def test_tiles_of_a_contraction_are_tasks(shape: tuple[int, int, int]) -> None:
    """Also where the sum is taken in parts, rows in blocks, or an operand is packed."""
    work = work_of(product(*shape))
    assert work.tasks >= 8
    least = np.prod(shape) / 16
    assert least < work.total < 3 * least, "two multiply-adds of 8 lanes a cycle at best"


@pytest.mark.parametrize(("name", "least"), [("mlp", 0.9), ("cnn", 0.85), ("transformer", 0.95)])
def test_most_of_a_training_step_can_be_shared_out(name: str, least: float) -> None:
    """At the size of Fashion-MNIST; what is left are sums over all images for each of a few channels."""
    model = models.build(name).bind({"batch": 32})
    graph = gt.Trainer(model, gt.losses.softmax_cross_entropy(), gt.optim.Adam(1e-3)).graph
    assert share(generate(arrive(graph), Target.named("avx2")).calls, 4) > least
