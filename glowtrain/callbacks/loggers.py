"""Callbacks that write what happens where others read it: spreadsheets, TensorBoard, MLflow, Weights & Biases."""

from __future__ import annotations

import csv
import importlib
import io
from pathlib import Path
from typing import Any

from glowtrain.errors import InputError, check_extra
from glowtrain.graph import Graph, Value
from glowtrain.trainer.checkpoints.files import check_writable, write_atomically
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.history import numbers_of

EPOCH = "epoch"


class CSV:
    """All records as a table with a row for each epoch, written anew after each: columns may come later. Raises
    :class:`CheckpointError` where it cannot be written."""

    writes = True

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_begin(self, moment: Moment) -> None:
        """Find out whether it can be written."""
        check_writable(self.path)

    def on_epoch_end(self, moment: Moment) -> None:
        """Write the table."""
        records = [numbers_of(record) for record in moment.trainer.history]
        text = io.StringIO()
        columns = dict.fromkeys(name for record in records for name in record)
        table = csv.DictWriter(text, list(columns), lineterminator="\n")
        table.writeheader()
        table.writerows(records)
        write_atomically(self.path, text.getvalue().encode())


class TensorBoard:
    """Events for TensorBoard in a folder: the numbers of each epoch, the loss of an epoch's first batch and every
    ``every``-th behind it, the graph of
    the model; with ``histograms`` also all parameters after each epoch, and their gradients on its last batch.

    Needs tensorboardX (the extra ``tensorboard``). A run that is resumed goes on in the same folder. Raises
    :class:`InputError` for a folder that cannot be written.
    """

    writes = True

    def __init__(self, folder: str | Path, *, every: int | None = None, histograms: bool = False) -> None:
        check_extra("TensorBoard", "tensorboardX", "tensorboardX", "tensorboard")
        if every is not None and every < 1:
            raise InputError(f"every must be a whole number of at least 1, not {every!r}")
        self.folder, self.every, self.histograms = Path(folder), every, histograms
        self._writer: Any = None
        self._inputs: Any = {}
        if every is not None or histograms:
            self.on_batch_end = self._batch

    def on_train_begin(self, moment: Moment) -> None:
        """Open the folder and write the graph. A run that goes on replaces what was written of later epochs."""
        done = len(moment.trainer.history)
        tensorboard = importlib.import_module("tensorboardX")
        try:
            self._writer = tensorboard.SummaryWriter(
                str(self.folder), purge_step=done + 1 if done else None, filename_suffix=f".{done}"
            )
        except OSError as error:
            raise InputError(f"TensorBoard: {self.folder} cannot be written: {error.strerror or error}") from error
        if not done:
            self._writer.file_writer.add_onnx_graph(_graph_def(moment.trainer.model()))

    def _batch(self, moment: Moment) -> None:
        self._inputs = moment.inputs
        if self.every is not None and (moment.batch - 1) % self.every == 0 and moment.batches is not None:
            step = (moment.epoch - 1) * moment.batches + moment.batch
            self._writer.add_scalar("batch/loss", moment.loss, step)

    def on_epoch_end(self, moment: Moment) -> None:
        """Write the record's numbers, and histograms where they were asked for."""
        for name, value in (moment.record or {}).items():
            if name != EPOCH and isinstance(value, (int, float)):
                self._writer.add_scalar(name, value, moment.epoch)
        if self.histograms and self._inputs:
            for name, array in moment.trainer.parameters().items():
                self._writer.add_histogram(f"parameters/{name}", array.astype("float32"), moment.epoch)
            for name, array in moment.trainer.gradients(self._inputs).items():
                self._writer.add_histogram(f"gradients/{name}", array.astype("float32"), moment.epoch)
        self._writer.flush()

    def on_train_end(self, moment: Moment) -> None:
        """Close the file."""
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """The numbers of each epoch in MLflow's active run (one is begun where there is none), the settings as its
    parameters. Needs mlflow."""

    writes = True

    def __init__(self) -> None:
        self._mlflow = _installed("mlflow")

    def on_train_begin(self, moment: Moment) -> None:
        """Log the settings."""
        self._mlflow.log_params(_settings(moment))

    def on_epoch_end(self, moment: Moment) -> None:
        """Log the record."""
        self._mlflow.log_metrics(_numbers(moment), step=moment.epoch)


class WandB:
    """The numbers of each epoch in a run of Weights & Biases, which ``settings`` begin where none is active:
    ``WandB(project="digits")``. Needs wandb."""

    writes = True

    def __init__(self, **settings: Any) -> None:
        self._wandb = _installed("wandb")
        self._settings = settings

    def on_train_begin(self, moment: Moment) -> None:
        """Begin a run, and log the settings."""
        run = self._wandb.run or self._wandb.init(**self._settings)
        run.config.update(_settings(moment), allow_val_change=True)

    def on_epoch_end(self, moment: Moment) -> None:
        """Log the record."""
        self._wandb.log(_numbers(moment), step=moment.epoch)


def _graph_def(graph: Graph) -> Any:
    """A graph as TensorBoard draws it: a node for each input, variable, constant and operator, in groups by layer."""
    proto = importlib.import_module("tensorboardX.proto.graph_pb2").GraphDef()
    names: dict[Value, str] = {}
    for value in (*graph.inputs, *graph.variables):
        names[value] = value.name.replace(".", "/")
        proto.node.add(name=names[value], op="Input" if value in graph.inputs else "Variable")
    for number, node in enumerate(graph.nodes):
        name = f"{node.layer.replace('.', '/')}/{node.operator.key()}_{number}".lstrip("/")
        entry = proto.node.add(name=name, op=node.operator.key())
        for operand in (value for value in node.inputs if value is not None):
            if operand not in names:
                names[operand] = f"{name}/constant_{len(names)}"
                proto.node.add(name=names[operand], op="Constant")
            entry.input.append(names[operand])
        names |= dict.fromkeys(node.outputs, name)
    for name, value in graph.outputs.items():
        proto.node.add(name=f"outputs/{name}", op="Output").input.append(names[value])
    return proto


def _numbers(moment: Moment) -> dict[str, float]:
    record = moment.record or {}
    return {name: value for name, value in record.items() if name != EPOCH and isinstance(value, (int, float))}


def _settings(moment: Moment) -> dict[str, Any]:
    """What a person would want to compare runs by."""
    trainer = moment.trainer
    return {"model": trainer.graphs.model.name, "optimizer": trainer.optimizer.name, "seed": trainer.spec.seed} | {
        name: float(value) for name, value in trainer.hyper.items()
    }


def _installed(package: str) -> Any:
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise InputError(f"logging to {package} needs the package: pip install {package}") from error
