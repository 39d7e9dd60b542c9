"""What deep runs of the checks found, each with the example that showed it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import onnx
import pytest

import glowtrain as gt
from glowtrain.errors import ShapeError
from glowtrain.gradcheck import PROFILES, check, check_sample
from glowtrain.gradcheck.operators.edges import drawn_edge
from glowtrain.gradcheck.operators.onnx_runtime import NotRun, runtime
from glowtrain.gradcheck.operators.oracles import applied, drawn
from glowtrain.gradcheck.programs import generator as composing
from glowtrain.graph import Graph, Input, Operator, Sample
from glowtrain.onnx_io import save
from glowtrain.onnx_io.runtimes import comparable
from glowtrain.ops.contraction.linear_algebra import Det, Elimination
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.ops.elementwise.logic import Cast, CastLike
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.microsoft.attention import QAttention
from glowtrain.ops.microsoft.fused import FusedGemm
from glowtrain.ops.microsoft.quantized import QLinearAveragePool
from glowtrain.ops.ml.features import FeatureVectorizer
from glowtrain.ops.ml.walk import TreeWalk
from glowtrain.ops.normalize.local_and_mean_variance import MeanVarianceNormalization
from glowtrain.ops.pooling.max_pool import MaxPool
from glowtrain.ops.pooling.pooling import AveragePool, LpPool
from glowtrain.ops.quantized.fake_quantize import FakeQuantize
from glowtrain.ops.resample.resize import Resize
from glowtrain.ops.sequence.recurrent import LSTM
from glowtrain.ops.signal.fourier import DFT
from glowtrain.ops.tensor.shape import Range
from glowtrain.types import (
    Array,
    DType,
    TensorType,
    f4e2m1,
    f6e2m3,
    f6e3m2,
    f8e5m2,
    f8e5m2fnuz,
    f32,
    i2,
    i4,
    i32,
    type_of,
    u2,
    u4,
)

Patch = pytest.MonkeyPatch
NARROW = (i2, i4, u2, u4, f4e2m1, f6e2m3, f6e3m2, f8e5m2, f8e5m2fnuz)


@pytest.mark.parametrize("dtype", NARROW, ids=lambda dtype: str(dtype.name))
def test_a_cast_is_saved_at_an_operator_set_that_has_the_type(dtype: DType) -> None:
    """The first set with a Cast of the operand's type was taken, whatever the type of the result."""
    x = np.array([0.5, 1.0, 2.0])
    uses: tuple[tuple[Operator, tuple[Array, ...]], ...] = (
        (Cast(to=dtype), (x,)),
        (CastLike(), (x, np.ones(1, dtype.numpy))),
    )
    for operator, inputs in uses:
        onnx.checker.check_model(save(applied(Sample(operator, inputs)).probe.graph), full_check=True)


def test_a_model_that_onnx_refuses_is_a_failure(monkeypatch: Patch) -> None:
    """It ended the run: ONNX Runtime has a class of its own for it."""
    with_runtime()
    saved = save

    def broken(*args: object, **options: object) -> onnx.ModelProto:
        model = saved(*args, **options)  # type: ignore[arg-type]
        model.graph.node[0].op_type = "Not"
        return model

    monkeypatch.setattr("glowtrain.gradcheck.operators.onnx_runtime.save", broken)
    (measure,) = check_sample(Sample(Tanh(), (np.ones(3),)), ["onnx runtime"])
    assert measure.status == "failed"
    assert "the saved model is invalid" in measure.detail


def with_runtime() -> None:
    try:
        runtime()
    except NotRun as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("length", "like_numpy"), [(2, False), (3, True), (4, False), (5, False)])
def test_inverse_transforms_of_other_spectra_are_not_compared_with_onnx_runtime(length: int, like_numpy: bool) -> None:
    spectrum = np.random.default_rng(0).standard_normal((length, 2, 2))
    sample = Sample(DFT(inverse=True, onesided=True, dft_length=4, axis=0), (spectrum,))
    complex_ = spectrum[..., 0] + 1j * spectrum[..., 1]
    found = np.asarray(sample.operator.reference(spectrum))[..., 0]
    assert np.allclose(found, np.fft.irfft(complex_, 4, axis=0))
    assert comparable(sample) is like_numpy
    agrees(sample)


def cropped(size: int) -> Resize:
    """The last axis of six elements, from before its begin to its end."""
    return Resize((-0.3, 1.0), None, (size,), axes=(2,), coordinate_transformation_mode="tf_crop_and_resize")


