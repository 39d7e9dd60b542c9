"""Bytes of stack, and of sections, of functions whose buffers are known, for every kind of processor."""

from __future__ import annotations

import pytest

from glowtrain.backends.llvm.sections import sections_of
from glowtrain.backends.llvm.stack import stack_of
from glowtrain.backends.llvm.text import LlvmFunction, index_type
from glowtrain.backends.llvm.toolchain import compile_text
from glowtrain.backends.llvm.values import POINTER, pointer, vector
from glowtrain.backends.target import Target, target_names
from glowtrain.errors import CodegenError

BYTE = vector("i8")
TARGETS = sorted(target_names())
REGISTERS = 400
"""Bytes that saved registers and alignment take at most."""


def function(name: str, room: int, target: Target, called: str = "", lanes: int = 1) -> str:
    """A function with a buffer, which it hands on to another one or fills in a loop."""
    f = LlvmFunction(name, [("ptr", "data")], index_type=index_type(target))
    with f.loop(3) as loop:
        buffer = f.buffer(room // lanes, vector("i8", lanes))
        f.store(f.load(BYTE, f.address(pointer("%data"), loop.index, 1)), f.address(buffer, loop.index, 1))
        if called:
            f.line(f"call void @{called}({buffer.typed})")
    f.store(f.load(POINTER, buffer, 1), pointer("%data"), 1)
    return f.finish()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("room", [200, 2000, 40000])
def test_buffers_are_counted_once_whatever_loop_they_are_asked_for_in(name: str, room: int) -> None:
    target = Target.named(name)
    found = stack_of(function("alone", room, target), target)["alone"]
    assert room <= found <= room + REGISTERS


@pytest.mark.parametrize("name", TARGETS)
def test_a_call_takes_what_the_deepest_of_those_below_it_takes(name: str) -> None:
    target = Target.named(name)
    text = "\n".join(
        [
            function("leaf", 3000, target),
            function("other", 100, target),
            function("middle", 500, target, "leaf"),
            function("top", 100, target, "middle").replace("ret void", "call void @other(ptr %data)\n  ret void"),
        ]
    )
    found = stack_of(text, target)
    assert 3000 <= found["leaf"] < found["middle"] < found["top"]
    assert 3600 <= found["top"] <= 3600 + 3 * REGISTERS


@pytest.mark.parametrize("name", TARGETS)
def test_aligning_the_stack_counts(name: str) -> None:
    """As much as it may take: a function may be called with the stack pointer just above a multiple."""
    target = Target.named(name)
    found = stack_of(function("alone", 128, target, lanes=16), target)["alone"]
    assert 128 + 64 - 16 <= found <= 128 + 64 + REGISTERS


def test_other_processors_are_refused() -> None:
    target = Target("mainframe", "s390x-unknown-linux-gnu", "z13", "", 0, 16, False, True, False)
    with pytest.raises(CodegenError, match="how mainframe uses its stack is not known"):
        stack_of(function("alone", 8, target), target)


@pytest.mark.parametrize("name", TARGETS)
def test_code_and_constants_of_an_object(name: str) -> None:
    target = Target.named(name)
    code = function("alone", 8, target)
    small, large = (
        sections_of(compile_text(f'@data = constant [{n} x i8] c"{"A" * n}"\n{code}', target)) for n in (100, 5100)
    )
    assert 5000 <= large.constants - small.constants <= 5001, "WebAssembly writes lengths in as many bytes as it takes"
    assert large.code == small.code > 20
