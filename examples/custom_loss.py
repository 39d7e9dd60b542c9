"""A loss of your own: any Python function over values that gives a scalar.

Here: quantile regression. A network learns the 10 %, 50 % and 90 % quantiles of noisy data by the pinball loss
(Koenker and Bassett, Regression Quantiles, 1978), so that four fifths of new points fall between the outer two.

python examples/custom_loss.py [--quick]
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

import checkout  # noqa: F401  finds glowtrain
import numpy as np

import glowtrain as gt
from glowtrain.types import Array

QUANTILES = np.array([0.1, 0.5, 0.9], np.float32)


@gt.model(x=gt.f32["batch", 1])
def network(x: gt.Value) -> dict[str, gt.Value]:
    x = gt.nn.tanh(gt.nn.linear(x, 64))
    x = gt.nn.tanh(gt.nn.linear(x, 64))
    return {"quantiles": gt.nn.linear(x, len(QUANTILES))}


def pinball(outputs: Mapping[str, gt.Value], inputs: Mapping[str, gt.Value]) -> gt.Value:
    """The mean of q d where the target lies d above the prediction, and of (q - 1) d where it lies below."""
    above = inputs["target"] - outputs["quantiles"]
    return gt.nn.mean(gt.nn.where(above > 0.0, QUANTILES * above, (QUANTILES - 1.0) * above))


def sample(count: int, seed: int) -> dict[str, Array]:
    """A wave whose noise grows to the right."""
    generator = np.random.Generator(np.random.Philox(seed))
    x = generator.uniform(-2, 2, (count, 1))
    noise = generator.standard_normal((count, 1)) * (0.1 + 0.1 * (x + 2))
    return {"x": x.astype(np.float32), "target": (np.sin(2 * x) + noise).astype(np.float32)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a short run, for tests")
    epochs = 5 if parser.parse_args().quick else 60

    loss = gt.losses.custom(pinball, target=gt.f32["batch", 1])
    trainer = gt.Trainer(network, loss, gt.optim.Adam(3e-3, schedule=gt.optim.Cosine(40 * epochs)))
    history = trainer.fit(sample(4000, seed=0), epochs, batch_size=100)
    print(f"pinball loss: {history.loss[0]:.4f} in the first epoch, {history.loss[-1]:.4f} in the last")

    new = sample(4000, seed=1)
    below = np.mean(new["target"] < trainer.predict(new["x"])["quantiles"], axis=0)
    for quantile, share in zip(QUANTILES, below, strict=True):
        print(f"{share:6.1%} of new points lie below the predicted {quantile:.0%} quantile")


if __name__ == "__main__":
    main()
