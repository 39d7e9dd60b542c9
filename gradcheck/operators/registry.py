"""The checks of the whole registry and of random programs, in one process or in several."""

from __future__ import annotations

import gc
import importlib
import importlib.util
import multiprocessing
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from glowtrain.errors import GlowtrainError, InputError, VerificationError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.operators.coverage import Covered, covered, summary, untested
from glowtrain.gradcheck.operators.edges import drawn_edge, drawn_example
from glowtrain.gradcheck.operators.oracles import (
    EDGES,
    MISTAKES,
    ORACLES,
    SLOPES,
    check_sample,
    described,
    failure,
    operands_with_gradients,
)
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.programs.options import Choice, drawn_choice
from glowtrain.gradcheck.programs.options import described as described_choice
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.programs.rungs import PROGRAM_ORACLES, check_case
from glowtrain.gradcheck.programs.shrink import fails_by, minimal, save_case
from glowtrain.gradcheck.report.report import Check, GradcheckReport, Measure, Progress, merged
from glowtrain.graph import Operator, Sample, lookup, registered
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Cell, Table


@dataclass(frozen=True)
class CheckProfile:
    """How thorough a run is. One example in ``shares`` is compared by an oracle; by those not listed, each is."""

    examples: int
    programs: int
    shares: dict[str, int]


SHARES = {
    "evaluator": 3,
    "planned": 3,
    "compiled": 3,
    "compiled f64": 10,
    "compiled f16": 10,
    "compiled bf16": 10,
    "onnx runtime": 2,
    "edges compiled": 5,
}
"""One example in this many is also compared by these oracles, which compile; the others see every example."""
DEEP_SHARES = {"compiled": 2, "compiled f64": 4, "compiled f16": 4, "compiled bf16": 4, "edges compiled": 3}

PROFILES = {
    "quick": CheckProfile(2, 10, SHARES),
    "ci": CheckProfile(10, 40, SHARES),
    "deep": CheckProfile(200, 2000, DEEP_SHARES),
}
ALONE = {"lowered": 4}
"""The same for random programs by themselves."""
PROGRAMS = "random programs"
TOGETHER, EXAMPLES_TOGETHER = 20, 20
"""Random programs, and examples of an operator, that one process checks before the next tells how far it is."""

Found = list[tuple[str, Measure]]


@dataclass(frozen=True, repr=False)
class RegistryReport(GradcheckReport):
    """The checks of a run over operators, with what it covered by operator."""

    covered: tuple[Covered, ...] = ()
    programs: range = range(0)
    """The numbers of the random programs."""

    def summary(self) -> str:
        """A line on what was found, and one each on what was covered: operators, their attributes, random programs."""
        lines = [super().summary(), *([summary(self.covered)] if self.covered else []), untested(self.covered)]
        if self.programs and not self.covered:
            lines.append(f"{plural(len(self.programs), 'random program')}, from number {self.programs.start} on")
        return "\n".join(filter(None, lines))

    def head(self) -> dict[str, object]:
        """As for any report, and the attributes that stayed at their defaults, by operator."""
        defaults_only = {entry.operator: list(entry.defaults_only) for entry in self.covered if entry.defaults_only}
        return {**super().head(), "defaults_only": defaults_only}

    def table(self, *, all_subjects: bool = False) -> Table:
        """A line for each subject that did not pass everywhere (or for all): its oracles, and its worst errors."""
        rows = [_row(subject, self.of(subject)) for subject in self.shown(all_subjects)]
        return Table(("checked", "compared>", "gradient error>", "of tolerance>", "oracles"), rows)


def _row(subject: str, checks_of: Sequence[Check]) -> tuple[Cell, ...]:
    checks = [check for check in checks_of if check.status != "absent"]
    slopes = [check.error for check in checks if check.oracle in SLOPES]
    ratio = max((check.ratio for check in checks), default=0.0)
    names = [piece for check in checks for piece in ((check.oracle, check.status), (", ", ""))][:-1]
    compared = sum(check.examples for check in checks)
    return subject, str(compared), f"{max(slopes):.1e}" if slopes else "-", f"{ratio:.1g}", names


@dataclass(frozen=True)
class _Run:
    """The settings of a run: what a process needs to know to check one subject."""

    examples: int
    seed: int
    oracles: tuple[str, ...]
    shares: dict[str, int]
    shrink: bool
    keep: str = ""

    def wanted(self, oracles: Sequence[str], example: int) -> list[str]:
        """The oracles that see an example."""
        return [oracle for oracle in oracles if example % self.shares.get(oracle, 1) == 0]


