"""Broken and unsupported models: a clear error that names what is wrong, never a bare traceback."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import AttributeProto, ModelProto, TensorProto, helper, numpy_helper

from glowtrain import load
from glowtrain.errors import GlowtrainError, InputError, UnsupportedOperatorError
from tests.onnx_io.onnx_models import mlp, model, node
from tests.onnx_io.refusing import load_and_bind, refused


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

    def test_an_archive(self, tmp_path: Path) -> None:
        with zipfile.ZipFile(tmp_path / "module.pt", "w") as archive:
            archive.writestr("module/data.pkl", b"\x80\x02.")
        refused(tmp_path / "module.pt", "module.pt is an archive, as PyTorch and NumPy write, not an ONNX model")
        refused(tmp_path / "module.pt", "exporting.md")

    def test_a_name_that_no_file_has(self) -> None:
        refused("a\0b.onnx", r"cannot read 'a\x00b.onnx': no file has such a name")

    @pytest.mark.parametrize(
        "source", [5, None, mlp().graph, io.StringIO("text")], ids=lambda source: type(source).__name__
    )
    def test_what_is_no_source(self, source: object) -> None:
        with pytest.raises(
            InputError, match=f"load takes a path, bytes, a binary file .*, not .*{type(source).__name__}"
        ):
            load(source)  # type: ignore[arg-type]

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

    @pytest.mark.parametrize("code", [TensorProto.COMPLEX64, TensorProto.COMPLEX128, 12345])
    def test_element_types_that_are_not_supported(self, code: int) -> None:
        def retype(tensor: TensorProto) -> None:
            tensor.data_type = code

        refused(with_tensor(retype), "initializer 'w': element type", "is not supported")

    def test_strings_where_a_node_reads_numbers(self) -> None:
        def retype(tensor: TensorProto) -> None:
            tensor.data_type = TensorProto.STRING

        refused(with_tensor(retype), "Add", "unsupported type: tensor(string)")

    def test_an_input_that_overflows(self) -> None:
        refused(model([node("Relu", "x", "y")], {"x": [1 << 31, 1 << 31]}, ["y"]), "input 'x'", "overflows")

    def test_an_input_without_shape(self) -> None:
        proto = model([node("Relu", "x", "y")], {"x": None}, ["y"])
        refused(proto, "input 'x' has no shape")


class TestExternalData:
    def saved(self, folder: Path) -> ModelProto:
        onnx.save(mlp(), folder / "m.onnx", save_as_external_data=True, size_threshold=0, location="m.data")
        return onnx.load(folder / "m.onnx", load_external_data=False)

    def changed(self, folder: Path, key: str, value: str) -> None:
        """A model whose tensors have another entry about where their data lie."""
        proto = self.saved(folder)
        for tensor in proto.graph.initializer:
            next(entry for entry in tensor.external_data if entry.key == key).value = value
        (folder / "bad.onnx").write_bytes(proto.SerializeToString())

    def test_a_missing_data_file(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        (tmp_path / "m.data").unlink()
        refused(tmp_path / "m.onnx", "its data file", "m.data cannot be read: No such file or directory")

    def test_a_data_file_that_is_too_short(self, tmp_path: Path) -> None:
        self.saved(tmp_path)
        (tmp_path / "m.data").write_bytes(b"1234567")
        refused(tmp_path / "m.onnx", "initializer 'fc1.weight': its data are bytes 0 to 120 of", "m.data, which has 7")

    @pytest.mark.parametrize(
        ("key", "value"), [("length", "-1"), ("length", "400"), ("offset", "-4"), ("offset", "9" * 30)]
    )
    def test_data_that_lie_outside_of_their_file(self, tmp_path: Path, key: str, value: str) -> None:
        self.changed(tmp_path, key, value)
        refused(tmp_path / "bad.onnx", "initializer 'fc1.weight': its data are bytes ", "m.data, which has 212")

    def test_a_location_that_no_file_has(self, tmp_path: Path) -> None:
        self.changed(tmp_path, "location", "a\0b")
        refused(tmp_path / "bad.onnx", r"its data file 'a\x00b' cannot be found")

    def test_a_link_to_itself(self, tmp_path: Path) -> None:
        (tmp_path / "circle").symlink_to("circle")
        self.changed(tmp_path, "location", "circle")
        refused(tmp_path / "bad.onnx", "its data file 'circle' cannot be found")

    def test_a_pipe_is_not_waited_for(self, tmp_path: Path) -> None:
        os.mkfifo(tmp_path / "pipe")
        self.changed(tmp_path, "location", "pipe")
        pipe = os.open(tmp_path / "pipe", os.O_RDWR)  # with a writer, so that a reader would not wait for ever
        os.write(pipe, bytes(120))
        refused(tmp_path / "bad.onnx", "pipe is not a regular file")
        os.close(pipe)

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

    @pytest.mark.parametrize("key", ["offset", "length"])
    @pytest.mark.parametrize("value", ["some", "", " 0 ", "0\n", "+0", "1_0", "0x0", "٣", "1.0", "9" * 5000])
    def test_offsets_and_lengths_that_are_no_decimal_numbers(self, tmp_path: Path, key: str, value: str) -> None:
        self.changed(tmp_path, key, value)
        refused(tmp_path / "bad.onnx", "offset and length of external data must be numbers in decimal digits", key)

    def test_a_file_that_is_too_large_is_not_read(self, tmp_path: Path) -> None:
        """Without ``length`` the data go to the end of their file, which may be sparse and larger than any memory."""
        proto = self.saved(tmp_path)
        for tensor in proto.graph.initializer:
            del tensor.external_data[1:]
        os.truncate(tmp_path / "m.data", 1 << 42)
        (tmp_path / "bad.onnx").write_bytes(proto.SerializeToString())
        refused(tmp_path / "bad.onnx", "f32[5, 6] needs 120 bytes but the file holds 4398046511104")

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

    def test_a_constant_of_text_where_numbers_are_stated(self) -> None:
        proto = model([node("Constant", "", "y", "c", value_string="text")], {"x": [2]}, ["y"])
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT
        refused(proto, "'c' (Constant)", "'y' is of another type")

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
