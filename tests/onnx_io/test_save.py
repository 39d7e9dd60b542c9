"""Saving ONNX: other runtimes accept what is written and compute the same."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import glowtrain as gt
import glowtrain.ops
from glowtrain import load, save
from glowtrain.errors import ModelError, ShapeError
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, Node, Operator, Template, Variable, constant, registered
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.activation import Gelu, Mish, Swish
from glowtrain.ops.elementwise.logic import BitwiseAnd, Cast
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.random.philox import Dropout
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.tensor.pad import Pad
from glowtrain.ops.tensor.split import Split
from glowtrain.types import TensorType, bf16, f16, f32, i64
from tests.onnx_io.onnx_models import (
    checked,
    close,
    convnet,
    in_onnx_runtime,
    interpreted,
    loaded,
    mlp,
    model,
    node,
    random_inputs,
    runs_the_same,
    runtime_errors,
    trainable,
    variables,
)

# What ONNX Runtime's CPU provider, or the onnx package's shape inference, cannot do though ONNX allows it.
REFUSED = (
    "NOT_IMPLEMENTED",
    "No corresponding Numpy type",
    "Dilation not supported for AutoPadType",
    "Batchwise recurrent operations",
    "fmod attribute must be true",
    "exceeds maximum allowed",
    "output_padding",
    "Ellipsis for input",
    "has unsupported type",
    "X_shape.NumDimensions() == 4",  # LRN is for images only
    "Non per-tensor quantization is not supported",
    "zero point must be a scalar or 1D tensor",
    "Unsupported model IR version",
    "Tensor shape.Size() must be >= 0",  # STFT with neither window nor length
)


class TestModels:
    @pytest.mark.parametrize("opset", [17, 18, 19, 20, 21])
    def test_a_model_at_every_opset(self, opset: int) -> None:
        proto = runs_the_same(loaded(mlp()), opset=opset)
        assert proto.opset_import[0].version == opset
        assert proto.ir_version <= 10

    def test_weights_keep_their_names_and_values(self) -> None:
        source = mlp()
        before = {t.name: t.raw_data for t in source.graph.initializer}
        after = {t.name: t.raw_data for t in save(loaded(source)).graph.initializer}
        assert before == after

    def test_state_takes_the_place_of_initial_values(self) -> None:
        graph = loaded(mlp())
        state = {"fc1.bias": np.full(5, 3, np.float32)}
        reloaded = loaded(save(graph, state=state))
        np.testing.assert_array_equal(variables(reloaded)["fc1.bias"].initial, state["fc1.bias"])
        with pytest.raises(ModelError, match=r"variable 'fc1.bias' is f32\[5\], but its value is float64\[2\]"):
            save(graph, state={"fc1.bias": np.zeros(2)})

    def test_values_of_unknown_variables_are_refused(self) -> None:
        graph = loaded(mlp())
        near, far = {"fc1.bais": np.zeros(5, np.float32)}, {"head": np.zeros(5, np.float32)}
        with pytest.raises(ModelError, match=r"has no variable 'fc1.bais' \(the nearest is 'fc1.bias'\)$"):
            save(graph, state=near)
        with pytest.raises(ModelError, match=r"no variable 'fc1.bais' .*, 'head'; it has 'fc1.weight', 'fc1.bias'"):
            save(graph, state={**near, **far})

    def test_state_may_be_a_trainer_s_whole(self) -> None:
        """With the optimizer's slots, and counters of random operators and of added up gradients."""

        @gt.model(x=gt.f32["n", 4])
        def drops(x: Any) -> Any:
            return gt.nn.linear(gt.nn.dropout(gt.nn.relu(gt.nn.linear(x, 5, name="a")), 0.5), 3, name="b")

        for rule in (gt.optim.Adam(accumulate=2), gt.optim.SGD(momentum=0.9)):
            trainer = gt.Trainer(drops, gt.losses.softmax_cross_entropy(), rule, backend="interpreter")
            trainer.step({"x": np.ones((2, 4), np.float32), "labels": np.zeros(2, np.int64)})
            state = {name: array + 1 for name, array in trainer.variables().items()}
            assert len(state) > 8
            reloaded = loaded(save(drops.bind({"n": 2}), state=state), n=2)
            np.testing.assert_array_equal(variables(reloaded)["a.weight"].initial, state["a.weight"])

    def test_names_of_nodes_inputs_and_outputs_are_kept(self) -> None:
        proto = save(loaded(mlp()))
        assert [n.name for n in proto.graph.node] == ["fc1", "act", "fc2", "bias"]
        assert [value.name for value in proto.graph.input] == ["x"]
        assert [value.name for value in proto.graph.output] == ["y"]
        assert [n.output[0] for n in proto.graph.node] == ["h", "a", "m", "y"]

    def test_constants_do_not_become_parameters(self) -> None:
        x = Input(f32[2, 3], "x")
        graph = Graph((x,), {"y": x * np.float32([1, 2, 3]) + Variable("w", np.ones(3, np.float32))})
        assert trainable(loaded(runs_the_same(graph))) == ["w"]

    def test_outputs_that_share_a_value_or_are_leaves(self) -> None:
        x = Input(f32[2], "x")
        h = Tanh()(x)
        h.name = "a"
        runs_the_same(Graph((x,), {"a": h, "b": h, "x": x, "c": constant(np.float32([1, 2])), "z": x}))

    def test_equal_names_are_told_apart(self) -> None:
        x = Input(f32[2], "x")
        first, second = Tanh()(x), Tanh()(Tanh()(x))
        first.name = second.name = "x"
        runs_the_same(Graph((x,), {"y": first + second}))

    def test_names_that_clash_are_refused(self) -> None:
        x, w = Input(f32[2], "x"), Variable("y", np.ones(2, np.float32))
        with pytest.raises(ModelError, match="the output is called 'y', and so is another value"):
            save(Graph((x,), {"y": x + w}))

    def test_half_precision(self) -> None:
        x = Input(f16[2, 3], "x")
        runs_the_same(Graph((x,), {"y": x * Variable("w", np.float16([1, 2, 3])) + 0.5}), 1e-2)
        b = Input(bf16[2], "x")
        proto = checked(save(Graph((b,), {"y": b + Variable("w", np.ones(2).astype(bf16.numpy))})))
        assert str(loaded(proto).outputs["y"].type) == "bf16[2]"

    def test_scan_with_captured_values(self) -> None:
        h, x, w = (Input(f32[2, 2], name) for name in "hxw")
        following = Tanh()(h @ w + x)
        body = Graph((h, x, w), {"next": following, "out": following * np.float32([1, 2])}, name="body")
        start, xs, weight = (
            Input(f32[2, 2], "h0"),
            Input(f32[5, 2, 2], "xs"),
            Variable("weight", np.eye(2, dtype=np.float32)),
        )
        scan = Scan(body=body, num_scan_inputs=1, scan_output_directions=(1,), num_captured=1)
        end, ys = scan(start, xs, weight)
        assert trainable(loaded(runs_the_same(Graph((start, xs), {"end": end, "ys": ys})))) == ["weight"]


