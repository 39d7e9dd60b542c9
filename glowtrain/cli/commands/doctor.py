"""``glowtrain doctor``: versions, the machine, and whether compiled code computes the bits that it should."""

from __future__ import annotations

from typing import Annotated

import typer

from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.progress import spinner
from glowtrain.doctor.report import examine


@command
def doctor(
    json: Annotated[bool, typer.Option("--json", help="All of it as JSON, for programs.")] = False,
) -> None:
    """Print what a bug report needs, and a digest of a small training run that two machines can compare.

    The run is compiled for this processor and for others that it can stand in for, on one thread and on several.
    The exit status is 1 where targets compute different bits.

    Example: glowtrain doctor
    """
    with spinner("ten steps of training") as told:
        report = examine(told)
    if json:
        typer.echo(report.to_json())
    else:
        out.print(report)
    report.require()
