"""Calls of native functions: in text, under passes and plans, on every engine, and from operators."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import WALK, arrive
from glowtrain.errors import ArtifactError, CodegenError, InputError, PluginError, ProgramError, TextError
from glowtrain.graph import OPERATORS, Graph, Input, Operator, Value, Variable
from glowtrain.loops import Buffer
from glowtrain.native import NativeFunction
from glowtrain.ops.control.scan import Scan
from glowtrain.program.memory.plan import plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse, parse_plan
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.program.program import Call, Program
from glowtrain.program.text import functions_of, plan_text, to_text
from glowtrain.program.verify import verify
from glowtrain.stages import Options
from glowtrain.types import Array, TensorType, f32, f64
from tests.program.filetests import ENGINES
from tests.stages import fuse

LLVM = """define void @twice(ptr %x, ptr %y, i64 %count) {
entry:
  br label %loop
loop:
  %i = phi i64 [0, %entry], [%next, %loop]
  %from = getelementptr float, ptr %x, i64 %i
  %value = load float, ptr %from
  %sum = fadd float %value, %value
  %to = getelementptr float, ptr %y, i64 %i
  store float %sum, ptr %to
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, %count
  br i1 %more, label %loop, label %done
done:
  ret void
}
define void @sum_and_difference(ptr %x, ptr %y, ptr %sum, ptr %difference) {
  %a = load float, ptr %x
  %b = load float, ptr %y
  %c = fadd float %a, %b
  %d = fsub float %a, %b
  store float %c, ptr %sum
  store float %d, ptr %difference
  ret void
}
"""
LIBRARY = build(LLVM, Target.host(), ["twice", "sum_and_difference"])
TWICE = NativeFunction("twice", LIBRARY.address("twice"), keep=LIBRARY)
BOTH = NativeFunction("both", LIBRARY.address("sum_and_difference"), keep=LIBRARY)

TEXT = """program p
  input      x: f32[2,3]
  output     y: f32[2,3]
  activation a: f32[2,3]
  activation b: f32[2,3]
kernel plus:
  for i<2, j<3: a[i, j] = x[i, j] + 1
call double: twice(a; word 6) -> b
kernel minus:
  for i<2, j<3: y[i, j] = b[i, j] - x[i, j]
"""
X = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_a_call_comes_back_from_its_text() -> None:
    program = parse(TEXT, functions={"twice": TWICE})
    assert to_text(program) == TEXT
    assert functions_of(program)["twice"].address == TWICE.address
    planned = plan(program)
    text = plan_text(planned)
    assert plan_text(parse_plan(text, functions=functions_of(program))) == text
    with pytest.raises(TextError, match="line 8, column 14: there is no function 'twice'; pass functions="):
        parse(TEXT)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_call_runs_on_every_engine(engine: str) -> None:
    for program in (parse(TEXT, functions={"twice": TWICE}), fuse(parse(TEXT, functions={"twice": TWICE}))):
        verify(program)
        verify_plan(plan(program))
        outputs, _ = ENGINES[engine](program, {"x": X}, {})
        np.testing.assert_array_equal(outputs["y"], X + 2)


def test_passes_leave_a_call_and_what_it_reads() -> None:
    """Neither a move nor a constant goes into it, and its operands stay row-major."""
    text = TEXT.replace("a[i, j] = x[i, j] + 1", "a[i, j] = x[i, -j + 2]")
    program = parse(text.replace("kernel plus", "  prefer a [1,0]\nkernel plus"), functions={"twice": TWICE})
    fused = fuse(assign_layouts(program))
    assert [instruction.kind for instruction in fused.instructions] == ["kernel", "call", "kernel"]
    assert all(b.layout == (0, 1) for b in fused.buffers)
    assert "a[i, j] = x[i, -j + 2]" in to_text(fused)


def test_what_a_call_reads_is_not_computed_again_elsewhere() -> None:
    text = TEXT.replace("x[i, j] + 1", "exp(x[i, j])").replace("b[i, j] - x[i, j]", "b[i, j] - a[i, j]")
    fused = fuse(parse(text, functions={"twice": TWICE}))
    assert to_text(fused).count("exp(") == 1


def test_several_operands_and_results_in_repeats() -> None:
    program = parse(
        """program p
  input      x: f32[4]
  output     y: f32[4]
  output     last: f32[]
  activation one: f32[]
  activation state: f32[]
  activation sum: f32[]
  activation rest: f32[]
kernel start:
  state[] = 0
repeat loop t<4:
  kernel take:
    one[] = x[t]
  call both: both(state, one) -> sum, rest
  kernel keep:
    state[] = sum[]
    y[t] = rest[]
kernel end:
  last[] = state[]