class TestOperators:
    @pytest.mark.parametrize("cls", list(registered()), ids=lambda cls: cls.key())
    def test_every_operator(self, cls: type[Operator]) -> None:
        """Every operator, saved at the first opset that has all of it, gives the same in ONNX Runtime."""
        for seed in range(2):
            graph = self.sampled(cls, seed)
            if graph is None:
                continue
            try:
                runs_the_same(graph, 2e-4)
            except (onnx.shape_inference.InferenceError, RuntimeError, *runtime_errors()) as error:
                if not any(reason in str(error) for reason in REFUSED):
                    raise

    def sampled(self, cls: type[Operator], seed: int) -> Graph | None:
        """One use of the operator, in f32 where it is used on floats."""
        sample = cls.sample(ChoiceDraw(seed))
        if sample.operator.random or (isinstance(sample.operator, Dropout) and sample.operator.training_mode):
            return None  # every runtime draws its own
        if sample.operator.key() == "BitShift":
            sample = type(sample)(
                sample.operator, tuple(np.abs(a).astype(np.uint64) for a in sample.inputs if a is not None)
            )
        if sample.operator.key() == "MaxUnpool":  # which shape positions count in is disputed: onnx issue 2398
            sample = type(sample)(sample.operator.replace(output_shape=None), sample.inputs)
        arrays = [a if a is None or a.dtype != np.float64 else a.astype(np.float32) for a in sample.inputs]
        inputs = [None if array is None else Variable(f"x{i}", array) for i, array in enumerate(arrays)]
        try:
            made = Node(sample.operator, inputs, "one")
        except ShapeError:  # a body of f64
            inputs = [None if a is None else Variable(f"x{i}", a) for i, a in enumerate(sample.inputs)]
            made = Node(sample.operator, inputs, "one")
        return Graph((), {f"y{value.index}": value for value in made.outputs}, name="operator")

    @pytest.mark.parametrize("operator", [Gelu(), Gelu("tanh"), Swish(1.5), Mish()], ids=str)
    def test_young_operators_become_functions(self, operator: Operator) -> None:
        x = Input(f32[3, 4], "x")
        proto = runs_the_same(Graph((x,), {"y": operator(x), "z": operator(Tanh()(x))}), opset=17)
        assert [function.domain for function in proto.functions] == ["glowtrain"]

    def test_newer_attributes_and_inputs_in_older_words(self) -> None:
        x = Input(f32[5, 6], "x")
        a, b = Split(num_outputs=2)(x)
        padded = Pad(pads=(1, 2), axes=(1,))(x)
        graph = Graph((x,), {"a": a, "b": b, "p": padded, "m": ReduceMean(axes=(0,), keepdims=False)(x)})
        proto = runs_the_same(graph, opset=17)
        assert not proto.functions

    def test_the_first_opset_that_has_everything_is_taken(self) -> None:
        x = Input(i64[3], "x")
        graph = Graph((x,), {"y": BitwiseAnd()(x, constant(6, i64))})
        assert save(graph).opset_import[0].version == 18
        with pytest.raises(ModelError, match=r"opset 17 lacks these operators.*\n  - BitwiseAnd\(i64\[3\], i64\[\]\)"):
            save(graph, opset=17)

    def test_opsets_outside_the_range_are_refused(self) -> None:
        with pytest.raises(ModelError, match="cannot save at opset 12: choose one from 13 to"):
            save(loaded(mlp()), opset=12)

    def test_the_ir_version_can_be_chosen(self) -> None:
        assert save(loaded(mlp()), ir_version=9).ir_version == 9


