"""``glowtrain demo``: everything once, in less than a minute, and what it came to."""

from __future__ import annotations

import shutil
import sys
import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.padding import Padding
from rich.table import Table

from glowtrain import data, losses, models, optim, quantization
from glowtrain.backends.discovery import backend_of
from glowtrain.cli.arguments.files import check_writable
from glowtrain.cli.terminal import summary
from glowtrain.cli.terminal.console import command, out, seconds
from glowtrain.compiler import compile
from glowtrain.errors import VerificationError
from glowtrain.gradcheck import check
from glowtrain.graph import Graph, Template
from glowtrain.memory.byte_size import byte_text
from glowtrain.onnx_io import save
from glowtrain.onnx_io.checks.other_runtimes import outside_run
from glowtrain.presentation.messages import plural
from glowtrain.stages import Options
from glowtrain.trainer import Trainer
from glowtrain.trainer.fitting.moments import Moment

EPOCHS, BATCH, RATE = 12, 40, 2e-3
ENOUGH, AGREEMENT, LOSS = 0.97, 1e-5, 0.01
"""What the demo asks for: test accuracy, agreement with an outside implementation, what int8 may cost."""
CHECKED = 8
"""Examples on which gradients are checked."""

INDENT = 11
LAYERS = "two stages of convolution, BatchNorm, ReLU and pooling, two linear layers, dropout"
NEXT = (
    ("glowtrain inspect {path}", "the trained model in numbers"),
    ("glowtrain inspect cnn --train --stage plan", "a training step: its kernels and its memory"),
    ("glowtrain profile cnn --train", "where its time goes"),
    ("glowtrain gradcheck --op Conv", "one operator's rule against numerical differentiation"),
    ("glowtrain train mlp --data fashion-mnist --out mlp.onnx", "after apt-get install dataset-fashion-mnist"),
    ("glowtrain train your.onnx --data your.npz --out trained.onnx", "your own model and data (README.md)"),
)


@command
def demo(
    path: Annotated[Path, typer.Option("--out", metavar="F", help="Where the trained model goes.")] = Path(
        "trained.onnx"
    ),
    epochs: Annotated[int, typer.Option(min=1, metavar="N", help="Fewer than 12 may not be enough.")] = EPOCHS,
) -> None:
    """Train a digit classifier through one compiled step, check its gradients, write it as ONNX in floats and int8.

    Example: glowtrain demo --out trained.onnx
    """
    check_writable(path, path.with_stem(f"{path.stem}-int8"))
    began = time.perf_counter()
    digits = data.load("digits")
    out.print("Glowtrain trains a CNN on handwritten digits, through one compiled step\n", style="bold")
    _say("data", f"digits: {len(digits):,} images of 8×8 to train on, {len(digits.valid['y'])} to test on")
    trainer = _trainer(digits, epochs)
    count = sum(array.size for array in trainer.parameters().values())
    _say("model", f"{LAYERS} ({count:,} parameters)")
    _compile(trainer)
    accuracy = _train(trainer, digits, epochs)
    _check_gradients(trainer, digits)
    _export(trainer, digits, path)
    _quantize(trainer, digits, path.with_stem(f"{path.stem}-int8"), accuracy)
    _say("done", f"in {seconds(time.perf_counter() - began)}; try next:")
    for line, meaning in NEXT:
        out.print(f"  {meaning}:")
        out.print(f"    {line.format(path=path).replace('glowtrain', _name(), 1)}", style="green")
    if accuracy < ENOUGH and epochs >= EPOCHS:
        raise VerificationError(
            f"test accuracy {accuracy:.1%} is below {ENOUGH:.0%}: this build does not learn as it should"
        )


def _name() -> str:
    """How this command was called, so that what is suggested can be pasted: ``make demo`` is not on the path."""
    called = sys.argv[0]
    return "glowtrain" if Path(called).name != "glowtrain" or shutil.which("glowtrain") == called else called


def _say(subject: str, text: str) -> None:
    """A line, or of what is too long for the terminal some, beside its subject."""
    columns = Table.grid(padding=0)
    columns.add_column(width=INDENT, style="bold cyan")
    columns.add_column(overflow="fold")
    columns.add_row(subject, text)
    out.print(columns)


