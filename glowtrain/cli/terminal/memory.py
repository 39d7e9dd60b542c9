"""What ``inspect --stage memory`` prints."""

from __future__ import annotations

from glowtrain.cli.terminal.console import out
from glowtrain.profiling.memory import MemoryReport, table


def show_memory(report: MemoryReport) -> None:
    """Print the sum, what is alive at the peak, and what is computed again."""
    out.print(str(report.use))
    out.print()
    out.print(table.peak_line(report))
    out.print(table.listed(report, report.at(report.peak)))
    out.print()
    for line in table.again_lines(report.again):
        out.print(line)
    if report.again.contents:
        out.print(table.listed(report, report.again.contents))