Task = tuple[str, range]
"""A subject, and its examples."""


def check_registry(
    names: Sequence[str] | None = None,
    examples: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    *,
    profile: str = "ci",
    oracles: Sequence[str] = (*ORACLES, *EDGES),
    programs: int | None = None,
    first: int = 0,
    shrink: bool = True,
    jobs: int = 1,
    keep: Path | str | None = None,
) -> RegistryReport:
    """Check operators (all, or by name) on ``examples`` samples each, then random programs.

    ``profile``: one of :data:`PROFILES`; ``examples`` and ``programs`` (how many, from number ``first`` on; none where
    operators are named) override its numbers. Programs alone (``names`` is empty) go on every rung. A failure comes
    with a smaller example (``shrink``; an operator's where hypothesis is installed); failing programs are written to
    the folder ``keep``. With ``jobs`` that many processes share the work. The result depends on names, seed and these
    numbers only. Raises :class:`InputError` for an unknown operator or profile.
    """
    chosen = _chosen(names, profile)
    begin, settings = time.perf_counter(), PROFILES[profile]
    shares = settings.shares if chosen else ALONE
    run = _Run(examples or settings.examples, seed, tuple(oracles), shares, shrink, str(keep or ""))
    count = _programs_wanted(programs, examples, settings, every=names is None)
    tasks = [task for key in chosen for task in _parts(key, range(run.examples), EXAMPLES_TOGETHER)]
    tasks += _parts(PROGRAMS, range(first, first + count), TOGETHER)
    results = _results(run, tasks, progress or (lambda subject, number, total: None), jobs)
    checks: list[Check] = []
    for subject in dict.fromkeys(subject for subject, _ in tasks):
        found = [entry for (key, _), (part, _) in zip(tasks, results, strict=True) if key == subject for entry in part]
        checks += merged(subject, found)
    spent = time.perf_counter() - begin
    covering = _together(c for _, c in results if c is not None)
    return RegistryReport(tuple(checks), seed, run.examples, spent, covering, range(first, first + count))


def _parts(subject: str, examples: range, most: int) -> list[Task]:
    return [(subject, examples[start : start + most]) for start in range(0, len(examples), most)]


def _together(parts: Iterable[Covered]) -> tuple[Covered, ...]:
    """What each operator's parts covered."""
    found: dict[str, Covered] = {}
    for part in parts:
        found[part.operator] = found[part.operator] | part if part.operator in found else part
    return tuple(found.values())


def _chosen(names: Sequence[str] | None, profile: str) -> list[str]:
    unknown = [name for name in names or () if lookup(name) is None]
    if unknown:
        raise InputError(f"there is no operator {', '.join(unknown)}")
    if profile not in PROFILES:
        raise InputError(f"there is no profile {profile!r}; there are: {', '.join(PROFILES)}")
    return [cls.key() for cls in registered(lambda cls: names is None or cls.key() in names)]


OWN = "glowtrain"
"""The package of the operators that come along."""


def verified() -> frozenset[str]:
    """The operators whose gradients each run over the whole registry checks, in whichever process: those that have one
    and come along. Operators of other packages are checked where these are imported."""
    return frozenset(cls.key() for cls in registered(lambda cls: cls.differentiable and _package(cls) == OWN))


def _package(cls: type[Operator]) -> str:
    """The package that an operator is from."""
    return cls.__module__.partition(".")[0]


def _programs_wanted(programs: int | None, examples: int | None, profile: CheckProfile, *, every: bool) -> int:
    """As many as asked for; else the profile's, in proportion to the examples."""
    if programs is not None or not every:
        return programs or 0
    return profile.programs if examples is None else -(-profile.programs * examples // profile.examples)


Result = tuple[Found, Covered | None]


def _results(run: _Run, tasks: Sequence[Task], progress: Progress, jobs: int) -> list[Result]:
    """What each task found, in order."""
    if jobs <= 1:
        results = []
        for number, task in enumerate(tasks, 1):
            results.append(_checked(run, task))
            progress(task[0], number, len(tasks))
        return results
    context = multiprocessing.get_context("spawn")  # a fork would share locks and threads of native code
    others = (_modules_of_others(),)
    with ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=_import_all, initargs=others) as pool:
        futures = {pool.submit(_checked, run, task): task for task in tasks}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                future.result()
                progress(futures[future][0], number, len(tasks))
        except BrokenProcessPool:
            raise VerificationError("a process that checked operators died; run with --jobs 1 to see which") from None
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
        return [future.result() for future in futures]