""",
        functions={"both": BOTH},
    )
    for engine, run in ENGINES.items():
        outputs, _ = run(program, {"x": np.array([1, 2, 3, 4], np.float32)}, {})
        assert outputs["last"] == 10, engine
        np.testing.assert_array_equal(outputs["y"], [-1, -1, 0, 2], err_msg=engine)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("-> b", "-> a", "activation a .* is a result, and another operand or result too"),
        ("b: f32[2,3]", "b: f32[2,3] layout [1,0]", "activation b .* has layout \\[1, 0\\]; it is taken row-major"),
        (
            "kernel plus:\n  for i<2, j<3: a[i, j] = x[i, j] + 1\n",
            "",
            "call double: activation a .* is read before",
        ),
        ("-> b", "-> x", "input x .* is written"),
    ],
)
def test_calls_that_are_not_well_formed(old: str, new: str, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        verify(parse(TEXT.replace(old, new), functions={"twice": TWICE}))


def test_a_plan_in_which_a_call_overwrites_its_operand_is_refused() -> None:
    good = plan(parse(TEXT, functions={"twice": TWICE}))
    a, b = (next(buffer for buffer in good.offsets if buffer.name == name) for name in "ab")
    with pytest.raises(ProgramError, match="share memory but both are alive in call double"):
        verify_plan(replace(good, offsets={a: 0, b: 0}))


def test_an_address_is_one() -> None:
    with pytest.raises(InputError, match="native function 'f' is a str, no ctypes function or address"):
        NativeFunction("f", "f")
    with pytest.raises(InputError, match="native function 'f' has address 0"):
        NativeFunction("f", 0)
    for address in (-1, 1 << 64, True):
        with pytest.raises(InputError, match="native function 'f' "):
            NativeFunction("f", address)
    assert NativeFunction("f", ctypes.CFUNCTYPE(None)(TWICE.address)).address == TWICE.address


@pytest.mark.parametrize("word", [2.5, "a", True, 1 << 63])
def test_a_word_is_an_integer_of_64_bits(word: Any) -> None:
    with pytest.raises(InputError, match=f"native function 'twice': word {word!r} is no integer of 64 bits"):
        replace(TWICE, word=word)
    if isinstance(word, int) and not isinstance(word, bool):
        with pytest.raises(TextError, match="is no integer of 64 bits"):
            parse(TEXT.replace("word 6", f"word {word}"), functions={"twice": TWICE})


# ---- operators


@dataclass(frozen=True)
class Twice(Operator):
    """2 x, by the native function in f32."""

    domain = "test.native"

    def infer(self, x: TensorType) -> TensorType:
        return x

    def reference(self, x: Array) -> Array:
        return x + x

    def vjp(self, g: Value, y: Value, x: Value) -> tuple[Value]:
        return (g * 2.0,)

    def native(self, *inputs: TensorType | None) -> NativeFunction | None:
        (x,) = inputs
        return replace(TWICE, word=x.size) if x is not None and x.dtype == f32 and x.size else None

    def decompose(self, x: Value) -> Any:
        return x + x


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    gt.operator(Twice)
    yield
    del OPERATORS[Twice.key()]


def graph(dtype: Any = f32) -> Graph:
    x, w = Input(dtype[2, 3], "x"), Variable("w", np.ones((3, 4), dtype.numpy))
    y = Twice()(x @ w)
    (slope,) = gt.gradients(gt.nn.total(y * y), [w])
    return Graph((x,), {"y": y}, {w: w - 0.125 * slope}, name="g")


def calls(program: Program) -> list[Buffer]:
    return [buffer for leaf in program.leaves if isinstance(leaf, Call) for buffer in leaf.inputs]


def test_an_operator_is_called_in_a_training_step() -> None:
    assert len(calls(arrive(graph()).program)) == 1
    results = []
    for backend in ("interpreter", "cpu"):
        step = gt.compile(graph(), backend=backend)
        results.append([step({"x": X})["y"] for _ in range(3)])
    np.testing.assert_allclose(*results, rtol=1e-5)


def test_types_without_a_native_function_take_the_decomposition() -> None:
    assert not calls(arrive(graph(f64)).program)


@pytest.mark.parametrize(
    "given", [TWICE.address, TWICE.name, ctypes.CFUNCTYPE(None)(TWICE.address)], ids=["address", "name", "ctypes"]
)
def test_an_operator_gives_a_native_function_or_none(monkeypatch: pytest.MonkeyPatch, given: Any) -> None:
    monkeypatch.setattr(Twice, "native", lambda self, x: given)
    with pytest.raises(
        PluginError, match=r"the native of test\.native\.Twice must return a gt\.NativeFunction, or None"
    ):
        arrive(graph())


def test_a_call_in_a_scan_reads_a_slice() -> None:
    state, piece = Input(f32[3], "state"), Input(f32[3], "piece")
    body = Graph((state, piece), {"next": state + Twice()(piece), "seen": Twice()(piece)}, name="body")
    start, pieces = Input(f32[3], "start"), Input(f32[2, 3], "pieces")
    last, seen = Scan(body, 1)(start, pieces)
    given = {"start": np.zeros(3, np.float32), "pieces": X}
    found = gt.compile(Graph((start, pieces), {"last": last, "seen": seen}))(given)
    np.testing.assert_array_equal(found["seen"], 2 * X)
    np.testing.assert_array_equal(found["last"], 2 * X.sum(axis=0))


def test_code_for_another_processor_is_refused() -> None:
    backend = gt.Cpu(Target.named("neon"))
    with pytest.raises(CodegenError, match="native function 'twice' of this process, which code for neon cannot"):
        arrive(graph(), Options(), backend.stages(WALK))


def test_code_that_calls_is_not_kept_on_disk(tmp_path: Path) -> None:
    backend = gt.Cpu(cache=tmp_path)
    step = gt.compile(graph(), backend=backend)
    np.testing.assert_array_equal(step({"x": X})["y"], 2 * (X @ np.ones((3, 4), np.float32)))
    assert not list(tmp_path.iterdir())
    artifact = arrive(graph(), Options(), gt.Cpu().stages(WALK))
    with pytest.raises(ArtifactError, match=r"step calls native functions of this process \(twice\): it cannot be"):
        artifact.to_bytes()


def test_cycles_of_calls_are_counted() -> None:
    backend = gt.Cpu()
    artifact = arrive(graph(), Options(profile=True), backend.stages(WALK))
    assert "twice" in [call.name for call in artifact.calls]
