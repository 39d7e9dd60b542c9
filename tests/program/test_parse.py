"""Programs and plans come back from their text: the same text again, the same bits when run, and clear refusals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_program_text import attention, convolution, mlp, recurrence

from glowtrain.errors import ProgramError, TextError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.strategies import HypothesisDraw
from glowtrain.graph import Graph, Input, Node, Operator, registered
from glowtrain.loops import Apply, Buffer, Const, Expr, For, Index, Load, Reduce, Statement, Store, call, indices_of
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse, parse_plan
from glowtrain.program.passes.layout import assign_layouts
from glowtrain.program.passes.schedule import schedule
from glowtrain.program.program import Kernel, Program
from glowtrain.program.text import arrays_of, plan_text, to_text
from glowtrain.types import DTYPES, Array, DType, TensorType, dtype_of, f32, f64, i32
from tests.program.random_graphs import RandomGraph, permutation
from tests.stages import fuse, lower

Feeds = dict[str, Array]


def come_back(program: Program) -> Program:
    """The program read from its text, which prints the same."""
    text = to_text(program)
    read = parse(text, arrays_of(program))
    assert to_text(read) == text
    assert {name: b.name for name, b in read.inputs.items()} == {n: b.name for n, b in program.inputs.items()}
    assert {name: b.name for name, b in read.outputs.items()} == {n: b.name for n, b in program.outputs.items()}
    return read


def same_bits(program: Program, feeds: Feeds) -> None:
    """The program read from its text gives the same bits, planned too."""
    expected = evaluate(program, feeds)
    planned = plan(program)
    text = plan_text(planned)
    again = parse_plan(text, arrays_of(program))
    assert plan_text(again) == text
    assert (again.arena, again.peak) == (planned.arena, planned.peak)
    for got in (evaluate(come_back(program), feeds), evaluate(again.program, feeds, plan=again)):
        for results, others in zip(expected, got, strict=True):
            assert {name: array.tobytes() for name, array in results.items()} == {
                name: array.tobytes() for name, array in others.items()
            }


def stages(graph: Graph) -> list[Program]:
    lowered = lower(graph)
    return [lowered, schedule(fuse(assign_layouts(lowered)))]


# ---- there and back


@pytest.mark.parametrize("graph", [mlp(), attention(), convolution(), recurrence()], ids=lambda graph: graph.name)
def test_the_golden_programs_come_back(graph: Graph) -> None:
    random = np.random.default_rng(2)
    feeds = {
        v.name: random.integers(0, 2, v.shape).astype(v.dtype.numpy)
        if v.dtype.is_integer
        else random.normal(size=v.shape).astype(v.dtype.numpy)
        for v in graph.inputs
    }
    for program in stages(graph):
        same_bits(program, feeds)


@given(st.data())
def test_random_programs_come_back(data: st.DataObject) -> None:
    drawing = RandomGraph(HypothesisDraw(data.draw))
    program = lower(drawing.graph())
    wishes = [(b, permutation(drawing.draw, b.type.rank)) for b in program.buffers if b.type.rank > 1]
    program = replace(program, preferences=tuple(wishes))
    feeds = drawing.feeds()
    for each in (program, schedule(fuse(assign_layouts(program)))):
        same_bits(each, feeds)


@pytest.mark.spread(6)
@pytest.mark.parametrize("cls", list(registered()), ids=lambda cls: cls.key())
def test_every_operator_lowered_comes_back(cls: type[Operator]) -> None:
    for seed in range(2):
        sample = cls.sample(ChoiceDraw(seed))
        feeds = {f"x{i}": array for i, array in enumerate(sample.inputs) if array is not None}
        inputs = {name: Input(TensorType(dtype_of(a.dtype), a.shape), name) for name, a in feeds.items()}
        node = Node(sample.operator, [inputs.get(f"x{i}") for i in range(len(sample.inputs))])
        graph = Graph(tuple(inputs.values()), {f"y{v.index}": v for v in node.outputs}, name="one")
        for program in stages(graph):
            same_bits(program, feeds)


def one(value: Expr, dtype: DType = f64, indices: tuple[Index, ...] = (), name: str = "y") -> Program:
    """``y[...] = value`` over a box."""
    y = Buffer(name, dtype[tuple(i.extent for i in indices)], "output")
    body: tuple[Statement, ...] = (Store(y, indices, value),)
    return Program("p", {}, {name: y}, {}, (Kernel("k", (For(indices, body),)),))


@pytest.mark.parametrize("value", [0.0, -0.0, 0.1, -1e-300, float("inf"), float("-inf"), float("nan"), -float("nan")])
@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
def test_floats_keep_their_bits(value: float, dtype: str) -> None:
    same_bits(one(Const(value, DTYPES[dtype]), DTYPES[dtype]), {})


@pytest.mark.parametrize(("value", "dtype"), [(2**63, "u64"), (-(2**63), "i64"), (-1, "u8"), (300, "i8"), (7, "i4")])
def test_integers_keep_their_bits(value: int, dtype: str) -> None:
    same_bits(one(Const(value, DTYPES[dtype]), DTYPES[dtype]), {})


def test_types_of_numbers_come_back() -> None:
    """Operands that are all numbers, under conversions, comparisons and reductions."""
    two, three = Const(2.0, f32), Const(3, i32)
    value = call("select", two < call("neg", two), Reduce("add", (Index(3, "r"),), two * two), call("exp", two))
    same_bits(one(value, f32), {})
    same_bits(one(call("div", call("neg", three), three), i32), {})
    same_bits(one(-Const(-5, i32), i32), {})


def test_a_shared_part_is_one_expression_again() -> None:
    (i,) = indices_of((4,))
    x = Buffer("x", f64[4], "input")
    part = call("exp", Load(x, (i,)))
    program = replace(one(part * part + part, f64, (i,)), inputs={"x": x})
    read = come_back(program)
    (loop,) = next(iter(read.kernels)).body
    assert isinstance(loop, For)
    assert isinstance(store := loop.body[0], Store)
    assert isinstance(total := store.value, Apply)
    assert isinstance(square := total.arguments[0], Apply)
    assert square.arguments[0] is square.arguments[1] is total.arguments[1]


@pytest.mark.parametrize("name", ["for", "a b", 'say "y"', "a\\b\nc", "é", "1st", "x/y:0", "f32", "sum", "true"])
def test_names_are_quoted_where_they_must_be(name: str) -> None:
    i = Index(3, name)
    program = one(Reduce("add", (Index(2, name),), Const(1.0, f64)) + call("exp", Const(0.5, f64)), f64, (i,), name)
    program = replace(program, name=name, instructions=(replace(next(iter(program.kernels)), name=f"{name}+{name}"),))
    read = come_back(program)
    assert (read.name, list(read.outputs), next(iter(read.kernels)).name) == (name, [name], f"{name}+{name}")


def test_what_programs_say_about_buffers_comes_back() -> None:
    text = """program p
  input      x: f32[2,3] as "x in"
  output     y: f32[2,3] as a, b
  variable   v: f32[2] = @v
  constant   c: f32[2] = [1, -0.5]
  constant   d: f32[] = 3
  constant   e: bool[2] = [true, false]
  constant   far: i64[17] = @far
  activation t: f32[2,3] layout [1,0]
  updates v
  prefer t [1,0]
  prefer c [0]
