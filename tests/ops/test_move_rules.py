"""Operators that move, repeat and make tensors by shape: ONNX semantics, gradients, messages for broken rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ShapeError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Constant, Graph, Input, Operator, constant
from glowtrain.ops.objective.stop_gradient import StopGradient
from glowtrain.ops.tensor.move import (
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
from glowtrain.ops.tensor.pad import Pad, Tile
from glowtrain.ops.tensor.shape import ConstantOfShape, EyeLike, Range, Shape, Size, Trilu
from glowtrain.ops.tensor.space_depth import DepthToSpace, SpaceToDepth
from glowtrain.ops.tensor.split import Split
from glowtrain.types import f32, f64, i32, i64
from tests.ops.rules import all_gradients, reference


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
        assert reference(operator, x).shape == expected

    def test_slice_backwards(self) -> None:
        np.testing.assert_array_equal(reference(Slice((-2,), (0,), (0,), (-2,)), np.arange(6)), [4, 2])

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
        np.testing.assert_array_equal(all_gradients(operator, np.arange(6.0))[0], gradient)

    def test_split_sizes(self) -> None:
        x = np.arange(7.0)
        assert [len(part) for part in reference(Split(None, 3), x)] == [3, 3, 1]
        assert [len(part) for part in reference(Split((2, 0, 5)), x)] == [2, 0, 5]

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
        np.testing.assert_array_equal(reference(Pad((3, 5), mode=mode), *operands), expected)

    def test_padding_crops(self) -> None:
        np.testing.assert_array_equal(reference(Pad((-1, 2)), np.arange(1, 4)), [2, 3, 0, 0])
        np.testing.assert_array_equal(reference(Pad((-1, 2), mode="reflect"), np.arange(1, 5)), [2, 3, 4, 3, 2])
        np.testing.assert_array_equal(reference(Pad((-2, 0, 0, 1), (1, 0)), np.ones((1, 3))), [[1], [0]])

    def test_gradient_of_the_padding_value(self) -> None:
        for_x, for_value = all_gradients(Pad((1, 2)), [1.0, 2.0], 5.0)
        np.testing.assert_array_equal(for_x, [1, 1])
        assert for_value == 3.0

    def test_blocks_invert_each_other(self) -> None:
        x = np.arange(2 * 8 * 2 * 3).reshape(2, 8, 2, 3)
        for mode in ("DCR", "CRD"):
            np.testing.assert_array_equal(reference(SpaceToDepth(2, mode), reference(DepthToSpace(2, mode), x)), x)
        assert reference(DepthToSpace(2), x)[0, 0, 0, :2].tolist() == [0, 12]
        assert reference(DepthToSpace(2, "CRD"), x)[0, 0, 0, :2].tolist() == [0, 6]

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
        assert reference(operator, np.zeros((2, 3, 4))).tolist() == expected
        assert operator.constant(f32[2, 3, 4]).tolist() == expected

    def test_size(self) -> None:
        assert Size().constant(f32[2, 3]) == 6

    def test_constant_of_shape_takes_onnx_tensors(self) -> None:
        operator = ConstantOfShape((2,), np.array([7], np.int32))
        assert operator == ConstantOfShape((2,), 7, i32)
        np.testing.assert_array_equal(reference(operator), np.array([7, 7], np.int32))
        assert reference(ConstantOfShape(())).dtype == np.float32

    def test_range(self) -> None:
        assert reference(Range(10, 4, -2)).tolist() == [10, 8, 6]
        assert reference(Range(np.float32(0), np.float32(1), np.float32(0.25))).tolist() == [0, 0.25, 0.5, 0.75]
        assert reference(Range(3, 3, 1)).tolist() == []
        assert reference(Range(np.array(0, np.int32), np.array(2, np.int32), np.array(1, np.int32))).dtype == np.int32

    def test_range_of_narrow_floats_is_computed_wide(self) -> None:
        start, limit, delta = (np.array(v, np.float16) for v in (2046, 2056, 1))
        assert (
            reference(Range(start, limit, delta)).tolist()[-1] == 2056
        )  # 2055 is halfway; a f16 sum would stop at 2048

    def test_eye_like(self) -> None:
        np.testing.assert_array_equal(reference(EyeLike(i64, -1), np.zeros((2, 3))), [[0, 0, 0], [1, 0, 0]])

    @pytest.mark.parametrize("k", [-2, -1, 0, 1, 2])
    def test_trilu_parts_add_up(self, k: int) -> None:
        x = np.arange(1.0, 25.0).reshape(2, 3, 4)
        np.testing.assert_array_equal(reference(Trilu(k), x) + reference(Trilu(k - 1, upper=False), x), x)


class TestBrokenRules:
    @pytest.mark.parametrize(
        ("operator", "types", "message"),
        [
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
