"""What a network has done, in numbers, by the names that users of Triton's metrics know.

Source of the names and of what they mean: Triton Inference Server's documentation of its metrics. Durations are in
microseconds and add up over requests. Pure data: whoever serves it writes it in the form that is asked for.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Upper bounds of the histogram of batches, in rows."""


@dataclass(frozen=True)
class Metric:
    """One number: ``kind`` is ``counter``, ``gauge`` or ``histogram`` (then ``buckets`` has the numbers of what was not
    larger than each bound, ``value`` is the sum, ``count`` their number)."""

    name: str
    kind: str
    says: str
    labels: dict[str, str]
    value: float
    count: int = 0
    buckets: tuple[tuple[float, int], ...] = ()


@dataclass
class Durations:
    """Microseconds that requests and batches took, in all."""

    request: float = 0.0
    queue: float = 0.0
    compute_input: float = 0.0
    compute_infer: float = 0.0
    compute_output: float = 0.0


@dataclass
class Counts:
    """The numbers of one network, which threads add to."""

    success: int = 0
    rows: int = 0
    batches: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    durations: Durations = field(default_factory=Durations)
    sizes: list[int] = field(default_factory=lambda: [0] * (len(BATCH_SIZES) + 1))

    def __post_init__(self) -> None:
        self._lock = Lock()

    def answered(self, seconds: float, waited: float) -> None:
        """A request has its answer: after so many seconds, of which it ``waited`` some in the queue."""
        with self._lock:
            self.success += 1
            self.durations.request += seconds * 1e6
            self.durations.queue += waited * 1e6

    def failed(self, reason: str) -> None:
        """A request has none."""
        with self._lock:
            self.failures[reason] += 1

    def ran(self, rows: int, filling: float, running: float, giving: float) -> None:
        """A batch has run; seconds for putting it together, running it, and giving the answers."""
        with self._lock:
            self.rows += rows
            self.batches += 1
            self.sizes[bisect_left(BATCH_SIZES, rows)] += 1
            self.durations.compute_input += filling * 1e6
            self.durations.compute_infer += running * 1e6
            self.durations.compute_output += giving * 1e6

    def samples(self, labels: dict[str, str], pending: int) -> Iterator[Metric]:
        """The numbers as they are now."""
        with self._lock:
            yield Metric("nv_inference_request_success", "counter", "requests answered", labels, self.success)
            for reason in sorted({*REASONS, *self.failures}):
                told = {**labels, "reason": reason}
                yield Metric("nv_inference_request_failure", "counter", "requests failed", told, self.failures[reason])
            yield Metric("nv_inference_count", "counter", "examples run", labels, self.rows)
            yield Metric("nv_inference_exec_count", "counter", "batches run", labels, self.batches)
            for name, microseconds in vars(self.durations).items():
                says = f"microseconds of {name.replace('_', ' ')}, of all requests"
                yield Metric(f"nv_inference_{name}_duration_us", "counter", says, labels, microseconds)
            yield Metric("nv_inference_pending_request_count", "gauge", "requests that wait", labels, pending)
            counted, buckets = 0, []
            for bound, number in zip(BATCH_SIZES, self.sizes, strict=False):
                counted += number
                buckets.append((float(bound), counted))
            says = "rows of the batches that were run"
            yield Metric("glowtrain_batch_size", "histogram", says, labels, self.rows, self.batches, tuple(buckets))


REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Why requests fail, in Triton's words: the queue was full or the deadline passed; the client went away; the device
failed; whatever else."""
