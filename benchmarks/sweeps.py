"""Time per multiply-add over sizes, and compile time over depth: where Glowtrain's training steps have cliffs. By hand:

    python benchmarks/sweeps.py [--families mlp lstm] [--axes batch depth] [--cores 1] [--most 256] [--output FOLDER]

Around one size of an MLP, a transformer and an LSTM, one axis at a time. Neighbouring sizes whose times per
multiply-add differ by more than 1.5 are listed: small sizes get cheaper as the cost of a call is shared; what gets more
expensive is worth a look. ``sweeps.json``, ``sweeps.png`` and ``compile.png`` go to the folder of ``--output``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.speed import jobs, machine
from benchmarks.speed.sweep import figures
from benchmarks.speed.sweep.analysis import Point, cliffs, line
from benchmarks.speed.sweep.axes import AXES, BASES, axes_of, values

RESULTS = Path(__file__).resolve().parent / "results"
Sweeps = dict[tuple[str, str], list[Point]]
"""Points by family and axis."""


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--families", nargs="+", choices=BASES, default=list(BASES), help="kinds of networks")
    add("--axes", nargs="+", choices=AXES, default=list(AXES), help="what is varied")
    add("--cores", type=int, default=1, help="how many cores to run on")
    add("--seconds", type=float, default=0.3, help="measuring time for each point")
    add("--most", type=int, default=1024, help="leave out larger values")
    add("--output", type=Path, default=RESULTS, help="folder of the results")
    return parser.parse_args()


def told(family: str, axis: str, points: list[Point]) -> list[str]:
    """Cliffs of one sweep, and of depth how linear compile time is."""
    found = [
        f"{family}, {axis} {c.before} -> {c.after}: {c.ratio:.2f} times as long per multiply-add"
        for c in cliffs(points)
    ]
    if axis == "depth" and len(points) > 1:
        fit = line([point.value for point in points], [point.compiled for point in points])
        found.append(f"{family}, compile time: {fit.start:.2f} s + {fit}")
    return found


def described(sweeps: Sweeps) -> list[dict[str, Any]]:
    """The sweeps as JSON."""
    return [
        {
            "family": family,
            "axis": axis,
            "around": asdict(BASES[family]),
            "points": [asdict(point) for point in points],
            "cliffs": [asdict(cliff) for cliff in cliffs(points)],
        }
        for (family, axis), points in sweeps.items()
    ]


def publish(folder: Path, facts: Mapping[str, str], sweeps: Sweeps) -> None:
    """Write JSON and plots."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": dict(facts), "sweeps": described(sweeps)}, indent=1)
    (folder / "sweeps.json").write_text(text + "\n", encoding="utf-8")
    figures.work(sweeps, folder / "sweeps.png")
    depths = {family: points for (family, axis), points in sweeps.items() if axis == "depth" and len(points) > 1}
    if depths:
        figures.compiling(depths, folder / "compile.png")


def main() -> int:
    """Measure, print and write, anew after each sweep."""
    chosen = options()
    facts, sweeps = machine.describe(("numpy", "llvmlite")) | {"cores used": str(chosen.cores)}, Sweeps()
    for family in chosen.families:
        for axis in (axis for axis in axes_of(family) if axis in chosen.axes):
            sizes = values(family, axis, chosen.most)
            work = {"family": family, "axis": axis, "values": sizes, "seconds": chosen.seconds, "cores": chosen.cores}
            try:
                points = [Point(**point) for point in jobs.run("sweep", **work)["points"]]
            except jobs.JobError as fault:
                print(f"{family}, {axis}: {fault}", file=sys.stderr)
                return 1
            sweeps[family, axis] = points
            print(f"{family}, {axis}: {min(p.each for p in points):.3g} ns a multiply-add at best", flush=True)
            for text in told(family, axis, points):
                print(f"  {text}", flush=True)
            publish(chosen.output, facts, sweeps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
