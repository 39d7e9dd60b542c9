"""``glowtrain run``: predictions for arrays in a file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.cache import BackendOptions
from glowtrain.cli.arguments.feed import examples_in, inputs_in
from glowtrain.cli.arguments.files import check_arrays, write_arrays
from glowtrain.cli.arguments.models import FileOptions
from glowtrain.cli.terminal.console import command, out, seconds
from glowtrain.cli.terminal.records import From, Given
from glowtrain.compiler import compile
from glowtrain.graph.specialise.binding import part_name
from glowtrain.memory.resources import Resources
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.graphs import specs_of
from glowtrain.trainer.predict import Predictor
from glowtrain.types import Array, type_of


@command
def run(
    model: options.Model,
    input_path: Annotated[Path, typer.Option("--input", metavar="IN.npz", help="An array for each input, by name.")],
    output_path: Annotated[Path, typer.Option("--output", metavar="OUT.npz", help="Where the outputs go, by name.")],
    file: FileOptions,
    on: BackendOptions,
    settings: Annotated[Given, From(Resources, but=("residuals",))],
    fit: Annotated[Given, From(FitSpec, only=("batch_size",))],
) -> None:
    """Run a model on arrays: floats and integers in the model's own types, whatever those in the file are.

    Many examples are run in batches, unless the model's results for one depend on the others.

    Example: glowtrain run trained.onnx --input images.npz --output scores.npz
    """
    file.import_modules()
    check_arrays(output_path)
    network = file.open(model, training=False)
    arrays = inputs_in(examples_in(input_path, specs_of(network)), network)
    predict = Predictor(compile(network, on.chosen, **settings))
    predict.prepare(arrays, **fit)
    began = time.perf_counter()
    outputs = dict(flat(predict(arrays, **fit)))
    spent = time.perf_counter() - began
    write_arrays(output_path, outputs)
    shown = ", ".join(f"{name} {type_of(array)}" for name, array in outputs.items())
    out.print(f"{shown} in {seconds(spent)}; wrote {output_path}")


def flat(results: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Results as arrays by name: the items of a sequence are ``<name>.<place>``, an absent optional is left out."""
    for name, result in results.items():
        if isinstance(result, list):
            yield from flat({part_name(name, place): item for place, item in enumerate(result)})
        elif result is not None:
            yield name, result
