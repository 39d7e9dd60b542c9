"""Training a part of MobileNetV2 on a microcontroller's memory: bytes and accuracies beside full fine-tuning.

    python benchmarks/sparse_update.py [--work FOLDER] [--epochs 10] [--seeds 3] [--rows PATTERN ...] [--output F]

MobileNetV2 x0.35 for 96x96 pixels learns to read digits (those that come along, enlarged; 1,437 to train on, 360 to
test). Then the camera is turned upside down, and the model is trained on, one image at a time. Images are moved and
have another contrast each time, in every row. Bytes are those of bundles for a Cortex-M7, of which nothing is run:
accuracies are of the same graphs, trained here. The first model and what was measured are kept in the folder and read
from there the next time.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np

import glowtrain as gt
from glowtrain import nn
from glowtrain.bundles import BundleSize
from glowtrain.bundles.updates import propose
from glowtrain.names import matches
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.quantization import Recipe
from glowtrain.types import Array

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks and first stride of each stage."""
WIDTH, SIZE, CLASSES = 0.35, 96, 10
PRETRAINING, BATCH = 24, 32
"""Epochs on upright digits, and their batch."""
LAST = ("block15.*", "Add_8", "block16.*", "Add_9", "block17.*", "features.*", "scores.*")
"""What stays in floating point where the rest is in integers: 3x3 pixels and fewer, and the sums between these blocks,
as no gradient goes through a rounded one."""
BIASES = ("scores.*", "features.*.bias", *(f"block{number}.*.bias" for number in range(14, 18)))
TARGET = "cortex-m7"
SGD = gt.optim.SGD()
LOSS = "softmax_cross_entropy"


ABOUT = """\
By `python benchmarks/sparse_update.py --epochs {epochs} --seeds {seeds}`: a model that reads digits is trained on for
digits upside down, one image at a time by plain SGD, running statistics as they are (but for the first row). Each time
an image is moved by up to 10 pixels and has another contrast, in all rows. Before it gets {before:.1%} of 360 right.

RAM of a bundle for a Cortex-M7 is what is written while it runs: parameters of which at least a part is trained, the
optimizer's state (variables) and the arena; what is not trained is constant, in flash. *All* adds these constants, as
where no flash holds them. Handle and stack take up to 2 KB more. Accuracy: mean over orders of the examples, and each.
"""


@nn.model(x=gt.f32["batch", 3, SIZE, SIZE])
def mobilenetv2(x: gt.Value) -> dict[str, gt.Value]:
    """Sandler et al., MobileNetV2 (CVPR 2018, arXiv:1801.04381)."""
    x = relu6(normed(x, channels(32), 3, name="stem", stride=2))
    number = 0
    for expansion, wide, blocks, stride in STAGES:
        for block in range(blocks):
            number += 1
            x = residual(x, channels(wide), 1 if block else stride, expansion, f"block{number}")
    x = relu6(normed(x, 1280, 1, name="features"))
    return {"scores": nn.linear(nn.global_average_pool(x), CLASSES, name="scores")}


