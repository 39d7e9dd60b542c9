"""Elementwise, logical and moving operators: ONNX semantics, conventions at kinks, messages for broken rules."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from rules import Dice

import glowtrain.ops  # noqa: F401  (fills the registry)
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ShapeError
from glowtrain.graph import Constant, Graph, Input, Operator, Value, constant, registered
from glowtrain.graph.reverse import pullback
from glowtrain.ops.activation import (
    Celu,
    Elu,
    Gelu,
    HardSigmoid,
    HardSwish,
    LeakyRelu,
    PRelu,
    Relu,
    Selu,
    Shrink,
    Sigmoid,
    Softplus,
    ThresholdedRelu,
)
from glowtrain.ops.arithmetic import Abs, Add, Div, Mod, Pow, Round, Sign
from glowtrain.ops.blocks import DepthToSpace, SpaceToDepth
from glowtrain.ops.extrema import Clip, Max, Min
from glowtrain.ops.logic import BitShift, BitwiseNot, Cast, IsInf, Not, Where
from glowtrain.ops.move import (
    LAST,
    Concat,
    Expand,
    Flatten,
    Reshape,
    Slice,
    Squeeze,
    Transpose,
    Unsqueeze,
)
from glowtrain.ops.pad import Pad, Tile
from glowtrain.ops.shape import ConstantOfShape, EyeLike, Range, Shape, Size, Trilu
from glowtrain.ops.split import Split
from glowtrain.ops.stop_gradient import StopGradient
from glowtrain.types import Array, DType, bf16, boolean, f16, f32, f64, i32, i64, type_of, u8

FAMILIES = (
    *("activation", "arithmetic", "blocks", "extrema", "logic", "move", "pad", "shape", "split", "stop_gradient"),
    "transcendental",
)


class Seeded(Dice):
    """A seeded source of choices with ranks and extents small enough for exhaustive differences."""

    def floats(
        self, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()
    ) -> Array:
        count = int(np.prod(shape))
        values = low + (high - low) * (self.random.permutation(count) + 0.5) / max(count, 1)
        for place in avoid:
            values = np.where(np.abs(values - place) < 0.05, place + 0.06, values)
        return values.reshape(shape)


def mine() -> list[type[Operator]]:
    return list(registered(lambda cls: cls.__module__.split(".")[-1] in FAMILIES))


def run(operator: Operator, *inputs: Any) -> Any:
    """The reference, checked against the inferred types."""
    arrays = [None if x is None else np.asarray(x) for x in inputs]
    types = operator.infer(*(None if x is None else type_of(x) for x in arrays))
    with np.errstate(all="ignore"):
        result = operator.reference(*arrays)
    if isinstance(result, tuple):
        assert isinstance(types, tuple)
        assert all(t.accepts(r) for t, r in zip(types, result, strict=True))
        return result
    assert not isinstance(types, tuple)
    assert types.accepts(np.asarray(result)), f"{operator}: {np.asarray(result).dtype}{np.shape(result)}, not {types}"
    return np.asarray(result)


def gradients(operator: Operator, *inputs: Any) -> list[Array | None]:
    """Gradients of the sum of the first result, for every float operand (None where no gradient flows)."""
    values = [None if x is None else Input(type_of(np.asarray(x, np.float64)), f"x{i}") for i, x in enumerate(inputs)]
    result = operator(*values)
    present = [value for value in values if value is not None]
    found = pullback([result], [constant(np.ones(result.shape))], present)
    wanted: dict[str, Value] = {v.name: g for v, g in zip(present, found, strict=True) if g is not None}
    arrays = {f"x{i}": np.asarray(x, np.float64) for i, x in enumerate(inputs) if x is not None}
    known = evaluate(Graph(tuple(present), wanted), arrays)
    return [known[wanted[v.name]] if v is not None and v.name in wanted else None for v in values]


def onnx_node(operator: Operator, inputs: tuple[Array | None, ...]) -> onnx.ModelProto:
    """A model of the one node, with what the operator holds statically as initializers."""
    fields = {f.name: f.metadata["input"] for f in dataclasses.fields(operator) if "input" in f.metadata}  # type: ignore[arg-type]
    defaults = {f.name: f.default for f in dataclasses.fields(operator) if "input" not in f.metadata}  # type: ignore[arg-type]
    kept = ((k, v) for k, v in operator.attributes().items() if isinstance(v, np.ndarray) or v != defaults.get(k))
    attributes = {k: v for k, v in kept if v is not None}
    static = {place: np.asarray(attributes.pop(name)) for name, place in fields.items() if name in attributes}
    operands, names = iter(enumerate(inputs)), {}
    for place in range(max(fields.values(), default=-1) + 1 + len(inputs)):
        if place in static or place in fields.values():
            names[place] = f"s{place}" if place in static else ""
        else:
            position, array = next(operands, (0, None))
            names[place] = "" if array is None else f"x{position}"
    while names and not names[max(names)]:
        names.pop(max(names))
    attributes = {name: _attribute(value) for name, value in attributes.items()}
    outputs = _outputs(operator, inputs)
    node = helper.make_node(operator.onnx, [names[i] for i in sorted(names)], outputs, **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_value_info(f"x{i}", onnx.TypeProto()) for i, x in enumerate(inputs) if x is not None],
        [helper.make_value_info(name, onnx.TypeProto()) for name in outputs],
        [numpy_helper.from_array(value, f"s{place}") for place, value in static.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", onnx.defs.onnx_opset_version())])


def _attribute(value: Any) -> Any:
    if isinstance(value, DType):
        return helper.np_dtype_to_tensor_dtype(value.numpy)
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    return int(value) if isinstance(value, bool) else value


def _outputs(operator: Operator, inputs: tuple[Array | None, ...]) -> list[str]:
    types = operator.infer(*(None if x is None else type_of(np.asarray(x)) for x in inputs))
    return [f"y{i}" for i in range(len(types) if isinstance(types, tuple) else 1)]


class TestOnnxConformance:
    @pytest.mark.parametrize("cls", [cls for cls in mine() if not cls.domain], ids=lambda cls: cls.key())
    def test_reference_equals_onnx(self, cls: type[Operator]) -> None:
        """On ten drawn uses each, the values of ONNX's own evaluator."""
        for seed in range(10):
            sample = cls.sample(Seeded(seed))
            inputs = tuple(None if x is None else np.asarray(x) for x in sample.inputs)
            if outside_of_onnx(sample.operator, inputs):
                continue
            session = ReferenceEvaluator(onnx_node(sample.operator, inputs))
            with np.errstate(all="ignore"):
                expected = session.run(None, {f"x{i}": x for i, x in enumerate(inputs) if x is not None})
            results = run(sample.operator, *inputs)
            results = results if isinstance(results, tuple) else (results,)
            for result, value in zip(results, expected, strict=True):
                np.testing.assert_allclose(result, value, rtol=1e-6, atol=1e-7, err_msg=str(sample.operator))

    @pytest.mark.parametrize("cls", [cls for cls in mine() if not cls.domain], ids=lambda cls: cls.key())
    def test_attributes_are_those_of_onnx(self, cls: type[Operator]) -> None:
        """Every field is an attribute or input of the newest schema, and every attribute a field, with its default."""
        schema = onnx.defs.get_schema(cls.onnx)
        fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
        inputs = {name: field.metadata["input"] for name, field in fields.items() if "input" in field.metadata}
        typed = {"dtype"} if cls in (Range, ConstantOfShape) else set()  # the element type that ONNX reads off a tensor
        assert set(fields) - set(inputs) - typed == set(schema.attributes)
        for name, place in inputs.items():
            assert schema.inputs[place].name in (name, "input")
        for name in set(schema.attributes) - {"value"}:
            declared = schema.attributes[name].default_value
            default = helper.get_attribute_value(declared) if declared.type else None
            default = default.decode() if isinstance(default, bytes) else default
            if fields[name].default is dataclasses.MISSING:
                assert schema.attributes[name].required
            else:
                assert fields[name].default == (default if not isinstance(default, float) else pytest.approx(default))


