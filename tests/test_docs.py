"""README and docs: the ``pycon`` examples give what they print, and the links lead somewhere.

Pages whose examples need PyTorch are run by tests/with_torch.
"""

from __future__ import annotations

import doctest
import re
import runpy
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from glowtrain.graph.registry import OPERATORS

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
FENCE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WITH_TORCH = re.compile(r"^>>> import torch$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def page_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def example_of(text: str, name: str) -> doctest.DocTest:
    """The page's examples as one test, in which prose is blank: line numbers and names carry over between blocks."""
    kept = [""] * len(text.splitlines())
    for block in FENCE.finditer(text):
        first = text.count("\n", 0, block.start(1))
        lines = block.group(1).splitlines()
        kept[first : first + len(lines)] = lines
    return doctest.DocTestParser().get_doctest("\n".join(kept), {"__name__": "__main__"}, name, name, 0)


def needs_torch(path: Path) -> bool:
    return WITH_TORCH.search(path.read_text(encoding="utf-8")) is not None


@pytest.mark.parametrize("path", [path for path in PAGES if not needs_torch(path)], ids=page_name)
def test_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_examples(path, tmp_path, monkeypatch)


def run_examples(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    test = example_of(path.read_text(encoding="utf-8"), page_name(path))
    monkeypatch.chdir(tmp_path)
    report: list[str] = []
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    try:
        failed = runner.run(test, out=report.append).failed
    finally:
        forget_operators()
    assert failed == 0, "".join(report)


def forget_operators() -> None:
    """Operators that a page registers are its own: random programs of other tests must not meet them."""
    for key in [key for key, operator in OPERATORS.items() if operator.__module__ == "__main__"]:
        del OPERATORS[key]


@pytest.mark.parametrize("path", PAGES, ids=page_name)
def test_links(path: Path) -> None:
    targets = [urlsplit(link) for link in LINK.findall(path.read_text(encoding="utf-8"))]
    local = [target.path for target in targets if not target.scheme and target.path]
    assert [target for target in local if not (path.parent / target).exists()] == []


def test_examples_are_found_and_can_fail() -> None:
    text = "# Page\n\n```pycon\n>>> x = 1\n```\n\nprose\n\n```pycon\n>>> x + 1\n3\n```\n"
    test = example_of(text, "page")
    assert [example.source for example in test.examples] == ["x = 1\n", "x + 1\n"]
    assert [example.lineno for example in test.examples] == [3, 9]
    assert doctest.DocTestRunner(verbose=False).run(test, out=lambda _: None).failed == 1


def test_the_drawing_of_the_rooms_is_that_of_the_code() -> None:
    """``python docs/site/rooms.py`` draws it anew."""
    rooms = runpy.run_path(str(ROOT / "docs" / "site" / "rooms.py"))
    assert rooms["PICTURE"].read_text(encoding="utf-8") == rooms["drawing"]()
