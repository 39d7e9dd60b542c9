"""Pages of Markdown for people: as they are into files and pipes, laid out to its width on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from rich.console import Group, RenderableType
from rich.markdown import Markdown
from rich.padding import Padding
from rich.text import Text

from glowtrain.cli.terminal.console import out
from glowtrain.presentation.tables import Table

EMPTY = "–"
"""A cell without content."""
GAP = 2
"""Columns between the cells of a table."""


def show(text: str) -> None:
    """Print a page of Markdown on standard output."""
    for part in parts(text, out.width) if out.is_terminal else [text]:
        out.print(part)


def parts(text: str, width: int) -> Iterator[RenderableType]:
    """A page laid out: prose between tables; a table that is wider than ``width`` becomes a paragraph for each row."""
    for is_table, lines in groupby(text.splitlines(), lambda line: line.startswith("|")):
        if not is_table:
            yield Markdown("\n".join(lines))
            continue
        heads, _, *rows = ([cell.strip() for cell in line.strip("|").split(" | ")] for line in lines)
        yield from [_table(heads, rows)] if _width(heads, rows) <= width else (_paragraph(heads, row) for row in rows)
        yield Text()


def _width(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Columns that a table takes."""
    return sum(max(map(len, column)) + GAP for column in zip(heads, *rows, strict=True)) - GAP


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    return Table(heads, ([cell.replace("`", "") for cell in row] for row in rows))


def _paragraph(heads: Sequence[str], row: Sequence[str]) -> Group:
    """A row's first cell, and below it the others that are not empty: ``opset 1–22; element types floats``."""
    said = [f"{head} {cell}" for head, cell in zip(heads[1:], row[1:], strict=True) if cell != EMPTY]
    return Group(Text(row[0], "bold"), Padding(Text("; ".join(said)), (0, 0, 0, 2)))
