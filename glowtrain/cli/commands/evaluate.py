"""``glowtrain evaluate``: the loss and metrics of a model on a data set."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.cache import BackendOptions
from glowtrain.cli.arguments.feed import DataOptions, feed
from glowtrain.cli.arguments.files import check_writable, write_text
from glowtrain.cli.arguments.models import FileOptions, TrainedOn
from glowtrain.cli.arguments.training import LossOptions
from glowtrain.cli.terminal.console import command, out
from glowtrain.cli.terminal.records import From, Given
from glowtrain.data import count_examples
from glowtrain.errors import InputError
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table
from glowtrain.trainer.evaluator import ModelEvaluator
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.graphs import TrainerGraphs, specs_of
from glowtrain.trainer.history import numbers_of, plain
from glowtrain.trainer.settings import TrainingSettings, TrainingSpec

Json = Annotated[Path | None, typer.Option("--json", metavar="F", help="The numbers.", rich_help_panel=options.OUTPUT)]


@dataclass(frozen=True)
class EvaluationReport(Displayable):
    """What was measured of a model on so many examples."""

    model: str
    data: str
    examples: int
    results: dict[str, Any]
    classes: tuple[str, ...]

    def _contents(self) -> Iterator[str | Table]:
        yield f"{self.model} on {plural(self.examples, 'example')} of {self.data}"
        numbers = numbers_of(self.results)
        yield Table(("", ">"), [(name, f"{value:.6g}") for name, value in numbers.items()])
        for name, value in self.results.items():
            if name not in numbers:
                yield from ("", self._table(name, value))

    def _table(self, name: str, value: list[Any]) -> Table:
        """A metric that is a number for each class, or a row of such."""
        classes = self.classes if len(self.classes) == len(value) else [str(number) for number in range(len(value))]
        rows = [each if isinstance(each, list) else [each] for each in value]
        heads = [f"{each}>" for each in classes] if len(rows[0]) == len(rows) > 1 else [">"] * len(rows[0])
        return Table(("", *heads), [(label, *map(_short, row)) for label, row in zip(classes, rows, strict=True)], name)


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, (int, float)) else str(value)


@command
def evaluate(
    model: options.Model,
    dataset: options.Data,
    source: DataOptions,
    file: FileOptions,
    on: BackendOptions,
    loss: LossOptions,
    settings: Annotated[Given, From(TrainingSettings, only=("metrics", "threads", "fixed_point"))],
    fit: Annotated[Given, From(FitSpec, only=("batch_size", "drop_last"))],
    sample_weight: options.SampleWeight = None,
    json_path: Json = None,
) -> None:
    """Measure the loss and metrics of a model on data: on their part for validation, if they have one.

    The loss, the names of classes and the columns of a table are those that the model was trained with, as its file
    says.

    Examples:

    glowtrain evaluate iris.onnx --data test.csv --labels species --metric f1_macro --metric confusion_matrix

    glowtrain evaluate int8.onnx --data fashion-mnist --json results.json
    """
    file.import_modules()
    check_writable(json_path)
    trained_on = TrainedOn.of(model)
    network = file.open(model, training=False)
    loaded = source.stored(dataset, sample_weight, trained_on, network)
    named = loss.default(trained_on.loss).named
    fed = feed(loaded, specs_of(network), named)
    graphs = TrainerGraphs(TrainingSpec(network, named, "sgd", sample_weight=sample_weight is not None, **settings))
    graphs.check_metrics()
    part, name = (fed.train, loaded.name) if fed.valid is None else (fed.valid, f"{loaded.name} (validation)")
    try:
        results = ModelEvaluator(graphs, backend_of(on.chosen, settings["threads"])).evaluate(part, **fit)
    except InputError as error:
        raise InputError(fed.explained(str(error))) from None
    evaluation = EvaluationReport(model, name, count_examples(part), results, loaded.trained_on.classes)
    out.print(evaluation)
    if json_path is not None:
        write_text(json_path, json.dumps(plain(asdict(evaluation)), indent=1) + "\n")
        out.print(f"wrote {json_path}")
