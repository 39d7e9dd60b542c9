"""Older forms of operators mean in Glowtrain what they mean in ONNX Runtime, and no change of a signature is missed."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, defs, helper

import glowtrain as gt
from glowtrain.errors import ModelError
from glowtrain.graph import Graph
from glowtrain.onnx_io.read.upgrade.opset_7_up import STEPS
from glowtrain.types import Array
from tests.onnx_io.onnx_models import in_onnx_runtime, interpreted, model, node

X = np.random.default_rng(0).standard_normal((2, 4, 3)).astype(np.float32)
IMAGE = np.random.default_rng(1).standard_normal((1, 4, 5, 6)).astype(np.float32)
SETTINGS = np.random.default_rng(2).uniform(0.5, 2, (4, 4)).astype(np.float32)
CHANNELS = dict(zip(("scale", "bias", "mean", "var"), SETTINGS, strict=True))
ROIS = np.array([[0.2, 0.4, 3.5, 4.1], [1, 1, 4, 3]], np.float32)
GRID = np.random.default_rng(3).uniform(-1, 1, (1, 3, 3, 2)).astype(np.float32)
Case = tuple[str, int, dict[str, Array], dict[str, Any], int]
"""An operator, an operator set, its inputs by name, attributes, and the number of outputs."""


def cases() -> Iterator[Case]:
    for kind in ("Softmax", "LogSoftmax", "Hardmax"):
        for opset, attributes in ((7, {}), (10, {"axis": 2}), (11, {"axis": -2}), (12, {"axis": 0}), (13, {})):
            yield kind, opset, {"x": X}, attributes, 1
    for kind in ("Sum", "Max", "Min", "Mean", "Prod", "L1", "L2", "LogSumExp", "SumSquare", "LogSum"):
        positive = np.abs(X) + 0.5
        for opset, attributes in ((8, {}), (11, {"axes": [-1], "keepdims": 0}), (12, {"axes": [0, 2]})):
            yield f"Reduce{kind}", opset, {"x": positive}, attributes, 1
        if kind != "Sum":
            yield f"Reduce{kind}", 17, {"x": positive}, {"axes": [1]}, 1
    yield from moves()
    yield from images()


def moves() -> Iterator[Case]:
    yield "Clip", 9, {"x": X}, {"min": -0.5, "max": 0.25}, 1
    yield "Clip", 10, {"x": X}, {"max": 0.25}, 1
    for dtype in (np.float32, np.float64):
        yield "Pad", 7, {"x": X.astype(dtype)}, {"pads": [0, 1, 0, 1, 0, 2], "value": 0.5}, 1
    yield "Pad", 10, {"x": X}, {"pads": [0, 1, 1, 0, 2, 1], "mode": "reflect"}, 1
    yield "Slice", 9, {"x": X}, {"starts": [1, -2], "ends": [3, 99], "axes": [1, 2]}, 1
    yield "Slice", 7, {"x": X}, {"starts": [0, 1], "ends": [1, 3]}, 1
    yield "Split", 7, {"x": X}, {"axis": 1, "split": [1, 3]}, 2
    yield "Split", 11, {"x": X}, {"axis": -2}, 2
    yield "Split", 13, {"x": X}, {"axis": 1}, 4
    yield "Squeeze", 9, {"x": X[None]}, {"axes": [0]}, 1
    yield "Squeeze", 11, {"x": X[:, None]}, {}, 1
    yield "Unsqueeze", 7, {"x": X}, {"axes": [0, 3]}, 1
    yield "Unsqueeze", 12, {"x": X}, {"axes": [-1]}, 1
    yield "TopK", 9, {"x": X}, {"k": 2, "axis": 1}, 2
    yield "TopK", 10, {"x": X, "k": np.array([2])}, {"axis": -1}, 2
    yield "Dropout", 7, {"x": X}, {"ratio": 0.9}, 1
    yield "Dropout", 10, {"x": X}, {}, 1
    yield "Scatter", 9, {"x": X, "at": np.zeros((1, 4, 3), np.int64), "with": X[:1]}, {}, 1
    yield "DequantizeLinear", 10, {"x": np.arange(4, dtype=np.uint8), "s": np.float32(0.5), "z": np.uint8(1)}, {}, 1


def images() -> Iterator[Case]:
    yield "BatchNormalization", 7, {"x": IMAGE, **CHANNELS}, {"spatial": 1, "momentum": 0.5}, 1
    yield "BatchNormalization", 9, {"x": IMAGE, **CHANNELS}, {"epsilon": 0.1}, 1
    yield "Upsample", 7, {"x": IMAGE}, {"scales": [1.0, 1.0, 2.0, 3.0]}, 1
    yield "Upsample", 9, {"x": IMAGE, "s": np.float32([1, 1, 2, 2])}, {"mode": "linear"}, 1
    yield "Resize", 10, {"x": IMAGE, "s": np.float32([1, 1, 0.5, 0.4])}, {}, 1
    yield "Resize", 10, {"x": IMAGE, "s": np.float32([1, 1, 2, 1.5])}, {"mode": "linear"}, 1
    rois = {"x": IMAGE, "rois": ROIS, "batch": np.zeros(2, np.int64)}
    yield "RoiAlign", 10, rois, {"output_height": 2, "output_width": 3, "sampling_ratio": 2}, 1
    yield "RoiAlign", 16, rois, {"output_height": 2, "output_width": 3, "sampling_ratio": 2}, 1
    for mode in ("bilinear", "bicubic", "nearest"):
        yield "GridSample", 16, {"x": IMAGE, "grid": GRID}, {"mode": mode}, 1
    yield "GridSample", 19, {"x": IMAGE, "grid": GRID}, {}, 1
    yield "DFT", 17, {"x": IMAGE[..., None]}, {}, 1
    yield "DFT", 19, {"x": IMAGE[..., None], "n": np.array(4)}, {"axis": 3, "onesided": 1}, 1
    groups = {"x": IMAGE, "scale": np.float32([2, 3]), "bias": np.float32([1, -1])}
    yield "GroupNormalization", 18, groups, {"num_groups": 2}, 1
    yield "MaxPool", 8, {"x": IMAGE}, {"kernel_shape": [2, 2]}, 2
    yield "AveragePool", 7, {"x": IMAGE}, {"kernel_shape": [2, 2], "pads": [1, 1, 1, 1], "count_include_pad": 1}, 1


def proto_of(kind: str, opset: int, inputs: dict[str, Array], attributes: dict[str, Any], outputs: int) -> ModelProto:
    """One node; its first input is the model's, the others are initializers."""
    results = [f"y{place}" for place in range(outputs)]
    first, *others = inputs
    declared = {first: (helper.np_dtype_to_tensor_dtype(inputs[first].dtype), list(inputs[first].shape))}
    made = node(kind, " ".join(inputs), " ".join(results), **attributes)
    return model([made], declared, results, {name: inputs[name] for name in others}, opset=opset, ir_version=8)


