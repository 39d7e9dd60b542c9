"""ResNet-50 and MobileNetV2 for 224×224 images, in PyTorch, with seeded He weights."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor, nn

from benchmarks.peers.models import _MOBILENET_STAGES, _conv_bn, _he_normal, _InvertedResidual


class Bottleneck(nn.Module):
    """1×1, 3×3 (which takes the stride) and 1×1 convolutions beside a shortcut (He et al. 2016, figure 5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = 4 * width
        self.body = nn.Sequential(*_relu(inputs, width, 1), *_relu(width, width, 3, stride), *_plain(width, outputs, 1))
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else nn.Sequential(*_plain(inputs, outputs, 1, stride))

    def forward(self, x: Tensor) -> Tensor:
        """The block's value."""
        return torch.relu(self.body(x) + self.shortcut(x))


def _plain(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(outputs)]


def _relu(inputs: int, outputs: int, kernel: int, stride: int = 1) -> list[nn.Module]:
    return [*_plain(inputs, outputs, kernel, stride), nn.ReLU()]


def resnet50() -> nn.Module:
    """f32[batch, 3, 224, 224] to f32[batch, 1000]; the stride is in the 3×3 convolutions, as is usual now."""
    layers, inputs = [*_relu(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)], 64
    for width, repeats, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for repeat in range(repeats):
            layers.append(Bottleneck(inputs, width, 1 if repeat else stride))
            inputs = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))


def mobilenetv2() -> nn.Module:
    """f32[batch, 3, 224, 224] to f32[batch, 1000] (Sandler et al. 2018, table 2)."""
    layers, inputs = [_conv_bn(3, 32, 3, 2)], 32
    for stage, (expand, outputs, repeats, stride) in enumerate(_MOBILENET_STAGES):
        first = 2 if stage == 1 else stride
        for repeat in range(repeats):
            layers.append(_InvertedResidual(inputs, outputs, 1 if repeat else first, expand))
            inputs = outputs
    layers.append(_conv_bn(inputs, 1280, 1))
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, 1000))


MODELS: dict[str, Callable[[], nn.Module]] = {"resnet50": resnet50, "mobilenetv2": mobilenetv2}


def build(name: str, seed: int = 0) -> nn.Module:
    """The model called ``name``, in inference form. Its normalizations scale by what one batch of noise shows them, so
    that activations keep their size through all layers."""
    torch.manual_seed(seed)
    module = MODELS[name]()
    _he_normal(module)
    with torch.no_grad():
        for _ in itertools.repeat(None, 20):
            module(torch.randn(2, 3, 224, 224))
    return module.eval()
