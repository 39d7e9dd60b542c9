"""Time of one training step: Glowtrain's compiled step, PyTorch eager and JAX jit, side by side. By hand:

    python benchmarks/training.py [--cores 2] [--models mlp,gpt] [--seconds 10] [--stages] [--output benchmarks/results]

All three run SGD with momentum from the same parameters over the same batches, in turns of a few steps, in one process
that is bound to one core, or to several; with several, Glowtrain's step on one thread takes part as well. Reported are
medians; a ratio above 1 means that Glowtrain is faster. The first losses must agree. Needs the ``peers`` extra.
"""

from __future__ import annotations

import argparse
import gc
import json
import logging
import os
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BATCHES = {"mlp": 64, "cnn": 64, "resnet20": 32, "mobilenetv2": 32, "lstm": 32, "gpt": 16}
"""The models and how many examples a step takes."""
LR, MOMENTUM = 0.01, 0.9
DISTINCT = 4
"""Different batches, used in turn."""
TURN = 0.05
"""Seconds, at least, that an engine runs before the next one's turn."""
AGREEMENT = 1e-4

Step = Callable[[int], float]


@dataclass
class Engine:
    """One engine: what runs step number ``i``, how long it took to be ready, and the step times in seconds."""

    step: Step
    ready: float
    times: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        return statistics.median(self.times)

    def turn(self) -> None:
        """Steps for :data:`TURN` seconds; the first, which finds another engine's data in the caches, is left out."""
        end, done = time.perf_counter() + TURN, 0
        while done < 3 or time.perf_counter() < end:
            start = time.perf_counter()
            self.step(done)
            if done:
                self.times.append(time.perf_counter() - start)
            done += 1


@dataclass(frozen=True)
class Row:
    """The result for one model; times in milliseconds, compile times in seconds, sizes in bytes."""

    model: str
    batch: int
    glowtrain: float
    serial: float | None
    torch: float | None
    jax: float | None
    compile: float
    jax_compile: float | None
    arena: int
    overhead: float
    steps: int
    stages: dict[str, float]


def measure(name: str, seconds: float, peers: Iterable[str], stages: bool) -> Row:
    """Build one model in all engines and let them take turns. Raises RuntimeError if the first losses differ."""
    import models

    module: Any = models.build(name).train()
    pairs = [(x.numpy(), labels.numpy()) for x, labels in models.make_batches(module, DISTINCT, BATCHES[name])]
    trainer, ready = _trainer(module, pairs[0][0])
    engines = {"glowtrain": Engine(lambda i: trainer.step(_named(pairs[i % DISTINCT])), ready)}
    if len(os.sched_getaffinity(0)) > 1:
        serial, ready = _trainer(module, pairs[0][0], threads=1)
        engines["serial"] = Engine(lambda i: serial.step(_named(pairs[i % DISTINCT])), ready)
    engines |= {peer: PEERS[peer](name, module, pairs) for peer in peers}
    _check(name, {engine: _first_loss(engines[engine]) for engine in engines})
    gc.disable()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for engine in engines.values():
            engine.turn()
    gc.enable()
    plan = trainer_plan(trainer, _named(pairs[0]))
    own = engines["glowtrain"]
    milliseconds = {engine: 1e3 * found.median for engine, found in engines.items()}
    return Row(
        name, BATCHES[name], milliseconds["glowtrain"],
        *(milliseconds.get(other) for other in ("serial", "torch", "jax")), own.ready,
        engines["jax"].ready if "jax" in engines else None, plan.arena, plan.overhead, len(own.times),
        stage_times(trainer.graph) if stages else {},
    )  # fmt: skip


def _first_loss(engine: Engine) -> float:
    """The first step; JAX compiles in it."""
    start = time.perf_counter()
    loss = engine.step(0)
    engine.ready += time.perf_counter() - start
    return loss


def _check(name: str, losses: dict[str, float]) -> None:
    reference = losses["glowtrain"]
    for engine, loss in losses.items():
        if not abs(loss - reference) <= AGREEMENT * abs(reference):
            raise RuntimeError(f"{name}: the first loss is {reference} with glowtrain and {loss} with {engine}")