@pytest.mark.parametrize("case", list(cases()), ids=lambda case: f"{case[0]}-{case[1]}-{'-'.join(map(str, case[3]))}")
def test_an_old_form_means_what_onnx_runtime_says(case: Case) -> None:
    proto = proto_of(*case)
    name = next(iter(case[2]))
    given = {name: case[2][name]}
    graph = gt.load(proto)
    assert isinstance(graph, Graph)
    found, wanted = interpreted(graph, given), in_onnx_runtime(proto, given)
    for key, array in wanted.items():
        assert found[key].dtype == array.dtype
        np.testing.assert_allclose(found[key], array, rtol=2e-5, atol=2e-5, strict=True)


NEUTRAL = {
    "Scan 9": "directions became scan_input_directions: in the step for its batches",
    "Constant 11": "value is one of several attributes",
    "GroupNormalization 21": "deprecated below 21 only: the step makes its newer form",
    "Scatter 11": "renamed after all steps",
    "Upsample 10": "the step for its coordinates makes it a Resize",
    "Resize 18": "without axes, all of them, as before",
}
"""Changes of signatures that were looked at and have no step at their own place."""

SAME_BY_DEFAULT = {
    "allowzero", "antialias", "axis", "batch_dims", "block_size", "ceil_mode", "dilations", "direction", "end",
    "keep_aspect_ratio_policy", "largest", "layout", "left_window_size", "mode", "noop_with_empty_axes", "num_outputs",
    "output_dtype", "precision", "reduction", "right_window_size", "round_mode", "saturate", "seed",
    "select_last_index", "sorted", "stash_type", "start", "storage_order", "sparse_value", "training_mode",
    "value_float", "value_floats", "value_int", "value_ints", "value_string", "value_strings",
}  # fmt: skip
"""Attributes whose default is what operator sets before them did."""