def outside_of_onnx(operator: Operator, inputs: tuple[Array | None, ...]) -> bool:
    """Samples beyond what ONNX's evaluator can run."""
    if isinstance(operator, Pad):
        return min(operator.pads, default=-1) < 0 or any(x is not None and x.shape == (1,) for x in inputs[1:])
    return False


class TestArithmetic:
    def test_integer_division_truncates(self) -> None:
        quotient = run(Div(), np.array([7, -7, 7, -7, 6]), np.array([2, 2, -2, -2, -3]))
        np.testing.assert_array_equal(quotient, [3, -3, -3, 3, -2])

    def test_integers_wrap(self) -> None:
        np.testing.assert_array_equal(run(Add(), np.array([250], np.uint8), np.array([10], np.uint8)), [4])

    @pytest.mark.parametrize(("fmod", "expected"), [(False, [1, 2, -2, -1]), (True, [1, -1, 1, -1])])
    @pytest.mark.parametrize("dtype", [np.int32, np.float64])
    def test_remainder_signs(self, fmod: bool, expected: list[int], dtype: type) -> None:
        x, y = np.array([7, -7, 7, -7], dtype), np.array([3, 3, -3, -3], dtype)
        np.testing.assert_array_equal(run(Mod(fmod), x, y), expected)

    def test_integer_powers_are_exact(self) -> None:
        base, exponent = np.array([3, -3, 2, -1, 2, 0]), np.array([39, 3, 62, -3, -1, 0])
        np.testing.assert_array_equal(run(Pow(), base, exponent), [3**39, -27, 2**62, -1, 0, 1])

    def test_the_exponent_may_have_another_type(self) -> None:
        assert run(Pow(), np.float32([2, 3]), np.array([3, 2])).tolist() == [8.0, 9.0]
        assert run(Pow(), np.int32([4, 9]), np.float32([0.5, 0.5])).tolist() == [2, 3]

    @pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, -1.0, 0.5])
    def test_gradient_of_a_constant_power(self, exponent: float) -> None:
        x = Input(f64[3], "x")
        (g,) = pullback([x**exponent], [constant(np.ones(3))], [x])
        points = np.array([0.5, 1.0, 2.0])
        result = np.zeros(3) if g is None else evaluate(Graph((x,), {"g": g}), {"x": points})[g]
        np.testing.assert_allclose(result, exponent * points ** (exponent - 1))

    def test_power_gradients_at_zero(self) -> None:
        for_x, for_y = gradients(Pow(), [0.0, 0.0, 3.0], [0.0, 2.0, 0.0])
        np.testing.assert_array_equal(for_x, [0.0, 0.0, 0.0])
        np.testing.assert_allclose(for_y, [0.0, 0.0, np.log(3.0)])

    def test_rounds_halves_to_even(self) -> None:
        np.testing.assert_array_equal(run(Round(), [-2.5, -1.5, -0.5, 0.5, 1.5, 2.5]), [-2, -2, 0, 0, 2, 2])

    def test_sign_of_special_values(self) -> None:
        np.testing.assert_array_equal(run(Sign(), [-np.inf, -0.0, 3.0, np.nan]), [-1, 0, 1, np.nan])


