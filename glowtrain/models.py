"""Models that come with Glowtrain, so that every command can be tried without a file.

They take images x f32["batch", channels, height, width] of any extents and give scores f32["batch", classes].
"""

from __future__ import annotations

from collections.abc import Callable

from glowtrain import nn
from glowtrain.graph import Template, Value
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.types import Array, f32

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


BLOCKS = ((16, 1, 1), (24, 2, 3), (24, 1, 3), (40, 2, 4), (40, 1, 4))
"""The blocks of :func:`mobilenet`: channels, stride and expansion of each."""


def mobilenet(x: Value, classes: int) -> Value:
    """Inverted residuals with linear bottlenecks: 1×1 expansion, 3×3 depthwise, 1×1 projection, each with BatchNorm.

    Source: Sandler et al., MobileNetV2 (CVPR 2018, arXiv:1801.04381), with few and narrow layers for small images.
    """
    x = _relu6(_normed_conv(x, 16, 3, name="stem"))
    for number, (channels, stride, expansion) in enumerate(BLOCKS):
        x = _inverted_residual(x, channels, stride, expansion, f"block{number + 1}")
    x = _relu6(_normed_conv(x, 128, 1, name="features"))
    return nn.linear(nn.dropout(nn.global_average_pool(x), 0.1), classes, name="scores")


def _inverted_residual(x: Value, channels: int, stride: int, expansion: int, name: str) -> Value:
    inner = x.shape[1] * expansion
    wide = _relu6(_normed_conv(x, inner, 1, name=f"{name}.expand")) if expansion > 1 else x
    filtered = _relu6(_normed_conv(wide, inner, 3, stride=stride, groups=inner, name=f"{name}.depthwise"))
    narrow = _normed_conv(filtered, channels, 1, name=f"{name}.project")
    return x + narrow if narrow.shape == x.shape else narrow


def _normed_conv(x: Value, channels: int, kernel: int, *, stride: int = 1, groups: int = 1, name: str) -> Value:
    convolved = nn.conv(
        x, channels, kernel, stride=stride, padding="same", groups=groups, bias=False, initializer=nn.Kaiming(),
        name=f"{name}.conv",
    )  # fmt: skip
    return nn.batch_norm(convolved, name=f"{name}.norm")


def _relu6(x: Value) -> Value:
    result: Value = Clip()(x, 0.0, 6.0)
    return result


def transformer(x: Value, classes: int) -> Value:
    """Patches of 8×8 pixels, one every 4, as tokens of 64 features; two encoder blocks with 4 heads; the tokens' mean.

    Sources: Dosovitskiy et al., An Image is Worth 16x16 Words (ICLR 2021, arXiv:2010.11929), with normalization before
    each part as there; overlapping patches as in Wu et al., CvT (ICCV 2021, arXiv:2103.15808), since images are few.
    """
    features, heads = 64, 4
    patches = nn.conv(x, features, 8, stride=4, padding=2, initializer=nn.Xavier(), name="patches")
    batch, _, rows, columns = patches.shape
    tokens = nn.transpose(nn.reshape(patches, (batch, features, rows * columns)), 0, 2, 1)
    tokens = tokens + nn.parameter("positions", (rows * columns, features), nn.Normal(0.02))
    for number in (1, 2):
        with nn.scope(f"block{number}"):
            tokens = tokens + nn.attention(nn.layer_norm(tokens, name="norm1"), heads)
            hidden = nn.linear(nn.layer_norm(tokens, name="norm2"), 2 * features, initializer=nn.Xavier(), name="wide")
            tokens = tokens + nn.linear(nn.gelu(hidden), features, initializer=nn.Xavier(), name="narrow")
    return nn.linear(nn.mean(nn.layer_norm(tokens, name="norm"), 1), classes, name="scores")


MODELS: dict[str, Layers] = {"mlp": mlp, "cnn": cnn, "mobilenet": mobilenet, "transformer": transformer}
"""The layers of each model by its name."""


def build(
    name: str,
    example: tuple[int, ...] = (1, 28, 28),
    classes: int = 10,
    seed: int = 0,
    moments: tuple[Array, Array] | None = None,
) -> Template:
    """The model called ``name`` for examples of shape [channels, height, width]. With ``moments``, mean and deviation
    of each feature, both f32[*example], it subtracts the one and divides by the other first."""

    def scores(x: Value) -> dict[str, Value]:
        return {"scores": MODELS[name](x if moments is None else (x - moments[0]) / moments[1], classes)}

    scores.__name__ = name
    return nn.model(seed=seed, x=f32["batch", *example])(scores)
