"""Residuals in bf16: the arena and the time of training steps beside those without, how far gradients are off, and what
is learnt in the end.

    python benchmarks/residuals.py [--rows mlp gpt ...] [--seconds 15] [--output benchmarks/results]

Needs PyTorch (for the models). Times are processor seconds of one thread, of steps that take turns in one process,
medians of the ratios. Gradients are those of a first step, read off the update of plain descent; they are off by the
norm of the difference over the norm, of all parameters together and of the worst tensor.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import glowtrain as gt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.speed.machine import describe
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training import modules
from benchmarks.speed.training.compiled import loss, optimizer
from benchmarks.speed.training.rows import TRAINING, TrainingRow
from glowtrain import models
from glowtrain.memory.residuals import ResidualType
from glowtrain.optim import Optimizer
from glowtrain.types import Array

ROWS = ("mlp", "gpt", "vit", "lstm", "cnn", "resnet20", "mobilenetv2")
CHOICES: tuple[ResidualType, ResidualType] = (None, "bf16")
LEARNERS, SEEDS, EPOCHS = ("cnn", "mobilenet", "transformer"), 5, 15
"""The runs on the digits."""
MB = 1e6


def trainer(row: TrainingRow, prepared: Prepared, residuals: ResidualType, rule: Optimizer) -> gt.Trainer:
    """A row's trainer on one thread."""
    given = gt.load(prepared.model)
    return gt.Trainer(given, loss(row), rule, backend="cpu", unbiased=True, threads=1, residuals=residuals)


def gradients(made: gt.Trainer, prepared: Prepared) -> dict[str, Array]:
    """Those of the first batch, in f64, of a trainer by plain descent at a rate of 1."""
    before = made.parameters()
    made.step(prepared.batches[0])
    return {name: before[name].astype(np.float64) - array for name, array in made.parameters().items()}


def off(exact: dict[str, Array], other: dict[str, Array]) -> tuple[float, float]:
    """How far gradients are off: all of them, and those of the worst tensor of which there is something."""
    whole = np.concatenate([array.ravel() for array in exact.values()])
    difference = np.concatenate([other[name].ravel() for name in exact]) - whole
    norms = {name: float(np.linalg.norm(array)) for name, array in exact.items()}
    named = [name for name, norm in norms.items() if norm > 1e-4 * max(norms.values())]
    worst = max(float(np.linalg.norm(exact[name] - other[name])) / norms[name] for name in named)
    return float(np.linalg.norm(difference) / np.linalg.norm(whole)), worst


def take_turns(trainers: Sequence[gt.Trainer], batch: dict[str, object], seconds: float) -> float:
    """The time of the second one's steps over that of the first one's."""
    times: list[list[float]] = [[] for _ in trainers]
    end = time.perf_counter() + seconds
    while not times[0] or time.perf_counter() < end:
        for each, own in zip(trainers, times, strict=True):
            began = time.process_time()
            each.step(batch)
            own.append(time.process_time() - began)
    return statistics.median(second / first for first, second in zip(*times, strict=True))


def lines(rows: Sequence[str], folder: Path, seconds: float) -> Iterator[str]:
    """A table of the rows."""
    yield "| row | batch | arena, MB | bf16 | of that | time | gradients off by | worst tensor |"
    yield "|---|---|---|---|---|---|---|---|"
    for name in rows:
        row, prepared = TRAINING[name], Prepared.read(folder / name)
        both = [trainer(row, prepared, choice, optimizer(row)) for choice in CHOICES]
        for each in both:
            each.step(prepared.batches[0])
        wide, narrow = (each.memory().arena / MB for each in both)
        slower = take_turns(both, prepared.batches[0], seconds)
        whole, worst = off(*(gradients(trainer(row, prepared, x, gt.optim.SGD(lr=1.0)), prepared) for x in CHOICES))
        yield (
            f"| {name} | {row.batch} | {wide:.1f} | {narrow:.1f} | {narrow / wide:.2f} | {slower:.2f} | {whole:.2%} "
            f"| {worst:.2%} |"
        )


def learnt(model: str, seed: int, settings: Mapping[str, Any]) -> tuple[float, float]:
    """Loss and accuracy on the digits that are kept for it, of a model that comes along, after some epochs."""
    digits = gt.data.load("digits")
    made = gt.Trainer(
        models.build(model, digits.train["x"].shape[1:], seed=seed), gt.losses.softmax_cross_entropy(),
        gt.optim.Adam(lr=1e-3), backend="cpu", seed=seed, threads=1, **settings,
    )  # fmt: skip
    made.fit(digits, epochs=EPOCHS, batch_size=64, drop_last=True, progress=False)
    found = made.evaluate(digits)
    return found["loss"], found["accuracy"]


def curves(setting: str) -> Iterator[str]:
    """A table of what is learnt of the digits, without a setting and with bf16 for it."""
    yield f"| digits, {EPOCHS} epochs, {SEEDS} seeds | loss | bf16 | right | bf16 |"
    yield "|---|---|---|---|---|"
    for model in LEARNERS:
        runs = [[learnt(model, seed, {setting: choice}) for seed in range(SEEDS)] for choice in (None, "bf16")]
        (loss_wide, right_wide), (loss_narrow, right_narrow) = (np.mean(each, axis=0) for each in runs)
        yield f"| {model} | {loss_wide:.4f} | {loss_narrow:.4f} | {right_wide:.2%} | {right_narrow:.2%} |"


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--seconds", type=float, default=15.0, help="of turns, for each row")
    parser.add_argument("--output", type=Path, help="folder for residuals.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in given.rows:
            modules.prepare(TRAINING[name], Path(folder) / name)
        facts = "; ".join(f"{what} {value}" for what, value in describe(["numpy", "llvmlite"]).items())
        head = ["# Residuals in bf16", "", "By `python benchmarks/residuals.py --output benchmarks/results`.", ""]
        text = "\n".join(
            [*head, f"{facts}.", "", *lines(given.rows, Path(folder), given.seconds), "", *curves("residuals"), ""]
        )
    print(text)
    if given.output is not None:
        (given.output / "residuals.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
