"""Reports as pages of HTML that need nothing else: no other file, no script, no network."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from glowtrain.presentation.tables import Table

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6877; --paper: #fff; --line: #d9dee5; --bad: #c0262d;
  --good: #23774a; --warn: #9a6a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --soft: #9aa5b4; --paper: #15191f; --line: #313945;
  --bad: #ff7b7b; --good: #6fcf97; --warn: #e6b450; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
p { color: var(--soft); margin: .3rem 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; } .number { text-align: right; }
td.code { white-space: pre-wrap; overflow-wrap: anywhere; font: 13px ui-monospace, monospace; }
.failed { color: var(--bad); font-weight: 600; } .passed { color: var(--good); } .kink { color: var(--warn); }
.absent { color: var(--soft); }
svg { max-width: 100%; height: auto; } svg text { fill: currentColor; }
.figures { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; max-width: 21rem; } figcaption { font-size: 13px; overflow-wrap: anywhere; }
"""


def page(title: str, summary: str, sections: Iterable[str], kind: str = "") -> str:
    """A whole page; ``kind`` is the class of its title."""
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f'<h1 class="{kind}">{escape(title)}</h1>',
        *(f"<p>{escape(line)}</p>" for line in summary.splitlines()),
        *sections,
        "</body></html>\n",
    ]
    return "\n".join(parts)


def section(title: str, *parts: str | Table) -> str:
    """A heading and what stands below it."""
    below = (part.html() if isinstance(part, Table) else part for part in parts)
    return "\n".join([f"<h2>{escape(title)}</h2>", *below])
