"""``glowtrain conformance``: ONNX's own tests against a backend."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track

from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.files import check_writable, write_text
from glowtrain.cli.terminal.console import FAILED, command, err
from glowtrain.cli.terminal.markdown import show


@command
def conformance(
    pattern: Annotated[str, typer.Argument(metavar="PATTERN", help="Only tests whose name contains this.")] = "",
    backend: options.Backend = "cpu",
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Processes.")] = 1,
    gradients: Annotated[bool, typer.Option("--gradients", help="Also check the gradients of node tests.")] = False,
    output: Annotated[Path | None, typer.Option(metavar="F", help="Write the results as Markdown.")] = None,
) -> None:
    """Run the backend tests of the onnx package, and say which do not pass and why.

    Examples:

    glowtrain conformance softmax

    glowtrain conformance --jobs 2 --gradients --output conformance.md
    """
    check_writable(output)
    from glowtrain.gradcheck.operators import node_tests as slopes  # noqa: PLC0415
    from glowtrain.onnx_io.checks.conformance import matching, report, run_all  # noqa: PLC0415  (makes 2000 models)

    chosen = matching(pattern, backend)
    outcomes = list(track(run_all(chosen, backend, jobs), "testing", len(chosen), console=err, transient=True))
    text = report(outcomes, backend, again(pattern, backend, output, gradients=gradients))
    passed = all(outcome.passed for outcome in outcomes)
    if gradients:
        names = slopes.matching(pattern)
        found = list(track(slopes.run_all(names, jobs), "differentiating", len(names), console=err, transient=True))
        text = f"{text}\n{slopes.section(found)}"
        passed = passed and all(outcome.checked for outcome in found if not outcome.reason)
    if output is not None:
        write_text(output, text)
    show(text)
    if not passed:
        raise typer.Exit(FAILED)


def again(pattern: str, backend: str, output: Path | None, *, gradients: bool) -> str:
    """The command that gives the same page."""
    words = ["glowtrain conformance", shlex.quote(pattern) if pattern else "", f"--backend {backend}"]
    words += ["--gradients" if gradients else "", f"--output {shlex.quote(str(output))}" if output else ""]
    return " ".join(filter(None, words))
