"""Targets, compiling, loading, calling; and that what LLVM would answer by ending the process is refused before."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I32, I64, POINTER, in_all_lanes, integer, pointer, vector, zero
from glowtrain.backends.target import COMPUTE_BITS, Target, target_names
from glowtrain.errors import CodegenError

HOST = Target.host()


def _scaled(name: str = "scale", factor: str = "0x4000000000000000", width: int = 8) -> str:
    """``void @name(ptr x)``: multiplies the first ``width`` f32 by a constant."""
    f = LlvmFunction(name, [("ptr noalias", "x")])
    type_ = vector("float", width)
    value = f.load(type_, pointer("%x"), 4)
    f.store(f.op("fmul", value, in_all_lanes(factor, type_)), pointer("%x"), 4)
    return f.finish()


def test_cache_sizes_are_part_of_the_fingerprint() -> None:
    """They change the code."""
    fingerprints = {replace(HOST, **change).fingerprint for change in ({}, {"l1": 1 << 10}, {"l2": 1 << 10})}
    assert len(fingerprints) == 3


def test_compile_load_call() -> None:
    library = toolchain.load([toolchain.compile_text(_scaled(), HOST)], ["scale"])
    x = np.arange(8, dtype=np.float32)
    library.function("scale", 1)(x.ctypes.data)
    assert x.tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert library.names == ("scale",)


def test_the_same_name_in_two_libraries() -> None:
    x = np.ones(8, np.float32)
    calls = [toolchain.build(_scaled(factor=factor), HOST, ["scale"]).function("scale", 1) for factor in ("2.0", "4.0")]
    gc.collect()
    for call in calls:
        call(x.ctypes.data)
    assert x.tolist() == [8.0] * 8


@pytest.mark.parametrize(("trips", "total"), [(0, 7), (1, 7), (4, 13)])
def test_a_guarded_loop_may_have_no_trip(trips: int, total: int) -> None:
    """It then gives what it began with."""
    f = LlvmFunction("total", [("ptr", "count"), ("ptr", "out")])
    with f.loop(f.load(I64, pointer("%count")), [integer(7, I64)], guarded=True) as loop:
        loop.next = [f.op("add", loop.carried[0], loop.index)]
    f.store(loop.results[0], pointer("%out"))
    count, out = np.array([trips], np.int64), np.zeros(1, np.int64)
    toolchain.build(f.finish(), HOST, ["total"]).function("total", 2)(count.ctypes.data, out.ctypes.data)
    assert out.tolist() == [total]


def test_pointer_table() -> None:
    """One pointer argument, a table that is prepared once and whose slots may change between calls."""
    f = LlvmFunction("copy", [("ptr", "table")])
    source = f.load(POINTER, pointer("%table"), 8)
    destination = f.load(POINTER, f.address(pointer("%table"), 1, 8), 8)
    f.store(f.load(I32, source, 4), destination, 4)
    call = toolchain.build(f.finish(), HOST, ["copy"]).function("copy", 1)
    x, y = np.array([7, 8], np.int32), np.zeros(2, np.int32)
    table = toolchain.pointer_table([x.ctypes.data, y.ctypes.data])
    call(ctypes.addressof(table))
    table[0], table[1] = x.ctypes.data + 4, y.ctypes.data + 4
    call(ctypes.addressof(table))
    assert y.tolist() == [7, 8]


def test_unknown_symbols_are_named() -> None:
    text = "declare void @nowhere()\ndefine void @go() #0 {\n  call void @nowhere()\n  ret void\n}\n"
    with pytest.raises(CodegenError, match="native code with go cannot be linked"):
        toolchain.build(text, HOST, ["go"])
    with pytest.raises(CodegenError, match="'other' is not exported.*scale"):
        toolchain.build(_scaled(), HOST, ["scale"]).address("other")


@pytest.mark.parametrize(
    ("broken", "message"),
    [("fmul", "function second.*expected"), ("%v9", "function second.*undefined value")],
    ids=["syntax", "undefined"],
)
def test_broken_text_names_the_function(broken: str, message: str) -> None:
    second = _scaled("second")
    second = second.replace("fmul", "fmultiply") if broken == "fmul" else second.replace("%v1, ptr", "%v9, ptr")
    with pytest.raises(CodegenError, match=f"(?s){message}"):
        toolchain.compile_text(_scaled("first") + second + _scaled("third"), HOST)


def test_invalid_code_is_refused() -> None:
    """Parses, but the verifier objects: a value used where its definition does not reach."""
    text = (
        "define void @loose(i1 %c) #0 {\n  br i1 %c, label %a, label %b\na:\n  %x = add i32 1, 2\n  br label %b\nb:\n"
    )
    with pytest.raises(CodegenError, match="(?s)loose.*dominate"):
        toolchain.compile_text(text + "  %y = add i32 %x, 1\n  ret void\n}\n", HOST)


@pytest.mark.parametrize(
    ("call", "target", "reason"),
    [
        ("<8 x float> @llvm.exp.v8f32(<8 x float> %v)", "avx2", "maths library"),
        ("<8 x float> @llvm.fma.v8f32(<8 x float> %v, <8 x float> %v, <8 x float> %v)", "sse4", "fused"),
        ("double @llvm.fma.f64(double %v, double %v, double %v)", "cortex-m4", "fused"),
        ("double @llvm.sqrt.f64(double %v)", "cortex-m33", "maths library"),
        ("float @llvm.floor.f32(float %v)", "armv7", "round to integers"),
        (
            "<16 x i32> @llvm.x86.avx512.vpdpbusd.512(<16 x i32> %v, <64 x i8> %v, <64 x i8> %v)",
            "avx2",
            "not available",
        ),
        (
            "<4 x i32> @llvm.aarch64.neon.sdot.v4i32.v16i8(<4 x i32> %v, <16 x i8> %v, <16 x i8> %v)",
            "neon",
            "not available",
        ),
    ],
)
def test_intrinsics_that_would_end_the_process_are_refused(call: str, target: str, reason: str) -> None:
    text = f"define void @user() #0 {{\n  %r = call {call}\n  ret void\n}}\n"
    with pytest.raises(CodegenError, match=f"function user: intrinsic llvm.*{reason}.*{target}"):
        toolchain.compile_text(text, Target.named(target))


def test_allowed_target_intrinsic_compiles() -> None:
    vnni = Target.named("avx512vnni")
    f = LlvmFunction("dot", [("ptr", "a"), ("ptr", "b"), ("ptr", "c")])
    a, b = (f.load(vector("i8", 64), pointer(f"%{name}"), 1) for name in "ab")
    total = vector("i32", 16)
    f.store(f.call("llvm.x86.avx512.vpdpbusd.512", total, zero(total), a, b), pointer("%c"), 4)
    assert "vpdpbusd" in toolchain.assembly(f.finish(), vnni)


@pytest.mark.parametrize("name", target_names())
def test_every_target_compiles(name: str) -> None:
    target = Target.named(name)
    assert target.width("f32") == max(1, target.vector_bits // 32)
    assert len(toolchain.compile_text(_scaled(width=target.width("f32")), target)) > 100


@pytest.mark.parametrize(("name", "register"), [("avx512", "zmm"), ("avx2", "ymm")])
def test_vectors_take_whole_registers(name: str, register: str) -> None:
    target = Target.named(name)
    assert register in toolchain.assembly(_scaled(width=target.width("f32")), target)


def test_target_facts() -> None:
    assert HOST.runs_here
    assert not Target.named("neon" if HOST.architecture == "x86" else "avx2").runs_here
    assert Target.named("avx512vnni").families - Target.named("avx512").families == {"avx512vnni", "avx512bf16"}
    assert {Target.named("scalar").width(dtype) for dtype in COMPUTE_BITS} == {1}
    assert Target.named("avx2").width("bf16") == Target.named("avx2").width("f32") == 8
    with pytest.raises(CodegenError, match="'pdp11'"):
        Target.named("pdp11")


def test_fingerprints_tell_targets_apart() -> None:
    fingerprints = {Target.named(name).fingerprint for name in target_names()}
    assert len(fingerprints) == len(target_names())


def test_objects_are_the_same_in_another_process() -> None:
    """What is kept on disk needs it."""
    code = (
        "import hashlib, sys; from glowtrain.backends.llvm import toolchain;"
        "from glowtrain.backends.target import Target;"
        "object_bytes = toolchain.compile_text(sys.stdin.read(), Target.named('avx2'));"
        "print(hashlib.sha256(object_bytes).hexdigest())"
    )
    runs = {
        subprocess.run([sys.executable, "-c", code], input=_scaled(), capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert runs == {f"{hashlib.sha256(toolchain.compile_text(_scaled(), Target.named('avx2'))).hexdigest()}\n"}


@pytest.mark.parametrize(
    ("name", "architecture", "system"),
    [
        ("avx2", "x86", "linux"),
        ("x86-64-windows", "x86", "windows"),
        ("aarch64-macos", "aarch64", "macos"),
        ("armv7", "arm", "linux"),
        ("cortex-m4", "arm", "none"),
        ("riscv32imc", "riscv", "none"),
        ("wasm32", "wasm", "none"),
    ],
)
def test_what_a_triple_says(name: str, architecture: str, system: str) -> None:
    target = Target.named(name)
    assert (target.architecture, target.system) == (architecture, system)