def incompatible_changes() -> Iterator[tuple[str, int]]:
    """Operators and operator sets at which a node of the version before no longer says the same by its signature."""
    history: dict[str, list[defs.OpSchema]] = defaultdict(list)
    for schema in defs.get_all_schemas_with_history():
        if schema.domain == "":
            history[schema.name].append(schema)
    for name, schemas in history.items():
        schemas.sort(key=lambda schema: schema.since_version)
        for before, after in itertools.pairwise(schemas):
            if after.since_version > 7 and _differs(before, after):
                yield name, after.since_version


def _differs(before: defs.OpSchema, after: defs.OpSchema) -> bool:
    added = set(after.attributes) - set(before.attributes)
    moved = any(_value(before, name) != _value(after, name) for name in set(before.attributes) & set(after.attributes))
    fewer_inputs = len(after.inputs) < len(before.inputs) or len(after.outputs) < len(before.outputs)
    gone = set(before.attributes) - set(after.attributes)
    return bool(
        moved or fewer_inputs or gone or added - SAME_BY_DEFAULT or (after.deprecated and not before.deprecated)
    )


def _value(schema: defs.OpSchema, name: str) -> tuple[bool, bytes]:
    attribute = schema.attributes[name]
    value = attribute.default_value
    known = value.type != AttributeProto.UNDEFINED
    return attribute.required and name != "value", value.SerializeToString() if known else b""


def test_every_change_of_a_signature_has_its_step() -> None:
    changes = list(incompatible_changes())
    assert ("Clip", 11) in changes
    assert ("Softmax", 13) in changes
    missing = [
        (name, version)
        for name, version in changes
        if f"{name} {version}" not in NEUTRAL and version - 1 not in (last for last, _ in STEPS.get(name, ()))
    ]
    assert not missing


def test_bounds_have_the_type_of_what_they_bound() -> None:
    """ONNX Runtime has no such Clip for doubles."""
    x = X.astype(np.float64)
    graph = gt.load(proto_of("Clip", 10, {"x": x}, {"min": 0.25, "max": 0.5}, 1))
    assert isinstance(graph, Graph)
    np.testing.assert_array_equal(interpreted(graph, {"x": x})["y0"], x.clip(0.25, 0.5), strict=True)


class TestOutputsSayWhetherItTrains:
    def test_batch_normalization(self) -> None:
        proto = model(
            [node("BatchNormalization", "x scale bias mean var", "y m v sm sv", momentum=0.75)],
            {"x": list(IMAGE.shape)}, ["y", "m", "v"], CHANNELS, opset=9,
        )  # fmt: skip
        graph = gt.load(proto)
        assert isinstance(graph, Graph)
        found = interpreted(graph, {"x": IMAGE})
        mean = IMAGE.mean((0, 2, 3))
        np.testing.assert_allclose(found["m"], CHANNELS["mean"] * 0.75 + mean * 0.25, rtol=1e-5)
        np.testing.assert_allclose(found["y"].mean((0, 2, 3)), CHANNELS["bias"], atol=1e-5)


