"""Scales, zero points, axes and blocks that no file may have: messages say what is wrong with which, and where."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import glowtrain as gt
from glowtrain.errors import ModelError
from glowtrain.types import Array
from tests.quantization.one_operator import (
    added,
    conv,
    dequantize,
    dynamic,
    joined,
    loaded,
    model,
    product,
    quantize,
    scalar,
    vector,
)

DIVISOR = "numbers are divided by it, so it must be positive and finite"


@pytest.mark.parametrize("value", [0, -0.5, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("maker", "name"),
    [
        (quantize, "scale"),
        (lambda scale: quantize(np.array([0.1, 0.1, 0.1, scale], np.float32)), "scale"),
        (lambda scale: conv(y_scale=scale), "y_scale"),
        (lambda scale: product(y_scale=scale), "y_scale"),
        (lambda scale: product("com.microsoft.QGemm", c=np.zeros(3, np.int32), y_scale=scale), ""),
        (lambda scale: added(y_scale=scale), "y_scale"),
        (lambda scale: joined(y_scale=scale), "y_scale"),
        (lambda scale: model("com.microsoft.QuantizeLinear", {"s": scale, "z": scalar(0, np.uint8)}), "s"),
    ],
)
def test_a_scale_that_results_are_divided_by(maker: Callable[[Array], ModelProto], name: str, value: float) -> None:
    proto = maker(scalar(value))
    if not name:  # QGemm: C comes before the result's scale
        inputs = proto.graph.node[0].input
        last = list(inputs)[6:]
        inputs[6:] = [last[2], last[0], last[1]]
        name = "y_scale"
    with pytest.raises(ModelError, match=f"small: node 'it' .*the scale '{name}' (is|has) {value:g}.*: {DIVISOR}"):
        loaded(proto)


def test_one_scale_of_many_is_named_by_its_place() -> None:
    with pytest.raises(ModelError, match=r"the scale 'w_scale' has nan at \[1\]: weights are multiplied by it"):
        loaded(conv(w_scale=vector(0.1, np.nan, 0.3)))
    blocks = np.full((2, 2), 0.1, np.float32)
    blocks[1, 0] = np.inf
    with pytest.raises(ModelError, match=r"the scale 'scale' has inf at \[1, 0\]"):
        loaded(dequantize(blocks, axis=1, block_size=2))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "maker",
    [
        dequantize,
        lambda scale: dequantize(scale, x="i8[2,4]"),
        lambda scale: conv(x_scale=scale),
        lambda scale: conv(w_scale=scale, w_zero=scalar(0, np.int8)),
        lambda scale: product(a_scale=scale),
        lambda scale: product(b_scale=scale),
        lambda scale: added(a_scale=scale),
        lambda scale: added(b_scale=scale),
        lambda scale: joined(x_scale=scale),
        lambda scale: dynamic(b_scale=scale, b_zero=scalar(0, np.int8)),
    ],
)
def test_a_scale_that_numbers_are_multiplied_by(maker: Callable[[Array], ModelProto], value: float) -> None:
    with pytest.raises(
        ModelError, match=rf"the scale '\w*scale' is {value:g}: .* multiplied by it, so it must be finite"
    ):
        loaded(maker(scalar(value)))


@pytest.mark.parametrize(
    "maker", [lambda s: dequantize(s, x="i8[2,4]"), lambda s: conv(x_scale=s), lambda s: product(a_scale=s)]
)
def test_activations_have_no_negative_scale(maker: Callable[[Array], ModelProto]) -> None:
    with pytest.raises(ModelError, match="is -0.5: activations are multiplied by it, so it must be finite and not neg"):
        loaded(maker(scalar(-0.5)))


def test_weights_have_the_scales_that_tools_write() -> None:
    """ONNX Runtime's weights of 4 bits have scales max / -8, and 0 for blocks of zeros."""
    proto = dequantize(np.array([[-0.5, 0.0], [0.25, 1.0]], np.float32), np.full((2, 4), 3, np.int8), block_size=2)
    found = gt.compile(loaded(proto))({"x": np.zeros((2, 4), np.int8)})["y"]
    np.testing.assert_array_equal(found, [[-1.5, -1.5, 0, 0], [0.75, 0.75, 3, 3]])
    loaded(dequantize(scalar(0), x="i8[2,4]"))
    loaded(conv(w_scale=vector(0.1, 0, -0.1)))


