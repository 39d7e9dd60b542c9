"""Which microcontroller fits which model, by ``gt.bundle_size``: a table, and a picture of where the bytes go.

    python benchmarks/boards.py [--output FOLDER]

Nothing is measured, so any machine writes the same. Flash and RAM of the processors are those of their data sheets; the
RAM that a program has besides the model is not in the numbers.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
from matplotlib.figure import Figure

import glowtrain as gt
from glowtrain import models
from glowtrain.bundles import BundleSize
from glowtrain.optim import Optimizer
from glowtrain.presentation.figures import picture

KIB = 1 << 10
BATCH = 4
SGD = gt.optim.SGD()


@dataclass(frozen=True)
class Processor:
    """A microcontroller: the target of its core, and its memories in bytes."""

    name: str
    target: str
    flash: int
    ram: int


PROCESSORS = (
    Processor("STM32F411", "cortex-m4", 512 * KIB, 128 * KIB),
    Processor("nRF52840", "cortex-m4", 1024 * KIB, 256 * KIB),
    Processor("STM32F746", "cortex-m7", 1024 * KIB, 320 * KIB),
    Processor("nRF5340", "cortex-m33", 1024 * KIB, 512 * KIB),
    Processor("RP2350 (4 MiB of flash)", "cortex-m33", 4096 * KIB, 520 * KIB),
    Processor("ESP32-C3 (4 MiB of flash)", "riscv32imc", 4096 * KIB, 400 * KIB),
    Processor("STM32H743", "cortex-m7", 2048 * KIB, 1024 * KIB),
)


@gt.model(x=gt.f32["batch", 1, 8, 8])
def digits(x: gt.Value) -> gt.Value:
    """The model of examples/boards."""
    with gt.nn.scope("trunk"):
        x = gt.nn.max_pool(gt.nn.relu(gt.nn.conv(x, 16, 3, padding="same")), 2)
        x = gt.nn.flatten(gt.nn.relu(gt.nn.conv(x, 32, 3, padding="same")))
    with gt.nn.scope("head"):
        return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 32)), 10)


@gt.model(x=gt.f32["batch", 1, 49, 10])
def keywords(x: gt.Value) -> gt.Value:
    """A small DS-CNN for twelve words (Zhang et al., Hello Edge, 2017, arXiv:1711.07128), BatchNorm folded."""
    with gt.nn.scope("trunk"):
        x = gt.nn.relu(gt.nn.conv(x, 64, (10, 4), stride=2, padding=(4, 1)))
        for _ in range(4):
            x = gt.nn.relu(gt.nn.conv(x, 64, 3, padding="same", groups=64))
            x = gt.nn.relu(gt.nn.conv(x, 64, 1))
    with gt.nn.scope("head"):
        return gt.nn.linear(gt.nn.flatten(gt.nn.global_average_pool(x)), 12)


@gt.model(x=gt.f32["batch", 32])
def sensors(x: gt.Value) -> gt.Value:
    """Two small hidden layers, as over a few sensors."""
    with gt.nn.scope("trunk"):
        x = gt.nn.relu(gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 64)), 64))
    with gt.nn.scope("head"):
        return gt.nn.linear(x, 8)


@gt.model(x=gt.f32["batch", 1, 28, 28])
def cnn(x: gt.Value) -> gt.Value:
    """The built-in model of this name."""
    return models.cnn(x, 10)


@dataclass(frozen=True)
class Row:
    """A model, and what a bundle of it does."""

    model: gt.Template
    job: str
    integers: bool = False
    optimizer: Optimizer = SGD

    @property
    def name(self) -> str:
        return f"{self.model.name}{', int8' if self.integers else ''}"

    def size(self, target: str) -> BundleSize:
        """What it takes. A prediction is of one example, training of a few."""
        model = quantized(self.model) if self.integers else self.model
        if self.job == "predicts":
            return gt.bundle_size(model, target=target, dims={"batch": 1}, fixed_point=self.integers)
        return gt.bundle_size(
            model, loss=gt.losses.softmax_cross_entropy(), optimizer=self.optimizer, target=target,
            trainable=["head.*"] if self.job == "trains its head" else None, dims={"batch": BATCH},
            fixed_point=self.integers,
        )  # fmt: skip


def quantized(model: gt.Template) -> gt.Graph | gt.Template:
    """The same with a trunk of 8-bit integers, calibrated on noise: sizes are those of any data."""
    shape = model.bind({"batch": 32}).inputs[0].shape
    noise = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    return gt.quantize(model, {"x": noise}, gt.quantization.Recipe(keep=["head.*"])).model


ROWS = [
    Row(sensors, "predicts"), Row(sensors, "trains"),
    Row(digits, "predicts"), Row(digits, "predicts", integers=True), Row(digits, "trains its head"),
    Row(digits, "trains its head", integers=True), Row(digits, "trains"),
    Row(keywords, "predicts"), Row(keywords, "predicts", integers=True), Row(keywords, "trains its head"),
    Row(keywords, "trains"), Row(cnn, "predicts"),
]  # fmt: skip


DRAWN = [
    Row(digits, "predicts"), Row(digits, "predicts", integers=True), Row(digits, "trains its head"),
    Row(digits, "trains its head", integers=True), Row(digits, "trains"),
    Row(digits, "trains", optimizer=gt.optim.Adam()),
]  # fmt: skip
"""Rows of the picture."""


def main() -> None:
    """Write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    folder = parser.parse_args().output
    (folder / "boards.md").write_text("\n".join([*table(ROWS), ""]), encoding="utf-8")
    sizes = [(row, row.size("cortex-m4")) for row in DRAWN]
    (folder / "boards.png").write_bytes(picture(lambda figure: draw(figure, sizes), 9, 5, "png"))
    print(f"written: {folder / 'boards.md'}, {folder / 'boards.png'}")


