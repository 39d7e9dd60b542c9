"""What ``inspect --stage memory`` prints."""

from __future__ import annotations

from glowtrain.cli.terminal.console import out
from glowtrain.presentation.tables import table
from glowtrain.profiling.memory import MemoryReport
from glowtrain.profiling.memory import table as texts


def show_memory(report: MemoryReport) -> None:
    """Print the sum, what is alive at the peak, and what is computed again."""
    out.print(str(report.use))
    out.print()
    out.print(texts.peak_line(report))
    out.print(table(texts.COLUMNS, texts.rows(report, report.at(report.peak))))
    out.print()
    for line in texts.again_lines(report.again):
        out.print(line)
    if report.again.contents:
        out.print(table(texts.COLUMNS, texts.rows(report, report.again.contents)))
