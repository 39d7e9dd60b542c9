"""Artifacts of training steps for every named target, and several linked into one library."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import llvmlite.binding as llvm
import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.symbols import symbols_of
from glowtrain.backends.state import aligned
from glowtrain.backends.target import Target, target_names
from glowtrain.compiler import compile_artifact
from glowtrain.compiler.walk import WALK, walk
from glowtrain.graph import Graph
from glowtrain.types import Array
from tests.compiler.networks import steps

STEPS = steps()
MAGIC = {
    "elf64": b"\x7fELF\x02\x01", "elf32": b"\x7fELF\x01\x01", "wasm": b"\0asm\1", "macho": b"\xcf\xfa\xed\xfe",
    "coff": b"\x64\x86",
}  # fmt: skip
"""What objects begin with."""
ROUTINE = re.compile(
    r"__(?:(?:add|sub|mul|div|eq|ne|lt|le|gt|ge|unord)(?P<of>[sd])f[23]|(?:extendsf|truncdf)(?P<both>[sd])f2"
    r"|fix(?:uns)?(?P<from>[sd])fsi|float(?:un)?si(?P<to>[sd])f"
    r"|aeabi_(?:(?P<arm>[fd])(?:add|sub|mul|div|cmp(?:eq|lt|le|gt|ge|un)|2u?iz)|u?i2(?P<arm_to>[fd])|(?P<arm_both>f2d|d2f)))"
)
"""Routines for arithmetic in single and in double, as the compilers' libraries name them, on Arm by its own names."""
SINGLES_AND_DOUBLES = {"s": "f32", "f": "f32", "d": "f64"}


def container(target: Target) -> str:
    """The format of a target's objects."""
    named = {"windows": "coff", "macos": "macho"}.get(target.system)
    return "wasm" if target.architecture == "wasm" else named or f"elf{target.pointer_bits}"


def artifact_of(name: str, target: str, prefix: str = "") -> NativeArtifact:
    artifact = compile_artifact(STEPS[name][0], gt.Cpu(target), prefix=prefix)
    assert isinstance(artifact, NativeArtifact)
    return artifact


@pytest.mark.spread
@pytest.mark.parametrize("target", target_names())
@pytest.mark.parametrize("name", STEPS)
def test_training_steps_compile_for_every_target(name: str, target: str) -> None:
    artifact = artifact_of(name, target, prefix=f"{name}_")
    machine = Target.named(target)
    assert artifact.code.startswith(MAGIC[container(machine)])
    assert f"{name}_step".encode() in artifact.code
    assert artifact.target == machine.unasked  # a linker cannot ask the system for registers
    kinds = {slot.kind for slot in artifact.slots}
    assert kinds >= {"input", "output", "variable"}
    assert NativeArtifact.from_bytes(artifact.to_bytes()).slots == artifact.slots


ELF = [name for name in target_names() if container(Target.named(name)).startswith("elf")]


@pytest.mark.spread
@pytest.mark.parametrize("target", ELF)
@pytest.mark.parametrize("name", STEPS)
def test_steps_define_one_symbol_and_need_none(name: str, target: str) -> None:
    """But for routines of the arithmetic that a processor has no instructions for, where the target says so."""
    found = symbols_of(artifact_of(name, target, prefix="one_").code)
    soft = Target.named(target).soft
    assert found.defined == ("one_step",)
    assert not [name for name in found.needed if not routine_of(name, soft)]
    assert bool(Target.named(target).needs) is bool(soft)


def routine_of(name: str, soft: Sequence[str]) -> bool:
    """Whether a symbol is a routine that computes with one of these types."""
    match = ROUTINE.fullmatch(name)
    if match is None:
        return False
    letter = "d" if match["both"] or match["arm_both"] else next(letter for letter in match.groups() if letter)
    return SINGLES_AND_DOUBLES[letter] in soft


@pytest.mark.spread(2)
@pytest.mark.parametrize("target", [name for name in target_names() if Target.named(name).pointer_bits == 32])
def test_pointers_have_the_width_of_the_target(target: str) -> None:
    """Slots of the table lie four bytes apart: offset 12 is the first after arena, workspace and pool."""
    assert "load ptr, ptr" in llvm_text(target)
    assert not [line for line in llvm_text(target).splitlines() if "load ptr" in line and "align 8" in line]