class TestNames:
    def test_a_constant_takes_no_name_of_the_model(self) -> None:
        nodes = [node("Squeeze", "x", "y", axes=[0]), node("Neg", "y", "y.axes", "neg"), node("Add", "y y.axes", "z")]
        graph = gt.load(model(nodes, {"x": [1, 3]}, ["z", "y"], opset=11))
        assert isinstance(graph, Graph)
        assert interpreted(graph, {"x": np.ones((1, 3), np.float32)})["z"].tolist() == [0, 0, 0]

    def test_graphs_in_a_graph(self) -> None:
        """Both branches have old nodes, which give the same names."""
        value = helper.make_empty_tensor_value_info
        bodies = {
            f"{name}_branch": helper.make_graph([node("ReduceSum", "x", "t", axes=[axis])], name, [], [value("t")])
            for axis, name in enumerate(("then", "else"))
        }
        proto = model([node("If", "c", "y", **bodies)], {"x": [2, 2], "c": (TensorProto.BOOL, [])}, ["y"], opset=11)
        compiled = gt.compile(gt.load(proto), "interpreter")
        x = np.float32([[1, 2], [3, 4]])
        assert compiled({"x": x, "c": np.array(True)})["y"].tolist() == [[4, 6]]
        assert compiled({"x": x, "c": np.array(False)})["y"].tolist() == [[3], [7]]


class TestFunctions:
    def function(self, opset: int) -> ModelProto:
        """A function with an attribute of its own, at an operator set of its own."""
        inner = helper.make_node("ReduceMean", ["a"], ["m"], keepdims=0)
        axes = inner.attribute.add(name="axes", type=AttributeProto.INTS)
        axes.ref_attr_name = "over"
        made = helper.make_function(
            "mine", "Mean", ["a"], ["r"], [inner, node("Softmax", "m", "r")], [helper.make_opsetid("", opset)], ["over"]
        )
        call = helper.make_node("Mean", ["x"], ["y"], "call", domain="mine", over=[0])
        imports = [helper.make_opsetid("mine", 1)]
        return model([call], {"x": [2, 2, 2]}, ["y"], functions=[made], imports=imports, opset=18)

    @pytest.mark.parametrize("opset", [11, 17])
    def test_a_function_of_an_older_operator_set(self, opset: int) -> None:
        x = np.arange(8, dtype=np.float32).reshape(2, 2, 2)
        graph = gt.load(self.function(opset))
        assert isinstance(graph, Graph)
        e = np.exp(x.mean(0) - x.mean(0).max())
        expected = e / (e.sum(-1, keepdims=True))
        np.testing.assert_allclose(interpreted(graph, {"x": x})["y"], expected, rtol=1e-6)

    def test_an_operator_set_that_does_not_exist(self) -> None:
        proto = self.function(17)
        del proto.functions[0].node[0], proto.functions[0].attribute[:]
        proto.functions[0].node[0].input[0] = "a"
        proto.functions[0].opset_import[0].version = 999
        with pytest.raises(ModelError, match="function Mean uses ONNX opset 999"):
            gt.load(proto)


class TestBrokenNodes:
    def test_statistics_for_each_element(self) -> None:
        proto = proto_of("BatchNormalization", 7, {"x": IMAGE, **CHANNELS}, {"spatial": 0}, 1)
        with pytest.raises(ModelError, match=r"'BatchNormalization_1'.*spatial=0"):
            gt.load(proto)

    def test_an_axis_that_the_operand_lacks(self) -> None:
        with pytest.raises(ModelError, match=r"'Softmax_1'.*axis=5"):
            gt.load(proto_of("Softmax", 12, {"x": X}, {"axis": 5}, 1))

    def test_groups_that_do_not_divide(self) -> None:
        groups = {"x": IMAGE, "scale": np.ones(3, np.float32), "bias": np.ones(3, np.float32)}
        with pytest.raises(ModelError, match="3 groups"):
            gt.load(proto_of("GroupNormalization", 18, groups, {"num_groups": 3}, 1))
