"""Names, types and lines in Fortran."""

from __future__ import annotations

import re

from glowtrain.bundles.faces.identifiers import unused
from glowtrain.bundles.signature import BundleFunction, BundleTensor
from glowtrain.types import TensorType

_KINDS = {"c_ptr", "c_funptr", "c_int", "c_char", "c_size_t", "c_float", "c_double"} | {
    f"c_int{n}_t" for n in (8, 16, 32, 64)
}
MOST_AXES = 15
LONGEST_LINE, LONGEST_NAME = 120, 40
"""Fortran's lines have 132 characters at most and names 63, of which the module adds some."""


def dummies(function: BundleFunction) -> dict[str, BundleTensor | None]:
    """Dummy arguments by name, which Fortran does not tell apart by case; None for the hyperparameters."""
    given: list[tuple[str, BundleTensor | None]] = [(each.name, each) for each in function.inputs]
    given += [("hyper", None)] if function.hyper else []
    given += [(each.name, each) for each in function.outputs]
    found: dict[str, BundleTensor | None] = {}
    reserved = {"handle", "code", "any", "shape", function.name, *_KINDS}
    for name, tensor in given:
        free = unused(shortened(name.lower(), len(found)), reserved)
        reserved.add(free)
        found[free] = tensor
    return found


def shortened(name: str, number: int) -> str:
    """A name of as many letters as there can be, or its first ones and a number that no other has."""
    return name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}_{number}"


def extents(type_: TensorType) -> str:
    """The shape of an array, the last axis first; those of too many axes are flat, scalars have none."""
    if not type_.shape:
        return ""
    shape = type_.shape if type_.rank <= MOST_AXES else (type_.size,)
    return f"({', '.join(map(str, reversed(shape)))})"


def assumed_extents(type_: TensorType) -> str:
    """As many axes, whose extents an array brings with it."""
    return re.sub(r"\d+", ":", extents(type_))


def short_lines(text: str) -> str:
    """A text whose lines are no longer than Fortran's may be."""
    return "\n".join(part for line in text.split("\n") for part in wrapped(line))


def wrapped(line: str) -> list[str]:
    """A line, continued at its commas where it is too long; texts and comments stay whole."""
    if len(line) <= LONGEST_LINE or line.lstrip().startswith("!"):
        return [line]
    lines = [""]
    for piece in re.findall(r"""(?:"[^"]*"|'[^']*'|[^"',]|,(?! ))+(?:, |$)""", line):
        if len(lines[-1]) + len(piece) >= LONGEST_LINE:  # an & comes behind it
            lines[-1] += "&"
            lines.append("        ")
        lines[-1] += piece
    return lines
