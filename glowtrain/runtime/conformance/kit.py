"""What a device has to do right, as tests: a class to derive from, whose methods pytest collects.

Each test has a docstring that says what it asks for; a failing one says which call gave what. Results are compared with
the operators' NumPy references, with the tolerance of the type; a device has to give the same bits in every run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager

import numpy as np

from glowtrain import losses, nn, optim
from glowtrain.backends.base import Backend, Executable
from glowtrain.backends.device import Device, DeviceFacts, Resident, Tensor
from glowtrain.backends.interpreter import evaluate
from glowtrain.compiler.service import build
from glowtrain.errors import InputError
from glowtrain.graph import Graph, Value
from glowtrain.runtime.device.host_device import HostDevice
from glowtrain.runtime.host_manager import HostManager
from glowtrain.runtime.partition.partition import Part, Partition
from glowtrain.stages import Options
from glowtrain.trainer import Trainer
from glowtrain.types import Array, Spec, boolean, f32, f64, i8, i32, i64, u8

TOLERANCE = 1e-4
"""The largest relative and absolute difference between a result in f32 and its reference."""
ROUNDS = 50
"""How often something is placed and freed, to see whether memory is lost."""


class DeviceConformance(ABC):
    """Derive from it, say in :meth:`device` which device is tested, and let pytest collect the class."""

    @abstractmethod
    def device(self) -> Device:
        """A fresh device."""

    # --- what it says -------------------------------------------------------------------------------------------------

    def test_says_what_it_is(self) -> None:
        """It has a name, a backend, and facts; bytes and rates are positive."""
        with self._opened() as device:
            assert device.name, "it has no name"
            assert isinstance(device.backend, Backend), f"backend is {device.backend!r}"
            facts = device.facts
            assert isinstance(facts, DeviceFacts), f"facts are {facts!r}"
            numbers = [facts.operations, facts.bandwidth, *(n for n in (facts.memory, facts.link) if n is not None)]
            assert min(numbers) > 0, f"a fact is not positive: {facts}"

    # --- tensors ------------------------------------------------------------------------------------------------------

    def test_tensors_come_back_as_they_went(self) -> None:
        """What is downloaded is what was uploaded, for all types and ranks."""
        generator = np.random.default_rng(1)
        with self._opened() as device:
            for dtype in (f32, f64, i64, i32, i8, u8, boolean):
                for shape in ((), (1,), (7,), (3, 5), (2, 3, 4, 5)):
                    array = (generator.normal(size=shape) * 50).astype(dtype.numpy)
                    found = _round_trip(device, array)
                    assert _type(found) == _type(array), f"{_type(array)} came back as {_type(found)}"
                    assert found.tobytes() == array.tobytes(), f"other elements came back for {_type(array)}"

    def test_tensors_are_copies(self) -> None:
        """With memory of its own, a device does not see what happens to an array after its upload."""
        with self._opened() as device:
            if device.shares_memory:
                return
            array = np.arange(6, dtype=np.float32)
            tensor = device.upload(array)
            array[...] = -1
            found = device.download(tensor)
            device.release(tensor)
            assert np.array_equal(found, np.arange(6)), f"the tensor changed with the array: {found}"

    # --- variables ----------------------------------------------------------------------------------------------------

    def test_variables_hold_their_values(self) -> None:
        """Variables have their initial values until they are written, and are copies on both ways."""
        initial: dict[str, Array] = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "n": np.array(7, np.int64)}
        with self._opened() as device:
            variables = device.place(initial)
            assert set(variables.names) == set(initial), f"names are {variables.names}"
            assert variables.nbytes >= sum(array.nbytes for array in initial.values()), "nbytes is too little"
            variables.read("w")[...] = 9
            assert np.array_equal(variables.read("w"), initial["w"]), "read() gave the memory itself"
            variables.write("w", np.full((2, 3), 5, np.float32))
            assert np.array_equal(variables.read("w"), np.full((2, 3), 5)), "write() did not arrive"
            assert variables.read("n") == 7, "another variable changed"
            variables.free()

    def test_wrong_variables_are_refused(self) -> None:
        """Unknown names, other shapes and element types are an InputError, and nothing changes."""
        with self._opened() as device:
            variables = device.place({"w": np.zeros((2, 3), np.float32)})
            for name, array in (
                ("v", np.zeros((2, 3), np.float32)),
                ("w", np.ones(6, np.float32)),
                ("w", np.ones((2, 3))),
            ):
                try:
                    variables.write(name, array)
                except InputError:
                    continue
                raise AssertionError(f"write({name!r}, {_type(array)}) was taken")
            assert not variables.read("w").any(), "a refused write changed the variable"
            variables.free()

    # --- functions ----------------------------------------------------------------------------------------------------

    def test_functions_compute_what_the_references_do(self) -> None:
        """Products, convolutions, elementwise functions, reductions and integers."""
        with self._opened() as device:
            for graph in _graphs():
                if not all(device.supports(node.operator) for node in graph.nodes):
                    continue
                inputs = _inputs(graph)
                found = _run_once(device, graph, inputs)
                expected = evaluate(graph, inputs)
                for name, value in graph.outputs.items():
                    _close(f"{graph.name}.{name}", found[name], expected[value])

    def test_every_run_gives_the_same_bits(self) -> None:
        """A function gives the same bits for the same inputs, whatever ran in between."""
        graph = _perceptron()
        first, other = _inputs(graph), _inputs(graph, seed=2)
        with self._opened() as device, _loaded(device, graph) as resident:
            runs = [_called(device, resident, inputs) for inputs in (first, other, first)]
            assert runs[0]["y"].tobytes() == runs[2]["y"].tobytes(), "the same inputs gave other bits"

    def test_outputs_stay_as_they_are(self) -> None:
        """No later run writes to outputs that were given away, and no run writes to its inputs."""
        graph = _perceptron()
        inputs = _inputs(graph)
        with self._opened() as device, _loaded(device, graph) as resident:
            tensors = {name: device.upload(array) for name, array in inputs.items()}
            kept = resident.run(tensors)
            before = {name: device.download(tensor).copy() for name, tensor in kept.items()}
            _called(device, resident, _inputs(graph, seed=2))
            for name, tensor in kept.items():
                assert np.array_equal(device.download(tensor), before[name]), f"output {name} changed in a later run"
            for name, tensor in tensors.items():
                assert np.array_equal(device.download(tensor), inputs[name]), f"input {name} was written to"
            _release(device, (*kept.values(), *tensors.values()))

    def test_outputs_go_into_given_arrays(self) -> None:
        """A run into arrays, where the device can do it, gives what any other run does."""
        graph = _perceptron()
        inputs = _inputs(graph)
        with self._opened() as device, _loaded(device, graph) as resident:
            if not device.shares_memory:
                return
            given = {name: np.full(value.type.shape, -1, value.dtype.numpy) for name, value in graph.outputs.items()}
            if resident.run_into(inputs, given):
                for name, array in _called(device, resident, inputs).items():
                    assert given[name].tobytes() == array.tobytes(), f"output {name} is another one"

    def test_updates_are_seen_by_all_functions(self) -> None:
        """Training steps update variables that a second function over the same variables reads."""
        trainer = _trainer()
        step, model = trainer.graph, trainer.model()
        batch: dict[str, Array] = {
            "x": np.random.default_rng(3).normal(size=(8, 12)).astype(np.float32),
            "labels": np.arange(8) % 4,
        }
        with self._opened() as device:
            variables = device.place({v.name: v.initial for v in (*step.variables, *model.variables)})
            residents = [device.load(_compiled(device, graph), variables) for graph in (step, model)]
            before = _called(device, residents[1], {"x": batch["x"]})["scores"]
            losses_ = [
                float(_called(device, residents[0], {**batch, **trainer.hyper.inputs})["loss"]) for _ in range(20)
            ]
            after = _called(device, residents[1], {"x": batch["x"]})["scores"]
            expected = [trainer.step(batch) for _ in range(20)]
            for resident in residents:
                resident.free()
            variables.free()
        _close("the losses of 20 steps", np.array(losses_), np.array(expected))
        assert not np.array_equal(before, after), "the second function does not see the updates"

    def test_what_a_function_needs_is_said(self) -> None:
        """needs() is a whole number of bytes, the same each time."""
        graph = _perceptron()
        with self._opened() as device:
            executable = _compiled(device, graph)
            needed = [device.needs(graph, executable) for _ in range(2)]
            assert needed[0] >= 0, f"needs() is {needed[0]!r}"
            assert needed[0] == needed[1], f"needs() is {needed[0]}, then {needed[1]}"

    def test_memory_comes_back(self) -> None:
        """What is freed can be placed again, any number of times."""
        graph = _perceptron()
        with self._opened() as device:
            for _ in range(ROUNDS):
                with _loaded(device, graph) as resident:
                    _called(device, resident, _inputs(graph))

    # --- in the runtime -----------------------------------------------------------------------------------------------

    def test_serves_requests(self) -> None:
        """The host manager puts a network on it, cuts and joins requests, and takes it off again."""
        graph = _perceptron()
        model, rows = graph.template, np.random.default_rng(5).normal(size=(40, 12)).astype(np.float32)
        assert model is not None
        expected = evaluate(model.bind({"batch": 40}), {"x": rows})
        with HostManager([self.device()]) as host:
            host.add_network("net", model, max_batch=8)
            whole = host.run_sync("net", {"x": rows})["y"]
            futures = [host.run("net", {"x": rows[row : row + 1 + row % 3]}) for row in range(37)]
            parts = [future.result()["y"] for future in futures]
        wanted = next(array for value, array in expected.items() if value.type.shape == (40, 4))
        _close("a request of 40 rows", whole, wanted)
        for row, part in enumerate(parts):
            _close(f"a request at row {row}", part, wanted[row : row + 1 + row % 3])

    def test_works_beside_another_device(self) -> None:
        """Parts of a network on this device and on a processor pass their values on."""
        first, second, whole = _two_parts()
        values = {"x": first.graph.input_types["x"]}
        partition = Partition("two", (first, second), values, {"y": "y"})
        inputs = _inputs(first.graph)
        device, beside = self.device(), HostDevice("beside", threads=1)
        with HostManager([device, beside]) as host:
            host.add_network("two", whole, partition=partition)
            found = [host.run("two", inputs) for _ in range(10)]
            results = [future.result()["y"] for future in found]
        expected = evaluate(whole, inputs)[whole.outputs["y"]]
        for result in results:
            _close("a network in two parts", result, expected)
            assert result.tobytes() == results[0].tobytes(), "a run gave other bits than the first"

    @contextmanager
    def _opened(self) -> Iterator[Device]:
        device = self.device()
        device.begin()
        try:
            yield device
        finally:
            device.close()


# --- models -----------------------------------------------------------------------------------------------------------


def _perceptron() -> Graph:
    @nn.model(x=f32["batch", 12])
    def net(x: Value) -> dict[str, Value]:
        return {"y": nn.linear(nn.tanh(nn.linear(x, 16, name="hidden")), 4, name="head")}

    return net.bind({"batch": 6})


def _graphs() -> Iterator[Graph]:
    yield _perceptron()

    @nn.model(x=f32["batch", 2, 9, 9])
    def convolutions(x: Value) -> dict[str, Value]:
        h = nn.max_pool(nn.relu(nn.conv(x, 5, 3, name="c")), 2)
        return {"h": h, "y": nn.softmax(nn.linear(nn.flatten(h), 3, name="o"))}

    yield convolutions.bind({"batch": 3})

    @nn.model(x=Spec(i64, ("batch", 7)))
    def tokens(x: Value) -> dict[str, Value]:
        return {"y": nn.layer_norm(nn.embedding(x, 11, 8, name="e"), name="n"), "twice": x + x}

    yield tokens.bind({"batch": 2})


def _trainer() -> Trainer:
    @nn.model(x=f32["batch", 12])
    def net(x: Value) -> dict[str, Value]:
        return {"scores": nn.linear(nn.relu(nn.linear(x, 16, name="hidden")), 4, name="head")}

    loss = losses.softmax_cross_entropy("labels", "scores")
    return Trainer(net.bind({"batch": 8}), loss, optim.Adam(lr=0.01), threads=1)


def _two_parts() -> tuple[Part, Part, Graph]:
    @nn.model(x=f32["batch", 12])
    def below(x: Value) -> dict[str, Value]:
        return {"h": nn.relu(nn.linear(x, 16, name="hidden"))}

    @nn.model(h=f32["batch", 16])
    def above(h: Value) -> dict[str, Value]:
        return {"y": nn.linear(h, 4, name="head")}

    @nn.model(x=f32["batch", 12])
    def both(x: Value) -> dict[str, Value]:
        return {"y": nn.linear(nn.relu(nn.linear(x, 16, name="hidden")), 4, name="head")}

    graphs = [model.bind({"batch": 6}) for model in (below, above, both)]
    return Part("below", graphs[0], 0), Part("above", graphs[1], 1), graphs[2]


def _inputs(graph: Graph, seed: int = 1) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    found = {}
    for value in graph.inputs:
        whole = value.dtype.numpy.kind in "iu"
        numbers = generator.integers(0, 7, value.shape) if whole else generator.normal(size=value.shape)
        found[value.name] = np.asarray(numbers, value.dtype.numpy)
    return found


# --- calls ------------------------------------------------------------------------------------------------------------


def _compiled(device: Device, graph: Graph) -> Executable:
    return build(graph, device.backend, Options(facts=device.backend.facts))


@contextmanager
def _loaded(device: Device, graph: Graph) -> Iterator[Resident]:
    """A graph on a device, freed behind."""
    variables = device.place({variable.name: variable.initial for variable in graph.variables})
    resident = device.load(_compiled(device, graph), variables)
    try:
        yield resident
    finally:
        resident.free()
        variables.free()


def _called(device: Device, resident: Resident, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """A run from arrays to arrays; all tensors are released."""
    tensors = {name: device.upload(array) for name, array in inputs.items()}
    outputs = resident.run(tensors)
    found = {name: np.array(device.download(tensor)) for name, tensor in outputs.items()}
    _release(device, (*tensors.values(), *outputs.values()))
    return found


def _run_once(device: Device, graph: Graph, inputs: Mapping[str, Array]) -> dict[str, Array]:
    with _loaded(device, graph) as resident:
        return _called(device, resident, inputs)


def _round_trip(device: Device, array: Array) -> Array:
    tensor = device.upload(array)
    found = np.array(device.download(tensor))
    device.release(tensor)
    return found


def _release(device: Device, tensors: Iterable[Tensor]) -> None:
    for tensor in tensors:
        device.release(tensor)


def _close(what: str, found: Array, expected: Array) -> None:
    assert _type(found) == _type(expected), f"{what} is {_type(found)}, not {_type(expected)}"
    if not np.allclose(found, expected, TOLERANCE, TOLERANCE):
        worst = np.max(np.abs(found.astype(np.float64) - expected.astype(np.float64)))
        raise AssertionError(f"{what} differs from the reference by up to {worst:g}")


def _type(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"
