"""What waits for the backward part of a program in bf16: which results, who reads what, and that mistakes are seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from glowtrain.errors import ProgramError
from glowtrain.loops import Buffer, Expr, Load, bitcast, call, cast
from glowtrain.memory.budget import KEEP, SMALLEST, UNSAID, Budget, budget_of
from glowtrain.memory.residuals import Residuals
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.residuals import saved_activations, storing
from glowtrain.program.passes.residuals.forward_part import forward_part
from glowtrain.program.passes.residuals.residuals import NarrowResiduals
from glowtrain.program.passes.residuals.saved_activations import narrow_saved
from glowtrain.program.passes.residuals.storing import SUFFIX
from glowtrain.program.passes.reuse import ReuseOperands
from glowtrain.program.program import Program
from glowtrain.program.text import to_text
from glowtrain.program.verify import verify
from glowtrain.types import Array, bf16, f32, i32

PLAIN = Residuals()


def training_text(seed: int, layers: int = 6) -> str:
    """A program like a training step: a chain of kernels that leads to an output, and one back that reads what the
    first made, in other places too, compares it with constants, and updates a variable."""
    random = np.random.default_rng(seed)
    forward, backward = [], []
    names = ["x"]
    for k in range(layers):
        other = names[int(random.integers(len(names)))]
        at = random.choice(["i", "i", "63 - i"])
        forward += [f"kernel f{k}:", "  for i<64:", f"    let t{k} = 0.7 * {names[-1]}[{at}] + {other}[i] * v[i]"]
        forward += [f"    a{k}[i] = max(t{k}, 0)" if random.integers(2) else f"    a{k}[i] = t{k}"]
        names.append(f"a{k}")
        if random.integers(3) == 0:  # a row sum beside, which is small
            forward += [f"kernel s{k}:", f"  for j<4: s{k}[j] = sum(r<16: a{k}[16 * j + r])"]
        if random.integers(3) == 0:  # another result of the same kernel
            forward[-1 if forward[-1].startswith("    a") else -3] += f"\n    b{k}[i] = tanh(t{k})"
    total = "y0"
    for k in reversed(range(layers)):
        at, place = random.choice(["i", "63 - i"]), random.choice(["i", "i", "63 - i"])
        gate = f"select(a{k}[i] > 0, 1, 0.25)" if random.integers(2) else f"a{k}[{place}]"
        if any(f"b{k}[i] =" in line for line in forward) and random.integers(2):
            gate += f" * b{k}[i]"
        backward += [f"kernel g{k}:", f"  for i<64: c{k}[i] = {total}[{at}] * {gate} + 0.1 * {names[k]}[i]"]
        if random.integers(2):
            backward += [f"kernel w{k}:", f"  for i<64: v[i] = v[i] - 0.01 * c{k}[i] * a{k}[i]"]
        total = f"c{k}"
    made = (*names[1:], *(f"c{k}" for k in range(layers)), "y0")
    head = ["program p", "  input x: f32[64]", "  output y: f32[64]", "  variable v: f32[64]"]
    head += [f"  activation {name}: f32[64]" for name in made]
    text = "\n".join(forward)
    head += [f"  activation b{k}: f32[64]" for k in range(layers) if f"b{k}[i]" in text]
    head += [f"  activation s{k}: f32[4]" for k in range(layers) if f"s{k}[j]" in text]
    last = ["kernel out:", "  for i<64:", f"    let z = exp(0.01 * a{layers - 1}[i])", "    y0[i] = z", "    y[i] = z"]
    end = ["kernel end:", f"  for i<64: v[i] = v[i] - 0.01 * {total}[i]", ""]
    return "\n".join([*head, "  updates v", *forward, *last, *backward, *end])


def feeds_of(program: Program, seed: int) -> tuple[dict[str, Array], dict[str, Array]]:
    random = np.random.default_rng(seed)
    given = {name: random.standard_normal(b.shape).astype(np.float32) for name, b in program.inputs.items()}
    return given, {name: random.standard_normal(b.shape).astype(np.float32) for name, b in program.variables.items()}


def ran(program: Program, seed: int = 0) -> tuple[dict[str, bytes], dict[str, bytes]]:
    """Outputs and variables after a step, in the arena."""
    verify(program)
    placed = plan(program)
    verify_plan(placed)
    outputs, state = evaluate(program, *feeds_of(program, seed), plan=placed)
    return ({n: a.tobytes() for n, a in outputs.items()}, {n: a.tobytes() for n, a in state.items()})


def rounded(program: Program, narrow: dict[Buffer, Buffer] | None = None) -> Program:
    """The definition: the backward part reads each result that waits rounded, by a cast to bf16 and back; all is stored
    in f32 as it was."""
    found = narrow_saved(program, PLAIN, None).narrow if narrow is None else narrow

    def change(expr: Expr) -> Expr | None:
        if not isinstance(expr, Load) or expr.buffer not in found:
            return None
        return cast(cast(expr, bf16), f32)

    forward = forward_part(program)
    return replace(
        program, instructions=tuple(i if i in forward else i.rewritten(change) for i in program.instructions)
    )


def differing(count: int = 40) -> int:
    """The random programs that are not what the definition says, or whose outputs are others."""
    wrong = 0
    for seed in range(count):
        program = parse(training_text(seed))
        expected, narrow = ran(rounded(program), seed), narrow_saved(program, PLAIN, None).program
        try:
            found = ran(narrow, seed)
        except ProgramError:
            wrong += 1
            continue
        wrong += expected != found or found[0] != ran(program, seed)[0]
    return wrong


@pytest.mark.exhaustive
def test_random_programs_compute_what_rounding_by_hand_gives() -> None:
    assert differing() == 0
    narrowed = [narrow_saved(parse(training_text(seed)), PLAIN, None).narrow for seed in range(40)]
    assert sum(map(bool, narrowed)) > 35
    assert sum(map(len, narrowed)) > 100


@pytest.mark.exhaustive
@pytest.mark.parametrize("budget", [UNSAID, KEEP, budget_of("small"), SMALLEST], ids=repr)
def test_random_programs_pass_through_every_budget(budget: Budget) -> None:
    """What is computed again, or not, changes no bit of what waits where the same results do."""
    for seed in range(15):
        program = parse(training_text(seed))
        changed = NarrowResiduals(PLAIN, Rematerialize(budget)).run(program)
        outputs, _ = ran(ReuseOperands().run(changed), seed)
        assert outputs == ran(program, seed)[0]
        if budget in (UNSAID, KEEP):
            level = narrow_saved(Rematerialize(UNSAID).unsliced(program), PLAIN, None)
            assert ran(changed, seed) == ran(level.program, seed)


@pytest.mark.exhaustive
def test_limits_are_kept_and_less_is_never_more() -> None:
    for seed in range(6):
        program = parse(training_text(seed, layers=10))
        arenas = [
            plan(ReuseOperands().run(NarrowResiduals(PLAIN, Rematerialize(budget)).run(program))).arena
            for budget in (UNSAID, budget_of("small"), SMALLEST)
        ]
        assert sorted(arenas, reverse=True) == arenas
        variables = 64 * 4
        for arena in arenas:
            limited = NarrowResiduals(PLAIN, Rematerialize(Budget(nbytes=variables + arena))).run(program)
            assert plan(ReuseOperands().run(limited)).arena <= arena


STEP = """program p
  input  x: f32[256]
  output y: f32[256]
  variable v: f32[256]
  activation a: f32[256]
  activation b: f32[256]
  activation g: f32[256]
  updates v
