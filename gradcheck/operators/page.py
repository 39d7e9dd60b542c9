"""What a run over operators found, as a page of documentation."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from glowtrain.gradcheck.operators.coverage import Covered, summary
from glowtrain.gradcheck.operators.edges import FINITE
from glowtrain.gradcheck.operators.oracles import SLOPES
from glowtrain.gradcheck.operators.registry import RegistryReport
from glowtrain.gradcheck.report.report import Check
from glowtrain.graph import class_of, registered
from glowtrain.onnx_io.runtimes import DIFFERENT, IN_PART
from glowtrain.onnx_io.schema.operands import operand_names
from glowtrain.presentation.messages import plural

FORMS = ("evaluator", "planned", "compiled", "compiled f64", "compiled f16", "compiled bf16", "edges", "edges compiled")
"""Oracles whose errors depend on the element type: shown is whether they passed."""

ABOUT = """\
- **jacobian**: every column of the Jacobian (of large operands some, and random directions), and **directions**: all
  operands moved at once, against central differences in f64, extrapolated once (tolerance 1e-7 + 1e-6 of the slope).
  The first also for one result while nothing reads the others, and for one operand beside constants.
- **complex step**: against Im f(x + ih) / h, where the reference is analytic: no rounding to speak of (1e-10).
- **forward**: <c, J d> by `gt.jvp` against <J^T c, d> by the gradient rule (1e-10).
- **second order**: the gradient's own gradient rule, for operands and cotangents, against differences of the gradient,
  and forward mode through the gradient against it.
- **decomposition**: the rule against the gradient of what the operator decomposes into (1e-10).
- **forms**: results and gradients of the lowering, of the planned program and of native code (f32, f64; results in f16,
  bf16) against the reference in f64; f32 may be off by what its rounding explains, which grows with the square root of
  the longest sum. Results also at the edges of the domain: axes without elements, rank 5, zeros, large, denormal and
  non-finite values.
- **ONNX Runtime**: results and gradients of the saved graph in f32 (not of operators of its own domain; a dash also
  stands where it lacks an operator, or differs: see below).
- **worst error**: the largest absolute error of the first six, all in f64, over all examples (differences themselves
  have errors of about 1e-9).
- A dash: the oracle does not apply (no decomposition; not analytic)."""


def page(report: RegistryReport, command: str) -> str:
    """The report as Markdown; ``command`` makes it again."""
    found = {entry.operator: entry for entry in report.covered}
    smooth = [key for key, entry in found.items() if class_of(key).differentiable]
    lines = [
        "# Gradients",
        "",
        f"Written by `{command}`, which checks {_subjects(found)} on drawn examples:",
        "",
        f"> {_covered(report)}",
        "",
        *_differentiable(report, found, smooth),
        "The oracles do not depend on one another:",
        "",
        ABOUT,
        "",
        f"| operator | operands with gradients | {' | '.join(SLOPES)} | forms | ONNX Runtime | worst error |",
        f"|---|---|{'---|' * len(SLOPES)}---|---|---|",
        *(_row(found[key], report.of(key)) for key in smooth),
        *_without(key for key in found if not class_of(key).differentiable),
        *_defaults(entry for entry in found.values() if entry.defaults_only),
        *_finite(found),
        *_different(found),
    ]
    return "\n".join(lines) + "\n"


def _subjects(found: Collection[str]) -> str:
    """What was checked, by the keys of operators."""
    everything = all(cls.key() in found for cls in registered())
    return "every operator" if everything else plural(len(found), "operator")


def _differentiable(report: RegistryReport, found: Mapping[str, Covered], smooth: Sequence[str]) -> Iterator[str]:
    """How many operators are, and of which of them the run shows less."""
    yield f"{plural(len(smooth), 'differentiable operator')}, checked in forward mode and in second order as well."
    unseen = [key for key in smooth if not found[key].gradients]
    first = [key for key in smooth if key not in unseen and not _passed(report.of(key), "second order")]
    for keys, why in ((unseen, "no example of it has a gradient"), (first, "it was not checked in second order")):
        yield from (f"Except `{key}`: {why}." for key in keys)


def _covered(report: RegistryReport) -> str:
    oracles = plural(len({check.oracle for check in report.checks}), "oracle")
    compared = plural(sum(check.examples for check in report.checks), "comparison")
    failed = len(report.failures)
    return f"{summary(report.covered)}; {oracles}, {compared}, {failed} failed (seed {report.seed})"


def _row(entry: Covered, checks: Iterable[Check]) -> str:
    by = {check.oracle: check for check in checks}
    marks = [_mark([by[oracle]] if oracle in by else []) for oracle in SLOPES]
    forms = _mark([by[oracle] for oracle in FORMS if oracle in by])
    elsewhere = _mark([by["onnx runtime"]] if "onnx runtime" in by else [])
    worst = max((by[oracle].error for oracle in SLOPES if oracle in by), default=0.0)
    operands = ", ".join(operand_names(class_of(entry.operator), sorted(entry.gradients))) or "–"
    return f"| {entry.operator} | {operands} | {' | '.join(marks)} | {forms} | {elsewhere} | {rounded(worst)} |"


def _mark(checks: Iterable[Check]) -> str:
    statuses = {check.status for check in checks} - {"absent"}
    if not statuses:
        return "–"
    return "FAILED" if "failed" in statuses else "yes" if "passed" in statuses else "kink"


def _passed(checks: Iterable[Check], oracle: str) -> bool:
    return any(check.oracle == oracle and check.status == "passed" for check in checks)


def rounded(error: float) -> str:
    """A power of ten that the error stays below: the digits differ between machines."""
    if not math.isfinite(error):
        return "∞"
    return "0" if error == 0 else f"< 1e{math.floor(math.log10(error)) + 1:+03d}"


def _without(keys: Iterable[str]) -> Iterator[str]:
    keys = list(keys)
    if not keys:
        return
    yield from ("", "## Operators without gradients", "", "| operator | why |", "|---|---|")
    yield from (f"| {key} | {class_of(key).reason} |" for key in keys)


def _defaults(entries: Iterable[Covered]) -> Iterator[str]:
    told = [f"- `{entry.operator}`: {', '.join(entry.defaults_only)}" for entry in entries]
    if told:
        yield from ("", "## Attributes at their defaults only", "", *told)


def _finite(found: Collection[str]) -> Iterator[str]:
    yield from ("", "## Infinities and NaN", "")
    reasons = dict.fromkeys(why for key, why in FINITE.items() if key in found)
    yield f"Every operator treats them as NumPy does, in all forms{', except:' if reasons else '.'}"
    yield from [""] if reasons else []
    for reason in reasons:
        keys = sorted(key for key, why in FINITE.items() if why == reason and key in found)
        yield f"- `{'`, `'.join(keys)}`: {reason}."


def _different(found: Collection[str]) -> Iterator[str]:
    reasons = {**DIFFERENT, **{key: reason for key, (reason, _) in IN_PART.items()}}
    reasons = {key: reason for key, reason in reasons.items() if key in found}
    if not reasons:
        return
    yield from ("", "## Where ONNX Runtime gives other results", "")
    yield from (f"- `{key}`: {reason}." for key, reason in sorted(reasons.items()))
