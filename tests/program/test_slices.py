"""Kernels in slices: what lies between them is a slice long, no bit changes, and mistakes are seen."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import glowtrain as gt
from glowtrain.backends.state import State
from glowtrain.compiler.walk import arrive
from glowtrain.errors import MemoryBudgetError, ProgramError
from glowtrain.graph import Value
from glowtrain.loops import Const
from glowtrain.memory.budget import SMALLEST, Budget, budget_of
from glowtrain.names import Names
from glowtrain.profiling.memory import training_memory
from glowtrain.profiling.memory.table import again_lines
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse
from glowtrain.program.passes.loop_fusion.fuse_pair import LIMITS, Limits
from glowtrain.program.passes.rematerialisation.duplicate import duplications
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.schedule import peak_bytes
from glowtrain.program.passes.slices import slicing
from glowtrain.program.passes.slices.slicing import Grain, Slicing, slices_in
from glowtrain.program.program import Kernel, Program
from glowtrain.program.verify import verify
from glowtrain.quantization import Recipe
from glowtrain.stages import PLAIN_RATES, Options
from glowtrain.types import Array

ATTENTION = """
program attention
  input  q: f32[4,64,8]
  input  k: f32[4,64,8]
  input  v: f32[4,64,8]
  output y: f32[64,4,8]
  activation scores: f32[4,64,64]
  activation parts: f32[4,64,64]
kernel scores:
  for h<4, i<64, j<64: scores[h, i, j] = sum(r<8: q[h, i, r] * k[h, j, r])
kernel softmax:
  for h<4, i<64:
    let peak = max(r<64: scores[h, i, r])
    for j<64: parts[h, i, j] = exp(scores[h, i, j] - peak)
    let scale = 1 / sum(r<64 by 8: parts[h, i, r])
    for j<64: parts[h, i, j] = parts[h, i, j] * scale
kernel mixed:
  for h<4, i<64, c<8:
    let mixed = sum(r<64: parts[h, i, r] * v[h, r, c])
    y[i, h, c] = mixed
"""


@pytest.fixture(autouse=True)
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of small models are as those of large ones, where calls take no time to speak of."""
    monkeypatch.setattr(slicing, "WORK", 0.0)
    monkeypatch.setattr(slicing, "CALL", 0.0)


def sliced(program: Program, least: int = 1) -> Program:
    """The program in slices."""
    names = Names(buffer.name for buffer in program.buffers)
    found = Slicing(gt.Cpu().facts.sums, PLAIN_RATES, least, Grain(0.25)).run(program.instructions, names)
    return replace(program, instructions=tuple(found.instructions))


def feeds(program: Program) -> dict[str, Array]:
    random = np.random.default_rng(7)
    drawn = {name: random.standard_normal(b.shape) for name, b in program.inputs.items()}
    return {name: (16 * drawn[name]).astype(b.dtype.numpy) for name, b in program.inputs.items()}


def results(program: Program) -> list[bytes]:
    """What compiled code gives, near what the evaluator does, from an arena in which what is dead is poisoned. The
    evaluator's products are NumPy's, whose order of sums may follow from the number of rows."""
    made = plan(program)
    verify_plan(made)
    evaluated, _ = evaluate(program, feeds(program), plan=made)
    backend = gt.Cpu(cache=None)
    compiled = backend.load(backend.compile(made, Options(facts=backend.facts))).bind(State({})).run(feeds(program))
    for name, array in compiled.items():
        np.testing.assert_allclose(array, evaluated[name], rtol=0, atol=1e-3 * np.abs(array).max())
    return [np.asarray(array).tobytes() for array in compiled.values()]


def test_attention_keeps_probabilities_of_a_slice_only() -> None:
    program = parse(ATTENTION)
    cut = sliced(program)
    verify(cut)
    (repeat,) = slices_in(cut)
    assert len(repeat.children) == 3
    assert peak_bytes(cut.instructions) <= peak_bytes(program.instructions) // 8
    assert results(cut) == results(program)


def test_slices_are_text_that_parses_back() -> None:
    text = str(sliced(parse(ATTENTION)))
    assert "repeat scores+softmax+mixed.slices" in text
    assert str(parse(text)) == text


def test_nothing_is_cut_where_the_order_of_sums_is_not_known() -> None:
    program = parse(ATTENTION)
    found = Slicing(None, PLAIN_RATES, 1).run(program.instructions, Names())
    assert found.instructions == list(program.instructions)