class TestKinks:
    """What the gradient is where the function has none; PyTorch 2.13 gives the same."""

    @pytest.mark.parametrize(
        ("operator", "x", "gradient"),
        [
            (Relu(), [-1.0, 0.0, 1.0], [0.0, 0.0, 1.0]),
            (Abs(), [-1.0, 0.0, 1.0], [-1.0, 0.0, 1.0]),
            (LeakyRelu(0.25), [-1.0, 0.0, 1.0], [0.25, 0.25, 1.0]),
            (Elu(2.0), [0.0, 1.0], [2.0, 1.0]),
            (Selu(2.0, 3.0), [0.0, 1.0], [6.0, 3.0]),
            (Celu(2.0), [0.0], [1.0]),
            (HardSigmoid(1 / 4, 0.5), [-2.0, 0.0, 2.0], [0.0, 0.25, 0.0]),
            (HardSwish(), [-3.0, 0.0, 3.0], [0.0, 0.5, 1.0]),
            (ThresholdedRelu(0.5), [0.0, 0.5, 1.0], [0.0, 0.0, 1.0]),
            (Shrink(0.0, 0.5), [-0.5, 0.0, 0.5, 1.0], [0.0, 0.0, 0.0, 1.0]),
        ],
        ids=lambda value: str(value) if isinstance(value, Operator) else "",
    )
    def test_activation(self, operator: Operator, x: list[float], gradient: list[float]) -> None:
        np.testing.assert_array_equal(gradients(operator, x)[0], gradient)

    def test_prelu(self) -> None:
        for_x, for_slope = gradients(PRelu(), [-2.0, 0.0, 2.0], [0.5])
        np.testing.assert_array_equal(for_x, [0.5, 0.5, 1.0])
        np.testing.assert_array_equal(for_slope, [-2.0])

    def test_ties_share_evenly(self) -> None:
        for operator in (Max(), Min()):
            np.testing.assert_array_equal(gradients(operator, [1.0], [1.0]), [[0.5], [0.5]])
        thirds = gradients(Max(), [1.0], [1.0], [1.0])
        np.testing.assert_allclose(thirds, [[1 / 3], [1 / 3], [1 / 3]])

    def test_clip_bounds_belong_to_the_inside(self) -> None:
        for_x, low, high = gradients(Clip(), [-2.0, -1.0, 0.0, 1.0, 3.0], -1.0, 1.0)
        np.testing.assert_array_equal(for_x, [0.0, 1.0, 1.0, 1.0, 0.0])
        assert (low, high) == (1.0, 1.0)

    def test_clip_with_one_bound(self) -> None:
        for_x, absent, high = gradients(Clip(), [0.0, 2.0], None, 1.0)
        np.testing.assert_array_equal(for_x, [1.0, 0.0])
        assert absent is None
        assert high == 1.0

    def test_clip_with_crossed_bounds(self) -> None:
        np.testing.assert_array_equal(run(Clip(), [-5.0, 0.0, 5.0], 1.0, -1.0), [-1.0, -1.0, -1.0])
        for_x, low, high = gradients(Clip(), [-5.0, 0.0, 5.0], 1.0, -1.0)
        np.testing.assert_array_equal(for_x, [0.0, 0.0, 0.0])
        assert (low, high) == (0.0, 3.0)

    def test_where_ignores_what_it_does_not_choose(self) -> None:
        x = Input(f64[2], "x")
        result = Where()(x > 0.0, x, np.array([np.inf, np.nan]))
        (g,) = pullback([result], [constant(np.array([np.nan, 1.0]))], [x])
        assert g is not None
        np.testing.assert_array_equal(evaluate(Graph((x,), {"g": g}), {"x": np.array([-1.0, 1.0])})[g], [0.0, 1.0])


