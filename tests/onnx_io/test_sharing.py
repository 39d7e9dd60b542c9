"""Which nodes share a parameter: as many parameters as PyTorch has, and the losses of gradient descent on them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import glowtrain as gt
from glowtrain import load, save
from glowtrain.errors import InputError, SharedWeightsWarning
from glowtrain.onnx_io.read.exported import KIND, PROGRAM_NODE, SIGNATURE
from glowtrain.types import Array
from tests.onnx_io.onnx_models import frozen, loaded, model, node, trainable

RATE = 0.3
X = np.random.default_rng(7).standard_normal((9, 6))
Arrays = dict[str, Array]


def random(*shape: int, seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def sigmoid(x: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-x)))


def normalized(x: Array, scale: Array, bias: Array) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    return np.asarray(centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * scale + bias)


def descended(loss: Callable[[Arrays], float], parameters: Arrays, steps: int = 10) -> list[float]:
    """The losses of gradient descent in double precision, with central differences for the gradient."""
    now = {name: array.astype(np.float64) for name, array in parameters.items()}
    losses = []
    for _ in range(steps):
        losses.append(loss(now))
        gradients = {name: np.zeros_like(array) for name, array in now.items()}
        for name, array in now.items():
            for index in np.ndindex(array.shape):
                ends = []
                for move in (1e-5, -1e-5):
                    moved = array.copy()
                    moved[index] += move
                    ends.append(loss({**now, name: moved}))
                gradients[name][index] = (ends[0] - ends[1]) / 2e-5
        now = {name: array - RATE * gradients[name] for name, array in now.items()}
    return losses


@dataclass(frozen=True)
class Case:
    """A file, the parameters that PyTorch has, and the loss as a function of them."""

    proto: ModelProto
    parameters: Arrays
    loss: Callable[[Arrays], float]


def mean_square(name: str) -> list[object]:
    return [node("Mul", f"{name} {name}", "square"), node("ReduceMean", "square", "loss", keepdims=0)]


def siamese() -> Case:
    """A layer with a zero bias on two inputs."""
    nodes = [
        node("Gemm", "x l.weight l.bias", "a", "first", transB=1),
        node("Mul", "x x", "xx"),
        node("Gemm", "xx l.weight l.bias", "b", "second", transB=1),
        node("Sigmoid", "a", "sa"),
        node("Sigmoid", "b", "sb"),
        node("Add", "sb sb", "twice"),
        node("Sub", "sa twice", "difference"),
        *mean_square("difference"),
    ]
    parameters = {"l.weight": random(5, 6, seed=1), "l.bias": np.zeros(5, np.float32)}

    def loss(p: Arrays) -> float:
        a, b = (sigmoid(x @ p["l.weight"].T + p["l.bias"]) for x in (X, X * X))
        return float(((a - 2 * b) ** 2).mean())

    return Case(model(nodes, {"x": [9, 6]}, ["loss"], parameters), parameters, loss)


def critic() -> Case:
    """A network with one output, and so a bias of one element, on two inputs."""
    nodes = [
        node("Mul", "x x", "xx"),
        node("Gemm", "x w v", "h1", transB=1),
        node("Gemm", "xx w v", "h2", transB=1),
        node("Tanh", "h1", "t1"),
        node("Tanh", "h2", "t2"),
        node("Gemm", "t1 o c", "s1", transB=1),
        node("Gemm", "t2 o c", "s2", transB=1),
        node("Sigmoid", "s2", "fake"),
        node("Add", "s1 fake", "sum"),
        *mean_square("sum"),
    ]
    shapes = {"w": (4, 6), "v": (4,), "o": (1, 4), "c": (1,)}
    parameters = {name: random(*shape, seed=place) / 2 for place, (name, shape) in enumerate(shapes.items())}

    def loss(p: Arrays) -> float:
        s, t = (np.tanh(x @ p["w"].T + p["v"]) @ p["o"].T + p["c"] for x in (X, X * X))
        return float(((s + sigmoid(t)) ** 2).mean())

    return Case(model(nodes, {"x": [9, 6]}, ["loss"], parameters), parameters, loss)


def shared_norm() -> Case:
    """A LayerNormalization as it is initialised, three times."""
    nodes = [
        node("LayerNormalization", "x n.weight n.bias", "a"),
        node("Sigmoid", "a", "sa"),
        node("LayerNormalization", "sa n.weight n.bias", "b"),
        node("Sigmoid", "b", "sb"),
        node("LayerNormalization", "sb n.weight n.bias", "c"),
        *mean_square("c"),
    ]
    parameters = {"n.weight": np.ones(6, np.float32), "n.bias": np.zeros(6, np.float32)}

    def norm(x: Array, p: Arrays) -> Array:
        return normalized(x, p["n.weight"], p["n.bias"])

    def loss(p: Arrays) -> float:
        return float((norm(sigmoid(norm(sigmoid(norm(X, p)), p)), p) ** 2).mean())

    return Case(model(nodes, {"x": [9, 6]}, ["loss"], parameters), parameters, loss)


def two_norms(p: Arrays) -> float:
    """The loss of two LayerNormalizations, of which the first is called twice."""
    a = normalized(X, p["a.weight"], p["a.bias"])
    b = normalized(sigmoid(a), p["a.weight"], p["a.bias"])
    return float((normalized(sigmoid(b), p["b.weight"], p["b.bias"]) ** 2).mean())


NORMS = {f"{module}.{kind}": np.full(6, kind == "weight", np.float32) for module in "ab" for kind in ("weight", "bias")}


def with_norms(last: str, initializers: Mapping[str, Array], before: list[object]) -> ModelProto:
    nodes = [
        *before,
        node("LayerNormalization", "x a.weight a.bias", "first", "/a/LayerNormalization"),
        node("Sigmoid", "first", "s1"),
        node("LayerNormalization", "s1 a.weight a.bias", "second", "/a_1/LayerNormalization"),
        node("Sigmoid", "second", "s2"),
        node("LayerNormalization", f"s2 {last}", "third", "/b/LayerNormalization"),
        *mean_square("third"),
    ]
    return model(nodes, {"x": [9, 6]}, ["loss"], initializers, producer_name="pytorch")  # type: ignore[arg-type]


def traced() -> Case:
    """What the TorchScript exporter merged: an Identity has the name of what was left out."""
    stored = {name: NORMS[name] for name in ("a.weight", "a.bias")}
    before: list[object] = [node("Identity", f"a.{kind}", f"b.{kind}") for kind in ("weight", "bias")]
    return Case(with_norms("b.weight b.bias", stored, before), NORMS, two_norms)


def signed(proto: ModelProto, parameters: Mapping[str, str], calls: Mapping[str, str]) -> ModelProto:
    """A file of the dynamo exporter: what its parameters are, and the arguments of the program's nodes by output."""
    lines = "".join(f"p_{name.replace('.', '_')}: {kind} target='{name}'\n" for name, kind in parameters.items())
    proto.graph.metadata_props.add(key=SIGNATURE, value=f"\n# inputs\n{lines}x: USER_INPUT\n")
    for made in proto.graph.node:
        if made.output[0] in calls:
            arguments = ", ".join(f"%p_{name.replace('.', '_')}" for name in calls[made.output[0]].split())
            call = f"call_function[target=torch.ops.aten.f](args = (%h, [6], {arguments}), kwargs = {{}})"
            made.metadata_props.add(key=PROGRAM_NODE, value=f"%{made.output[0]} : [num_users=1] = {call}")
    for name in (tensor.name for tensor in proto.graph.initializer if tensor.name in parameters):
        value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [6])
        value.metadata_props.add(key=KIND, value=parameters[name])
        proto.graph.value_info.append(value)
    return proto


