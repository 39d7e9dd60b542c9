"""The host's numbers as text for Prometheus, by the names that users of Triton know.

Source: Prometheus, Exposition formats, text-based format 0.0.4. Its Python client ends the name of every counter in
``_total``, as Triton's names do not.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from glowtrain.runtime.observation.metrics import Metric

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
FAILURES, OTHER, REJECTED = "nv_inference_request_failure", "OTHER", "REJECTED"


class Refusals:
    """How many requests for a model were refused before the host saw them: it does not count those."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str, str]] = Counter()

    def add(self, model: str, version: str, reason: str) -> None:
        """Count one."""
        with self._lock:
            self._counts[model, version, reason] += 1

    def added(self, samples: Iterable[Metric]) -> Iterator[Metric]:
        """The samples, with these among the failures."""
        for sample in samples:
            labels = sample.labels
            failures = sample.name == FAILURES
            more = self._counts[labels["model"], labels["version"], labels["reason"]] if failures else 0
            yield replace(sample, value=sample.value + more)


def exposition(samples: Iterable[Metric]) -> str:
    """Samples as text, each name once with its help and type."""
    ordered = sorted(samples, key=lambda sample: sample.name)
    families = groupby(ordered, lambda sample: sample.name)
    return "".join(line for name, group in families for line in _family(name, group))


def _family(name: str, samples: Iterator[Metric]) -> Iterator[str]:
    first = next(samples)
    yield f"# HELP {name} {_escaped(first.says)}\n# TYPE {name} {first.kind}\n"
    for sample in (first, *samples):
        yield from _histogram(sample) if sample.kind == "histogram" else [_line(name, sample.labels, sample.value)]


def _histogram(sample: Metric) -> Iterator[str]:
    for bound, count in (*sample.buckets, (float("inf"), sample.count)):
        text = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield _line(f"{sample.name}_bucket", {**sample.labels, "le": text}, count)
    yield _line(f"{sample.name}_sum", sample.labels, sample.value)
    yield _line(f"{sample.name}_count", sample.labels, sample.count)


def _line(name: str, labels: dict[str, str], value: float) -> str:
    told = ",".join(f'{label}="{_escaped(text, quotes=True)}"' for label, text in labels.items())
    return f"{name}{{{told}}} {value:.17g}\n"


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", r"\\").replace("\n", r"\n")
    return text.replace('"', r"\"") if quotes else text
