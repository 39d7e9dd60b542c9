"""A profiled run as a trace for Perfetto (ui.perfetto.dev) or chrome://tracing: a lane for each thread.

Source of the format: Trace Event Format (Google, 2016), its JSON object form: complete events (``"ph": "X"``) with
``ts`` and ``dur`` in microseconds, and metadata events (``"ph": "M"``) that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from glowtrain.backends.base import WHOLE_CALL
from glowtrain.profiling.report import KernelRow, ProfileReport

PROCESS = 1
Event = dict[str, Any]


def trace_text(report: ProfileReport) -> str:
    """The trace as JSON. The first thread has an event for each call, around its own ranges of tasks if the call was
    shared out; the others have their ranges."""
    about = {"model": report.title, "backend": report.backend, "summary": report.summary()}
    events = [*_names(report), *_events(report)]
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ns", "otherData": about}) + "\n"


def _names(report: ProfileReport) -> Iterator[Event]:
    yield _named("process_name", 0, report.title)
    for thread in range(report.threads):
        yield _named("thread_name", thread, f"thread {thread}")


def _named(what: str, thread: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": PROCESS, "tid": thread, "args": {"name": name}}


def _events(report: ProfileReport) -> Iterator[Event]:
    run, tick = report.timing.run, report.timing.tick
    start = int(run.whole["begin"])
    for span in run.spans.tolist():
        thread, call, begin, end, first, behind = span
        first_ns, last_ns = (round((moment - start) * tick * 1e9) for moment in (begin, end))
        at = {"pid": PROCESS, "tid": max(thread, 0), "ts": first_ns / 1e3, "dur": (last_ns - first_ns) / 1e3}
        if call == len(report.rows):
            yield {"ph": "X", "name": "step", "cat": "step", **at, "args": {}}
            continue
        row = report.rows[call]
        if thread == WHOLE_CALL:
            yield {"ph": "X", "name": row.name, "cat": "kernel", **at, "args": _about(row)}
        else:
            args = {"tasks": f"{first} to {behind - 1}", "layer": row.layer}
            yield {"ph": "X", "name": f"{row.name} [{first}:{behind}]", "cat": "tasks", **at, "args": args}


def _about(row: KernelRow) -> Event:
    return {
        "layer": ", ".join(row.origin.layers),
        "nodes": ", ".join(row.origin.nodes),
        "operations": row.work.total,
        "bytes": row.work.bytes,
        "bound by": row.bound,
    }
