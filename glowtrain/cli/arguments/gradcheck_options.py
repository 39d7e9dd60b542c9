"""What ``glowtrain gradcheck`` can be told."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.cli.arguments import options
from glowtrain.errors import InputError
from glowtrain.gradcheck import PROFILES
from glowtrain.graph import OPERATORS
from glowtrain.settings import setting

Model = Annotated[
    str | None,
    typer.Argument(metavar="MODEL", help="Check this model instead of the operators.", autocompletion=options.MODELS),
]
LITTLE = 80
"""Examples of operators up to which starting processes would take longer than they save."""


@dataclass(frozen=True)
class GradcheckOptions:
    """What is checked, on what, and what is written."""

    op: Sequence[str] = setting(
        (), "Only this operator (repeatable), e.g. Conv.", metavar="NAME", type=list[str], choices=OPERATORS
    )
    profile: str = setting("ci", f"How thoroughly: {', '.join(PROFILES)}.", metavar="P", choices=PROFILES)
    examples: int | None = setting(
        None, "Drawn cases for each operator; the profile's otherwise.", metavar="N", least=1
    )
    seed: int = setting(
        0, "Fixes what is drawn: examples, random programs, directions, missing arrays.", metavar="N", least=0
    )
    jobs: int | None = setting(None, "Processes that share the work; as many as cores otherwise.", metavar="N", least=1)
    json_path: Path | None = setting(None, "Write the report as JSON.", flag="--json", metavar="F")
    junit: Path | None = setting(None, "Write the report as JUnit XML, for build servers.", metavar="F")
    html: Path | None = setting(
        None, r"Write the report as a page with a plot of the errors (needs glowtrain\[plot]).", metavar="F"
    )
    markdown: Path | None = setting(None, "Write what was found by operator as a page.", metavar="F")
    failures: Path | None = setting(
        None, "Keep failing random programs here, made small, as ONNX files.", metavar="DIR"
    )
    programs: int | None = setting(
        None, "Only random programs, so many, on every rung of the walk.", metavar="N", least=1
    )
    first: int = setting(0, "The number of the first random program: to go on with a run.", metavar="K", least=0)
    input_path: Path | None = setting(
        None,
        "Check the MODEL on these arrays, by the names of its inputs and the loss's target (labels or target, or "
        "y as for train); on drawn ones otherwise.",
        flag="--input",
        metavar="IN.npz",
    )
    loss: options.Loss = field(default_factory=list)
    output: str | None = setting(
        None, "The output of the MODEL that is checked (all of floats otherwise).", metavar="NAME"
    )
    every: bool = setting(False, "List what passed, too.", flag="--all")

    def check(self, model: str | None, *, about_model: bool) -> None:
        """Raise :class:`InputError` for more than one subject, and for options (``about_model``, and some of these) of
        a model without one."""
        if self.programs is not None and (model is not None or self.op):
            raise InputError(f"give --programs or {'a MODEL' if model is not None else '--op'}, not both")
        if model is not None and (self.op or self.markdown):
            raise InputError(f"give a MODEL or {'--op' if self.op else '--markdown'}, not both")
        if model is None and (about_model or self.input_path or self.loss or self.output):
            raise InputError(
                "--input, --loss, --output, --untie and --open-batch are for a MODEL of your own; give one"
            )

    @property
    def processes(self) -> int:
        """Those that were asked for, else all cores, unless there is little to do."""
        each = self.examples or (PROFILES[self.profile].examples if self.profile in PROFILES else 0)
        return self.jobs or (1 if 0 < len(self.op) * each < LITTLE else os.cpu_count() or 1)

    def again(self, modules: Sequence[str]) -> str:
        """The command that gives the same report."""
        return " ".join(["glowtrain gradcheck", *(f"--import {module}" for module in modules), *self._words()])

    def _words(self) -> Iterator[str]:
        yield from (f"--op {name}" for name in self.op)
        yield from () if self.profile == "ci" else [f"--profile {self.profile}"]
        numbers = {"examples": self.examples, "seed": self.seed, "programs": self.programs, "first": self.first}
        yield from (f"--{name} {number}" for name, number in numbers.items() if number)
        yield from [f"--markdown {shlex.quote(str(self.markdown))}"] if self.markdown else ()
