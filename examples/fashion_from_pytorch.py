"""Fashion-MNIST: a network from PyTorch, exported to ONNX, trained by Glowtrain.

The export keeps every parameter apart and under its own name, and BatchNorm as it is (docs/exporting.md).

python examples/fashion_from_pytorch.py [--quick] [--data-dir DIR]
needs PyTorch (pip install torch) and the data (apt-get install dataset-fashion-mnist)
"""

from __future__ import annotations

import argparse
import io
import sys

import checkout  # noqa: F401  finds glowtrain

import glowtrain as gt

try:
    import torch
    from torch import nn
except ModuleNotFoundError:
    sys.exit("this example needs PyTorch: pip install torch")


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 128), nn.ReLU(), nn.Linear(128, 10),
    )  # fmt: skip


def export(module: nn.Module) -> bytes:
    """The module as an ONNX model that trains: training mode, nothing folded, any batch size."""
    file = io.BytesIO()
    torch.onnx.export(
        module.train(), (torch.zeros(4, 1, 28, 28),), file, dynamo=False, opset_version=18,
        training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False,
        input_names=["images"], output_names=["scores"],
        dynamic_axes={"images": {0: "batch"}, "scores": {0: "batch"}},
    )  # fmt: skip
    return file.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    parser.add_argument("--data-dir", help="where the four idx files are")
    arguments = parser.parse_args()
    try:
        fashion = gt.data.load("fashion-mnist", arguments.data_dir)
    except gt.errors.DataError as error:
        sys.exit(str(error))
    count, tested, epochs = (1024, 500, 1) if arguments.quick else (60_000, 10_000, 3)

    torch.manual_seed(0)
    module = network()
    model = gt.load(export(module))
    trainer = gt.Trainer(model, gt.losses.softmax_cross_entropy(), gt.optim.Adam(lr=1e-3), unbiased=True)
    history = trainer.fit(
        (fashion.x[:count], fashion.y[:count]), epochs, batch_size=64,
        validation=(fashion.valid["x"][:tested], fashion.valid["y"][:tested]),
    )  # fmt: skip
    for record in history:
        print(f"epoch {record['epoch']}: loss {record['loss']:.4f}, test accuracy {record['val_accuracy']:.1%}")

    # The names are PyTorch's, so the weights can go home as well.
    state = {
        name: torch.from_numpy(array) for name, array in trainer.variables().items() if name in module.state_dict()
    }
    module.load_state_dict(state, strict=False)
    with torch.no_grad():
        scores = module.eval()(torch.from_numpy(fashion.valid["x"][:tested]))
    right = (scores.argmax(1).numpy() == fashion.valid["y"][:tested]).mean()
    print(f"in PyTorch, with the trained weights: {right:.1%}")


if __name__ == "__main__":
    main()
