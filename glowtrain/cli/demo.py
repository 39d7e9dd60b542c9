"""``glowtrain demo``: everything once, in less than a minute, and what it came to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import numpy as np
import typer

from glowtrain import data, losses, models, optim
from glowtrain.cli import gradcheck, summary
from glowtrain.cli.console import command, nbytes, out, plural, seconds
from glowtrain.cli.files import check_writable
from glowtrain.errors import VerificationError
from glowtrain.onnx_io import save
from glowtrain.onnx_io.outside import outside_run
from glowtrain.trainer import Trainer
from glowtrain.trainer.fit import Moment

EPOCHS, BATCH, RATE = 12, 48, 2e-3
ENOUGH, AGREEMENT = 0.97, 1e-5
"""The test accuracy and the agreement with an outside implementation below which the demo fails."""

NEXT = """glowtrain inspect {path}                           the trained model in numbers
glowtrain inspect cnn --train --stage plan              the training step: kernels and memory
glowtrain inspect cnn --train --stage profile           where its time goes
glowtrain train mlp --data fashion-mnist --out mlp.onnx    (apt-get install dataset-fashion-mnist)
glowtrain train your.onnx --data your.npz --out trained.onnx
glowtrain gradcheck --op Conv                           one operator's rule against numerical differentiation
README.md, examples/, docs/walk.md                      from here to the inside"""


@command
def demo(
    path: Annotated[Path, typer.Option("--out", metavar="F", help="Where the trained model goes.")] = Path("trained.onnx"),
    epochs: Annotated[int, typer.Option(min=1, metavar="N")] = EPOCHS,
) -> None:
    """Train a digit classifier through one compiled step, check its gradients, and write it as ONNX.

    Example: glowtrain demo --out trained.onnx
    """
    check_writable(path)
    began = time.perf_counter()
    digits = data.load("digits")
    _heading("Glowtrain trains a CNN on handwritten digits through one compiled step")
    _say("data", f"digits: {len(digits):,} images of 8×8 to train on, {len(digits.valid['y'])} to test on")
    model = models.build("cnn", digits.x.shape[1:])
    trainer = Trainer(model, losses.softmax_cross_entropy(), optim.Adam(RATE, schedule=_cosine(epochs, len(digits))))
    _describe(trainer)
    _compile(trainer, digits)
    accuracy = _train(trainer, digits, epochs)
    gradcheck.check_model(trainer, {"x": digits.x[:8], "labels": digits.y[:8]})
    _export(trainer, digits, path)
    out.print()
    _say("done", f"{seconds(time.perf_counter() - began)} in all. Try next:")
    out.print(NEXT.format(path=path), markup=False)
    if accuracy < ENOUGH and epochs >= EPOCHS:
        raise VerificationError(f"test accuracy {accuracy:.1%} is below {ENOUGH:.0%}: something is wrong with this build")


def _heading(text: str) -> None:
    out.print(f"[bold]{text}[/bold]\n")


def _say(subject: str, text: str) -> None:
    out.print(f"[bold cyan]{subject:10}[/bold cyan]", end="")
    out.print(text, markup=False)


def _cosine(epochs: int, examples: int) -> optim.Schedule:
    updates = epochs * -(-examples // BATCH)
    return optim.Cosine(updates, floor=0.02)


def _describe(trainer: Trainer) -> None:
    layers = "conv 32, BatchNorm, ReLU, pool, conv 64, BatchNorm, ReLU, pool, linear 128, dropout, linear 10"
    count = sum(array.size for array in trainer.parameters().values())
    _say("model", f"{layers}: {count:,} parameters")
    _say("step", f"forward, backward and Adam as one graph, for batches of {BATCH}; through the compiler:")


def _compile(trainer: Trainer, digits: data.Dataset) -> None:
    """Show the walk of the training step in numbers, and compile it for training."""
    step = trainer.forms.step_of(trainer.forms.bind({"batch": BATCH}))
    summary.stages(summary.walk(step), indent=10)
