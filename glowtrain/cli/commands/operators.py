"""``glowtrain operators``: what is supported of ONNX, from the registry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.cli.arguments.files import check_writable, write_text
from glowtrain.cli.terminal.console import command
from glowtrain.cli.terminal.markdown import show
from glowtrain.graph import Operator, Sample

EXAMPLES = 4
"""Samples of each operator on which element types are tried."""


@command
def operators(
    output: Annotated[Path | None, typer.Option(metavar="F", help="Write the table to a Markdown file.")] = None,
) -> None:
    """List every supported operator: versions, element types, how it is compiled, whether it has a gradient.

    Examples:

    glowtrain operators

    glowtrain operators --output operator-support.md
    """
    from glowtrain.onnx_io.checks.support import table  # noqa: PLC0415  (makes a table of all of ONNX)

    check_writable(output)
    text = table(samples)
    if output is not None:
        write_text(output, text)
    else:
        show(text)


def samples(cls: type[Operator]) -> Iterator[Sample]:
    """Uses of an operator, always the same."""
    from glowtrain.gradcheck.operators.oracles import drawn  # noqa: PLC0415  (makes a table of all of ONNX)

    return (drawn(cls, 0, 2 * example) for example in range(EXAMPLES))
