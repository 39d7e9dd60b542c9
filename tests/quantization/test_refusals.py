"""What no integer model can be made of, or be: each has a message that says what is wrong with what, and what to do."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from models import images, mobile, state_of
from onnx import ModelProto, TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain import nn
from glowtrain.cli import app
from glowtrain.errors import BindingError, GlowtrainError, InputError, ModelError, QuantizationError
from glowtrain.graph import Graph, Template, Value, Variable
from glowtrain.ops.contraction import Gemm
from glowtrain.ops.transcendental import Exp
from glowtrain.quantization import METHODS, Profile, Recipe, Scheme, calibrate, prepare_training
from glowtrain.types import Array, f32, f64, i4, i8, u8

TINY = np.float32(1e-44)


# Files: scales, zero points, axes, blocks


def scalar(value: float, dtype: Any = np.float32) -> Array:
    return np.array(value, dtype)


def vector(*values: float) -> Array:
    return np.array(values, np.float32)


def model(operator: str, inits: dict[str, Array | TensorProto], x: str = "f32[2,4]", **settings: Any) -> ModelProto:
    """One operator that reads x and the initializers, in this order."""
    kind, shape = x.rstrip("]").split("[")
    code = {"f32": TensorProto.FLOAT, "u8": TensorProto.UINT8, "i8": TensorProto.INT8}[kind]
    domain, _, name = operator.rpartition(".")
    place = settings.pop("place", 0)
    names = list(inits)
    node = helper.make_node(name, [*names[:place], "x", *names[place:]], ["y"], name="it", domain=domain, **settings)
    tensors = [t if isinstance(t, TensorProto) else numpy_helper.from_array(t, name) for name, t in inits.items()]
    given = helper.make_tensor_value_info("x", code, [int(extent) for extent in shape.split(",")])
    graph = helper.make_graph([node], "small", [given], [helper.make_empty_tensor_value_info("y")], tensors)
    opsets = [helper.make_opsetid("", 21), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def loaded(proto: ModelProto) -> Graph:
    found = gt.load(proto)
    return found.bind({}) if isinstance(found, Template) else found


def quantize(scale: Array, zero: Array | TensorProto | None = None, **settings: Any) -> ModelProto:
    zero = np.zeros(scale.shape, np.uint8) if zero is None else zero
    return model("QuantizeLinear", {"scale": scale, "zero": zero}, **settings)


def dequantize(scale: Array, weight: Array | None = None, x: str = "", **settings: Any) -> ModelProto:
    """Of a weight, or of x."""
    zero = np.zeros(scale.shape, np.int8)
    if x:
        return model("DequantizeLinear", {"scale": scale, "zero": zero}, x, **settings)
    inits = {"weight": np.ones((2, 4), np.int8) if weight is None else weight, "scale": scale, "zero": zero}
    proto = model("DequantizeLinear", inits, "i8[2,4]", **settings)
    del proto.graph.node[0].input[0]
    return proto


def conv(**changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "x_scale": scalar(0.1), "x_zero": scalar(3, np.uint8), "weight": np.ones((3, 4, 1, 1), np.int8),
        "w_scale": vector(0.1, 0.2, 0.3), "w_zero": np.zeros(3, np.int8), "y_scale": scalar(0.1),
        "y_zero": scalar(0, np.uint8), **changes,
    }  # fmt: skip
    return model("QLinearConv", parts, "u8[1,4,2,2]")


def product(operator: str = "QLinearMatMul", **changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "a_scale": scalar(0.1), "a_zero": scalar(3, np.uint8), "b": np.ones((4, 3), np.int8),
        "b_scale": vector(0.1, 0.2, 0.3), "b_zero": np.zeros(3, np.int8), "y_scale": scalar(0.1),
        "y_zero": scalar(0, np.uint8), **changes,
    }  # fmt: skip
    return model(operator, parts, "u8[2,4]")


def added(**changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "a_scale": scalar(0.1), "a_zero": scalar(3, np.uint8), "b": np.ones((2, 4), np.uint8),
        "b_scale": scalar(0.1), "b_zero": scalar(3, np.uint8), "y_scale": scalar(0.1), "y_zero": scalar(3, np.uint8),
        **changes,
    }  # fmt: skip
    return model("com.microsoft.QLinearAdd", parts, "u8[2,4]")


def joined(**changes: Array) -> ModelProto:
    parts: dict[str, Array | TensorProto] = {
        "y_scale": scalar(0.1), "y_zero": scalar(3, np.uint8), "x_scale": scalar(0.1), "x_zero": scalar(0, np.uint8),
        **changes,
    }  # fmt: skip
    return model("com.microsoft.QLinearConcat", parts, "u8[2,4]", place=2, axis=1)


def dynamic(**changes: Array) -> ModelProto:
    parts = {"b": np.ones((4, 3), np.int8), "b_scale": vector(0.1, 0.2, 0.3), "b_zero": np.zeros(3, np.int8), **changes}
    return model("com.microsoft.DynamicQuantizeMatMul", parts, "f32[2,4]")


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
    "count of scales": (lambda: quantize(vector(1, 1, 1)), "3 scales for the 4 places on axis 1"),
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


# Profiles of other models


def net(hidden: int = 8, seed: int = 0) -> Template:
    """Two matrices."""
    draw = np.random.default_rng(seed)
    first = Variable("first.weight", draw.standard_normal((4, hidden)).astype(np.float32))
    last = Variable("last.weight", draw.standard_normal((hidden, 3)).astype(np.float32))

    @gt.model(x=f32["batch", 4])
    def net(x: Value) -> dict[str, Value]:
        return {"y": Gemm()(nn.relu(Gemm()(x, first)), last)}

    return net


def rows(count: int = 16) -> Array:
    return np.random.default_rng(0).standard_normal((count, 4)).astype(np.float32)


class TestProfiles:
    def test_another_model_with_the_same_names(self) -> None:
        profile = gt.quantize(net(), rows()).profile
        with pytest.raises(QuantizationError) as error:
            gt.quantize(net(9), rows(), profile=profile)
        said = str(error.value)
        assert "the profile of net is of another model than net: 'first' is made by Gemm(f32[4,8])" in said
        assert "there, by Gemm(f32[4,9])" in said
        assert "(and 1 more); calibrate this one" in said

    def test_another_operator(self) -> None:
        @gt.model(x=f32["batch", 4])
        def plain(x: Value) -> Value:
            return nn.relu(x * 2)

        @gt.model(x=f32["batch", 2, 4])
        def deeper(x: Value) -> Value:
            return nn.relu(x * 2)

        profile = calibrate(plain, rows())
        with pytest.raises(QuantizationError, match="'x' is made by an input of f32, rank 2 there, by .* rank 3 here"):
            gt.quantize(deeper, rows().reshape(8, 2, 4), profile=profile)

    def test_other_weights(self) -> None:
        profile = calibrate(net(), rows())
        said = r"taken with other weights: those that make 'first' \(and 1 more\) differ from net's; calibrate again"
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(net(seed=1), rows(), profile=profile)

    def test_other_weights_that_batch_normalization_folds(self) -> None:
        network = mobile()
        profile = calibrate(network, images(4), state=state_of(network))
        with pytest.raises(QuantizationError, match="taken with other weights"):
            gt.quantize(network, images(4), state=state_of(network, seed=2), profile=profile)

    def test_the_same_model(self, tmp_path: Path) -> None:
        """Under any batch size, from a file, as a graph, saved and loaded, and after more training."""
        network = mobile()
        state = state_of(network)
        calibrate(network, images(4), state=state).save(tmp_path / "p.json")
        profile = Profile.load(tmp_path / "p.json")
        first = gt.quantize(network, images(3), state=state, profile=profile)
        gt.quantize(network.bind({"batch": 2}), images(2), state=state, profile=profile)
        gt.quantize(first.exact, images(4), profile=profile)
        prepare_training(network, profile, state=state_of(network, seed=2))

    def test_a_file_of_the_same_model(self, tmp_path: Path) -> None:
        gt.save(net().bind({"batch": 2}), tmp_path / "net.onnx")
        for _ in range(2):
            profile = gt.quantize(gt.load(tmp_path / "net.onnx"), rows()).profile
            gt.quantize(gt.load(tmp_path / "net.onnx"), rows(), profile=profile)

    def test_an_old_file_says_nothing_of_the_model(self, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        calibrate(net(), rows()).save(path)
        plain = json.loads(path.read_text())
        assert plain["values"]["first"]["made_by"] == "Gemm(f32[4,8]) of f32, rank 2"
        for entry in plain["values"].values():
            del entry["made_by"]
            entry.pop("weights", None)
        path.write_text(json.dumps(plain))
        gt.quantize(net(seed=1), rows(), profile=Profile.load(path))

    @pytest.mark.parametrize(
        ("damage", "said"),
        [
            ({"low": float("nan")}, "low and high must be finite numbers in this order, not nan"),
            ({"high": float("inf")}, "low and high must be finite"),
            ({"low": 5, "high": -5}, "low and high must be finite numbers in this order, not 5 and -5"),
            ({"average_low": float("-inf")}, "average_low and average_high must be finite"),
            ({"elements": -3}, "elements must not be negative, as -3 is"),
            ({"low": 10**400}, "OverflowError"),
            ({"histogram": {"low": 0, "high": 1, "counts": [0, 0]}}, "not all be 0"),
            ({"histogram": {"low": 1, "high": 0, "counts": [1]}}, "low and high"),
        ],
    )
    def test_numbers_that_are_none(self, damage: dict[str, Any], said: str, tmp_path: Path) -> None:
        path = tmp_path / "p.json"
        calibrate(net(), rows()).save(path)
        plain = json.loads(path.read_text())
        plain["values"]["x"] |= damage
        path.write_text(json.dumps(plain))
        with pytest.raises(QuantizationError, match=f"p.json is a broken profile: 'x': .*{said}"):
            Profile.load(path)


# Calibration data and activations


class TestData:
    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (rows(0), "there are no calibration data"),
            ([], "there are no calibration data"),
            ({}, "no array for the input 'x'; they have nothing"),
            ([{"x": rows()}, {"x": rows(0)}], r"batch 1 of the calibration data has no examples: x \[0, 4\]"),
            (np.float32(3), "x is one number, not an array of examples"),
            (None, "calibration data are arrays by input name.*not NoneType"),
        ],
    )
    def test_no_examples(self, data: Any, said: str) -> None:
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(net(), data)

    @pytest.mark.parametrize("settings", [{"batch_size": 0}, {"batch_size": -2}, {"examples": 0}])
    def test_settings_that_leave_none(self, settings: dict[str, int]) -> None:
        ((name, value),) = settings.items()
        with pytest.raises(QuantizationError, match=f"at least one example: {name} is {value}"):
            gt.quantize(net(), rows(), **settings)  # type: ignore[arg-type]

    def test_data_of_another_shape_or_type(self) -> None:
        with pytest.raises(BindingError, match=r"input x has shape \(8, 5\) but axis 1 is 4 \(f32\[batch,4\]\)"):
            gt.quantize(net(), np.zeros((8, 5), np.float32))
        with pytest.raises(InputError, match=r"'x' must be f32\[16,4\], not float64"):
            gt.quantize(net(), rows().astype(np.float64))


@pytest.mark.parametrize("method", METHODS)
class TestActivations:
    def test_constant_ones(self, method: str) -> None:
        """All equal: the range reaches to 0. All zero: kept in float, and listed."""
        for value in (1.0, -3.0):
            found = gt.quantize(net(), np.full((8, 4), value, np.float32), Recipe(method=method))
            assert not found.kept
            assert found.example.parameters["x"].scale == pytest.approx(abs(value) / 255, rel=1e-2)
        found = gt.quantize(net(), np.zeros((8, 4), np.float32), Recipe(method=method))
        assert [(kept.name, kept.reason) for kept in found.kept] == [
            ("x", "only zeros were observed"),
            ("Relu", "only zeros were observed"),
        ]

    @pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
    def test_numbers_that_are_none(self, method: str, bad: float) -> None:
        x = rows()
        x[3, 2] = bad
        said = r"x: 1 of 64 observed elements are NaN or infinite.*look at the calibration data, or keep what reads it"
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(net(), x, Recipe(method=method))

    def test_overflow_inside(self, method: str) -> None:
        with pytest.raises(QuantizationError, match="Relu: .* observed elements are NaN or infinite"):
            gt.quantize(net(), rows() / np.abs(rows()).max() * np.float32(3e38), Recipe(method=method))

    def test_ranges_that_are_too_small(self, method: str) -> None:
        """Smaller than a scale in f32: named. A little larger: parts of the range have no scale, the whole one has."""
        said = r"x: the range \[0, 9.8\S*e-45\] is beyond what a scale in f32 can say; keep its readers in float"
        with pytest.raises(QuantizationError, match=said):
            gt.quantize(net(), np.full((8, 4), TINY), Recipe(method=method))
        found = gt.quantize(net(), np.full((8, 4), 2e-35, np.float32), Recipe(method=method))
        assert found.example.parameters["x"].scale == pytest.approx(2e-35 / 255, rel=1e-2)


def test_histograms_of_tiny_ranges_count_every_element() -> None:
    x = np.full((8, 4), TINY)
    x[:, 0] = 0
    histogram = calibrate(net(), x)["x"].required_histogram()
    assert histogram.counts.sum() == x.size


# Models


def gemm(weight: Array, bias: Array | None = None) -> Template:
    parameters = [Variable("weight", weight), *([] if bias is None else [Variable("bias", bias)])]

    @gt.model(x=f32["batch", weight.shape[0]])
    def gemm(x: Value) -> dict[str, Value]:
        return {"y": Gemm()(x, *parameters)}

    return gemm


class TestModels:
    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_weights_that_diverged(self, bad: float) -> None:
        weight = np.ones((4, 3), np.float32)
        with pytest.raises(QuantizationError, match="bias: weights are NaN or infinite; a model that diverged"):
            gt.quantize(gemm(weight, np.array([0, bad, 0], np.float32)), rows())
        weight[1, 1] = bad
        with pytest.raises(QuantizationError, match="weight: weights are NaN or infinite; a model that diverged"):
            gt.quantize(gemm(weight), rows())

    def test_weights_without_a_scale(self) -> None:
        weight = np.ones((4, 3), np.float32)
        with pytest.raises(QuantizationError, match=r"weight: the range .* is beyond what a scale in f32 can say"):
            gt.quantize(gemm(weight * TINY), rows())
        found = gt.quantize(gemm(weight * np.array([1, 0, 1], np.float32)), rows())
        assert not gt.compile(found.model)({"x": rows()})["y"][:, 1].any()

    def test_tensors_without_elements(self) -> None:
        with pytest.raises(QuantizationError, match="weight: a tensor without elements has no range"):
            gt.quantize(gemm(np.ones((4, 0), np.float32)), rows())
        with pytest.raises(QuantizationError, match="x: no element was observed, so it has no range; calibrate with"):
            gt.quantize(gemm(np.ones((0, 3), np.float32)), np.zeros((8, 0), np.float32))

    def test_nothing_to_quantize(self) -> None:
        @gt.model(x=f32["batch", 4])
        def exponentials(x: Value) -> Value:
            result: Value = Exp()(x)
            return result

        @gt.model(x=f64["batch", 4])
        def wide(x: Value) -> Value:
            return nn.relu(x) * 2

        with pytest.raises(QuantizationError, match=r"exponentials has nothing to quantize: .*\(it has Exp\)"):
            gt.quantize(exponentials, rows())
        with pytest.raises(
            QuantizationError, match="wide has nothing to quantize: it computes in f64, and only .* f32"
        ):
            gt.quantize(wide, rows().astype(np.float64))
        with pytest.raises(QuantizationError, match=r"nothing in net is quantized:(\n  - \S+ \(\w+\): asked for){3}"):
            gt.quantize(net(), rows(), Recipe(keep=["*"]))

    def test_an_operator_without_an_integer_form_is_listed(self) -> None:
        @gt.model(x=f32["batch", 4])
        def mixed(x: Value) -> dict[str, Value]:
            return {"y": nn.linear(Exp()(x), 3, name="y")}

        kept = gt.quantize(mixed, rows()).kept
        assert [(row.name, row.operator, row.reason) for row in kept] == [("Exp", "Exp", "has no integer form")]

    def test_signs_that_no_runtime_multiplies(self) -> None:
        with pytest.raises(QuantizationError, match="signed activations with unsigned weights: no runtime multiplies"):
            Recipe(activations=Scheme(i8), weights=Scheme(u8))

    @pytest.mark.parametrize(
        ("weights", "opset", "said"),
        [
            (Scheme(i8, "symmetric", "channel"), 12, "opset 12 cannot say i8 symmetric per channel: it needs opset 13"),
            (Scheme(i4, "symmetric"), 20, "opset 20 cannot say i4 symmetric per tensor: it needs opset 21"),
            (Scheme(i8, "symmetric", "block", 2), 20, "opset 20 cannot say i8 symmetric per block of 2: it needs"),
        ],
    )
    def test_opsets_that_are_too_old(self, weights: Scheme, opset: int, said: str, tmp_path: Path) -> None:
        recipe = Recipe(weights=weights)
        with pytest.raises(QuantizationError, match=said):
            recipe.check_opset(opset)
        recipe.check_opset(weights.least_opset)
        with pytest.raises(GlowtrainError, match=f"opset {opset}"):
            gt.save(gt.quantize(net(), rows(), recipe).graph, tmp_path / "q.onnx", opset=opset)


# The command line


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    x, y = rows(), np.arange(16) % 3
    spoilt = x.copy()
    spoilt[3, 1] = np.nan
    data = {"good": x, "empty": x[:0], "nan": spoilt, "wide": np.zeros((16, 5), np.float32)}
    for name, array in data.items():
        np.savez(folder / f"{name}.npz", x=array, y=y[: len(array)])
    for name, network in {"net": net(), "other": net(9), "retrained": net(seed=1)}.items():
        gt.save(network.bind({"batch": 2}), folder / f"{name}.onnx")
    calibrate(gt.load(folder / "net.onnx"), x).save(folder / "net.json")
    (folder / "scale0.onnx").write_bytes(quantize(scalar(0)).SerializeToString())
    return folder


@pytest.mark.parametrize(
    ("network", "data", "options", "said"),
    [
        ("net", "empty", "", "the arrays 'x', 'y' are empty"),
        ("net", "nan", "", "x: 1 of 64 observed elements are NaN or infinite"),
        ("net", "wide", "", "input x has shape (16, 5) but axis 1 is 4"),
        ("other", "good", "--profile net.json", "is of another model than net: 'Gemm' is made by Gemm(f32[4,8])"),
        ("retrained", "good", "--profile net.json", "was taken with other weights"),
        ("net", "good", "--opset 12", "opset 12 cannot say i8 symmetric per channel narrow: it needs opset 13"),
        ("net", "good", "--opset 19 --weights i4", "it needs opset 21 or newer"),
        ("net", "good", "--activations i8 --weights u8", "signed activations with unsigned weights"),
        ("scale0", "good", "", "node 'it' (QuantizeLinear): "),
    ],
)
def test_the_command_line_says_it(
    network: str, data: str, options: str, said: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    arguments = ["quantize", f"{network}.onnx", "--calibrate", f"{data}.npz", "--out", "q.onnx", *options.split()]
    result = CliRunner().invoke(app, arguments)
    text = " ".join(result.output.split())
    assert result.exit_code == 1
    assert isinstance(result.exception, SystemExit)
    assert "error: " in text
    assert said in text
    assert "Traceback" not in text
    assert not (files / "q.onnx").exists()
