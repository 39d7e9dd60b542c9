"""``glowtrain gradcheck``: operators, random programs, or a model of your own, against numerical differentiation."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from glowtrain.cli.arguments import gradcheck_options as given
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.feed import examples_in, some_inputs_in
from glowtrain.cli.arguments.files import check_reports, write_texts
from glowtrain.cli.arguments.models import ModelFileOptions, as_graph
from glowtrain.cli.terminal.console import command, note, out
from glowtrain.cli.terminal.progress import counting
from glowtrain.errors import InputError
from glowtrain.gradcheck import PROFILES, GradcheckReport, RegistryReport, check, check_registry, page
from glowtrain.gradcheck.report.html import html_page
from glowtrain.gradcheck.report.junit import junit_xml
from glowtrain.graph import Graph, Template, lookup, registered
from glowtrain.losses import Loss
from glowtrain.losses.choose import losses_in
from glowtrain.presentation.messages import unknown
from glowtrain.trainer.graphs import specs_of
from glowtrain.types import Array

BATCH = 3
"""Examples in a batch when a model of one's own is checked: enough for statistics, few enough to be quick."""
MANY, ENOUGH = 64, 16
"""Examples of a person's own from which on a run says that it need not be so many, and what would do."""
LITTLE = 80
"""Examples of operators up to which starting processes would take longer than they save."""


@command
def gradcheck(
    model: given.Model = None,
    *,
    file: ModelFileOptions,
    op: given.Operators = [],  # noqa: B006  typer's way to say "none given"
    profile: given.Profile = "ci",
    examples: given.Examples = None,
    seed: given.Seed = 0,
    jobs: given.Jobs = None,
    json_path: given.Json = None,
    junit: given.Junit = None,
    html: given.Html = None,
    markdown: given.Markdown = None,
    failures: given.Failures = None,
    programs: given.Programs = None,
    first: given.First = 0,
    input_path: given.Arrays = None,
    loss: options.Loss = [],  # noqa: B006
    output: given.Output = None,
    every: given.Every = False,
) -> None:
    """Check gradients against numerical differentiation, the interpreter, and compiled code.

    Arrays of --input go to the inputs of the same name; x and y to a model's only input and its loss.

    Examples:

    glowtrain gradcheck

    glowtrain gradcheck --op Conv --op Softmax --examples 50

    glowtrain gradcheck --programs 1000 --seed 7 --failures found

    glowtrain gradcheck model.onnx --json report.json --html report.html

    glowtrain gradcheck model.onnx --input batch.npz --loss mse
    """
    file.import_modules()
    check_reports(json_path, junit, markdown, page=html)
    about_model = bool(input_path or loss or output or file.untie or file.open_batch)
    _check_subject(model, op, programs, markdown, about_model=about_model)
    if model is None:
        chosen = (op or None) if programs is None else []
        processes = jobs or _jobs(op, profile, examples)
        report: GradcheckReport = registry(
            chosen, profile, examples, seed, processes, failures, programs=programs, first=first
        )
    else:
        network = file.open(model)
        report = of_model(network, seed, input_path, loss, output)
    texts: list[tuple[Path | None, Callable[[], str]]] = [
        (json_path, lambda: f"{report.to_json()}\n"),
        (junit, partial(junit_xml, report)),
        (html, partial(html_page, report)),
    ]
    if isinstance(report, RegistryReport):
        again = _again(file.modules, op, profile, examples, seed, programs, first, markdown)
        texts.append((markdown, partial(page, report, again)))
    written = [*write_texts(*texts)]
    show(report, every=every or bool(op) or model is not None)
    for path in written:
        out.print(f"wrote {path}")
    report.raise_if_failed()


def _check_subject(
    model: str | None, op: list[str], programs: int | None, markdown: Path | None, *, about_model: bool
) -> None:
    """Raise :class:`InputError` for more than one subject, and for options (``about_model``) of a model without one."""
    if programs is not None and (model is not None or op):
        raise InputError(f"give --programs or {'a MODEL' if model is not None else '--op'}, not both")
    if model is not None and (op or markdown):
        raise InputError(f"give a MODEL or {'--op' if op else '--markdown'}, not both")
    if model is None and about_model:
        raise InputError("--input, --loss, --output, --untie and --open-batch are for a MODEL of your own; give one")


