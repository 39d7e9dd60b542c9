"""Models that come with Glowtrain, so that every command can be tried without a file.

They take images x f32["batch", channels, height, width] of any extents and give scores f32["batch", classes].
"""

from __future__ import annotations

from collections.abc import Callable

from glowtrain import nn
from glowtrain.graph import Template, Value
from glowtrain.types import f32

Layers = Callable[..., Value]


def mlp(x: Value, classes: int) -> Value:
    """pixels - 512 - 256 - classes, ReLU between them: 535,818 parameters for 28×28 images and 10 classes."""
    hidden = nn.relu(nn.linear(nn.flatten(x), 512, initializer=nn.Kaiming(), name="hidden1"))
    hidden = nn.relu(nn.linear(hidden, 256, initializer=nn.Kaiming(), name="hidden2"))
    return nn.linear(hidden, classes, name="scores")


def cnn(x: Value, classes: int) -> Value:
    """Two stages of 3×3 convolution, BatchNorm, ReLU and pooling, then two linear layers with dropout."""
    for channels, name in ((32, "stage1"), (64, "stage2")):
        x = nn.conv(x, channels, 3, padding="same", bias=False, initializer=nn.Kaiming(), name=f"{name}.conv")
        x = nn.max_pool(nn.relu(nn.batch_norm(x, name=f"{name}.norm")), 2)
    hidden = nn.relu(nn.linear(nn.flatten(x), 128, initializer=nn.Kaiming(), name="hidden"))
    return nn.linear(nn.dropout(hidden, 0.25), classes, name="scores")


MODELS: dict[str, Layers] = {"mlp": mlp, "cnn": cnn}
"""The layers of each model by its name."""


def build(name: str, example: tuple[int, ...] = (1, 28, 28), classes: int = 10, seed: int = 0) -> Template:
    """The model called ``name`` for examples of shape [channels, height, width]."""

    def scores(x: Value) -> dict[str, Value]:
        return {"scores": MODELS[name](x, classes)}

    scores.__name__ = name
    return nn.model(seed=seed, x=f32["batch", *example])(scores)
