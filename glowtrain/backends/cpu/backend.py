"""The cpu backend: a planned program as native code in this process."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from glowtrain.backends.base import Backend, Executable, Instance, State, aligned
from glowtrain.backends.cpu import toolchain
from glowtrain.backends.cpu.codegen import ENTRY, Code, generate
from glowtrain.backends.cpu.target import Target
from glowtrain.graph import Graph
from glowtrain.loops import Buffer
from glowtrain.program.plan import Plan
from glowtrain.types import Array


class Cpu(Backend):
    """Native code for the processor this process runs on (or a narrower target that it can run)."""

    name = "cpu"

    def __init__(self, target: Target | None = None) -> None:
        self.target = Target.host() if target is None else target

    def compile(self, graph: Graph, plan: Callable[[], Plan]) -> Executable:
        return NativeGraph(graph, plan(), self.target)


class NativeGraph(Executable):
    """A compiled program; ``code`` and ``plan`` can be looked at."""

    def __init__(self, graph: Graph, plan: Plan, target: Target) -> None:
        super().__init__(graph)
        self.plan = plan
        self.target = target
        self.code: Code = generate(plan, target)
        self.library = toolchain.build(self.code.text, target, [ENTRY])
        self.step = self.library.function(ENTRY, 1)

    @cached_property
    def constants(self) -> dict[Buffer, Array]:
        """Constants as the code reads them: in layout order, aligned."""
        return {
            buffer: aligned(np.transpose(buffer.initial, buffer.layout))
            for buffer in self.code.externals
            if buffer.kind == "constant" and buffer.initial is not None
        }

    def bind(self, state: State) -> Instance:
        return NativeInstance(self, state)


class NativeInstance(Instance):
    """Arena, outputs and pointer table of its own; a call allocates nothing but copies of the outputs."""

    def __init__(self, executable: NativeGraph, state: State) -> None:
        self.executable = executable
        self.state = state
        self.arena = aligned(np.zeros(executable.plan.arena, np.uint8))
        self.workspace = aligned(np.zeros(executable.code.workspace, np.uint8))
        program = executable.plan.program
        self.outputs = {name: aligned(np.zeros(b.shape, b.dtype.numpy)) for name, b in program.outputs.items()}
        externals = executable.code.externals
        self._slots = {buffer: 2 + position for position, buffer in enumerate(externals)}
        self.table = toolchain.pointer_table([None] * (2 + len(externals)))
        self._address = ctypes.addressof(self.table)
        self._fixed: dict[int, Array] = {0: self.arena, 1: self.workspace}
        self._fixed |= {self._slots[b]: array for b, array in executable.constants.items()}
        self._fixed |= {self._slots[b]: self.outputs[n] for n, b in program.outputs.items() if b in self._slots}
        for slot, array in self._fixed.items():
            self.table[slot] = array.ctypes.data
        self._inputs = [(name, self._slots[b]) for name, b in program.inputs.items() if b in self._slots]
        self._variables = [(n, b.layout, self._slots[b]) for n, b in program.variables.items() if b in self._slots]
        self._bound: list[Array] = []

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self._bind_variables()
        for name, slot in self._inputs:
            self.table[slot] = inputs[name].ctypes.data
        self.executable.step(self._address)
        return {name: array.copy() for name, array in self.outputs.items()}

    def _bind_variables(self) -> None:
        """Point at the state's memory; it only moves when another executable wants another layout."""
        storage = [self.state.storage(name, layout) for name, layout, _ in self._variables]
        if len(storage) != len(self._bound) or any(a is not b for a, b in zip(storage, self._bound, strict=True)):
            self._bound = storage
            for array, (_, _, slot) in zip(storage, self._variables, strict=True):
                self.table[slot] = array.ctypes.data
