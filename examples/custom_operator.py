"""An operator of your own: one class, and it prints, differentiates, compiles, is checked and goes into ONNX files.

Here: squared distances between points and centres, and a network of radial basis functions on top of them
(Broomhead and Lowe, 1988) that reads handwritten digits.

python examples/custom_operator.py [--quick]
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any, ClassVar

import checkout  # noqa: F401  finds glowtrain
import numpy as np

import glowtrain as gt
from glowtrain.graph import Draw, Sample
from glowtrain.loops import For, Statement, Tensor, indices_of, reduce
from glowtrain.types import Array, TensorType


@gt.operator
@dataclass(frozen=True)
class SquaredDistances(gt.Operator):
    """y[i, j] = sum over k of (x[i, k] - c[j, k])²"""

    domain: ClassVar[str] = "example"

    def infer(self, x: TensorType, c: TensorType) -> TensorType:
        if x.rank != 2 or c.rank != 2 or x.shape[1] != c.shape[1]:
            raise self.fail("points and centres must be matrices with one number of columns", x, c)
        return x.with_shape((x.shape[0], c.shape[0]))

    def reference(self, x: Array, c: Array) -> Array:
        return np.asarray(((x[:, None, :] - c[None, :, :]) ** 2).sum(axis=2))

    def vjp(self, g: gt.Value, y: gt.Value, x: gt.Value, c: gt.Value) -> tuple[gt.Value, gt.Value]:
        """Cotangents of x and c, as graph code (which has a gradient, too)."""
        rows, columns = gt.nn.total(g, 1, keepdims=True), gt.nn.transpose(gt.nn.total(g, 0, keepdims=True))
        return 2.0 * (rows * x - g @ c), 2.0 * (columns * c - gt.nn.transpose(g) @ x)

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        """The loop nest that is compiled: for each i, j the sum over k."""
        (y,), (x, c) = outputs, inputs
        i, j = indices_of(y.shape)
        total = reduce("add", (x.shape[1],), lambda k: (x[i, k] - c[j, k]) * (x[i, k] - c[j, k]))
        return [For((i, j), (y.store((i, j), total),))]

    def decompose(self, x: gt.Value, c: gt.Value) -> gt.Value:
        """The same by ONNX's own operators: how it is written into ONNX files, and a second opinion on the rule."""
        apart = gt.nn.reshape(x, (x.shape[0], 1, x.shape[1])) - c
        return gt.nn.total(apart * apart, 2)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """The uses on which the operator is tested."""
        rows, centres, columns = (draw.integer(1, 5) for _ in range(3))
        return Sample(cls(), (draw.floats((rows, columns)), draw.floats((centres, columns))))


@gt.model(x=gt.f32["batch", 1, 8, 8])
def radial_basis_network(x: gt.Value) -> dict[str, gt.Value]:
    points = gt.nn.flatten(x)
    centres = gt.nn.parameter("centres", (150, 64), gt.nn.Normal(0.3))
    distances = SquaredDistances()(points, centres)
    return {"scores": gt.nn.linear(gt.nn.exp(distances * -0.25), 10)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    quick = parser.parse_args().quick

    report = gt.gradcheck.check_registry(["example.SquaredDistances"], examples=5 if quick else 25)
    print(f"gradcheck: {report.summary()}")
    report.raise_if_failed()

    trainer = gt.Trainer(radial_basis_network, gt.losses.softmax_cross_entropy(), gt.optim.Adam(2e-2))
    history = trainer.fit(gt.data.load("digits"), epochs=3 if quick else 25, batch_size=32)
    print(f"test accuracy: {history['val_accuracy'][-1]:.1%}")

    saved = gt.save(trainer.model())
    print(f"in an ONNX file, for any batch: {', '.join(node.op_type for node in saved.graph.node)}")


if __name__ == "__main__":
    main()
