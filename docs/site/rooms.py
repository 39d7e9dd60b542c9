"""Draws the rooms of the package, each above those that it imports: ``python docs/site/rooms.py``.

Packages stand in rows by the longest way down (Sugiyama, Tagawa, Toda 1981: "Methods for visual understanding of
hierarchical system structures"); an arrow is left out where a longer way leads there. tests/test_docs.py compares the
picture with the code.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import grimp

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "assets" / "rooms.svg"
BOX, GAP, ROW = 112, 14, 74
"""Width of a box, the least distance between two, height of a row, in the picture's units."""
HEIGHT = 30
SWEEPS = 24

Imports = Mapping[str, Set[str]]
Point = tuple[str, int]
"""A room, or a place where an arrow (``upper>lower``) passes a row."""


def imports() -> Imports:
    """Which rooms each room imports."""
    graph = grimp.build_graph("glowtrain", cache_dir=None)
    rooms = sorted(path.parent.name for path in (ROOT / "glowtrain").glob("*/__init__.py"))
    found: dict[str, set[str]] = {room: set() for room in rooms}
    for module in graph.modules:
        for imported in graph.find_modules_directly_imported_by(module):
            upper, lower = ((*name.split("."), "")[1] for name in (module, imported))
            if upper != lower and upper in found and lower in found:
                found[upper].add(lower)
    return found


def arrows(below: Imports) -> Iterator[tuple[str, str]]:
    """Imports but those that follow from a longer way."""

    @cache
    def reached(room: str) -> frozenset[str]:
        return frozenset().union(below[room], *(reached(lower) for lower in below[room]))

    for upper, lowers in sorted(below.items()):
        for lower in sorted(lowers):
            if not any(lower in reached(other) for other in lowers):
                yield upper, lower


def rows(below: Imports) -> Mapping[str, int]:
    """For each room the length of the longest way down from it."""

    @cache
    def row(room: str) -> int:
        return 1 + max((row(lower) for lower in below[room]), default=-1)

    return {room: row(room) for room in below}


def ways(below: Imports) -> Sequence[Sequence[Point]]:
    """Each arrow as the points through which it goes, one in each row."""
    row = rows(below)
    found = []
    for upper, lower in arrows(below):
        passed = [(f"{upper}>{lower}", level) for level in range(row[upper] - 1, row[lower], -1)]
        found.append([(upper, row[upper]), *passed, (lower, row[lower])])
    return found


def places(below: Imports) -> Mapping[Point, float]:
    """Where each point's middle is: near the mean of its neighbours', in the order of these means."""
    beside: dict[Point, list[Point]] = defaultdict(list)
    for way in ways(below):
        for one, other in pairwise(way):
            beside[one].append(other)
            beside[other].append(one)
    levels: dict[int, list[Point]] = defaultdict(list)
    for point in sorted({*beside, *rows(below).items()}):
        levels[point[1]].append(point)
    at = {point: float(n * (BOX + GAP)) for level in levels.values() for n, point in enumerate(level)}
    for _ in range(SWEEPS):
        for level in [*sorted(levels), *sorted(levels, reverse=True)]:
            wanted = {p: sum(at[q] for q in beside[p]) / max(1, len(beside[p])) for p in levels[level]}
            at |= _apart(sorted(levels[level], key=lambda p: (wanted[p], p)), wanted)
    least = min(at[point] - _width(point) / 2 for point in at)
    return {point: x - least + GAP for point, x in at.items()}


def _apart(points: Sequence[Point], wanted: Mapping[Point, float]) -> Mapping[Point, float]:
    """Positions in this order that do not overlap, in the mean where they are wanted."""
    found: dict[Point, float] = {}
    edge = float("-inf")
    for point in points:
        found[point] = max(wanted[point], edge + _width(point) / 2)
        edge = found[point] + _width(point) / 2 + GAP
    shift = sum(wanted[point] - found[point] for point in points) / len(points)
    return {point: x + shift for point, x in found.items()}


def _width(point: Point) -> float:
    return 0 if ">" in point[0] else BOX


def drawing() -> str:
    """The picture, as SVG."""
    below = imports()
    at, row = places(below), rows(below)
    top = max(row.values())
    width = max(x + _width(point) / 2 for point, x in at.items()) + GAP
    size = f"{width:.0f} {(top + 1) * ROW:.0f}"
    font = 'font-family="sans-serif" font-size="14"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" {font}>'
    title = "<title>The rooms of the package: each stands above those that it imports</title>"
    background = '<rect width="100%" height="100%" fill="#ffffff"/>'
    curves = (_curve(way, at, top) for way in ways(below))
    paths = [f'<path d="{curve}" fill="none" stroke="#90a4ae" stroke-width="1.2"/>' for curve in curves]
    boxes = [_box(room, at[room, level], (top - level + 0.5) * ROW) for room, level in sorted(row.items())]
    return "\n".join([head, title, background, *paths, *boxes, "</svg>\n"])


def _box(room: str, x: float, y: float) -> str:
    """A room around this middle, with what its docstring says first for who points at it."""
    corner = f'x="{x - BOX / 2:.0f}" y="{y - HEIGHT / 2:.0f}"'
    return (
        f"<g><title>{escape(_first_line(room))}</title>"
        f'<rect {corner} width="{BOX}" height="{HEIGHT}" rx="5" fill="#e3f2fd" stroke="#1565c0"/>'
        f'<text x="{x:.0f}" y="{y + 5:.0f}" text-anchor="middle" fill="#0d2b4d">{room}</text></g>'
    )


def _curve(way: Sequence[Point], at: Mapping[Point, float], top: int) -> str:
    """From the lower edge of the first box to the upper edge of the last, upright in each row."""
    path = ""
    for upper, lower in pairwise(way):
        x, y = at[upper], (top - upper[1]) * ROW + (ROW + HEIGHT) / 2
        u, v = at[lower], (top - lower[1]) * ROW + (ROW - HEIGHT) / 2
        middle = (y + v) / 2
        path += f"{'L' if path else 'M'}{x:.0f} {y:.0f}C{x:.0f} {middle:.0f} {u:.0f} {middle:.0f} {u:.0f} {v:.0f}"
    return path


def _first_line(room: str) -> str:
    module = ast.parse((ROOT / "glowtrain" / room / "__init__.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(module) or room).splitlines()[0]


if __name__ == "__main__":
    PICTURE.write_text(drawing(), encoding="utf-8")
