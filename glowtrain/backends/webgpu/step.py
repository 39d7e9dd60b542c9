"""A planned program as WGSL modules and one list of dispatches, in order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from glowtrain.backends.webgpu.kernels import KernelModules, WgslModule
from glowtrain.backends.webgpu.memory import WORD
from glowtrain.errors import CodegenError
from glowtrain.loops import Buffer, Index
from glowtrain.presentation.messages import plural
from glowtrain.program.program import Instruction, Plan
from glowtrain.types import Array, TensorType

ALIGNMENT = 256
"""Bytes at multiples of which buffers lie in a memory, as copies from and to them want at most."""
ZERO = ALIGNMENT
"""Bytes of zeros that constants begin with: functions of the prelude read the first word."""
LARGEST_GRID = 65535
"""Workgroups along an axis of a dispatch."""
REACH = 1 << 31
"""Bytes of a memory: what offsets of 32 bits reach."""


@dataclass(frozen=True)
class Region:
    """A tensor of a memory, from a byte on."""

    name: str
    type: TensorType
    offset: int


@dataclass(frozen=True)
class Dispatch:
    """One run of a module by so many workgroups. ``arguments``: the values of outer indices, then the word at which
    each operand begins in its memory, or the name of a variable."""

    module: int
    grid: tuple[int, int]
    arguments: tuple[int | str, ...]


@dataclass(frozen=True)
class WgslCode:
    """All that is left of a plan: modules, their dispatches, and what lies where. ``work`` is the bytes of the arena
    (``arena`` of them), inputs and outputs; ``constants`` those of what never changes, in ``contents``."""

    modules: tuple[WgslModule, ...]
    dispatches: tuple[Dispatch, ...]
    inputs: tuple[Region, ...]
    outputs: tuple[Region, ...]
    variables: Mapping[str, TensorType]
    arena: int
    work: int
    contents: Array

    @property
    def text(self) -> str:
        """All modules."""
        return "\n".join(
            f"// ---- {module.entry}: {plural(module.tasks, 'task')}\n{module.text}" for module in self.modules
        )


def generate(plan: Plan) -> WgslCode:
    """The code of a plan. Raises :class:`CodegenError` naming the kernel that WGSL cannot express."""
    return _Step(plan).code()


class _Step:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.kernels = KernelModules()
        self.bases: dict[Buffer, int | str] = {buffer: at // WORD for buffer, at in plan.offsets.items()}
        program = plan.program
        self.inputs, after = _regions(program.inputs, _aligned(plan.arena))
        self.outputs, self.work = _regions(program.outputs, after)
        constants, self.constants = _regions({b.name: b for b in program.constants}, ZERO)
        for buffers, regions in (
            (program.inputs.values(), self.inputs),
            (program.outputs.values(), self.outputs),
            (program.constants, constants),
        ):
            self.bases.update((buffer, region.offset // WORD) for buffer, region in zip(buffers, regions, strict=True))
        self.bases.update((buffer, name) for name, buffer in program.variables.items())
        self.contents = _contents(program.constants, constants, self.constants)
        _check_reach(self.work, self.constants)

    def code(self) -> WgslCode:
        """Modules and dispatches."""
        program = self.plan.program
        dispatches = tuple(self._dispatches(program.instructions, (), {}))
        variables = {name: buffer.type for name, buffer in program.variables.items()}
        own = tuple(self.kernels.modules), dispatches, self.inputs, self.outputs, variables
        return WgslCode(*own, self.plan.arena, self.work, self.contents)

    def _dispatches(
        self, instructions: Sequence[Instruction], outer: tuple[Index, ...], values: Mapping[Index, int]
    ) -> Iterator[Dispatch]:
        for instruction in instructions:
            if instruction.kernel is not None:
                unit = self.kernels.unit(instruction.kernel, outer)
                arguments = (*(values[index] for index in outer), *(self.bases[buffer] for buffer in unit.operands))
                for module in unit.modules:
                    yield Dispatch(self.kernels.modules[module], _grid(module), arguments)
            elif instruction.native is not None:
                raise CodegenError(
                    f"{instruction.kind} {instruction.name} runs a function of this process, which no kernel of "
                    "backend webgpu can; use backend cpu"
                )
            else:
                indices = instruction.indices
                for trip in product(*(range(index.extent) for index in indices)):
                    inner = {**values, **dict(zip(indices, trip, strict=True))}
                    yield from self._dispatches(instruction.children, (*outer, *indices), inner)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _regions(buffers: Mapping[str, Buffer], begin: int) -> tuple[tuple[Region, ...], int]:
    """A place for each buffer from a byte on, and the end."""
    found: list[Region] = []
    for name, buffer in buffers.items():
        found.append(Region(name, buffer.type, begin))
        begin += _aligned(max(buffer.type.nbytes, WORD))
    return tuple(found), begin


def _contents(buffers: Sequence[Buffer], regions: Sequence[Region], nbytes: int) -> Array:
    contents = np.zeros(nbytes, np.uint8)
    for buffer, region in zip(buffers, regions, strict=True):
        assert buffer.constant_array is not None
        array = np.ascontiguousarray(np.transpose(buffer.constant_array, buffer.layout)).reshape(-1)
        contents[region.offset : region.offset + array.nbytes] = array.view(np.uint8)
    return contents


def _check_reach(work: int, constants: int) -> None:
    for what, nbytes in (("activations, inputs and outputs", work), ("constants", constants)):
        if nbytes >= REACH:
            raise CodegenError(
                f"{what} take {nbytes:,} bytes; backend webgpu reaches {REACH:,}: a smaller batch may do"
            )


def _grid(module: WgslModule) -> tuple[int, int]:
    groups = -(-module.tasks // module.group)
    rows = -(-groups // LARGEST_GRID)
    return -(-groups // rows), rows
