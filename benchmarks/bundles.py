"""Bundles beside C from emx-onnx-cgen: predictions of one example, time, RAM and code.

    python benchmarks/bundles.py --emx emx-onnx-cgen [--models mlp cnn] [--seconds 2] [--output FILE]

Both are compiled into one program, which calls them in turns, and says the shortest time of each; gcc compiles the C of
emx-onnx-cgen with -O3 -march=native -ffast-math for times, and with -Os for the size of its code. Its RAM are arrays
for intermediate results; a bundle's are variables, arena, handle and stack. It needs PyTorch, gcc, and
emx-onnx-cgen from PyPI, which may be in an environment of its own.
"""

from __future__ import annotations

import argparse
import math
import platform
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import glowtrain as gt
from benchmarks.peers.export import export
from benchmarks.speed.training.modules import MODULES

NAMES = ("mlp", "cnn", "resnet20", "mobilenetv2")
FAST, SMALL = ("-O3", "-march=native", "-ffast-math"), ("-Os",)


@dataclass(frozen=True)
class Measured:
    """Of one engine: milliseconds of a prediction; bytes of RAM, and of code that is to be small."""

    milliseconds: float
    ram: int
    code: int


def main() -> None:
    """Write a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--emx", default="emx-onnx-cgen", help="its command")
    parser.add_argument("--models", nargs="*", default=NAMES, choices=NAMES)
    parser.add_argument("--seconds", type=float, default=2, help="how long each model is measured")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    lines = [f"{_processor()}, one core; ms, bytes of RAM, bytes of code at the size setting"]
    for name in chosen.models:
        with tempfile.TemporaryDirectory() as folder:
            ours, theirs = measured(name, chosen.emx, chosen.seconds, Path(folder))
        lines += [line(name, "bundle", ours), line(name, "emx-onnx-cgen", theirs)]
        print("\n".join(lines[-2:]), flush=True)
    if chosen.output:
        chosen.output.write_text("\n".join([*lines, ""]), encoding="utf-8")


def line(name: str, engine: str, found: Measured) -> str:
    """A row of the table."""
    return f"{name:12} {engine:14} {found.milliseconds:9.4f} {found.ram:>10,} {found.code:>8,}"


def measured(name: str, emx: str, seconds: float, folder: Path) -> tuple[Measured, Measured]:
    """A bundle, and the C of emx-onnx-cgen."""
    module = MODULES[name]().eval()
    path = folder / "model.onnx"
    path.write_bytes(export(module, module.make_batch(0, 1)[0]))
    model = gt.load(path)
    made = gt.bundle(model, folder, name="b")
    small = gt.bundle_size(model, optimize="size")
    command = [emx, "compile", "--large-temp-threshold", "0", "--large-weight-threshold", "0", "--model-name", "theirs"]
    _run(*command, str(path), str(folder / "theirs.c"))
    predict = made.module.functions[0]
    counts = [each.type.size for each in (*predict.inputs, *predict.outputs)]
    (folder / "times.c").write_text(_PROGRAM % (*counts, seconds), encoding="ascii")
    sources = [str(folder / each) for each in ("times.c", "theirs.c", "b.o")]
    _run("gcc", *FAST, f"-I{folder}", *sources, "-lm", "-o", str(folder / "times"))
    ours, theirs = map(float, _run(str(folder / "times")).split())
    _run("gcc", *SMALL, "-c", str(folder / "theirs.c"), "-o", str(folder / "small.o"))
    size = made.size()
    return Measured(ours, size.ram, small.code), Measured(theirs, intermediate(folder / "theirs.c"), _text(folder))


def intermediate(source: Path) -> int:
    """Bytes of the arrays that the C program has for intermediate results: all floats."""
    body = source.read_text(encoding="utf-8").rpartition("void theirs(")[2]
    found = re.findall(r"^ +(?:static )?float \w+((?:\[\d+\])+);", body, re.MULTILINE)
    return 4 * sum(math.prod(map(int, re.findall(r"\d+", extents))) for extents in found)


def _text(folder: Path) -> int:
    """Bytes of functions in the small object: what `size` counts as text has the weights, too."""
    rows = _run("size", "-A", str(folder / "small.o")).splitlines()
    return sum(int(row.split()[1]) for row in rows if row.startswith(".text"))


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command[:3])}: {done.stderr[-2000:]}")
    return done.stdout


def _processor() -> str:
    names = re.findall(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return names[0] if names else platform.processor()


_PROGRAM = """#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "b.h"

static float x[%d], ours[%d], other[sizeof ours / sizeof *ours];
static _Alignas(B_ALIGNMENT) unsigned char arena[B_ARENA_BYTES + 1];
void theirs(const float *x, float *y);

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1e3 + at.tv_nsec * 1e-6;
}

int main(void) {
  b_handle handle;
  b_memory memory = {.version = B_VERSION, .arena = arena, .arena_bytes = sizeof arena};
  if (b_init(&handle, &memory)) return 1;
  for (size_t n = 0; n < sizeof x / sizeof *x; n++) x[n] = rand() / (float)RAND_MAX - 0.5f;
  double best[2] = {1e9, 1e9}, end = now() + 1e3 * %g;
  do {
    double began = now();
    if (b_predict(&handle, x, ours)) return 1;
    double between = now();
    theirs(x, other);
    double ended = now();
    if (between - began < best[0]) best[0] = between - began;
    if (ended - between < best[1]) best[1] = ended - between;
  } while (now() < end);
  for (size_t n = 0; n < sizeof ours / sizeof *ours; n++) {
    float apart = ours[n] - other[n];
    if (apart > 1e-2f || apart < -1e-2f) return 2;
  }
  printf("%%.6f %%.6f\\n", best[0], best[1]);
  return 0;
}
"""


if __name__ == "__main__":
    main()
