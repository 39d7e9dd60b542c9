"""``glowtrain gradcheck``: operators, random programs, or a model of your own, against numerical differentiation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from glowtrain import losses
from glowtrain.cli import options
from glowtrain.cli.console import command, err, out
from glowtrain.cli.files import check_writable
from glowtrain.cli.models import input_specs, open_graph, open_model, parse_dims
from glowtrain.cli.training import Feed, fitted, loss_of
from glowtrain.data import read_npz
from glowtrain.errors import InputError
from glowtrain.figures import check_drawing
from glowtrain.gradcheck import PROFILES, RegistryReport, Report, check, check_registry, page
from glowtrain.gradcheck.html import write_html
from glowtrain.gradcheck.junit import write_junit
from glowtrain.graph import OPERATORS, lookup
from glowtrain.trainer.files import write_atomically

BATCH = 3
"""Examples in a batch when a model of one's own is checked: enough for statistics, few enough to be quick."""


@command
def gradcheck(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Check this model instead of the operators.")
    ] = None,
    op: Annotated[
        list[str], typer.Option("--op", metavar="NAME", help="Only this operator (repeatable), e.g. Conv.")
    ] = [],  # noqa: B006  typer's way to say "none given"
    profile: Annotated[str, typer.Option(help=f"How thoroughly: {', '.join(PROFILES)}.")] = "ci",
    examples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Drawn cases for each operator; the profile's otherwise.")
    ] = None,
    seed: options.Seed = 0,
    jobs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes that share the work; as many as cores otherwise.")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="F", help="Write the report as JSON.")] = None,
    junit: Annotated[
        Path | None, typer.Option("--junit", metavar="F", help="Write the report as JUnit XML, for build servers.")
    ] = None,
    html: Annotated[
        Path | None,
        typer.Option(
            "--html", metavar="F", help="Write the report as a page with a plot of the errors (needs glowtrain[plot])."
        ),
    ] = None,
    markdown: Annotated[
        Path | None, typer.Option("--markdown", metavar="F", help="Write what was found by operator as a page.")
    ] = None,
    failures: Annotated[
        Path | None,
        typer.Option("--failures", metavar="DIR", help="Keep failing random programs here, made small, as ONNX files."),
    ] = None,
    programs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Only random programs, so many, on every rung of the walk.")
    ] = None,
    first: Annotated[
        int, typer.Option(min=0, metavar="K", help="The number of the first random program: to go on with a run.")
    ] = 0,
    dims: options.Dims = [],  # noqa: B006
    input_path: Annotated[
        Path | None,
        typer.Option("--input", metavar="IN.npz", help="Check the MODEL on these arrays, by name; on drawn ones else."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(metavar="L", help=f"The MODEL's loss: {', '.join(losses.NAMED)}, or one of its scalar outputs."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(metavar="NAME", help="The output of the MODEL that is compared (all floats else).")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List what passed, too.")] = False,
) -> None:
    """Check gradients against numerical differentiation, the interpreter, and compiled code.

    Examples:

    glowtrain gradcheck

    glowtrain gradcheck --op Conv --op Softmax --examples 50

    glowtrain gradcheck --programs 1000 --seed 7 --failures found

    glowtrain gradcheck model.onnx --json report.json --html report.html

    glowtrain gradcheck model.onnx --input batch.npz --loss mse
    """
    check_writable(json_path, junit, html, markdown)
    if html is not None:
        check_drawing()
    if programs is not None and (model is not None or op):
        raise InputError(f"give --programs or {'a MODEL' if model is not None else '--op'}, not both")
    if model is not None and (op or markdown):
        raise InputError(f"give a MODEL or {'--op' if op else '--markdown'}, not both")
    if model is None and (input_path or loss or output):
        raise InputError("--input, --loss and --output are for a MODEL of your own; give one")
    if model is None:
        chosen = (op or None) if programs is None else []
        report: Report = registry(
            chosen, profile, examples, seed, jobs or _jobs(op), failures, programs=programs, first=first
        )
    else:
        report = of_model(model, parse_dims(dims), seed, input_path, loss, output)
    if json_path is not None:
        write_atomically(json_path, (report.to_json() + "\n").encode())
    if junit is not None:
        write_junit(report, junit)
    if html is not None:
        write_html(report, html)
    if markdown is not None and isinstance(report, RegistryReport):
        write_atomically(markdown, page(report, _again(op, profile, examples, seed, markdown)).encode())
    show(report, every=every or bool(op) or model is not None)
    report.raise_if_failed()


def of_model(
    model: str, dims: Mapping[str, int], seed: int, input_path: Path | None, loss: str | None, output: str | None
) -> Report:
    """Check a person's own model. Inputs give extents that ``dims`` does not; without them those are :data:`BATCH`."""
    named = None if loss is None else loss_of(loss, output)
    chosen = output if loss is None else None
    if input_path is None:
        return check(open_graph(model, dims, batch=BATCH), loss=named, output=chosen, seed=seed)
    network = open_model(model, dims)
    specs, arrays = input_specs(network), read_npz(input_path)
    feed = Feed(specs, ())
    arrays = {n: fitted(array, specs[n]) if n in specs else feed.target(array) for n, array in arrays.items()}
    return check(network, arrays, named, output=chosen, seed=seed)


def _jobs(names: list[str]) -> int:
    """All cores, unless there is little to do."""
    return 1 if 0 < len(names) < 8 else os.cpu_count() or 1


def _again(names: list[str], profile: str, examples: int | None, seed: int, path: Path) -> str:
    """The command that writes the same page."""
    words = [
        "glowtrain gradcheck",
        *(f"--op {name}" for name in names),
        "" if profile == "ci" else f"--profile {profile}",
    ]
    words += [f"--examples {examples}" if examples else "", f"--seed {seed}" if seed else ""]
    return " ".join(filter(None, [*words, f"--markdown docs/{path.name}"]))


def registry(
    names: list[str] | None,
    profile: str,
    examples: int | None,
    seed: int,
    jobs: int,
    failures: Path | None,
    *,
    programs: int | None = None,
    first: int = 0,
) -> RegistryReport:
    """Check operators by name, or all of them and random programs, or programs alone, telling how far it is."""
    unknown = [name for name in names or () if lookup(name) is None]
    if unknown:
        raise InputError(f"there is no operator {', '.join(unknown)}; there are: {', '.join(sorted(OPERATORS))}")
    columns = (
        TextColumn("checking"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=err, transient=True) as bar:
        task = bar.add_task("")

        def progress(subject: str, number: int, total: int) -> None:
            bar.update(task, completed=number, total=total, description=subject)

        return check_registry(
            names,
            examples,
            seed,
            progress,
            profile=profile,
            jobs=jobs,
            keep=failures,
            programs=programs,
            first=first,
        )


def show(report: Report, *, every: bool) -> None:
    """Print a report as a table; only what did not pass everywhere, unless ``every``. Then where kinks lie."""
    shown = report.table(all_subjects=every)
    if shown.row_count:
        out.print(shown)
    else:
        out.print(report.summary(), markup=False)
    for entry in report.checks:
        if entry.status in ("kink", "absent") and entry.detail:
            out.print(f"{entry.subject}: {entry.detail}", markup=False, soft_wrap=True)
