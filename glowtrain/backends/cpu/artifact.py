"""What is left of a graph once it is compiled: machine code, memory sizes, and the table of what lives outside of the
arena. It can be kept as a file (safetensors: arrays, and the rest as JSON in the header)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import safetensors
import safetensors.numpy

from glowtrain.backends.base import aligned
from glowtrain.backends.cpu.step import Code
from glowtrain.loops import Buffer
from glowtrain.program.memory.plan import Plan
from glowtrain.types import Array, TensorType, parse_type

FIRST_SLOT = 2
"""The table begins with the arena and the workspace."""


@dataclass(frozen=True)
class Slot:
    """A tensor outside of the arena: an input, output or variable by name, or a constant by its number."""

    kind: Literal["input", "output", "variable", "constant", "unused"]
    name: str
    type: TensorType
    layout: tuple[int, ...]


@dataclass(frozen=True)
class Artifact:
    """A compiled graph without its compiler's data structures.

    ``slots`` are the entries of the pointer table after the first two; ``outputs`` has the types of all outputs, also
    of those that the code never writes; ``constants`` hold memory as the code reads it, aligned.
    """

    code: bytes
    arena: int
    workspace: int
    slots: tuple[Slot, ...]
    outputs: dict[str, TensorType]
    constants: dict[str, Array] = field(repr=False)

    @classmethod
    def of(cls, object_bytes: bytes, plan: Plan, code: Code) -> Artifact:
        """The artifact of a planned program and its machine code."""
        names = _names(plan)
        slots = tuple(_slot(buffer, place, names) for place, buffer in enumerate(code.externals))
        constants = {
            slot.name: aligned(np.transpose(buffer.initial, buffer.layout))
            for slot, buffer in zip(slots, code.externals, strict=True)
            if slot.kind == "constant" and buffer.initial is not None
        }
        outputs = {name: buffer.type for name, buffer in plan.program.outputs.items()}
        return cls(object_bytes, plan.arena, code.workspace, slots, outputs, constants)

    def to_bytes(self) -> bytes:
        """The artifact as a safetensors file."""
        facts = {
            "arena": self.arena,
            "workspace": self.workspace,
            "slots": [[slot.kind, slot.name, str(slot.type), slot.layout] for slot in self.slots],
            "outputs": {name: str(type_) for name, type_ in self.outputs.items()},
        }
        arrays = {name: array.reshape(-1).view(np.uint8) for name, array in self.constants.items()}
        arrays["code"] = np.frombuffer(self.code, np.uint8)
        data: bytes = safetensors.numpy.save(arrays, metadata={"facts": json.dumps(facts)})
        return data

    @classmethod
    def from_bytes(cls, data: bytes) -> Artifact:
        """Read :meth:`to_bytes`. Raises ``ValueError`` for anything else."""
        try:
            arrays = safetensors.numpy.load(data)
            length = int.from_bytes(data[:8], "little")
            facts = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["facts"])
            slots = tuple(
                Slot(kind, name, parse_type(text), tuple(layout)) for kind, name, text, layout in facts["slots"]
            )
            outputs = {name: parse_type(text) for name, text in facts["outputs"].items()}
        except (safetensors.SafetensorError, KeyError, TypeError) as error:
            raise ValueError(f"not a compiled graph: {error}") from None
        constants = {slot.name: _constant(arrays[slot.name], slot) for slot in slots if slot.kind == "constant"}
        return cls(arrays["code"].tobytes(), facts["arena"], facts["workspace"], slots, outputs, constants)


def _names(plan: Plan) -> dict[Buffer, str]:
    program = plan.program
    pairs = (*program.inputs.items(), *program.outputs.items(), *program.variables.items())
    return {buffer: name for name, buffer in pairs}


def _slot(buffer: Buffer, place: int, names: dict[Buffer, str]) -> Slot:
    if buffer.kind == "constant":
        return Slot("constant", f"constant.{place}", buffer.type, buffer.layout)
    if buffer in names and buffer.kind != "activation":
        return Slot(buffer.kind, names[buffer], buffer.type, buffer.layout)
    return Slot("unused", buffer.name, buffer.type, buffer.layout)


def _constant(data: Array, slot: Slot) -> Array:
    shape: Sequence[int] = [slot.type.shape[axis] for axis in slot.layout]
    return aligned(data.view(slot.type.dtype.numpy).reshape(shape))