def table(rows: Sequence[Row]) -> Iterator[str]:
    """The lines of the table."""
    yield "# Which microcontroller fits which model"
    yield ""
    yield "By `python benchmarks/boards.py`. KiB are those of a Cortex-M4; training is by SGD,"
    yield f"{BATCH} examples at a time."
    yield "Flash is code and constants, RAM variables, arena and stack; what else a program needs comes on top."
    yield ""
    yield f"| model | it | flash | RAM | million multiply-adds | {' | '.join(each.name for each in PROCESSORS)} |"
    yield f"|---|---|--:|--:|--:|{'---|' * len(PROCESSORS)}"
    for row in rows:
        sizes = {target: row.size(target) for target in dict.fromkeys(each.target for each in PROCESSORS)}
        size = sizes["cortex-m4"]
        work = size.functions[0].multiply_adds / 1e6
        fits = " | ".join(fit(each, sizes[each.target]) for each in PROCESSORS)
        said = f"{size.flash / KIB:.0f} | {size.ram / KIB:.1f} | {work:.3g}"
        yield f"| {row.name} | {row.job} | {said} | {fits} |"


def fit(processor: Processor, size: BundleSize) -> str:
    """Yes, or what is too small."""
    short = [
        name
        for name, has, needs in (("flash", processor.flash, size.flash), ("RAM", processor.ram, size.ram))
        if needs > has
    ]
    return f"no: {' and '.join(short)}" if short else "yes"


def draw(figure: Figure, sizes: Sequence[tuple[Row, BundleSize]]) -> None:
    """Bars of flash and of RAM, with their parts."""
    names = [
        f"{row.name}\n{row.job}{' (Adam)' if isinstance(row.optimizer, gt.optim.Adam) else ''}" for row, _ in sizes
    ]
    found = [size for _, size in sizes]
    state = [size.variables - replace(row, optimizer=SGD).size("cortex-m4").variables for row, size in sizes]
    parts = {
        "flash": {"code": [s.code for s in found], "weights and tables": [s.constants for s in found]},
        "RAM": {
            "parameters": [s.variables - own for s, own in zip(found, state, strict=True)],
            "optimizer": state,
            "arena (activations, workspace)": [s.arena for s in found],
            "stack and handle": [s.stack + s.handle for s in found],
        },
    }
    both = figure.subplots(1, 2, sharey=True)
    for axes, (title, stacked) in zip(both, parts.items(), strict=True):
        left = np.zeros(len(sizes))
        for label, values in stacked.items():
            axes.barh(names, np.array(values) / KIB, left=left, label=label)
            left += np.array(values) / KIB
        axes.set_title(f"{title} on a Cortex-M4, KiB")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    both[0].invert_yaxis()


if __name__ == "__main__":
    main()