kernel k:
  for i<2, j<3: t[i, j] = x[i, j] * c[i] + d[]
  for i<2, j<3: y[i, j] = t[i, j]
  for i<2: v[i] = f32(far[i])
"""
    arrays = {"v": np.ones(2, np.float32), "far": np.arange(17)}
    read = parse(text, arrays)
    assert to_text(read) == text
    assert arrays_of(read) == arrays
    assert list(read.inputs) == ["x in"]
    assert read.outputs["a"] is read.outputs["b"]
    assert read.updates == ("v",)
    assert [(b.name, layout) for b, layout in read.preferences] == [("t", (1, 0)), ("c", (0,))]
    assert read.constants[0].initial is not None
    assert read.constants[0].initial.tolist() == [1, -0.5]


def test_contents_may_be_written_out_whatever_their_size() -> None:
    numbers = list(range(20))
    text = f"program p\n  output y: i64[20]\n  variable v: i64[20] = {numbers}\nkernel k:\n  for i<20: y[i] = v[i]\n"
    read = parse(text)
    assert evaluate(read, {})[0]["y"].tolist() == numbers
    assert arrays_of(read)["v"].tolist() == numbers


def test_nan_that_is_not_the_usual_one_is_an_array() -> None:
    odd = np.array([0x7FC00001, 0x7FC00000], np.uint32).view(np.float32)
    c = Buffer("c", f32[2], "constant", initial=odd)
    (i,) = indices_of((2,))
    program = replace(one(Load(c, (i,)), f32, (i,)), constants=(c,))
    assert "c: f32[2] = @c" in to_text(program)
    assert "= [nan]" in to_text(
        replace(program, constants=(replace(c, type=f32[1], initial=odd[1:]),), instructions=())
    )


def test_comments_and_blank_lines_do_not_matter() -> None:
    text = to_text(lower(mlp()))
    loose = "\n; a comment\n" + text.replace("\n", "\n\n    ; another one\n")
    assert to_text(parse(loose, arrays_of(lower(mlp())))) == text


# ---- plans


OVERLAP = """plan p: arena 128 bytes, peak 128 bytes
  input      x: f32[16]
  output     y: f32[16]
  activation a: f32[16] at 0
  activation b: f32[16] at {offset}
