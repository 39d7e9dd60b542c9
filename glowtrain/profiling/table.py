"""A profile as tables, for terminals and pages alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.presentation.tables import Table
from glowtrain.profiling.report import KernelRow, ProfileReport

LISTED = 0.002
"""Kernels with a smaller share of the time are added up in one row."""
THREADS_LISTED = 4
"""Threads whose shares are listed one by one."""

_COLUMNS = ("#>", "share>", "time>", "calls>", "Gop/s>", "GB/s>", "roof>", "bound by", "busy", "layer", "kernel")


def large(report: ProfileReport) -> list[KernelRow]:
    """The kernels that have a row of their own, slowest first."""
    return [row for row in report.slowest if row.seconds >= LISTED * report.seconds]


def kernels(report: ProfileReport) -> Table:
    """A row for each kernel, slowest first; those of small shares in one."""
    return Table(_COLUMNS, _rows(report))


def _rows(report: ProfileReport) -> Iterator[tuple[str, ...]]:
    total, listed = report.seconds or 1.0, large(report)
    for number, row in enumerate(listed, 1):
        yield (str(number), *_cells(row, total), row.name.replace("+", " + "))
    small = report.slowest[len(listed) :]
    if small:
        spent, calls = sum(row.seconds for row in small), sum(row.calls for row in small)
        yield ("", f"{spent / total:.1%}", duration(spent), str(calls), *[""] * 6, f"{len(small)} other kernels")
    between = total - sum(row.seconds for row in report.rows)
    yield ("", f"{between / total:.1%}", duration(between), *[""] * 7, "between kernels")


def _cells(row: KernelRow, total: float) -> tuple[str, ...]:
    operations = f"{row.operations / row.seconds / 1e9:,.1f}" if row.operations else ""
    return (
        f"{row.seconds / total:.1%}",
        duration(row.seconds),
        str(row.calls),
        operations,
        f"{row.bytes / row.seconds / 1e9:,.1f}",
        f"{row.reached:.0%}",
        row.bound,
        busy(row.busy),
        ", ".join(row.origin.layers),
    )


def layers(report: ProfileReport) -> Table:
    """Layers, with their shares and times."""
    total, found = report.seconds or 1.0, report.layers()
    rows = ((f"{seconds / total:.1%}", duration(seconds), layer) for layer, seconds in found.items())
    return Table(("share>", "time>", "layer"), rows)


def busy(shares: Sequence[float]) -> str:
    """``98 71 %``: each thread's share; of many the least and the greatest."""
    if len(shares) <= THREADS_LISTED:
        return " ".join(f"{100 * share:.0f}" for share in shares) + " %"
    return f"{100 * min(shares):.0f} to {100 * max(shares):.0f} %"


def duration(seconds: float) -> str:
    """``3.1 ms``, ``85 µs``, ``0.4 µs``"""
    return f"{seconds * 1e3:.1f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.{0 if seconds >= 1e-5 else 1}f} µs"
