"""Tables for people: the same one on a terminal and in a page."""

from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from glowtrain.presentation import pages
from glowtrain.presentation.tables import Table

TABLE = Table(
    ("name", "", "bytes>", "text"),
    [("[red]a:smile:", ("wrong", "failed"), "1,024", "x\n y"), ("b<c", [("p", "passed"), (", ", "")], "7", "")],
    code="text",
)


def test_on_a_terminal() -> None:
    console = Console(file=StringIO(), width=60, force_terminal=True, color_system="standard", highlight=False)
    console.print(TABLE)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    assert "[red]a:smile:" in lines[1]
    assert "\x1b[1;31mwrong\x1b[0m  1,024" in lines[1]
    assert "\x1b[32mp\x1b[0m, " in lines[3]
    assert "    7" in lines[3]


def test_in_a_page() -> None:
    first, *rest = pages.section("<title>", TABLE).splitlines()
    assert first == "<h2>&lt;title&gt;</h2>"
    assert rest[1] == (
        '<tr><th class="">name</th><th class=""></th><th class="number">bytes</th><th class="code">text</th></tr>'
    )
    assert '<td class="">[red]a:smile:</td><td class="failed">wrong</td><td class="number">1,024</td>' in rest[2]
    assert '<td class="code">x' in rest[2]
    assert '<td class="">b&lt;c</td><td class="">p, </td>' in rest[4]


def test_a_number_may_say_something() -> None:
    assert '<td class="number failed">3</td>' in Table(("n>",), [(("3", "failed"),)]).html()


def test_without_headings_there_is_no_row_of_them() -> None:
    table = Table(("", ""), [("a", "b")])
    assert "<th" not in table.html()
    console = Console(file=StringIO(), width=60)
    console.print(table)
    assert isinstance(console.file, StringIO)
    assert console.file.getvalue().split() == ["a", "b"]


def test_rows_have_a_cell_for_each_column() -> None:
    with pytest.raises(ValueError, match="zip"):
        Table(("a", "b"), [("1",)]).html()
