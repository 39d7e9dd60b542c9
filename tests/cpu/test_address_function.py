"""Compiled graphs over memory that each call names."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from glowtrain.backends.discovery import backend_of
from glowtrain.compiler.address_function import AddressFunction
from glowtrain.errors import BackendError
from glowtrain.graph import Graph, Input, Variable
from glowtrain.types import Array, TensorType, f32


def total() -> Graph:
    """y = 2 x + w, while w grows by x."""
    x, w = Input(TensorType(f32, (3, 5)), "x"), Variable("w", np.zeros((3, 5), np.float32))
    return Graph((x,), {"y": x * 2 + w, "same": x * 2}, {w: w + x}, "total")


def addresses(*arrays: Array) -> list[int]:
    return [array.ctypes.data for array in arrays]


@pytest.mark.parametrize("names", [("x", "w", "y", "same"), ("same", "y", "w", "x")])
def test_inputs_variables_and_outputs_lie_where_calls_say(names: tuple[str, ...]) -> None:
    function = AddressFunction(total(), backend_of("cpu", 1), names)
    for seed in range(3):
        numbers = np.random.default_rng(seed)
        x, w = (numbers.standard_normal((3, 5)).astype(np.float32) for _ in range(2))
        y, same = np.empty((3, 5), np.float32), np.empty((3, 5), np.float32)
        before = w.copy()
        by_name = {"x": x, "w": w, "y": y, "same": same}
        function(addresses(*(by_name[name] for name in names)))
        np.testing.assert_allclose(y, 2 * x + before, rtol=1e-6)
        np.testing.assert_array_equal(same, 2 * x)
        np.testing.assert_allclose(w, before + x, rtol=1e-6)


def test_memory_at_odd_addresses() -> None:
    function = AddressFunction(total(), backend_of("cpu", 1), ("x", "w", "y", "same"))
    memory = np.zeros(4 * 15 + 4, np.float32)
    x, w, y, same = (memory[1 + 15 * i : 16 + 15 * i].reshape(3, 5) for i in range(4))
    x[:], w[:] = 1.5, 2.0
    function(addresses(x, w, y, same))
    assert (y == 5).all()
    assert (w == 3.5).all()
    assert memory[0] == memory[-1] == 0


def test_calls_beside_each_other() -> None:
    function = AddressFunction(total(), backend_of("cpu", 1), ("x", "w", "y", "same"))
    wrong: list[int] = []

    def work(number: int) -> None:
        x, w, y, same = (np.zeros((3, 5), np.float32) for _ in range(4))
        for count in range(200):
            x[:] = number + count
            function(addresses(x, w, y, same))
            if not (same == 2 * x).all():
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_backend_without_addresses_says_so() -> None:
    with pytest.raises(BackendError, match="does not run on addresses; use backend cpu"):
        AddressFunction(total(), backend_of("interpreter"), ("x", "w", "y", "same"))
