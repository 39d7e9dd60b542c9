"""Short axes, and infinities and NaN: that samples reach them, and what was found there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from glowtrain.errors import ShapeError
from glowtrain.gradcheck.operators.edges import drawn_edge, drawn_example, drawn_short, is_use
from glowtrain.gradcheck.operators.oracles import applied, check_sample
from glowtrain.graph import OPERATORS, Sample, registered
from glowtrain.ops.control.scan import Scan
from glowtrain.types import Array

ORACLES = ("types", "jacobian", "forward", "evaluator", "planned", "compiled")


def use(key: str, *operands: Array | None, **attributes: Any) -> Sample:
    return Sample(OPERATORS[key](**attributes), operands)


def ones(*shape: int) -> Array:
    return np.ones(shape)


def ids(*shape: int) -> Array:
    return np.zeros(shape, np.int64)


def problems(sample: Sample) -> list[str]:
    return [f"{m.oracle}: {m.detail}" for m in check_sample(sample, ORACLES) if m.status == "failed"]


# --- Samples


@pytest.mark.parametrize("key", ["Conv", "LSTM", "Softmax", "MatMul", "Gather", "Attention", "com.microsoft.BiasGelu"])
def test_extents_that_a_sample_draws_as_it_likes_are_cut(key: str) -> None:
    found = [drawn_short(OPERATORS[key], 0, example) for example in range(30)]
    shapes = [[np.shape(a) for a in sample.inputs if a is not None] for sample in found if sample is not None]
    assert len(shapes) > 25
    assert any(any(0 in shape for shape in each) for each in shapes)
    assert any(any(1 in shape for shape in each) and not any(0 in shape for shape in each) for each in shapes)


def test_a_part_of_the_examples_has_short_axes() -> None:
    drawn = [drawn_example(OPERATORS["Conv"], 0, example) for example in range(40)]
    assert any(np.size(array) == 0 for sample in drawn for array in sample.inputs if array is not None)


def test_some_samples_end_before_an_absent_operand() -> None:
    drawn = [drawn_example(OPERATORS["Dropout"], 0, example) for example in range(10)]
    assert {tuple(array is None for array in sample.inputs) for sample in drawn} == {
        (False,),
        (False, True),
        (False,) * 2,
    }


def test_some_scans_have_one_result() -> None:
    drawn = [drawn_example(OPERATORS["Scan"], 0, example).operator for example in range(24)]
    counts = {(scan.num_states, scan.num_scan_outputs) for scan in drawn if isinstance(scan, Scan)}
    assert counts == {(2, 2), (1, 0), (0, 1)}


NO_OPERANDS, BY_ATTRIBUTES = "no operands", "extents stand in attributes: see SIZES"
NEVER_EMPTY = {
    "AffineGrid": BY_ATTRIBUTES,
    "BlackmanWindow": BY_ATTRIBUTES,
    "HammingWindow": BY_ATTRIBUTES,
    "HannWindow": BY_ATTRIBUTES,
    "ConstantOfShape": BY_ATTRIBUTES,
    "Range": BY_ATTRIBUTES,
    "RandomNormal": BY_ATTRIBUTES,
    "RandomUniform": BY_ATTRIBUTES,
    "glowtrain.Normal": BY_ATTRIBUTES,
    "glowtrain.RandomBits": BY_ATTRIBUTES,
    "glowtrain.Uniform": BY_ATTRIBUTES,
    "MelWeightMatrix": NO_OPERANDS,
    "DynamicQuantizeLinear": "what has no elements has no range",
    "com.microsoft.DynamicQuantizeLSTM": "what has no elements has no range",
    "glowtrain.StateQuantizedLSTM": "what has no elements has no range",
    "glowtrain.Unique": "its results hold at least one element",
}


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_operator_is_seen_without_elements() -> None:
    """All but those listed, which refuse them or have no operand to be empty."""
    never = set()
    for cls in registered():
        drawn = (draw(cls, 0, example) for example in range(0, 60, 2) for draw in (drawn_short, drawn_edge))
        arrays = (array for sample in drawn if sample is not None for array in sample.inputs)
        if all(array is None or np.size(array) for array in arrays):
            never.add(cls.key())
    assert never == set(NEVER_EMPTY)


def test_an_index_needs_a_place_to_name() -> None:
    assert is_use(use("Gather", ones(2, 3), ids(4)))
    assert not is_use(use("Gather", ones(0, 3), ids(4)))
    assert not is_use(use("RotaryEmbedding", ones(1, 1, 2, 4), ones(0, 2), ones(0, 2), ids(1, 2)))


# --- What has no elements, or one

FOUND = [
    use("Attention", ones(0, 2, 6), ones(0, 3, 2), ones(0, 3, 2), q_num_heads=3, kv_num_heads=1),
    use("Attention", ones(1, 0, 6), ones(1, 3, 2), ones(1, 3, 2), q_num_heads=3, kv_num_heads=1),
    use("Col2Im", ones(0, 2, 8), image_shape=(2, 4), block_shape=(2, 1), pads=(1, 0, 0, 0)),
    use("Conv", ones(1, 2, 0, 2), ones(2, 2, 2, 1), pads=(1, 0, 1, 0)),
    use("DeformConv", ones(0, 4, 3, 2), ones(2, 2, 2, 2), ones(0, 8, 2, 1), group=2, kernel_shape=(2, 2)),
    use("DeformConv", ones(1, 4, 3, 2), ones(0, 2, 2, 2), ones(1, 8, 2, 1), group=2, kernel_shape=(2, 2)),
    use("GridSample", ones(0, 2, 4, 3), ones(0, 4, 0, 2), mode="cubic", padding_mode="border"),
    use("com.microsoft.Attention", ones(0, 3, 2), ones(2, 18), ones(18), np.zeros(0, np.int32), num_heads=2),
    use("glowtrain.Im2Col", ones(0, 2, 3, 4), block_shape=(2, 2)),
    use("glowtrain.Im2Col", ones(1, 2, 0, 3), block_shape=(1, 1), pads=(1, 0, 0, 0)),
]


@pytest.mark.spread(3)
@pytest.mark.parametrize("sample", FOUND, ids=lambda sample: str(sample.operator)[:40])
def test_operators_take_what_has_no_elements(sample: Sample) -> None:
    assert not problems(sample)


SIZES = [
    *(use(f"{name}Window", size=size, periodic=False) for name in ("Blackman", "Hamming", "Hann") for size in (0, 1)),
    use("AffineGrid", ones(0, 2, 3), size=(0, 1, 2, 2)),
    use("AffineGrid", ones(1, 2, 3), size=(1, 1, 1, 1), align_corners=True),
    use("AffineGrid", ones(1, 3, 4), size=(1, 1, 2, 0, 1)),
    use("ConstantOfShape", shape=(0, 2)),
    use("RandomNormal", shape=(2, 0), seed=1.0),
    use("RandomUniform", shape=(0,), seed=1.0),
    use("Range", start=2.0, limit=1.0, delta=1.0),
    use("Expand", ones(1), shape=(0, 0)),
    use("Reshape", ones(0, 3), shape=(3, 0), allowzero=True),
    use("OneHot", ids(0), np.array([0.0, 1.0]), depth=3),
    use("Resize", ones(1, 1, 2, 2), sizes=(1, 1, 0, 2)),
    use("Split", ones(3, 2), split=(3, 0)),
    use("TopK", ones(3), k=0),
]


@pytest.mark.parametrize("sample", SIZES, ids=lambda sample: str(sample.operator)[:40])
def test_attributes_may_ask_for_no_elements(sample: Sample) -> None:
    assert not problems(sample)


@pytest.mark.parametrize(
    ("sample", "rule"),
    [
        (use("CausalConvWithState", ones(1, 1, 0), ones(1, 1, 4)), "at least one channel and one step"),
        (use("CausalConvWithState", ones(1, 0, 1), ones(0, 1, 4)), "at least one channel and one step"),
        (use("ConvTranspose", ones(1, 1, 0, 3), ones(1, 2, 1, 2), output_shape=(1, 5)), "elements along its spatial"),
        (use("MaxUnpool", ones(1, 1, 0), ids(1, 1, 0), output_shape=(1, 1, 2), kernel_shape=(2,)), "elements along"),
    ],
    ids=lambda value: "" if isinstance(value, str) else str(value.operator)[:30],
)
def test_what_cannot_be_empty_says_so(sample: Sample, rule: str) -> None:
    with pytest.raises(ShapeError, match=rule):
        applied(sample)


# --- Infinities and NaN


def test_a_diagonal_does_not_see_what_is_beside_it() -> None:
    x = np.array([[1.0, np.nan, np.inf], [np.inf, 2.0, np.nan], [0.0, np.inf, 3.0]])
    sample = use("Einsum", x, equation="ii->i")
    assert not [m.detail for m in check_sample(sample, ["types", "decomposition", "evaluator"]) if m.status == "failed"]
    assert not problems(use("Einsum", np.arange(18.0).reshape(3, 2, 3), ones(2, 4), equation="iji,jk->ki"))
    assert not problems(use("Einsum", np.arange(8.0).reshape(2, 2, 2), equation="iii->i"))


@pytest.mark.parametrize("key", ["Adagrad", "Adam", "Momentum"])
def test_a_penalty_of_zero_does_not_look_at_the_tensor(key: str) -> None:
    count = 2 if key == "Adam" else 1
    attributes = {"alpha": 0.9, "beta": 1.0, "norm_coefficient": 0.0, "mode": "standard"} if key == "Momentum" else {}
    tensors = [np.array([np.inf, 1.0]), np.array([1.0, 2.0]), *[np.array([0.5, 0.5])] * count]
    sample = use(f"ai.onnx.preview.training.{key}", np.asarray(0.1), np.asarray(1), *tensors, **attributes)
    found = applied(sample).probe
    assert np.isfinite(found.at(found.arrays)[1]).all()
    assert not [m.detail for m in check_sample(sample, ["decomposition", "evaluator"]) if m.status == "failed"]