class TestDimensions:
    def test_the_batch_is_symbolic_again(self) -> None:
        graph = loaded(convnet(), batch=4)
        proto = checked(save(graph))
        assert [d.dim_param for d in proto.graph.input[0].type.tensor_type.shape.dim] == ["batch", "", "", ""]
        assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
        other = loaded(convnet(), batch=7)
        inputs = random_inputs(other)
        close(in_onnx_runtime(proto, inputs), interpreted(other, inputs))
        again = load(proto)
        assert isinstance(again, Template)
        assert again.symbols == ("batch",)

    def test_zeros_and_shapes_of_the_batch_are_computed(self) -> None:
        nodes = [
            node("Shape", "x", "s", end=1),
            node("Concat", "two s three", "t", axis=0),
            node("ConstantOfShape", "t", "z"),
            node("Add", "z x", "a"),
            node("Expand", "a u", "y"),
            node("Concat", "s three", "u", axis=0),
        ]
        proto = model(nodes, {"x": ["n", 3]}, ["y"], {"two": np.array([2]), "three": np.array([3])})
        saved = checked(save(loaded(proto, n=2)))
        x = np.ones((5, 3), np.float32)
        assert in_onnx_runtime(saved, {"x": x})["y"].shape == (2, 5, 3)

    def test_a_batch_that_the_model_divides_by_is_computed(self) -> None:
        nodes = [node("Shape", "x", "s", end=1), node("Cast", "s", "n", to=1), node("Div", "x n", "y")]
        saved = checked(save(loaded(model(nodes, {"x": ["n", 3]}, ["y"]), n=4)))
        x = np.ones((5, 3), np.float32)
        np.testing.assert_allclose(in_onnx_runtime(saved, {"x": x})["y"], x / 5)

    def test_a_batch_that_the_model_depends_on_otherwise_stays_fixed(self) -> None:
        nodes = [node("Shape", "x", "s", end=1), node("Cast", "s", "n", to=1), node("Sqrt", "n", "r")]
        proto = save(loaded(model([*nodes, node("Div", "x r", "y")], {"x": ["n", 3]}, ["y"]), n=4))
        assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4

    @pytest.mark.parametrize(
        ("change", "result"),
        [
            (lambda x: x[-1:], lambda x: x[-1:]),
            (lambda x: gt.nn.reshape(x, (x.shape[0] * x.shape[1], -1)) * 2.0, lambda x: x.reshape(-1, 4) * 2),
            (lambda x: x * np.full((*x.shape[:2], 1), 3, np.float32), lambda x: x * 3),
            (lambda x: x / float(x.shape[0] * x.shape[1]), lambda x: x / (x.shape[0] * x.shape[1])),
            (lambda x: x * np.float32(0.5 * x.shape[1] ** 2), lambda x: x * (0.5 * x.shape[1] ** 2)),
            (lambda x: x + Cast(to=f32)(constant([x.shape[0] - 1])), lambda x: x + x.shape[0] - 1),
        ],
        ids=["an end", "a product", "a shape", "a divisor", "a square", "a number less one"],
    )
    def test_numbers_that_follow_dimensions_are_computed(self, change: Any, result: Any) -> None:
        @gt.model(x=f32["n", "t", 4])
        def changed(x: gt.Value) -> gt.Value:
            return change(x)

        saved = checked(save(changed))
        for n, t in ((1, 1), (2, 3), (6, 2)):
            x = np.random.default_rng(n).normal(size=(n, t, 4)).astype(np.float32)
            np.testing.assert_allclose(in_onnx_runtime(saved, {"x": x})["output"], result(x), rtol=1e-6)

    def test_numbers_that_agree_by_chance_are_not_taken_for_computed(self) -> None:
        """At 2 and 5, the two bindings that are looked at first, this is three times n, less 3: at others it is not."""

        @gt.model(x=f32["n", 3])
        def odd(x: gt.Value) -> gt.Value:
            return x * np.ones(({2: 3, 5: 12}.get(x.shape[0], 7), 1, 1), np.float32)

        assert save(odd).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 2

    def test_a_graph_changed_since_stays_fixed(self) -> None:
        graph = loaded(convnet(), batch=4)
        changed = graph.with_(outputs={"y": graph.outputs["y"] * np.float32(2)})
        assert save(changed).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4

    def test_a_function_that_holds_the_batch_stays_fixed_and_one_that_does_not_varies(self) -> None:
        proto = model([node("Gelu", "x", "y")], {"x": ["n", 3]}, ["y"], opset=20)
        saved = checked(save(loaded(proto, n=4), opset=17))
        assert saved.functions[0].name == "Gelu"
        assert in_onnx_runtime(saved, {"x": np.ones((6, 3), np.float32)})["y"].shape == (6, 3)

    def test_what_a_function_would_hold_of_the_batch_is_written_in_its_place(self) -> None:
        @gt.model(x=f32["n", 3])
        def added(x: gt.Value) -> gt.Value:
            return OnesAdded()(x)

        saved = checked(save(added))
        assert not saved.functions
        assert save(added.bind({"n": 2}).with_(template=None)).functions[0].name == "OnesAdded"
        x = np.zeros((5, 3), np.float32)
        np.testing.assert_array_equal(in_onnx_runtime(saved, {"x": x})["output"], x + 1)

    @pytest.mark.parametrize("captured", [False, True])
    def test_the_steps_of_a_scan_vary(self, captured: bool) -> None:
        @gt.model(x=f32["time", 3])
        def recurrence(x: gt.Value) -> gt.Value:
            scan, start = Scan(body=body(0.5, captured), num_scan_inputs=1, num_captured=int(captured)), zeros()
            return scan(start, x, *([Variable("w", np.float32([1, 2, 3]))] if captured else []))[1]

        again = load(save(recurrence.bind({"time": 4})))
        assert isinstance(again, Template)
        x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
        found, expected = (gt.compile(model, "interpreter")({"x": x})["output"] for model in (again, recurrence))
        np.testing.assert_allclose(found, expected, rtol=1e-6)

    def test_steps_that_the_body_of_a_scan_divides_by_are_computed(self) -> None:
        @gt.model(x=f32["time", 3])
        def mean(x: gt.Value) -> gt.Value:
            return Scan(body=body(1 / x.shape[0], captured=False), num_scan_inputs=1)(zeros(), x)[0]

        saved = checked(save(mean.bind({"time": 4})))
        x = np.random.default_rng(0).normal(size=(7, 3)).astype(np.float32)
        np.testing.assert_allclose(in_onnx_runtime(saved, {"x": x})["output"], x.mean(0), rtol=1e-5)

    def test_steps_that_the_body_of_a_scan_depends_on_otherwise_stay_fixed(self) -> None:
        @gt.model(x=f32["time", 3])
        def mean(x: gt.Value) -> gt.Value:
            return Scan(body=body(np.sqrt(x.shape[0]), captured=False), num_scan_inputs=1)(zeros(), x)[0]

        assert isinstance(load(save(mean.bind({"time": 4}))), Graph)

    def test_the_batch_of_what_a_scan_carries_varies(self) -> None:
        @gt.model(x=f32["time", "n", 3])
        def recurrence(x: gt.Value) -> gt.Value:
            h, step = (Input(f32[x.shape[1], 3], name) for name in ("h", "step"))
            inner = Graph((h, step), {"next": h + step * 0.5, "out": gt.nn.reshape(h, (-1,))}, name="body")
            start = constant(np.zeros((x.shape[1], 3), np.float32))
            return Scan(body=inner, num_scan_inputs=1)(start, x)[1]

        saved = checked(save(recurrence))
        for shape in ((1, 1, 3), (4, 2, 3), (3, 7, 3)):
            x = np.random.default_rng(shape).normal(size=shape).astype(np.float32)
            expected = gt.compile(recurrence, "interpreter")({"x": x})["output"]
            np.testing.assert_allclose(in_onnx_runtime(saved, {"x": x})["output"], expected, rtol=1e-6)

    def test_a_batch_that_decides_about_a_rank_stays_fixed(self) -> None:
        @gt.model(x=f32["n", 3])
        def ranked(x: gt.Value) -> gt.Value:
            return gt.nn.reshape(x, (-1, 3) if x.shape[0] == 4 else (-1, 3, 1))

        assert isinstance(load(save(ranked.bind({"n": 4}))), Graph)


