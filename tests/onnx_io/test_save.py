"""Saving ONNX: other runtimes accept what is written and compute the same."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx_models import (
    checked,
    frozen,
    in_onnx_runtime,
    interpreted,
    mlp,
    model,
    node,
    random_inputs,
    runtime_errors,
    trainable,
    variables,
)

import glowtrain.ops  # noqa: F401  (fills the registry)
from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import ModelError, ShapeError
from glowtrain.gradcheck.draw import SeededDraw
from glowtrain.graph import Graph, Input, Node, Operator, Template, Variable, constant, registered, verify
from glowtrain.graph.reverse import pullback
from glowtrain.onnx_io import inference, load, make_trainable, save
from glowtrain.ops.activation import Gelu, Mish, Swish
from glowtrain.ops.control import Scan
from glowtrain.ops.logic import BitwiseAnd, Cast
from glowtrain.ops.normalization import BatchNormalization
from glowtrain.ops.pad import Pad
from glowtrain.ops.random import Dropout, TrainingDropout
from glowtrain.ops.reduction import ReduceMean
from glowtrain.ops.split import Split
from glowtrain.ops.transcendental import Tanh
from glowtrain.optim import SGD
from glowtrain.trainer import Trainer
from glowtrain.types import Array, bf16, f16, f32, i64

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


def bound(source: onnx.ModelProto, **dims: int) -> Graph:
    graph = load(source, dims)
    assert isinstance(graph, Graph)
    return graph


def close(found: dict[str, Array], expected: dict[str, Array], tolerance: float = 1e-5) -> None:
    assert sorted(found) == sorted(expected)
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        np.testing.assert_allclose(found[name], array, rtol=tolerance, atol=tolerance, err_msg=name)


def runs_the_same(graph: Graph, tolerance: float = 1e-5, opset: int | None = None) -> onnx.ModelProto:
    """Saved, checked, run in ONNX Runtime, and loaded again."""
    proto = checked(save(graph, opset=opset))
    inputs = random_inputs(graph)
    expected = interpreted(graph, inputs)
    close(in_onnx_runtime(proto, inputs), expected, tolerance)
    if not graph.updates:
        again = load(proto, {symbol: 4 for symbol in ("batch",) if graph.dims})
        assert isinstance(again, Graph)
        verify(again)
        close(interpreted(again, inputs), expected, tolerance)
    return proto


def convnet(training: bool = False) -> onnx.ModelProto:
    random = np.random.default_rng(0)
    nodes = [
        node("Conv", "x conv.weight", "c", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("BatchNormalization", "c bn.scale bn.bias bn.mean bn.var", "n", "bn"),
        node("Relu", "n", "r"),
        node("MaxPool", "r", "p", kernel_shape=[2, 2], strides=[2, 2]),
        node("Reshape", "p shape", "f"),
        *([node("Dropout", "f ratio", "d", "drop")] if training else [node("Identity", "f", "d")]),
        node("Gemm", "d fc.weight fc.bias", "y", transB=1),
    ]
    shapes = {"conv.weight": (3, 2, 3, 3), "fc.weight": (5, 12), "fc.bias": (5,)}
    shapes |= {f"bn.{name}": (3,) for name in ("scale", "bias", "mean", "var")}
    weights = {name: random.uniform(0.2, 1, shape).astype(np.float32) for name, shape in shapes.items()}
    constants = {"shape": np.array([-1, 12]), "ratio": np.array(0.25, np.float32)}
    return model(nodes, {"x": ["batch", 2, 4, 4]}, ["y"], weights | constants)


def training_step(source: Graph) -> Graph:
    """A step of gradient descent on the mean of y², with the learning rate as an input."""
    y = source.outputs["y"]
    loss = ReduceMean(keepdims=False)(y * y)
    parameters = [variable for variable in source.variables if variable.trainable]
    rate = Input(f32[()], "lr")
    gradients = pullback([loss], [constant(1.0, f32)], parameters)
    updates = {p: p - rate * g for p, g in zip(parameters, gradients, strict=True) if g is not None}
    return Graph((*source.inputs, rate), {"loss": loss}, {**source.updates, **updates}, "step")


class TestModels:
    @pytest.mark.parametrize("opset", [17, 18, 19, 20, 21])
    def test_a_model_at_every_opset(self, opset: int) -> None:
        proto = runs_the_same(bound(mlp()), opset=opset)
        assert proto.opset_import[0].version == opset
        assert proto.ir_version <= 10

    def test_weights_keep_their_names_and_values(self) -> None:
        source = mlp()
        before = {t.name: t.raw_data for t in source.graph.initializer}
        after = {t.name: t.raw_data for t in save(bound(source)).graph.initializer}
        assert before == after

    def test_state_takes_the_place_of_initial_values(self) -> None:
        graph = bound(mlp())
        state = {"fc1.bias": np.full(5, 3, np.float32)}
        reloaded = bound(save(graph, state=state))
        np.testing.assert_array_equal(variables(reloaded)["fc1.bias"].initial, state["fc1.bias"])
        with pytest.raises(ModelError, match=r"variable 'fc1.bias' is f32\[5\], but its value is float64\[2\]"):
            save(graph, state={"fc1.bias": np.zeros(2)})

    def test_names_of_nodes_inputs_and_outputs_are_kept(self) -> None:
        proto = save(bound(mlp()))
        assert [n.name for n in proto.graph.node] == ["fc1", "act", "fc2", "bias"]
        assert [value.name for value in proto.graph.input] == ["x"]
        assert [value.name for value in proto.graph.output] == ["y"]
        assert [n.output[0] for n in proto.graph.node] == ["h", "a", "m", "y"]

    def test_constants_do_not_become_parameters(self) -> None:
        x = Input(f32[2, 3], "x")
        graph = Graph((x,), {"y": x * np.float32([1, 2, 3]) + Variable("w", np.ones(3, np.float32))})
        assert trainable(bound(runs_the_same(graph))) == ["w"]

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
        assert str(bound(proto).outputs["y"].type) == "bf16[2]"

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
        assert trainable(bound(runs_the_same(Graph((start, xs), {"end": end, "ys": ys})))) == ["weight"]


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
        sample = cls.sample(SeededDraw(seed))
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
            save(bound(mlp()), opset=12)

    def test_the_ir_version_can_be_chosen(self) -> None:
        assert save(bound(mlp()), ir_version=9).ir_version == 9


class TestDimensions:
    def test_the_batch_is_symbolic_again(self) -> None:
        graph = bound(convnet(), batch=4)
        proto = checked(save(graph))
        assert [d.dim_param for d in proto.graph.input[0].type.tensor_type.shape.dim] == ["batch", "", "", ""]
        assert proto.graph.output[0].type.tensor_type.shape.dim[0].dim_param == "batch"
        other = bound(convnet(), batch=7)
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
        saved = checked(save(bound(proto, n=2)))
        x = np.ones((5, 3), np.float32)
        assert in_onnx_runtime(saved, {"x": x})["y"].shape == (2, 5, 3)

    def test_a_batch_that_the_model_depends_on_stays_fixed(self) -> None:
        nodes = [node("Shape", "x", "s", end=1), node("Cast", "s", "n", to=1), node("Div", "x n", "y")]
        proto = save(bound(model(nodes, {"x": ["n", 3]}, ["y"]), n=4))
        assert proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4

    def test_a_graph_changed_since_stays_fixed(self) -> None:
        graph = bound(convnet(), batch=4)
        changed = graph.with_(outputs={"y": graph.outputs["y"] * np.float32(2)})
        assert save(changed).graph.input[0].type.tensor_type.shape.dim[0].dim_value == 4

    def test_a_function_that_holds_the_batch_stays_fixed_and_one_that_does_not_varies(self) -> None:
        proto = model([node("Gelu", "x", "y")], {"x": ["n", 3]}, ["y"], opset=20)
        saved = checked(save(bound(proto, n=4), opset=17))
        assert saved.functions[0].name == "Gelu"
        assert in_onnx_runtime(saved, {"x": np.ones((6, 3), np.float32)})["y"].shape == (6, 3)


class TestTraining:
    def test_training_form_and_back(self) -> None:
        graph = bound(convnet(training=True), batch=4)
        training = make_trainable(graph)
        verify(training)
        kinds = [type(n.operator) for n in training.nodes]
        assert TrainingDropout in kinds
        assert Dropout not in kinds
        (norm,) = (n for n in training.nodes if isinstance(n.operator, BatchNormalization))
        assert norm.operator == BatchNormalization(training_mode=True)
        assert sorted(v.name for v in training.updates) == ["bn.mean", "bn.var", "random.counter"]
        back = inference(training)
        verify(back)
        assert not back.updates
        inputs = random_inputs(graph)
        close(interpreted(back, inputs), interpreted(graph, inputs), 1e-6)

    def test_running_statistics_after_three_steps(self) -> None:
        """The batch normalises itself, and the running statistics move by 1 - momentum of the batch's."""
        training = make_trainable(bound(convnet(), batch=4))
        state = {name: variable.initial for name, variable in variables(training).items()}
        mean, var = state["bn.mean"].astype(np.float64), state["bn.var"].astype(np.float64)
        (norm,) = (n for n in training.nodes if isinstance(n.operator, BatchNormalization))
        for seed in range(3):
            known = evaluate(training, random_inputs(training, seed), state)
            x = known[norm.inputs[0]].astype(np.float64)  # type: ignore[index]
            mean, var = 0.9 * mean + 0.1 * x.mean((0, 2, 3)), 0.9 * var + 0.1 * x.var((0, 2, 3))
            state |= {variable.name: known[value] for variable, value in training.updates.items()}
        np.testing.assert_allclose(state["bn.mean"], mean, rtol=1e-5)
        np.testing.assert_allclose(state["bn.var"], var, rtol=1e-5)

    def test_unbiased_running_variance_as_in_pytorch(self) -> None:
        graph = bound(convnet(), batch=4)
        ours, theirs = make_trainable(graph), make_trainable(graph, unbiased=True)
        inputs = random_inputs(graph)
        plain, unbiased = interpreted(ours, inputs)["bn.var.next"], interpreted(theirs, inputs)["bn.var.next"]
        old, count = variables(graph)["bn.var"].initial, 4 * 16
        np.testing.assert_allclose((unbiased - 0.9 * old) / (plain - 0.9 * old), count / (count - 1), rtol=1e-4)

    def test_dropout_draws_anew_in_every_step_and_repeats_with_the_counter(self) -> None:
        training = make_trainable(bound(convnet(training=True), batch=4), seed=3)
        (drop,) = (n for n in training.nodes if isinstance(n.operator, TrainingDropout))
        inputs = random_inputs(training)
        masks = [evaluate(training, inputs, {"random.counter": np.array(step)})[drop.outputs[1]] for step in (0, 1, 0)]
        assert (masks[0] == masks[2]).all()
        assert (masks[0] != masks[1]).any()
        assert interpreted(training, inputs)["random.counter.next"] == 1

    def test_a_layer_used_twice_moves_its_statistics_twice(self) -> None:
        x = Input(f32[4, 3], "x")
        scale = [Variable(name, np.ones(3, np.float32), name in "sb") for name in ("s", "b", "m", "v")]
        norm = BatchNormalization()
        training = make_trainable(Graph((x,), {"y": norm(norm(x, *scale), *scale)}))
        verify(training)
        first = next(n for n in training.nodes if n.inputs[0] is x)
        assert training.updates[scale[2]] is not first.outputs[1]
        assert len(training.updates) == 2

    def test_templates_are_changed_for_every_binding(self) -> None:
        template = load(convnet())
        assert isinstance(template, Template)
        training = make_trainable(template)
        assert len(training.bind({"batch": 3}).updates) == 2
        graph = make_trainable(bound(convnet(), batch=4))
        assert graph.template is not None
        assert len(graph.template.bind({"batch": 3}).updates) == 2
        assert save(inference(graph)).graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"

    @pytest.mark.parametrize("source", [mlp(), convnet(), convnet(training=True)], ids=["mlp", "convnet", "dropout"])
    def test_a_training_step_runs_in_onnx_runtime(self, source: onnx.ModelProto) -> None:
        graph = load(source)
        step = training_step(make_trainable(graph.bind({"batch": 4}) if isinstance(graph, Template) else graph))
        verify(step)
        proto = runs_the_same(step, 1e-4)
        names = [value.name for value in proto.graph.input]
        assert names[:2] == ["x", "lr"]
        assert set(names[2:]) == {variable.name for variable in step.variables}
        initial = {t.name for t in proto.graph.initializer}
        assert set(names[2:]) <= initial
        outputs = [value.name for value in proto.graph.output]
        assert outputs == ["loss", *(f"{variable.name}.next" for variable in step.updates)]

    def test_frozen_variables_are_inputs_without_new_values(self) -> None:
        graph = make_trainable(bound(convnet(), batch=4))
        assert frozen(graph) == ["bn.mean", "bn.var"]
        y = graph.outputs["y"]
        step = Graph(graph.inputs, {"loss": ReduceMean(keepdims=False)(y)}, graph.updates)
        proto = checked(save(step))
        assert "fc.weight" in [value.name for value in proto.graph.input]
        assert [value.name for value in proto.graph.output] == ["loss", "bn.mean.next", "bn.var.next"]


