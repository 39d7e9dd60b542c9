"""A report as one HTML page that needs nothing else: numbers, failures, and a plot of errors by subject and oracle.

The plot is SVG inside the page. It shows each error over what is allowed for it, on a logarithmic axis, so a wrong
gradient stands to the right of the line at 1 whatever its magnitude.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from pathlib import Path

from glowtrain.files import write_atomically
from glowtrain.gradcheck.report import Check, Report

COLOURS = ("#2364aa", "#e07a1f", "#3a8f5c", "#8e4fa8", "#a35b3f", "#0f8b8d", "#c2477f", "#6b7280", "#94840f", "#4d5bd1")
"""One for each oracle, told apart also in print; where there are more, the next ones are rings."""
LOW, HIGH = -8, 6
"""Decades of the axis; what is beyond stands at its end."""
LEFT, WIDTH, ROW = 250, 860, 20
GRID, LIMIT = "#9aa5b480", "#c0262d"
LONGEST = 36
"""Characters of a name beside the plot."""

STYLE = """
:root { color-scheme: light dark; --ink: #1c2430; --soft: #5d6877; --paper: #fff; --line: #d9dee5; --bad: #c0262d;
  --good: #23774a; --warn: #9a6a00; }
@media (prefers-color-scheme: dark) { :root { --ink: #e7ebf0; --soft: #9aa5b4; --paper: #15191f; --line: #313945;
  --bad: #ff7b7b; --good: #6fcf97; --warn: #e6b450; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 1180px; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .6rem; }
p { color: var(--soft); margin: .3rem 0; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 500; } td.number, th.number { text-align: right; }
td.detail { white-space: pre-wrap; overflow-wrap: anywhere; font-family: ui-monospace, monospace; font-size: 13px; }
.failed { color: var(--bad); font-weight: 600; } .passed { color: var(--good); } .kink { color: var(--warn); }
.absent { color: var(--soft); } .plot { overflow-x: auto; }
"""


def html_page(report: Report) -> str:
    """The report as one self-contained page."""
    title = "Gradient check: " + ("passed" if report.passed else "failed")
    parts = [
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<style>{STYLE}</style></head><body>",
        f'<h1>Gradient check: <span class="{"passed" if report.passed else "failed"}">{title[16:]}</span></h1>',
        *(f"<p>{escape(line)}</p>" for line in report.summary().splitlines()),
        *_section("What failed", [c for c in report.checks if c.status == "failed"]),
        *_section("At a kink", [c for c in report.checks if c.status == "kink"]),
        '<h2>Errors, over what is allowed</h2><div class="plot">',
        plot(report),
        "</div>",
        *_section("All comparisons", report.checks),
        "</body></html>\n",
    ]
    return "\n".join(parts)


def write_html(report: Report, path: Path | str) -> None:
    """Write the report as one HTML page. Raises ``OSError``."""
    write_atomically(Path(path), html_page(report).encode())


def _section(title: str, checks: Sequence[Check]) -> Iterator[str]:
    if not checks:
        return
    yield f"<h2>{title}</h2><table><tr><th>checked</th><th>by</th><th>result</th>"
    yield '<th class="number">comparisons</th><th class="number">worst error</th>'
    yield '<th class="number">of allowed</th><th>detail</th></tr>'
    for check in checks:
        yield _row(check)
    yield "</table>"


def _row(check: Check) -> str:
    numbers = (str(check.examples), _number(check.error), _number(check.ratio))
    words = ("–",) * 3 if check.status in ("kink", "absent") and not check.examples else numbers
    cells = "".join(f'<td class="number">{word}</td>' for word in words)
    return (
        f'<tr><td>{escape(check.subject)}</td><td>{escape(check.oracle)}</td><td class="{check.status}">{check.status}'
        f'</td>{cells}<td class="detail">{escape(check.detail)}</td></tr>'
    )


def _number(number: float) -> str:
    return f"{number:.2g}" if math.isfinite(number) else "∞"


def plot(report: Report) -> str:
    """Errors as SVG: a row for each subject, a mark for each oracle, at log10 of error over tolerance."""
    oracles = list(dict.fromkeys(check.oracle for check in report.checks))
    legend, top = _legend(oracles)
    height, width = top + ROW * len(report.subjects) + 30, LEFT + WIDTH + 40
    head = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" font-size="12" fill="currentColor"'
    parts = [f'<svg {head} font-family="system-ui, sans-serif" role="img">']
    parts += ["<title>Error of each gradient over what is allowed for it</title>", *_axis(top, height), *legend]
    for row, subject in enumerate(report.subjects):
        parts += _marks(report.of(subject), subject, top + ROW * row + ROW / 2 + 4, oracles)
    return "\n".join([*parts, "</svg>"])


def _place(decade: float) -> float:
    return LEFT + WIDTH * (min(max(decade, LOW), HIGH) - LOW) / (HIGH - LOW)


def _axis(top: int, height: int) -> Iterator[str]:
    for decade in range(LOW, HIGH + 1, 2):
        x = _place(decade)
        stroke = f'stroke="{LIMIT}" stroke-dasharray="4 3"' if decade == 0 else f'stroke="{GRID}"'
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{height - 24}" {stroke}/>'
        label = "allowed" if decade == 0 else f'10<tspan dy="-5" font-size="9">{decade}</tspan>'
        yield f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle" fill-opacity=".7">{label}</text>'


def _legend(oracles: Sequence[str]) -> tuple[list[str], int]:
    """The marks' meanings, in as many lines as they need, and where the plot begins below them."""
    parts, x, y = [], float(LEFT), 18
    for number, oracle in enumerate(oracles):
        needed = 32 + 7.0 * len(oracle)
        if x + needed > LEFT + WIDTH + 40 and x > LEFT:
            x, y = float(LEFT), y + ROW
        parts.append(f'<circle cx="{x:.0f}" cy="{y}" r="4.5" {_paint(number)}/>')
        parts.append(f'<text x="{x + 9:.0f}" y="{y + 4}">{escape(oracle)}</text>')
        x += needed
    return parts, y + 22


def _paint(number: int) -> str:
    """Colours first; then the same as rings."""
    colour = COLOURS[number % len(COLOURS)]
    ring = number // len(COLOURS) % 2 == 1
    return f'fill="none" stroke="{colour}" stroke-width="2.5"' if ring else f'fill="{colour}"'


def _marks(checks: Sequence[Check], subject: str, y: float, oracles: Sequence[str]) -> Iterator[str]:
    name = subject if len(subject) <= LONGEST else subject[: LONGEST - 1] + "…"
    failed = any(check.status == "failed" for check in checks)
    colour = f' fill="{LIMIT}" font-weight="600"' if failed else ""
    yield f'<text x="{LEFT - 12}" y="{y + 4:.1f}" text-anchor="end"{colour}>{escape(name)}</text>'
    yield f'<line x1="{LEFT}" x2="{LEFT + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}" stroke-opacity=".5"/>'
    for check in checks:
        if check.status in ("passed", "failed"):
            yield _mark(check, y, _paint(oracles.index(check.oracle)))


def _mark(check: Check, y: float, paint: str) -> str:
    """A disc for what passed, a larger square for what failed; both tell their numbers when pointed at."""
    x = _place(math.log10(check.ratio) if 0 < check.ratio < math.inf else (HIGH if check.ratio else LOW))
    told = f"{check.subject}, {check.oracle}: error {_number(check.error)}, {_number(check.ratio)} of what is allowed"
    title = f"<title>{escape(told)}</title>"
    if check.status == "failed":
        return f'<rect x="{x - 6:.1f}" y="{y - 6:.1f}" width="12" height="12" {paint}>{title}</rect>'
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" {paint}>{title}</circle>'
