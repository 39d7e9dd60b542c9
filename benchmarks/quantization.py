"""Accuracy on Fashion-MNIST of float, post-training int8, and quantization-aware int8 and int4 models. By hand:

    python benchmarks/quantization.py [--models cnn,mobilenet,transformer] [--seeds 0,1,2] [--output benchmarks/results]
        [--keep DIR] [--limit N]

For each model and seed: train in float; quantize after training (i8 weights per channel, u8 activations); fine-tune the
float model with FakeQuantize, for i8 and for i4 weights. Beside it stands the float model trained on for as many epochs
at the same rates, so that more training is not taken for better rounding. Accuracies are those of the compiled integer
models on the 10,000 test images, in percent: means over seeds, and differences to the float model by seed.

With ``--keep`` each stage is written down as it ends, and a later run goes on from there. ``--limit`` takes the first N
training images only, to try things out.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import glowtrain as gt
from glowtrain import data, models
from glowtrain.graph import Graph, Template, Value
from glowtrain.quantization import Recipe, Scheme, calibrate, convert, prepare
from glowtrain.quantization.qat import finetune, prepare_training
from glowtrain.types import Array, i4, i8

LOSS = gt.losses.softmax_cross_entropy("y")
STAGES = ("float", "longer", "ptq", "qat8", "qat4")
TITLES = {
    "float": "float",
    "longer": "float, trained on",
    "ptq": "int8 after training",
    "qat8": "int8, trained",
    "qat4": "int4 weights, trained",
}
CALIBRATION = 1024
"""Training images that ranges are taken from."""


@dataclass(frozen=True)
class Settings:
    """How one model is trained: epochs and AdamW's rate in float; the same when fine-tuned, and of those epochs the
    last ones with BatchNormalization frozen."""

    epochs: int
    lr: float
    tuned: int
    tuned_lr: float
    frozen: int
    batch: int = 64
    weight_decay: float = 0.01

    def optimizer(self, epochs: int, lr: float, examples: int) -> gt.optim.Optimizer:
        steps = epochs * math.ceil(examples / self.batch)
        return gt.optim.AdamW(lr=lr, weight_decay=self.weight_decay, schedule=gt.optim.Cosine(steps=steps))


SETTINGS = {
    "cnn": Settings(epochs=6, lr=1e-3, tuned=3, tuned_lr=2e-4, frozen=1),
    "mobilenet": Settings(epochs=10, lr=3e-3, tuned=4, tuned_lr=5e-4, frozen=1),
    "transformer": Settings(epochs=10, lr=1e-3, tuned=4, tuned_lr=2e-4, frozen=0),
}
INT8 = Recipe(weights=Scheme(i8, "symmetric", "channel", narrow=True), method="percentile")
INT4 = Recipe(weights=Scheme(i4, "symmetric", "channel"), method="percentile", weight_method="mse")


@dataclass
class Case:
    """One model and seed."""

    name: str
    seed: int
    dataset: data.Dataset
    keep: Path | None

    @property
    def settings(self) -> Settings:
        return SETTINGS[self.name]

    @property
    def template(self) -> Template:
        return models.build(self.name, seed=self.seed)

    def run(self) -> dict[str, float]:
        """The accuracy of each stage."""
        return {stage: self.stage(stage) for stage in STAGES}

    def stage(self, stage: str) -> float:
        """The accuracy of a stage, measured now or kept."""
        kept = self.file(f"{stage}.json")
        if kept is not None and kept.exists():
            return float(json.loads(kept.read_text())["accuracy"])
        begin = time.perf_counter()
        found = self.measured[stage]()
        seconds = time.perf_counter() - begin
        note(f"{self.name}, seed {self.seed}, {TITLES[stage]}: {100 * found:.2f} %, {seconds:.0f} s")
        if kept is not None:
            kept.write_text(json.dumps({"accuracy": found, "seconds": seconds}))
        return found

    @property
    def measured(self) -> Mapping[str, Callable[[], float]]:
        return {
            "float": self.floats,
            "longer": self.longer,
            "ptq": lambda: self.accuracy(convert(prepare(self.template, self.profile(), INT8, state=self.state()))),
            "qat8": lambda: self.tuned(INT8),
            "qat4": lambda: self.tuned(INT4),
        }

    def file(self, what: str) -> Path | None:
        return None if self.keep is None else self.keep / f"{self.name}-{self.seed}-{what}"

    def floats(self) -> float:
        own, count = self.settings, len(self.dataset)
        rule = own.optimizer(own.epochs, own.lr, count)
        trainer = finetune(
            self.template, self.dataset, LOSS, rule, epochs=own.epochs, batch_size=own.batch, seed=self.seed
        )
        self.trained = trainer.variables()
        path = self.file("float.npz")
        if path is not None:
            np.savez(path, **self.trained)  # type: ignore[arg-type]
        return self.accuracy(trainer.model())

    def state(self) -> dict[str, Array]:
        """The float model's variables."""
        path = self.file("float.npz")
        if not hasattr(self, "trained"):
            assert path is not None
            with np.load(path) as kept:
                self.trained = {name: kept[name] for name in kept.files}
        names = {variable.name for variable in self.template.bind({"batch": 2}).variables}
        return {name: array for name, array in self.trained.items() if name in names}

    def profile(self) -> gt.quantization.Profile:
        return calibrate(self.template, {"x": self.dataset.x[:CALIBRATION]}, state=self.state(), batch_size=128)

    def longer(self) -> float:
        state = self.state()
        return self.accuracy(self.trained_on(self.template.map(lambda graph: with_state(graph, state))))

    def tuned(self, recipe: Recipe) -> float:
        model = prepare_training(self.template, self.profile(), recipe, state=self.state())
        return self.accuracy(convert(self.trained_on(model, self.settings.frozen)))

    def trained_on(self, model: Graph | Template, frozen: int = 0) -> Graph:
        own = self.settings
        rule = own.optimizer(own.tuned, own.tuned_lr, len(self.dataset))
        trainer = finetune(
            model, self.dataset, LOSS, rule, epochs=own.tuned, frozen_epochs=frozen, batch_size=own.batch,
            seed=self.seed + 100,
        )  # fmt: skip
        return trainer.model()

    def accuracy(self, model: Graph | Template) -> float:
        """The share of test images that the compiled model classifies rightly."""
        opened = model if isinstance(model, Template) else model.template
        predict = gt.compile(opened or model)
        images, labels = self.dataset.x_valid, self.dataset.y_valid
        assert images is not None
        assert labels is not None
        parts = [predict({"x": images[start : start + 500]})["scores"] for start in range(0, len(images), 500)]
        return float(np.mean(np.concatenate(parts).argmax(1) == labels))


