"""``glowtrain gradcheck``: operators, random programs, or a model of your own, against numerical differentiation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from glowtrain.cli.arguments.feed import examples_in, some_inputs_in
from glowtrain.cli.arguments.files import check_reports, write_texts
from glowtrain.cli.arguments.gradcheck_options import GradcheckOptions, Model
from glowtrain.cli.arguments.models import ModelFileOptions, as_graph
from glowtrain.cli.terminal.console import command, note, out
from glowtrain.cli.terminal.progress import counting
from glowtrain.errors import InputError
from glowtrain.gradcheck import GradcheckReport, RegistryReport, check, check_registry, page
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


@command
def gradcheck(
    model: Model = None,
    *,
    file: ModelFileOptions,
    what: GradcheckOptions,
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
    check_reports(what.json_path, what.junit, what.markdown, page=what.html)
    what.check(model, about_model=bool(file.untie or file.open_batch))
    report: GradcheckReport = registry(what) if model is None else of_model(file.open(model), what)
    texts: list[tuple[Path | None, Callable[[], str]]] = [
        (what.json_path, lambda: f"{report.to_json()}\n"),
        (what.junit, partial(junit_xml, report)),
        (what.html, partial(html_page, report)),
    ]
    if isinstance(report, RegistryReport):
        texts.append((what.markdown, partial(page, report, what.again(file.modules))))
    written = [*write_texts(*texts)]
    show(report, every=what.every or bool(what.op) or model is not None)
    for path in written:
        out.print(f"wrote {path}")
    report.raise_if_failed()


def of_model(network: Graph | Template, what: GradcheckOptions) -> GradcheckReport:
    """Check a person's own model. Inputs give the extents that are open; without them those are :data:`BATCH`."""
    named = losses_in(what.loss, what.output) if what.loss else None
    chosen = None if what.loss else what.output
    if what.input_path is None:
        return _checked(as_graph(network, BATCH), None, named, chosen, what.seed)
    arrays = some_inputs_in(examples_in(what.input_path, specs_of(network)), network, named)
    _advise(network, arrays)
    return _checked(network, arrays, named, chosen, what.seed)


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


def registry(what: GradcheckOptions) -> RegistryReport:
    """Check operators by name, or all of them and random programs, or programs alone, telling how far it is."""
    if strange := [name for name in what.op if lookup(name) is None]:
        raise InputError(f"there is {_unknown(strange)}; glowtrain operators lists them")
    chosen = ([*what.op] or None) if what.programs is None else []
    with counting("checking") as progress:
        return check_registry(
            chosen, what.examples, what.seed, progress, profile=what.profile, jobs=what.processes, keep=what.failures,
            programs=what.programs, first=what.first,
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
