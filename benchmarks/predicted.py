"""Cycles of the innermost loops of contractions of bytes, as LLVM's schedulers predict them. By hand:

    python benchmarks/predicted.py [NAME_PART ...] [--target avx512vnni] [--cpus sapphirerapids] [--mca llvm-mca-19]

For processors that are not at hand: the loop of the most dot products is taken from the assembly of each case of
``integer.py`` and given to ``llvm-mca`` (a tool of LLVM, 19 or newer), which knows ports and latencies but neither
caches nor what runs around the loop. Percentages are of the dot products that the ports could do.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys

from integer import cases

from glowtrain.backends.cpu.contraction import generate
from glowtrain.backends.llvm.toolchain import assembly
from glowtrain.backends.target import Target

DOT = "vpdpbusd"
A_CYCLE = {"sapphirerapids": 1, "icelake-server": 2}
"""Dot products of 512 bits that each of LLVM's models can start in a cycle."""
ROUNDS = 200


def innermost(text: str) -> list[str]:
    """The lines of the loop with the largest share of dot products."""
    lines, labels, best = text.splitlines(), dict[str, int](), list[str]()
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L\w+):", line):
            labels[label[1]] = number
        elif (jump := re.match(r"\s+j\w+\s+(\.L\w+)", line)) and jump[1] in labels:
            best = max(best, lines[labels[jump[1]] + 1 : number], key=lambda body: dots(body) / max(len(body), 1))
    return best


def dots(lines: list[str]) -> int:
    """How many dot products there are."""
    return sum(DOT in line for line in lines)


def cycles(lines: list[str], cpu: str, mca: str) -> float:
    """Cycles of one round of a loop."""
    command = [mca, "-mtriple=x86_64", f"-mcpu={cpu}", f"-iterations={ROUNDS}"]
    told = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=True).stdout
    found = re.search(r"Total Cycles:\s+(\d+)", told)
    assert found is not None, told
    return int(found[1]) / ROUNDS


def main() -> int:
    """Print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--target", default="avx512vnni")
    parser.add_argument("--cpus", nargs="+", default=list(A_CYCLE), choices=list(A_CYCLE))
    parser.add_argument("--mca", default="llvm-mca")
    chosen = parser.parse_args()
    target = Target.named(chosen.target)
    for case in cases():
        if chosen.parts and not any(part in case.name for part in chosen.parts):
            continue
        loop = innermost(assembly(generate(case.of_bytes(), "contract", target).text, target))
        if count := dots(loop):
            shares = [f"{cpu} {count / A_CYCLE[cpu] / cycles(loop, cpu, chosen.mca):6.1%}" for cpu in chosen.cpus]
            print(f"{case.name:32} {count:3} dots of {len(loop):3} lines; {'; '.join(shares)}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
