"""Broken and unsupported models: a clear error that names what is wrong, never a bare traceback."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper
from onnx_models import interpreted, mlp, model, node

import glowtrain as gt
from glowtrain.errors import GlowtrainError, ModelError, UnsupportedOperatorError
from glowtrain.graph import Graph, Template
from glowtrain.onnx_io import load


def load_and_bind(source: object) -> None:
    loaded = load(source)  # type: ignore[arg-type]
    if isinstance(loaded, Template):
        loaded.bind(dict.fromkeys(loaded.symbols, 2))


def refused(source: object, *parts: str, kind: type[ModelError] = ModelError) -> None:
    with pytest.raises(kind) as error:
        load_and_bind(source)
    for part in parts:
        assert part in str(error.value)


class TestFiles:
    def test_a_missing_file(self, tmp_path: Path) -> None:
        refused(tmp_path / "no.onnx", f"cannot read {tmp_path / 'no.onnx'}: No such file or directory")

    def test_an_empty_file(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").touch()
        refused(tmp_path / "m.onnx", "m.onnx is empty, not an ONNX model")

    def test_a_folder(self, tmp_path: Path) -> None:
        refused(tmp_path, f"cannot read {tmp_path}: Is a directory")

    def test_text(self, tmp_path: Path) -> None:
        (tmp_path / "m.onnx").write_text("#!/bin/sh\necho this is no model\n" * 50)
        refused(tmp_path / "m.onnx", "m.onnx is truncated or not an ONNX model")

    @pytest.mark.parametrize("kept", [0.1, 0.5, 0.9, 0.99])
    def test_a_truncated_file(self, tmp_path: Path, kept: float) -> None:
        data = mlp().SerializeToString()
        (tmp_path / "m.onnx").write_bytes(data[: int(kept * len(data))])
        refused(tmp_path / "m.onnx", "m.onnx")

    @given(st.binary(max_size=200))
    def test_any_bytes(self, data: bytes) -> None:
        refused(data, "the model")

    @given(st.data())
    def test_any_damage(self, data: st.DataObject) -> None:
        """A model with some bytes changed loads, or is refused with an error of ours."""
        damaged = bytearray(SMALL)
        for _ in range(data.draw(st.integers(1, 3))):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
        with contextlib.suppress(GlowtrainError):
            load_and_bind(bytes(damaged))


SMALL = mlp(batch="n").SerializeToString()


class TestHeaders:
    def test_no_graph(self) -> None:
        refused(ModelProto(ir_version=8), "is not an ONNX model")

    def test_no_version_of_the_operators(self) -> None:
        proto = mlp()
        del proto.opset_import[:]
        refused(proto, "does not say which version of the ONNX operators")

    @pytest.mark.parametrize("opset", [0, 999])
    def test_versions_outside_the_range(self, opset: int) -> None:
        proto = mlp()
        proto.opset_import[0].version = opset
        refused(proto, f"uses ONNX opset {opset}; supported are 1 to")

    def test_no_outputs(self) -> None:
        refused(model([node("Relu", "x", "y")], {"x": [2]}, []), "has no outputs")


class TestOperators:
    def test_all_unsupported_operators_are_named_at_once(self) -> None:
        inner = helper.make_graph(
            [helper.make_node("Deep", ["x"], ["d"], "inside", domain="mine")],
            "b",
            [],
            [helper.make_empty_tensor_value_info("d")],
        )
        nodes = [
            helper.make_node("Frobnicate", ["x"], ["a"], "first", domain="com.example"),
            helper.make_node("Frobnicate", ["a"], ["b"], "second", domain="com.example"),
            node("NoSuchOperator", "b", "c", "third"),
            node("If", "k", "e", then_branch=inner, else_branch=inner),
            node("Add", "c e", "y"),
        ]
        proto = model(
            nodes, {"x": [2]}, ["y"], {"k": np.array(True)},
            imports=[helper.make_opsetid("com.example", 1), helper.make_opsetid("mine", 1)],
        )  # fmt: skip
        refused(
            proto, "com.example.Frobnicate: node 'first'", "node 'second'", "NoSuchOperator: node 'third'",
            "mine.Deep: node 'inside'", kind=UnsupportedOperatorError,
        )  # fmt: skip

    def test_also_in_an_old_file(self) -> None:
        proto = model([node("NoSuchOperator", "x", "y", "it")], {"x": [2]}, ["y"], opset=9)
        refused(proto, "NoSuchOperator: node 'it'", kind=UnsupportedOperatorError)

    def test_a_broken_shape_names_node_and_rule(self) -> None:
        proto = model([node("MatMul", "x w", "y", "product")], {"x": [2, 3]}, ["y"], {"w": np.ones((4, 2), np.float32)})
        refused(proto, "node 'product' (MatMul)", "MatMul(f32[2,3], f32[4,2])")

    def test_an_attribute_that_is_not_known(self) -> None:
        proto = model(
            [node("Relu", "x", "y", "act", slope=0.5)], {"x": [2]}, ["y"], opset=onnx.defs.onnx_opset_version()
        )
        refused(proto, "node 'act' (Relu): attribute slope of Relu is not supported")

    def test_a_missing_attribute(self) -> None:
        proto = model([node("Concat", "x x", "y", "join")], {"x": [2]}, ["y"])
        refused(proto, "join")

    def test_an_attribute_of_a_wrong_type(self) -> None:
        proto = model([node("Gemm", "x x", "y", "g", transB="yes")], {"x": [2, 2]}, ["y"])
        refused(proto, "node 'g' (Gemm): attribute transB must be INT, not STRING")

    def test_an_unknown_attribute_type(self) -> None:
        proto = model([node("Relu", "x", "y", "act")], {"x": [2]}, ["y"])
        proto.graph.node[0].attribute.append(
            helper.make_attribute("hint", helper.make_tensor_type_proto(TensorProto.FLOAT, [1]))
        )
        refused(proto, "act")

    def test_too_many_outputs(self) -> None:
        proto = model([node("Relu", "x", "y z", "act")], {"x": [2]}, ["y"], opset=onnx.defs.onnx_opset_version())
        refused(proto, "node 'act' (Relu) has 2 outputs, not 1")

    def test_too_few_inputs(self) -> None:
        proto = model([node("MatMul", "x", "y", "product")], {"x": [2, 2]}, ["y"], opset=onnx.defs.onnx_opset_version())
        refused(proto, "product")


class TestNames:
    def test_a_name_that_nothing_defines(self) -> None:
        proto = model([node("Add", "x ghost", "y", "sum")], {"x": [2]}, ["y"])
        refused(proto, "node 'sum' (Add) reads 'ghost', which nothing defines")

    def test_an_output_that_nothing_gives(self) -> None:
        refused(model([node("Relu", "x", "y")], {"x": [2]}, ["z"]), "output 'z' is not given by any node")

    def test_a_name_defined_twice(self) -> None:
        proto = model([node("Relu", "x", "y", "one"), node("Tanh", "x", "y", "two")], {"x": [2]}, ["y"])
        refused(proto, "node 'two' (Tanh): 'y' is defined twice")

    def test_a_cycle(self) -> None:
        proto = model([node("Add", "x b", "a", "one"), node("Relu", "a", "b", "two")], {"x": [2]}, ["b"])
        refused(proto, "depend on each other in a cycle", "node 'one' (Add)", "node 'two' (Relu)")

    def test_a_branch_that_reads_what_nothing_defines(self) -> None:
        branch = helper.make_graph(
            [node("Relu", "ghost", "t", "inner")], "b", [], [helper.make_empty_tensor_value_info("t")]
        )
        proto = model(
            [node("If", "c", "y", then_branch=branch, else_branch=branch)], {"c": (TensorProto.BOOL, [])}, ["y"]
        )
        refused(proto, "'ghost', which nothing defines")


def with_tensor(change: Callable[[TensorProto], None]) -> ModelProto:
    proto = model([node("Add", "x w", "y")], {"x": [2, 3]}, ["y"], {"w": np.ones((2, 3), np.float32)})
    change(proto.graph.initializer[0])
    return proto


class TestTensors:
    def test_data_that_is_too_short(self) -> None:
        def cut(tensor: TensorProto) -> None:
            tensor.raw_data = tensor.raw_data[:10]

        refused(with_tensor(cut), "initializer 'w': f32[2, 3] needs 24 bytes but the file holds 10")

    def test_typed_data_that_is_too_short(self) -> None:
        def cut(tensor: TensorProto) -> None:
            tensor.ClearField("raw_data")
            tensor.float_data.extend([1.0, 2.0])

        refused(with_tensor(cut), "initializer 'w' of shape [2, 3] cannot be read")

    @pytest.mark.parametrize("dims", [[1 << 40, 1 << 40], [-1, -6], [1 << 62, 2]])
    def test_extents_that_overflow(self, dims: list[int]) -> None:
        def blow_up(tensor: TensorProto) -> None:
            tensor.dims[:] = dims

        refused(with_tensor(blow_up), "initializer 'w': shape", "is negative or overflows")

    @pytest.mark.parametrize("code", [TensorProto.STRING, TensorProto.COMPLEX64, TensorProto.COMPLEX128, 12345])
    def test_element_types_that_are_not_supported(self, code: int) -> None:
        def retype(tensor: TensorProto) -> None:
            tensor.data_type = code

        refused(with_tensor(retype), "initializer 'w': element type", "is not supported")

    def test_an_input_that_overflows(self) -> None:
        refused(model([node("Relu", "x", "y")], {"x": [1 << 31, 1 << 31]}, ["y"]), "input 'x'", "overflows")

    def test_an_input_without_shape(self) -> None:
        proto = model([node("Relu", "x", "y")], {"x": None}, ["y"])
        refused(proto, "input 'x' has no shape")


class TestExternalData:
    def saved(self, folder: Path) -> ModelProto:
        onnx.save(mlp(), folder / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
        return onnx.load(folder / "m.onnx", load_external_data=False)

    def test_a_missing_data_file(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        (tmp_path / "m.data").unlink()
        refused(tmp_path / "m.onnx", "its data file", "m.data cannot be read: No such file or directory")

    def test_a_data_file_that_is_too_short(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        (tmp_path / "m.data").write_bytes(b"1234567")
        refused(tmp_path / "m.onnx", "needs 120 bytes but the file holds 7")

    @pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "link/secret", "", "."])
    def test_data_outside_the_folder(self, tmp_path: Path, location: str) -> None:
        outside, inside = tmp_path / "outside", tmp_path / "inside"
        outside.mkdir()
        inside.mkdir()
        (outside / "secret").write_bytes(b"0" * 1000)
        (tmp_path / "secret").write_bytes(b"0" * 1000)
        (inside / "link").symlink_to(outside)
        proto = self.saved(inside)
        for tensor in proto.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "location").value = location
        (inside / "bad.onnx").write_bytes(proto.SerializeToString())
        refused(inside / "bad.onnx", f"its data file {location!r} is outside the model's folder")

    def test_offsets_that_are_not_numbers(self, tmp_path: Path) -> None:
        proto = self.saved(tmp_path)
        for tensor in proto.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == "offset").value = "some"
        (tmp_path / "bad.onnx").write_bytes(proto.SerializeToString())
        refused(tmp_path / "bad.onnx", "offset and length of external data must be numbers")

    def test_bytes_have_no_folder(self, tmp_path: Path) -> None:
        refused(
            self.saved(tmp_path).SerializeToString(),
            "lies in the file 'm.data' beside the model: load the model by its path",
        )


class TestFunctionsAndConstants:
    def test_a_function_that_calls_itself(self) -> None:
        body = [helper.make_node("Loopy", ["a"], ["r"], domain="mine")]
        function = helper.make_function("mine", "Loopy", ["a"], ["r"], body, [helper.make_opsetid("mine", 1)])
        call = helper.make_node("Loopy", ["x"], ["y"], "call", domain="mine")
        proto = model([call], {"x": [3]}, ["y"], functions=[function], imports=[helper.make_opsetid("mine", 1)])
        refused(proto)

    def test_a_constant_without_value(self) -> None:
        proto = model([node("Constant", "", "y", "c")], {"x": [2]}, ["y"], opset=onnx.defs.onnx_opset_version())
        refused(proto, "node 'c' (Constant) must have exactly one attribute")

    def test_a_constant_of_text(self) -> None:
        proto = model([node("Constant", "", "y", "c", value_string="text")], {"x": [2]}, ["y"])
        refused(proto, "c")

    def test_an_index_outside_a_constant(self) -> None:
        nodes = [node("Gather", "c i", "g", "pick"), node("Add", "x g", "y")]
        proto = model(nodes, {"x": [2]}, ["y"], {"c": np.arange(3), "i": np.array(7)})
        refused(proto, "node 'pick' (Gather)", "index 7")

    def test_attributes_without_type_are_guessed(self) -> None:
        proto = model([node("Gemm", "x w", "y", transB=1)], {"x": [2, 3]}, ["y"], {"w": np.ones((4, 3), np.float32)})
        proto.graph.node[0].attribute[0].type = AttributeProto.UNDEFINED
        assert load(proto).outputs["y"].shape == (2, 4)  # type: ignore[union-attr]

    def test_a_tensor_attribute_that_is_too_short(self) -> None:
        tensor = numpy_helper.from_array(np.ones(3, np.float32))
        tensor.raw_data = tensor.raw_data[:-1]
        proto = model(
            [node("Constant", "", "y", "c", value=tensor)], {"x": [2]}, ["y"], opset=onnx.defs.onnx_opset_version()
        )
        refused(proto, "node 'c' (Constant)", "needs 12 bytes but the file holds 11")


class TestSchemas:
    def broken(self, change: Callable[[onnx.NodeProto], object], *parts: str) -> None:
        proto = model(
            [node("Gemm", "x w", "y", "g", transB=1)], {"x": [2, 3]}, ["y"], {"w": np.ones((4, 3), np.float32)}
        )
        change(proto.graph.node[0])
        refused(proto, "node 'g' (Gemm)", *parts)

    def test_an_attribute_that_is_given_twice(self) -> None:
        self.broken(
            lambda node_: node_.attribute.append(helper.make_attribute("transB", 0)), "attribute transB is given twice"
        )

    def test_an_attribute_that_holds_something_else_than_it_says(self) -> None:
        self.broken(
            lambda node_: setattr(node_.attribute[0], "f", 1.0), "attribute transB is INT but holds f"
        )  # would be read as 1

    def test_an_attribute_of_a_function_outside_of_one(self) -> None:
        def refer(node_: onnx.NodeProto) -> None:
            node_.attribute[0].ClearField("i")
            node_.attribute[0].ref_attr_name = "transposed"

        self.broken(refer, "attribute transB refers to 'transposed' of a function, but is in none")

    def test_an_attribute_that_no_version_has(self) -> None:
        self.broken(
            lambda node_: node_.attribute.append(helper.make_attribute("axis", 1)), "attribute axis of Gemm is not"
        )

    def test_an_axis_that_no_tensor_has(self) -> None:
        """Shape inference in the onnx package reads it as a number of 32 bits, and ends the process."""
        normal = node("LayerNormalization", "x w", "y mean", "norm", axis=1 << 31)
        proto = model([normal], {"x": [2, 3], "w": [3]}, ["y", "mean"], opset=17)
        refused(proto, "node 'norm' (LayerNormalization): attribute axis: no tensor has axis 2147483648")

    @pytest.mark.parametrize("parts", [1, 1 << 40])
    def test_a_split_into_another_number_of_parts(self, parts: int) -> None:
        proto = model([node("Split", "x", "y z", "cut", num_outputs=parts)], {"x": [6]}, ["y", "z"])
        refused(proto, f"node 'cut' (Split): num_outputs={parts}, but it has 2 outputs")

    @pytest.mark.parametrize("opset", [6, 13])
    def test_a_number_of_inputs_that_the_operator_does_not_have(self, opset: int) -> None:
        refused(
            model([node("Add", "x", "y", "sum", **({"axis": 1, "broadcast": 1} if opset == 6 else {}))],
                  {"x": [2]}, ["y"], opset=opset),
            "node 'sum' (Add) has 1 inputs, not 2",
        )  # fmt: skip
        refused(
            model([node("Relu", "x x", "y", "act")], {"x": [2]}, ["y"], opset=opset),
            "node 'act' (Relu) has 2 inputs, not 1",
        )

    def test_an_operand_that_is_needed(self) -> None:
        proto = model([node("MatMul", "_ x", "y", "product")], {"x": [2, 2]}, ["y"])
        refused(proto, "node 'product' (MatMul): input 0 (A) is absent")

    def test_an_input_without_type(self) -> None:
        proto = model([node("Relu", "x", "y")], {"x": [2]}, ["y"], opset=12)
        proto.graph.input[0].ClearField("type")  # ends the process in the onnx package's converter
        refused(proto, "input 'x' has no type")

    def test_a_tensor_without_name(self) -> None:
        refused(
            model([node("Relu", "x", "y")], {"x": [2]}, ["y"], {"": np.ones(2)}), "number 0 of its initializers has"
        )


class TestSizes:
    def test_a_shape_of_many_extents(self) -> None:
        """Shape inference in the onnx package would make 2³¹ dimensions."""
        proto = model([node("Expand", "x s", "y", "wide")], {"x": [2], "s": (7, [1 << 31])}, ["y"], opset=9)
        refused(proto, "node 'wide' (Expand)")

    @pytest.mark.parametrize(
        "attributes", [{"pads": [1 << 40, 0]}, {"kernel_shape": [1 << 40], "pads": [(1 << 40) - 1] * 2}]
    )
    def test_windows_that_are_mostly_padding(self, attributes: dict[str, list[int]]) -> None:
        pool = node("MaxPool", "x", "y", "pool", **{"kernel_shape": [2], **attributes})
        refused(model([pool], {"x": [1, 1, 9]}, ["y"]), "node 'pool' (MaxPool)")

    def test_an_empty_tensor_of_extents_that_overflow(self) -> None:
        refused(model([node("Relu", "x", "y")], {"x": [0, 1 << 62]}, ["y"]), "input 'x'", "overflows")

    def test_a_long_chain_in_any_order(self) -> None:
        """Sorting takes time in proportion to the nodes: 5,000 of them, each before what it reads."""
        nodes = [node("Relu", f"v{i}", f"v{i + 1}", f"n{i}") for i in range(5_000)]
        loaded = load(model(nodes[::-1], {"v0": [2]}, ["v5000"]))
        assert [len(loaded.nodes), loaded.nodes[0].name] == [5_000, "n0"]  # type: ignore[union-attr]

    def test_a_long_cycle(self) -> None:
        nodes = [node("Relu", f"v{(i - 1) % 5_000}", f"v{i}", f"n{i}") for i in range(5_000)]
        refused(model(nodes, {"x": [2]}, ["v5"]), "in a cycle", "node 'n0' (Relu)")


def loops(depth: int, steps: int) -> ModelProto:
    """Loops in loops, in which the innermost step must know the numbers of all of them."""
    value = helper.make_empty_tensor_value_info

    def loop(level: int) -> onnx.NodeProto:
        declared = [
            helper.make_tensor_value_info(f"i{level}", 7, []),
            helper.make_tensor_value_info(f"c{level}", 9, []),
            helper.make_tensor_value_info(f"s{level}", 1, [1]),
        ]
        inner = [loop(level - 1)] if level else repeat
        body = helper.make_graph(
            [node("Identity", f"c{level}", f"d{level}"), *inner],
            "body", declared, [value(f"d{level}"), value(f"t{level}")],
        )  # fmt: skip
        names = [f"s{level + 1}" if level < depth else "x", f"t{level + 1}" if level < depth else "y"]
        return helper.make_node("Loop", ["n", "", names[0]], [names[1]], f"loop{level}", body=body)

    repeat = [node("Identity", "i0", "k0")]
    repeat += [node("Add", f"k{level - 1} i{level}", f"k{level}") for level in range(1, depth + 1)]
    repeat += [node("Unsqueeze", f"k{depth} zero", "count"), node("Tile", "s0 count", "tiled")]
    repeat += [node("ReduceSum", "tiled", "t0")]
    return model([loop(depth)], {"x": [1]}, ["y"], {"n": np.array(steps), "zero": np.array([0])})


class TestPaddedInputs:
    """Windows whose outputs are small, but whose padded inputs are not."""

    @pytest.mark.parametrize(
        ("kind", "attributes"),
        [
            ("ConvTranspose", {"dilations": [1 << 31, 1 << 31], "output_shape": [10, 8], "strides": [3, 2]}),
            ("Conv", {"strides": [1 << 40, 1 << 40], "pads": [1 << 41, 1 << 41, 0, 0]}),
        ],
    )
    def test_too_large(self, kind: str, attributes: dict[str, Any]) -> None:
        weight = {"w": np.ones((1, 1, 3, 3), np.float32)}
        proto = model([node(kind, "x w", "y", **attributes)], {"x": [1, 1, 3, 3]}, ["y"], weight)
        refused(proto, f"'{kind}_1'", "the padded input would have spatial shape")


def test_far_more_skips_than_tokens() -> None:
    """Valid, and no more work than the row has tokens."""
    grams = {"ngram_counts": [0, 1], "ngram_indexes": [0, 1], "pool_int64s": [1, 1, 2]}
    lengths = {"min_gram_length": 1, "max_gram_length": 2, "max_skip_count": (1 << 31) - 1}
    counter = node("TfIdfVectorizer", "x", "y", mode="TF", **grams, **lengths)
    graph = load(model([counter], {"x": (TensorProto.INT64, [4])}, ["y"]))
    assert isinstance(graph, Graph)
    assert interpreted(graph, {"x": np.array([1, 0, 2, 2])})["y"].tolist() == [1, 2]


def test_a_map_whose_body_takes_another_number_of_operands() -> None:
    values = [helper.make_empty_tensor_value_info(name) for name in ("a", "b")]
    body = helper.make_graph([node("Add", "a b", "r")], "body", values, [helper.make_empty_tensor_value_info("r")])
    nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceMap", "s", "y", body=body)]
    refused(model(nodes, {"x": [2]}, ["y"]), "'SequenceMap_1'", "its body takes 2 inputs, not 1")


def test_one_place_may_have_any_stride() -> None:
    """Valid, and the same as any other stride."""
    x, weight = np.ones((1, 1, 4, 4), np.float32), {"w": np.ones((1, 1, 3, 3), np.float32)}
    for strides in ([2, 2], [1 << 62, (1 << 63) - 1]):
        proto = model([node("Conv", "x w", "y", strides=strides)], {"x": [1, 1, 4, 4]}, ["y"], weight)
        for backend in ("interpreter", "cpu"):
            np.testing.assert_array_equal(gt.compile(load(proto), backend)({"x": x})["y"], [[[[9]]]])


def test_positions_that_are_no_indices() -> None:
    operands = {"x": [1, 2, 3, 4], "cos": [5, 2], "sin": [5, 2], "places": (TensorProto.UINT8, [1, 3])}
    rotary = node("RotaryEmbedding", "x cos sin places", "y")
    refused(model([rotary], operands, ["y"], opset=23), "'RotaryEmbedding_1'", "indices must be i32 or i64, not u8")


def test_a_mask_of_integers_that_is_too_short() -> None:
    """It is added to the scores; the keys after its end are hidden."""
    operands = {name: [1, 1, 2, 4] for name in "qkv"} | {"mask": (TensorProto.UINT8, [2, 1])}
    proto = model([node("Attention", "q k v mask", "y")], operands, ["y"], opset=24)
    random = np.random.default_rng(0)
    inputs: dict[str, Any] = {name: random.standard_normal((1, 1, 2, 4)).astype(np.float32) for name in "qkv"}
    inputs["mask"] = np.array([[0], [3]], np.uint8)
    for backend in ("interpreter", "cpu"):
        found = gt.compile(load(proto), backend)(inputs)["y"]
        np.testing.assert_allclose(found, np.repeat(inputs["v"][:, :, :1], 2, axis=2), rtol=1e-6)


class TestPieces:
    @pytest.mark.parametrize(("extent", "size"), [(1 << 40, 1), (4, 0), (4, -1)])
    def test_impossible_numbers_of_them(self, extent: int, size: int) -> None:
        nodes = [node("SplitToSequence", "x size", "s"), node("SequenceLength", "s", "y")]
        proto = model(nodes, {"x": [extent]}, ["y"], {"size": np.array(size)})
        refused(proto, "'SplitToSequence_1'", f"{extent} elements in pieces of {size}")


def test_a_gradient_of_itself() -> None:
    """y depends on the gradient of y, directly and through a second one."""
    imports = [helper.make_opsetid("ai.onnx.preview.training", 1)]
    for source in ("g", "h"):
        nodes = [
            node("Mul", f"a {source}", "y", "product"),
            *(
                helper.make_node("Gradient", ["a"], [name], name, domain="ai.onnx.preview.training", xs=["a"], y=of)
                for name, of in (("g", "y"), ("h", "z"))
            ),
            node("Mul", "a g", "z", "other"),
        ]
        refused(model(nodes, {"a": [2]}, ["g"], imports=imports), "depends on its own result")


class TestNesting:
    def test_graphs_in_graphs(self) -> None:
        """1,000 branches in each other, as a message and as a file, which protobuf does not read."""
        proto = model([], {"x": [2], "k": (TensorProto.BOOL, [])}, ["y"])
        graph = proto.graph
        for level in range(1000):
            inner = graph.node.add(op_type="If", name=f"if{level}", input=["k"], output=["y"])
            attribute = inner.attribute.add(name="then_branch", type=AttributeProto.GRAPH)
            attribute.g.output.add(name="y")
            graph = attribute.g
        graph.node.append(node("Relu", "x", "y"))
        refused(proto, "node 'if0' (If): graphs are nested too deeply, more than 32")
        data = proto.SerializeToString()
        refused(data, "node 'if0': graphs are nested too deeply, more than 32")
        refused(data[:-1000], "truncated")

    def test_loops_in_loops(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("glowtrain.onnx_io.control.MOST_STEPS", 60)
        assert load(loops(1, 7)).outputs["y"].shape == (1,)  # type: ignore[union-attr]
        refused(loops(1, 8), "node 'loop0' (Loop): with it, more than 60 steps of loops would be unrolled")


class TestCalls:
    def calls(self, names: list[tuple[str, list[str]]]) -> ModelProto:
        """A model with functions, each calling others one after another, else Relu; the first is called."""
        functions = []
        for name, callees in names:
            steps = [("d", callee) for callee in callees] or [("", "Relu")]
            body = [
                helper.make_node(op, [f"v{i}"], [f"v{i + 1}"], domain=domain) for i, (domain, op) in enumerate(steps)
            ]
            imports = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
            functions.append(helper.make_function("d", name, ["v0"], [f"v{len(steps)}"], body, imports))
        call = helper.make_node(names[0][0], ["x"], ["y"], "call", domain="d")
        return model([call], {"x": [3]}, ["y"], functions=functions, imports=[helper.make_opsetid("d", 1)])

    def test_a_circle_is_named(self) -> None:
        refused(
            self.calls([("f", ["g"]), ("g", ["h"]), ("h", ["g"])]),
            "function d.g calls itself: d.g -> d.h -> d.g",
        )

    def test_a_long_chain(self) -> None:
        def chain(length: int) -> ModelProto:
            return self.calls([*((f"f{i}", [f"f{i + 1}"]) for i in range(length - 1)), (f"f{length - 1}", [])])

        assert len(load(chain(100)).nodes) == 1  # type: ignore[union-attr]
        refused(chain(1000), "calls are nested too deeply", "at most 100")

    def test_functions_that_multiply(self) -> None:
        """Each of 40 functions calls the next one twice: 2⁴⁰ nodes of a file of some kilobytes."""
        doubling = [*((f"f{i}", [f"f{i + 1}"] * 2) for i in range(40)), ("f40", [])]
        refused(self.calls(doubling), f"d.f0 ...) it has {1 << 40} nodes")
        assert len(load(self.calls(doubling[34:])).nodes) == 64  # type: ignore[union-attr]

    def test_a_function_that_is_defined_twice(self) -> None:
        refused(self.calls([("f", []), ("f", [])]), "function d.f is defined twice")


class TestSparse:
    def sparse(self, indices: object, dims: list[int]) -> ModelProto:
        values = numpy_helper.from_array(np.ones(2, np.float32), "w")
        tensor = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array(indices, np.int64), "i"), dims)
        proto = model([node("Add", "x w", "y")], {"x": [3]}, ["y"])
        proto.graph.sparse_initializer.append(tensor)
        return proto

    def test_a_sound_one(self) -> None:
        assert load(self.sparse([0, 2], [3])).outputs["y"].shape == (3,)  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        ("indices", "dims", "message"),
        [
            ([0, 3], [3], "out of bounds"),
            ([-1, 2], [3], "an index is negative"),
            ([[0, 0], [4, 4]], [3, 3], "invalid entry in coordinates array"),
            ([0, 1, 2], [3], "do not fit"),
            ([0, 1], [1 << 40, 1 << 40], "too large"),
            ([0, 1], [-3], "is negative or too large"),
        ],
    )
    def test_places_outside(self, indices: object, dims: list[int], message: str) -> None:
        refused(self.sparse(indices, dims), "sparse tensor 'w'", message)