class TestActivation:
    def test_no_overflow(self) -> None:
        with np.errstate(over="raise"):
            np.testing.assert_array_equal(Sigmoid().reference(np.array([-1e4, 0.0, 1e4])), [0.0, 0.5, 1.0])
            np.testing.assert_array_equal(Softplus().reference(np.array([-1e4, 1e4])), [0.0, 1e4])

    def test_gelu_values(self) -> None:
        x = np.array([-1.0, 0.0, 2.0])
        np.testing.assert_allclose(run(Gelu(), x), [-0.15865525393145707, 0.0, 1.9544997361036416], rtol=1e-14)
        np.testing.assert_allclose(run(Gelu("tanh"), x), [-0.15880800939172324, 0.0, 1.9545976940877752], rtol=1e-14)

    @pytest.mark.parametrize("dtype", [f16, bf16])
    def test_narrow_floats_round_once(self, dtype: DType) -> None:
        x = np.linspace(-3, 3, 61).astype(dtype.numpy)
        expected = Gelu().reference(x.astype(np.float32)).astype(dtype.numpy)
        np.testing.assert_array_equal(run(Gelu(), x), expected)

    def test_second_derivative_survives_large_values(self) -> None:
        """The branch that is not taken must not turn 0 · infinity into NaN."""
        x = Input(f64[1], "x")
        for operator in (Elu(), Selu(), Celu(), Sigmoid(), Softplus()):
            (first,) = pullback([operator(x)], [constant(np.ones(1))], [x])
            assert first is not None
            (second,) = pullback([first], [constant(np.ones(1))], [x])
            assert second is not None
            assert evaluate(Graph((x,), {"s": second}), {"x": np.array([1e4])})[second] == 0.0


