"""Do quantized models compute the same integers in ONNX Runtime, and on narrower targets? By hand:

    python benchmarks/peers/fashion.py FILE.onnx ... [--examples 10000] [--targets scalar] [--output F]

Each file, a QDQ model of Fashion-MNIST's images such as ``benchmarks/quantization.py`` makes, runs compiled over the
test images, beside ONNX Runtime (exact sums of bytes: ``session.x64quantprecision``) and beside itself compiled for
other targets that this processor can run:

classes   images that are given another class by the whole network
layers    elements of all QuantizeLinear results that differ, and by how much, where each layer is given the same
          integers: a copy of the file in which every DequantizeLinear of a run-time value reads an input of its own
network   the same of the network as it is, where what one layer does differently is handed on to the next

Exit code 1 for another class, more than 0.1 % of a model's layers' integers that differ, or any of them by more than 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.target import Target
from glowtrain.onnx_io.checks.other_runtimes import EXACT_BYTES

BATCH = 250
BOUND = 1e-3

Arrays = Mapping[str, np.ndarray]
Run = Callable[[Arrays], Arrays]


def rounded_values(model: onnx.ModelProto) -> list[str]:
    """The results of QuantizeLinear that depend on the network's input."""
    known = {value.name for value in model.graph.initializer}
    nodes = (node for node in model.graph.node if node.op_type == "QuantizeLinear" and node.input[0] not in known)
    return [node.output[0] for node in nodes]


def exposed(path: Path, folder: Path) -> Path:
    """A copy of the model that returns its :func:`rounded_values` as well."""
    model = onnx.load(path)
    types = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    there = {value.name for value in model.graph.output}
    model.graph.output.extend(types[name] for name in rounded_values(model) if name not in there)
    target = folder / f"{path.stem}-exposed.onnx"
    onnx.save(model, target)
    return target


def parted(path: Path, folder: Path) -> Path:
    """A copy of an :func:`exposed` model whose readers of rounded values read inputs ``given_…`` instead."""
    model = onnx.load(path)
    rounded = set(rounded_values(model))
    for value in [value for value in model.graph.output if value.name in rounded]:
        model.graph.input.append(value)
        model.graph.input[-1].name = f"given_{value.name}"
    for node in model.graph.node:
        node.input[:] = [f"given_{name}" if name in rounded else name for name in node.input]
    target = folder / f"{path.stem}-parted.onnx"
    onnx.save(model, target)
    return target


def runtime(path: Path) -> Run:
    """ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry(EXACT_BYTES, "1")
    session = onnxruntime.InferenceSession(str(path), options)
    names, given = [value.name for value in session.get_outputs()], [value.name for value in session.get_inputs()]
    return lambda feed: dict(zip(names, session.run(names, {name: feed[name] for name in given}), strict=True))


def compiled(path: Path, target: str) -> Run:
    """The model as native code."""
    template = gt.load(path)
    function, given = gt.compile(template, Cpu(Target.named(target))), list(template.inputs)
    return lambda feed: function({name: feed[name] for name in given})


@dataclass
class Integers:
    """Elements that two engines were compared in."""

    count: int = 0
    different: int = 0
    furthest: int = 0

    def add(self, found: Arrays, expected: Arrays) -> None:
        """Count the integers of one batch."""
        for name, array in expected.items():
            if array.dtype.kind in "iu":
                apart = np.abs(found[name].astype(np.int32) - array.astype(np.int32))
                self.count += apart.size
                self.different += int(np.count_nonzero(apart))
                self.furthest = max(self.furthest, int(apart.max(initial=0)))

    def __str__(self) -> str:
        share = 100 * self.different / max(self.count, 1)
        return f"{self.different:,} of {self.count:,} ({share:.4f} %), by at most {self.furthest}"


@dataclass
class Difference:
    """What two engines disagree on."""

    images: int = 0
    classes: int = 0
    layers: Integers = field(default_factory=Integers)
    network: Integers = field(default_factory=Integers)

    @property
    def fits(self) -> bool:
        layers = self.layers
        return not self.classes and layers.furthest <= 1 and layers.different <= BOUND * layers.count

    def __str__(self) -> str:
        classes = f"{self.classes} of {self.images:,} images of another class"
        return f"{classes}; integers that differ: layers {self.layers}; network {self.network}"


@dataclass(frozen=True)
class Engine:
    """A model, whole and in parts."""

    whole: Run
    parts: Run

    @classmethod
    def made(cls, path: Path, folder: Path, make: Callable[[Path], Run]) -> Engine:
        whole = exposed(path, folder)
        return cls(make(whole), make(parted(whole, folder)))


def compare(ours: Engine, others: Mapping[str, Engine], images: np.ndarray) -> dict[str, Difference]:
    """What each of the other engines computes differently."""
    found = {name: Difference() for name in others}
    for start in range(0, len(images), BATCH):
        batch = {"x": images[start : start + BATCH]}
        whole = ours.whole(batch)
        given = batch | {f"given_{name}": array for name, array in whole.items()}
        parts = ours.parts(given)
        for name, other in others.items():
            difference, there = found[name], other.whole(batch)
            difference.images += len(batch["x"])
            difference.classes += int((whole["scores"].argmax(1) != there["scores"].argmax(1)).sum())
            difference.network.add(whole, there)
            difference.layers.add(parts, other.parts(given))
    return found


def main() -> int:
    """Print a line for each file and engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--examples", type=int, default=10_000)
    parser.add_argument("--targets", default="scalar", help="separated by commas; none: an empty string")
    parser.add_argument("--output", type=Path)
    chosen = parser.parse_args()
    held = gt.data.load("fashion-mnist").valid
    assert held is not None
    targets = [name for name in chosen.targets.split(",") if name]
    lines, fine = [], True
    with tempfile.TemporaryDirectory() as folder:
        for file in chosen.files:
            makers = {"ONNX Runtime": runtime, **{name: partial(compiled, target=name) for name in targets}}
            others = {name: Engine.made(file, Path(folder), make) for name, make in makers.items()}
            ours = Engine.made(file, Path(folder), partial(compiled, target="host"))
            for name, found in compare(ours, others, held["x"][: chosen.examples]).items():
                fine &= found.fits
                lines.append(f"{'ok  ' if found.fits else 'FAIL'} {file.stem} beside {name}: {found}")
                print(lines[-1], flush=True)
    if chosen.output:
        chosen.output.write_text("\n".join(lines) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