kernel first:
  for i<256: a[i] = x[i] * v[i]
kernel second:
  for i<256: b[i] = exp(a[i])
kernel out:
  for i<256: y[i] = 2 * b[i]
kernel back:
  for i<256: g[i] = b[i] * x[i]
kernel update:
  for i<256: v[i] = v[i] - g[i] * a[i]
"""


def narrow_text(text: str, residuals: Residuals = PLAIN) -> str:
    return to_text(narrow_saved(parse(text), residuals, None).program)


def test_what_the_forward_part_reads_is_stored_twice() -> None:
    """By the kernel that makes it; the backward part reads bf16. What is read at once does not wait."""
    text = narrow_text(STEP)
    assert "  for i<256:\n    let a_1 = x[i] * v[i]\n    a[i] = a_1\n    a.bf16[i] = bf16(a_1)\n" in text
    assert "kernel second:\n  for i<256: b[i] = exp(a[i])\n" in text
    assert "kernel update:\n  for i<256: v[i] = v[i] - g[i] * f32(a.bf16[i])\n" in text


def test_what_nobody_reads_in_f32_is_stored_in_bf16_alone() -> None:
    text = STEP.replace("a[i] = x[i] * v[i]", "\n    let t = x[i] * v[i]\n    a[i] = t\n    b[i] = exp(t)")
    text = text.replace("kernel second:\n  for i<256: b[i] = exp(a[i])\n", "")
    found = narrow_text(text)
    assert "activation a: " not in found
    assert "activation a.bf16: bf16[256]" in found


def test_a_kernel_that_cannot_store_twice_is_followed_by_one_that_does() -> None:
    """Sums that are accumulated in memory are rounded when they are finished."""
    text = STEP.replace("a[i] = x[i] * v[i]", "a[i] = 0\nkernel more:\n  for i<256: a[255 - i] += x[i] * v[i]")
    found = narrow_saved(parse(text), PLAIN, None)
    names = [instruction.name for instruction in found.program.instructions]
    assert names.index(f"a{SUFFIX}") == names.index("second") + 1
    assert ran(found.program) == ran(rounded(parse(text)))


@pytest.mark.parametrize(
    ("reading", "waits"),
    [
        ("select(a[i] > 0, g[i], 0)", True),
        ("select(a[i] < 6, g[i], 0)", True),
        ("select(a[i] == x[i], g[i], 0)", False),
        ("select(a[i] >= x[i], g[i], 0)", False),
        ("select(a[i] == 1, g[i], 0)", False),
        ("select(a[i] == 0, g[i], 0)", True),
        ("g[i] * floor(a[i])", False),
        ("g[i] * x[i64(a[i])]", False),
        ("g[i] * f32(i32(a[i]))", False),
        ("g[i] * abs(a[i])", True),
    ],
)  # fmt: skip
def test_what_the_backward_part_decides_by_stays_exact(reading: str, waits: bool) -> None:
    found = narrow_saved(parse(STEP.replace("g[i] * a[i]", reading)), PLAIN, None)
    assert ("a" in {buffer.name for buffer in found.narrow}) is waits


def test_what_is_made_of_a_result_to_decide_by_keeps_it_exact() -> None:
    text = STEP.replace("for i<256: g[i] = b[i] * x[i]", "for i<256: g[i] = a[i] * x[i]")
    text = text.replace("g[i] * a[i]", "select(g[i] >= x[i], a[i], 0)")
    assert not narrow_saved(parse(text), PLAIN, None).narrow


def test_updates_of_the_forward_part_read_what_was_not_rounded() -> None:
    text = STEP.replace("  updates v", "  variable s: f32[256]\n  updates v, s")
    text += "kernel state:\n  for i<256: s[i] = 0.9 * s[i] + a[i]\n"
    wrong, right = (ran(narrow_saved(parse(text), Residuals(own), None).program)[1]["s"] for own in ((), ("s",)))
    assert right == ran(parse(text))[1]["s"]
    assert wrong != right


def test_small_results_and_other_types_wait_as_they_are() -> None:
    text = STEP.replace("kernel out:", "kernel sum:\n  s[0] = sum(r<256: a[r])\nkernel out:")
    text = text.replace("  updates v", "  activation s: f32[1]\n  updates v").replace(
        "g[i] * a[i]", "g[i] * a[i] * s[0]"
    )
    assert {buffer.name for buffer in narrow_saved(parse(text), PLAIN, None).narrow} == {"a"}
    wide = STEP.replace("activation a: f32", "activation a: f64").replace("= x[i] * v[i]", "= f64(x[i] * v[i])")
    wide = wide.replace("exp(a[i])", "exp(f32(a[i]))").replace("g[i] * a[i]", "g[i] * f32(a[i])")
    assert "a" not in {buffer.name for buffer in narrow_saved(parse(wide), PLAIN, None).narrow}


def test_a_program_without_a_backward_part_stays_as_it_is() -> None:
    program = parse(STEP)
    own = NarrowResiduals(Residuals(("v",)), Rematerialize(KEEP)).run(program)
    assert own is program


# --- mistakes are seen


@pytest.mark.exhaustive
def test_bits_that_are_cut_in_place_of_rounding_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def cut(value: Expr, dtype: object) -> Expr:
        if dtype == bf16:
            bits = call("and", bitcast(value, i32), -65536)
            return cast(bitcast(bits, f32), bf16)
        return cast(value, dtype)  # type: ignore[arg-type]

    monkeypatch.setattr(storing, "cast", cut)
    assert differing(20) > 10


@pytest.mark.exhaustive
def test_a_forward_part_that_reads_what_was_rounded_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = saved_activations._SavedActivations.stored

    def wrong(self: saved_activations._SavedActivations) -> list[object]:
        result = stored(self)
        return [storing.reading(i, self.among.narrow) if n == len(result) // 4 else i for n, i in enumerate(result)]

    monkeypatch.setattr(saved_activations._SavedActivations, "stored", wrong)
    assert differing(20) > 5


def test_a_reader_of_what_waits_that_reads_f32_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    reading: Callable[..., object] = storing.reading
    calls = []

    def wrong(instruction: object, narrow: object) -> object:
        calls.append(instruction)
        return instruction if len(calls) % 3 == 0 else reading(instruction, narrow)

    monkeypatch.setattr(saved_activations, "reading", wrong)
    assert differing(20) > 10
