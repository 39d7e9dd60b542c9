"""What a trainer makes of NumPy arrays in other types and shapes than its model's, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.data import Dataset
from glowtrain.errors import InputError
from glowtrain.trainer.arrays import converted, mismatch, shaped, with_unit_axes
from glowtrain.types import DType, Spec, f8e4m3fn
from tests.training.trainers import Points, trainer_of


@pytest.mark.parametrize(
    ("have", "want"),
    [
        ((5, 12), (3, 2, 2)),  # flat to shaped
        ((5, 3, 2, 2), (12,)),  # shaped to flat
        ((5, 12, 1), (1, 3, 4)),
        ((5, 8, 8), (1, 8, 8)),
        ((5, 8, 8, 1), (1, 8, 8)),  # channels last, but there is only one
        ((5,), (1,)),
        ((5, 1), ()),
    ],
)
def test_elements_that_stay_in_their_order_get_the_inputs_shape(have: tuple[int, ...], want: tuple[int, ...]) -> None:
    array = np.arange(np.prod(have)).reshape(have)
    found = shaped(array, Spec(gt.f32, ("batch", *want)))
    assert found.shape == (5, *want)
    np.testing.assert_array_equal(found.ravel(), array.ravel())


@pytest.mark.parametrize(
    ("have", "want", "advice"),
    [
        ((5, 4, 6, 3), (3, 4, 6), r"looks like channels last: use \.transpose\(0, 3, 1, 2\)"),
        ((5, 3, 4, 6), (4, 6, 3), r"looks like channels first: use \.transpose\(0, 2, 3, 1\)"),
        ((5, 4, 3, 6), (3, 4, 6), r"axes are in another order: use \.transpose\(0, 2, 1, 3\)"),
        ((5, 9, 2), (2, "time"), r"looks like channels last: use \.transpose\(0, 2, 1\)"),
        ((5, 2, 6), (3, 4), r"must be f32\[batch,3,4\], not float32\[5,2,6\]$"),
    ],
)
def test_axes_in_another_order_are_not_reshaped(
    have: tuple[int, ...], want: tuple[int | str, ...], advice: str
) -> None:
    array, spec = np.zeros(have, np.float32), Spec(gt.f32, ("batch", *want))
    assert shaped(array, spec).shape == have
    with pytest.raises(InputError, match=advice):
        raise InputError(mismatch("x", array, spec))


@pytest.mark.parametrize(
    ("array", "dtype"),
    [
        (np.array([0.1, 1e30]), gt.f32),
        (np.array([0, 255], np.uint8), gt.f32),
        (np.array([True, False]), gt.f32),
        (np.array([3, -1], np.int32), gt.i64),
        (np.array([3, 255], np.int64), gt.u8),
        (np.array([0.5, 2], np.float32), gt.bf16),
    ],
)
def test_values_are_kept_in_another_type(array: np.ndarray, dtype: DType) -> None:
    found = converted("x", array, dtype)
    assert found.dtype == dtype.numpy
    np.testing.assert_array_equal(found, array.astype(dtype.numpy))


@pytest.mark.parametrize(
    ("array", "dtype", "message"),
    [
        (np.array([1e39]), gt.f32, "'x' holds numbers that are too large for f32"),
        (np.array([70000.0], np.float32), gt.f16, "too large for f16"),
        (np.array([3, 256]), gt.u8, "'x' holds 256, but u8 only 0 to 255"),
        (np.array([-1, 3]), gt.u8, "'x' holds -1, but u8"),
        (np.array([2**63], np.uint64), gt.i64, "'x' holds 9223372036854775808, but i64"),
    ],
)
def test_values_that_another_type_lacks_are_refused(array: np.ndarray, dtype: DType, message: str) -> None:
    with pytest.raises(InputError, match=message):
        converted("x", array, dtype)


def test_floats_do_not_become_integers(mlp: gt.Template, points: Points) -> None:
    floats = np.array([0.0, 1.5])
    assert converted("x", floats, gt.i64) is floats

    @gt.model(tokens=gt.i64["batch", 4])
    def words(tokens: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.mean(gt.nn.embedding(tokens, 5, 8), 1), 3)

    with pytest.raises(InputError, match=r"'tokens' must be i64\[batch,4\], not float64\[22,4\]; convert it with"):
        trainer_of(words).fit((points[0][:, :4].astype(np.float64), points[1]))


def test_a_trainer_takes_numpys_default_types(mlp: gt.Template, points: Points) -> None:
    x, labels = np.round(points[0] * 4), points[1]
    plain, other = trainer_of(mlp), trainer_of(mlp)
    expected = plain.fit((x, labels), 2, 8, (x, labels)).deterministic()
    wide = (x.astype(np.float64), labels.astype(np.uint8))
    assert other.fit(wide, 2, 8, wide).deterministic() == expected
    assert other.evaluate(wide) == plain.evaluate((x, labels))
    batch = {"x": x.astype(np.int16), "labels": labels.astype(np.int32)}
    assert other.step(batch) == plain.step({"x": x, "labels": labels})
    np.testing.assert_array_equal(other.predict(x.astype(int))["output"], plain.predict(x)["output"])
    with pytest.raises(InputError, match=r"'labels' must hold classes from 0 to 2"):
        other.fit((x, labels.astype(np.int8) - 1))


def test_a_wrong_type_says_what_to_call() -> None:
    array = np.zeros((2, 4), np.float32)
    assert mismatch("x", array, Spec(gt.i32, ("n", 4))).endswith("convert it with .astype(np.int32)")
    assert mismatch("x", array, Spec(f8e4m3fn, ("n", 4))).endswith(".astype(ml_dtypes.float8_e4m3fn)")


def _line(width: int) -> gt.Template:
    @gt.model(x=gt.f32["batch", 6])
    def line(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, width)

    return line


def test_a_column_of_targets_may_be_flat(points: Points) -> None:
    x = points[0]
    target = np.round(x.sum(1) * 8).astype(np.int64)
    runs = []
    for given in (target[:, None].astype(np.float32), target[:, None], target, target.astype(np.float64)):
        trainer = trainer_of(_line(1), loss=gt.losses.mse())
        runs.append((trainer.fit((x, given), 2, 8, (x, given)).deterministic(), trainer.evaluate((x, given))))
    assert runs == runs[:1] * 4
    assert trainer.step({"x": x, "target": target}) == pytest.approx(runs[0][1]["loss"])


def test_labels_may_be_a_column(mlp: gt.Template, points: Points) -> None:
    x, labels = points
    found = trainer_of(mlp).fit((x, labels[:, None]), 2, 8)
    assert found.loss == trainer_of(mlp).fit((x, labels), 2, 8).loss
    array = np.zeros((5, 1, 3))
    assert with_unit_axes(array, Spec(gt.f32, ("batch", 3))).shape == (5, 3)
    assert with_unit_axes(array, Spec(gt.f32, ("batch", 4))) is array


def test_targets_of_another_width_are_told_the_outputs_shape(points: Points) -> None:
    with pytest.raises(InputError, match=r"'target' must be f32\[batch,2\], not float32\[22\]"):
        trainer_of(_line(2), loss=gt.losses.mse()).fit((points[0], points[0][:, 0]))

    @gt.model(x=gt.f32["batch", "time", 6])
    def each(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 3)

    with pytest.raises(InputError, match=r"'target' must be f32\[batch,time,3\], not float32\[22,4\]"):
        trainer_of(each, loss=gt.losses.mse()).fit((np.zeros((22, 4, 6), np.float32), np.zeros((22, 4), np.float32)))


# --- data sets -------------------------------------------------------------------------------------------------------


def test_a_data_sets_parts_are_data(mlp: gt.Template, points: Points) -> None:
    x, y = points
    both = Dataset("d", {"x": x[:16], "y": y[:16]}, {"x": x[16:], "y": y[16:]})
    first, second = trainer_of(mlp), trainer_of(mlp)
    assert first.fit(both.train, 3, 8, both.valid).records[-1]["val_loss"] == second.fit(both, 3, 8).last["val_loss"]
    assert first.evaluate(both.valid) == first.evaluate((x[16:], y[16:])) != first.evaluate(both.train)


def test_a_data_set_is_evaluated_on_its_validation_part(mlp: gt.Template, points: Points) -> None:
    x, y = points
    both = Dataset("d", {"x": x[:16], "y": y[:16]}, {"x": x[16:], "y": y[16:]})
    trainer = trainer_of(mlp)
    trainer.fit(both, 3, 8)
    assert trainer.evaluate(both) == trainer.evaluate((x[16:], y[16:]))
    assert trainer.evaluate(both)["loss"] == trainer.history.last["val_loss"]
    assert trainer.evaluate(Dataset("d", both.train)) == trainer.evaluate((x[:16], y[:16]))


def test_a_data_set_of_single_examples_is_no_data(mlp: gt.Template, points: Points) -> None:
    class Examples:
        def __len__(self) -> int:
            return 22

        def __getitem__(self, number: int) -> tuple[np.ndarray, np.int64]:
            return points[0][number], points[1][number]

    with pytest.raises(InputError, match="data is a Examples.*gives examples by number.*pass a DataLoader of it"):
        trainer_of(mlp).fit(Examples())  # type: ignore[arg-type]
