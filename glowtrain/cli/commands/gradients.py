"""``glowtrain gradients``: the ways of gradients before a model is trained, and gradients as ONNX files."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.files import check_differs, check_writable
from glowtrain.cli.arguments.models import ModelFileOptions
from glowtrain.cli.arguments.training import LossOptions
from glowtrain.cli.terminal.console import command, note, out
from glowtrain.errors import InputError
from glowtrain.grad import gradient_model, loss_graph
from glowtrain.grad.training import LOSS
from glowtrain.gradcheck import paths
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss
from glowtrain.modes.training_and_inference import inference
from glowtrain.onnx_io import save
from glowtrain.onnx_io.schema.declared import declared_types
from glowtrain.types import Spec

Of = Annotated[
    list[str],
    typer.Option("--of", metavar="OUTPUT", help="Differentiate this output (repeatable; all of floats)."),
]
By = Annotated[
    list[str],
    typer.Option(
        "--by",
        metavar="PATTERN",
        help="Parameters and inputs that must get a gradient, e.g. 'head.*' (repeatable; all parameters, with --out "
        "all inputs).",
    ),
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="F", help="What was found.", rich_help_panel=options.OUTPUT)
]
GradientOut = Annotated[
    Path | None,
    typer.Option("--out", metavar="F", help="Write the gradient as an ONNX model.", rich_help_panel=options.OUTPUT),
]
Total = Annotated[
    bool,
    typer.Option(
        "--total",
        help="Of the sum of the output's elements; otherwise the file has an input by which they are multiplied.",
        rich_help_panel=options.OUTPUT,
    ),
]


@command
def gradients(
    model: options.Model,
    file: ModelFileOptions,
    loss: LossOptions,
    of: Of = [],  # noqa: B006  typer's way to say "none given"
    by: By = [],  # noqa: B006
    json_path: Json = None,
    out_path: GradientOut = None,
    total: Total = False,
    opset: options.Opset = None,
) -> None:
    """Say where gradients flow in a model before it is trained: which operators have a verified one, which nodes cut
    the way, which parameters get none, and what to do. The exit status is 1 where a parameter gets none.

    With --out the gradient is written instead, as a standard ONNX model: of one output (or a loss) by inputs and
    parameters, in inference form.

    Examples:

    glowtrain gradients model.onnx

    glowtrain gradients model.onnx --loss mse --by 'head.*' --json paths.json

    glowtrain gradients model.onnx --of scores --by x --out gradient.onnx
    """
    file.import_modules()
    if loss.output is not None and not loss.loss:
        raise InputError("--output is what a --loss compares; --of names what is differentiated")
    if out_path is None and (total or opset is not None):
        raise InputError("--total and --opset are for --out")
    if out_path is not None and json_path is not None:
        raise InputError("--json is what is found without --out; give one of them")
    check_writable(json_path, out_path)
    check_differs(model, json_path, out_path)
    network = file.open(model, training=out_path is None)
    named = loss.named if loss.loss else None
    if out_path is None:
        survey(network, named, of, by, json_path)
    else:
        export(network, named, of, by, out_path, total=total, opset=opset)


def survey(network: Graph | Template, loss: Loss | None, of: list[str], by: list[str], json_path: Path | None) -> None:
    """Print the ways of gradients. Raises :class:`DifferentiationError` where one is missing."""
    report = paths(network, loss, of=of, by=by)
    out.print(report)
    if json_path is not None:
        report.to_json(json_path)
        out.print(f"wrote {json_path}")
    report.raise_if_missing()


def export(
    network: Graph | Template, loss: Loss | None, of: list[str], by: list[str], path: Path,
    *, total: bool, opset: int | None,
) -> None:  # fmt: skip
    """Write the gradient of one output, or of the loss, and say what the file takes and gives."""
    if len(of) > 1 or (of and loss is not None):
        raise InputError("--out takes one --of, or a --loss")
    plain = network.map(partial(_plain, loss=loss))
    gradient = gradient_model(plain, LOSS if loss is not None else of[0] if of else None, by or None, total=total)
    written = save(gradient, path, opset=opset, standard=True)
    takes, gives = declared_types(written)
    if isinstance(gradient, Template):
        _tell_fixed(gradient, takes)
    shown = (", ".join(f"{name} {spec}" for name, spec in specs.items()) for specs in (takes, gives))
    out.print(f"wrote {path}: {' -> '.join(shown)}")


def _tell_fixed(model: Template, takes: Mapping[str, Spec]) -> None:
    """Say which dimensions of a model have one extent in its file."""
    pairs = [pair for name, spec in model.inputs.items() for pair in zip(spec.shape, takes[name].shape, strict=True)]
    fixed = {symbol: extent for symbol, extent in pairs if isinstance(symbol, str) and isinstance(extent, int)}
    if fixed:
        shown = ", ".join(f"{symbol}={extent}" for symbol, extent in fixed.items())
        again = f"--dims {next(iter(fixed))}=N for another"
        note(f"the gradient is for {shown} only, as it depends on more of that than shapes; {again}")


def _plain(model: Graph, *, loss: Loss | None) -> Graph:
    """The inference form of a model, or its loss."""
    plain = inference(model)
    if loss is None:
        return plain
    attached = loss.attach(plain)
    return loss_graph(plain, attached.value, attached.targets, {})