class TestLogic:
    def test_cast(self) -> None:
        np.testing.assert_array_equal(run(Cast(i64), [-1.9, -0.5, 1.9]), [-1, 0, 1])
        np.testing.assert_array_equal(run(Cast(boolean), [0.0, -0.0, 0.1, np.nan]), [False, False, True, True])
        np.testing.assert_array_equal(run(Cast(u8), np.array([257, -1])), [1, 255])

    def test_cast_gradient_returns_to_the_operands_type(self) -> None:
        x = Input(f32[2], "x")
        (g,) = pullback([Cast(f64)(x)], [constant(np.ones(2))], [x])
        assert g is not None
        assert g.type == x.type
        assert pullback([Cast(f64)(Cast(i32)(x))], [constant(np.ones(2))], [x]) == (None,)

    @pytest.mark.parametrize(
        ("negative", "positive", "expected"),
        [(True, True, [1, 1, 0, 0]), (False, True, [0, 1, 0, 0]), (True, False, [1, 0, 0, 0]), (False, False, [0] * 4)],
    )
    def test_infinities(self, negative: bool, positive: bool, expected: list[int]) -> None:
        x = [-np.inf, np.inf, np.nan, 1.0]
        np.testing.assert_array_equal(run(IsInf(negative, positive), x), np.array(expected, bool))

    def test_shifts_beyond_the_width(self) -> None:
        x, amount = np.array([-8, -8, -8, 8], np.int8), np.array([1, 8, -1, 9], np.int8)
        np.testing.assert_array_equal(run(BitShift("RIGHT"), x, amount), [-4, -1, -1, 0])
        np.testing.assert_array_equal(run(BitShift("LEFT"), x, amount), [-16, 0, 0, 0])

    def test_bits_and_truth(self) -> None:
        np.testing.assert_array_equal(run(BitwiseNot(), np.array([0, 5], np.uint8)), [255, 250])
        np.testing.assert_array_equal(run(Not(), [True, False]), [False, True])