def test_scales_of_a_call_are_not_looked_at() -> None:
    """They are not known when the model is loaded."""
    proto = quantize(scalar(0.0))
    proto.graph.input.append(helper.make_tensor_value_info("given", TensorProto.FLOAT, []))
    proto.graph.node[0].input[1] = "given"
    loaded(proto)


def int32_tensor(code: int, value: int) -> TensorProto:
    return TensorProto(name="zero", data_type=code, int32_data=[value])


@pytest.mark.parametrize(
    ("code", "value", "said"),
    [
        (TensorProto.UINT8, 300, "300 is not a number of u8, which holds 0 to 255"),
        (TensorProto.UINT8, -1, "-1 is not a number of u8"),
        (TensorProto.INT8, -129, "-129 is not a number of i8, which holds -128 to 127"),
        (TensorProto.INT16, 40000, "40000 is not a number of i16"),
        (TensorProto.UINT16, 1 << 16, "65536 is not a number of u16"),
    ],
)
def test_zero_points_that_their_type_does_not_hold(code: int, value: int, said: str) -> None:
    with pytest.raises(ModelError, match=f"'zero': {said}"):
        loaded(quantize(scalar(0.1), int32_tensor(code, value)))


def test_zero_points_of_floats_are_zero() -> None:
    nonzero = helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [3.0])
    with pytest.raises(ModelError, match="node 'it' .*the zero point 'zero' is 3: that of f8e4m3fn must be 0"):
        loaded(quantize(scalar(0.1), nonzero))
    loaded(quantize(scalar(0.1), helper.make_tensor("zero", TensorProto.FLOAT8E4M3FN, [], [0.0])))


BROKEN: dict[str, tuple[Callable[[], ModelProto], str]] = {
    "axis past the last": (lambda: quantize(vector(1, 1, 1, 1), axis=5), r"axis 5 is outside \[-2, 1\]"),
    "axis before the first": (lambda: quantize(vector(1, 1, 1, 1), axis=-3), r"axis -3 is outside \[-2, 1\]"),
    "count of scales": (lambda: quantize(vector(1, 1, 1)), "3 scales for the 4 positions on axis 1"),
    "zero points' shape": (
        lambda: quantize(vector(1, 1, 1, 1), np.zeros(2, np.uint8)),
        "scale and zero point must have one shape",
    ),
    "blocks' shape": (
        lambda: quantize(np.ones((2, 3), np.float32), block_size=3),
        r"with block_size=3 on axis 1 the scales must have shape \[2, 2\]",
    ),
    "negative block": (lambda: quantize(np.ones((2, 2), np.float32), block_size=-2), "block_size=-2"),
    "blocks without a size": (
        lambda: quantize(np.ones((2, 2), np.float32)),
        "scales of rank 2 are for blocks: say block_size",
    ),
    "zero point's type": (
        lambda: dequantize(scalar(1), np.ones((2, 4), np.uint8)),
        "operand and zero point must have one element type, not u8 and i8",
    ),
    "zero point of no quantized type": (
        lambda: quantize(scalar(1), scalar(0, np.int64)),
        "i64 is none of the quantized types",
    ),
    "convolution: zero point's type": (
        lambda: conv(x_zero=scalar(0, np.int8)),
        "a zero point must have its operand's type u8",
    ),
    "convolution: count of zero points": (
        lambda: conv(w_zero=np.zeros(2, np.int8)),
        "the weight has one zero point for all, or one for each output channel",
    ),
    "convolution: count of scales": (lambda: conv(w_scale=vector(1, 1)), "one for each channel for w"),
    "product: zero point's type": (lambda: product(a_zero=scalar(0, np.int8)), "in pairs"),
    "product: count of scales": (lambda: product(b_scale=vector(1, 1)), r"\[2\] is not one number for each column"),
    "sum: zero point's type": (
        lambda: added(b_zero=scalar(0, np.int8)),
        "a zero point must have its tensor's type u8, not i8",
    ),
    "sum: result's zero point": (lambda: added(y_zero=scalar(0, np.int8)), "its tensor's type u8, not i8"),
    "sum: several scales": (lambda: added(a_scale=vector(1, 1)), "every tensor has one scale and one zero point"),
    "concat: zero point's type": (lambda: joined(x_zero=scalar(0, np.int8)), "its tensor's type u8, not i8"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_operands_that_do_not_fit(case: str) -> None:
    proto, said = BROKEN[case]
    with pytest.raises(ModelError, match=f"small: node 'it' .*{said}"):
        loaded(proto())
