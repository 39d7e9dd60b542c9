"""How low are buffers packed? Traces of allocations beside the lower bound, best fit alone, and the time.

    python benchmarks/packing.py TRACE ... [--steps 50000] [--output FILE]
    python benchmarks/packing.py --training FOLDER [--rows NAME ...]

A TRACE is a file, or a folder that is searched for them: ``.csv`` as MiniMalloc reads it (``id,lower,upper,size``; its
``benchmarks/challenging`` has eleven hard ones), or ``.txt`` as Glow's tests do (``tests/unittests/
MemoryAllocatorTestModels.txt``: models one after the other, ``ALLOC`` and ``FREE`` in the order of the program). The
second form writes traces of the training steps that ``run.py`` times; it needs PyTorch. Only seconds depend on the
machine.
"""

from __future__ import annotations

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import glowtrain as gt
from benchmarks.speed import jobs
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training import compiled
from benchmarks.speed.training.rows import TRAINING
from glowtrain.program.memory.packing import best_fit, pack, peak
from glowtrain.program.memory.packing_search import Item
from glowtrain.program.memory.trace import trace

STEPS = ("mlp", "cnn", "resnet20", "mobilenetv2", "lstm", "gpt", "vit", "segmentation")
SUFFIXES = (".csv", ".txt")
COLUMNS = ("instance", "buffers", "memory", "bound", "best fit", "packed", "over the bound", "seconds")
HEAD = f"| {' | '.join(COLUMNS)} |\n|---{'|--:' * (len(COLUMNS) - 1)}|\n"

ABOUT = """# Packing buffers into an arena

Bytes, and seconds of one core; the search may take {steps:,} steps. The bound is the largest sum of what is alive
together, or what was shown to be too low for any packing. Memory is what an instance was published to fit into.
Made by `python benchmarks/packing.py`.

"""


@dataclass(frozen=True)
class Instance:
    """Items of one trace; their sizes are in units of ``unit`` bytes."""

    name: str
    items: list[Item]
    unit: int
    capacity: int | None = None
    """The memory that they are to fit into, in units: what a file of MiniMalloc has in its name."""

    def row(self, steps: int) -> str:
        """A line of the table."""
        bound = peak(self.items)
        greedy = best_fit(self.items, bound)
        began = time.process_time()
        packed = pack(self.items, steps, self.capacity)
        seconds = time.process_time() - began
        over = f"{packed.height / packed.bound - 1:.3%}" if packed.height > packed.bound else "0"
        heights = (height * self.unit for height in (packed.bound, greedy.height, packed.height))
        memory = "" if self.capacity is None else f"{self.capacity * self.unit:,}"
        columns = (self.name, len(self.items), memory, *(f"{h:,}" for h in heights), over, f"{seconds:.2f}")
        return "| " + " | ".join(map(str, columns)) + " |\n"


def instances(paths: Sequence[Path]) -> Iterator[Instance]:
    """Those of every trace, folders in order of names."""
    for path in paths:
        files = sorted(f for f in path.rglob("*") if f.suffix in SUFFIXES) if path.is_dir() else [path]
        for file in files:
            yield from [minimalloc(file)] if file.suffix == ".csv" else glow(file)


def minimalloc(file: Path) -> Instance:
    """A file of columns ``lower``, ``upper`` (after the last time), ``size``; ``NAME.CAPACITY.csv`` or ``NAME.csv``."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [(int(r["lower"]), int(r["upper"]), int(r["size"])) for r in csv.DictReader(lines)]
    unit = gcd(*(size for _, _, size in rows))
    name, _, capacity = file.stem.partition(".")
    items = [Item(lower, upper - 1, size // unit) for lower, upper, size in rows]
    return Instance(name, items, unit, int(capacity) // unit if capacity.isdecimal() else None)


def glow(file: Path) -> Iterator[Instance]:
    """A file of models, sizes of which are rounded up to what ``ALIGN`` says."""
    name, unit, began, items, clock = "", 1, dict[str, tuple[int, int]](), list[Item](), 0
    for line in file.read_text(encoding="utf-8").splitlines():
        match line.split():
            case ["MODEL", name]:
                began, items = {}, []
            case ["ALIGN", bytes_]:
                unit = int(bytes_)
            case ["ALLOC", key, size]:
                began[key], clock = (clock, -(-int(size) // unit)), clock + 1
            case ["FREE", key]:
                first, lines = began.pop(key)
                items.append(Item(first, clock - 1, lines))
                clock += 1
            case ["EFF", _]:
                yield Instance(name, items, unit)
            case _:
                pass  # a comment, or what Glow's own allocator came to


def write_training(rows: Sequence[str], folder: Path) -> None:
    """A trace for each row's training step."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in rows:
        with tempfile.TemporaryDirectory() as prepared:
            jobs.run("prepare", part="training", name=name, folder=prepared, sizes=False)
            plan = compiled.CompiledStep(TRAINING[name], Prepared.read(Path(prepared)), gt.Cpu(cache=None)).plan()
        (folder / f"{name}.csv").write_text(trace(plan), encoding="utf-8")
        print(f"{name}: {len(plan.offsets)} buffers, arena {plan.arena:,} bytes", flush=True)


def write_table(paths: Sequence[Path], steps: int, output: Path | None) -> None:
    """The table, a line as soon as it is known; a file is written when all are."""
    lines = [HEAD]
    print(HEAD, end="", flush=True)
    for instance in instances(paths):
        lines.append(instance.row(steps))
        print(lines[-1], end="", flush=True)
    if output is not None:
        output.write_text(f"{ABOUT.format(steps=steps)}{''.join(lines)}", encoding="utf-8")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", nargs="*", type=Path)
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--training", type=Path)
    parser.add_argument("--rows", nargs="+", choices=sorted(TRAINING), default=STEPS)
    arguments = parser.parse_args()
    if arguments.training is not None:
        write_training(arguments.rows, arguments.training)
    if arguments.traces:
        write_table(arguments.traces, arguments.steps, arguments.output)


if __name__ == "__main__":
    main()