@pytest.mark.parametrize(
    ("operator", "like_onnx_runtime"),
    [
        (MaxPool(auto_pad="SAME_UPPER", kernel_shape=(1,), strides=(3,)), False),
        (AveragePool(auto_pad="SAME_UPPER", kernel_shape=(1,), strides=(3,)), False),
        (LpPool(auto_pad="SAME_UPPER", kernel_shape=(2,), strides=(3,)), True),
        (Resize(scales=(1.0, 1.0, 0.6), coordinate_transformation_mode="align_corners", mode="linear"), False),
        (Resize(scales=(1.0, 1.0, 0.5), coordinate_transformation_mode="align_corners", mode="linear"), True),
        (cropped(6), False),
        (cropped(4), True),
    ],
    ids=str,
)
def test_uses_of_which_onnx_runtime_thinks_otherwise(operator: Operator, like_onnx_runtime: bool) -> None:
    sample = Sample(operator, (np.random.default_rng(0).standard_normal((1, 1, 6)),))
    assert comparable(sample) is like_onnx_runtime
    agrees(sample)


def agrees(sample: Sample) -> None:
    """ONNX Runtime agrees where it is asked, and is not asked where it is not comparable."""
    with_runtime()
    statuses = {measure.status for measure in check_sample(sample, ["onnx runtime"])}
    assert statuses == ({"passed"} if comparable(sample) else set())


def test_same_padding_of_nothing_is_refused_as_other_windows_are() -> None:
    """AveragePool and Conv gave nothing, LpPool failed where it was lowered."""
    x, w = np.zeros((1, 2, 3, 0)), np.zeros((2, 2, 1, 1))
    for auto_pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
        uses = ((pool(auto_pad=auto_pad, kernel_shape=(2, 1)), (x,)) for pool in (AveragePool, LpPool, MaxPool))
        for operator, inputs in (*uses, (Conv(auto_pad=auto_pad), (x, w))):
            with pytest.raises(ShapeError, match="does not fit into"):
                applied(Sample(operator, inputs))


@pytest.mark.parametrize("place", range(9))
def test_elimination_takes_the_first_nan_as_its_pivot(place: int) -> None:
    """The lowering took the last row, and left other numbers in the working memory."""
    x = np.random.default_rng(0).standard_normal((3, 3))
    x[divmod(place, 3)] = np.nan
    (*measures,) = check_sample(Sample(Elimination(), (x,)), ["edges", "edges compiled"])
    assert [measure.detail for measure in measures if measure.status == "failed"] == []


@pytest.mark.parametrize("example", range(8))
def test_means_of_bytes_do_not_depend_on_where_narrow_scales_round(example: int) -> None:
    """With scales in f16 and bf16 the interpreter rounded the mean, and native code did not: steps of difference."""
    random = np.random.default_rng(example)
    x, zero = random.integers(0, 256, (1, 2, 6, 34), np.uint8), np.array(random.integers(0, 256), np.uint8)
    scales = [np.array(random.uniform(low, high)) for low, high in ((0.01, 0.1), (0.05, 0.5))]
    pool = QLinearAveragePool(kernel_shape=(3, 2), strides=(2, 2))
    measures = check_sample(Sample(pool, (x, scales[0], zero, scales[1], zero)), ["compiled f16", "compiled bf16"])
    assert [measure.detail for measure in measures if measure.status == "failed"] == []


@pytest.mark.parametrize("profile", PROFILES)
def test_every_oracle_sees_long_axes(profile: str) -> None:
    """Every other example had them, and oracles that see one example in two or four saw the others."""
    settings = PROFILES[profile]
    samples = {example: drawn(Tanh, 0, example) for example in range(280)}
    long = {example for example, sample in samples.items() if max(np.shape(sample.inputs[0]), default=0) > 8}
    assert len(long) > 25
    for share in {*settings.shares.values()}:
        assert sum(example % share == 0 for example in long) > 0.5 * len(long) / share


def test_onnx_runtime_is_not_asked_about_nothing() -> None:
    """Its transposed convolution of no images never returned, its convolution by no channels divided by zero."""
    weight = np.ones((2, 1, 1, 2, 2))
    assert not comparable(Sample(ConvTranspose(group=2), (np.ones((0, 2, 2, 1, 2)), weight)))
    assert comparable(Sample(ConvTranspose(group=2), (np.ones((1, 2, 2, 1, 2)), weight)))


def test_operators_of_one_result_type_are_not_drawn_in_narrow_programs() -> None:
    """Program 6168 of seed 2026: FeatureVectorizer gives f32 also where all else became f64."""
    fixed = FeatureVectorizer(inputdimensions=(1, 2))
    assert not composing._widens(fixed, [np.ones((1, 1), np.int64), np.ones(2, np.int64)])
    assert composing._widens(Relu(), [np.ones(2, np.float32)])


def test_differences_know_of_straight_through_rules_in_loops() -> None:
    """Programs 283 and 10511 of seed 2026: FakeQuantize in a Scan counted with its steps, whose differences are 0."""
    values = [Input(gt.f64[3], "state"), Input(gt.f64[3], "x"), Input(gt.f64[()], "scale")]
    state, x, scale = values
    rounded = FakeQuantize()(gt.nn.tanh(x + state), scale, gt.constant(np.int8(0)))
    inner = Scan(Graph(tuple(values), {"next": rounded, "y": rounded * state}), 1, num_captured=1)
    random = np.random.default_rng(0)
    inputs = {"x": random.normal(size=(4, 3)), "first": random.normal(size=3), "scale": np.array(0.3)}
    given = {name: Input(type_of(array), name) for name, array in inputs.items()}
    last, stacked = inner(given["first"], given["x"], given["scale"])
    report = check(Graph(tuple(given.values()), {"last": last, "y": stacked}), inputs)
    assert report.passed, report
    assert {"x", "first", "scale"} <= set(report.subjects)


