"""``glowtrain run``: predictions for examples in files."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.cache import BackendOptions
from glowtrain.cli.arguments.feed import InputOptions, inputs_in
from glowtrain.cli.arguments.files import check_predictions, write_arrays, write_rows
from glowtrain.cli.arguments.models import FileOptions, TrainedOn
from glowtrain.cli.terminal.console import command, out, seconds
from glowtrain.cli.terminal.records import From, Given
from glowtrain.compiler import compile
from glowtrain.datasets.stored import ExampleArray, StoredArray
from glowtrain.errors import InputError
from glowtrain.graph import HostedModel
from glowtrain.graph.specialise.binding import part_name
from glowtrain.losses.choose import losses_in
from glowtrain.memory.resources import Resources
from glowtrain.metrics.base import compared_loss
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.predict import Predictor
from glowtrain.trainer.sources.results import predict_arrays
from glowtrain.types import Array, type_of

Input = Annotated[
    str,
    typer.Option(
        "--input",
        "--data",
        metavar="IN",
        help="An .npz file with an array for each input, by name, a table (.csv, .parquet), or a folder of images or "
        "of shards; labels are not needed.",
        autocompletion=options.DATA,
    ),
]
Output = Annotated[
    Path,
    typer.Option(
        "--output", metavar="OUT", help="Where the outputs go: .npz, by name, or .csv, a row for each example."
    ),
]


@command
def run(
    model: options.Model,
    input_path: Input,
    output_path: Output,
    source: InputOptions,
    file: FileOptions,
    on: BackendOptions,
    settings: Annotated[Given, From(Resources, but=("residuals",))],
    fit: Annotated[Given, From(FitSpec, only=("batch_size",))],
) -> None:
    """Run a model on examples: floats and integers in the model's own types, whatever those in the file are.

    Many examples are run in batches, unless the model's results for one depend on the others. Of a table a model takes
    the columns that it was trained on; in a .csv file classes go by their names. Strings and encoded images are taken
    from .npz files.

    Examples:

    glowtrain run trained.onnx --input images.npz --output scores.npz

    glowtrain run iris.onnx --input new.csv --output predictions.csv
    """
    file.import_modules()
    check_predictions(output_path)
    trained_on = TrainedOn.of(model)
    whole = file.open_hosted(model, training=False)
    network = whole.model if isinstance(whole, HostedModel) else whole
    predict = Predictor(compile(network, on.chosen, **settings))
    spent = 0.0

    def call(examples: Mapping[str, ExampleArray]) -> dict[str, Any]:
        nonlocal spent
        arrays = inputs_in(examples, network)
        there = {name: array for name, array in arrays.items() if not isinstance(array, StoredArray)}
        if len(there) == len(arrays):
            predict.prepare(there, **fit)
        began = time.perf_counter()
        results = predict_arrays(predict, arrays, **fit)
        spent = time.perf_counter() - began
        return results

    names: list[str] = []
    if isinstance(whole, HostedModel):
        results: Mapping[str, Any] = whole.run(source.on_host(input_path, whole), call)
    else:
        examples, names = source.inputs(input_path, trained_on, network)
        results = call(examples)
    outputs = {name: array.astype(str) if array.dtype == object else array for name, array in flat(results)}
    if output_path.suffix == ".csv":
        write_rows(output_path, table_of(outputs, trained_on, names))
    else:
        write_arrays(output_path, outputs)
    shown = ", ".join(f"{name} {_shown(array)}" for name, array in outputs.items())
    out.print(f"{shown} in {seconds(spent)}; wrote {output_path}")


def _shown(array: Array) -> str:
    return f"string{list(array.shape)}" if array.dtype.kind == "U" else str(type_of(array))


def flat(results: Mapping[str, Any]) -> Iterator[tuple[str, Array]]:
    """Results as arrays by name: the items of a sequence are ``<name>.<place>``, an absent optional is left out."""
    for name, result in results.items():
        if isinstance(result, list):
            yield from flat({part_name(name, place): item for place, item in enumerate(result)})
        elif result is not None:
            yield name, result


def table_of(outputs: Mapping[str, Array], trained_on: TrainedOn, files: list[str]) -> dict[str, Array]:
    """Columns of a table by name: the images' files, and of each output its numbers, of scores of classes before them
    the class that has the highest. Raises :class:`InputError` for outputs that are not one for each example."""
    if len(counts := {array.shape[:1] for array in outputs.values()}) > 1 or () in counts:
        shown = ", ".join(f"{name} {_shown(array)}" for name, array in outputs.items())
        raise InputError(f"outputs {shown} are not one for each example, so they make no table: write them as .npz")
    columns = {"file": np.array(files)} if files else {}
    losses = [compared_loss(loss) for _, loss in losses_in(trained_on.loss).terms] if trained_on.loss else []
    scores = {loss.output or next(iter(outputs)) for loss in losses if loss and loss.task == "classification"}
    for name, array in outputs.items():
        rows = array.reshape(len(array), -1)
        width = rows.shape[-1]
        classes = trained_on.classes if len(trained_on.classes) == width else tuple(map(str, range(width)))
        if array.ndim == 2 and (name in scores or classes is trained_on.classes):
            columns["class" if len(outputs) == 1 else f"{name}_class"] = np.array(classes)[rows.argmax(1)]
        columns |= {name if width == 1 else f"{name}_{each}": rows[:, k] for k, each in enumerate(classes)}
    return columns
