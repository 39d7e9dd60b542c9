"""Transposed convolutions in integers: exact sums with every attribute, and quantized models without floats between."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

import glowtrain as gt
from glowtrain import nn
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ShapeError
from glowtrain.graph import Graph, Input, Value, Variable, constant
from glowtrain.lower.expand import expand
from glowtrain.ops.convolution.convolution import ConvTranspose
from glowtrain.ops.elementwise.activation import Relu, Sigmoid
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.quantized.convert import DequantizeLinear, QuantizeLinear
from glowtrain.ops.quantized.integer_products import ConvInteger
from glowtrain.ops.quantized.integer_transposed import ConvTransposeInteger, Interleave
from glowtrain.optimize.integer import in_integers
from glowtrain.optimize.pipeline import optimize
from glowtrain.quantization import Recipe, Scheme
from glowtrain.quantization.export.qoperator import qoperator
from glowtrain.types import Array, TensorType, f32, i8, i32, type_of, u8
from glowtrain.verification import ladder
from tests.stages import lower, scheduled


def sums(operator: ConvTranspose | ConvTransposeInteger, x: Array, w: Array) -> Array:
    """The definition, place by place and tap by tap, in i64; operands are centred already."""
    geometry = ConvTranspose(**operator.attributes()).geometry(x, w)
    group, inner = operator.group, w.shape[0] // operator.group
    y = np.zeros((x.shape[0], group, w.shape[1], *geometry.spatial), np.int64)
    left = x.astype(np.int64).reshape(x.shape[0], group, inner, *x.shape[2:])
    right = w.astype(np.int64).reshape(group, inner, *w.shape[1:])
    for place, tap in product(np.ndindex(*x.shape[2:]), np.ndindex(*w.shape[2:])):
        at = [p * a.stride + k * a.dilation - a.begin for p, k, a in zip(place, tap, geometry.axes, strict=True)]
        if all(0 <= i < extent for i, extent in zip(at, geometry.spatial, strict=True)):
            y[:, :, :, *at] += np.einsum("ngi,gim->ngm", left[:, :, :, *place], right[:, :, :, *tap])
    whole: Array = y.reshape(x.shape[0], group * w.shape[1], *geometry.spatial)
    return whole


def computed(operator: ConvTransposeInteger, *arrays: Array | None, known: tuple[int, ...] = ()) -> Array:
    """The result of native code, which is that of the interpreter."""
    inputs = [
        None if a is None else constant(a) if k in known else Input(type_of(a), f"x{k}") for k, a in enumerate(arrays)
    ]
    graph = Graph(tuple(v for v in inputs if isinstance(v, Input)), {"y": operator(*inputs)})
    feeds = {v.name: arrays[int(v.name[1:])] for v in graph.inputs}
    found, expected = (gt.compile(graph, backend=backend)(feeds)["y"] for backend in ("cpu", "interpreter"))
    assert found.dtype == i32.numpy
    assert found.tobytes() == expected.tobytes()
    return np.asarray(found)


CASES: list[tuple[dict[str, Any], tuple[int, ...], tuple[int, ...]]] = [
    ({}, (2, 3, 4), (3, 2, 3)),
    ({"strides": (3,)}, (1, 2, 4), (2, 3, 2)),  # a phase without taps
    ({"strides": (2,), "output_padding": (1,), "pads": (1, 1)}, (1, 2, 5), (2, 2, 3)),
    ({"strides": (2,), "pads": (5, 6)}, (1, 2, 9), (2, 1, 3)),  # input places that no window reads
    ({"strides": (2, 2), "pads": (1, 1, 1, 1)}, (2, 4, 3, 5), (4, 3, 4, 4)),
    ({"strides": (2, 3), "dilations": (3, 2), "group": 2}, (1, 4, 3, 3), (4, 2, 2, 3)),
    ({"strides": (4, 1), "dilations": (2, 1)}, (1, 2, 3, 3), (2, 2, 3, 1)),
    ({"strides": (2, 2), "output_shape": (9, 8)}, (1, 2, 4, 4), (2, 2, 3, 3)),
    ({"strides": (2, 2), "auto_pad": "SAME_LOWER", "group": 4}, (1, 4, 3, 3), (4, 1, 3, 3)),
    ({"strides": (2, 1, 2), "pads": (1, 0, 0, 0, 1, 1)}, (1, 2, 2, 3, 2), (2, 2, 3, 2, 2)),
]  # fmt: skip


@pytest.mark.spread(2)
@pytest.mark.parametrize(("case", "known"), [*((case, (1, 3)) for case in range(len(CASES))), (5, ()), (9, ())])
def test_every_attribute(case: int, known: tuple[int, ...], random: np.random.Generator) -> None:
    attributes, image, kernel = CASES[case]
    operator = ConvTransposeInteger(**attributes)
    x = random.choice(np.array([0, 255, 17], np.uint8), image)
    w = random.choice(np.array([-128, 127, 3], np.int8), kernel)
    assert (computed(operator, x, w) == sums(operator, x, w)).all()
    channels = kernel[1] * operator.group
    zero, zeros = np.array(255, np.uint8), random.choice(np.array([-128, 0, 127], np.int8), channels)
    per_weight = np.repeat(zeros.reshape(operator.group, 1, -1), kernel[0] // operator.group, 1).reshape(kernel[:2])
    centred = w.astype(int) - per_weight.reshape(*kernel[:2], *(1,) * (len(kernel) - 2))
    found = computed(operator, x, w, zero, zeros, known=known)
    assert (found == sums(operator, x.astype(int) - 255, centred)).all()


@pytest.mark.parametrize(("types", "known"), [((u8, i8), (1,)), ((u8, i8), ()), ((i8, i8), (1,)), ((u8, u8), ())])
def test_sums_are_exact_at_the_extremes(types: tuple[Any, Any], known: tuple[int, ...]) -> None:
    """Every place of the middle sums 4 · 160 products; with u8 and i8 beyond 2 ** 24 in all."""
    left, right = (255 if t == u8 else -128 for t in types)
    x = np.full((1, 640, 3, 3), left, types[0].numpy)
    w = np.full((640, 2, 4, 4), 255 if right == 255 else -128, types[1].numpy)
    found = computed(ConvTransposeInteger(strides=(2, 2), pads=(1, 1, 1, 1)), x, w, known=known)
    assert (found[:, :, 1:5, 1:5] == 4 * 640 * left * right).all()
    assert abs(4 * 640 * left * right) > 1 << 24


def real(x: Value, scale: float, zero: int) -> Value:
    result: Value = DequantizeLinear()(x, constant(np.float32(scale)), constant(np.array(zero, x.dtype.numpy)))
    return result


def quantized(x: Value, scale: float, zero: int) -> Value:
    result: Value = QuantizeLinear()(x, constant(np.float32(scale)), constant(np.array(zero, np.uint8)))
    return result


def operators(graph: Graph) -> list[str]:
    return [node.operator.key() for node in graph.nodes]


def layer(
    attributes: dict[str, Any], w: Array, scales: Array, axis: int, zero: int, bias: tuple[Array, Array]
) -> tuple[Graph, Value]:
    """A quantized input, its transposed convolution, and a graph of nothing else."""
    x = Input(TensorType(f32, (2, w.shape[0], 5, 4)), "x")
    weight = DequantizeLinear(axis=axis)(constant(w), constant(scales), constant(np.zeros(scales.shape, w.dtype)))
    offsets = DequantizeLinear(axis=0)(constant(bias[0]), constant(bias[1]))
    y = ConvTranspose(**attributes)(real(quantized(x, 0.02, zero), 0.02, zero), weight, offsets)
    return Graph((x,), {"y": y}), y


GRANULARITY = {
    # group, channels in, channels out of a group, the weight's axis with scales, and the scales' number
    "tensor": (1, 6, 4, 1, 1),
    "channel": (1, 6, 4, 1, 4),
    "groups": (2, 6, 3, 1, 3),
    "depthwise": (6, 6, 1, 0, 6),
    "one channel in": (3, 3, 2, 0, 3),
}


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    ("granularity", "activation"),
    [
        *((granularity, Relu()) for granularity in GRANULARITY),
        ("channel", None),
        ("depthwise", Clip()),
    ],
)
def test_quantized_layers(granularity: str, activation: Relu | Clip | None, random: np.random.Generator) -> None:
    """sum · (s_x s_w / s_y), rounded to even, then the zero point and the bounds: the same bits everywhere."""
    group, channels, out, axis, count = GRANULARITY[granularity]
    attributes = {"group": group, "strides": (2, 2), "pads": (1, 0, 1, 1), "output_padding": (1, 0)}
    w = random.integers(-127, 128, (channels, out, 3, 3)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, count).astype(np.float32)
    each = np.tile(scales, group) if axis == 1 else np.repeat(scales, out)
    factor = (np.float32(0.02) * np.broadcast_to(each if count > 1 else scales, group * out)).astype(np.float32)
    bias = random.integers(-3000, 3000, group * out).astype(np.int32)
    graph, y = layer(attributes, w, scales, axis, 131, (bias, factor if count > 1 else factor[:1]))
    if isinstance(activation, Relu):
        y = activation(y)
    if isinstance(activation, Clip):
        y = activation(y, constant(np.array(0, np.float32)), constant(np.array(3, np.float32)))
    graph = Graph(graph.inputs, {"y": quantized(y, 0.05, 77)})
    integers = in_integers(graph)
    assert operators(integers).count("ConvInteger") == 4
    assert not {"ConvTranspose", "DequantizeLinear", "Relu"} & set(operators(integers))
    x = random.normal(size=graph.inputs[0].shape).astype(np.float32) * 2
    numbers = QuantizeLinear().reference(x, np.float32(0.02), np.array(131, np.uint8)).astype(int) - 131
    total = sums(ConvTranspose(**attributes), numbers, w) + bias.reshape(-1, 1, 1)  # type: ignore[arg-type]
    units = np.rint(total.astype(np.float32) * (factor / np.float32(0.05)).reshape(-1, 1, 1)) + 77
    low, high = (0, 255) if activation is None else (77, 255 if isinstance(activation, Relu) else 137)
    expected = np.clip(units, low, high).astype(np.uint8)
    assert len(np.unique(expected)) > 20
    for backend in ("cpu", "interpreter"):
        assert gt.compile(graph, backend=backend)({"x": x})["y"].tobytes() == expected.tobytes()
    moved = gt.compile(graph, fixed_point=True)({"x": x})["y"].astype(int) - expected
    assert np.abs(moved).max() <= 1
    one_by_one = np.asarray(evaluate(graph, {"x": x})[graph.outputs["y"]]).astype(int)
    assert np.abs(one_by_one - expected).max() <= 1


def test_phases_are_rescaled_where_they_are_summed(random: np.random.Generator) -> None:
    """One kernel for each phase, which writes bytes to their places; sums in i32 are nowhere in memory."""
    w = random.integers(-127, 128, (6, 8, 4, 4)).astype(np.int8)
    scales = random.uniform(0.001, 0.01, 8).astype(np.float32)
    bias = np.arange(8, dtype=np.int32), np.float32(0.02) * scales
    graph, y = layer({"strides": (2, 2), "pads": (1, 1, 1, 1)}, w, scales, 1, 9, bias)
    graph = Graph(graph.inputs, {"y": quantized(nn.relu(y), 0.05, 0)})
    program = scheduled(lower(optimize(expand(in_integers(graph)))))
    names = [kernel.name for kernel in program.kernels]
    assert [name.startswith("convinteger") and name.endswith("+interleave") for name in names].count(True) == 4
    assert len(names) == 6  # the first quantizes, the last copies to the caller's layout
    assert not [buffer for buffer in program.buffers if buffer.kind == "activation" and buffer.dtype == i32]


def test_results_that_stay_real_and_functions_of_them(random: np.random.Generator) -> None:
    """Functions are computed in each phase; tensors beside the image are not."""
    w, scales = random.integers(-127, 128, (3, 2, 2, 2)).astype(np.int8), np.array([0.004, 0.01], np.float32)
    graph, y = layer({"strides": (2, 2)}, w, scales, 1, 128, (np.arange(2, dtype=np.int32), np.ones(2, np.float32)))
    x = random.normal(size=graph.inputs[0].shape).astype(np.float32)
    for result in (y, Sigmoid()(0.5 * y), y * y, y * constant(np.ones((1, 2, 1, 1), np.float32))):
        graph = Graph(graph.inputs, {"y": result})
        assert "ConvTranspose" not in operators(in_integers(graph))
        expected = np.asarray(evaluate(graph, {"x": x})[result])
        found = [gt.compile(graph, backend=backend)({"x": x})["y"] for backend in ("cpu", "interpreter")]
        np.testing.assert_allclose(found[0], expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(found[1], expected, rtol=1e-5, atol=1e-5)
    last = in_integers(Graph(graph.inputs, {"y": Sigmoid()(0.5 * y)})).nodes[-1]
    assert isinstance(last.operator, Interleave)


def test_scales_along_the_summed_axis_stay_real() -> None:
    w, scales = np.ones((4, 2, 2, 2), np.int8), np.ones(4, np.float32)
    graph, _ = layer({}, w, scales, 0, 0, (np.zeros(2, np.int32), np.ones(2, np.float32)))
    assert "ConvTranspose" in operators(in_integers(graph))


def decoder() -> Graph:
    def weights(name: str, *shape: int) -> Value:
        return Variable(name, np.random.default_rng(len(name)).normal(size=shape).astype(np.float32) * 0.2)

    @gt.model(x=f32[2, 3, 6, 6])
    def decoder(x: Value) -> Value:
        y = nn.relu(nn.conv(x, 8, 3, padding=1, name="first"))
        up = ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1), output_padding=(1, 1))
        y = nn.relu(up(y, weights("up.weight", 8, 6, 3, 3), weights("up.bias", 6)))
        result: Value = ConvTranspose(strides=(2, 2), group=2)(y, weights("last", 6, 2, 2, 2), weights("last.bias", 4))
        return result

    return decoder.bind({})


@pytest.mark.exhaustive
@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_a_decoder(granularity: Any, tmp_path: Path) -> None:
    x = np.random.default_rng(1).normal(size=(2, 3, 6, 6)).astype(np.float32)
    recipe = Recipe(outputs=True, weights=Scheme(i8, "symmetric", granularity))
    found = gt.quantize(decoder(), x, recipe)
    integers = in_integers(found.graph)
    assert not {"ConvTranspose", "Conv"} & set(operators(integers))
    assert operators(integers).count("ConvInteger") == 1 + 4 + 4
    ours = gt.compile(found.graph)({"x": x})["output"]
    assert ours.tobytes() == gt.compile(found.graph, backend="interpreter")({"x": x})["output"].tobytes()
    exact = gt.compile(found.exact)({"x": x})["output"]
    assert np.abs(ours - exact).max() < 0.04 * np.abs(exact).max()
    assert ladder(found.graph, {"x": x}).ok
    kept = qoperator(found.graph)
    assert isinstance(kept, Graph)
    assert operators(kept).count("ConvTranspose") == 2  # there is no such operator on quantized tensors in ONNX
    gt.save(found.graph, tmp_path / "decoder.onnx")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    theirs = onnxruntime.InferenceSession(str(tmp_path / "decoder.onnx"), options).run(None, {"x": x})[0]
    unit = np.diff(np.unique(ours)).min()
    assert np.abs(ours - theirs).max() <= 1.01 * unit
    assert (ours != theirs).mean() < 0.01


class Images(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.images = iter(np.random.default_rng(2).normal(size=(4, 1, 4, 5, 5)).astype(np.float32))

    def get_next(self) -> dict[str, Array] | None:
        image = next(self.images, None)
        return None if image is None else {"x": image}


@pytest.mark.parametrize("per_channel", [False, True])
def test_models_that_onnxruntime_quantized(per_channel: bool, tmp_path: Path, random: np.random.Generator) -> None:
    """Its scales of channels lie on axis 1; it computes in floats what is dequantized, to the same bits here."""
    w, b = Variable("w", random.normal(size=(4, 3, 3, 3)).astype(np.float32)), Variable("b", np.ones(3, np.float32))

    @gt.model(x=f32[1, 4, 5, 5])
    def plain(x: Value) -> Value:
        return nn.relu(ConvTranspose(strides=(2, 2), pads=(1, 1, 1, 1))(x, w, b))

    before, after = str(tmp_path / "plain.onnx"), str(tmp_path / "quantized.onnx")
    gt.save(plain.bind({}), before, opset=17)
    quantize_static(before, after, Images(), per_channel=per_channel, weight_type=QuantType.QInt8)
    graph, x = gt.load(after), random.normal(size=(1, 4, 5, 5)).astype(np.float32)
    assert isinstance(graph, Graph)
    names = operators(in_integers(graph))
    assert (names.count("ConvInteger"), names.count("ConvTranspose")) == (4, 0)
    expected = onnxruntime.InferenceSession(after).run(None, {"x": x})[0]
    assert len(np.unique(expected)) > 20
    for backend in ("cpu", "interpreter"):
        np.testing.assert_array_equal(gt.compile(graph, backend=backend)({"x": x})["output"], expected)


X, W = u8[1, 4, 3, 3], i8[4, 2, 2, 2]


@pytest.mark.parametrize(
    ("operator", "types", "message"),
    [
        (ConvTransposeInteger(), (f32[1, 4, 3, 3], W), "operands must be i8 or u8"),
        (ConvTransposeInteger(), (X, W, i8[()]), "operand's type u8"),
        (ConvTransposeInteger(), (X, W, u8[2]), "one zero point for all"),
        (ConvTransposeInteger(group=2), (X, W, None, i8[2]), "one for each output channel"),
        (ConvTransposeInteger(), (u8[1, 3, 3, 3], W), "input has 3 channels but weight expects 4"),
        (Interleave((5,), (2,)), (f32[1, 2, 3],), "one operand for each of 2 offsets, not 1"),
        (Interleave((5,), (2,)), (f32[1, 2, 3], f32[1, 2, 3]), r"spatial shapes \[\[3\], \[2\]\]"),
        (Interleave((5,), (2,)), (f32[1, 2, 3], f32[1, 1, 2]), "the same images and channels"),
        (Interleave((5,), (0,)), (f32[1, 2, 3],), "one positive number for each axis"),
    ],
)
def test_bad_operands(operator: Any, types: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        operator.infer(*types)


def test_a_plain_stride_needs_no_weaving() -> None:
    x, w = Input(TensorType(u8, (1, 2, 3)), "x"), Input(TensorType(i8, (2, 2, 2)), "w")
    node = ConvTransposeInteger().decompose(x, w).node
    assert node is not None
    assert isinstance(node.operator, ConvInteger)
