"""Fine-tuning with a frozen trunk: what it costs in accuracy, and what it saves in memory and time.

A CNN learns the digits 0 to 4. Then it is taught 5 to 9: once as a whole, once with its trunk frozen. For what is
frozen no gradient is computed, no optimizer state is kept, and no activation is held for a backward pass.

python examples/finetune_frozen_trunk.py [--quick]
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import checkout  # noqa: F401  finds glowtrain
import numpy as np

import glowtrain as gt
from glowtrain.compiler.walk import arrive
from glowtrain.types import Array

BATCH = 64
Part = tuple[Array, Array]


@gt.model(x=gt.f32["batch", 1, 8, 8])
def cnn(x: gt.Value) -> gt.Value:
    with gt.nn.scope("trunk"):
        for channels in (32, 64):
            x = gt.nn.relu(gt.nn.conv(x, channels, 3, padding="same"))
        x = gt.nn.max_pool(x, 2)
        x = gt.nn.relu(gt.nn.conv(x, 64, 3, padding="same"))
        x = gt.nn.flatten(gt.nn.max_pool(x, 2))
    with gt.nn.scope("head"):
        x = gt.nn.relu(gt.nn.linear(x, 64))
        return gt.nn.linear(x, 5)


@dataclass
class Outcome:
    """What one way of fine-tuning came to; bytes and seconds are those of one step."""

    accuracy: float
    parameters: int
    arena: int
    state: int
    step: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    epochs = 2 if parser.parse_args().quick else 12

    digits = gt.data.load("digits")
    first = gt.Trainer(cnn, gt.losses.softmax_cross_entropy(), gt.optim.Adam(2e-3))
    first.fit(classes(digits.train, 0), epochs, BATCH, drop_last=True)
    print(f"digits 0 to 4 from scratch: test accuracy {accuracy(first, classes(digits.valid, 0)):.1%}")

    start = first.model()
    train, test = classes(digits.train, 5), classes(digits.valid, 5)
    whole = finetune(start, None, train, test, epochs)
    frozen = finetune(start, ["head.*"], train, test, epochs)
    print(f"{'then digits 5 to 9':26}{'all trained':>15}{'trunk frozen':>15}{'saved':>9}")
    for title, field, unit, scale in (
        ("test accuracy", "accuracy", "%", 100.0), ("trained parameters", "parameters", "", 1.0),
        ("activations", "arena", "KiB", 2**-10), ("variables", "state", "KiB", 2**-10), ("a step", "step", "ms", 1e3),
    ):  # fmt: skip
        a, b = getattr(whole, field) * scale, getattr(frozen, field) * scale
        saved = f"{1 - b / a:.0%}" if field != "accuracy" else ""
        digits_shown = 0 if field == "parameters" else 2 if field == "step" else 1
        heading = f"{title}, {unit}" if unit else title
        print(f"  {heading:24}{a:>15,.{digits_shown}f}{b:>15,.{digits_shown}f}{saved:>9}".rstrip())


def classes(arrays: dict[str, Array] | object, first: int) -> Part:
    """The images of five classes, labelled 0 to 4."""
    assert isinstance(arrays, dict)
    x, y = arrays["x"], arrays["y"]
    chosen = (y >= first) & (y < first + 5)
    return x[chosen], y[chosen] - first


def finetune(start: gt.Graph, trainable: list[str] | None, train: Part, test: Part, epochs: int) -> Outcome:
    """Train from the given weights on, and measure."""
    trainer = gt.Trainer(start, gt.losses.softmax_cross_entropy(), gt.optim.Adam(1e-3), trainable=trainable)
    trainer.fit(train, epochs, BATCH, drop_last=True)
    batch = {"x": train[0][:BATCH], "labels": train[1][:BATCH]}
    found = accuracy(trainer, test)
    seconds = min(timed(trainer, batch) for _ in range(50))
    count = sum(array.size for name, array in trainer.variables().items() if name.endswith(".adam.m"))
    return Outcome(found, count, arrive(trainer.graph).arena, trainer.nbytes, seconds)


def timed(trainer: gt.Trainer, batch: dict[str, Array]) -> float:
    began = time.perf_counter()
    trainer.step(batch)
    return time.perf_counter() - began


def accuracy(trainer: gt.Trainer, part: Part) -> float:
    scores = trainer.predict(part[0])["output"]
    return float(np.mean(scores.argmax(1) == part[1]))


if __name__ == "__main__":
    main()