def dynamo() -> Case:
    """What the dynamo exporter merged: each node says which parameters the program's node read."""
    stored = {name: NORMS[name] for name in ("a.weight", "a.bias")}
    calls = {"first": "a.weight a.bias", "second": "a.weight a.bias", "third": "b.weight b.bias"}
    proto = signed(with_norms("a.weight a.bias", stored, []), dict.fromkeys(NORMS, "PARAMETER"), calls)
    return Case(proto, NORMS, two_norms)


CASES = (siamese, critic, shared_norm, traced, dynamo)


@pytest.mark.filterwarnings("ignore::glowtrain.errors.SharedWeightsWarning")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_trains_the_parameters_that_there_are(case: Callable[[], Case]) -> None:
    made = case()
    trainer = gt.Trainer(load(made.proto), "loss", gt.optim.SGD(lr=RATE), backend="interpreter")
    assert sorted(trainer.parameters()) == sorted(made.parameters)
    losses = [trainer.step({"x": X.astype(np.float32)}) for _ in range(10)]
    np.testing.assert_allclose(losses, descended(made.loss, made.parameters), rtol=2e-5)


class TestWarning:
    def warned(self, proto: ModelProto) -> dict[str, list[str]]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            load(proto)
        found: dict[str, list[str]] = {}
        for warning in caught:
            assert isinstance(warning.message, SharedWeightsWarning)
            assert warning.filename == __file__
            found |= {name: list(nodes) for name, nodes in warning.message.readers.items()}
        assert len(caught) <= 1
        return found

    def test_names_what_is_shared_and_its_readers(self) -> None:
        readers = ["node 'first' (Gemm)", "node 'second' (Gemm)"]
        assert self.warned(siamese().proto) == {"l.weight": readers, "l.bias": readers}
        with pytest.warns(SharedWeightsWarning, match=r"(?s)untie='l.weight'.*'l.bias': node 'first' \(Gemm\), "):
            load(siamese().proto)

    def test_not_where_the_exporter_says_what_there_was(self) -> None:
        assert self.warned(traced().proto) == {}
        assert self.warned(dynamo().proto) == {}

    def test_a_layer_of_another_module_may_have_been_merged(self) -> None:
        """Tools that merge equal initializers leave the names of the nodes."""
        stored = {name: NORMS[name] for name in ("a.weight", "a.bias")}
        found = self.warned(with_norms("a.weight a.bias", stored, []))
        assert list(found) == ["a.weight", "a.bias"]

    def test_not_for_constants_nor_for_what_glowtrain_wrote(self) -> None:
        scale = {"half": np.array(0.5, np.float32), "mask": np.float32([0, -np.inf])}
        nodes = [node("Mul", "x half", "a"), node("Mul", "a half", "b"), node("Add", "b mask", "c")]
        assert self.warned(model([*nodes, node("Add", "c mask", "y")], {"x": [2]}, ["y"], scale)) == {}
        with pytest.warns(SharedWeightsWarning):
            graph = loaded(siamese().proto)
        again = save(graph)
        assert self.warned(again) == {}
        assert trainable(loaded(again)) == ["l.weight", "l.bias"]

    def test_transposed_copies_of_the_tracer_say_nothing(self) -> None:
        """A module that is called twice has two, as have two modules with equal weights."""
        weights = {"onnx::MatMul_7": random(6, 6, seed=0)}
        nodes = [
            node("Identity", "onnx::MatMul_7", "onnx::MatMul_8"),
            node("MatMul", "x onnx::MatMul_7", "h", "/l/MatMul"),
            node("MatMul", "h onnx::MatMul_8", "y", "/l_1/MatMul"),
        ]
        proto = model(nodes, {"x": [3, 6]}, ["y"], weights, producer_name="pytorch")
        assert list(self.warned(proto)) == ["onnx::MatMul_7"]
        with pytest.warns(SharedWeightsWarning):
            assert trainable(loaded(proto)) == ["onnx::MatMul_7"]


