"""The sizes that are swept: powers of two, what lies between them, and one more than some, where remainders begin."""

from __future__ import annotations

from dataclasses import dataclass, replace

CLASSES, HEAD = 64, 16
"""Classes, or vocabulary; the width of an attention head."""


@dataclass(frozen=True)
class Size:
    """Of one network; an MLP has no sequence."""

    batch: int
    width: int
    depth: int
    sequence: int = 1

    def with_(self, axis: str, value: int) -> Size:
        """Another extent of one axis."""
        return replace(self, **{axis: value})


BASES = {"mlp": Size(64, 256, 4), "transformer": Size(8, 64, 2, 64), "lstm": Size(16, 64, 1, 32)}
"""The size around which each family is swept."""
_WIDTHS = (16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512, 513, 768, 1024)
AXES = {
    "batch": (1, 2, 3, 4, 6, 8, 12, 16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 129, 192, 256, 257, 384, 512),
    "width": _WIDTHS,
    "depth": (2, 3, 4, 6, 8, 12, 16, 24, 32, 48),
    "sequence": _WIDTHS,
}
"""The values of each axis."""


def axes_of(family: str) -> list[str]:
    """The axes that a family has."""
    return [axis for axis in AXES if axis != "sequence" or family != "mlp"]


def values(family: str, axis: str, most: int) -> list[int]:
    """The values up to ``most``; widths of a transformer are whole numbers of heads."""
    whole = HEAD if (family, axis) == ("transformer", "width") else 1
    return [value for value in AXES[axis] if value <= most and value % whole == 0]
