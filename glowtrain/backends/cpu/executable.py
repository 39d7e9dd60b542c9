"""Native code in this process: loaded, bound to memory, run."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from glowtrain.backends.base import SPAN, Batches, Completed, Executable, ExecutableMemory, Instance, StepProfile
from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cpu.address_instance import NativeAddressInstance
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.driver import Driver, driving
from glowtrain.backends.cpu.events.log import EventLog
from glowtrain.backends.cpu.threads.pool import pool_of
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.state import State, address_of, zeros
from glowtrain.backends.table import ARENA, FIRST_SLOT, POOL, WORKSPACES
from glowtrain.types import Array


class NativeExecutable(Executable):
    """An artifact whose code is in this process, to run on a number of threads, whose own code a cache may have. The
    code leaves with the last reference."""

    def __init__(self, artifact: NativeArtifact, threads: int = 1, cache: Cache | None = None) -> None:
        self.artifact = artifact
        self.threads = threads
        self.cache = cache
        self.pool = pool_of(threads, cache) if threads > 1 else None
        self.library = toolchain.load(artifact.objects, [artifact.entry, *artifact.segment_entries])
        self.step = self.library.function(artifact.entry, 1)
        functions = [self.library.function(name, 1) for name in artifact.segment_entries]
        self.segments = list(zip(functions, artifact.segments, strict=True)) or [(self.step, tuple(artifact.outputs))]
        """The functions that make a step, one after the other, and the outputs that are complete after each."""
        self.address = self.library.address(artifact.entry)
        self.layouts = {slot.name: slot.layout for slot in artifact.slots if slot.kind == "variable"}

    @property
    def memory(self) -> ExecutableMemory:
        artifact = self.artifact
        outputs = sum(type_.nbytes for type_ in artifact.outputs.values())
        constants = sum(array.nbytes for array in artifact.constants.values())
        copies = sum(slot.type.nbytes for slot in artifact.slots if slot.kind == "packed")
        return ExecutableMemory(
            artifact.arena, artifact.workspace * self.threads, outputs, constants + copies, self.threads
        )

    def bind(self, state: State) -> NativeInstance:
        return NativeInstance(self, state)

    def at_addresses(self, names: Sequence[str]) -> NativeAddressInstance:
        return NativeAddressInstance(self.artifact, self.step, self.pool, self.threads, names)


class NativeInstance(Instance):
    """Arena, outputs and pointer table of its own; a call allocates nothing but copies of the outputs."""

    def __init__(self, executable: NativeExecutable, state: State) -> None:
        self.executable = executable
        self.state = state
        artifact = executable.artifact
        self.arena: Array = zeros(artifact.arena, np.uint8)
        self.workspace = zeros(artifact.workspace * executable.threads, np.uint8)
        self.pool = executable.pool
        self.outputs = {name: zeros(t.shape, t.dtype.numpy) for name, t in artifact.outputs.items()}
        self.log = EventLog(artifact.calls, executable.threads) if artifact.calls else None
        self._fixed: dict[int, Array] = {ARENA: self.arena, WORKSPACES: self.workspace}
        self._inputs: list[tuple[str, int]] = []
        self._scalars: list[tuple[str, int]] = []
        self._placed: dict[str, Array] = {}
        """The scalars that the table points to."""
        self._outputs: dict[str, int] = {}
        self._variables: list[tuple[str, tuple[int, ...], int]] = []
        self._copies: dict[int, Array] = {}
        """The copies of variables in another encoding that the table points to, by slot."""
        self._packed = [x for x in enumerate(artifact.slots, FIRST_SLOT) if x[1].kind == "packed"]
        self._place_slots(artifact)
        types = {slot.name: slot.type for slot in artifact.slots if slot.kind == "input"}
        slots = [*self._inputs, *self._scalars]
        self._slots = slots
        self._wanted = [(name, types[name].shape, types[name].dtype.numpy, slot) for name, slot in slots]
        """Inputs with shape, element type and slot."""
        self._elsewhere = False
        """Whether the table points to inputs and outputs that a call has named by addresses."""
        self._bound = -1
        """The moves of the state's storage up to which the table points to it."""

    def _place_slots(self, artifact: NativeArtifact) -> None:
        for number, slot in enumerate(artifact.slots, FIRST_SLOT):
            match slot.kind:
                case "input" if slot.type.shape:
                    self._inputs.append((slot.name, number))
                case "input":
                    self._scalars.append((slot.name, number))
                case "variable":
                    self._variables.append((slot.name, slot.layout, number))
                case "output":
                    self._outputs[slot.name] = number
                    self._fixed[number] = self.outputs[slot.name]
                case "constant":
                    self._fixed[number] = artifact.constants[slot.name]
        count = FIRST_SLOT + len(artifact.slots) + len(artifact.natives)
        if self.log is not None:
            self._fixed[count] = self.log.memory
        self.table = toolchain.pointer_table([None] * (count + (self.log is not None)))
        self._address = ctypes.addressof(self.table)
        for number, array in self._fixed.items():
            self.table[number] = array.ctypes.data
        if self.pool is not None:
            self.table[POOL] = self.pool.address
        for number, function in enumerate(artifact.natives, FIRST_SLOT + len(artifact.slots)):
            self.table[number] = function.address

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self._bind(inputs)
        self._step()
        return {name: array.copy() for name, array in self.outputs.items()}

    def run_fitting(self, inputs: Mapping[str, Any]) -> dict[str, Array] | None:
        if type(inputs) is not dict or len(inputs) != len(self._wanted) or self.log is not None:
            return None
        self._point_at_own()
        arrays = inputs.copy()  # held while native code reads them
        if not self._point(arrays):
            return None
        if self._bound != self.state.moves:
            self._bind_variables()
        self._step()
        return {name: array.copy() for name, array in self.outputs.items()}

    def run_at(
        self, inputs: Mapping[str, int], outputs: Mapping[str, int], completed: Completed | None = None
    ) -> float | None:
        if self.log is not None:
            return None
        table = self.table
        self._elsewhere = True
        for name, slot in self._slots:
            table[slot] = inputs[name]
        for name, slot in self._outputs.items():
            table[slot] = outputs[name]
        if self._bound != self.state.moves:
            self._bind_variables()
        began = time.perf_counter()
        if completed is None:
            self._step()
        else:
            self._run_segments(completed)
        return time.perf_counter() - began

    def _point_at_own(self) -> None:
        """Point at memory of its own, after runs over that of others."""
        if self._elsewhere:
            self._placed.clear()
            for name, slot in self._outputs.items():
                self.table[slot] = address_of(self.outputs[name])
            self._elsewhere = False

    def _point(self, arrays: dict[str, Any]) -> bool:
        """Point at all inputs, if they are contiguous arrays of their types."""
        table, placed = self.table, self._placed
        try:
            for name, shape, dtype, slot in self._wanted:
                array = arrays[name]
                if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                    return False
                if shape or placed.get(name) is not array:
                    table[slot] = ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]  # as address_of
                    if not shape:
                        placed[name] = array
        except (KeyError, TypeError, ValueError):  # not there, or no buffer that is contiguous and can be written to
            return False
        return True

    def _bind(self, inputs: Mapping[str, Array]) -> None:
        self._point_at_own()
        self._bind_variables()
        self._place_scalars(inputs)
        for name, slot in self._inputs:
            self.table[slot] = address_of(inputs[name])
        if self.log is not None:
            self.log.clear()

    def run_many(self, batches: Batches) -> dict[str, Array]:
        self._point_at_own()
        self._bind_variables()
        self._start_pool()
        count, rows, shared = batches.count, batches.rows, batches.shared
        self._place_scalars(shared)
        places = [
            (address_of(rows[name]), rows[name].nbytes // count) if name in rows else (address_of(shared[name]), 0)
            for name, _ in self._inputs
        ]
        try:
            return self._driver.run(count, places, batches.watched)
        finally:
            for name, slot in self._outputs.items():
                self.table[slot] = address_of(self.outputs[name])

    @cached_property
    def _driver(self) -> Driver:
        executable, inputs = self.executable, [slot for _, slot in self._inputs]
        places = executable.address, self._address
        return Driver(driving(executable.cache), *places, inputs, executable.artifact.outputs, self._outputs)

    def _place_scalars(self, inputs: Mapping[str, Array]) -> None:
        """Point at scalars that are not those of the call before: hyperparameters mostly are."""
        for name, slot in self._scalars:
            array = inputs[name]
            if self._placed.get(name) is not array:
                self.table[slot] = address_of(array)
                self._placed[name] = array

    def _step(self) -> None:
        self._start_pool()
        self.executable.step(self._address)

    def _run_segments(self, completed: Completed) -> None:
        self._start_pool()
        for function, names in self.executable.segments:
            function(self._address)
            completed(names)

    def _start_pool(self) -> None:
        if self.pool is not None and not self.pool.started:
            self.pool.start()

    def profile(self, inputs: Mapping[str, Array]) -> StepProfile:
        self._bind(inputs)
        began = time.perf_counter()
        self._step()
        ended = time.perf_counter()
        calls = tuple(call.name for call in self.executable.artifact.calls)
        spans = np.empty(0, SPAN) if self.log is None else self.log.spans()
        return StepProfile(calls, spans, ended - began, ended)

    def _bind_variables(self) -> None:
        """Point at the state's memory; it only moves when another executable wants another layout, or has changed
        variables of which there are copies."""
        if self._bound != self.state.moves:
            for name, layout, slot in self._variables:
                self.table[slot] = self.state.storage(name, layout).ctypes.data
            for number, copied in self._packed:
                assert copied.packing is not None
                self._copies[number] = self.state.packed(copied.name, copied.layout, copied.packing)
                self.table[number] = self._copies[number].ctypes.data
            self._bound = self.state.moves