def channels(wide: int) -> int:
    """A multiple of 8 near the width's part of the channels, never less than nine tenths of it."""
    part = wide * WIDTH
    found = max(8, int(part + 4) // 8 * 8)
    return found + 8 if found < 0.9 * part else found


def residual(x: gt.Value, outputs: int, stride: int, expansion: int, name: str) -> gt.Value:
    """An inverted residual with a linear bottleneck."""
    inner = x.shape[1] * expansion
    y = relu6(normed(x, inner, 1, name=f"{name}.expand")) if expansion > 1 else x
    y = relu6(normed(y, inner, 3, name=f"{name}.depthwise", stride=stride, groups=inner))
    y = normed(y, outputs, 1, name=f"{name}.project")
    return x + y if x.shape == y.shape else y


def normed(x: gt.Value, outputs: int, kernel: int, *, name: str, stride: int = 1, groups: int = 1) -> gt.Value:
    """A convolution with BatchNorm."""
    convolved = nn.conv(
        x, outputs, kernel, stride=stride, padding="same" if kernel > 1 else 0, groups=groups, bias=False,
        initializer=nn.Kaiming(), name=f"{name}.conv",
    )  # fmt: skip
    return nn.batch_norm(convolved, name=f"{name}.norm")


def relu6(x: gt.Value) -> gt.Value:
    """ReLU up to 6."""
    result: gt.Value = Clip()(x, 0.0, 6.0)
    return result


# --- data ------------------------------------------------------------------------------------------------------------


def enlarged(digits: Array) -> Array:
    """f32[N,3,96,96] of f32[N,1,8,8], bilinear between the centres of pixels."""
    images = digits.reshape(-1, 8, 8)
    at = np.clip((np.arange(SIZE) + 0.5) / 12 - 0.5, 0, 7)
    low = np.floor(at).astype(int)
    high, part = np.minimum(low + 1, 7), (at - low).astype(np.float32)
    rows = images[:, low] * (1 - part)[None, :, None] + images[:, high] * part[None, :, None]
    pixels = rows[:, :, low] * (1 - part) + rows[:, :, high] * part
    return np.ascontiguousarray(np.repeat(pixels[:, None], 3, 1).astype(np.float32))


def upside_down(images: Array) -> Array:
    """What the camera sees."""
    return np.ascontiguousarray(images[:, :, ::-1, ::-1])


def augmented(x: Array, y: Array, batch: int = BATCH, seed: int = 0) -> Callable[[int], Iterator[dict[str, Array]]]:
    """Batches of an epoch: images moved by up to 10 pixels, in other contrast and brightness, half of them inverted."""

    def batches(epoch: int) -> Iterator[dict[str, Array]]:
        rng = np.random.default_rng([seed, epoch])
        order = rng.permutation(len(x))
        for begin in range(0, len(x) - batch + 1, batch):
            taken = order[begin : begin + batch]
            yield {"x": np.stack([_changed(x[each], rng) for each in taken]), "labels": y[taken]}

    return batches


def _changed(image: Array, rng: np.random.Generator) -> Array:
    down, right = rng.integers(-10, 11, 2)
    changed = np.roll(image, (down, right), (1, 2)) * rng.uniform(0.6, 1.4) + rng.uniform(-0.2, 0.2)
    return np.asarray(1 - changed if rng.integers(2) else changed, np.float32)


def pretrained(path: Path, digits: gt.data.Dataset) -> gt.Template:
    """The model that reads upright digits, from its file or trained now."""
    if not path.exists():
        schedule = gt.optim.Cosine(len(digits.train["x"]) // BATCH * PRETRAINING)
        trainer = gt.Trainer(mobilenetv2, LOSS, gt.optim.Adam(3e-3, schedule=schedule), unbiased=True)
        trainer.fit(augmented(enlarged(digits.train["x"]), digits.train["y"]), PRETRAINING)
        gt.save(trainer.model(), path)
    model = gt.load(path)
    assert isinstance(model, gt.Template)
    return model


# --- rows ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """A way to fine-tune: of a model, what; by which rule, in which batches; with running statistics as they are, and
    within which budget?"""

    name: str
    model: gt.Template
    trainable: tuple[str, ...] | None
    optimizer: gt.optim.Optimizer
    batch: int = 1
    frozen: bool = True
    memory: str | None = None


@dataclass(frozen=True)
class Examples:
    """Upside-down digits."""

    train: tuple[Array, Array]
    test: tuple[Array, Array]


class Notes:
    """What was proposed and measured already, in a file: a run that is stopped goes on."""

    def __init__(self, path: Path, epochs: int) -> None:
        self.path, self.epochs = path, epochs

    def once(self, key: str, make: Callable[[], Any]) -> Any:
        """What the file has under a key, or what is made now."""
        key = f"{key}, {self.epochs} epochs"
        if key not in self._read():
            made = make()
            self.path.write_text(json.dumps({**self._read(), key: made}, indent=1), encoding="utf-8")
        return self._read()[key]

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self.path.read_text(encoding="utf-8"))) if self.path.exists() else {}


def rows_of(model: gt.Template, examples: Examples, notes: Notes) -> Iterator[Row]:
    """Full fine-tuning in the usual way and one image at a time, then parts within budgets."""
    updates = len(examples.train[0]) * notes.epochs
    usual = gt.optim.Adam(1e-3, schedule=gt.optim.Cosine(updates // BATCH))
    single, larger = (gt.optim.SGD(lr, schedule=gt.optim.Cosine(updates)) for lr in (0.003, 0.05))
    names = [variable.name for variable in model.bind({"batch": 1}).variables if variable.trainable]
    yield Row("all, batch 32, Adam", model, None, usual, BATCH, frozen=False)
    yield Row("all", model, tuple(name for name in names if not name.endswith(".scale")), single)
    yield Row("last layer", model, ("scores.*",), larger)
    yield Row("last layer, last biases", model, BIASES, larger)
    integers = gt.quantize(model, {"x": examples.train[0][:128]}, Recipe(keep=LAST)).model
    yield Row("int8: last layer, last biases", integers, ("scores.*", "*.bias"), larger)
    for kind, base, optimizer, budget in (("int8: ", integers, larger, "256KB"), ("", model, single, "1MB")):
        name = f"{kind}proposed for {budget}"
        found = notes.once(name, partial(proposed, base, examples, budget))
        yield Row(name, base, tuple(found), optimizer, memory=budget)


def proposed(model: gt.Template, examples: Examples, budget: str) -> tuple[str, ...]:
    """What fits a budget on these examples."""
    found = propose(model, examples.train, budget, optimizer=SGD, dims={"batch": 1}, target=TARGET)
    return found.trainable


@dataclass(frozen=True)
class Result:
    """A row's bytes as a bundle, and its accuracies for each seed."""

    row: Row
    size: BundleSize
    accuracies: tuple[float, ...]


def accuracy(row: Row, examples: Examples, epochs: int, seed: int) -> float:
    """The part of the test images that a row's model gets right after training."""
    trainer = gt.Trainer(
        row.model, LOSS, row.optimizer, row.trainable, seed=seed, freeze_statistics=row.frozen, threads=1
    )
    trainer.fit(augmented(*examples.train, row.batch, seed), epochs, progress=False)
    found = trainer.evaluate(examples.test)["accuracy"]
    print(f"{row.name}: {found:.2%}", file=sys.stderr, flush=True)
    return found


def measured(row: Row, examples: Examples, notes: Notes, seeds: int) -> Result:
    """A row with each seed, and what it takes."""
    each = [
        notes.once(f"{row.name}, seed {seed}", partial(accuracy, row, examples, notes.epochs, seed))
        for seed in range(seeds)
    ]
    size = gt.bundle_size(
        row.model, loss=LOSS, optimizer=row.optimizer, trainable=row.trainable, freeze_statistics=row.frozen,
        dims={"batch": row.batch}, target=TARGET, memory=row.memory,
    )  # fmt: skip
    return Result(row, size, tuple(each))


def lines(results: Sequence[Result], before: float, epochs: int) -> Iterator[str]:
    """The page."""
    yield "# Training a part of MobileNetV2 x0.35, 96x96 pixels"
    yield ""
    yield ABOUT.format(epochs=epochs, seeds=len(results[0].accuracies), before=before)
    yield "| trained | variables | arena | RAM | all | flash | accuracy | each |"
    yield "|---|---:|---:|---:|---:|---:|---:|---|"
    for each in results:
        yield _line(each)
    yield ""
    for each in results:
        if "proposed" in each.row.name:
            yield f"{each.row.name}: `{' '.join(each.row.trainable or ())}`"
            yield ""


def _line(result: Result) -> str:
    size = result.size
    ram = size.variables + size.arena
    whole = ram + max(0, size.constants - size.variables)  # the first values of variables are constants, too
    shown = ", ".join(f"{each:.1%}" for each in result.accuracies)
    numbers = f"{size.variables:,} | {size.arena:,} | {ram:,} | {whole:,} | {size.flash:,}"
    return f"| {result.row.name} | {numbers} | {statistics.mean(result.accuracies):.1%} | {shown} |"


def main() -> None:
    """Write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("sparse-update"), help="a folder for what was made")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--rows", nargs="+", default=["*"], help="names or patterns of rows")
    parser.add_argument("--output", type=Path, default=Path("benchmarks/results"))
    chosen = parser.parse_args()
    chosen.work.mkdir(parents=True, exist_ok=True)
    digits = gt.data.load("digits")
    model = pretrained(chosen.work / "upright.onnx", digits)
    parts = ((upside_down(enlarged(part["x"])), part["y"]) for part in (digits.train, digits.valid))
    examples = Examples(*parts)
    before = gt.Trainer(model, LOSS, SGD).evaluate(examples.test)["accuracy"]
    notes = Notes(chosen.work / "measured.json", chosen.epochs)
    rows = (row for row in rows_of(model, examples, notes) if matches(row.name, chosen.rows))
    results = [measured(row, examples, notes, chosen.seeds) for row in rows]
    text = "\n".join(lines(results, before, chosen.epochs))
    (chosen.output / "sparse_update.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