def with_state(graph: Graph, state: Mapping[str, Array]) -> Graph:
    """The graph whose variables begin with other values."""
    fresh: dict[Value, Value] = {
        v: gt.Variable(v.name, state[v.name], v.trainable) for v in graph.variables if v.name in state
    }
    return graph.substituted(fresh)


def table(results: Mapping[str, Mapping[int, Mapping[str, float]]]) -> str:
    """Markdown: means over seeds in percent, and the mean difference to the float model with its range."""
    lines = ["| model | " + " | ".join(TITLES.values()) + " |", "| --- " * (len(STAGES) + 1) + "|"]
    for name, by_seed in results.items():
        cells = []
        for stage in STAGES:
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
    parser.add_argument("--models", default=",".join(SETTINGS))
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--limit", type=int)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(None if arguments is None else list(arguments))
    dataset = data.load("fashion-mnist")
    if options.limit:
        part = {name: array[: options.limit] for name, array in dataset.train.items()}
        dataset = data.Dataset(dataset.name, part, dataset.valid)
    if options.keep:
        options.keep.mkdir(parents=True, exist_ok=True)
    results: dict[str, dict[int, dict[str, float]]] = {}
    for name in options.models.split(","):
        for seed in map(int, options.seeds.split(",")):
            results.setdefault(name, {})[seed] = Case(name, seed, dataset, options.keep).run()
        note(table(results))
    print(table(results))
    if options.output:
        options.output.mkdir(parents=True, exist_ok=True)
        (options.output / "quantization.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
