"""Loading ONNX: what a model says, in all the ways in which files say it."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from glowtrain import load
from glowtrain.errors import BindingError
from glowtrain.graph import OPERATORS, Constant, Graph, Template
from glowtrain.ops.contraction.products import Gemm
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.elementwise.arithmetic import Mul
from glowtrain.ops.tensor.move import Reshape
from glowtrain.types import Array, f32
from tests.onnx_io.onnx_models import (
    frozen,
    interpreted,
    loaded,
    mlp,
    model,
    node,
    same_as_onnx_runtime,
    trainable,
    variables,
)

I64 = TensorProto.INT64


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


class TestSources:
    def test_path_bytes_and_proto_give_the_same(self, tmp_path: Path) -> None:
        proto = mlp()
        path = tmp_path / "mlp.onnx"
        onnx.save(proto, path)
        data = proto.SerializeToString()
        sources = (proto, data, bytearray(data), memoryview(data), io.BytesIO(data), path, str(path))
        texts = {str(loaded(source)) for source in sources}  # type: ignore[arg-type]
        with path.open("rb") as file:
            texts.add(str(loaded(file)))  # type: ignore[arg-type]
        assert len(texts) == 1

    def test_the_proto_is_not_changed(self) -> None:
        proto = mlp(opset=11)
        before = proto.SerializeToString()
        loaded(proto)
        assert proto.SerializeToString() == before

    def test_names_and_types_are_kept(self) -> None:
        graph = loaded(mlp())
        assert [value.name for value in graph.inputs] == ["x"]
        assert list(graph.outputs) == ["y"]
        assert [n.name for n in graph.nodes] == ["fc1", "act", "fc2", "bias"]
        assert [n.output.name for n in graph.nodes] == ["h", "a", "m", "y"]
        assert graph.nodes[0].operator == Gemm(transB=True)
        assert graph.outputs["y"].type == f32[4, 3]
        assert load(mlp(), name="mine").name == "mine"  # type: ignore[union-attr]

    def test_initializers_listed_as_inputs_are_not_inputs(self) -> None:
        proto = mlp()
        proto.graph.input.extend(
            helper.make_tensor_value_info(t.name, t.data_type, list(t.dims)) for t in proto.graph.initializer
        )
        graph = loaded(proto)
        assert [value.name for value in graph.inputs] == ["x"]
        assert trainable(graph) == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias"]

    def test_external_data_is_found_beside_the_model(self, tmp_path: Path) -> None:
        path = tmp_path / "model.onnx"
        onnx.save(mlp(), path, save_as_external_data=True, size_threshold=0, location="model.onnx.data")
        graph = load(path)
        assert isinstance(graph, Graph)
        for name, variable in variables(loaded(mlp())).items():
            np.testing.assert_array_equal(variables(graph)[name].initial, variable.initial)

    def test_all_element_types_of_initializers(self) -> None:
        nodes = [node("Identity", f"c{i}", f"y{i}") for i in range(5)]
        arrays = {
            "c0": np.arange(3, dtype=np.float16),
            "c1": np.array([True, False]),
            "c2": np.arange(3, dtype=np.uint8),
            "c3": np.arange(4.0).reshape(2, 2),
            "c4": np.array([-1, 2], np.int32),
        }
        graph = loaded(model(nodes, {}, [f"y{i}" for i in range(5)], arrays))
        for array, value in zip(arrays.values(), graph.outputs.values(), strict=True):
            assert value.type.accepts(array)

    def test_typed_data_instead_of_raw_bytes(self) -> None:
        proto = model([node("Add", "x w", "y")], {"x": [2, 2]}, ["y"])
        proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [2, 2], [1.0, 2.0, 3.0, 4.0]))
        np.testing.assert_array_equal(variables(loaded(proto))["w"].initial, [[1, 2], [3, 4]])

    def test_bfloat16(self) -> None:
        proto = model([node("Add", "x w", "y")], {"x": (TensorProto.BFLOAT16, [2])}, ["y"])
        proto.graph.initializer.append(helper.make_tensor("w", TensorProto.BFLOAT16, [2], [0.5, 2.0]))
        graph = loaded(proto)
        assert str(graph.outputs["y"].type) == "bf16[2]"
        np.testing.assert_array_equal(variables(graph)["w"].initial.astype(np.float32), [0.5, 2.0])

    def test_sparse_initializers_are_made_dense(self) -> None:
        proto = model([node("Add", "x w", "y")], {"x": [2, 3]}, ["y"])
        values = numpy_helper.from_array(np.array([5, 7], np.float32), "w")
        sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(ints(1, 5), "i"), [2, 3])
        proto.graph.sparse_initializer.append(sparse)
        graph = loaded(proto)
        result = interpreted(graph, {"x": np.zeros((2, 3), np.float32)})["y"]
        np.testing.assert_array_equal(result, [[0, 5, 0], [0, 0, 7]])


class TestDimensions:
    def test_symbols_are_bound_by_name(self) -> None:
        graph = loaded(mlp(batch="batch"), batch=7)
        assert graph.inputs[0].type == f32[7, 6]
        assert graph.dims == {"batch": 7}

    def test_unbound_models_are_templates(self) -> None:
        template = load(mlp(batch="batch"))
        assert isinstance(template, Template)
        assert str(template.inputs["x"]) == "f32[batch,6]"
        assert template.bind({"batch": 2}).outputs["y"].shape == (2, 3)
        assert template.bind({"batch": 9}).outputs["y"].shape == (9, 3)

    def test_all_graphs_of_a_template_share_their_arrays(self) -> None:
        template = load(mlp(batch="batch"))
        assert isinstance(template, Template)
        first, second = (variables(template.bind({"batch": n})) for n in (2, 3))
        assert all(first[name].initial is second[name].initial for name in first)

    def test_dimensions_without_name_get_one(self) -> None:
        template = load(mlp(batch=None))
        assert isinstance(template, Template)
        assert template.symbols == ("x_0",)

    def test_some_dimensions_can_be_bound(self) -> None:
        proto = model([node("Relu", "x", "y")], {"x": ["n", "m", 2]}, ["y"])
        template = load(proto, {"m": 5})
        assert isinstance(template, Template)
        assert str(template.inputs["x"]) == "f32[n,5,2]"
        assert template.bind({"n": 3}).outputs["y"].shape == (3, 5, 2)

    def test_unknown_dimensions_are_refused(self) -> None:
        with pytest.raises(BindingError, match="there is no dimension bach; the model has: batch"):
            load(mlp(batch="batch"), {"bach": 3})

    def test_dimensions_of_outputs_do_not_matter(self) -> None:
        proto = mlp()
        proto.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", TensorProto.FLOAT, ["invented", 3]))
        assert isinstance(load(proto), Graph)

    @pytest.mark.parametrize("unknown", ["?", "-1", "None"])
    def test_what_exporters_write_for_every_unknown_one(self, unknown: str) -> None:
        template = load(model([node("Relu", "x", "y")], {"x": [unknown, 3, unknown, "w"]}, ["y"]))
        assert isinstance(template, Template)
        assert template.symbols == ("x_0", "x_2", "w")


class TestConstants:
    def test_shape_arithmetic_vanishes(self) -> None:
        nodes = [
            node("Shape", "x", "s"),
            node("Gather", "s zero", "n"),
            node("Unsqueeze", "n axis", "n1"),
            node("Concat", "n1 rest", "target", axis=0),
            node("Reshape", "x target", "y"),
        ]
        initializers = {"zero": np.array(0), "axis": ints(0), "rest": ints(-1)}
        graph = loaded(model(nodes, {"x": ["n", 2, 3]}, ["y"], initializers), n=4)
        assert [n.operator for n in graph.nodes] == [Reshape(shape=(4, -1))]

    def test_the_shape_of_a_weight_does_not_freeze_it(self) -> None:
        nodes = [node("Shape", "w", "s", end=1), node("Expand", "zero s", "b"), node("Gemm", "x w b", "y", transB=1)]
        initializers = {"w": np.ones((3, 6), np.float32), "zero": np.float32(0)}
        graph = loaded(model(nodes, {"x": [2, 6]}, ["y"], {k: np.asarray(v) for k, v in initializers.items()}))
        assert trainable(graph) == ["w"]
        assert len(graph.nodes) == 1

    def test_every_form_of_constant_node(self) -> None:
        forms = {
            "value": numpy_helper.from_array(np.array([1, 2], np.int32)),
            "value_float": 1.5,
            "value_floats": [1.5, 2.5],
            "value_int": 3,
            "value_ints": [3, 4],
        }
        nodes = [helper.make_node("Constant", [], [name], **{name: value}) for name, value in forms.items()]
        graph = loaded(model([*nodes, node("Relu", "x", "y")], {"x": [1]}, ["y", *forms]))
        arrays = {name: value.array for name, value in graph.outputs.items() if isinstance(value, Constant)}
        assert [str(arrays[name].dtype) for name in forms] == ["int32", "float32", "float32", "int64", "int64"]
        np.testing.assert_array_equal(arrays["value_floats"], np.float32([1.5, 2.5]))

    def test_casts_like_a_tensor_are_casts(self) -> None:
        constant = helper.make_node("Constant", [], ["c"], value_float=2.0)
        proto = model([constant, node("CastLike", "c x", "d"), node("Mul", "x d", "y")], {"x": (11, [2])}, ["y"])
        graph = loaded(proto)
        assert len(graph.nodes) == 1

    def test_large_results_are_not_folded(self) -> None:
        nodes = [node("ConstantOfShape", "s", "z"), node("Add", "x z", "y")]
        graph = loaded(model(nodes, {"x": [3]}, ["y"], {"s": ints(4096, 2048, 3)}))
        assert [n.operator.key() for n in graph.nodes] == ["ConstantOfShape", "Add"]


class TestParameters:
    def test_scalars_and_masks_are_constants(self) -> None:
        nodes = [node("Mul", "x half", "h"), node("Add", "h mask", "m"), node("Mul", "m w", "y")]
        mask = np.array([[0, -np.inf, 0], [0, 0, -np.inf]], np.float32)
        initializers = {"half": np.array(0.5, np.float32), "mask": mask, "w": np.ones(3, np.float32)}
        graph = loaded(model(nodes, {"x": [2, 3]}, ["y"], initializers))
        assert trainable(graph) == ["w"]
        assert frozen(graph) == []

    def test_running_statistics_are_frozen_state(self) -> None:
        stats = {name: np.ones(3, np.float32) + i for i, name in enumerate(("scale", "bias", "mean", "var"))}
        proto = model([node("BatchNormalization", "x scale bias mean var", "y")], {"x": [2, 3, 4]}, ["y"], stats)
        graph = same_as_onnx_runtime(proto)
        assert trainable(graph) == ["scale", "bias"]
        assert frozen(graph) == ["mean", "var"]

    def test_an_operator_of_ones_own_says_what_its_inputs_hold(self, monkeypatch: pytest.MonkeyPatch) -> None:
        @dataclass(frozen=True)
        class Rescale(Mul):
            domain = "example"
            onnx = "Rescale"
            arity = 3
            setting_inputs = (1,)
            running_inputs = (2,)

        monkeypatch.setitem(OPERATORS, Rescale.key(), Rescale)
        initializers = {name: np.array([1, k + 2], np.float32) for k, name in enumerate(("w", "scale", "mean"))}
        nodes = [node("Rescale", "w scale mean", "r", domain="example"), node("Mul", "x r", "y")]
        imports = [helper.make_opsetid("example", 1)]
        graph = loaded(model(nodes, {"x": [3, 2]}, ["y"], initializers, imports=imports))
        assert trainable(graph) == ["w"]
        assert frozen(graph) == ["mean"]

    def test_what_only_comparisons_read_is_a_constant(self) -> None:
        nodes = [
            node("Slice", "table begin end", "rows"),
            node("Equal", "rows zero", "mask"),
            node("Where", "mask x w", "y"),
        ]
        initializers = {
            "table": np.ones((4, 3), np.float32),
            "begin": ints(0),
            "end": ints(2),
            "zero": np.zeros((), np.float32),
            "w": np.full((2, 3), 2, np.float32),
        }
        assert trainable(loaded(model(nodes, {"x": [2, 3]}, ["y"], initializers))) == ["w"]

    def test_initial_states_train_unless_they_are_zero(self) -> None:
        random = np.random.default_rng(0)
        initializers = {
            "w": random.standard_normal((1, 12, 2)).astype(np.float32),
            "r": random.standard_normal((1, 12, 3)).astype(np.float32),
            "h0": np.zeros((1, 4, 3), np.float32),
            "c0": np.full((1, 4, 3), 0.5, np.float32),
        }
        proto = model([node("LSTM", "x w r _ _ h0 c0", "y", hidden_size=3)], {"x": [5, 4, 2]}, ["y"], initializers)
        assert trainable(same_as_onnx_runtime(proto)) == ["w", "r", "c0"]

    def test_tied_parameters_stay_tied(self) -> None:
        nodes = [node("Gather", "table tokens", "e"), node("Transpose", "table", "t"), node("MatMul", "e t", "y")]
        table = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
        graph = loaded(model(nodes, {"tokens": (I64, [4])}, ["y"], {"table": table}))
        assert trainable(graph) == ["table"]

    def test_merged_scale_and_variance_come_apart(self) -> None:
        ones, zeros = np.ones(3, np.float32), np.zeros(3, np.float32)
        proto = model(
            [node("BatchNormalization", "x one zero zero one", "y")], {"x": [2, 3]}, ["y"], {"one": ones, "zero": zeros}
        )
        graph = loaded(proto)
        assert trainable(graph) == ["one", "zero"]
        assert len(frozen(graph)) == 2


class TestStructure:
    def test_functions_of_the_model_are_inlined(self) -> None:
        body = [node("Mul", "a a", "s"), helper.make_node("Add", ["s", "b"], ["r"])]
        function = helper.make_function("mine", "SquareAdd", ["a", "b"], ["r"], body, [helper.make_opsetid("", 18)])
        call = helper.make_node("SquareAdd", ["x", "w"], ["y"], "call", domain="mine")
        proto = model(
            [call], {"x": [3]}, ["y"], {"w": np.ones(3, np.float32)},
            functions=[function], imports=[helper.make_opsetid("mine", 1)],
        )  # fmt: skip
        graph = same_as_onnx_runtime(proto)
        assert [n.operator.key() for n in graph.nodes] == ["Mul", "Add"]
        assert trainable(graph) == ["w"]

    @pytest.mark.parametrize("taken", [True, False])
    def test_if_with_a_known_condition_is_the_branch(self, taken: bool) -> None:
        branches = {
            name: helper.make_graph([node(op, "x", out)], name, [], [helper.make_empty_tensor_value_info(out)])
            for name, op, out in (("then_branch", "Relu", "t"), ("else_branch", "Tanh", "e"))
        }
        proto = model([node("If", "c", "y", **branches)], {"x": [3]}, ["y"], {"c": np.array(taken)})
        graph = loaded(proto)
        assert [n.operator.key() for n in graph.nodes] == ["Relu" if taken else "Tanh"]

    def test_scan_with_captured_values(self) -> None:
        body = helper.make_graph(
            [node("MatMul", "state weight", "m"), node("Add", "m step", "next"), node("Mul", "next two", "out")],
            "body",
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("state", "step")],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 3]) for name in ("next", "out")],
            [numpy_helper.from_array(np.array(2, np.float32), "two")],
        )
        scan = node("Scan", "h0 xs", "h ys", "loop", num_scan_inputs=1, body=body, scan_input_axes=[1])
        weight = np.random.default_rng(0).standard_normal((3, 3)).astype(np.float32)
        proto = model([scan], {"h0": [2, 3], "xs": [2, 5, 3]}, ["h", "ys"], {"weight": weight})
        graph = same_as_onnx_runtime(proto)
        operator = graph.nodes[0].operator
        assert isinstance(operator, Scan)
        assert operator.num_captured == 1
        assert trainable(graph) == ["weight"]

    def test_sequences_that_are_taken_apart_again(self) -> None:
        nodes = [
            node("SplitToSequence", "x size", "parts", axis=1, keepdims=1),
            node("SequenceAt", "parts one", "b", "second"),
            node("SequenceAt", "parts last", "c", "last"),
            node("Concat", "c b", "y", axis=1),
        ]
        initializers = {"size": np.array(2), "one": np.array(1), "last": np.array(-1)}
        same_as_onnx_runtime(model(nodes, {"x": [3, 5]}, ["y"], initializers))

    def test_nodes_in_any_order(self) -> None:
        proto = mlp()
        nodes = list(proto.graph.node)[::-1]
        del proto.graph.node[:]
        proto.graph.node.extend(nodes)
        assert [n.name for n in loaded(proto).nodes] == ["fc1", "act", "fc2", "bias"]

    def test_absent_optional_inputs(self) -> None:
        proto = model([node("Clip", "x _ high", "y")], {"x": [5]}, ["y"], {"high": np.array(0.2, np.float32)})
        graph = same_as_onnx_runtime(proto)
        assert graph.nodes[0].inputs[1] is None

    def test_split_into_sequence_without_sizes_squeezes(self) -> None:
        nodes = [node("SplitToSequence", "x", "parts", axis=0, keepdims=0), node("SequenceAt", "parts two", "y")]
        graph = loaded(model(nodes, {"x": [3, 4]}, ["y"], {"two": np.array(2)}))
        assert graph.outputs["y"].shape == (4,)
