"""``glowtrain gradients``: which ways gradients take through a model, before it is trained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from glowtrain import losses
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.files import check_writable
from glowtrain.cli.arguments.imports import import_modules
from glowtrain.cli.arguments.models import open_model, parse_dims
from glowtrain.cli.terminal.console import command, out
from glowtrain.gradcheck import paths

Of = Annotated[
    list[str], typer.Option("--of", metavar="OUTPUT", help="Differentiate this output (repeatable; all of floats).")
]
By = Annotated[
    list[str],
    typer.Option(
        "--by",
        metavar="PATTERN",
        help="Parameters and inputs that must get a gradient (repeatable; all parameters), e.g. 'head.*'.",
    ),
]
Loss = Annotated[
    str | None,
    typer.Option(
        metavar="L",
        help=f"Differentiate a loss: {', '.join(losses.NAMED)}, or a scalar output of the model.",
        autocompletion=options.LOSSES,
    ),
]
LossOutput = Annotated[
    str | None, typer.Option("--output", metavar="NAME", help="The model output that the loss compares (the first).")
]
Json = Annotated[
    Path | None, typer.Option("--json", metavar="F", help="What was found.", rich_help_panel=options.OUTPUT)
]


@command
def gradients(
    model: options.Model,
    of: Of = [],  # noqa: B006  typer's way to say "none given"
    by: By = [],  # noqa: B006
    loss: Loss = None,
    output: LossOutput = None,
    dims: options.Dims = [],  # noqa: B006
    open_batch: options.OpenBatch = False,
    untie: options.Untie = [],  # noqa: B006
    json_path: Json = None,
    modules: options.Modules = [],  # noqa: B006
) -> None:
    """Say where gradients flow in a model before it is trained: which operators have a verified one, which nodes cut
    the way, which parameters get none, and what to do.

    The exit status is 1 where a parameter gets no gradient.

    Examples:

    glowtrain gradients model.onnx

    glowtrain gradients model.onnx --loss mse --by 'head.*' --json paths.json
    """
    import_modules(modules)
    check_writable(json_path)
    network = open_model(model, parse_dims(dims), open_batch=open_batch, untie=untie)
    named = None if loss is None else losses.by_name(loss, output)
    report = paths(network, named, of=of, by=by)
    out.print(report)
    if json_path is not None:
        report.to_json(json_path)
        out.print(f"wrote {json_path}")
    report.raise_if_missing()