@pytest.mark.spread(2)
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("target", [name for name in target_names() if Target.named(name).pointer_bits == 32])
def test_indices_have_the_width_of_the_target(target: str, name: str) -> None:
    """Counters of loops, bounds of tasks and steps of addresses; what data decides stays i64 until it is one of them:
    labels are loaded as they are."""
    text = llvm_text(target, name)
    wide = re.findall(r".*(?:getelementptr [^\n]*, i64 |add nuw nsw i64|i64 %(?:begin|end|t\d|x\d)).*", text)
    assert not wide, "\n".join(wide[:10])
    assert "load i64" in text


def llvm_text(target: str, name: str = "mlp") -> str:
    cpu = gt.Cpu(target)
    stages = {arrival.stage.name: arrival.result for arrival in walk(STEPS[name][0], stages=cpu.stages(WALK))}
    return str(stages["llvm"].text)


class Linked:
    """A step called through its symbol in a library, with memory that the caller provides."""

    def __init__(self, address: int, artifact: NativeArtifact, graph: Graph) -> None:
        self.call = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address)
        initial = {v.name: v.initial for v in graph.variables}
        self.memory = [aligned(np.zeros(size, np.uint8)) for size in (artifact.arena, artifact.workspace)]
        self.named: dict[tuple[str, str], Array] = {}
        for slot in artifact.slots:
            shape = [slot.type.shape[axis] for axis in slot.layout]
            array = aligned(np.zeros(shape, slot.type.dtype.numpy))
            if slot.kind == "variable":
                array[...] = np.transpose(initial[slot.name], slot.layout)
            if slot.kind == "constant":
                array = artifact.constants[slot.name]
            self.memory.append(array)
            self.named[slot.kind, slot.name] = array

    def step(self, feeds: Mapping[str, Array]) -> None:
        for (kind, name), array in self.named.items():
            if kind == "input":
                array[...] = feeds[name]
        arena, workspace, *slots = (array.ctypes.data for array in self.memory)
        table = toolchain.pointer_table([arena, workspace, None, *slots])
        self.call(ctypes.addressof(table))


def check(found: Linked, name: str) -> None:
    """Three steps leave the bits that the compiled function leaves."""
    graph, feeds = STEPS[name]
    function = gt.compile(graph, gt.Cpu("avx2" if Target.named("avx2").runs_here else "host"))
    for _ in range(3):
        found.step(feeds)
        wanted = function(feeds)
        assert found.named["output", "loss"].tobytes() == wanted["loss"].tobytes()


def shared_library(objects: list[bytes], folder: Path) -> Callable[[str], int]:
    """Addresses by name in a library of several objects, linked by the system where it can, else by LLVM."""
    if compiler := shutil.which("cc"):
        paths = [folder / f"{number}.o" for number in range(len(objects))]
        for path, data in zip(paths, objects, strict=True):
            path.write_bytes(data)
        library = folder / "both.so"
        subprocess.run([compiler, "-shared", "-nostdlib", "-o", library, *paths], check=True)
        loaded = ctypes.CDLL(str(library))
        return lambda name: int(ctypes.cast(getattr(loaded, name), ctypes.c_void_p).value or 0)
    builder = llvm.JITLibraryBuilder()
    for data in objects:
        builder.add_object_img(data)
    tracker = builder.export_symbol("mlp_step").export_symbol("lstm_step").link(llvm.create_lljit_compiler(), "both")
    return lambda name: int(tracker[name])


@pytest.mark.exhaustive
def test_two_models_in_one_shared_library(tmp_path: Path) -> None:
    target = "avx2" if Target.named("avx2").runs_here else "host"
    artifacts = {name: artifact_of(name, target, prefix=f"{name}_") for name in ("mlp", "lstm")}
    address = shared_library([artifact.code for artifact in artifacts.values()], tmp_path)
    linked = {name: Linked(address(f"{name}_step"), each, STEPS[name][0]) for name, each in artifacts.items()}
    for name, each in linked.items():
        check(each, name)


@pytest.mark.exhaustive
def test_two_models_without_prefixes_do_not_link(tmp_path: Path) -> None:
    """What the prefix is for."""
    if compiler := shutil.which("cc"):
        for name in ("mlp", "lstm"):
            (tmp_path / f"{name}.o").write_bytes(artifact_of(name, "avx2").code)
        command = [compiler, "-shared", "-nostdlib", "-o", tmp_path / "x.so", *tmp_path.glob("*.o")]
        assert subprocess.run(command, capture_output=True, check=False).returncode
    assert artifact_of("mlp", "avx2").entry == artifact_of("lstm", "avx2").entry == "step"
