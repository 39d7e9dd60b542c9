"""Steps on processors that are emulated: each is compiled for the processor, linked with a program without a C library
that runs it over memory of its own, and gives back what its results hold.
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import wasmtime

import glowtrain as gt
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.state import aligned
from glowtrain.backends.table import Slot
from glowtrain.backends.target import Target
from glowtrain.compiler import compile_artifact
from glowtrain.graph import Graph
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import Options
from glowtrain.types import Array

HERE = Path(__file__).parent
ZIG = (sys.executable, "-m", "ziglang", "cc")
BARE = ("-O1", "-nostdlib", "-ffreestanding", "-fno-builtin", "-static", "-Wno-unused-command-line-argument")
SECONDS = 300
"""What an emulator may take."""

Results = list[dict[tuple[str, str], Array]]
"""For each case its outputs and variables, by kind and name."""


@dataclass(frozen=True)
class Case:
    """A step, as a graph or planned, and what it is given; it runs ``times``."""

    name: str
    graph: Graph | Plan
    feeds: Mapping[str, Array]
    times: int = 1
    fixed_point: bool = False

    def artifact(self, target: Target, prefix: str) -> NativeArtifact:
        """The step for a processor."""
        if isinstance(self.graph, Plan):
            return gt.Cpu(target).compile(self.graph, Options(prefix=prefix, linkable=True))
        artifact = compile_artifact(self.graph, gt.Cpu(target), prefix=prefix, fixed_point=self.fixed_point)
        assert isinstance(artifact, NativeArtifact)
        return artifact


@dataclass(frozen=True)
class Machine:
    """An emulated processor: the target's name, how a program is compiled and linked, what runs it, and the target of
    this processor whose code gives the same bits."""

    target: str
    compiler: tuple[str, ...]
    emulator: tuple[str, ...]
    reference: Target = field(default_factory=lambda: Target.named("scalar"))

    @property
    def missing(self) -> list[str]:
        """The programs that are not installed."""
        return [name for name in (self.compiler[0], *self.emulator[:1]) if not shutil.which(name)]


def _zig(target: str, *options: str) -> tuple[str, ...]:
    return (*ZIG, "-target", target, *options, *BARE)


def _cortex(cpu: str, unit: str, board: str, code: int, ram: int) -> Machine:
    linked = f"-Wl,--defsym,CODE={code:#x},--defsym,RAM={ram:#x}", "-T", str(HERE / "cortex_m.ld")
    unit = f"-mcpu={cpu}", "-mthumb", "-mfloat-abi=hard", f"-mfpu={unit}"
    quiet = "-display", "none", "-monitor", "none", "-serial", "none", "-chardev", "stdio,id=told"
    told = "-semihosting-config", "enable=on,target=native,chardev=told"
    emulator = "qemu-system-arm", "-M", board, "-cpu", cpu, *quiet, *told, "-kernel"
    return Machine(cpu, ("arm-none-eabi-gcc", *unit, *BARE, *linked), emulator)


def _riscv(version: str, target: str) -> Machine:
    """QEMU's registers of 128 or 256 bits, or none."""
    emulator = "qemu-riscv64", "-cpu", f"rv64,{version}"
    return Machine(target, _zig("riscv64-linux-none"), emulator)


UNFUSED = replace(Target.named("scalar"), fused=False)
"""What processors without fused multiply-add compute."""
_ESP32 = "-mcpu=generic_rv32+m+c-a-f-d", "-mabi=ilp32", "-lcompiler_rt"
MACHINES = {
    "x86-64-v2": Machine("sse4", _zig("x86_64-linux-none"), ("qemu-x86_64", "-cpu", "Nehalem"), UNFUSED),
    "aarch64": Machine("neon", _zig("aarch64-linux-none"), ("qemu-aarch64",)),
    "riscv64": _riscv("v=false", "riscv64"),
    "riscv64-v-128": _riscv("v=true,vlen=128", "riscv64-v"),
    "riscv64-v-256": _riscv("v=true,vlen=256", "riscv64-v"),
    "armv7": Machine("armv7", _zig("arm-linux-eabihf", "-mcpu=cortex_a7"), ("qemu-arm", "-cpu", "cortex-a7")),
    "riscv32imc": Machine("riscv32imc", _zig("riscv32-freestanding-none", *_ESP32), ("qemu-riscv32",), UNFUSED),
    "cortex-m4": _cortex("cortex-m4", "fpv4-sp-d16", "mps2-an386", 0, 0x20000000),
    "cortex-m7": _cortex("cortex-m7", "fpv5-d16", "mps2-an500", 0, 0x20000000),
    "cortex-m33": _cortex("cortex-m33", "fpv5-sp-d16", "mps2-an505", 0x10000000, 0x38000000),
    "wasm32": Machine("wasm32", _zig("wasm32-freestanding-none", "-Wl,--no-entry"), (), UNFUSED),
}
PACKAGES = "qemu-user, qemu-system-arm and gcc-arm-none-eabi"
"""Debian's, of the programs above."""


def run(cases: Sequence[Case], machine: Machine, folder: Path) -> Results:
    """The results of every case on a machine. Raises :class:`AssertionError` with what a tool says where it fails."""
    artifacts = [case.artifact(Target.named(machine.target), f"c{number}_") for number, case in enumerate(cases)]
    program = _built(cases, artifacts, machine, folder)
    told = _told([*machine.emulator, str(program)]) if machine.emulator else _webassembly(program)
    lines = (line.split(" ") for line in told.splitlines())
    found = {name: bytes.fromhex(data) for name, data in lines}
    return [
        {(slot.kind, slot.name): _read(found[f"c{number}.{at}"], slot) for at, slot in _told_slots(artifact)}
        for number, artifact in enumerate(artifacts)
    ]


