"""A network written in Python, trained on handwritten digits, taken home as ONNX.

python examples/mlp_in_python.py [--quick]
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import checkout  # noqa: F401  finds glowtrain

import glowtrain as gt


@gt.model(x=gt.f32["batch", 1, 8, 8])
def mlp(x: gt.Value) -> gt.Value:
    x = gt.nn.flatten(x)
    x = gt.nn.relu(gt.nn.linear(x, 128))
    x = gt.nn.relu(gt.nn.linear(x, 64))
    return gt.nn.linear(x, 10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    epochs = 3 if parser.parse_args().quick else 20

    digits = gt.data.load("digits")
    trainer = gt.Trainer(mlp, loss=gt.losses.softmax_cross_entropy(), optimizer=gt.optim.Adam(lr=2e-3))
    history = trainer.fit(digits, epochs=epochs, batch_size=32)
    print(f"epoch by epoch: {', '.join(f'{loss:.3f}' for loss in history.loss)}")
    print(f"test accuracy: {history['val_accuracy'][-1]:.1%}")

    path = Path(tempfile.mkdtemp()) / "mlp.onnx"
    gt.save(trainer.model(), path)
    predict = gt.compile(gt.load(path))
    assert digits.x_valid is not None
    print(f"{path}: the first test image is a {predict({'x': digits.x_valid[:1]})['output'].argmax()}")


if __name__ == "__main__":
    main()
