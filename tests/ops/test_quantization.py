"""Quantized arithmetic: exactness at its edges, granularity, saturation, and the types that are only stored."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import ShapeError
from glowtrain.grad import gradients
from glowtrain.graph import Constant, Graph, Input, Operator, Value, constant
from glowtrain.ops.core.composite import Composite
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.arithmetic import Add
from glowtrain.ops.elementwise.cast import Cast
from glowtrain.ops.elementwise.logic import Equal, Identity
from glowtrain.ops.microsoft.fused import FusedConv, FusedGemm
from glowtrain.ops.microsoft.linear import QGemm
from glowtrain.ops.microsoft.weights import MatMulNBits
from glowtrain.ops.quantized.convert import DequantizeLinear, DynamicQuantizeLinear, QuantizeLinear
from glowtrain.ops.quantized.integer_products import ConvInteger, MatMulInteger, recentred
from glowtrain.ops.quantized.qlinear import QLinearMatMul
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import Concat, Reshape, Slice, Transpose
from glowtrain.types import Array, TensorType, f4e2m1, f8e4m3fn, f8e8m0, f32, i4, i8, i32, type_of, u2, u8


def both(operator: Operator, *arrays: Array | None, constants: tuple[int, ...] = ()) -> list[Array]:
    """The first result, compiled; it is that of the interpreter."""
    inputs = [
        None if a is None else constant(a) if k in constants else Input(type_of(a), f"x{k}")
        for k, a in enumerate(arrays)
    ]
    outputs = operator(*inputs)
    values = outputs if isinstance(outputs, tuple) else (outputs,)
    graph = Graph(tuple(v for v in inputs if isinstance(v, Input)), {f"y{k}": v for k, v in enumerate(values)})
    feeds = {v.name: arrays[int(v.name[1:])] for v in graph.inputs}
    found, expected = (gt.compile(graph, backend=backend)(feeds) for backend in ("cpu", "interpreter"))
    for name in found:
        assert found[name].tobytes() == expected[name].tobytes()
    return list(found.values())


@pytest.mark.parametrize("depth", [258, 259, 1500])
@pytest.mark.parametrize("fixed", [(), (1, 3), (0, 1, 2, 3)])
def test_products_of_extreme_integers_are_exact(depth: int, fixed: tuple[int, ...]) -> None:
    """Sums beyond 2 ** 24, where f32 would lose the last bits."""
    a = np.full((3, depth), 255, np.uint8)
    b = np.full((depth, 4), -128, np.int8)
    a[1, ::2], b[::3, 1], a[2] = 254, 127, np.arange(depth) % 256
    zeros = np.array(0, np.uint8), np.array(127, np.int8)
    (y,) = both(MatMulInteger(), a, b, *zeros, constants=fixed)
    assert (y == a.astype(np.int64) @ (b.astype(np.int64) - 127)).all()


def test_sums_wrap_around() -> None:
    a, b = np.full((1, 40000), 255, np.uint8), np.full((40000, 1), 255, np.uint8)
    (y,) = both(MatMulInteger(), a, b)
    assert y.item() == (255 * 255 * 40000 + (1 << 31)) % (1 << 32) - (1 << 31)


def test_weights_that_are_known_become_i8() -> None:
    w = np.array([[0, 255, 128]], np.uint8)
    centred, zero = recentred(constant(w), constant(np.array(128, np.uint8)))
    assert zero is None
    assert isinstance(centred, Constant)
    assert centred.array.tolist() == [[-128, 127, 0]]
    shifted, zero = recentred(constant(w), constant(np.array(3, np.uint8)))
    assert isinstance(shifted, Constant)
    assert isinstance(zero, Constant)
    assert (shifted.array.astype(int) - zero.array == w.astype(int) - 3).all()
    unknown = Input(TensorType(u8, (1, 3)), "w")
    assert recentred(unknown, None) == (unknown, None)


@pytest.mark.parametrize("fixed", [(), (1, 3)])
@pytest.mark.parametrize("group", [1, 2, 4])
def test_convolutions_with_extreme_zero_points(fixed: tuple[int, ...], group: int) -> None:
    random = np.random.default_rng(group)
    x = random.choice(np.array([0, 255, 17], np.uint8), (2, 4, 5, 5))
    w = random.choice(np.array([0, 255, 128], np.uint8), (4, 4 // group, 3, 3))
    zeros = np.array([0, 255, 128, 1], np.uint8)
    both(
        ConvInteger(pads=(1, 2, 0, 1), strides=(2, 1), group=group),
        x,
        w,
        np.array(255, np.uint8),
        zeros,
        constants=fixed,
    )
    both(ConvInteger(auto_pad="SAME_UPPER", group=group), x, w, np.array(0, np.uint8), zeros, constants=fixed)


def test_padding_counts_as_the_zero_point() -> None:
    x, w = np.full((1, 1, 2, 2), 7, np.uint8), np.ones((1, 1, 3, 3), np.int8)
    (y,) = both(ConvInteger(pads=(1, 1, 1, 1)), x, w, np.array(7, np.uint8))
    assert (y == 0).all()
    (y,) = both(ConvInteger(pads=(1, 1, 1, 1)), x, w)
    assert (y == 28).all()


def test_rounding_and_saturation() -> None:
    x = np.array([0.5, 1.5, 2.5, -0.5, 300, -300, np.inf, -np.inf, np.nan], np.float32)
    (y,) = both(QuantizeLinear(), x, np.array(1, np.float32), np.array(3, np.int8))
    assert y.tolist() == [3, 5, 5, 3, 127, -128, 127, -128, -128]
    (y,) = both(QuantizeLinear(output_dtype=u2), x, np.array(1, np.float32))
    assert y.view(np.uint8).tolist() == [0, 2, 2, 0, 3, 0, 3, 0, 0]
    (y,) = both(QuantizeLinear(output_dtype=i4), x, np.array(0.25, np.float32))
    assert y.astype(np.int32).tolist() == [2, 6, 7, -2, 7, -8, 7, -8, -8]


def test_blocks_that_do_not_divide_the_axis() -> None:
    x = np.arange(10, dtype=np.float32).reshape(2, 5)
    scale = np.array([[1, 2, 4], [0.5, 1, 8]], np.float32)
    (y,) = both(QuantizeLinear(axis=1, block_size=2), x, scale, np.array([[0, 1, 2], [3, 4, 5]], np.uint8))
    assert y.tolist() == [[0, 1, 2, 3, 3], [13, 15, 11, 12, 6]]
    (z,) = both(DequantizeLinear(axis=1, block_size=2), y, scale, np.array([[0, 1, 2], [3, 4, 5]], np.uint8))
    assert z.tolist() == [[0, 1, 2, 4, 4], [5, 6, 7, 8, 8]]


def test_a_scale_collects_the_gradient_of_its_block() -> None:
    q, scale = np.arange(10, dtype=np.int8).reshape(2, 5), Input(TensorType(f32, (2, 3)), "s")
    zero = np.array([[0, 1, 2], [3, 4, 5]], np.int8)
    y = ReduceSum(keepdims=False)(DequantizeLinear(axis=1, block_size=2)(constant(q), scale, constant(zero)))
    (g,) = gradients(y, [scale])
    found = gt.compile(Graph((scale,), {"g": g}))({"s": np.ones((2, 3), np.float32)})["g"]
    assert found.tolist() == [[1, 3, 2], [5, 7, 4]]


def test_the_range_of_zeros() -> None:
    y, scale, zero = both(DynamicQuantizeLinear(), np.zeros(3, np.float32))
    assert (y.tolist(), scale.item(), zero.item()) == ([0, 0, 0], 1.0, 0)


def test_float8_products() -> None:
    a = np.array([[1, 448], [-2, 0.5]], np.float32).astype(ml_dtypes.float8_e4m3fn)
    one, nothing = np.array(1, np.float32), np.zeros((), ml_dtypes.float8_e4m3fn)
    (y,) = both(QLinearMatMul(), a, one, nothing, a, one, nothing, np.array(2, np.float32), nothing)
    assert y.astype(np.float32).tolist() == [[-448, 320], [-1.5, -448]]


WRONG: list[tuple[Operator, tuple[TensorType | None, ...], str]] = [
    (Add(), (f8e4m3fn[2], f8e4m3fn[2]), "element type must be"),
    (Equal(), (i4[2], i4[2]), "element type must be"),
    (Relu(), (f4e2m1[2],), "element type must be"),
    (ReduceSum(), (i4[2],), "element type must be"),
    (QuantizeLinear(output_dtype=i32), (f32[2], f32[()]), "i32 is none of the quantized types"),
    (QuantizeLinear(output_dtype=i4), (f32[2], f32[()], u8[()]), "output_dtype differs"),
    (QuantizeLinear(), (u8[2], f32[()]), "must be floating or i32"),
    (QuantizeLinear(axis=0), (f32[3, 2], f32[2]), "2 scales for the 3 positions on axis 0"),
    (QuantizeLinear(block_size=2), (f32[3, 4], f32[3, 4]), r"scales must have shape \[3, 2\]"),
    (QuantizeLinear(), (f32[3, 2], f32[2], u8[1]), "one shape"),
    (DequantizeLinear(), (f32[2], f32[()]), "what is dequantized"),
    (DequantizeLinear(), (u8[2], f8e8m0[()]), "scales must be floating"),
    (DequantizeLinear(), (u8[2], f32[()], i8[()]), "one element type"),
    (MatMulInteger(), (u8[2, 3], f32[3, 2]), "operands must be i8 or u8"),
    (MatMulInteger(), (u8[2, 3], i8[3, 4], u8[3]), "not one number for each row"),
    (ConvInteger(), (u8[1, 1, 4, 4], i8[1, 1, 2, 2], u8[2]), "one zero point for all"),
    (FusedConv(activation="Swish"), (f32[1, 1, 4, 4], f32[1, 1, 2, 2]), "activation 'Swish' is not one of"),
    (FusedGemm(), (f32[2, 3], f32[4, 2]), "in its decomposition"),
    (QGemm(), (u8[2, 3], f32[()], u8[()]), "takes 6 to 9 operands, not 3"),
    (MatMulNBits(K=32, N=2, block_size=16, bits=3), (f32[1, 32], u8[2, 2, 6], f32[2, 2]), "2, 4 or 8 bits"),
]


@pytest.mark.parametrize(("operator", "types", "rule"), WRONG, ids=lambda x: str(x)[:60])
def test_what_breaks_a_rule(operator: Operator, types: tuple[TensorType | None, ...], rule: str) -> None:
    with pytest.raises(ShapeError, match=rule) as caught:
        operator.infer(*types)
    assert operator.key() in str(caught.value)


@pytest.mark.parametrize("dtype", [f8e4m3fn, i4, f4e2m1], ids=str)
def test_stored_types_are_moved(dtype: Any) -> None:
    codes = np.arange(12, dtype=np.uint8).view(dtype.numpy).reshape(3, 4)
    x = Input(TensorType(dtype, (3, 4)), "x")
    y = Concat(axis=0)(Identity()(x), Reshape((3, 4))(Slice((0,), (12,), (0,))(Reshape((12,))(x))))
    found = gt.compile(Graph((x,), {"y": Transpose()(y)}))({"x": codes})["y"]
    assert found.tobytes() == np.ascontiguousarray(np.concatenate([codes, codes]).T).tobytes()


def test_saturation_of_float8() -> None:
    x = np.array([1e6, -1e6, np.inf, np.nan, 460.0], np.float32)
    (saturated,) = both(Cast(f8e4m3fn), x)
    (other,) = both(Cast(f8e4m3fn, saturate=False), x)
    assert saturated.view(np.uint8).tolist() == [0x7E, 0xFE, 0x7E, 0x7F, 0x7E]
    assert other.view(np.uint8).tolist() == [0x7F, 0xFF, 0x7F, 0x7F, 0x7E]


@pytest.mark.parametrize(
    ("saturate", "mode", "wanted"),
    [
        (True, "up", [0, 254, 254, 255, 128, 129, 127]),
        (True, "down", [0, 254, 254, 255, 127, 128, 126]),
        (False, "nearest", [255, 255, 255, 255, 128, 129, 127]),
    ],
)
def test_powers_of_two(saturate: bool, mode: Any, wanted: list[int]) -> None:
    """ONNX's table of special values, then rounding."""
    x = np.array([0, np.inf, 3e38, np.nan, 1.5, 3.5, 0.9], np.float32)
    (y,) = both(Cast(f8e8m0, saturate, mode), x)
    assert y.view(np.uint8).tolist() == wanted


def test_operands_left_out_are_absent() -> None:
    """A composite operator gives its definition a value or ``None`` for each operand."""

    class Probe(Composite):
        takes = (1, 3)
        seen: tuple[Value | None, ...] = ()

        def define(self, *inputs: Any) -> Value:
            Probe.seen = inputs
            return inputs[0]

    assert Probe().infer(f32[2]) == f32[2]
    assert [x is None for x in Probe.seen] == [False, True, True]