class TestMove:
    @pytest.mark.parametrize(
        ("operator", "shape", "expected"),
        [
            (Reshape((0, -1)), (2, 3, 4), (2, 12)),
            (Reshape((-1,)), (), (1,)),
            (Reshape(()), (1, 1), ()),
            (Reshape((3, 0), allowzero=True), (0, 3), (3, 0)),
            (Flatten(0), (2, 3), (1, 6)),
            (Flatten(-1), (2, 3, 4), (6, 4)),
            (Squeeze(), (1, 3, 1), (3,)),
            (Squeeze((-1,)), (1, 3, 1), (1, 3)),
            (Unsqueeze((0, -1)), (3,), (1, 3, 1)),
            (Transpose(), (2, 3, 4), (4, 3, 2)),
            (Transpose((1, 2, 0)), (2, 3, 4), (3, 4, 2)),
            (Expand((3, 1)), (2, 1, 4), (2, 3, 4)),
            (Expand((1,)), (2, 1), (2, 1)),
            (Tile((2, 0)), (2, 3), (4, 0)),
            (Slice((0,), (LAST,), (1,), (2,)), (2, 5), (2, 3)),
            (Slice((LAST,), (-LAST - 1,), (0,), (-2,)), (5,), (3,)),
            (Slice((3,), (1,)), (5,), (0,)),
        ],
        ids=str,
    )
    def test_shapes(self, operator: Operator, shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
        x = np.arange(float(np.prod(shape))).reshape(shape)
        assert run(operator, x).shape == expected

    def test_slice_backwards(self) -> None:
        np.testing.assert_array_equal(run(Slice((-2,), (0,), (0,), (-2,)), np.arange(6)), [4, 2])

    @pytest.mark.parametrize(
        ("operator", "gradient"),
        [
            (Slice((4,), (0,), (0,), (-3,)), [0, 1, 0, 0, 1, 0]),
            (Slice((1,), (9,), (0,), (2,)), [0, 1, 0, 1, 0, 1]),
            (Slice((3,), (3,)), [0, 0, 0, 0, 0, 0]),
            (Pad((2, -1), mode="edge"), [3, 1, 1, 1, 1, 0]),
            (Pad((2, 3), mode="reflect"), [1, 2, 3, 2, 2, 1]),
            (Pad((1, 8), mode="wrap"), [3, 3, 2, 2, 2, 3]),
            (Tile((3,)), [3, 3, 3, 3, 3, 3]),
            (Expand((4, 6)), [4, 4, 4, 4, 4, 4]),
        ],
        ids=str,
    )
    def test_gradients(self, operator: Operator, gradient: list[int]) -> None:
        np.testing.assert_array_equal(gradients(operator, np.arange(6.0))[0], gradient)

    def test_split_sizes(self) -> None:
        x = np.arange(7.0)
        assert [len(part) for part in run(Split(None, 3), x)] == [3, 3, 1]
        assert [len(part) for part in run(Split((2, 0, 5)), x)] == [2, 0, 5]

    def test_split_without_sizes_goes_by_the_outputs(self) -> None:
        assert Split.from_onnx({"axis": 1}, (f32[2, 6],), 3) == Split(None, 3, 1)
        assert Split.from_onnx({"split": (2, 4)}, (f32[6],), 2) == Split((2, 4))

    def test_gradient_of_one_piece(self) -> None:
        """Pieces that nothing depends on count as zeros."""
        x = Input(f64[5], "x")
        _, middle, _ = Split((1, 2, 2))(x)
        (g,) = pullback([middle], [constant(np.array([3.0, 4.0]))], [x])
        assert g is not None
        np.testing.assert_array_equal(evaluate(Graph((x,), {"g": g}), {"x": np.zeros(5)})[g], [0, 3, 4, 0, 0])

    @pytest.mark.parametrize(
        ("mode", "expected"),
        [
            ("constant", [9, 9, 9, 0, 1, 2, 9, 9, 9, 9, 9]),
            ("edge", [0, 0, 0, 0, 1, 2, 2, 2, 2, 2, 2]),
            ("wrap", [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1]),
            ("reflect", [1, 2, 1, 0, 1, 2, 1, 0, 1, 2, 1]),
        ],
    )
    def test_wide_padding(self, mode: Any, expected: list[int]) -> None:
        operands = (np.arange(3), np.array(9)) if mode == "constant" else (np.arange(3),)
        np.testing.assert_array_equal(run(Pad((3, 5), mode=mode), *operands), expected)

    def test_padding_crops(self) -> None:
        np.testing.assert_array_equal(run(Pad((-1, 2)), np.arange(1, 4)), [2, 3, 0, 0])
        np.testing.assert_array_equal(run(Pad((-1, 2), mode="reflect"), np.arange(1, 5)), [2, 3, 4, 3, 2])
        np.testing.assert_array_equal(run(Pad((-2, 0, 0, 1), (1, 0)), np.ones((1, 3))), [[1], [0]])

    def test_gradient_of_the_padding_value(self) -> None:
        for_x, for_value = gradients(Pad((1, 2)), [1.0, 2.0], 5.0)
        np.testing.assert_array_equal(for_x, [1, 1])
        assert for_value == 3.0

    def test_blocks_invert_each_other(self) -> None:
        x = np.arange(2 * 8 * 2 * 3).reshape(2, 8, 2, 3)
        for mode in ("DCR", "CRD"):
            np.testing.assert_array_equal(run(SpaceToDepth(2, mode), run(DepthToSpace(2, mode), x)), x)
        assert run(DepthToSpace(2), x)[0, 0, 0, :2].tolist() == [0, 12]
        assert run(DepthToSpace(2, "CRD"), x)[0, 0, 0, :2].tolist() == [0, 6]

    def test_stop_gradient(self) -> None:
        x = Input(f64[2], "x")
        (g,) = pullback([StopGradient()(x) * x], [constant(np.ones(2))], [x])
        assert g is not None
        np.testing.assert_array_equal(evaluate(Graph((x,), {"g": g}), {"x": np.array([2.0, 3.0])})[g], [2, 3])


class TestShape:
    @pytest.mark.parametrize(
        ("operator", "expected"),
        [(Shape(), [2, 3, 4]), (Shape(1), [3, 4]), (Shape(-2, -1), [3]), (Shape(2, 1), []), (Shape(-9, 9), [2, 3, 4])],
        ids=str,
    )
    def test_shape(self, operator: Shape, expected: list[int]) -> None:
        assert run(operator, np.zeros((2, 3, 4))).tolist() == expected
        assert operator.constant(f32[2, 3, 4]).tolist() == expected

    def test_size(self) -> None:
        assert Size().constant(f32[2, 3]) == 6

    def test_constant_of_shape_takes_onnx_tensors(self) -> None:
        operator = ConstantOfShape((2,), np.array([7], np.int32))
        assert operator == ConstantOfShape((2,), 7, i32)
        np.testing.assert_array_equal(run(operator), np.array([7, 7], np.int32))
        assert run(ConstantOfShape(())).dtype == np.float32

    def test_range(self) -> None:
        assert run(Range(10, 4, -2)).tolist() == [10, 8, 6]
        assert run(Range(np.float32(0), np.float32(1), np.float32(0.25))).tolist() == [0, 0.25, 0.5, 0.75]
        assert run(Range(3, 3, 1)).tolist() == []
        assert run(Range(np.array(0, np.int32), np.array(2, np.int32), np.array(1, np.int32))).dtype == np.int32

    def test_range_of_narrow_floats_is_computed_wide(self) -> None:
        start, limit, delta = (np.array(v, np.float16) for v in (2046, 2056, 1))
        assert run(Range(start, limit, delta)).tolist()[-1] == 2056  # 2055 is halfway; a f16 sum would stop at 2048

    def test_eye_like(self) -> None:
        np.testing.assert_array_equal(run(EyeLike(i64, -1), np.zeros((2, 3))), [[0, 0, 0], [1, 0, 0]])

    @pytest.mark.parametrize("k", [-2, -1, 0, 1, 2])
    def test_trilu_parts_add_up(self, k: int) -> None:
        x = np.arange(1.0, 25.0).reshape(2, 3, 4)
        np.testing.assert_array_equal(run(Trilu(k), x) + run(Trilu(k - 1, upper=False), x), x)


class TestBrokenRules:
    @pytest.mark.parametrize(
        ("operator", "types", "message"),
        [
            (Add(), (f32[2], f32[3]), r"Add\(f32\[2\], f32\[3\]\): extents \[2, 3\] on axis -1 do not broadcast"),
            (Add(), (f32[2], i64[2]), "operands must have one element type"),
            (Add(), (f32[2],), "takes 2 operand"),
            (Add(), (boolean[2], boolean[2]), "element type must be"),
            (Pow(), (f32[2], boolean[2]), "the exponent must be a number"),
            (PRelu(), (f32[2], f32[3, 2]), "does not broadcast to"),
            (Clip(), (f32[2], f32[2]), "min and max must be scalars"),
            (Clip(), (f32[2], f64[()]), "min and max must have the element type of x"),
            (Gelu("erf"), (f32[2],), 'approximate must be "none" or "tanh"'),
            (Celu(0.0), (f32[2],), "alpha must not be 0"),
            (Where(), (f32[2], f32[2], f32[2]), "the condition must be bool, not f32; Cast it"),
            (Where(), (boolean[2], f32[2], f32[3]), "do not broadcast"),
            (BitShift("UP"), (i32[2], i32[2]), "direction must be"),
            (Reshape((4, -1)), (f32[2, 3],), "6 elements do not divide by the other extents"),
            (Reshape((-1, -1)), (f32[2, 3],), "at most one extent can be -1"),
            (Reshape((7,)), (f32[2, 3],), "6 elements do not fit"),
            (Reshape((2, 3, 0)), (f32[2, 3],), "extent 0 on axis 2 copies an axis"),
            (Reshape((-2, 3)), (f32[2, 3],), "extent -2 is negative"),
            (Flatten(3), (f32[2, 3],), r"axis 3 is outside \[-2, 2\]"),
            (Squeeze((1,)), (f32[1, 3],), "axis 1 has extent 3, not 1"),
            (Unsqueeze((0, 0)), (f32[3],), "name an axis twice"),
            (Transpose((0, 0)), (f32[2, 3],), "perm must be a permutation of 0 to 1"),
            (Expand((4,)), (f32[3],), "do not broadcast"),
            (Tile((2,)), (f32[2, 3],), "repeats must be 2 counts"),
            (Slice((0,), (1,), (5,)), (f32[2],), "axis 5 is outside"),
            (Slice((0,), (1,), (0,), (0,)), (f32[2],), "a step of 0 does not move"),
            (Slice((0, 0), (1,)), (f32[2, 2],), "must have one length"),
            (Concat(0), (f32[2, 3], f32[2, 4]), "the same shape except on axis 0"),
            (Concat(2), (f32[2, 3],), "axis 2 is outside"),
            (Split((1, 1)), (f32[3],), "add up to 3, not 2"),
            (Split(), (f32[3],), "exactly one of split and num_outputs"),
            (Pad((1,)), (f32[3],), "pads must have 2 entries"),
            (Pad((-2, -2)), (f32[3],), "cropping leaves a negative extent"),
            (Pad((-3, 1), mode="edge"), (f32[3],), "axis 0 has no element left to pad from"),
            (Pad((1, 1)), (f32[3], i64[()]), "constant_value must be one f32"),
            (DepthToSpace(2), (f32[1, 6, 2, 2],), "6 channels do not divide"),
            (SpaceToDepth(2), (f32[1, 1, 3, 2],), "does not divide into blocks"),
            (Trilu(), (f32[3],), "must be a matrix"),
            (EyeLike(), (f32[3],), "must be a matrix"),
        ],
        ids=lambda value: str(value) if isinstance(value, Operator) else "",
    )
    def test_message(self, operator: Operator, types: tuple[Any, ...], message: str) -> None:
        with pytest.raises(ShapeError, match=message):
            operator.infer(*types)

    def test_range_without_a_step(self) -> None:
        with pytest.raises(ShapeError, match="delta must not be 0"):
            Range(0, 3, 0)


def test_constants_stay_small() -> None:
    """Zeros for a missing cotangent are one number that is expanded, not a tensor in memory."""
    x = Input(f64[4, 1000], "x")
    first, _ = Split((1, 3))(x)
    (g,) = pullback([first], [Input(f64[1, 1000], "g")], [x])
    assert g is not None
    leaves = Graph((x,), {"g": g}).leaves
    assert all(leaf.type.size == 1 for leaf in leaves if isinstance(leaf, Constant))
