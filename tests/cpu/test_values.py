"""Operands that do not go together are refused while code is written, with the function and the instruction."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from glowtrain.backends.cpu.contraction.dot import dot_of
from glowtrain.backends.llvm import scalar
from glowtrain.backends.llvm.lanes import Lanes
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.toolchain import build
from glowtrain.backends.llvm.values import I32, LlvmValue, number, pointer, vector
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError

HOST = Target.host()
SINGLE, DOUBLE, SHORT = vector("float", 8), vector("double", 8), vector("float", 4)
A, B, C = LlvmValue("%a", SINGLE), LlvmValue("%b", DOUBLE), LlvmValue("%c", SHORT)
MASK, FEW = LlvmValue("%m", vector("i1", 8)), LlvmValue("%few", vector("i1", 4))
PLACE = pointer("%p")


def loop_carries_another_type(f: LlvmFunction) -> None:
    with f.loop(4, [A]) as loop:
        loop.next = [f.convert("fpext", loop.carried[0], "double")]


MISMATCHES: dict[str, Callable[[LlvmFunction], object]] = {
    "fadd of <8 x float> %a, <8 x double> %b": lambda f: f.op("fadd", A, B),
    "fadd of <8 x float> %a, <4 x float> %c": lambda f: Lanes(f, SINGLE).add(A, C),
    "olt of <8 x float> %a, <8 x double> %b": lambda f: f.compare("olt", A, B),
    "select of <4 x i1> %few, <8 x float> %a, <8 x float> %a": lambda f: f.select(FEW, A, A),
    "select of <8 x i1> %m, <8 x float> %a, <8 x double> %b": lambda f: f.select(MASK, A, B),
    "fma of <8 x float> %a, <8 x float> %a, <8 x double> %b": lambda f: f.intrinsic("fma", A, A, B),
    "insertelement of <8 x float> %a, double 0x": lambda f: f.insert(A, number(1.0, vector("double")), 0),
    "shufflevector of <8 x float> %a, <4 x float> %c": lambda f: f.shuffle(A, C, range(8)),
    "phi of <8 x float> %a, <8 x double> %b": lambda f: f.phi(A, "x", B, "y"),
    "phi of <8 x float> %a, <8 x double> %v": loop_carries_another_type,
    "splat of <8 x float> %a": lambda f: f.splat(A, 4),
    "getelementptr of <8 x float> %a, i64 1": lambda f: f.address(A, 1, 4),
    "getelementptr of ptr %p, <8 x float> %a": lambda f: f.shift(PLACE, A, "float"),
    "load of float of <8 x float> %a": lambda f: f.load(vector("float"), A),
    "store as <8 x float> of <8 x double> %b": lambda f: Lanes(f, SINGLE).store(B, PLACE, 8),
    "store of <8 x float> %a, <8 x double> %b": lambda f: f.store(A, B),
    "store of <8 x float> %a, <4 x i1> %few": lambda f: f.store(A, PLACE, 4, FEW),
    "load of <8 x float> of <4 x i1> %few": lambda f: f.load(SINGLE, PLACE, 4, FEW),
    "add of i32 takes i32, not <8 x float> %a": lambda f: scalar.apply(f, "add", [A, A], "i32", HOST),
    "<8 x float> %a is stored as f64": lambda f: scalar.store(f, A, PLACE, "f64", HOST),
}


@pytest.mark.parametrize("message", MISMATCHES)
def test_operands_that_do_not_go_together(message: str) -> None:
    with pytest.raises(CodegenError) as refused:
        MISMATCHES[message](LlvmFunction("kernel", []))
    assert str(refused.value).startswith("function kernel: ")
    assert message in str(refused.value)


def test_words_that_do_not_go_with_the_sums() -> None:
    dot = dot_of(Target.named("avx512vnni"), "u8", "i8")
    assert dot is not None
    words, few = (LlvmValue("%w", vector("i8", lanes)) for lanes in (64, 32))
    with pytest.raises(CodegenError, match=r"function kernel: .*vpdpbusd.* of <64 x i8> and <32 x i8> .* <16 x i32>"):
        dot.product(LlvmFunction("kernel", []), words, few, LlvmValue("%t", vector("i32", 16)))


def test_a_type_is_one_object() -> None:
    assert vector("i64") is vector("i64", 1) is vector("i64", 8).one
    assert vector("float", 8).masks is vector("i1", 8)
    assert [str(type_) for type_ in (I32, SINGLE, SINGLE.of("i16"))] == ["i32", "<8 x float>", "<8 x i16>"]


@pytest.mark.parametrize("lane", [1, -1, 3, 0])
@pytest.mark.parametrize("count", [8, 5, 1])
def test_strided_lanes(lane: int, count: int) -> None:
    """Neighbours, backwards, some elements apart, and one in all lanes; what does not exist is 0."""
    f = LlvmFunction("kernel", [("ptr noalias", "x"), ("ptr noalias", "out")])
    lanes = Lanes(f, SINGLE)
    lanes.store(lanes.load(lanes.shift(pointer("%x"), 16), lane, count), pointer("%out"), 8)
    x, out = np.arange(64, dtype=np.float32), np.zeros(8, np.float32)
    build(f.finish(), HOST, ["kernel"]).function("kernel", 2)(x.ctypes.data, out.ctypes.data)
    exists = np.arange(8) < (8 if lane == 0 else count)
    assert out.tolist() == np.where(exists, 16 + lane * np.arange(8), 0).tolist()