CHANNELS = """
program channels
  input  x: f32[64,64]
  output y: f32[64,64]
  activation doubled: f32[64,64]
  activation centred: f32[64,64]
kernel doubled:
  for p<64, c<64: doubled[p, c] = x[p, c] * 2
kernel centred:
  for p<64, c<64: centred[p, c] = doubled[p, c] - max(q<64: doubled[q, c])
kernel last:
  for p<64, c<64: y[p, c] = centred[p, c] * max(q<64: centred[q, c])
"""


def test_slices_take_whole_cache_lines() -> None:
    """Channels lie side by side: one by one, each would bring the lines of all."""
    program = parse(CHANNELS)
    cut = sliced(program)
    (repeat,) = slices_in(cut)
    assert {buffer.shape for buffer in cut.buffers if buffer.kind == "activation"} == {(64, 16)}
    assert len(repeat.children) == 3
    assert results(cut) == results(program)


INVERTED = """
program inverted
  input  x: i8[24,24,8]
  input  w: i8[48,8]
  output y: i32[12,12,48]
  activation wide: u8[24,24,48]
kernel expand:
  for i<24, j<24, c<48:
    let s = sum(r<8: i32(x[i, j, r]) * i32(w[c, r]))
    wide[i, j, c] = u8(select(s > 0, min(s, 255), 0))
kernel depthwise:
  for i<12, j<12, c<48: y[i, j, c] = sum(r<3, q<3: i32(wide[2*i + r - 1, 2*j + q - 1, c; fill 0]))
"""
WIDE = 24 * 24 * 48
"""Bytes of all that lies between: of a point, less than a cache line."""