def of_model(
    network: Graph | Template, seed: int, input_path: Path | None, loss: list[str], output: str | None
) -> GradcheckReport:
    """Check a person's own model. Inputs give the extents that are open; without them those are :data:`BATCH`."""
    named = losses_in(loss, output) if loss else None
    chosen = None if loss else output
    if input_path is None:
        return _checked(as_graph(network, BATCH), None, named, chosen, seed)
    arrays = some_inputs_in(examples_in(input_path, specs_of(network)), network, named)
    _advise(network, arrays)
    return _checked(network, arrays, named, chosen, seed)


def _checked(
    model: Graph | Template, arrays: Mapping[str, Array] | None, loss: Loss | None, output: str | None, seed: int
) -> GradcheckReport:
    """Check a model, telling how far it is."""
    with counting("checking") as progress:
        return check(model, arrays, loss, output=output, seed=seed, progress=progress)


def _advise(model: Graph | Template, arrays: Mapping[str, Array]) -> None:
    """Say that fewer examples would do, where there are many and the model takes any number."""
    most = max((len(array) for array in arrays.values() if array.ndim), default=0)
    if isinstance(model, Template) and most > MANY:
        note(f"{most:,} examples: the time grows with their number, and {ENOUGH} of them show wrong gradients as well")


def _jobs(names: list[str], profile: str, examples: int | None) -> int:
    """All cores, unless there is little to do."""
    each = examples or (PROFILES[profile].examples if profile in PROFILES else 0)
    return 1 if 0 < len(names) * each < LITTLE else os.cpu_count() or 1


def _again(
    modules: Sequence[str],
    names: list[str],
    profile: str,
    examples: int | None,
    seed: int,
    programs: int | None,
    first: int,
    markdown: Path | None,
) -> str:
    """The command that gives the same report."""
    words = ["glowtrain gradcheck", *(f"--import {module}" for module in modules), *(f"--op {name}" for name in names)]
    words += ["" if profile == "ci" else f"--profile {profile}"]
    words += [f"--examples {examples}" if examples else "", f"--seed {seed}" if seed else ""]
    words += [f"--programs {programs}" if programs else "", f"--first {first}" if first else ""]
    words += [f"--markdown {shlex.quote(str(markdown))}" if markdown else ""]
    return " ".join(filter(None, words))


def registry(
    names: list[str] | None, profile: str, examples: int | None, seed: int, jobs: int, failures: Path | None,
    *, programs: int | None = None, first: int = 0,
) -> RegistryReport:  # fmt: skip
    """Check operators by name, or all of them and random programs, or programs alone, telling how far it is."""
    strange = [name for name in names or () if lookup(name) is None]
    if strange:
        raise InputError(f"there is {_unknown(strange)}; glowtrain operators lists them")
    with counting("checking") as progress:
        return check_registry(
            names, examples, seed, progress,
            profile=profile, jobs=jobs, keep=failures, programs=programs, first=first,
        )  # fmt: skip


def _unknown(names: list[str]) -> str:
    """Operators that are not registered, with what may be meant: a key without its domain, or a nearest one."""
    keys = [cls.key() for cls in registered()]
    meant = {name: [key for key in keys if key.rpartition(".")[2] == name] for name in names}
    told = [f"no operator {name!r} (with its domain it is {near[0]!r})" for name, near in meant.items() if near]
    rest = unknown([name for name, near in meant.items() if not near], keys, "operator", "there are")
    return ", ".join(filter(None, [*told, rest]))


def show(report: GradcheckReport, *, every: bool) -> None:
    """Print a report and its table; only what did not pass everywhere, unless ``every``. Then where kinks lie."""
    out.print(report.summary())
    shown = report.table(all_subjects=every)
    if shown.rows:
        out.print(shown)
    for entry in report.checks:
        if entry.status in ("kink", "absent") and entry.detail:
            out.print(f"{entry.subject}: {entry.detail}")
