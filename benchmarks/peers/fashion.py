"""Do quantized models compute the same integers in ONNX Runtime, and on narrower targets? By hand:

    python benchmarks/peers/fashion.py FILE.onnx ... [--examples 10000] [--targets scalar] [--output F]

Each file, a QDQ model of Fashion-MNIST's images such as ``benchmarks/quantization.py`` makes, runs compiled over the
test images, beside ONNX Runtime (exact sums of bytes: ``session.x64quantprecision``) and beside itself compiled for
other targets that this processor can run:

class     images that are given another class
integers  elements of all QuantizeLinear results, in a copy of the file that returns them, which differ; by how much

Exit code 1 for another class, more than 0.1 % of integers that differ, or any by more than 1.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.target import Target
from glowtrain.onnx_io.outside import EXACT_BYTES

BATCH = 250
BOUND = 1e-3

Run = Callable[[np.ndarray], Mapping[str, np.ndarray]]


def exposed(path: Path, folder: Path) -> Path:
    """A copy of the model that returns every QuantizeLinear result of run-time values as well."""
    model = onnx.load(path)
    known = {value.name for value in model.graph.initializer} | {value.name for value in model.graph.output}
    types = {value.name: value for value in onnx.shape_inference.infer_shapes(model).graph.value_info}
    for node in model.graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in known and node.output[0] not in known:
            model.graph.output.append(types[node.output[0]])
    target = folder / path.name
    onnx.save(model, target)
    return target


def runtime(path: Path) -> Run:
    """ONNX Runtime on one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    options.add_session_config_entry(EXACT_BYTES, "1")
    session = onnxruntime.InferenceSession(str(path), options)
    names, given = [value.name for value in session.get_outputs()], session.get_inputs()[0].name
    return lambda x: dict(zip(names, session.run(names, {given: x}), strict=True))


def compiled(path: Path, target: str) -> Run:
    """The model as native code."""
    function = gt.compile(gt.load(path), Cpu(Target.named(target)))
    return lambda x: function({"x": x})


@dataclass
class Difference:
    """What two engines disagree on."""

    images: int = 0
    classes: int = 0
    integers: int = 0
    different: int = 0
    furthest: int = 0

    def add(self, found: Mapping[str, np.ndarray], expected: Mapping[str, np.ndarray]) -> None:
        """Count one batch."""
        scores = next(iter(expected))
        self.images += len(expected[scores])
        self.classes += int((found[scores].argmax(1) != expected[scores].argmax(1)).sum())
        for name, array in expected.items():
            if array.dtype.kind in "iu":
                apart = np.abs(found[name].astype(np.int32) - array.astype(np.int32))
                self.integers += apart.size
                self.different += int(np.count_nonzero(apart))
                self.furthest = max(self.furthest, int(apart.max(initial=0)))

    @property
    def fits(self) -> bool:
        return not self.classes and self.furthest <= 1 and self.different <= BOUND * self.integers

    def __str__(self) -> str:
        share = 100 * self.different / max(self.integers, 1)
        return (
            f"{self.classes} of {self.images:,} images of another class; "
            f"{self.different:,} of {self.integers:,} integers ({share:.4f} %) differ, by at most {self.furthest}"
        )


def differences(path: Path, images: np.ndarray, targets: list[str]) -> Iterator[tuple[str, Difference]]:
    """Of the compiled model, from each of the others."""
    ours = compiled(path, "host")
    others = {"ONNX Runtime": runtime(path), **{target: compiled(path, target) for target in targets}}
    found = {name: Difference() for name in others}
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        mine = ours(batch)
        for name, other in others.items():
            found[name].add(mine, other(batch))
    yield from found.items()


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
            path = exposed(file, Path(folder))
            for name, found in differences(path, held["x"][: chosen.examples], targets):
                fine &= found.fits
                lines.append(f"{'ok  ' if found.fits else 'FAIL'} {file.stem} beside {name}: {found}")
                print(lines[-1], flush=True)
    if chosen.output:
        chosen.output.write_text("\n".join(lines) + "\n")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
