"""A digits model that goes on learning on a microcontroller, in less than 256 KiB of RAM.

A CNN learns to read digits here. The board's camera is mounted upside down and sees light on dark, so there the model
fails at first; its head is trained on the board, over a trunk that stays as it is, in flash. With --int8 the trunk
computes in 8-bit integers. What is written runs on an emulated board:

python examples/boards/fine_tune.py [--int8] [--board mps2-an500] [--out FOLDER] [--quick]
make -C FOLDER -f board.mk run sizes PROGRAM=fine_tune.c
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import checkout  # noqa: F401  finds glowtrain
import numpy as np

import glowtrain as gt
from glowtrain.bundles import BundleSize
from glowtrain.types import Array

BATCH = 8
RAM = 256 << 10
HEAD = ["head.*"]
LEARNT, TESTED = 320, 200
"""Examples on the board."""


@gt.model(x=gt.f32["batch", 1, 8, 8])
def digits(x: gt.Value) -> gt.Value:
    with gt.nn.scope("trunk"):
        x = gt.nn.max_pool(gt.nn.relu(gt.nn.conv(x, 16, 3, padding="same")), 2)
        x = gt.nn.flatten(gt.nn.relu(gt.nn.conv(x, 32, 3, padding="same")))
    with gt.nn.scope("head"):
        x = gt.nn.relu(gt.nn.linear(x, 32))
        return gt.nn.linear(x, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    parser.add_argument("--int8", action="store_true", help="a trunk of 8-bit integers")
    parser.add_argument("--board", default="mps2-an386", help="mps2-an386 (Cortex-M4) or mps2-an500 (Cortex-M7)")
    parser.add_argument("--out", type=Path, default=Path("digits-on-board"), help="the folder for the files")
    chosen = parser.parse_args()

    data = gt.data.load("digits")
    trained = gt.Trainer(digits, gt.losses.softmax_cross_entropy(), gt.optim.Adam(2e-3))
    trained.fit(data.train, 2 if chosen.quick else 12, 64)
    model = trained.model()
    if chosen.int8:
        model = gt.quantize(model, {"x": data.train["x"][:128]}, gt.quantization.Recipe(keep=HEAD)).model
    learnt = (upside_down(data.train["x"][:LEARNT]), data.train["y"][:LEARNT])
    tested = (upside_down(data.valid["x"][:TESTED]), data.valid["y"][:TESTED])
    made = gt.bundle(
        model, chosen.out, loss=gt.losses.softmax_cross_entropy(), optimizer=gt.optim.SGD(0.02),
        trainable=HEAD, dims={"batch": BATCH}, name="digits", board=chosen.board, ram=RAM, fixed_point=chosen.int8,
    )  # fmt: skip
    size = made.size()
    (chosen.out / "examples.h").write_text(examples(learnt, tested, size), encoding="ascii")
    shutil.copy(Path(__file__).with_name("fine_tune.c"), chosen.out)
    print(size)
    print(f"now: make -C {chosen.out} -f board.mk run sizes PROGRAM=fine_tune.c")


def upside_down(images: Array) -> Array:
    """What the board's camera sees."""
    return np.ascontiguousarray(1 - images[:, :, ::-1, ::-1])


def examples(learnt: tuple[Array, Array], tested: tuple[Array, Array], size: BundleSize) -> str:
    """Images of 16 grey levels and labels as constants in C, and what the model is said to take."""
    lines = ["/* Digits as the camera sees them, for flash; and the stack that the model is said to take. */"]
    lines += [f"#define BATCH {BATCH}", f"#define LEARNT {LEARNT}", f"#define TESTED {TESTED}"]
    lines += [f"#define STEP_STACK {size.functions[0].stack}", f"#define PREDICT_STACK {size.functions[1].stack}"]
    for name, (images, labels) in (("learnt", learnt), ("tested", tested)):
        levels = np.round(images * 16).astype(np.uint8).reshape(len(images), -1)
        rows = ",\n".join(f"  {{{', '.join(map(str, row))}}}" for row in levels)
        lines.append(f"static const unsigned char {name}_images[{len(images)}][{levels.shape[1]}] = {{\n{rows}}};")
        lines.append(f"static const unsigned char {name}_labels[] = {{{', '.join(map(str, labels))}}};")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