def _named(pair: tuple[Any, Any]) -> dict[str, Any]:
    return {"x": pair[0], "labels": pair[1]}


def _trainer(module: Any, example: Any, threads: int | None = None) -> tuple[Any, float]:
    """A trainer for the exported module, and the seconds it took to load and compile."""
    import export
    import torch

    import glowtrain as gt

    data = export.export(module, torch.from_numpy(example), exporter="legacy", opset=17, training=True)
    start = time.perf_counter()
    optimizer = gt.optim.SGD(lr=LR, momentum=MOMENTUM)
    loss = gt.losses.softmax_cross_entropy()
    trainer = gt.Trainer(gt.load(data), loss, optimizer, backend=gt.Cpu(cache=None), unbiased=True, threads=threads)
    return trainer, time.perf_counter() - start


def trainer_plan(trainer: Any, inputs: dict[str, Any]) -> Any:
    """The memory plan of a trainer's compiled step."""
    from glowtrain.compiler.walk import planned

    return planned(trainer._step.specialised(inputs).graph)


def torch_engine(name: str, module: Any, pairs: list[tuple[Any, Any]]) -> Engine:
    """PyTorch eager; the module itself is trained."""
    import models
    import torch

    optimizer = torch.optim.SGD(module.parameters(), lr=LR, momentum=MOMENTUM)
    batches = [(torch.from_numpy(x), torch.from_numpy(labels)) for x, labels in pairs]

    def step(i: int) -> float:
        x, labels = batches[i % DISTINCT]
        optimizer.zero_grad()
        loss = models.cross_entropy(module(x), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return float(loss.detach())

    return Engine(step, 0.0)


def jax_engine(name: str, module: Any, pairs: list[tuple[Any, Any]]) -> Engine:
    """JAX jit from the module's present parameters. Tokens and labels are i32: JAX has no i64 unless asked."""
    import jax_models
    import numpy as np

    narrow = [tuple(a.astype(np.int32) if a.dtype == np.int64 else a for a in pair) for pair in pairs]
    trainer = jax_models.JaxTrainer(name, module, LR, MOMENTUM)
    return Engine(lambda i: trainer.step(*narrow[i % DISTINCT]), 0.0)


PEERS: dict[str, Callable[[str, Any, list[tuple[Any, Any]]], Engine]] = {"jax": jax_engine, "torch": torch_engine}
"""JAX copies the parameters when it is made, so it comes before PyTorch moves them."""


def stage_times(graph: Any) -> dict[str, float]:
    """Seconds of each stage of compiling a graph, and of loading what came out."""
    from glowtrain.backends.cpu.backend import Cpu
    from glowtrain.compiler.walk import WALK, walk

    backend = Cpu()
    arrivals = list(walk(graph, stages=backend.stages(WALK)))
    start = time.perf_counter()
    backend.load(arrivals[-1].result)
    loading = time.perf_counter() - start
    return {arrival.stage.name: arrival.seconds for arrival in arrivals} | {"load": loading}


def machine() -> dict[str, str]:
    """What the numbers depend on."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    found = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = set(found.get("flags", "").split())
    vectors = [name for name in ("sse4_2", "avx", "avx2", "fma", "avx512f", "avx512_vnni") if name in flags]
    versions = {name: metadata.version(name) for name in ("torch", "jax", "numpy", "llvmlite")}
    return {
        "processor": found.get("model name") or platform.processor() or platform.machine(),
        "family and model": f"{found.get('cpu family', '?')}, {found.get('model', '?')}",
        "vectors": ", ".join(vectors) or "?",
        "cores": str(os.cpu_count()),
        "cores used": str(len(os.sched_getaffinity(0))),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        **versions,
    }


COLUMNS = (
    "model", "batch", "Glowtrain", "on one thread", "ratio", "PyTorch eager", "ratio", "JAX jit", "ratio",
    "load + compile s", "JAX compile s", "arena MB", "arena / live",
)  # fmt: skip


def table(rows: list[Row], described: dict[str, str]) -> str:
    """The results as a page of Markdown."""
    lines = [
        f"# Training step, cores: {described['cores used']}", "",
        "; ".join(f"{key} {value}" for key, value in described.items()) + ".", "",
        f"SGD with momentum ({LR=}, {MOMENTUM=}), f32; medians over interleaved turns of steps, in ms.",
        "Ratios are the other one / Glowtrain: above 1 means that Glowtrain is faster.", "",
        f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|", *map(_line, rows),
    ]  # fmt: skip
    return "\n".join([*lines, *_stage_lines([row for row in rows if row.stages])]) + "\n"


def _stage_lines(rows: list[Row]) -> list[str]:
    if not rows:
        return []
    names = list(rows[0].stages)
    head = ["", "Seconds of each stage of compiling:", "", f"| model | {' | '.join(names)} |"]
    cells = [" | ".join(f"{row.stages[name]:.2f}" for name in names) for row in rows]
    return [*head, "|---" * (len(names) + 1) + "|", *(f"| {r.model} | {c} |" for r, c in zip(rows, cells, strict=True))]


def _line(row: Row) -> str:
    cells = [row.model, str(row.batch), f"{row.glowtrain:.2f}"]
    for peer in (row.serial, row.torch, row.jax):
        cells += ["-", "-"] if peer is None else [f"{peer:.2f}", f"{peer / row.glowtrain:.2f}"]
    cells += [f"{row.compile:.1f}", "-" if row.jax_compile is None else f"{row.jax_compile:.1f}"]
    cells += [f"{row.arena / 1e6:.1f}", f"{row.overhead:.3f}"]
    return f"| {' | '.join(cells)} |"


def write(rows: list[Row], described: dict[str, str], folder: Path) -> None:
    """``training.json`` and ``training.md``, or ``training-2-cores.json`` and so on."""
    folder.mkdir(parents=True, exist_ok=True)
    cores = len(os.sched_getaffinity(0))
    name = "training" if cores == 1 else f"training-{cores}-cores"
    results = {"machine": described, "rows": [asdict(row) for row in rows]}
    (folder / f"{name}.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / f"{name}.md").write_text(table(rows, described))


def names_of(text: str, known: Iterable[str]) -> list[str]:
    """Names separated by commas. Raises argparse.ArgumentTypeError for an unknown one."""
    names = [name for name in text.split(",") if name]
    wrong = [name for name in names if name not in known]
    if wrong:
        raise argparse.ArgumentTypeError(f"unknown: {', '.join(wrong)}; there are {', '.join(known)}")
    return names


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--models", type=lambda text: names_of(text, BATCHES), default=list(BATCHES), help="separated by commas")
    add("--peers", type=lambda text: names_of(text, PEERS), default=list(PEERS), help="torch, jax, both or '' for none")
    add("--seconds", type=float, default=10.0, help="measuring time for each model")
    add("--stages", action="store_true", help="compile once more and time each stage")
    add("--cores", type=int, default=1, help="how many cores to run on: the last ones")
    add("--output", type=Path, default=HERE / "results", help="folder of the results")
    return parser.parse_args()


def bind(cores: int) -> None:
    """Bind this process to its last cores, before any engine starts threads: XLA makes as many as it may use cores."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-cores:])
    sys.path.insert(0, str(HERE / "peers"))
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    import torch

    torch.set_num_threads(cores)


def main() -> None:
    """Measure, print and write; what is done is written after each model."""
    chosen = options()
    bind(chosen.cores)
    rows, described = [], machine()
    peers = [peer for peer in PEERS if peer in chosen.peers]
    for name in chosen.models:
        rows.append(measure(name, chosen.seconds, peers, chosen.stages))
        print(_line(rows[-1]), flush=True)
        write(rows, described, chosen.output)
    print("\n" + table(rows, described))


if __name__ == "__main__":
    main()
