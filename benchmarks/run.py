"""Training and inference beside other engines: one table, and plots. By hand, on a quiet machine:

    python benchmarks/run.py [--rows NAME ...] [--cores 1 2] [--peers torch jax onnxruntime openvino] [--first-steps]
                             [--precision bf16]

Each row runs in a fresh process for each number of cores; there, engines take turns, and medians are reported. They
start from the same parameters and data, and must agree on the first result. Needs the ``peers`` extra; a peer that is
not installed is left out. ``speed.json``, ``speed.md`` and a plot for each part go to the folder of ``--output``, anew
after each row. With ``--precision bf16`` Glowtrain and PyTorch train in bf16, too, beside themselves in f32, and files
are called ``speed_bf16.md`` and so on. The exit code is 1 if an engine's first loss is another or Glowtrain cannot run
a row.
"""

from __future__ import annotations

import argparse
import importlib.util
import shlex
import sys
import tempfile
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.speed import engines, figures, jobs, machine, tables
from benchmarks.speed.engines import KEEPERS, MODULES, NARROW, OWN
from benchmarks.speed.results import Result, Timing, merged, read, write
from benchmarks.speed.training.rows import TRAINING

RESULTS = Path(__file__).resolve().parent / "results"
PEERS = [name for part in MODULES.values() for name in part if name != OWN and name not in NARROW]
PACKAGES = ("numpy", "llvmlite", "torch", "jax", "onnxruntime", "openvino")
"""Whose versions are reported."""


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rows", nargs="+", default=["*"], metavar="NAME", help="names, or patterns such as 'imagenet/*'")
    add("--parts", nargs="+", choices=MODULES, default=list(MODULES), help="training, inference or both")
    add("--cores", nargs="+", type=int, default=[1], help="numbers of cores, each in processes of its own")
    add("--peers", nargs="*", choices=PEERS, default=PEERS, help="other engines; those of the other part are ignored")
    add("--precision", choices=["bf16"], help="training also with products in bf16, beside PyTorch's autocast")
    add("--seconds", type=float, default=5.0, help="measuring time for each row and number of cores")
    add("--first-steps", action="store_true", help="also first steps and memory, in a fresh process for each engine")
    add("--stages", action="store_true", help="compile training steps once more and time each stage")
    add("--sizes", action="store_true", help="models that others ship at all their sizes, not only at the first")
    add("--output", type=Path, default=RESULTS, help="folder of the results")
    add("--add", action="store_true", help="keep the results of other rows that are there")
    add("--list", action="store_true", help="print the names of what would run, and stop")
    return parser.parse_args()


def models(chosen: argparse.Namespace) -> list[tuple[str, str]]:
    """Part and name of each training row and each inference model that was asked for.

    Raises :class:`jobs.JobError` where inference models cannot be listed, as without ONNX Runtime.
    """
    listed = {"training": list(TRAINING)} if "training" in chosen.parts else {}
    if "inference" in chosen.parts:
        listed["inference"] = jobs.run("inference_names")["names"]
    return [
        (part, name)
        for part, names in listed.items()
        for name in names
        if any(fnmatchcase(name, pattern) for pattern in chosen.rows)
    ]


def results_of(chosen: argparse.Namespace, part: str, name: str) -> Iterator[Result]:
    """The model at each of its sizes and on each number of cores."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            rows = jobs.run("prepare", part=part, name=name, folder=folder, sizes=chosen.sizes)
        except jobs.JobError as fault:
            yield Result(part, name, chosen.cores[0], {}, {"all": str(fault)})
            return
        for row, place in rows.items():
            for cores in chosen.cores:
                yield measure(chosen, part, row, place, cores)


def measure(chosen: argparse.Namespace, part: str, row: str, folder: str, cores: int) -> Result:
    """One row on so many cores."""
    work = {"part": part, "row": row, "folder": folder, "cores": cores}
    peers = [peer for peer in chosen.peers if importlib.util.find_spec(peer)]
    names = engines.names(part, peers, narrow=chosen.precision is not None)
    try:
        answer = jobs.run("turns", **work, engines=names, seconds=chosen.seconds, stages=chosen.stages)
    except jobs.JobError as fault:
        return Result(part, row, cores, {}, {"all": str(fault)})
    timings = {name: Timing(**timing) for name, timing in answer["engines"].items()}
    result = Result(part, row, cores, timings, answer["failures"], answer["facts"])
    if chosen.first_steps and (part != "training" or TRAINING[row].calls == 1):
        for name, timing in timings.items():
            try:
                first_steps(name, timing, work)
            except jobs.JobError as fault:
                result.failures[name] = f"its first step in a fresh process: {fault}"
    return result


def first_steps(engine: str, timing: Timing, work: dict[str, object]) -> None:
    """Fill in what fresh processes tell of one engine."""
    with tempfile.TemporaryDirectory() as cache:
        cold = jobs.run("first", **work, engine=engine, cache=cache)
        timing.cold, timing.peak = cold["seconds"], cold["peak"]
        if engine in KEEPERS:
            timing.warm = jobs.run("first", **work, engine=engine, cache=cache)["seconds"]


def publish(folder: Path, suffix: str, described: dict[str, str], results: list[Result]) -> None:
    """Write JSON, Markdown and plots, with this behind their names."""
    folder.mkdir(parents=True, exist_ok=True)
    write(folder / f"speed{suffix}.json", described, results)
    command = shlex.join(["python", "benchmarks/run.py", *sys.argv[1:]])
    (folder / f"speed{suffix}.md").write_text(tables.page(described, results, command), encoding="utf-8")
    for part in MODULES:
        of_part = [result for result in results if result.part == part and len(result.timings) > 1]
        if of_part:
            figures.ratios(of_part, folder / f"{part}{suffix}.png")


def told(result: Result) -> str:
    """A line about one result."""
    times = ", ".join(f"{engines.TITLES[name]} {timing.ms:.4g} ms" for name, timing in result.timings.items())
    faults = [f"{name} DISAGREES by {result.timings[name].apart:.1e}" for name in result.disagreeing]
    faults += [f"{name} failed: {reason}" for name, reason in result.failures.items()]
    return "; ".join([f"{result.place}: {times}", *faults])


def main() -> int:
    """Measure, print and write."""
    chosen = options()
    try:
        asked = models(chosen)
    except jobs.JobError as fault:
        print(f"inference models cannot be listed: {fault}; --parts training leaves them out", file=sys.stderr)
        return 1
    if chosen.list:
        print(*(name for _, name in asked), sep="\n")
        return 0
    described, results = machine.describe(PACKAGES), list[Result]()
    suffix = f"_{chosen.precision}" if chosen.precision else ""
    kept = read(chosen.output / f"speed{suffix}.json") if chosen.add else []
    for part, name in asked:
        for result in results_of(chosen, part, name):
            results.append(result)
            print(told(result), flush=True)
            publish(chosen.output, suffix, described, merged(kept, results))
    if not results:
        print(f"no row is called {' or '.join(chosen.rows)}", file=sys.stderr)
        return 1
    print("\n" + (chosen.output / f"speed{suffix}.md").read_text(encoding="utf-8"))
    faulty = [r for r in results if OWN not in r.timings or (r.part == "training" and r.disagreeing)]
    return int(bool(faulty))


if __name__ == "__main__":
    sys.exit(main())
