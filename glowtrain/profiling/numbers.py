"""A profile as JSON, for programs."""

from __future__ import annotations

import json
from typing import Any

from glowtrain.profiling.report import KernelRow, ProfileReport


def json_text(report: ProfileReport) -> str:
    """Seconds, operations and bytes of the step, its kernels in the order of the program, layers, and the machine."""
    timing, limits = report.timing, report.limits
    found = {
        "model": report.title,
        "backend": report.backend,
        "threads": report.threads,
        "seconds": report.seconds,
        "seconds_without_counters": list(timing.plain),
        "seconds_with_counters": list(timing.counted),
        "overhead": timing.overhead,
        "busy": list(report.busy),
        "reached": report.reached,
        "machine": {
            "operations_per_second": dict(limits.rates),
            "memory": [{"name": m.name, "bytes": m.size, "bytes_per_second": m.rate} for m in limits.levels],
        },
        "layers": report.layers(),
        "kernels": [_kernel(row) for row in report.rows],
    }
    return json.dumps(found, indent=1) + "\n"


def _kernel(row: KernelRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "layers": list(row.origin.layers),
        "nodes": list(row.origin.nodes),
        "calls": row.calls,
        "seconds": row.seconds,
        "operations_per_call": dict(row.work.operations),
        "costly_functions_per_call": row.work.functions,
        "bytes_read_per_call": row.work.read,
        "bytes_written_per_call": row.work.written,
        "roof_seconds_per_call": row.roof,
        "bound": row.bound,
        "reached": row.reached,
        "busy": list(row.busy),
    }
