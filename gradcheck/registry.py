"""The checks of the whole registry and of random programs."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from glowtrain.errors import InputError
from glowtrain.gradcheck.operators import MISTAKES, ORACLES, check_sample, described, drawn, failure
from glowtrain.gradcheck.programs import PROGRAM_ORACLES, check_case, drawn_case
from glowtrain.gradcheck.report import Check, Measure, Report, merged
from glowtrain.graph import OPERATORS, Operator, Sample, registered

Progress = Callable[[str, int, int], None]
"""Called with the subject, its number and the number of subjects."""

SHARES = {"evaluator": 3, "planned": 3, "compiled": 3, "compiled f64": 10, "compiled f16": 10, "compiled bf16": 10}
"""One example in this many is also compared by these oracles, which compile; the others see every example."""
PROGRAMS = "random programs"


def check_registry(
    names: Sequence[str] | None = None,
    examples: int = 10,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    oracles: Sequence[str] = tuple(ORACLES),
    programs: int | None = None,
    shrink: bool = True,
) -> Report:
    """Check operators (all, or by name) on ``examples`` samples each, then random programs.

    ``programs``: how many; four for each example where all operators are checked, none otherwise. Where hypothesis is
    installed a failure comes with a smaller example (``shrink``). The result depends on names, examples and seed only.
    Raises :class:`InputError` for an unknown operator.
    """
    unknown = [name for name in names or () if name not in OPERATORS]
    if unknown:
        raise InputError(f"there is no operator {', '.join(unknown)}")
    begin, chosen = time.perf_counter(), list(registered(lambda cls: names is None or cls.key() in names))
    count = 4 * examples * (names is None) if programs is None else programs
    total = len(chosen) + bool(count)
    checks: list[Check] = []
    for number, operator in enumerate(chosen, 1):
        if progress is not None:
            progress(operator.key(), number, total)
        checks += merged(operator.key(), list(_operator(operator, examples, seed, oracles, shrink=shrink)))
    if count:
        if progress is not None:
            progress(PROGRAMS, total, total)
        checks += merged(PROGRAMS, list(_programs(count, seed)))
    return Report(tuple(checks), seed, examples, time.perf_counter() - begin)


def _operator(
    operator: type[Operator], examples: int, seed: int, oracles: Sequence[str], *, shrink: bool
) -> Iterator[tuple[str, Measure]]:
    for example in range(examples):
        wanted = [oracle for oracle in oracles if example % SHARES.get(oracle, 1) == 0]
        try:
            sample = drawn(operator, seed, example)
        except MISTAKES as error:
            yield f"example {example}", failure("types", error)
            continue
        for measure in check_sample(sample, wanted, seed):
            where = f"example {example}, {described(sample)}"
            if shrink and measure.status == "failed":
                yield from _smallest(operator, measure, seed)
                shrink = False
            yield where, measure


def _smallest(operator: type[Operator], measure: Measure, seed: int) -> Iterator[tuple[str, Measure]]:
    """The same failure on the smallest sample that hypothesis finds, if it is installed and finds one."""
    if importlib.util.find_spec("hypothesis") is None:
        return
    strategies: Any = importlib.import_module("glowtrain.gradcheck.strategies")

    def failed(sample: Sample) -> list[Measure]:
        return [m for m in check_sample(sample, [measure.oracle], seed) if m.status == "failed"]

    sample = strategies.smallest(strategies.samples(operator), lambda drawn: bool(failed(drawn)))
    if sample is not None:
        yield f"smallest: {described(sample)}", failed(sample)[0]


def _programs(count: int, seed: int) -> Iterator[tuple[str, Measure]]:
    for example in range(count):
        oracles = [oracle for oracle in PROGRAM_ORACLES if example % SHARES.get(oracle, 1) == 0]
        try:
            case = drawn_case(seed, example)
        except MISTAKES as error:
            yield f"program {example}", failure("gradient", error)
            continue
        for measure in check_case(case, oracles, seed):
            yield f"program {example}" + (f"\n{case}" if measure.status == "failed" else ""), measure