def test_onnx_runtime_is_not_asked_for_the_deviation_of_equal_elements() -> None:
    """It takes the root of the squares' mean less the mean's square, which rounding carries below 0."""
    alone: Array = np.random.default_rng(0).uniform(-2, 2, (1, 4, 2, 5))
    assert not comparable(Sample(MeanVarianceNormalization((-4,)), (alone,)))
    assert comparable(Sample(MeanVarianceNormalization((0, 1)), (alone,)))


def test_onnx_runtime_is_not_asked_about_cell_states_that_are_clipped() -> None:
    """``deep`` with seed 511: it clips what all activations of an LSTM read but the last one, which reads the state."""
    x, weight = np.full((2, 1, 1), 3.0), np.array([[[10.0], [1.0], [1.0], [10.0]]])
    operands = (x, weight, np.zeros((1, 4, 1)))
    clipped = LSTM(activations=("Affine", "Tanh", "Affine"), clip=4.0, activation_alpha=(1.0, 0.7))
    assert not comparable(Sample(clipped, operands))
    assert comparable(Sample(replace(clipped, clip=None), operands))
    assert comparable(Sample(replace(clipped, activations=("Affine", "Affine", "Tanh")), operands))
    y, *_ = clipped.reference(*operands)
    np.testing.assert_allclose(y[-1].item(), 3 * 0.7 * 4)  # the output gate's 3, of a state of 16


@pytest.mark.parametrize(("operator", "seed"), [(QAttention, 511), (Det, 512)])
def test_where_infinities_cancel_depends_on_the_form(operator: type[Operator], seed: int) -> None:
    """``deep`` with these seeds: shares of 0 times infinities in attention; determinants by another elimination."""
    found = [drawn_edge(operator, seed, example) for example in range(1, 40, 2)]
    assert any(found)
    assert all(np.isfinite(x).all() for sample in found if sample for x in sample.inputs if x is not None)


def test_large_determinants_are_of_matrices_that_have_a_condition() -> None:
    """``deep`` with seed 512: of a matrix of condition 284 the second half of f32's digits were noise."""
    drawn_ones = [drawn_edge(Det, seed, 0) for seed in range(500, 560)]
    large = [sample.inputs[0] for sample in drawn_ones if sample and sample.inputs[0].shape[-1] > 8]
    assert large
    assert max(np.linalg.cond(x) for x in large) < 100


def test_an_activation_keeps_the_default_of_a_parameter_that_is_not_given() -> None:
    """The second parameter of HardSigmoid was taken for the first where only it was given."""
    x = np.linspace(-2.0, 2.0, 5).reshape(5, 1)
    fused = FusedGemm(activation="HardSigmoid", activation_beta=0.4)
    np.testing.assert_allclose(fused.reference(x, np.ones((1, 1))), np.clip(0.2 * x + 0.4, 0, 1))


def test_start_nodes_of_trees_fit_the_rows() -> None:
    """40 examples of it: a table that is cut to one row took start nodes for three."""
    none, nodes = TensorType(f32, (1,)), TensorType(i32, (1,))
    tables = nodes, none, TensorType(i32, (1, 2))
    with pytest.raises(ShapeError, match="one start node for each row"):
        TreeWalk(1).infer(TensorType(f32, (1, 3)), TensorType(i32, (2, 3)), *tables)
    rows = TensorType(f32, (4, 3))
    assert TreeWalk(1).infer(rows, TensorType(i32, (2, 1)), *tables) == TensorType(i32, (2, 4))


def test_ranges_of_narrow_floats_are_computed_in_the_type_that_is_stated() -> None:
    """What was not f32 was computed in the narrow type, and any number was a type."""
    start, limit, delta = (np.asarray(number, np.float16) for number in (0.1, 200.0, 0.3))
    counted = np.arange(Range(start, limit, delta).count)
    narrow = (counted.astype(np.float16) * delta + start).astype(np.float16)
    for stash, wide in ((1, np.float32), (11, np.float64)):
        expected = (counted.astype(wide) * wide(delta) + wide(start)).astype(np.float16)
        operator = Range(start, limit, delta, stash)
        assert not np.array_equal(expected, narrow)
        np.testing.assert_array_equal(operator.reference(), expected)
        assert all(m.status == "passed" for m in check_sample(Sample(operator, ()), ["evaluator", "compiled"]))
    with pytest.raises(ShapeError, match="stash_type must be 1"):
        Range(start, limit, delta, 10).infer()
