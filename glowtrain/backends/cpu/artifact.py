"""What is left of a graph once it is compiled for a processor: machine code, memory sizes, and the table of what lives
outside of the arena.

The object code exports one function, ``void PREFIXstep(ptr table)``. The table holds pointers of the processor's width:
the arena, the workspaces, the pool, then each of :attr:`NativeArtifact.slots` in order; memory is aligned to 64 bytes.
A workspace belongs to one thread and holds nothing between two kernels; those of several threads lie one behind the
other. The pool is null for a step on one thread, or what :mod:`glowtrain.backends.cpu.threads.share` describes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from glowtrain.backends.base import Artifact, Types
from glowtrain.backends.container import pack, unpack
from glowtrain.backends.cpu.events.log import CountedCall
from glowtrain.backends.cpu.panels import Packing
from glowtrain.backends.state import aligned
from glowtrain.backends.table import FIRST_SLOT, Slot
from glowtrain.backends.target import Target
from glowtrain.errors import ArtifactError
from glowtrain.loops import Buffer
from glowtrain.native import NativeFunction
from glowtrain.types import Array, TensorType, parse_type

if TYPE_CHECKING:
    from glowtrain.backends.cpu.step import Code
    from glowtrain.program.memory.plan import Plan


@dataclass(frozen=True)
class NativeArtifact(Artifact):
    """A compiled graph without its compiler's data structures.

    ``objects`` are object files that belong together. ``workspace`` is the bytes that each thread needs for itself.
    ``slots`` are the entries of the pointer table after the first three; ``outputs`` has the types of all outputs, also
    of those that the code never writes; ``constants`` hold memory as the code reads it, aligned; ``calls`` are those of
    code that takes their times, in order; ``natives`` are the functions of this process that it calls, in the table
    after the slots. ``segments``: of code that can be run in segments, the outputs that are complete after each.
    """

    objects: tuple[bytes, ...]
    target: Target
    entry: str
    arena: int
    workspace: int
    slots: tuple[Slot, ...]
    outputs: dict[str, TensorType]
    constants: dict[str, Array] = field(repr=False)
    calls: tuple[CountedCall, ...] = ()
    natives: tuple[NativeFunction, ...] = ()
    segments: tuple[tuple[str, ...], ...] = ()

    @property
    def segment_entries(self) -> list[str]:
        """The functions of the segments."""
        return [part_of(self.entry, number) for number in range(len(self.segments))]

    @property
    def code(self) -> bytes:
        """The machine code as one object file. Raises :class:`ArtifactError` where it was made in pieces."""
        if len(self.objects) != 1:
            raise ArtifactError(f"{self.entry} is {len(self.objects)} objects; gt.compile_artifact makes one")
        return self.objects[0]

    @property
    def size(self) -> int:
        """Bytes of machine code."""
        return sum(map(len, self.objects))

    @property
    def in_numbers(self) -> str:
        """It in a few words."""
        return f"{self.size:,} bytes of machine code for {self.target.cpu or self.target.name}"

    @property
    def portable(self) -> bool:
        return not self.natives

    def fits(self, inputs: Types, variables: Types, outputs: Types) -> bool:
        types = {"input": inputs, "variable": variables, "output": outputs}
        outside = (slot for slot in self.slots if slot.kind in types)
        return self.outputs == outputs and all(types[slot.kind].get(slot.name) == slot.type for slot in outside)

    @classmethod
    def of(cls, objects: tuple[bytes, ...], code: Code) -> NativeArtifact:
        """The artifact of a planned program and its machine code."""
        plan = code.plan
        names = _names(plan)
        slots = tuple(
            _packed_slot(buffer, *code.panels[buffer]) if buffer in code.panels else _slot(buffer, number, names)
            for number, buffer in enumerate(code.externals)
        )
        constants = {
            slot.name: aligned(np.transpose(buffer.constant_array, buffer.layout))
            for slot, buffer in zip(slots, code.externals, strict=True)
            if buffer.constant_array is not None
        }
        outputs = {name: buffer.type for name, buffer in plan.program.outputs.items()}
        own = objects, code.target, code.entry, plan.arena, code.workspace
        return cls(*own, slots, outputs, constants, code.counted, code.natives, code.segments)

    def to_bytes(self) -> bytes:
        if self.natives:
            names = ", ".join(function.name for function in self.natives)
            raise ArtifactError(f"{self.entry} calls native functions of this process ({names}): it cannot be written")
        facts = {
            "target": {**asdict(self.target), "families": sorted(self.target.families)},
            "entry": self.entry,
            "objects": len(self.objects),
            "arena": self.arena,
            "workspace": self.workspace,
            "slots": [
                [slot.kind, slot.name, str(slot.type), slot.layout, slot.packing and asdict(slot.packing)]
                for slot in self.slots
            ],
            "outputs": {name: str(type_) for name, type_ in self.outputs.items()},
            "calls": [[call.name, call.trips, call.ranges] for call in self.calls],
            "segments": self.segments,
        }
        objects = {f"object.{at}": np.frombuffer(each, np.uint8) for at, each in enumerate(self.objects)}
        return pack("cpu", {**self.constants, **objects}, facts)

    @classmethod
    def from_bytes(cls, data: bytes) -> NativeArtifact:
        """Read :meth:`to_bytes`. Raises :class:`ArtifactError` for anything else."""
        arrays, facts = unpack("cpu", data)
        try:
            return cls._from(arrays, facts)
        except (KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"compiled code does not say all that it should: {error!r}") from None

    @classmethod
    def _from(cls, arrays: dict[str, Array], facts: dict[str, Any]) -> NativeArtifact:
        own = facts["target"]
        target = Target(**{**own, "families": frozenset(own["families"]), "soft": tuple(own["soft"])})
        slots = tuple(
            Slot(kind, name, parse_type(text), tuple(layout), Packing.of_floats(packing) if packing else None)
            for kind, name, text, layout, packing in facts["slots"]
        )
        outputs = {name: parse_type(text) for name, text in facts["outputs"].items()}
        constants = {slot.name: aligned(arrays[slot.name]) for slot in slots if slot.kind == "constant"}
        objects = tuple(arrays[f"object.{at}"].tobytes() for at in range(facts["objects"]))
        calls = tuple(CountedCall(*call) for call in facts["calls"])
        sizes = facts["arena"], facts["workspace"]
        if min(sizes) < 0:
            raise ValueError(f"arena and workspace of {sizes} bytes")
        segments = tuple(tuple(map(str, names)) for names in facts["segments"])
        return cls(objects, target, facts["entry"], *sizes, slots, outputs, constants, calls, segments=segments)

    def __str__(self) -> str:
        size = f"{self.size:,} bytes of machine code for {self.target.cpu}"
        lines = [f"{self.entry}: {size}, arena {self.arena:,}, workspace {self.workspace:,} bytes"]
        lines += [f"{n:>4}  {s.kind:<8}  {s.name}: {s.type}" for n, s in enumerate(self.slots, FIRST_SLOT)]
        return "\n".join(lines) + "\n"


def part_of(entry: str, number: int) -> str:
    """The function of a part of a step."""
    return f"{entry}.part{number}"


def _names(plan: Plan) -> dict[Buffer, str]:
    program = plan.program
    pairs = (*program.inputs.items(), *program.outputs.items(), *program.variables.items())
    return {buffer: name for name, buffer in pairs}


def _packed_slot(buffer: Buffer, variable: Buffer, packing: Packing) -> Slot:
    return Slot("packed", variable.name, buffer.type, variable.layout, packing)


def _slot(buffer: Buffer, number: int, names: dict[Buffer, str]) -> Slot:
    if buffer.kind == "constant":
        return Slot("constant", f"constant.{number}", buffer.type, buffer.layout)
    if buffer in names and buffer.kind != "activation":
        return Slot(buffer.kind, names[buffer], buffer.type, buffer.layout)
    return Slot("unused", buffer.name, buffer.type, buffer.layout)
