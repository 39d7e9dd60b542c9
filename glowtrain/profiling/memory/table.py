"""A memory report in sentences and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.figures import short
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.profiling.memory.contents import KINDS, Content
from glowtrain.profiling.memory.report import ComputedAgain, MemoryReport
from glowtrain.profiling.table import duration
from glowtrain.program.program import Repeat

LARGEST = 10
"""Buffers that are listed at most."""
NAMED = 4
"""Groups of kernels in slices that are named."""
LISTED = 0.001
"""Buffers with a smaller part of all bytes are added up in one row."""

_COLUMNS = ("bytes>", "what", "buffer", "type", "until>", "made by", "layer")


def peak_line(report: MemoryReport) -> str:
    """Where most is alive, how much, and of which kinds."""
    at = report.peak
    if not report.phases:
        return "there is no kernel"
    kinds = ", ".join(f"{kind} {byte_text(report.alive[kind][at])}" for kind in KINDS if report.alive[kind][at])
    return (
        f"the peak: {byte_text(report.sums[at])} are alive at kernel {at} of {len(report.phases)}, "
        f"{report.origins[at].name} ({report.phases[at]}): {kinds or 'nothing'}; the arena is "
        f"{report.plan.overhead:.3f} × that"
    )


def again_lines(again: ComputedAgain) -> Iterator[str]:
    """What was chosen to be computed again, and why; what runs in slices, and what waits in bf16."""
    yield from _rounded_lines(again.rounded)
    yield from _sliced_lines(again.slices)
    if not again.contents:
        yield f"nothing is computed again ({again.reason})"
        return
    yield (
        f"computed again rather than kept: {plural(len(again.contents), 'result')}, {byte_text(again.nbytes)} "
        f"({again.reason})"
    )
    yield (
        f"this takes {duration(again.seconds)} of a step, {again.share:.1%} more, as estimated, without what fewer "
        f"bytes save; with everything kept the peak would be {byte_text(again.peak_without)}"
    )


def _rounded_lines(rounded: Sequence[Content]) -> Iterator[str]:
    """What waits for the backward part in bf16, if anything does."""
    if rounded:
        size = sum(content.nbytes for content in rounded)
        results = plural(len(rounded), "result")
        yield f"rounded to bf16 until the backward pass: {results}, {byte_text(size)} in place of {byte_text(2 * size)}"


def _sliced_lines(slices: Sequence[Repeat]) -> Iterator[str]:
    """What runs in slices, if anything does."""
    if slices:
        names = [f"{short(repeat.name)} in {repeat.index.extent}" for repeat in slices[:NAMED]]
        more = [f"{len(slices) - NAMED:,} more"] if len(slices) > NAMED else []
        groups = plural(len(slices), "group")
        yield f"kernels that run in slices of what lies between them: {groups}, {', '.join([*names, *more])}"


def listed(report: MemoryReport, contents: Sequence[Content]) -> Table:
    """A row for each of the largest of some contents, and one for what is left of them."""
    return Table(_COLUMNS, _rows(report, contents))


def _rows(report: MemoryReport, contents: Sequence[Content]) -> Iterator[tuple[str, ...]]:
    large = largest(contents)
    for content in large:
        maker = report.origins[content.first]
        yield (
            f"{content.nbytes:,}",
            content.kind,
            content.buffer.name,
            str(content.buffer.type),
            str(content.last),
            f"{content.first} {short(maker.name)}",
            short(", ".join(maker.layers)),
        )
    if rest := len(contents) - len(large):
        size = sum(content.nbytes for content in contents) - sum(content.nbytes for content in large)
        yield (f"{size:,}", "", f"{rest:,} smaller", *[""] * 4)


def largest(contents: Sequence[Content], count: int = LARGEST) -> list[Content]:
    """The largest of some contents, those of next to no bytes left out."""
    least = LISTED * sum(content.nbytes for content in contents)
    return sorted((c for c in contents if c.nbytes >= least), key=lambda content: -content.nbytes)[:count]
