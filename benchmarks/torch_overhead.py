"""What a training step costs beside its arithmetic: compiled by glowtrain.torch, eager, and under torch.compile.

    python benchmarks/torch_overhead.py [--turns 200] [--emptied 32]

The first table has the scripts in examples/torch as they run: each step's kernels have emptied the caches for the next
one. ``over`` is a call's time without that of the native function in the same call.

The second has networks of so many parameters that there is next to no arithmetic, so that nearly all of a step is what
it costs to have one: warm (called once more at once) and cold (after so many MiB were written to). ``compiled``: a
call of a compiled step without the native function; ``eager``: a whole step of PyTorch (zero_grad, forward, backward,
Adam's step); its optimizer alone (``step``, ``zero_grad``); and a call of the module under torch.compile with a backend
that computes nothing. All take turns; medians in microseconds, on one thread.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import nn
from torch_steps import SCRIPTS, beyond_native, example_of, seconds_of

import glowtrain.torch
from glowtrain.version import __version__

COUNTS = 6, 20, 40
"""Numbers of parameters."""
COLUMNS = "compiled", "eager", "optimizer", "torch.compile"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=200)
    parser.add_argument("--emptied", type=int, default=32, help="MiB that are written to before a cold call")
    arguments = parser.parse_args()
    sys.argv = [sys.argv[0]]
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, Glowtrain {__version__}, one thread, µs\n")
    print("| script | native function | over |\n|---|---|---|")
    for script in SCRIPTS:
        print(example_row(script, arguments.turns), flush=True)
    names = [f"{name}, {state}" for name in COLUMNS for state in ("warm", "cold")]
    print(f"\n| parameters | {' | '.join(names)} |\n|{'---|' * (len(names) + 1)}")
    memory = torch.zeros(arguments.emptied << 18)
    for count in COUNTS:
        medians = tiny(count, arguments.turns, memory)
        print(f"| {count} | {' | '.join(f'{median * 1e6:.0f}' for median in medians)} |", flush=True)


def example_row(script: Path, turns: int) -> str:
    """A line of the first table."""
    example = example_of(script)
    trained = example.module, example.loss_fn, example.optimizer
    step = glowtrain.torch.compile_step(*trained, threads=1, **example.options)
    step(*example.batch)
    times = [step.timed(*example.batch) for _ in range(turns)]
    native, over = statistics.median(own for _, own in times), statistics.median(all_ - own for all_, own in times)
    return f"| {script.stem} | {native * 1e6:.0f} | {over * 1e6:.1f} |"


def tiny(count: int, turns: int, memory: torch.Tensor) -> Sequence[float]:
    """Median seconds of each column, warm and cold, for a network of that many parameters."""
    calls = calls_of(count)
    times: list[list[float]] = [[] for _ in range(2 * len(calls))]
    for _ in range(turns):
        for number, call in enumerate(calls):
            call()
            times[2 * number].append(call())
            memory.add_(1)
            times[2 * number + 1].append(call())
    return [statistics.median(own) for own in times]


def calls_of(count: int) -> Sequence[Callable[[], float]]:
    """What makes a step's calls, in the order of the columns; each says how many seconds count."""
    torch.manual_seed(0)
    module = nn.Sequential(*(nn.Linear(4, 4) for _ in range(count // 2)))
    batch = torch.randn(4, 4), torch.randn(4, 4)
    loss_fn = nn.functional.mse_loss
    other, third = copy.deepcopy(module), copy.deepcopy(module)
    step = glowtrain.torch.compile_step(module, loss_fn, torch.optim.Adam(module.parameters()), threads=1)
    theirs = torch.optim.Adam(other.parameters())
    result = torch.zeros(4, 4)
    passing = torch.compile(third, backend=lambda graph, examples: lambda *arguments: (result,))

    def eager() -> None:
        theirs.zero_grad()
        loss_fn(other(batch[0]), batch[1]).backward()
        theirs.step()

    def optimizer() -> float:
        gradients = [parameter.grad for parameter in other.parameters()]
        seconds = seconds_of(theirs.step) + seconds_of(theirs.zero_grad)
        for parameter, gradient in zip(other.parameters(), gradients, strict=True):
            parameter.grad = gradient
        return seconds

    def compiled() -> float:
        return beyond_native(step, batch)

    step(*batch)
    eager()
    passing(batch[0])
    return compiled, lambda: seconds_of(eager), optimizer, lambda: seconds_of(passing, batch[0])


if __name__ == "__main__":
    main()