class TestUntie:
    def test_each_node_gets_its_own(self) -> None:
        graph = load(siamese().proto, untie="l.*")
        assert isinstance(graph, gt.Graph)
        assert trainable(graph) == ["l.weight", "l.bias", "l.weight.1", "l.bias.1"]

    def test_only_what_matches(self) -> None:
        with pytest.warns(SharedWeightsWarning, match="untie='l.weight'"):
            graph = load(siamese().proto, untie=["l.bias"])
        assert isinstance(graph, gt.Graph)
        assert trainable(graph) == ["l.weight", "l.bias", "l.bias.1"]

    def test_a_pattern_that_matches_nothing(self) -> None:
        with pytest.raises(InputError, match=r"nothing matches 'bias' among what several nodes read: 'l.weight', "):
            load(siamese().proto, untie=["bias"])

    @pytest.mark.parametrize("untie", [5, [5], None, ["l.*", None]])
    def test_what_is_no_pattern(self, untie: Any) -> None:
        with pytest.raises(InputError, match="untie takes names, or patterns of names, not "):
            load(siamese().proto, untie=untie)


class TestRecords:
    """Cases that the records of the dynamo exporter decide, or do not."""

    def sums(self, arguments: list[str], kinds: Mapping[str, str], read: str = "a.w") -> ModelProto:
        """``x + a.w`` again and again, made from program nodes that read these parameters."""
        nodes = [node("Add", f"x{i} {read}", f"x{i + 1}", f"n{i}") for i in range(len(arguments))]
        proto = model(nodes, {"x0": [6]}, [f"x{len(nodes)}"], {read: np.ones(6, np.float32)})
        return signed(proto, kinds, {f"x{i + 1}": names for i, names in enumerate(arguments)})

    def test_a_buffer_is_no_parameter(self) -> None:
        proto = self.sums(["a.w", "b.table"], {"a.w": "PARAMETER", "b.table": "BUFFER"})
        assert trainable(loaded(proto)) == ["a.w"]

    def test_the_only_argument_whose_name_ends_alike(self) -> None:
        """Where not every argument is read, as after a bias of zeros was left out."""
        kinds = dict.fromkeys(("a.w", "b.w", "b.bias"), "PARAMETER")
        assert trainable(loaded(self.sums(["a.w", "b.w b.bias"], kinds))) == ["a.w", "b.w"]

    @pytest.mark.parametrize("arguments", ["", "b.bias c.bias", "b.w c.w"])
    def test_what_is_not_clear_stays_shared(self, arguments: str) -> None:
        kinds = dict.fromkeys(("a.w", "b.w", "c.w", "b.bias", "c.bias"), "PARAMETER")
        with pytest.warns(SharedWeightsWarning, match="'a.w': node 'n0'"):
            graph = loaded(self.sums(["a.w", arguments], kinds))
        assert trainable(graph) == ["a.w"]

    def test_a_tied_parameter_stays_one(self) -> None:
        graph = loaded(self.sums(["a.w", "a.w b.bias", "a.w"], dict.fromkeys(("a.w", "b.bias"), "PARAMETER")))
        assert trainable(graph) == ["a.w"]

    def test_a_name_that_is_taken(self) -> None:
        proto = self.sums(["a.w", "x1"], {"a.w": "PARAMETER", "x1": "PARAMETER"})
        assert trainable(loaded(proto)) == ["a.w", "x1.1"]

    def test_statistics_merged_with_parameters(self) -> None:
        """Batch normalizations as they are initialised: scales and variances of one, biases and means of zero."""
        buffers = ("running_mean", "running_var")
        parts = {kind: "BUFFER" if kind in buffers else "PARAMETER" for kind in ("weight", "bias", *buffers)}
        kinds = {f"{module}.{part}": kind for module in "ab" for part, kind in parts.items()}
        nodes = [
            node("BatchNormalization", "x a.weight a.bias a.bias a.weight", "h"),
            node("BatchNormalization", "h a.weight a.bias a.bias a.weight", "y"),
        ]
        stored = {"a.weight": np.ones(6, np.float32), "a.bias": np.zeros(6, np.float32)}
        calls = {out: " ".join(f"{module}.{part}" for part in parts) for out, module in (("h", "b"), ("y", "a"))}
        graph = loaded(signed(model(nodes, {"x": [4, 6]}, ["y"], stored), kinds, calls))
        assert sorted(trainable(graph)) == ["a.bias", "a.weight", "b.bias", "b.weight"]
        assert sorted(frozen(graph)) == sorted(name for name, kind in kinds.items() if kind == "BUFFER")
