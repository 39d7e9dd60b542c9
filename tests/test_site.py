"""The site's pages: where their links lead (docs/site/links.py). make site reports those that lead nowhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.site.links import Links

PAGES = {
    "docs/README.md": "README.md",
    "docs/adr/0001-a.md": "adr/0001-a.md",
    "docs/adr": "adr/0001-a.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "figures/speed.png": "figures/speed.png",
}
REPOSITORY = "https://example.org/glowtrain"


@pytest.fixture
def links(tmp_path: Path) -> Links:
    for path in (*PAGES, "glowtrain/ops/exp.py"):
        if path != "docs/adr":
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).touch()
    return Links(tmp_path, PAGES, REPOSITORY)


@pytest.mark.parametrize(
    ("source", "written", "expected"),
    [
        ("docs/README.md", "[log](../CHANGELOG.md#new)", "[log](CHANGELOG.md#new)"),
        ("docs/adr/0001-a.md", "[`log`](../../CHANGELOG.md)", "[`log`](../CHANGELOG.md)"),
        ("CHANGELOG.md", "[why](docs/adr/0001-a.md), [how](docs/README.md)", "[why](adr/0001-a.md), [how](README.md)"),
        ("docs/README.md", "[all](adr/)", "[all](adr/0001-a.md)"),
        ("docs/adr/0001-a.md", "![speed](../../figures/speed.png)", "![speed](../figures/speed.png)"),
        ("docs/README.md", "[two\nlines](../CHANGELOG.md)", "[two\nlines](CHANGELOG.md)"),
        ("docs/README.md", "[e](../glowtrain/ops/exp.py)", f"[e]({REPOSITORY}/blob/main/glowtrain/ops/exp.py)"),
        ("docs/README.md", "[ops](../glowtrain/ops)", f"[ops]({REPOSITORY}/tree/main/glowtrain/ops)"),
        ("docs/README.md", "[here](#below) [there](https://example.org/a)", None),
        ("docs/README.md", "[gone](gone.md) ![gone](../gone.png)", None),
        ("docs/README.md", "```md\n[log](../CHANGELOG.md)\n```\n", None),
    ],
)
def test_links_of_a_page(links: Links, source: str, written: str, expected: str | None) -> None:
    """``None``: they stay as they are; of those that lead nowhere mkdocs tells."""
    assert links.rewrite(written, source) == (expected or written)


def test_without_a_repository_source_is_plain_text(links: Links) -> None:
    plain = Links(links.root, links.pages)
    written = "before [`e`](../glowtrain/ops/exp.py) after [log](../CHANGELOG.md)"
    expected = 'before <span title="glowtrain/ops/exp.py">`e`</span> after [log](CHANGELOG.md)'
    assert plain.rewrite(written, "docs/README.md") == expected