def _trainer(digits: data.Dataset, epochs: int) -> Trainer:
    model = models.build("cnn", digits.x.shape[1:])
    updates = epochs * (len(digits) // BATCH)
    return Trainer(model, losses.softmax_cross_entropy(), optim.Adam(RATE, schedule=optim.Cosine(updates, floor=0.02)))


def _compile(trainer: Trainer) -> None:
    """Show the walk of the training step in numbers."""
    _say("compiling", f"forward, backward and Adam for a batch of {BATCH}, as one native function:")
    step = trainer.graphs.step_of(_bound(trainer.graphs.model, BATCH))
    backend = backend_of("cpu")
    listed = summary.stages(step, backend, Options(facts=backend.facts))
    out.print(Padding(listed, (0, 0, 0, INDENT), expand=False))


def _bound(model: Graph | Template, batch: int) -> Graph:
    return model if isinstance(model, Graph) else model.bind({"batch": batch})


def _train(trainer: Trainer, digits: data.Dataset, epochs: int) -> float:
    """Train, with a line for some epochs; the test accuracy of the last."""
    _say("training", f"{plural(epochs, 'epoch')}, every step one call of that function:")

    def tell(moment: Moment) -> None:
        if moment.record is not None and (moment.epoch in (1, 2, 4, 8) or moment.epoch == epochs):
            record = moment.record
            _say(
                "",
                f"epoch {moment.epoch:2}  loss {record['loss']:.4f}   "
                f"test loss {record['val_loss']:.4f}   test accuracy {record['val_accuracy']:.1%}",
            )

    history = trainer.fit(digits, epochs, BATCH, drop_last=True, progress=False, callbacks=[tell])
    rate = max(history["examples_per_second"])
    _say("speed", f"{rate / BATCH:,.0f} steps/s, {rate:,.0f} images/s")
    return float(history["val_accuracy"][-1])


def _check_gradients(trainer: Trainer, digits: data.Dataset) -> None:
    """The trained model's gradients: its rules against numerical differentiation, compiled code against its rules."""
    batch = {"x": digits.x[:CHECKED], "labels": digits.y[:CHECKED]}
    with out.status("checking gradients"):
        report = check(_bound(trainer.model().template or trainer.model(), CHECKED), batch, trainer.loss)
    report.raise_if_failed()
    rules, compiled = (
        max(found.error for found in report.checks if found.oracle == oracle) for oracle in ("gradient", "compiled")
    )
    _say("gradients", f"{len(report.subjects)} parameters and inputs, against numerical differentiation in f64:")
    _say("", f"the rules are within {rules:.0e}, the compiled code (f32) within {compiled:.0e}")


def _export(trainer: Trainer, digits: data.Dataset, path: Path) -> None:
    """Write the model, and have another implementation predict the test set with it."""
    proto = save(trainer.model(), path)
    images = {"x": np.asarray(digits.valid["x"])}
    ours = trainer.predict(images)["scores"]
    other, theirs = outside_run(path, images)
    difference = float(np.max(np.abs(ours - theirs["scores"])) / np.max(np.abs(ours)))
    opset = proto.opset_import[0].version
    _say("export", f"wrote {path}: ONNX opset {opset}, {byte_text(path.stat().st_size)}")
    _say("", f"{other} agrees with the compiled model on all test images (to {difference:.0e} of the largest score)")
    if not difference <= AGREEMENT:
        raise VerificationError(
            f"{path}: {other} differs from the compiled model by {difference:.1e}, more than {AGREEMENT:.0e}"
        )


def _quantize(trainer: Trainer, digits: data.Dataset, path: Path, accuracy: float) -> None:
    """Round the model to bytes with ranges seen on training images, and compare its predictions likewise."""
    images, labels = np.asarray(digits.valid["x"]), np.asarray(digits.valid["y"])
    model = trainer.model()
    found = quantization.quantize(model.template or model, {"x": digits.x})
    before = path.with_stem(path.stem.removesuffix("-int8")).stat().st_size
    save(found.graph, path)
    kept = quantization.accuracy(found.model, [{"x": images}], [labels])
    other, theirs = outside_run(path, {"x": images})
    ours = compile(found.model)({"x": images})["scores"]
    same = int((ours.argmax(1) == theirs["scores"].argmax(1)).sum())
    _say("integers", f"test accuracy {kept:.1%} in int8, {accuracy:.1%} in floats")
    _say("", f"wrote {path}: {byte_text(path.stat().st_size)} instead of {byte_text(before)}")
    _say("", f"{other} predicts the same digit for {same} of {len(labels)} test images")
    if kept < accuracy - LOSS or same < len(labels):
        raise VerificationError(f"{path}: int8 costs {accuracy - kept:.1%}, {len(labels) - same} predictions differ")
