"""ONNX Runtime: what it can do and where it differs, for what is written to run there and what is compared with it.

What quantizes, writes and checks models asks here, so that no operator or pass knows of another runtime.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from glowtrain.graph import Operator, Sample
from glowtrain.ops.convolution.convolution import Conv
from glowtrain.ops.normalize.local_and_mean_variance import MeanVarianceNormalization
from glowtrain.ops.pooling.pooling import Pool
from glowtrain.ops.resample.resize import Resize
from glowtrain.ops.sequence.recurrent import LSTM
from glowtrain.ops.signal.fourier import DFT
from glowtrain.types import Array

INTEGER_RESULTS: tuple[type[Operator], ...] = (Conv,)
"""Contractions with integer kernels only for results that are quantized too: so they are, whoever reads them."""
SCALED_OPERAND = 1
"""The operand of a contraction, its right one, that may have several scales; not where it is a stack of matrices."""


def least_share_scale(count: int) -> float:
    """The least scale of what Softmax over ``count`` numbers gives: with less, as shares that are nearly equal would
    have, a product in QLinearSoftmax (its exponentials begin at the greatest f32, over e^5 · count) is infinite, and
    its result 0."""
    return 1 / (148 * count)


def reciprocal(scale: Array, count: int) -> Array:
    """Scales below 1, of what Softmax over ``count`` numbers gives, as reciprocals of whole numbers, the next from
    these on, and at least :func:`least_share_scale`.

    QLinearSoftmax multiplies by the scale's reciprocal in f32 without its fraction; with these scales it
    gives what ONNX says. They are wider by less than one part in the reciprocal.
    """
    wide = np.maximum(scale.astype(np.float64), least_share_scale(count))
    whole = np.maximum(np.floor((1.0 + 1e-6) / wide), 1.0)
    fitting = (1.0 / whole).astype(np.float32)
    short = np.float32(1) / fitting < whole  # rounded up: 1 / 255 in f32 is above 1 / 255
    fitting = np.where(short, np.nextafter(fitting, np.float32(0)), fitting)
    return np.where(scale < 1, fitting, scale).astype(np.float32)


OTHERS = ("com.microsoft", "ai.onnx.ml", "ai.onnx.preview.training")
"""Domains whose operators are not compared: they are ONNX Runtime's own, or have no gradients there."""
DIFFERENT = {
    "Dropout": "it draws other random numbers",
    "InstanceNormalization": "it is less accurate where the variance is small",
    "MaxUnpool": "it counts positions in output_shape, not in the shape that the window implies",
    "Squeeze": "it takes empty axes for all axes",
    "TopK": "the order is its own where sorted is 0",
    "glowtrain.Selection": "the order is its own where sorted is 0",
}
"""Operators that are not compared, each with the reason."""


def _spectrum_of_another_length(sample: Sample) -> bool:
    operator, spectrum = sample.operator, sample.inputs[0]
    assert isinstance(operator, DFT)
    assert spectrum is not None
    if not (operator.inverse and operator.onesided and operator.dft_length):
        return False
    return bool(spectrum.shape[operator.axis] != operator.dft_length // 2 + 1)


def _window_short_of_the_end(sample: Sample) -> bool:
    operator, x = sample.operator, sample.inputs[0]
    assert isinstance(operator, Pool)
    if operator.auto_pad != "SAME_UPPER":
        return False
    return any((axis.out - 1) * axis.stride + axis.width < axis.extent - 1 for axis in operator.geometry(x).axes)


def _other_coordinates(sample: Sample) -> bool:
    operator, x = sample.operator, sample.inputs[0]
    assert isinstance(operator, Resize)
    assert x is not None
    axes = range(x.ndim) if operator.axes is None else operator.axes
    extents = [x.shape[axis] for axis in axes]
    scaled = [n * scale for n, scale in zip(extents, operator.scales or (), strict=False)] or operator.sizes or ()
    if operator.coordinate_transformation_mode == "tf_crop_and_resize":
        return any(int(size) == n for n, size in zip(extents, scaled, strict=True))
    return operator.coordinate_transformation_mode == "align_corners" and any(abs(n - round(n)) > 1e-6 for n in scaled)


def _unclipped_state(sample: Sample) -> bool:
    operator = sample.operator
    assert isinstance(operator, LSTM)
    last = (operator.activations or operator.functions)[2 :: len(operator.functions)]
    return operator.clip is not None and any(name.lower() not in _LEVEL for name in last)


def _equal_elements(sample: Sample) -> bool:
    operator, x = sample.operator, sample.inputs[0]
    assert isinstance(operator, MeanVarianceNormalization)
    assert x is not None
    return not np.ptp(x, axis=operator.axes).all()


_LEVEL = ("tanh", "sigmoid", "scaledtanh", "hardsigmoid")
"""Activations that are level where a clip cuts off."""
_CORNERS = "it aligns corners of rounded extents, and takes axes that keep their extent whole, whatever the region"
_PADS = "where strides pass over the last elements, SAME_UPPER cuts the input in front, by pads below 0"
IN_PART: dict[str, tuple[str, Callable[[Sample], bool]]] = {
    "DFT": (
        "it takes other bins than NumPy for a real signal whose spectrum has not dft_length / 2 + 1 of them",
        _spectrum_of_another_length,
    ),
    **dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), (_PADS, _window_short_of_the_end)),
    "LSTM": ("it does not clip the cell state on its way to the last activation", _unclipped_state),
    "MeanVarianceNormalization": (
        "it takes the mean's square from the squares' mean: less than 0, and its root NaN, where elements are equal",
        _equal_elements,
    ),
    "Resize": (_CORNERS, _other_coordinates),
}
"""Operators of which some uses are not compared, each with the reason."""


def comparable(sample: Sample) -> bool:
    """Whether ONNX Runtime means the same by an operator at these operands.

    Without elements it does not say: some of its kernels divide by zero then, or never return.
    """
    operator = sample.operator
    if any(array is not None and not array.size for array in sample.inputs):
        return False
    if operator.random or operator.domain in OTHERS or operator.key() in DIFFERENT:
        return False
    return operator.key() not in IN_PART or not IN_PART[operator.key()][1](sample)