def _modules_of_others() -> tuple[str, ...]:
    """The modules that registered operators from outside of Glowtrain and that a new process can import too."""
    classes = registered(lambda cls: _package(cls) not in (OWN, "__main__", "__mp_main__"))
    others = sorted({cls.__module__ for cls in classes})
    return tuple(name for name in others if importlib.util.find_spec(name) is not None)


def _import_all(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)


def _checked(run: _Run, task: Task) -> Result:
    subject, examples = task
    if subject == PROGRAMS:
        return list(_programs(run, examples)), None
    operator = lookup(subject)
    if operator is None:
        raise InputError(f"a new process knows no operator {subject}: install its package, or check with one job")
    checked = _Operator(run, operator, Covered(subject))
    with warnings.catch_warnings(), _without_collection():
        warnings.simplefilter("ignore", RuntimeWarning)  # NumPy on means of nothing, sums of infinities
        return list(checked.measures(examples)), checked.covered


@contextmanager
def _without_collection() -> Iterator[None]:
    """Graphs are many small objects that all live: looking for garbage among them takes a twelfth of the time."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


@dataclass
class _Operator:
    """The checks of one operator; ``covered`` grows with them."""

    run: _Run
    operator: type[Operator]
    covered: Covered

    def measures(self, examples: Iterable[int]) -> Iterator[tuple[str, Measure]]:
        for example in examples:
            ordinary = [oracle for oracle in self.run.oracles if oracle in ORACLES]
            edges = [oracle for oracle in self.run.oracles if oracle in EDGES]
            if ordinary:
                yield from self._example(example, self.run.wanted(ordinary, example), "example")
            if edges:
                yield from self._example(example, self.run.wanted(edges, example), "edge")

    def _example(self, example: int, oracles: Sequence[str], kind: str) -> Iterator[tuple[str, Measure]]:
        try:
            sample = (drawn_example if kind == "example" else drawn_edge)(self.operator, self.run.seed, example)
        except MISTAKES as error:
            yield f"{kind} {example}", failure("types", error)
            return
        if sample is None:
            return
        measures = list(check_sample(sample, oracles, self.run.seed))
        self._cover(sample, measures, gradients=kind == "example")
        for measure in measures:
            where = f"{kind} {example}, {described(sample)}"
            if self.run.shrink and measure.status == "failed" and kind == "example":
                yield from _smallest(self.operator, measure, self.run.seed)
                self.run = replace(self.run, shrink=False)
            yield where, measure

    def _cover(self, sample: Sample, measures: Sequence[Measure], *, gradients: bool) -> None:
        narrow = {"compiled": "f32", "edges compiled": "f32", "compiled f16": "f16", "compiled bf16": "bf16"}
        dtypes = [narrow[m.oracle] for m in measures if m.oracle in narrow and m.kind == "compared"]
        self.covered |= covered(sample, operands_with_gradients(sample) if gradients else (), dtypes)


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


def _programs(run: _Run, examples: range) -> Iterator[tuple[str, Measure]]:
    for example in examples:
        oracles = run.wanted(tuple(PROGRAM_ORACLES), example)
        try:
            case = drawn_case(run.seed, example)
        except MISTAKES as error:
            yield f"program {example}", failure("gradient", error)
            continue
        choice = drawn_choice(ChoiceDraw(run.seed, "options", example))
        for measure in check_case(case, oracles, run.seed, choice):
            where = f"program {example}"
            if measure.status == "failed":
                where += _repeatable(run, example, case, choice, measure.oracle)
                run = replace(run, shrink=False)
            yield where, measure


def _repeatable(run: _Run, example: int, case: Case, choice: Choice, oracle: str) -> str:
    """A failing program, as small as it gets, what it is compiled with, and the command that repeats it."""
    if run.shrink:
        case = minimal(case, fails_by(oracle, run.seed, choice))
    told = f", {described_choice(choice)}"
    if run.keep:
        path = Path(run.keep) / f"program-{run.seed}-{example}-{oracle.replace(' ', '-')}.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            told += f"; repeat it with: {save_case(case, path, oracle, run.seed, choice)}"
        except GlowtrainError as error:
            told += f"; it cannot be kept as a file: {error}"
    return f"{told}\n{case}"
