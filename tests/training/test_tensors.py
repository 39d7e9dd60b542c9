"""Tensors of other libraries as arrays, without any of these libraries."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from glowtrain.errors import InputError
from glowtrain.trainer.sources.tensors import array_of, is_array
from tests.training.loaders import FakeTensor


class OnlyDlpack:
    """What has the exchange protocol, and nothing of NumPy's."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **settings: Any) -> Any:
        return self.array.__dlpack__(**settings)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()


class OnADevice(OnlyDlpack):
    device = "TPU_0(process=0,(0,0,0,0))"

    def __dlpack__(self, **settings: Any) -> Any:
        raise BufferError("not in the memory of the host")


@pytest.mark.parametrize("kind", [OnlyDlpack, FakeTensor, lambda array: array])
def test_memory_is_shared(kind: Any) -> None:
    array = np.arange(12.0, dtype=np.float32).reshape(3, 4)
    for part in (array, array.T, array[:, ::2]):
        found = array_of("x", kind(part))
        assert np.shares_memory(found, array)
        np.testing.assert_array_equal(found, part)
    assert is_array(kind(array))


def test_lists_and_numbers() -> None:
    np.testing.assert_array_equal(array_of("x", [[1, 2], [3, 4]]), [[1, 2], [3, 4]])
    assert array_of("x", 0.5).shape == ()
    assert not any(map(is_array, ([1], (1,), 1.5, "x", None, {})))
    assert array_of("x", np.float32(3)).dtype == np.float32
    assert array_of("x", np.zeros(2, ml_dtypes.bfloat16)).dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (
            FakeTensor(np.zeros(2), device="cuda:1"),
            r"'x' is a tensor on cuda:1, but glowtrain computes on the CPU: give",
        ),
        (FakeTensor(np.zeros(2), device="mps:0", requires_grad=True), "'x' is a tensor on mps:0"),
        (
            FakeTensor(np.zeros(2), requires_grad=True),
            r"'x' is a tensor that requires grad, .* give it .detach\(\) of it",
        ),
        (OnADevice(np.zeros(2)), r"'x' is a tensor on TPU_0"),
        ([[1.0], [2.0, 3.0]], "'x' cannot be read as an array: .*inhomogeneous"),
    ],
)
def test_what_is_not_taken(value: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as told:
        array_of("x", value)
    assert told.value.__cause__ is not None
