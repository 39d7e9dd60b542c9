"""Tables for terminals. Cells are shown as they are: a name with brackets or colons is never taken for markup."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

Cell = str | Text


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]] = (), title: str = "") -> Table:
    """A table without a frame; a column whose name ends in ``>`` is aligned to the right."""
    result = Table(
        title=Text(title) if title else None, title_justify="left", box=None, pad_edge=False, header_style="bold"
    )
    for column in columns:
        justify = "right" if column.endswith(">") else "left"
        result.add_column(Text(column.removesuffix(">")), justify=justify, overflow="fold")  # type: ignore[arg-type]
    for row in rows:
        result.add_row(*map(_text, row))
    return result


def _text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)