class TestFiles:
    def test_the_file_is_what_is_returned(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        proto = save(bound(mlp()), path)
        assert path.read_bytes() == proto.SerializeToString()
        assert os.listdir(tmp_path) == ["model.onnx"]

    def test_writing_twice_gives_the_same_bytes(self) -> None:
        first, second = (save(bound(convnet(), batch=4)).SerializeToString(deterministic=True) for _ in range(2))
        assert first == second

    def test_a_missing_folder_is_named(self, tmp_path: Path) -> None:
        path = tmp_path / "no" / "model.onnx"
        with pytest.raises(ModelError, match=f"cannot write {path}: No such file or directory"):
            save(bound(mlp()), path)

    def test_a_full_disk_leaves_the_old_file(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = tmp_path / "model.onnx"
        path.write_bytes(b"before")

        def full(descriptor: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(ModelError, match="No space left on device"):
            save(bound(mlp()), path)
        assert path.read_bytes() == b"before"
        assert os.listdir(tmp_path) == ["model.onnx"]

    def test_permissions_are_kept(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        path.touch(mode=0o600)
        save(bound(mlp()), path)
        assert path.stat().st_mode & 0o777 == 0o600


class TestRoles:
    """What is a variable, and which of them are trained, survives a file."""

    def graph(self) -> Graph:
        x = Input(f32[2, 3], "x")
        kinds = {"scale": (np.float32(2), True), "mask": (np.ones(3, np.float32), False)}
        kinds |= {"count": (np.int64(3), False), "twice": (np.ones(3, np.float32), True)}
        v = {name: Variable(name, np.asarray(array), trainable) for name, (array, trainable) in kinds.items()}
        y = (x * v["scale"] + v["mask"]) * v["twice"] + Cast(to=f32)(v["count"]) + v["twice"]
        return Graph((x,), {"y": y}, {}, "roles")

    def test_they_are_what_they_were(self) -> None:
        graph = self.graph()
        found = {v.name: v.trainable for v in bound(checked(save(graph))).variables}
        assert found == {"scale": True, "mask": False, "count": False, "twice": True}
        runs_the_same(graph)

    def test_frozen_variables_stay_frozen_in_training(self) -> None:
        graph = bound(save(self.graph()))
        assert Trainer(graph, lambda out, _: ReduceMean(keepdims=False)(out["y"]), SGD()).forms.parameters == (
            "scale",
            "twice",
        )

    def test_other_initializers_go_by_the_rule(self) -> None:
        proto = save(self.graph())
        del proto.metadata_props[:]
        assert {v.name: v.trainable for v in bound(proto).variables} == {"mask": True, "twice": True, "twice.1": True}

    @pytest.mark.parametrize("text", ["{", "[]", '{"scale": 1}'])
    def test_broken_metadata_are_named(self, text: str) -> None:
        proto = save(self.graph())
        proto.metadata_props[0].value = text
        with pytest.raises(ModelError, match="metadata 'glowtrain.variables'"):
            load(proto)