@dataclass(frozen=True)
class OnesAdded(Operator):
    """x + 1, by a constant of x's shape."""

    domain, onnx = "tests.save", "OnesAdded"

    def infer(self, *inputs: Any) -> TensorType:
        return inputs[0]

    def reference(self, x: np.ndarray) -> np.ndarray:
        return x + 1

    def decompose(self, x: gt.Value) -> gt.Value:
        return x + constant(np.ones(x.shape, np.float32))


def body(factor: float, captured: bool) -> Graph:
    """A step h' = h + factor x w, with w = 1 where nothing is captured."""
    h, x, w = (Input(f32[3], name) for name in "hxw")
    following = h + (x * w if captured else x) * np.float32(factor)
    return Graph((h, x, w) if captured else (h, x), {"next": following, "out": following * 1.0}, name="body")


def zeros() -> gt.Value:
    return constant(np.zeros(3), f32)


class TestFiles:
    def test_the_file_is_what_is_returned(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        proto = save(loaded(mlp()), path)
        assert path.read_bytes() == proto.SerializeToString()
        assert os.listdir(tmp_path) == ["model.onnx"]

    def test_writing_twice_gives_the_same_bytes(self) -> None:
        first, second = (save(loaded(convnet(), batch=4)).SerializeToString(deterministic=True) for _ in range(2))
        assert first == second

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "no" / "model.onnx"
        with pytest.raises(ModelError, match=f"cannot write {path}: No such file or directory"):
            save(loaded(mlp()), path)

    def test_a_full_disk_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(b"before")

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ModelError, match="No space left on device"):
            save(loaded(mlp()), path)
        assert path.read_bytes() == b"before"
        assert os.listdir(tmp_path) == ["model.onnx"]

    def test_permissions_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        path.touch(mode=0o600)
        save(loaded(mlp()), path)
        assert path.stat().st_mode & 0o777 == 0o600


