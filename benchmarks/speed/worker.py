"""The child process of one measurement: it reads a job as JSON, and writes its answer as JSON.

Each is fresh: cores are bound before any engine starts threads, and memory and first steps are of one engine only.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.speed import machine
from benchmarks.speed.difference import error
from benchmarks.speed.engines import MODULES, OWN
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training.rows import TRAINING
from benchmarks.speed.turns import Engine, Step, take_turns

Answer = dict[str, Any]
MORE = 3
"""Steps after the first one, before memory is read."""


def inference_names() -> Answer:
    """The names of the inference models."""
    return {"names": import_module("benchmarks.speed.inference.cases").names()}


def prepare(part: str, name: str, folder: str, sizes: bool) -> Answer:
    """Write the files of a training row, or of a model's inference rows; folders by the rows' names.

    On one core: several threads of OpenMP would wait for each other where the machine has other work.
    """
    machine.bind(1)
    if part == "training":
        import_module("benchmarks.speed.training.modules").prepare(TRAINING[name], Path(folder))
        return {name: folder}
    cases = import_module("benchmarks.speed.inference.cases")
    found: Answer = cases.prepare(name, Path(folder), sizes=sizes)
    return found


def turns(
    part: str, row: str, folder: str, cores: int, engines: list[str], seconds: float, stages: bool = False
) -> Answer:
    """All engines in turns. One that cannot run the model is left out, with its reason."""
    machine.bind(cores)
    running, failures = list[Engine](), dict[str, str]()
    with tempfile.TemporaryDirectory() as cache:
        for name in engines:
            make = partial(_make, part, row, folder, cores, name, Path(cache) / name)
            try:
                running.append(Engine.start(name, make))
            except (RuntimeError, ValueError, NotImplementedError) as fault:
                failures[name] = _told(fault)
        take_turns(running, seconds)
        facts = next((engine.step.facts(stages=stages) for engine in running if engine.name == OWN), {})
    return {"engines": _measured(part, row, running), "failures": failures, "facts": facts}


def _told(fault: Exception) -> str:
    """The kind of an exception and the last line of its message, which says the reason."""
    *_, reason = str(fault).strip().rpartition("\n")
    return f"{type(fault).__name__}: {reason}"


def _measured(part: str, row: str, engines: list[Engine]) -> Answer:
    calls = TRAINING[row].calls if part == "training" else 1
    return {
        engine.name: {
            "ms": 1e3 * engine.median / calls,
            "ready": engine.ready,
            "calls": len(engine.times),
            "loss": engine.first if part == "training" else None,
            "apart": apart(engine.first, engines[0].first),
        }
        for engine in engines
    }


def apart(found: Any, reference: Any) -> float:
    """The largest error of a loss, or of one of several outputs."""
    if isinstance(reference, list):
        return max(error(one, other) for one, other in zip(found, reference, strict=True))
    return error(found, reference)


def first(part: str, row: str, folder: str, cores: int, engine: str, cache: str) -> Answer:
    """One engine from its import to the result of its first step, and the memory that it takes."""
    machine.bind(cores)
    began = time.perf_counter()
    step = _make(part, row, folder, cores, engine, Path(cache))
    step(0)
    seconds = time.perf_counter() - began
    for i in range(MORE):
        step(1 + i)
    return {"seconds": seconds, "peak": machine.peak_memory()}


def sweep(family: str, axis: str, values: list[int], seconds: float, cores: int) -> Answer:
    """The points of one sweep."""
    machine.bind(cores)
    points = import_module("benchmarks.speed.sweep.measure").sweep(family, axis, values, seconds, cores)
    return {"points": [asdict(point) for point in points]}


def _make(part: str, row: str, folder: str, cores: int, engine: str, cache: Path) -> Step:
    cache.mkdir(parents=True, exist_ok=True)
    make = import_module(f"benchmarks.speed.{MODULES[part][engine]}").make
    prepared = Prepared.read(Path(folder))
    arguments = (TRAINING[row], prepared) if part == "training" else (prepared,)
    step: Step = make(*arguments, cores, cache)
    return step


KINDS: dict[str, Callable[..., Answer]] = {
    function.__name__: function for function in (inference_names, prepare, turns, first, sweep)
}


def main() -> None:
    """Read the job that the first argument holds, do it, and write the answer to the file that it names."""
    job = json.loads(sys.argv[1])
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    answer = KINDS[job["kind"]](**job["arguments"])
    Path(job["answer"]).write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
