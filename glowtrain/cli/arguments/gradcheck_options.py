"""What ``glowtrain gradcheck`` can be told, as annotated types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glowtrain.cli.arguments.completion import names
from glowtrain.cli.arguments.options import MODELS
from glowtrain.gradcheck import PROFILES
from glowtrain.graph import OPERATORS

Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Check this model instead of the operators.", autocompletion=MODELS),
]
Operators = Annotated[
    list[str],
    typer.Option(
        "--op", metavar="NAME", help="Only this operator (repeatable), e.g. Conv.", autocompletion=names(OPERATORS)
    ),
]
Profile = Annotated[
    str,
    typer.Option(metavar="P", help=f"How thoroughly: {', '.join(PROFILES)}.", autocompletion=names(PROFILES)),
]
Seed = Annotated[
    int,
    typer.Option(
        min=0, metavar="N", help="Fixes what is drawn: examples, random programs, directions, missing arrays."
    ),
]
Examples = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Drawn cases for each operator; the profile's otherwise.")
]
Jobs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Processes that share the work; as many as cores otherwise.")
]
Json = Annotated[Path | None, typer.Option("--json", metavar="F", help="Write the report as JSON.")]
Junit = Annotated[
    Path | None, typer.Option("--junit", metavar="F", help="Write the report as JUnit XML, for build servers.")
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="F", help=r"Write the report as a page with a plot of the errors (needs glowtrain\[plot])."
    ),
]
Markdown = Annotated[
    Path | None, typer.Option("--markdown", metavar="F", help="Write what was found by operator as a page.")
]
Failures = Annotated[
    Path | None,
    typer.Option("--failures", metavar="DIR", help="Keep failing random programs here, made small, as ONNX files."),
]
Programs = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="Only random programs, so many, on every rung of the walk.")
]
First = Annotated[
    int, typer.Option(min=0, metavar="K", help="The number of the first random program: to go on with a run.")
]
Arrays = Annotated[
    Path | None,
    typer.Option(
        "--input",
        metavar="IN.npz",
        help="Check the MODEL on these arrays, by the names of its inputs and the loss's target (labels or target, or "
        "y as for train); on drawn ones otherwise.",
    ),
]
Output = Annotated[
    str | None, typer.Option(metavar="NAME", help="The output of the MODEL that is checked (all of floats otherwise).")
]
Every = Annotated[bool, typer.Option("--all", help="List what passed, too.")]
