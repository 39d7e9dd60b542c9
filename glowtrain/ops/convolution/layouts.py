"""Memory orders that convolutions like, of images [N, C, D...] and weights [M, C/group, k...]."""

from __future__ import annotations

import math

from glowtrain.types import Shape

_VECTOR = 16
"""Elements in a row, or channels, that fill a vector."""
_FEW = 4
"""Channels along which lanes do not pay."""


def channels_last(rank: int) -> Shape:
    """Pixels of all channels: a vector holds channels of one pixel."""
    return (0, *range(2, rank), 1)


def channels_first(rank: int) -> Shape:
    """Rows of pixels of one channel: a vector holds neighbours in a row."""
    return tuple(range(rank))


def outputs_last(rank: int) -> Shape:
    """Taps of a window, then input channels, output channels innermost."""
    return (*range(2, rank), 1, 0)


def is_narrow(weight: Shape, row: int) -> bool:
    """Whether a convolution with such a weight, whose result has such rows, has too few channels for lanes, on either
    side, and rows that fill them; where it takes each pixel of a row and not every other one.

    With channels last it gathers from several pixels, or leaves most of a vector empty: 8 channels to 1 take 7 to 25
    times as long, 4 to 4 twice. Windows of one pixel lose little, and an image is not turned for them.
    """
    outputs, inputs = weight[:2]
    few = inputs < _VECTOR if outputs == 1 else max(outputs, inputs) <= _FEW
    return few and row >= _VECTOR and math.prod(weight[2:]) > 1
