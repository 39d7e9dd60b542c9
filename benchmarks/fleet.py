"""Training steps of a fleet: the same bits for any number of ranks, and times beside one process and PyTorch's DDP.

    python benchmarks/fleet.py [--rows mlp cnn resnet20] [--shards 4] [--ranks 1 2] [--steps 20] [--turns 3] [--ddp]
                               [--output FILE]

Each rank has one core. Engines run in turns, each in processes of its own that a launcher starts; the time of a step is
the median over all turns' steps behind the first five. Needs PyTorch, mpi4py and MPICH.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
ROWS = ("mlp", "cnn", "resnet20", "lstm", "gpt", "vit")
WARM = 5
"""Steps that are not timed."""


def worker(engine: str, row: str, folder: Path, shards: int, steps: int) -> dict[str, Any]:
    """One rank's steps: seconds of each, and a checksum of the parameters behind them."""
    from benchmarks.speed.prepared import Prepared
    from benchmarks.speed.training.rows import TRAINING

    prepared = Prepared.read(folder)
    began = time.perf_counter()
    make = ddp if engine == "ddp" else compiled
    step, digest = make(TRAINING[row], prepared, 0 if engine == "process" else shards)
    step(0)
    start = time.perf_counter() - began
    times = []
    for number in range(1, steps):
        began = time.perf_counter()
        step(number)
        times.append(time.perf_counter() - began)
    return {"start": start, "times": times[WARM:], "digest": digest()}


def compiled(row: Any, prepared: Any, shards: int) -> Any:
    """Our steps, in a fleet where there are shards."""
    import glowtrain as gt
    from benchmarks.speed.training.compiled import loss, optimizer
    from glowtrain.fleet.digest import digest

    threads = 1 if shards else int(os.environ["CORES"])
    fleet = gt.fleet.mpi(shards=shards) if shards else None
    model = gt.load(prepared.model, open_batch=True)
    trainer = gt.Trainer(model, loss(row), optimizer(row), unbiased=True, threads=threads, fleet=fleet)
    batches = prepared.batches
    return lambda number: trainer.step(batches[number % len(batches)]), lambda: digest(trainer.variables())


def ddp(row: Any, prepared: Any, _: int) -> Any:
    """PyTorch's, each rank with its part of the batch."""
    import torch
    import torch.distributed as dist

    from benchmarks.speed.training.pytorch import TorchStep

    torch.set_num_threads(1)
    rank, size = (int(os.environ[name]) for name in ("PMI_RANK", "PMI_SIZE"))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"], RANK=str(rank), WORLD_SIZE=str(size))
    dist.init_process_group("gloo")
    step = TorchStep(row, prepared)
    step.module = torch.nn.parallel.DistributedDataParallel(step.module)
    step.batches = [{name: a.chunk(size)[rank] for name, a in batch.items()} for batch in step.batches]
    return step, lambda: ""


def run(engine: str, ranks: int, row: str, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The slowest rank's report of one run."""
    asked = {"engine": engine, "row": row, "folder": str(folder), "shards": options.shards, "steps": options.steps}
    command = [sys.executable, __file__, "--worker", json.dumps(asked)]
    cores = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1") | {"CORES": str(max(options.ranks))}
    port = {"PORT": str(20_000 + os.getpid() % 20_000)}
    if engine != "process":
        command = [str(Path(sys.executable).parent / "mpiexec"), "-n", str(ranks), *command]
    began = time.perf_counter()
    done = subprocess.run(command, env=os.environ | cores | port, capture_output=True, text=True, check=True)
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    slowest: dict[str, Any] = max(reports, key=lambda report: report["times"])
    return slowest | {"process": time.perf_counter() - began, "digests": {report["digest"] for report in reports}}


def table(row: str, folder: Path, options: argparse.Namespace) -> list[str]:
    """A line for each engine."""
    engines = [("fleet", ranks) for ranks in options.ranks] + [("process", 1)]
    engines += [("ddp", ranks) for ranks in options.ranks if ranks > 1 and options.ddp]
    reports: dict[tuple[str, int], list[dict[str, Any]]] = {engine: [] for engine in engines}
    for _ in range(options.turns):
        for engine in engines:
            reports[engine].append(run(*engine, row, folder, options))
    times = {e: statistics.median(t for report in found for t in report["times"]) for e, found in reports.items()}
    digests = set().union(*(report["digests"] for e, found in reports.items() if e[0] == "fleet" for report in found))
    lines, first = [], times["fleet", options.ranks[0]]
    for (engine, ranks), found in reports.items():
        start = statistics.median(report["start"] for report in found)
        name = {"process": f"one process, {max(options.ranks)} threads"}.get(engine, f"{engine}, {ranks} x 1 core")
        took = times[engine, ranks]
        lines.append(f"{row:10} {name:24} {took * 1e3:9.2f} ms {first / took:6.2f} x  first step {start:6.2f} s")
    lines.append(f"{row:10} parameters of all fleets after {options.steps} steps: {', '.join(sorted(digests))}")
    return lines


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=list(ROWS), choices=ROWS)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--ddp", action="store_true", help="PyTorch's DDP (gloo), too")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        asked = json.loads(options.worker)
        print(json.dumps(worker(**asked | {"folder": Path(asked["folder"])})), flush=True)
        return
    from benchmarks.speed.training import modules
    from benchmarks.speed.training.rows import TRAINING

    lines = []
    for row in options.rows:
        with tempfile.TemporaryDirectory() as folder:
            modules.prepare(TRAINING[row], Path(folder))
            lines += table(row, Path(folder), options)
            print("\n".join(lines[-len(options.ranks) - 3 :]), flush=True)
    if options.output:
        options.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