def test_a_template_is_saved_with_its_dimensions_open(tmp_path: Path) -> None:
    @gt.model(tokens=i64["batch", "time"])
    def words(tokens: gt.Value) -> gt.Value:
        return gt.nn.linear(gt.nn.embedding(tokens, 5, 8), 3)

    save(words, tmp_path / "words.onnx")
    bound = save(words.bind({"batch": 2, "time": 2}))
    assert onnx.load(tmp_path / "words.onnx") == bound
    again = load(tmp_path / "words.onnx")
    assert isinstance(again, Template)
    assert again.inputs == words.inputs
    tokens = np.random.default_rng(0).integers(0, 5, (3, 7))
    found, expected = (gt.compile(model, "interpreter")({"tokens": tokens})["output"] for model in (again, words))
    np.testing.assert_array_equal(found, expected)


def test_a_template_that_no_extent_fits_is_to_be_bound(tmp_path: Path) -> None:
    @gt.model(x=f32["n", "m"])
    def picky(x: gt.Value) -> gt.Value:
        return gt.nn.reshape(x, (5, 7))

    with pytest.raises(ModelError, match="cannot save the template picky: bind its dimensions first"):
        save(picky, tmp_path / "picky.onnx")
    assert not list(tmp_path.iterdir())


def test_what_a_node_of_an_older_set_became_has_names_of_its_own() -> None:
    """Softmax over joined axes is three nodes now; ONNX Runtime refuses two of one name."""
    graph = loaded(model([node("Softmax", "x", "y", "soft", axis=1)], {"x": [2, 3, 4]}, ["y"], opset=11))
    assert [written.name for written in runs_the_same(graph).graph.node] == ["soft", "soft_1", "soft_2"]
