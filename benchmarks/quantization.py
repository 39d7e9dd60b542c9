"""Accuracy on Fashion-MNIST of float, int8 and int4 models, each made by one command of the command line. By hand:

    python benchmarks/quantization.py DIR [--models cnn,mobilenet,transformer] [--seeds 0,1,2]
        [--stages float,ptq,qat8,qat4] [--output benchmarks/results]

For each model and seed: train in float; quantize after training (i8 weights per channel, u8 activations); fine-tune the
float model with rounding, for i8 and for i4 weights. The further stage ``longer`` trains the float model on for as
many epochs at the same rates, so that more training is not taken for better rounding. The commands are printed; the
models go to DIR, and what is there is not made again. Accuracies are those of the files, compiled, on the 10,000 test
images, in percent: means over seeds, and differences to the float model by seed.
"""

from __future__ import annotations

import argparse
import json
import shlex
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import glowtrain as gt

TITLES = {
    "float": "float",
    "longer": "float, trained on",
    "ptq": "int8 after training",
    "qat8": "int8, trained",
    "qat4": "int4 weights, trained",
}
DATA = "fashion-mnist"


@dataclass(frozen=True)
class Settings:
    """Epochs and learning rates: in float; trained on with i8; and with i4 weights, which have further to go."""

    epochs: int
    lr: float
    tuned: int
    tuned_lr: float
    tuned_lr_i4: float


SETTINGS = {
    "cnn": Settings(epochs=6, lr=1e-3, tuned=3, tuned_lr=2e-4, tuned_lr_i4=2e-4),
    "mobilenet": Settings(epochs=10, lr=3e-3, tuned=4, tuned_lr=2e-5, tuned_lr_i4=5e-4),
    "transformer": Settings(epochs=10, lr=1e-3, tuned=4, tuned_lr=2e-4, tuned_lr_i4=2e-4),
}


@dataclass(frozen=True)
class Case:
    """One model and seed, whose files stand in a folder."""

    name: str
    seed: int
    folder: Path

    def file(self, stage: str, suffix: str = ".onnx") -> str:
        return str(self.folder / f"{self.name}-{self.seed}-{stage}{suffix}")

    def command(self, stage: str) -> list[str]:
        """The arguments of ``glowtrain`` that make a stage's file."""
        own, out = SETTINGS[self.name], ["--out", self.file(stage), "--seed", str(self.seed)]
        rule = ["--optimizer", "adamw", "--schedule", "cosine"]
        if stage == "float":
            return ["train", self.name, "--data", DATA, "--epochs", f"{own.epochs}", "--lr", f"{own.lr:g}", *rule, *out]
        source, rate = self.file("float"), own.tuned_lr_i4 if stage == "qat4" else own.tuned_lr
        rates = ["--lr", f"{rate:g}", *rule]
        if stage == "longer":
            return ["train", source, "--data", DATA, "--epochs", f"{own.tuned}", *rates, *out]
        rounded = ["quantize", source, "--calibrate", DATA, "--method", "percentile", *out]
        trained = [*rounded, "--qat", f"{own.tuned}", *rates]
        int4 = ["--weights", "i4", "--weight-method", "mse", "--as-bytes"]
        return {"ptq": rounded, "qat8": trained, "qat4": [*trained, *int4]}[stage]

    def made(self, stage: str) -> str:
        """The file of a stage; the command is run unless the file is there."""
        if not Path(self.file(stage)).exists():
            command = ["glowtrain", *self.command(stage)]
            note(shlex.join(command))
            subprocess.run([sys.executable, "-m", *command], check=True)
        return self.file(stage)


def accuracy(path: str) -> float:
    """The share of test images that a compiled model classifies rightly."""
    held = gt.data.load(DATA).valid
    assert held is not None
    predict = gt.compile(gt.load(path))
    parts = [predict({"x": held["x"][start : start + 500]})["scores"] for start in range(0, len(held["x"]), 500)]
    return float(np.mean(np.concatenate(parts).argmax(1) == held["y"]))


def table(results: Mapping[str, Mapping[int, Mapping[str, float]]], stages: Sequence[str]) -> str:
    """Markdown: means over seeds in percent, and the mean difference to the float model with its range."""
    lines = ["| model | " + " | ".join(TITLES[stage] for stage in stages) + " |", "| --- " * (len(stages) + 1) + "|"]
    for name, by_seed in results.items():
        cells = []
        for stage in stages:
            mean = 100 * statistics.mean(found[stage] for found in by_seed.values())
            apart = [100 * (found[stage] - found["float"]) for found in by_seed.values()]
            spread = f" ({statistics.mean(apart):+.2f}; {min(apart):+.2f} to {max(apart):+.2f})"
            cells.append(f"{mean:.2f}" + ("" if stage == "float" else spread))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def note(text: str) -> None:
    """Say how far it is."""
    print(text, file=sys.stderr, flush=True)


def main(arguments: Iterable[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--stages", default="float,ptq,qat8,qat4", help=f"of {', '.join(TITLES)}; float comes first")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(None if arguments is None else list(arguments))
    options.folder.mkdir(parents=True, exist_ok=True)
    stages, results = options.stages.split(","), dict[str, dict[int, dict[str, float]]]()
    for name in options.models.split(","):
        for seed in map(int, options.seeds.split(",")):
            case, found = Case(name, seed, options.folder), results.setdefault(name, {}).setdefault(seed, {})
            for stage in stages:
                found[stage] = accuracy(case.made(stage))
                note(f"{name}, seed {seed}, {TITLES[stage]}: {100 * found[stage]:.2f} %")
    print(table(results, stages))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "quantization.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
