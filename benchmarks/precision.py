"""Training steps with products in bf16 beside those in f32, and beside PyTorch's in both precisions.

    python benchmarks/precision.py [--rows mlp gpt ...] [--seconds 15] [--output benchmarks/results]

Needs PyTorch. Times are processor seconds of one thread, of steps that take turns in one process, medians of the ratios
to Glowtrain's step in f32. PyTorch's bf16 is ``torch.autocast``, with images channels last; its eager step, with its
fused optimizers. Gradients are those of a first step, and off by the norm of the difference over the norm. What is
learnt of the digits are means over seeds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

import glowtrain as gt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.residuals import MB, ROWS, curves, gradients, off
from benchmarks.speed.machine import describe
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training import modules
from benchmarks.speed.training.compiled import loss, optimizer
from benchmarks.speed.training.pytorch import TorchStep
from benchmarks.speed.training.pytorch_autocast import AutocastStep
from benchmarks.speed.training.rows import TRAINING, TrainingRow
from glowtrain.memory.precision import Precision
from glowtrain.optim import Optimizer
from glowtrain.types import Array

CHOICES: tuple[Precision, Precision] = (None, "bf16")
Step = Callable[[int], object]


def trainer(row: TrainingRow, prepared: Prepared, precision: Precision, rule: Optimizer) -> gt.Trainer:
    """A row's trainer on one thread."""
    given = gt.load(prepared.model)
    return gt.Trainer(given, loss(row), rule, backend="cpu", unbiased=True, threads=1, precision=precision)


def take_turns(steps: Sequence[Step], seconds: float) -> list[float]:
    """Milliseconds of the first one, and the times of the others over its own."""
    times: list[list[float]] = [[] for _ in steps]
    for step in steps:
        step(0)
    end, turn = time.perf_counter() + seconds, 0
    while turn < 5 or time.perf_counter() < end:
        for step, own in zip(steps, times, strict=True):
            began = time.process_time()
            step(turn)
            own.append(time.process_time() - began)
        turn += 1
    first, *others = times
    ratios = [statistics.median(b / a for a, b in zip(first, other, strict=True)) for other in others]
    return [1e3 * statistics.median(first), *ratios]


def _step(trainer: gt.Trainer, batches: Sequence[Mapping[str, Array]], turn: int) -> float:
    return trainer.step(batches[turn % len(batches)])


def torch_gradients(row: TrainingRow, prepared: Prepared, precision: Precision) -> dict[str, Array]:
    """PyTorch's of the first batch, in f64."""
    step = TorchStep(row, prepared) if precision is None else AutocastStep(row, prepared)
    found = step.loss(step.batches[0])
    found.backward()  # type: ignore[no-untyped-call]
    return {name: p.grad.double().numpy() for name, p in step.module.named_parameters() if p.grad is not None}


def lines(rows: Sequence[str], folder: Path, seconds: float) -> Iterator[str]:
    """A table of the rows."""
    yield (
        "| row | batch | f32, ms | bf16 | PyTorch f32 | PyTorch bf16 | arena, MB | bf16 | gradients off by "
        "| PyTorch's |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for name in rows:
        row, prepared = TRAINING[name], Prepared.read(folder / name)
        both = [trainer(row, prepared, choice, optimizer(row)) for choice in CHOICES]
        own = [partial(_step, each, prepared.batches) for each in both]
        found = take_turns([*own, TorchStep(row, prepared), AutocastStep(row, prepared)], seconds)
        wide, narrow = (each.memory().arena / MB for each in both)
        plain = (trainer(row, prepared, choice, gt.optim.SGD(lr=1.0)) for choice in CHOICES)
        whole, _ = off(*(gradients(each, prepared) for each in plain))
        theirs, _ = off(*(torch_gradients(row, prepared, choice) for choice in CHOICES))
        times = " | ".join(f"{ratio:.2f}" for ratio in found[1:])
        gone = f"{whole:.2%} | {theirs:.2%}"
        yield f"| {name} | {row.batch} | {found[0]:.1f} | {times} | {wide:.1f} | {narrow:.1f} | {gone} |"


def main() -> None:
    """Both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--seconds", type=float, default=15.0, help="of turns, for each row")
    parser.add_argument("--output", type=Path, help="folder for precision.md")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.rows:
            modules.prepare(TRAINING[name], Path(folder) / name)
        facts = "; ".join(f"{what} {value}" for what, value in describe(["numpy", "llvmlite", "torch"]).items())
        head = ["# Products in bf16", "", "By `python benchmarks/precision.py --output benchmarks/results`.", ""]
        text = "\n".join(
            [*head, f"{facts}.", "", *lines(given.rows, Path(folder), given.seconds), "", *curves("precision"), ""]
        )
    print(text)
    if given.output is not None:
        (given.output / "precision.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
