"""Memory of training steps, and what less of it costs: arenas without a budget, with memory="small", and without a
budget but with residuals="bf16", beside PyTorch's peak over what was there before the step; then the time of steps
over budgets in between, as a plot.

    python benchmarks/memory.py [--rows cnn gpt ...] [--seconds 15] [--output benchmarks/results]

Needs PyTorch (for the models as well). Times are processor seconds of one thread, of steps that take turns in one
process, medians; ratios are to the step that computes nothing again (memory="keep").
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch.profiler import ProfilerActivity, profile

import glowtrain as gt

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.speed.machine import describe
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.results import geometric_mean
from benchmarks.speed.training import modules, pytorch
from benchmarks.speed.training.compiled import loss, optimizer
from benchmarks.speed.training.rows import TRAINING, TrainingRow
from glowtrain.memory.budget import SMALLEST, Memory
from glowtrain.memory.residuals import ResidualType

ROWS = ("cnn", "resnet20", "gpt", "lstm", "mobilenetv2", "segmentation")
CURVES = ("resnet20", "gpt", "mobilenetv2", "segmentation")
PARTS = 6
"""Budgets between all and the least on a curve."""
MB = 1e6


@dataclass
class Kept:
    """A trainer with a budget, and the milliseconds that its steps took."""

    memory: Memory
    trainer: gt.Trainer
    times: list[float] = field(default_factory=list)

    @property
    def arena(self) -> int:
        """Bytes."""
        return self.trainer.memory().arena

    def step(self, batch: dict[str, object]) -> None:
        """One step, timed."""
        began = time.process_time()
        self.trainer.step(batch)
        self.times.append(1e3 * (time.process_time() - began))


def kept(row: TrainingRow, prepared: Prepared, memory: Memory, residuals: ResidualType = None) -> Kept:
    """The row's trainer with a budget, after its first step."""
    backend = gt.Cpu(cache=None, threads=1)
    made = gt.Trainer(
        gt.load(prepared.model), loss(row), optimizer(row), backend=backend, unbiased=True, memory=memory,
        residuals=residuals,
    )  # fmt: skip
    made.step(prepared.batches[0])
    return Kept(memory, made)


def take_turns(all_kept: Sequence[Kept], prepared: Prepared, seconds: float) -> list[float]:
    """Each one's time over the first one's: the median of rounds in which all took a step."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for each in all_kept:
            each.step(prepared.batches[0])
    return [statistics.median(a / b for a, b in zip(each.times, all_kept[0].times, strict=True)) for each in all_kept]


def peak_of_pytorch(row: TrainingRow, prepared: Prepared) -> int:
    """Bytes that a later step of PyTorch allocates at most, at the same time."""
    step = pytorch.make(row, prepared, 1, prepared.folder)
    for index in range(3):
        step(index)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        step(3)
    events = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    alive = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        alive += event.nbytes()
        most = max(most, alive)
    return most


def curve(row: TrainingRow, prepared: Prepared, seconds: float) -> tuple[list[float], list[float]]:
    """Arenas in MB, and times over that of the largest, for budgets from all to the least."""
    whole = kept(row, prepared, "keep")
    variables = whole.trainer.memory().variables
    least = variables + kept(row, prepared, SMALLEST).arena
    most = variables + whole.arena
    budgets = [most - (most - least) * part // PARTS for part in range(1, PARTS + 1)]
    all_kept = [whole, *(kept(row, prepared, budget) for budget in budgets)]
    return [each.arena / MB for each in all_kept], take_turns(all_kept, prepared, seconds)


def plot(curves: dict[str, tuple[list[float], list[float]]], path: Path) -> None:
    """Time over budget, a line for each row."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, (arenas, times) in curves.items():
        axes.plot([arena / arenas[0] for arena in arenas], times, marker="o", label=f"{name} ({arenas[0]:.0f} MB)")
    axes.invert_xaxis()
    axes.axhline(1, color="gray", linewidth=0.8)
    axes.set(
        xlabel="arena, of what a step needs that computes nothing again", ylabel="time of a step, relative to that one"
    )
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def lines(rows: Sequence[str], folder: Path, seconds: float) -> Iterator[str]:
    """A table of the rows."""
    yield (
        "| row | batch | PyTorch, MB | keep | no budget | of PyTorch's | time | small | of PyTorch's | time "
        "| bf16 | of PyTorch's | time |"
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|"
    free, small, rounded = [], [], []
    for name in rows:
        row, prepared = TRAINING[name], Prepared.read(folder / name)
        peak = peak_of_pytorch(row, prepared)
        all_kept = [
            *(kept(row, prepared, memory) for memory in ("keep", None, "small")),
            kept(row, prepared, None, "bf16"),
        ]
        times = take_turns(all_kept, prepared, seconds)
        whole, unsaid, least, narrow = (each.arena for each in all_kept)
        free.append(unsaid / peak)
        small.append(least / peak)
        rounded.append(narrow / peak)
        yield (
            f"| {name} | {row.batch} | {peak / MB:.1f} | {whole / MB:.1f} | {unsaid / MB:.1f} | {free[-1]:.2f} "
            f"| {times[1]:.3f} | {least / MB:.1f} | {small[-1]:.2f} | {times[2]:.3f} "
            f"| {narrow / MB:.1f} | {rounded[-1]:.2f} | {times[3]:.3f} |"
        )
    means = [f"**{geometric_mean(each):.2f}**" for each in (free, small, rounded)]
    yield f"| **geometric mean** | | | | | {means[0]} | | | {means[1]} | | | {means[2]} | |"


def main() -> None:
    """The table and the plot."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=ROWS, choices=ROWS)
    parser.add_argument("--seconds", type=float, default=15.0, help="of turns, for each row")
    parser.add_argument("--output", type=Path, help="folder for memory.md and memory.png")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        for name in given.rows:
            modules.prepare(TRAINING[name], Path(folder) / name)
        facts = "; ".join(f"{what} {value}" for what, value in describe(["numpy", "llvmlite", "torch"]).items())
        head = ["# Memory", "", "By `python benchmarks/memory.py --output benchmarks/results`.", "", f"{facts}.", ""]
        text = "\n".join([*head, *lines(given.rows, Path(folder), given.seconds), ""])
        print(text)
        if given.output is not None:
            (given.output / "memory.md").write_text(text, encoding="utf-8")
            curves = {
                name: curve(TRAINING[name], Prepared.read(Path(folder) / name), given.seconds)
                for name in CURVES if name in given.rows
            }  # fmt: skip
            plot(curves, given.output / "memory.png")


if __name__ == "__main__":
    main()
