"""torch.compile(module, backend="glowtrain") beside eager PyTorch: forward and backward of a zoo of modules, on a core.

    python benchmarks/torch_compile.py [NAME ...] [--repeats 300] [--json FILE]

Calls of both take turns, so that what else the machine does falls on both alike; the medians of the processor time that
the only thread takes are compared. What calls cost beyond their work is measured beside a backend that does nothing
(--overhead).
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch_zoo import ZOO, Case

from glowtrain.torch.dynamo.backend import glowtrain

LEAST = 2e-4
"""Seconds of an eager step from which a module counts."""


def main() -> None:
    """Measure, print, and write where that was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="modules that contain one of these words")
    parser.add_argument("--repeats", type=int, default=300)
    parser.add_argument("--overhead", action="store_true", help="the cost of a call beside a backend that does nothing")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    torch.set_num_threads(1)
    found = overheads(options.repeats) if options.overhead else modules(options.names, options.repeats)
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


def modules(names: Sequence[str], repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of a step, eager and compiled, by module."""
    chosen = {name: case for name, case in ZOO.items() if not names or any(word in name for word in names)}
    found = {}
    for name, case in chosen.items():
        eager, compiled = (seconds * 1e6 for seconds in timed(case, repeats))
        found[name] = {"eager": eager, "compiled": compiled}
        print(
            f"{name:32} eager {eager:9.1f} us   compiled {compiled:9.1f} us   {eager / compiled:5.2f} times", flush=True
        )
    counted = [each for each in found.values() if each["eager"] >= LEAST * 1e6]
    faster = sum(each["compiled"] < each["eager"] for each in counted)
    print(f"{len(counted)} of {len(found)} take {LEAST * 1e3:g} ms or more, {faster} of these are faster compiled")
    return found


def timed(case: Case, repeats: int) -> tuple[float, float]:
    """The median seconds of a step, eager and compiled."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    eager, inputs = case.make(), case.inputs()
    compiled = torch.compile(copy.deepcopy(eager), backend=glowtrain)
    return in_turns([step_of(case, module, inputs) for module in (eager, compiled)], repeats)


def step_of(case: Case, module: Any, inputs: tuple[torch.Tensor, ...]) -> Callable[[], None]:
    """Forward and backward."""

    def step() -> None:
        module.zero_grad()
        case.loss(module, *inputs).backward()

    return step


def in_turns(steps: Sequence[Callable[[], None]], repeats: int) -> Any:
    """The median seconds of each step, called in turns."""
    for step in steps:
        for _ in range(5):
            step()
    times: list[list[float]] = [[] for _ in steps]
    for _ in range(repeats):
        for step, own in zip(steps, times, strict=True):
            began = time.thread_time()
            step()
            own.append(time.thread_time() - began)
    return tuple(map(statistics.median, times))


def overheads(repeats: int) -> dict[str, dict[str, float]]:
    """Microseconds of calls that hardly compute anything: with a backend that does nothing, and with ours."""
    found = {}
    for name, (module, x, backward) in small_calls().items():
        steps = [
            small_step(torch.compile(copy.deepcopy(module), backend=each), x, backward) for each in (nothing, glowtrain)
        ]
        theirs, ours = (seconds * 1e6 for seconds in in_turns(steps, 20 * repeats))
        found[name] = {"nothing": theirs, "glowtrain": ours}
        print(f"{name:40} nothing {theirs:6.1f} us   glowtrain {ours:6.1f} us   {ours - theirs:+6.1f} us", flush=True)
        torch._dynamo.reset()
    return found


def nothing(module: torch.fx.GraphModule, examples: Sequence[Any]) -> Callable[..., Any]:
    """The backend that does nothing."""
    return module.forward


class Doubled(torch.nn.Module):
    """One operator."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def small_calls() -> dict[str, tuple[torch.nn.Module, torch.Tensor, bool]]:
    """Modules, an input, and whether there is a backward."""
    linear = torch.nn.Linear(8, 8)
    layers = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 8))
    x, traced = torch.randn(4, 8), torch.randn(4, 8, requires_grad=True)
    return {
        "one operator, forward": (Doubled(), x, False),
        "one operator, forward and backward": (Doubled(), traced, True),
        "linear, forward": (linear.requires_grad_(requires_grad=False), x, False),
        "two layers, forward and backward": (layers, x, True),
    }


def small_step(module: Any, x: torch.Tensor, backward: bool) -> Callable[[], None]:
    """A call of a module, with a backward or without."""
    ones = torch.ones(4, 8)

    def step() -> None:
        y = module(x)
        if backward:
            y.backward(ones)

    return step


if __name__ == "__main__":
    main()
