"""ONNX's own backend tests against a backend of Glowtrain, through ONNX's own test runner.

Source of the tests and of their tolerances: the ``onnx`` package (``onnx.backend.test``). A test that is skipped counts
as failed.
"""

from __future__ import annotations

import functools
import time
import unittest
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing import get_context
from typing import TypeVar

import onnx
from onnx.backend.test import BackendTest

from glowtrain.onnx_io.backend import GlowtrainBackend

Test = TypeVar("Test")
Result = TypeVar("Result")

_CHUNK = 40
"""Tests that one process takes at a time."""
_KINDS = {
    "NodeModel": "node",
    "SimpleModel": "simple",
    "PyTorchConvertedModel": "pytorch-converted",
    "PyTorchOperatorModel": "pytorch-operator",
    "RealModel": "light models",
}


@dataclass(frozen=True)
class ConformanceCase:
    """One test of the ``onnx`` package: its kind and name."""

    kind: str
    name: str


@dataclass(frozen=True)
class ConformanceOutcome:
    """What became of a test: why it failed, if it did, and the seconds it took with compiling."""

    test: ConformanceCase
    failure: str | None
    seconds: float

    @property
    def passed(self) -> bool:
        return self.failure is None


@functools.cache
def _cases(backend: str) -> dict[ConformanceCase, unittest.TestCase]:
    """Every test by kind and name, bound to a backend by its name: one of
    :func:`~glowtrain.backends.discovery.backend_names`."""
    adapter = type("Adapter", (GlowtrainBackend,), {"engine": backend, "cached": False})
    found: dict[ConformanceCase, unittest.TestCase] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the onnx package overflows on purpose where it makes its tests
        cases = BackendTest(adapter, __name__).test_cases
    for title, case in cases.items():
        kind = _KINDS[title.removeprefix("OnnxBackend").removesuffix("Test")]
        for method in unittest.defaultTestLoader.getTestCaseNames(case):
            if method.endswith("_cpu"):
                found[ConformanceCase(kind, method.removesuffix("_cpu"))] = case(method)
    return found


def matching(pattern: str = "", backend: str = "cpu") -> list[ConformanceCase]:
    """The tests whose name contains ``pattern``."""
    return [test for test in _cases(backend) if pattern in test.name]


def run(test: ConformanceCase, backend: str) -> ConformanceOutcome:
    """Run one test in this process."""
    result, started = unittest.TestResult(), time.perf_counter()
    _cases(backend)[test].run(result)
    seconds = time.perf_counter() - started
    problems = [text for _, text in (*result.errors, *result.failures, *result.skipped)]
    return ConformanceOutcome(test, _reason(problems[0]) if problems else None, seconds)


def _reason(trace: str) -> str:
    """The message at the end of a traceback, in one line."""
    lines = [line.strip() for line in trace.strip().splitlines()]
    starts = [
        position for position, line in enumerate(lines) if line.startswith(("glowtrain.errors.", "AssertionError"))
    ]
    text = " ".join(line for line in lines[starts[-1] :] if line) if starts else lines[-1]
    return text.removeprefix("glowtrain.errors.")[:300]


def run_all(chosen: Sequence[ConformanceCase], backend: str = "cpu", jobs: int = 1) -> Iterator[ConformanceOutcome]:
    """Run tests in ``jobs`` processes. A test that ends its process is reported as a crash, and the rest go on."""
    work = functools.partial(run, backend=backend)
    return in_processes(work, chosen, jobs, lambda test: ConformanceOutcome(test, "the process crashed", 0.0))


def in_processes(
    work: Callable[[Test], Result], chosen: Sequence[Test], jobs: int, crashed: Callable[[Test], Result]
) -> Iterator[Result]:
    """What ``work`` gives for each test, in order, by ``jobs`` processes; ``crashed``: if it ends its process."""
    chunks = [list(chosen[start : start + _CHUNK]) for start in range(0, len(chosen), _CHUNK)]
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(_run_chunk, work, chunk) for chunk in chunks]
        for future, chunk in zip(futures, chunks, strict=True):
            try:
                yield from future.result()
            except BrokenProcessPool:
                yield from (_run_alone(work, test, crashed) for test in chunk)


def _run_chunk(work: Callable[[Test], Result], chunk: list[Test]) -> list[Result]:
    return [work(test) for test in chunk]


def _run_alone(work: Callable[[Test], Result], test: Test, crashed: Callable[[Test], Result]) -> Result:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(work, test).result()
        except BrokenProcessPool:
            return crashed(test)


def report(outcomes: Iterable[ConformanceOutcome], backend: str, command: str) -> str:
    """The results as Markdown: how many of each kind passed, and why the others did not; ``command`` makes it again."""
    found = sorted(outcomes, key=lambda outcome: (outcome.test.kind, outcome.test.name))
    totals, passed = Counter(o.test.kind for o in found), Counter(o.test.kind for o in found if o.passed)
    rows = [f"| {kind} | {passed[kind]} | {totals[kind]} |" for kind in dict.fromkeys(_KINDS.values()) if totals[kind]]
    reasons: dict[str, list[str]] = defaultdict(list)
    for outcome in found:
        if outcome.failure is not None:
            reasons[outcome.failure].append(outcome.test.name)
    failures = [f"- `{'`, `'.join(names)}`: {reason}" for reason, names in sorted(reasons.items())]
    return "\n".join(
        [
            "# Conformance with ONNX",
            "",
            f"The backend tests of the `onnx` package {onnx.__version__}, run by its own test runner at its own",
            f"tolerances on the `{backend}` backend. Skipped tests count as failed. Models whose weights the suite",
            "would download (`real`) are left out; those in the package (`light`) have the same graphs. Written by",
            "",
            f"    {command}",
            "",
            "| kind | passed | of |",
            "|---|---|---|",
            *rows,
            "",
            "## What does not pass, and why",
            "",
            *(failures or ["Everything passes."]),
            "",
        ]
    )