def here(cases: Sequence[Case], target: Target) -> Results:
    """The same by code for this processor."""
    return [_here(case, case.artifact(target, "")) for case in cases]


def _here(case: Case, artifact: NativeArtifact) -> dict[tuple[str, str], Array]:
    sizes = artifact.arena, artifact.workspace
    memory = [aligned(np.zeros(max(size, 64), np.uint8)) for size in sizes]
    contents = [_content(slot, case, artifact) for slot in artifact.slots]
    memory += [aligned(np.frombuffer(content.tobytes() or bytes(64), np.uint8).copy()) for content in contents]
    arena, workspace, *slots = (array.ctypes.data for array in memory)
    table = toolchain.pointer_table([arena, workspace, None, *slots])
    step = toolchain.load([artifact.code], [artifact.entry]).function(artifact.entry, 1)
    for _ in range(case.times):
        step(ctypes.addressof(table))
    return {(slot.kind, slot.name): _read(memory[2 + at].tobytes(), slot) for at, slot in _told_slots(artifact)}


def _told_slots(artifact: NativeArtifact) -> list[tuple[int, Slot]]:
    return [(at, slot) for at, slot in enumerate(artifact.slots) if slot.kind in ("output", "variable")]


def _read(memory: bytes, slot: Slot) -> Array:
    """What memory holds, with the axes in their order."""
    stored = np.frombuffer(memory[: slot.type.nbytes], slot.type.dtype.numpy)
    stored = stored.reshape([slot.type.shape[axis] for axis in slot.layout])
    return np.ascontiguousarray(np.transpose(stored, np.argsort(slot.layout)) if slot.layout else stored)


def _built(cases: Sequence[Case], artifacts: Sequence[NativeArtifact], machine: Machine, folder: Path) -> Path:
    """The program that runs all cases."""
    objects, text = list[Path](), ['#include "driver.h"']
    for number, (case, artifact) in enumerate(zip(cases, artifacts, strict=True)):
        objects.append(folder / f"{number}.o")
        objects[-1].write_bytes(artifact.code)
        text.append(_case_text(f"c{number}", case, artifact))
    calls = "".join(f"  c{number}();\n" for number in range(len(cases)))
    driver, program = folder / "driver.c", folder / "program"
    driver.write_text("\n".join([*text, f"ENTRY {{\n{calls}  leave();\n}}\n"]))
    routines = ["-lgcc"] if machine.compiler[0].endswith("gcc") else []
    _told([*machine.compiler, f"-I{HERE}", str(driver), *map(str, objects), *routines, "-o", str(program)])
    return program


def _case_text(name: str, case: Case, artifact: NativeArtifact) -> str:
    """A function that runs a case: its memory, the table of it, and what is put out."""
    lines = [f"void {name}_step(void **table);"]
    memory = {"arena": artifact.arena, "workspace": artifact.workspace}
    lines += [f"static _Alignas(64) byte {name}_{part}[{max(size, 64)}];" for part, size in memory.items()]
    contents = [_content(slot, case, artifact) for slot in artifact.slots]
    lines += [_memory_text(f"{name}_{at}", content) for at, content in enumerate(contents)]
    entries = [f"{name}_arena", f"{name}_workspace", "0", *(f"{name}_{at}" for at in range(len(contents)))]
    table = ", ".join(f"(void *){entry}" for entry in entries)
    lines.append(f"static void {name}(void) {{\n  static void *table[] = {{{table}}};")
    lines.append(f"  for (int time = 0; time < {case.times}; time++) {name}_step(table);")
    for at, slot in _told_slots(artifact):
        lines.append(f'  put_result("{name}.{at}", {name}_{at}, {slot.type.nbytes});')
    return "\n".join([*lines, "}"])


def _content(slot: Slot, case: Case, artifact: NativeArtifact) -> Array:
    """What a slot holds at first, in the order of its memory."""
    if slot.kind == "constant":
        return artifact.constants[slot.name]
    if slot.kind == "input":
        return np.ascontiguousarray(np.transpose(case.feeds[slot.name], slot.layout))
    if slot.kind == "variable":
        assert isinstance(case.graph, Graph), "variables are of graphs"
        initial = next(variable.initial for variable in case.graph.variables if variable.name == slot.name)
        return np.ascontiguousarray(np.transpose(initial, slot.layout))
    return np.zeros(slot.type.nbytes, np.uint8)


def _memory_text(name: str, content: Array) -> str:
    data = content.tobytes()
    filled = "" if not any(data) else " = {" + ",".join(map(str, data)) + "}"
    return f"static _Alignas(64) byte {name}[{max(len(data), 1)}]{filled};"


def _told(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command[:6])} ... ended with {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


def _webassembly(program: Path) -> str:
    """What a module puts out that imports nothing else."""
    engine = wasmtime.Engine()
    store, linker, told = wasmtime.Store(engine), wasmtime.Linker(engine), bytearray()
    module = wasmtime.Module.from_file(engine, str(program))
    assert [each.name for each in module.imports] == ["put"]

    def put(at: int, length: int) -> None:
        told.extend(memory.read(store, at, at + length))

    i32 = wasmtime.ValType.i32()
    linker.define_func("env", "put", wasmtime.FuncType([i32, i32], []), put)
    exports = linker.instantiate(store, module).exports(store)
    memory = exports["memory"]
    exports["run"](store)
    return told.decode()
