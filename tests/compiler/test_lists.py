"""Lists of Python's numbers as inputs: those that the element type has, and nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Input
from glowtrain.runtime import HostDevice, HostManager
from glowtrain.types import Array, DType, TensorType
from tests.backends import plain_backends

MEANT: list[tuple[DType, list[Any]]] = [
    (gt.f32, [1.5, 2]),
    (gt.f32, [10**30, -(10**20)]),
    (gt.f32, [float("nan"), float("inf")]),
    (gt.f32, [True, np.float64(0.5)]),
    (gt.f64, [1e300, 2**70]),
    (gt.i64, [2**63 - 1, True]),
    (gt.u64, [2**64 - 1, 0]),
    (gt.u8, [np.int64(255), 0]),
    (gt.boolean, [True, 0]),
]
NOT_MEANT: list[tuple[DType, list[Any], str]] = [
    (gt.f32, [1e300, 1], "out of the range of f32"),
    (gt.f16, [70000, 1], "out of the range of f16"),
    (gt.f32, [10**400, 1], "out of the range of f32"),
    (gt.f32, [10**39, 1], "out of the range of f32"),
    (gt.u8, [300, 1], "out of the range of u8"),
    (gt.u8, [-1, 1], "out of the range of u8"),
    (gt.u8, [np.int64(300), 1], "out of the range of u8"),
    (gt.i64, [2**63, 1], "out of the range of i64"),
    (gt.boolean, [2, 1], "out of the range of bool"),
    (gt.i64, [1.5, 2], "a list of float64, which are not all numbers of i64"),
    (gt.boolean, [0.5, 1], "not all numbers of bool"),
    (gt.f32, [None, 1], "not all numbers of f32"),
    (gt.f32, ["1", "2"], "not all numbers of f32"),
    (gt.f32, [1j, 1], "not all numbers of f32"),
    (gt.f32, [{}, 1], "not all numbers of f32"),
    (gt.f32, [1, [2, 3]], "a list that is no tensor"),
]


def net(dtype: DType) -> Graph:
    x = Input(TensorType(dtype, (1, 2)), "x")
    return Graph((x,), {"y": x}, name="net")


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "numbers"), MEANT)
@pytest.mark.parametrize("backend", plain_backends())
def test_numbers_that_the_type_has(dtype: DType, numbers: list[Any], backend: str) -> None:
    expected: Array = np.array([numbers], dtype.numpy)
    np.testing.assert_array_equal(gt.compile(net(dtype), backend=backend)({"x": [numbers]})["y"], expected, strict=True)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "numbers", "told"), NOT_MEANT)
def test_all_others_are_refused(dtype: DType, numbers: list[Any], told: str) -> None:
    """Silently none becomes another number: neither in a call nor in a request."""
    graph = net(dtype)
    with HostManager([HostDevice("cpu", threads=1)]) as host:
        host.add_network("net", graph)
        for ask in (gt.compile(graph), lambda inputs: host.run_sync("net", inputs), lambda x: host.run("net", x)):
            with pytest.raises(InputError, match=f"'x' .*{told}"):
                ask({"x": [numbers]})
