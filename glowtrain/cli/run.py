"""``glowtrain run``: predictions for arrays in a file."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from glowtrain.cli import options
from glowtrain.cli.console import command, out, seconds
from glowtrain.cli.files import check_writable, read_arrays, write_arrays
from glowtrain.cli.models import input_specs, open_model, parse_dims
from glowtrain.cli.training import fitted
from glowtrain.compiler import compile
from glowtrain.types import type_of


@command
def run(
    model: options.Model,
    input_path: Annotated[Path, typer.Option("--input", metavar="IN.npz", help="An array for each input, by name.")],
    output_path: Annotated[Path, typer.Option("--output", metavar="OUT.npz", help="Where the outputs go, by name.")],
    dims: options.Dims = [],  # noqa: B006  typer's way to say "none given"
    backend: options.Backend = "cpu",
) -> None:
    """Run a model on arrays: floats and integers in the model's own types, whatever those in the file are.

    Example: glowtrain run trained.onnx --input images.npz --output scores.npz
    """
    check_writable(output_path)
    arrays = read_arrays(input_path)
    network = open_model(model, parse_dims(dims))
    specs = input_specs(network)
    arrays = {name: fitted(array, specs[name]) if name in specs else array for name, array in arrays.items()}
    predict = compile(network, backend)
    predict(arrays)
    began = time.perf_counter()
    outputs = predict(arrays)
    spent = time.perf_counter() - began
    write_arrays(output_path, outputs)
    shown = ", ".join(f"{name} {type_of(array)}" for name, array in outputs.items())
    out.print(f"{shown} in {seconds(spent)}; wrote {output_path}", markup=False)
