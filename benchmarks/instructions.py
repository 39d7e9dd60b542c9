"""How many instructions does a model take on a processor that is not at hand? By hand:

    apt-get install bochs bochs-term binutils
    python benchmarks/instructions.py FILE.onnx ... [--target avx512vnni] [--least 0.01] [--output FILE]

Bochs emulates a PC with that processor (see ``emulated.py``), whose time stamps count instructions. For each kernel of
a model of bytes: its instructions, its share of all, and how many there are for each ``vpdpbusd`` that its products
need. How long they take, and which run at once, is not known here. Symbolic dimensions are 1, inputs 0.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from pathlib import Path

import numpy as np
from emulated_model import Model
from emulated_pc import PROCESSORS, Pc

import glowtrain as gt
from glowtrain.backends.cpu.events.log import EventLog
from glowtrain.backends.cpu.recognise import recognise
from glowtrain.backends.cpu.step import generate
from glowtrain.backends.llvm.toolchain import compile_text
from glowtrain.backends.target import Target
from glowtrain.graph import Template
from glowtrain.program.program import Kernel
from glowtrain.stages import Options


def counted(path: Path, target: Target, pc: Pc) -> list[tuple[Kernel, int]]:
    """The kernels of a model, in order, and the instructions that each takes."""
    loaded = gt.load(path)
    graph = loaded.bind(dict.fromkeys(loaded.symbols, 1)) if isinstance(loaded, Template) else loaded
    feed = {value.name: np.zeros(value.shape, value.dtype.numpy) for value in graph.inputs}
    model = Model.of(graph, target, feed)
    code = generate(model.plan, target, Options(profile=True))
    log = EventLog(code.counted, threads=1)
    kernels = [kernel for kernel in model.plan.program.instructions if isinstance(kernel, Kernel)]
    if [kernel.name for kernel in kernels] != [call.name for call in code.counted]:
        raise SystemExit(f"{path}: models with loops over kernels are not counted")
    job = model.job(pc.folder, lambda _: compile_text(code.text, target), log=log.memory)
    (log.memory[:],) = pc.run(job)
    spans = log.spans()[: len(kernels)]  # the step itself is the last
    return list(zip(kernels, (spans["end"] - spans["begin"]).tolist(), strict=True))


def multiply_adds(kernel: Kernel) -> int:
    """Those of a kernel that is a contraction of bytes, padding included."""
    product = recognise(kernel)
    if product is None or product.total.dtype.is_float:
        return 0
    return math.prod(index.extent for index in product.indices)


def lines(path: Path, target: Target, pc: Pc, least: float) -> list[str]:
    """A table of the kernels that take at least such a part of all, and a line for the model."""
    each = target.vector_bits // 8  # multiply-adds of one vpdpbusd: one for each byte
    found = counted(path, target, pc)
    total, needed = sum(count for _, count in found), sum(multiply_adds(kernel) for kernel, _ in found) / each
    if not needed:
        raise SystemExit(f"{path} has no products of bytes: is it quantized?")
    told = [
        f"{path.stem}, {target.name}: {total:,} instructions; {needed:,.0f} of products, {total / needed:.2f} for each"
    ]
    for kernel, count in sorted(found, key=lambda item: -item[1]):
        if count >= least * total:
            own = multiply_adds(kernel) / each
            ratio = f"{count / own:6.2f}" if own else "      "
            told.append(f"{count:12,} {count / total:6.1%} {ratio}  {kernel.name}")
    return told


def main() -> int:
    """Print a table for each file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--target", default="avx512vnni", choices=list(PROCESSORS))
    parser.add_argument("--least", type=float, default=0.01)
    parser.add_argument("--bochs", default="bochs-bin")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    told = []
    with tempfile.TemporaryDirectory() as folder:
        pc = Pc(chosen.bochs, PROCESSORS[chosen.target][0], Path(folder))
        for path in chosen.files:
            table = [*lines(path, Target.named(chosen.target), pc, chosen.least), ""]
            print("\n".join(table), flush=True)
            told += table
    if chosen.output:
        chosen.output.write_text("\n".join(told))
    return 0


if __name__ == "__main__":
    sys.exit(main())