kernel one:
  for i<16: a[i] = x[i] + 1
kernel two:
  for i<16: b[i] = x[i] * 2
kernel three:
  for i<16: y[i] = a[i] + b[i]
"""


def test_a_plan_in_which_buffers_overlap_is_refused() -> None:
    verify_plan(parse_plan(OVERLAP.format(offset=64)))
    with pytest.raises(ProgramError, match=r"a \(f32\[16\]\) and activation b .* share memory but both are alive"):
        verify_plan(parse_plan(OVERLAP.format(offset=0)))


def test_a_plan_without_an_offset_is_refused() -> None:
    with pytest.raises(ProgramError, match="activation b .* has no place"):
        verify_plan(parse_plan(OVERLAP.replace(" at {offset}", "")))


# ---- refusals


GOOD = """program p
  input  x: f32[4,3]
  input  at: i64[4]
  output y: f32[4,3]
kernel k:
  for i<4, j<3:
    let a = x[i, j] * 2
    with s = exp(a)
    y[i, j] = s * s + sum(r<3: x[i, r])
"""
WRONG = {
    "an empty text": (GOOD, "", "line 1, column 1: expected 'program', found the end of the text"),
    "no program": ("program p", "graph p", "line 1, column 1: expected 'program', found 'graph'"),
    "a letter outside": ("x[i, j] * 2", "x[i, j] § 2", "line 7, column 21: cannot read '§ 2'"),
    "an unknown kind": ("input  at", "parameter at", "line 3, column 3: expected input, output, variable, constant, "),
    "an unknown type": ("x: f32", "x: float", "line 2, column 13: there is no element type float; there are f64, "),
    "two buffers of one name": ("input  at", "input  x", "line 3, column 10: there are two buffers x"),
    "one name for two inputs": ("at: i64[4]", "at: i64[4] as x", "line 3, column 10: there are two inputs x"),
    "an unused activation": ("  output y", "  activation t: f32[2]\n  output y", "line 4, column 3: activation t"),
    "an unknown instruction": ("kernel k:", "branch k:", "line 5, column 1: expected kernel, repeat or call"),
    "no colon": ("kernel k:", "kernel k", "line 5, column 9: expected ':', found the end of the line"),
    "an undefined buffer": ("x[i, r]", "z[i, r]", "line 9, column 32: there is no buffer z"),
    "an undefined target": ("    y[i, j]", "    z[i, j]", "line 9, column 5: there is no buffer z"),
    "an undefined name": ("* 2", "* b", "line 7, column 23: b is no index and no value that is defined here"),
    "a buffer without subscripts": ("* 2", "* x", "line 7, column 23: x is no index and no value that is defined here"),
    "an index out of scope": ("s * s +", "s * f32(r) +", "line 9, column 23: r is no index and no value that is"),
    "a part out of scope": ("+ sum", "\n    y[i, j] = s + sum", "line 10, column 15: s is no index and no value"),
    "an index defined twice": ("j<3:\n", "i<3:\n", "line 6, column 12: i is defined already"),
    "a let defined twice": ("with s", "let a = 1\n    with s", "line 8, column 9: a is defined already"),
    "a name of a buffer": ("let a", "let x", "line 7, column 9: x is a buffer"),
    "a word of the grammar": ("let a", "let with", "line 7, column 9: with is a word of the grammar; as a name it"),
    "an index defined twice in a sum": ("sum(r<3", "sum(i<3", "line 9, column 27: i is defined already"),
    "an unknown function": ("exp(a)", "cube(a)", "line 8, column 14: there is no function cube"),
    "too many operands": ("exp(a)", "exp(a, a)", "line 8, column 14: exp takes 1 operands, not 2"),
    "operands of two types": ("* 2", "* at[i]", "line 7, column 21: mul of f32 and i64; its operands must have one"),
    "a condition that is none": ("exp(a)", "select(i, a, a)", "line 8, column 14: the condition of a select is i64, "),
    "a number that is no integer": ("x[i, j] * 2", "i * 2.5", "line 7, column 17: 2.5 is no i64"),
    "a number without a type": ("x[i, j] * 2", "0.5", "line 7, column 13: 0.5 is no i64; write its type behind it"),
    "a fill that is no number": ("x[i, r]", "x[i, r; fill a]", "line 9, column 45: expected a number, found 'a'"),
    "an extent that is no integer": ("i<4,", "i<4.5,", "line 6, column 9: 4.5 is no integer"),
    "a reduction without an end": ("x[i, r])", "x[i, r]", "line 9, column 39: expected ')', found the end"),
    "something behind a statement": ("* 2", "* 2 2", "line 7, column 25: expected the end of the line, found '2'"),
    "a part that nothing uses": ("    y[i, j] = s * s + sum(r<3: x[i, r])\n", "", "line 8, column 5: a part without a"),
    "lines that are indented differently": ("    with", "      with", "line 8, column 7: this line is indented by 6, "),
    "an unknown sign": ("y[i, j] =", "y[i, j] -", "line 9, column 13: expected = or an accumulation such as +=, found"),
    "too few numbers": ("output y", "constant c: f32[2] = [1]\n  output y", "line 4, column 24: 1 numbers for f32[2]"),
    "numbers for bool": ("output y", "constant c: bool[] = 1\n  output y", "line 4, column 24: 1 is no bool; write"),
    "a missing array": ("output y", "constant c: f32[2] = @c\n  output y", "line 4, column 25: there is no array 'c'"),
    "an array of another type": ("output y", "constant d: f32[] = @d\n  output y", "array 'd' is float64[3], not f32"),
    "a number of very many digits": ("i<4,", f"i<{'9' * 5000},", "line 6, column 9: a number of 5000 digits is too"),
    "very many brackets": ("x[i, j] * 2", "(" * 5000 + "2", "line 7, column 1: this is nested too deeply"),
    "very many loops": (
        "    let a", "".join(f"{' ' * n}for a{n}<1:\n" for n in range(4, 1500)) + " " * 1500 + "let a",
        "column 1: this is nested too deeply",
    ),
    "a preference for no buffer": ("kernel k", "  prefer z [0]\nkernel k", "line 5, column 10: there is no buffer z"),
}  # fmt: skip


def test_the_text_that_is_spoiled_below_is_right() -> None:
    come_back(parse(GOOD))


@pytest.mark.parametrize(("old", "new", "message"), WRONG.values(), ids=WRONG)
def test_wrong_text_is_refused_with_line_and_column(old: str, new: str, message: str) -> None:
    assert old in GOOD
    with pytest.raises(TextError) as caught:
        parse(GOOD.replace(old, new), {"d": np.zeros(3)})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("title", "message"),
    [
        ("plan p", "line 1, column 7: expected ':'"),
        ("plan p: arena many bytes, peak 1 bytes", "line 1, column 15: expected a size, found 'many'"),
        ("plan p: arena 1 bytes", "line 1, column 22: expected ','"),
        ("program p", "line 1, column 1: expected 'plan', found 'program'"),
    ],
)
def test_wrong_titles_of_plans_are_refused(title: str, message: str) -> None:
    with pytest.raises(TextError) as caught:
        parse_plan(GOOD.replace("program p", title))
    assert message in str(caught.value)
