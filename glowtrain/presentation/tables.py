"""Tables for people: described once, shown on a terminal and in a page."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import rich.table

Piece = tuple[str, str]
"""Text, and what it says: a key of :data:`COLOURS`, which is its class in a page."""
Cell = str | Piece | list[Piece]
COLOURS = {"passed": "green", "failed": "bold red", "kink": "yellow", "absent": "dim"}


class Table:
    """Rows of text, which is shown as it is: a name with brackets or colons is never taken for markup.

    The heading of a column of numbers ends in ``>``; the column ``code`` keeps its spaces and line breaks in a page.
    Without any heading there is no row of them.
    """

    def __init__(
        self, columns: Sequence[str], rows: Iterable[Sequence[Cell]], title: str = "", code: str | None = None
    ) -> None:
        self.columns = [(c.removesuffix(">"), "number" if c.endswith(">") else "") for c in columns]
        self.columns = [(name, "code" if name == code else kind) for name, kind in self.columns]
        self.rows = list(rows)
        self.title = title

    def __rich__(self) -> rich.table.Table:
        """On a terminal: without a frame, long cells folded."""
        from rich.table import Table as Grid  # noqa: PLC0415  (slow to import; pages do without)
        from rich.text import Text  # noqa: PLC0415

        title = Text(self.title) if self.title else None
        grid = Grid(
            title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", show_header=self._headed
        )
        for name, kind in self.columns:
            grid.add_column(Text(name), justify="right" if kind == "number" else "left", overflow="fold")
        for row in self.rows:
            grid.add_row(*(Text.assemble(*((text, COLOURS.get(says, "")) for text, says in _pieces(c))) for c in row))
        return grid

    def html(self) -> str:
        """An element of a page."""
        kinds = [kind for _, kind in self.columns]
        lines = ["".join(_html("th", *column) for column in self.columns)] if self._headed else []
        lines += ["".join(_html("td", *each) for each in zip(row, kinds, strict=True)) for row in self.rows]
        return "\n".join(["<table>", *(f"<tr>{line}</tr>" for line in lines), "</table>"])

    @property
    def _headed(self) -> bool:
        return any(name for name, _ in self.columns)


def _pieces(cell: Cell) -> list[Piece]:
    return cell if isinstance(cell, list) else [cell if isinstance(cell, tuple) else (cell, "")]


def _html(tag: str, cell: Cell, kind: str) -> str:
    pieces = _pieces(cell)
    says = pieces[0][1] if len(pieces) == 1 else ""
    classes = " ".join(filter(None, (kind, says)))
    return f'<{tag} class="{classes}">{escape("".join(text for text, _ in pieces))}</{tag}>'
