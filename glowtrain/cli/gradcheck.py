"""``glowtrain gradcheck``: operators, random programs, or a model of your own, against numerical differentiation."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glowtrain.cli import options
from glowtrain.cli.console import command, err, out
from glowtrain.cli.files import check_writable
from glowtrain.cli.models import open_graph, parse_dims
from glowtrain.errors import InputError
from glowtrain.gradcheck import Report, check, check_registry
from glowtrain.graph import OPERATORS
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
    examples: Annotated[int, typer.Option(min=1, metavar="N", help="Drawn cases for each operator.")] = 10,
    seed: options.Seed = 0,
    json_path: Annotated[Path | None, typer.Option("--json", metavar="F", help="Write the report as JSON.")] = None,
    dims: options.Dims = [],  # noqa: B006
    every: Annotated[bool, typer.Option("--all", help="List what passed, too.")] = False,
) -> None:
    """Check gradients against numerical differentiation, the interpreter, and compiled code.

    Examples:

    glowtrain gradcheck

    glowtrain gradcheck --op Conv --op Softmax --examples 50

    glowtrain gradcheck model.onnx --json report.json
    """
    check_writable(json_path)
    if model is not None and op:
        raise InputError("give a MODEL or --op, not both")
    if model is None:
        report = registry(op, examples, seed)
    else:
        report = check(open_graph(model, parse_dims(dims), batch=BATCH), seed=seed)
    if json_path is not None:
        write_atomically(json_path, (report.to_json() + "\n").encode())
    show(report, every=every or bool(op) or model is not None)
    report.raise_if_failed()


def registry(names: list[str], examples: int, seed: int) -> Report:
    """Check operators by name, or all of them and random programs, telling how far it is."""
    unknown = [name for name in names if name not in OPERATORS]
    if unknown:
        raise InputError(f"there is no operator {', '.join(unknown)}; there are: {', '.join(sorted(OPERATORS))}")
    with err.status("checking") as status:

        def progress(subject: str, number: int, total: int) -> None:
            status.update(f"checking {subject} ({number} of {total})")

        return check_registry(names or None, examples, seed, progress)


def show(report: Report, *, every: bool) -> None:
    """Print a report as a table; only what did not pass everywhere, unless ``every``."""
    shown = report.table(all_subjects=every)
    if shown.row_count:
        out.print(shown)
    else:
        out.print(report.summary(), markup=False)