@pytest.mark.parametrize(("limit", "trips"), [(WIDE, []), (WIDE - 1, [4]), (WIDE // 5, [24])])
def test_slices_are_as_fine_as_a_limit_needs(monkeypatch: pytest.MonkeyPatch, limit: int, trips: list[int]) -> None:
    """Where calls take their time, and kernels too little of it for threads."""
    monkeypatch.undo()
    program = parse(INVERTED)
    found = Rematerialize(Budget(nbytes=limit), limits=Limits(sums=gt.Cpu().facts.sums)).run(program)
    verify(found)
    assert [repeat.trips for repeat in slices_in(found)] == trips
    assert plan(found).arena <= limit
    assert results(found) == results(program)


@given(points=st.integers(16, 28), pairs=st.integers(4, 20), stride=st.integers(1, 2))
@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_fine_slices_of_any_sizes_keep_results(points: int, pairs: int, stride: int) -> None:
    """A single channel's sums have another order."""
    rows = -(-points // stride)
    text = INVERTED.replace("24", str(points)).replace("48", str(2 * pairs)).replace("12", str(rows))
    program = parse(text.replace("2*i", f"{stride}*i").replace("2*j", f"{stride}*j"))
    found = Rematerialize(SMALLEST, limits=Limits(sums=gt.Cpu().facts.sums)).run(program)
    verify(found)
    assert any(True for _ in slices_in(found))
    assert results(found) == results(program)


def test_the_least_is_found_in_fine_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    program, sums = parse(INVERTED), gt.Cpu().facts.sums
    small, least = (
        Rematerialize(budget, limits=Limits(sums=sums)).run(program) for budget in (budget_of("small"), SMALLEST)
    )
    assert plan(small).arena == WIDE
    assert plan(least).arena == WIDE // 24
    Rematerialize(Budget(nbytes=WIDE // 24), limits=Limits(sums=sums)).run(program)
    with pytest.raises(MemoryBudgetError, match=f"the least that was found is {WIDE // 24:,}"):
        Rematerialize(Budget(nbytes=WIDE // 24 - 1), limits=Limits(sums=sums)).run(program)


LANES = """
program lanes
  input  a: f32[32,1024]
  input  b: f32[48,1024]
  output y: f32[32,48]
  activation h: f32[32,1024]
kernel make:
  for i<32, r<1024: h[i, r] = 2 * a[i, r]
kernel product:
  for i<32, j<48: y[i, j] = sum(r<1024: h[i, r] * b[j, r])
"""


def test_slices_in_which_a_sum_had_another_order_are_not_made() -> None:
    """Fewer rows than some are summed along the lanes, in 16 partial sums; more are chains."""
    program = parse(LANES)
    sums = gt.Cpu().facts.sums
    assert sums is not None
    fewer = parse(LANES.replace("[32,", "[4,").replace("i<32", "i<4"))
    (_, whole), (_, part) = program.kernels, fewer.kernels
    assert sums(whole) != sums(part)
    assert [repeat.trips for repeat in slices_in(sliced(program))] == [2]


READS_ACROSS = LANES.replace("h[i, r] * b[j, r]", "h[31 - i, r] * b[j, r]")
ACCUMULATES = """
program accumulates
  input  a: f32[32,64]
  output y: f32[64]
  activation h: f32[32,64]
kernel zero:
  for r<64: y[r] = 0
kernel make:
  for i<32, r<64: h[i, r] = 2 * a[i, r]
kernel collect:
  for i<32, r<64: y[r] add= h[i, r]
"""


def test_kernels_that_read_other_rows_stay_whole() -> None:
    program = parse(READS_ACROSS)
    assert {b.shape for r in slices_in(sliced(program)) for b in r.writes if b.name.startswith("h.slice")} <= {
        (32, 512)
    }
    assert results(sliced(program)) == results(program)


def test_sums_across_slices_stay_whole() -> None:
    """Rows are added to one result in their order, so only columns can be cut."""
    program = parse(ACCUMULATES.replace("add=", "+="))
    cut = sliced(program)
    assert all(b.shape[0] == 32 for r in slices_in(cut) for b in r.writes if b.name.startswith("h.slice"))
    assert results(cut) == results(program)


def test_what_stands_between_runs_before_or_after() -> None:
    between = "kernel other:\n  for i<64: z[i, 0] = q[0, i, 0]\nkernel mixed"
    text = ATTENTION.replace("kernel mixed", between).replace(
        "  output y: f32[64,4,8]", "  output y: f32[64,4,8]\n  output z: f32[64,1]"
    )
    program = parse(text)
    cut = sliced(program)
    assert [instruction.name for instruction in cut.instructions] == ["other", "scores+softmax+mixed.slices"]
    assert results(cut) == results(program)


AFTER = """
program after
  input  a: f32[32,64]
  output z: f32[32,64]
  output u: f32[64]
  output y: f32[32,64]
  activation h: f32[32,64]
  activation t: f32[64]
kernel make:
  for i<32, j<64:
    h[i, j] = 2 * a[i, j]
    z[i, j] = 3 * a[i, j]
kernel turned:
  for j<64: t[j] = z[0, 63 - j]
kernel again:
  for j<64: u[j] = t[63 - j] + 1
kernel last:
  for i<32, j<64: y[i, j] = h[i, j] + 1
"""


def test_what_needs_something_that_runs_after_runs_after_it() -> None:
    program = parse(AFTER)
    cut = sliced(program, least=1024)
    verify(cut)
    assert [instruction.name for instruction in cut.instructions] == ["make+last.slices", "turned", "again"]
    assert results(cut) == results(program)


UPDATES = """
program updates
  input  x: f32[32,64]
  output y: f32[32,64]
  variable v: f32[32,64]
  activation h: f32[32,64]
  updates v
kernel make:
  for i<32, j<64: h[i, j] = 2 * x[i, j]
kernel update:
  for i<32, j<64: v[i, j] = h[i, j] + 1
kernel last:
  for i<32, j<64: y[i, j] = h[i, j] * v[31 - i, 63 - j]
"""


def test_kernels_that_read_what_others_update_in_another_slice_stay_whole() -> None:
    assert not any(True for _ in slices_in(sliced(parse(UPDATES))))
    along = sliced(parse(UPDATES.replace("v[31 - i, 63 - j]", "v[i, 63 - j]")))
    (repeat,) = slices_in(along)
    assert {buffer.shape[1] for buffer in repeat.writes if buffer.name.startswith("h.slice")} == {64}


def test_a_slice_off_by_one_is_seen() -> None:
    cut = sliced(parse(ATTENTION))
    (repeat,) = slices_in(cut)
    trip = repeat.index

    def shifted(expr: object) -> object:
        return trip + 1 if expr is trip else None

    wrong = replace(cut, instructions=(repeat.rewritten(shifted),))  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="outside of"):
        verify(wrong)


def test_a_slice_that_is_left_out_is_seen() -> None:
    cut = sliced(parse(ATTENTION))
    (repeat,) = slices_in(cut)
    trip = repeat.index
    first = repeat.rewritten(lambda expr: Const(0, trip.dtype) if expr is trip else None)
    with pytest.raises(ProgramError, match="elements are never written"):
        verify(replace(cut, instructions=(first,)))


def test_what_is_read_after_the_loop_is_seen() -> None:
    """A kernel outside of the repeat finds the last slice only, and the verifier no writer of what it reads."""
    program = parse(ATTENTION)
    cut = sliced(program)
    outside = next(kernel for kernel in program.kernels if kernel.name == "mixed")
    (repeat,) = slices_in(cut)
    less = replace(repeat, body=repeat.body[:-1])
    with pytest.raises(ProgramError, match="parts .* is read before it is written"):
        verify(replace(cut, instructions=(less, outside)))


def transformer(memory: str | None, threads: int = 1) -> gt.Trainer:
    """Two blocks with attention over 64 tokens."""

    @gt.model(x=gt.f32["batch", 64, 32])
    def net(x: Value) -> Value:
        for number in range(2):
            with gt.nn.scope(f"block{number}"):
                x = x + gt.nn.dropout(gt.nn.attention(gt.nn.layer_norm(x), 4, causal=True), 0.1)
                x = x + gt.nn.linear(gt.nn.gelu(gt.nn.linear(gt.nn.layer_norm(x), 64)), 32)
        return gt.nn.linear(gt.nn.flatten(x), 5)

    backend = gt.Cpu(cache=False, threads=threads)
    bound = net.bind({"batch": 2})
    return gt.Trainer(bound, "softmax_cross_entropy", gt.optim.Adam(1e-2), backend=backend, seed=3, memory=memory)


def batches() -> Iterator[dict[str, Array]]:
    random = np.random.default_rng(11)
    for _ in range(3):
        x = random.standard_normal((2, 64, 32)).astype(np.float32)
        yield {"x": x, "labels": random.integers(0, 5, 2)}


def trained(memory: str | None, threads: int = 1) -> dict[str, bytes]:
    """The variables after some steps."""
    trainer = transformer(memory, threads)
    for batch in batches():
        trainer.step(batch)
    return {name: np.asarray(array).tobytes() for name, array in trainer.variables().items()}


def step_plan(memory: str | None) -> Program:
    trainer = transformer(memory)
    return arrive(trainer.graph, Options(facts=gt.Cpu().facts, memory=budget_of(memory), check=True)).program


@pytest.mark.parametrize("memory", ["small", "60%"])
def test_training_in_slices_has_the_bits_of_training_with_everything_kept(memory: str | None) -> None:
    assert any(True for _ in slices_in(step_plan(memory)))
    assert not any(True for _ in slices_in(step_plan("keep")))
    assert trained(memory) == trained("keep") == trained(memory, threads=2)


@gt.model(x=gt.f32["batch", 3, 24, 24])
def bottleneck(x: Value) -> Value:
    """An inverted residual, whose inner channels are independent until they are projected."""
    x = gt.nn.relu(gt.nn.conv(x, 4, 3, stride=2, padding="same", name="stem"))
    y = gt.nn.relu(gt.nn.conv(x, 24, 1, name="expand"))
    y = gt.nn.relu(gt.nn.conv(y, 24, 3, padding="same", groups=24, name="depthwise"))
    return gt.nn.linear(gt.nn.flatten(x + gt.nn.conv(y, 4, 1, name="project")), 5, name="scores")


@pytest.mark.parametrize("integers", [False, True])
def test_a_frozen_bottleneck_runs_in_fine_slices(monkeypatch: pytest.MonkeyPatch, integers: bool) -> None:
    """Of what it makes nothing is read backward."""
    monkeypatch.undo()
    random = np.random.default_rng(5)
    images = random.standard_normal((16, 3, 24, 24)).astype(np.float32)
    batch = {"x": images[:1], "labels": np.array([3])}
    model = gt.quantize(bottleneck, {"x": images}, Recipe(keep=["scores.*"])).model if integers else bottleneck

    def after_a_step(memory: int | None) -> gt.Trainer:
        backend = gt.Cpu(cache=False, threads=1)
        trainer = gt.Trainer(
            model.bind({"batch": 1}), "softmax_cross_entropy", gt.optim.SGD(0.1),
            trainable=["scores.*"], backend=backend, memory=memory,
        )  # fmt: skip
        trainer.step(batch)
        return trainer

    whole = after_a_step(None)
    use = whole.memory()
    fine = after_a_step(use.variables + int(0.85 * use.arena))
    assert fine.memory().arena <= 0.85 * use.arena
    assert fine.variables()["scores.weight"].tobytes() == whole.variables()["scores.weight"].tobytes()


def test_less_is_enough_in_slices() -> None:
    """Where what lies between kernels of attention has to be there as a whole, that is the peak."""
    graph, facts = transformer("small").graph, gt.Cpu().facts
    budget = budget_of("small")
    ways = facts, replace(facts, sums=None)
    arenas = [arrive(graph, Options(facts=each, memory=budget)).arena for each in ways]
    assert arenas[0] < 0.75 * arenas[1]


def test_inference_runs_in_slices() -> None:
    @gt.model(x=gt.f32["batch", 64, 32])
    def net(x: Value) -> Value:
        return x + gt.nn.attention(gt.nn.layer_norm(x), 4)

    graph, facts = net.bind({"batch": 1}), gt.Cpu().facts
    arenas = [arrive(graph, Options(facts=each)).arena for each in (facts, replace(facts, sums=None))]
    assert arenas[0] < 0.75 * arenas[1]


def test_the_report_names_what_runs_in_slices() -> None:
    trainer = transformer("small")
    trainer.step(next(batches()))
    lines = list(again_lines(training_memory(trainer).again))
    assert lines[0].startswith("kernels that run in slices of what lies between them: ")
    assert "matmul_1+softmax" in lines[0]


def test_a_kernel_is_its_own_slice_where_a_buffer_is_too_small() -> None:
    program = parse(ATTENTION)
    assert not any(True for _ in slices_in(sliced(program, least=1 << 20)))
    assert all(isinstance(each, Kernel) for each in sliced(program, least=1 << 20).instructions)


LOSS = """
program loss
  input  x: f32[64,16]
  input  w: f32[16,960]
  output dw: f32[16,960]
  output dx: f32[64,16]
  activation logits: f32[64,960]
  activation logs: f32[64,960]
  activation gradient: f32[64,960]
kernel logits:
  for i<64, v<960: logits[i, v] = sum(r<16: x[i, r] * w[r, v])
kernel logsoftmax:
  for i<64:
    let peak = max(r<960: logits[i, r])
    let log_sum = log(sum(r<960 by 8: exp(logits[i, r] - peak)))
    for v<960: logs[i, v] = logits[i, v] - peak - log_sum
kernel gradient:
  for i<64, v<960: gradient[i, v] = exp(logs[i, v]) - 0.5
kernel dw:
  for r<16, v<960: dw[r, v] = sum(i<64: x[i, r] * gradient[i, v])
kernel dx:
  for i<64, r<16: dx[i, r] = sum(v<960: gradient[i, v] * w[r, v])
"""
LOGITS = 64 * 960 * 4
"""Bytes of all of them."""


def test_what_is_read_along_two_axes_is_made_twice() -> None:
    """Rows for the gradient of the layer's input, columns for that of its weights: nowhere is all of it."""
    program = parse(LOSS)
    twice = next(duplications(program, LOGITS, LIMITS))
    verify(twice)
    cut = sliced(twice, least=LOGITS // 64)
    verify(cut)
    assert [repeat.name.split("+")[0] for repeat in slices_in(cut)] == ["logits", "logits.again"]
    assert peak_bytes(cut.instructions) < LOGITS
    assert results(cut) == results(program)


def test_elements_are_made_again_of_scalars_of_their_rows() -> None:
    twice = next(duplications(parse(LOSS), LOGITS, LIMITS))
    (again,) = (kernel for kernel in twice.kernels if kernel.name == "logsoftmax.again")
    assert {b.name for b in again.reads} == {"logits.again", "peak.scalar", "log_sum.scalar"}
    assert not again.survey.reductions


def test_nothing_is_made_twice_where_all_readers_have_an_axis_in_common() -> None:
    assert not list(duplications(parse(ATTENTION), 1, LIMITS))


def test_a_limit_that_needs_a_loss_in_slices_is_kept() -> None:
    program, sums = parse(LOSS), gt.Cpu().facts.sums
    limit = LOGITS - 1
    found = Rematerialize(Budget(nbytes=limit), limits=Limits(sums=sums)).run(program)
    assert plan(found).arena <= limit
    assert results(found) == results(program)
    with pytest.raises(MemoryBudgetError):
        Rematerialize(Budget(nbytes=limit)).run(program)
