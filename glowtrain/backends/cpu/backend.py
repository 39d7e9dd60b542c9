"""The cpu backend: a planned program as native code in this process."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Mapping
from functools import cached_property

import numpy as np

from glowtrain.backends.base import Backend, Executable, Instance, State, aligned
from glowtrain.backends.cpu.artifact import FIRST_SLOT, Artifact
from glowtrain.backends.cpu.cache import Cache, key_of
from glowtrain.backends.cpu.step import ENTRY, Code, generate
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.target import Target
from glowtrain.graph import Graph
from glowtrain.program.memory.plan import Plan
from glowtrain.types import Array


class Cpu(Backend):
    """Native code for the processor this process runs on (or a narrower target that it can run).

    With a ``cache`` folder, compiled graphs are kept there and found again by later processes.
    """

    name = "cpu"

    def __init__(self, target: Target | None = None, cache: str | os.PathLike[str] | None = None) -> None:
        self.target = Target.host() if target is None else target
        self.cache = None if cache is None else Cache(cache)

    def compile(self, graph: Graph, plan: Callable[[], Plan]) -> Executable:
        if self.cache is None:
            return NativeGraph(graph, plan, self.target)
        key = key_of(graph, self.target)
        kept = self.cache.get(key)
        native = NativeGraph(graph, plan, self.target, kept)
        if kept is None:
            self.cache.put(key, native.artifact)
        return native


class NativeGraph(Executable):
    """A compiled graph: an artifact, loaded. ``plan`` and ``code`` can be looked at; they are made again if need be."""

    def __init__(
        self, graph: Graph, plan: Callable[[], Plan], target: Target, artifact: Artifact | None = None
    ) -> None:
        super().__init__(graph)
        self._plan = plan
        self.target = target
        self.artifact = self._compiled() if artifact is None else artifact
        self.library = toolchain.load(self.artifact.code, [ENTRY])
        self.step = self.library.function(ENTRY, 1)

    @cached_property
    def plan(self) -> Plan:
        """The planned program."""
        return self._plan()

    @cached_property
    def code(self) -> Code:
        """The text that was compiled."""
        return generate(self.plan, self.target)

    def _compiled(self) -> Artifact:
        return Artifact.of(toolchain.compile_text(self.code.text, self.target), self.plan, self.code)

    def bind(self, state: State) -> Instance:
        return NativeInstance(self, state)


class NativeInstance(Instance):
    """Arena, outputs and pointer table of its own; a call allocates nothing but copies of the outputs."""

    def __init__(self, executable: NativeGraph, state: State) -> None:
        self.executable = executable
        self.state = state
        artifact = executable.artifact
        self.arena = aligned(np.zeros(artifact.arena, np.uint8))
        self.workspace = aligned(np.zeros(artifact.workspace, np.uint8))
        self.outputs = {name: aligned(np.zeros(t.shape, t.dtype.numpy)) for name, t in artifact.outputs.items()}
        self.table = toolchain.pointer_table([None] * (FIRST_SLOT + len(artifact.slots)))
        self._address = ctypes.addressof(self.table)
        self._fixed: dict[int, Array] = {0: self.arena, 1: self.workspace}
        self._inputs: list[tuple[str, int]] = []
        self._variables: list[tuple[str, tuple[int, ...], int]] = []
        for place, slot in enumerate(artifact.slots, FIRST_SLOT):
            match slot.kind:
                case "input":
                    self._inputs.append((slot.name, place))
                case "variable":
                    self._variables.append((slot.name, slot.layout, place))
                case "output":
                    self._fixed[place] = self.outputs[slot.name]
                case "constant":
                    self._fixed[place] = artifact.constants[slot.name]
        for place, array in self._fixed.items():
            self.table[place] = array.ctypes.data
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
