"""Training steps of the PyTorch scripts in examples/torch: eager, and compiled by glowtrain.torch.compile_step.

    python benchmarks/torch_steps.py [--threads 1] [--turns 200]

Both train in turns on the same batches, each its own copy of the module; medians. ``over`` is what a call takes beyond
the native function: checks, the hand-over of tensors, PyTorch's counters.
"""

from __future__ import annotations

import argparse
import copy
import io
import runpy
import statistics
import sys
import time
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

import glowtrain.torch
from glowtrain.version import __version__

SCRIPTS = sorted((Path(__file__).resolve().parents[1] / "examples" / "torch").glob("*.py"))


@dataclass(frozen=True)
class Example:
    """What a script trains, and its first batch."""

    module: nn.Module
    loss_fn: Any
    optimizer: torch.optim.Optimizer
    options: dict[str, Any]
    batch: tuple[torch.Tensor, ...]


class _Found(Exception):
    """Ends a script at its first step."""


def example_of(script: Path) -> Example:
    """Run a script up to its first step."""
    real, found = glowtrain.torch.compile_step, []

    def compile_step(*given: Any, **options: Any) -> Any:
        def step(*batch: torch.Tensor) -> Any:
            found.append(Example(*given, options, batch))
            raise _Found

        return step

    glowtrain.torch.compile_step = compile_step  # type: ignore[assignment]
    try:
        with redirect_stdout(io.StringIO()):
            runpy.run_path(str(script), run_name="__main__")
    except _Found:
        pass
    finally:
        glowtrain.torch.compile_step = real
    return found[0]


def eager(example: Example) -> None:
    """One step by PyTorch."""
    example.optimizer.zero_grad()
    loss = example.loss_fn(example.module(*example.batch[:-1]), example.batch[-1])
    loss.backward()
    if bound := example.options.get("clip_norm"):
        nn.utils.clip_grad_norm_(example.module.parameters(), bound)
    example.optimizer.step()


def seconds_of(call: Any, *arguments: Any) -> float:
    """How long a call takes."""
    began = time.perf_counter()
    call(*arguments)
    return time.perf_counter() - began


def row(script: Path, threads: int, turns: int) -> str:
    """A line of the table."""
    example = example_of(script)
    other = copy.deepcopy(example)
    step = glowtrain.torch.compile_step(
        example.module, example.loss_fn, example.optimizer, threads=threads, **example.options
    )
    first = seconds_of(step, *example.batch)
    eager(other)
    theirs, ours, over = [], [], []
    for _ in range(turns):
        theirs.append(seconds_of(eager, other))
        ours.append(seconds_of(step, *example.batch))
        over.append(beyond_native(step, example.batch))
    slow, fast, beyond = (statistics.median(times) for times in (theirs, ours, over))
    return (
        f"| {script.stem} | {slow * 1e3:.3f} | {fast * 1e3:.3f} | {slow / fast:.2f} | {beyond * 1e6:.0f} "
        f"| {first:.1f} |"
    )


def beyond_native(step: glowtrain.torch.CompiledStep, batch: tuple[torch.Tensor, ...]) -> float:
    """What a call takes beyond the native function."""
    whole, native = step.timed(*batch)
    return whole - native


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--turns", type=int, default=200)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sys.argv = [sys.argv[0]]
    print(f"PyTorch {torch.__version__}, Glowtrain {__version__}, {arguments.threads} threads\n")
    print("| script | eager, ms | compiled, ms | eager ÷ compiled | over, µs | first step, s |")
    print("|---|---|---|---|---|---|")
    for script in SCRIPTS:
        print(row(script, arguments.threads, arguments.turns), flush=True)


if __name__ == "__main__":
    main()
