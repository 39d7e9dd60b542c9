"""Results that consist of sentences and tables: as text, on a terminal, and in a notebook.

Notebooks have themes of their own, which say nothing to a style sheet: text keeps the theme's colour, lines are a
transparent grey, and the other colours can be read on white and on black.
"""

from __future__ import annotations

import io
from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

from glowtrain.presentation.tables import Table

if TYPE_CHECKING:
    from rich.console import Group

WIDTH = 160
"""Columns of a table as text, at most."""
STYLE = """
.glowtrain { font-size: 13px; line-height: 1.45; overflow-x: auto; }
.glowtrain p { margin: .3em 0; white-space: pre-wrap; }
.glowtrain table { font-size: inherit; border-collapse: collapse; margin: .5em 0; font-variant-numeric: tabular-nums; }
.glowtrain tr, .glowtrain tr:hover { background: none !important; }
.glowtrain th, .glowtrain td { color: inherit; text-align: left !important; vertical-align: top; border: 0;
  padding: .15em 1.2em .15em 0; border-bottom: 1px solid #8884; white-space: pre-wrap; max-width: 40em;
  overflow-wrap: anywhere; }
.glowtrain th { font-weight: 600; border-bottom-color: #888a; overflow-wrap: normal; }
.glowtrain .title { font-weight: 600; margin-top: 1em; }
.glowtrain .number { text-align: right !important; white-space: nowrap; }
.glowtrain td.code { font-family: monospace; }
.glowtrain .failed { color: #d6453d; font-weight: 600; } .glowtrain .passed { color: #2e8b57; }
.glowtrain .kink { color: #a9760b; } .glowtrain .absent { color: #808890; }
.glowtrain progress { width: 16em; vertical-align: middle; }
"""


class Displayable:
    """What ``_contents`` says, in each of these ways: a base for results that have a ``repr`` of their own."""

    def _contents(self) -> Iterable[str | Table]:
        """Sentences and tables, in order; an empty one separates others on a terminal."""
        raise NotImplementedError

    def _as_text(self) -> str:
        """Plain text, whatever the terminal's width is."""
        from rich.console import Console  # noqa: PLC0415  (slow to import; notebooks do without)

        console = Console(
            file=io.StringIO(), width=WIDTH, markup=False, emoji=False, highlight=False,
            force_terminal=False, force_jupyter=False,  # else a notebook shows what is printed here
        )  # fmt: skip
        for part in self._contents():
            console.print(part, soft_wrap=isinstance(part, str))
        assert isinstance(console.file, io.StringIO)
        return "\n".join(line.rstrip() for line in console.file.getvalue().splitlines())

    def __rich__(self) -> Group:
        from rich.console import Group  # noqa: PLC0415  (slow to import; notebooks do without)
        from rich.text import Text  # noqa: PLC0415

        return Group(*(Text(part) if isinstance(part, str) else part for part in self._contents()))

    def _repr_html_(self) -> str:
        return fragment(self._contents())


def fragment(contents: Iterable[str | Table], above: str = "") -> str:
    """An element that a notebook shows; ``above`` the sentences and tables stands HTML that is taken as it is."""
    parts = (_element(part) for part in contents if part)
    return "\n".join([f'<div class="glowtrain"><style>{STYLE}</style>{above}', *parts, "</div>"])


def _element(part: str | Table) -> str:
    if isinstance(part, str):
        return f"<p>{escape(part)}</p>"
    title = f'<p class="title">{escape(part.title)}</p>\n' if part.title else ""
    return f"{title}{part.html()}"
