"""The training rows: what is trained, on how much, by which loss and optimizer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ADAM_RATE, SGD_RATE, MOMENTUM, PLAIN_RATE = 1e-3, 1e-2, 0.9, 1e-3
"""Learning rates of Adam, of SGD with and without momentum."""


@dataclass(frozen=True)
class TrainingRow:
    """A training step: forward, backward and update, in f32.

    ``loss``: cross entropy of classes over the last axis, mean of squares, or the model's own scalar output ("value").
    ``optimizer``: "momentum" is SGD with, "plain" without it. A call makes ``calls`` steps; more than one is a whole
    epoch by the way in which an engine's users run one.
    """

    name: str
    about: str
    batch: int
    loss: Literal["classes", "squares", "value"]
    optimizer: Literal["adam", "momentum", "plain"]
    calls: int = 1
    model: str = ""
    """The row whose model this one trains; its own unless said."""

    @property
    def module(self) -> str:
        """The name of its model."""
        return self.model or self.name


_ROWS = (
    TrainingRow("tiny", "MLP 8-16-16-1, tanh", 32, "squares", "adam"),
    TrainingRow("tiny-fit", "the same, an epoch of 64 batches at a time", 32, "squares", "adam", 64, "tiny"),
    TrainingRow("mlp", "MLP 784-512-512-10", 64, "classes", "momentum"),
    TrainingRow("cnn", "convolutions 1-32-64, 3×3, pool, 9216-128-10, 28×28", 64, "classes", "adam"),
    TrainingRow("resnet20", "CIFAR ResNet-20, 32×32", 32, "classes", "momentum"),
    TrainingRow("mobilenetv2", "MobileNetV2 ×0.35, 96×96", 8, "classes", "momentum"),
    TrainingRow("lstm", "embedding 64, LSTM 256, 50 steps", 32, "classes", "adam"),
    TrainingRow("gpt", "4 layers, width 128, 64 tokens, vocabulary 65", 12, "classes", "adam"),
    TrainingRow("vit", "4 layers, width 128, patches of 4, 32×32", 32, "classes", "adam"),
    TrainingRow("segmentation", "U-Net: GroupNorm, SiLU, ConvTranspose, bilinear Resize, 64×64", 8, "classes", "adam"),
    TrainingRow("scan", "a recurrence of 60 scalar states, 614 steps", 1, "squares", "adam"),
    TrainingRow("cumprod", "cumulative products of 256 rows of 1024", 256, "value", "plain"),
    TrainingRow("elementwise", "log, tanh, sigmoid, erf and mish of a million elements", 1, "value", "plain"),
    TrainingRow("adam", "Adam over 10 tensors of a million elements", 1, "value", "adam"),
)
TRAINING = {row.name: row for row in _ROWS}
"""By name."""
