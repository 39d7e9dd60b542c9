"""Models whose inputs and outputs are odd, on every device: answers are those of the model, and belong to who asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.device import Device
from glowtrain.errors import InputError
from glowtrain.graph import Constant, Graph, Input, Variable
from glowtrain.runtime import HostDevice, HostManager
from glowtrain.runtime.conformance import PoisonedDevice
from glowtrain.types import Array, TensorType
from tests.backends import plain_backends
from tests.runtime.devices import rows

TYPE = TensorType(gt.f32, (4, 3))
NUMBERS = np.arange(12, dtype=np.float32).reshape(4, 3)


def an_input_as_output() -> Graph:
    x = Input(TYPE, "x")
    return Graph((x,), {"same": x, "double": x * 2.0}, name="net")


def a_view_as_output() -> Graph:
    x = Input(TYPE, "x")
    return Graph((x,), {"flat": gt.nn.reshape(x, (4, 3, 1))}, name="net")


def a_constant_as_output() -> Graph:
    x = Input(TYPE, "x")
    return Graph((x,), {"fixed": Constant(NUMBERS.copy()), "double": x * 2.0}, name="net")


def a_variable_as_output() -> Graph:
    x = Input(TYPE, "x")
    return Graph((x,), {"kept": Variable("kept", NUMBERS.copy()), "double": x * 2.0}, name="net")


def one_value_twice() -> Graph:
    x = Input(TYPE, "x")
    double = x * 2.0
    return Graph((x,), {"one": double, "two": double}, name="net")


def outputs_with_the_names_of_inputs() -> Graph:
    x, y = Input(TYPE, "x"), Input(TYPE, "y")
    return Graph((x, y), {"x": x + y, "y": y, "y_1": x * 2.0}, name="net")


def no_inputs() -> Graph:
    return Graph((), {"fixed": Constant(NUMBERS.copy()), "more": Constant(NUMBERS.copy()) + 1.0}, name="net")


def no_outputs() -> Graph:
    return Graph((Input(TYPE, "x"),), {}, name="net")


def a_scalar() -> Graph:
    x = Input(TensorType(gt.f32, ()), "x")
    return Graph((x,), {"double": x * 2.0}, name="net")


def no_columns() -> Graph:
    x = Input(TensorType(gt.f32, (4, 0)), "x")
    return Graph((x,), {"double": x * 2.0}, name="net")


MODELS = [
    an_input_as_output,
    a_view_as_output,
    a_constant_as_output,
    a_variable_as_output,
    one_value_twice,
    outputs_with_the_names_of_inputs,
    no_inputs,
    no_outputs,
    a_scalar,
    no_columns,
]


def inputs_of(graph: Graph) -> dict[str, Array]:
    return {value.name: rows(1, 4).ravel()[: value.type.size].reshape(value.shape) for value in graph.inputs}


def devices() -> dict[str, Callable[[], Device]]:
    found = {name: partial(HostDevice, "d", name) for name in plain_backends()}
    return {**found, "memory of its own": lambda: PoisonedDevice("d")}


@pytest.mark.spread(3)
@pytest.mark.parametrize("device", devices())
@pytest.mark.parametrize("model", MODELS)
def test_answers_are_right_whatever_is_done_to_those_before(model: Callable[[], Graph], device: str) -> None:
    """They are written to, and each is as the first: also the inputs."""
    graph = model()
    expected, mine = gt.compile(model())(inputs_of(graph)), inputs_of(graph)
    with HostManager([devices()[device]()]) as host:
        host.add_network("net", graph)
        for _ in range(2):
            for answer in (host.run_sync("net", mine), host.run("net", mine).result(60)):
                _check(answer, expected)
                for array in answer.values():
                    array[...] = -77.0
                _check(mine, inputs_of(graph))


def _check(found: Mapping[str, Array], expected: Mapping[str, Array]) -> None:
    assert found.keys() == expected.keys()
    for name, array in found.items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("backend", plain_backends())
def test_a_call_does_not_give_its_constants_away(backend: str) -> None:
    """Without a runtime: neither a later call nor the graph is changed."""
    graph = a_constant_as_output()
    function = gt.compile(graph, backend=backend)
    for _ in range(2):
        fixed = function(inputs_of(graph))["fixed"]
        np.testing.assert_array_equal(fixed, NUMBERS)
        fixed[...] = -77.0
    (kept,) = (constant.array for constant in graph.constants if constant.shape == NUMBERS.shape)
    np.testing.assert_array_equal(kept, NUMBERS)


def test_a_batch_of_no_rows_takes_no_requests_of_some() -> None:
    """They would wait for ever for a batch that has room."""
    x = Input(TensorType(gt.f32, (0, 3)), "x")
    with HostManager() as host:
        host.add_network("net", Graph((x,), {"double": x * 2.0}, name="net"))
        with pytest.raises(InputError, match="must be"):
            host.run("net", {"x": np.ones((1, 3), np.float32)})
        assert host.run("net", {"x": np.ones((0, 3), np.float32)}).result(60)["double"].shape == (0, 3)
