"""What is bound by a call besides shapes: elements that decide about shapes, sequences, optionals; control flow; sizes
that are found at run time. The oracle is ONNX Runtime, or ONNX's own reference where that has the operator."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import glowtrain as gt
from glowtrain import load
from glowtrain.errors import BindingError, InputError, ModelError, UnknownValueError
from glowtrain.graph import OPERATORS, Operand, Ragged, Value
from glowtrain.ops.reduce.reduction import ReduceSum
from glowtrain.ops.tensor.move import Unsqueeze
from glowtrain.types import Array
from tests.onnx_io.onnx_models import checked, model, node

F, I64, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name: str, dtype: int = F, shape: Any = None) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def body(nodes: list[Any], inputs: list[Any], outputs: list[str], **initializers: Array) -> Any:
    tensors = [numpy_helper.from_array(array, name) for name, array in initializers.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in outputs]
    return helper.make_graph(nodes, "body", inputs, results, tensors)


def same_as_reference(proto: ModelProto, *calls: Mapping[str, Any]) -> gt.compiler.Function:
    """Compiled and interpreted results of some calls, compared with ONNX's reference; the compiled function."""
    oracle = ReferenceEvaluator(proto)
    functions = [gt.compile(load(proto), backend=name) for name in ("interpreter", "cpu")]
    for feeds in calls:
        expected = dict(zip(oracle.output_names, oracle.run(None, dict(feeds)), strict=True))
        for function in functions:
            results = function(feeds)
            for name, wanted in expected.items():
                _same(results[name], wanted)
    return functions[1]


def _same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, list):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            _same(one, other)
    elif wanted is None:
        assert found is None
    else:
        assert found.dtype == wanted.dtype
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


X = np.arange(12, dtype=np.float32).reshape(3, 4) - 5


class TestValues:
    def reshaping(self) -> ModelProto:
        return model([node("Reshape", "x s", "y")], {"x": [3, 4], "s": (I64, [2])}, ["y"])

    def test_a_call_gives_what_shapes_depend_on(self) -> None:
        calls = [{"x": X, "s": np.array(shape)} for shape in ([4, 3], [2, -1], [12, 1])]
        same_as_reference(self.reshaping(), *calls)

    def test_one_specialisation_for_each_value(self) -> None:
        function = gt.compile(load(self.reshaping()))
        first = function.specialised({"x": X, "s": np.array([4, 3])})
        assert function.specialised({"x": X + 1, "s": np.array([4, 3])}) is first
        assert function.specialised({"x": X, "s": np.array([3, 4])}) is not first

    def test_values_bound_when_loading_are_no_inputs(self) -> None:
        graph = load(self.reshaping(), values={"s": [6, 2]})
        assert isinstance(graph, gt.Graph)
        assert [value.name for value in graph.inputs] == ["x"]
        assert gt.compile(graph)({"x": X})["y"].shape == (6, 2)

    def test_values_and_dimensions(self) -> None:
        proto = model([node("Reshape", "x s", "y")], {"x": ["n", 4], "s": (I64, [2])}, ["y"])
        template = load(proto, values={"s": [-1, 2]})
        assert isinstance(template, gt.Template)
        assert list(template.inputs) == ["x"]
        assert template.bind({"n": 5}).outputs["y"].shape == (10, 2)
        same_as_reference(proto, *({"x": X[:n], "s": np.array([-1, 2])} for n in (1, 3)))

    def test_values_through_other_operators(self) -> None:
        nodes = [node("Add", "s one", "t"), node("Concat", "t one", "u", axis=0), node("Expand", "x u", "y")]
        proto = model(nodes, {"x": [3, 1], "s": (I64, [1])}, ["y"], {"one": ints(1)})
        same_as_reference(proto, {"x": X[:, :1], "s": ints(2)}, {"x": X[:, :1], "s": ints(0)})

    def test_a_value_that_does_not_fit(self) -> None:
        with pytest.raises(BindingError, match="input s is i64"):
            load(self.reshaping(), values={"s": [1, 2, 3]})
        with pytest.raises(BindingError, match="no input 't'"):
            load(self.reshaping(), values={"t": [1]})
        with pytest.raises(InputError, match="'s' must be i64"):
            gt.compile(load(self.reshaping()))({"x": X, "s": np.array([3.0, 4.0])})

    def test_what_is_missing_is_named(self) -> None:
        template = load(self.reshaping())
        assert isinstance(template, gt.Template)
        with pytest.raises(UnknownValueError, match=r"shape, 's'.*must be known.*values=\{'s'"):
            template.bind({})

    def test_shapes_do_not_depend_on_large_tensors(self) -> None:
        nodes = [
            node("ReduceSum", "x", "t", keepdims=0),
            node("Cast", "t", "u", to=I64),
            node("ConstantOfShape", "v", "y"),
        ]
        nodes.insert(2, node("Reshape", "u one", "v"))
        with pytest.raises(ModelError, match="must be known"):
            load(model(nodes, {"x": [64, 64]}, ["y"], {"one": ints(1)}))


class TestSequences:
    def test_a_sequence_goes_in_and_comes_out(self) -> None:
        nodes = [
            node("SequenceInsert", "s x p", "t"),
            node("SequenceErase", "t z", "y"),
            node("SequenceLength", "y", "n"),
        ]
        proto = model(nodes, {"x": [2]}, ["y", "n"], {"p": np.array(-1), "z": np.array(0)})
        proto.graph.input.append(helper.make_tensor_sequence_value_info("s", F, None))
        items = [np.arange(k, dtype=np.float32) for k in (3, 1, 2)]
        same_as_reference(proto, {"x": X[0, :2], "s": items}, {"x": X[0, :2], "s": items[:1]})

    def test_map_and_join(self) -> None:
        inner = body([node("Mul", "a b", "c")], [info("a"), info("b")], ["c"])
        nodes = [
            node("SplitToSequence", "x two", "s", axis=1),
            node("SequenceMap", "s x1", "t", body=inner),
            node("ConcatFromSequence", "t", "y", axis=1),
        ]
        same_as_reference(
            model(nodes, {"x": [3, 4], "x1": [3, 1]}, ["y"], {"two": np.array(2)}), {"x": X, "x1": X[:, :1]}
        )

    def test_a_call_with_something_else(self) -> None:
        proto = model([node("SequenceLength", "s", "n")], {}, ["n"])
        proto.graph.input.append(helper.make_tensor_sequence_value_info("s", F, None))
        function = gt.compile(load(proto))
        with pytest.raises(InputError, match="'s' is a sequence"):
            function({"s": X})
        with pytest.raises(InputError, match="holds f32, not int64"):
            function({"s": [np.arange(3)]})
        with pytest.raises(InputError, match="'s' is missing"):
            function({})

    def test_a_position_outside(self) -> None:
        nodes = [node("SequenceConstruct", "x x", "s"), node("SequenceAt", "s p", "y", "pick")]
        with pytest.raises(ModelError, match="'pick'.*position 2 is outside a sequence of 2"):
            load(model(nodes, {"x": [2]}, ["y"], {"p": np.array(2)}))

    def test_an_optional_may_be_absent(self) -> None:
        proto = model([node("OptionalHasElement", "o", "y")], {}, ["y"])
        optional = helper.make_optional_type_proto(helper.make_tensor_type_proto(F, None))
        proto.graph.input.append(helper.make_value_info("o", optional))
        same_as_reference(proto, {"o": X}, {"o": None})


class TestControlFlow:
    def choosing(self, then: Any, otherwise: Any) -> ModelProto:
        branch = node("If", "c", "y", "choose", then_branch=then, else_branch=otherwise)
        return model([branch], {"x": [3, 4], "c": (B, [])}, ["y"])

    def test_a_condition_that_is_computed(self) -> None:
        proto = self.choosing(body([node("Relu", "x", "t")], [], ["t"]), body([node("Neg", "x", "e")], [], ["e"]))
        calls = [{"x": X, "c": np.array(flag)} for flag in (True, False)]
        assert isinstance(load(proto), gt.Graph)
        same_as_reference(proto, *calls)

    def test_branches_of_different_shapes_are_specialised(self) -> None:
        flat = body([node("Flatten", "x", "e", axis=0)], [], ["e"])
        proto = self.choosing(body([node("Relu", "x", "t")], [], ["t"]), flat)
        same_as_reference(proto, *({"x": X, "c": np.array(flag)} for flag in (True, False)))

    def looping(self, nodes: list[Any], outputs: list[str], **inputs: Any) -> ModelProto:
        inner = body(nodes, [info("i", I64, []), info("going", B, []), info("h", F, [4])], ["kept", "next", "row"])
        constants = {"limit": np.array(40, np.float32), "yes": np.array(True)}
        return model([node("Loop", "n yes h0", "h rows", body=inner)], {"h0": [4], **inputs}, outputs, constants)

    def test_a_branch_that_is_not_valid_for_these_shapes(self) -> None:
        """As in detectors of speech, which have a network for each rate: an input fits only the one that it is for."""
        branches = {
            "then_branch": body([node("Reshape", "x three", "t")], [], ["t"], three=ints(-1, 3)),
            "else_branch": body([node("Reshape", "x four", "e")], [], ["e"], four=ints(-1, 4)),
        }
        proto = model([node("If", "c", "y", **branches)], {"x": ["n"], "c": (B, [])}, ["y"])
        calls = [
            {"x": np.ones(6, np.float32), "c": np.array(True)},
            {"x": np.ones(8, np.float32), "c": np.array(False)},
        ]
        assert same_as_reference(proto, *calls) is not None
        with pytest.raises(ModelError, match=r"8.*cannot|into|elements"):
            gt.compile(load(proto), "interpreter")({"x": np.ones(8, np.float32), "c": np.array(True)})

    @pytest.mark.parametrize("steps", [1, 3, 20])
    def test_a_loop_with_a_known_count(self, steps: int) -> None:
        nodes = [node("Identity", "going", "kept"), node("Add", "h h", "next"), node("Identity", "h", "row")]
        proto = self.looping(nodes, ["h", "rows"], n=(I64, []))
        same_as_reference(proto, {"h0": X[0] / 1e3, "n": np.array(steps)})

    def test_a_loop_without_steps(self) -> None:
        nodes = [node("Identity", "going", "kept"), node("Add", "h h", "next"), node("Identity", "h", "row")]
        proto = self.looping(nodes, ["h", "rows"], n=(I64, []))
        proto.graph.node[0].attribute[0].g.output[2].CopyFrom(info("row", F, [4]))
        results = gt.compile(load(proto))({"h0": X[0], "n": np.array(0)})
        np.testing.assert_array_equal(results["h"], X[0])
        assert results["rows"].shape == (0, 4)

    def test_a_loop_that_stops_on_data(self) -> None:
        nodes = [
            node("Add", "h h", "next"), node("ReduceMax", "next", "most", keepdims=0),
            node("Less", "most limit", "kept"), node("Identity", "next", "row"),
        ]  # fmt: skip
        proto = self.looping(nodes, ["h", "rows"], n=(I64, []))
        starts = [np.full(4, start, np.float32) for start in (1, 3, 50)]
        same_as_reference(proto, *({"h0": start, "n": np.array(30)} for start in starts))

    def test_a_loop_whose_state_grows(self) -> None:
        nodes = [node("Concat", "h x", "next", axis=0), node("Identity", "going", "kept")]
        inner = body(nodes, [info("i", I64, []), info("going", B, []), info("h")], ["kept", "next"])
        proto = model(
            [node("Loop", "n yes x", "y", body=inner)], {"x": [2]}, ["y"], {"n": np.array(12), "yes": np.array(True)}
        )
        same_as_reference(proto, {"x": X[0, :2]})

    @pytest.mark.parametrize("count", ["n", "_"])
    @pytest.mark.parametrize("limit", [1, 5, 30])
    def test_a_loop_that_counts(self, limit: int, count: str) -> None:
        """``while k < limit`` as exporters write it: no data decides, so every shape is known."""
        nodes = [
            node("Add", "k one", "k2"), node("Less", "k2 limit", "kept"), node("Add", "h h0", "next"),
            node("Identity", "next", "row"),
        ]  # fmt: skip
        declared = [info("i", I64, []), info("going", B, []), info("k", I64, []), info("h", F, [4])]
        inner = body(nodes, declared, ["kept", "k2", "next", "row"], one=np.array(1))
        outer = [node("Loop", f"{count} yes zero h0", "k_end h rows", body=inner), node("Shape", "rows", "shape")]
        constants = {"yes": np.array(True), "zero": np.array(0), "limit": np.array(limit), "n": np.array(1000)}
        proto = model(outer, {"h0": [4]}, ["h", "rows", "shape"], constants)
        graph = load(proto)
        assert isinstance(graph, gt.Graph)
        assert graph.outputs["rows"].shape == (limit, 4)
        same_as_reference(proto, {"h0": X[0]})

    def test_a_loop_without_an_end_is_refused(self) -> None:
        nodes = [node("Identity", "going", "kept"), node("Add", "h h", "next"), node("Identity", "h", "row")]
        inner = body(nodes, [info("i", I64, []), info("going", B, []), info("h", F, [4])], ["kept", "next", "row"])
        proto = model(
            [node("Loop", "_ yes h0", "h", "endless", body=inner)], {"h0": [4]}, ["h"], {"yes": np.array(True)}
        )
        with pytest.raises(ModelError, match="'endless'.*more than 4096 steps"):
            load(proto)


@dataclass(frozen=True)
class Spread(gt.Operator):
    """A row and, below it, the row minus its sum."""

    domain = "example"
    onnx = "Spread"

    def infer(self, *inputs: gt.TensorType) -> gt.TensorType:
        return inputs[0].with_shape((2, *inputs[0].shape))

    def reference(self, x: Array) -> Array:
        return np.stack([x, x - x.sum()])

    def decompose(self, x: Value) -> Value:
        return gt.nn.concat([Unsqueeze((0,))(x), Unsqueeze((0,))(x - gt.nn.total(x))], axis=0)

    def counted(self, *operands: Operand) -> list[Value | None]:
        return ReduceSum(axes=(0,)).counted(*operands)

    def follow(self, result: Value, *operands: Operand) -> Ragged:
        (row,) = operands
        assert isinstance(row, Ragged)
        return Ragged(result, row.axis + 1, row.size)


class TestFoundSizes:
    """Sizes that data decides, and what reads such tensors."""

    MASKED = np.where(np.arange(12).reshape(3, 4) % 3 == 0, 0, X).astype(np.float32)

    @pytest.mark.parametrize("x", [MASKED, X * 0, X + 100], ids=["some", "none", "all"])
    def test_readers(self, x: Array) -> None:
        nodes = [
            node("NonZero", "x", "where"), node("Transpose", "where", "tuples", perm=[1, 0]),
            node("GatherND", "x tuples", "found"), node("Mul", "found two", "twice"),
            node("Unsqueeze", "twice one", "column"), node("ReduceSum", "found", "total", keepdims=0),
            node("Cast", "tuples", "floats", to=F), node("Concat", "floats column", "rows", axis=1),
            node("Slice", "rows zero two_ zero", "first"), node("Shape", "rows", "shape"),
            node("ReduceMax", "rows one", "largest", keepdims=0),
        ]  # fmt: skip
        constants = {"two": np.array(2, np.float32), "one": ints(1), "zero": ints(0), "two_": ints(2)}
        outputs = ["where", "found", "column", "total", "rows", "first", "shape", "largest"]
        same_as_reference(model(nodes, {"x": [3, 4]}, outputs, constants), {"x": x})

    def test_selected_rows(self) -> None:
        nodes = [
            node("Greater", "s half", "mask"), node("Compress", "x mask", "rows", axis=0),
            node("Gather", "rows last", "end", axis=0), node("Gather", "rows last", "column", axis=1),
            node("ReduceMean", "rows one", "means", keepdims=0),
        ]  # fmt: skip
        constants = {"half": np.float32(0.5), "last": ints(-1), "one": ints(1)}
        proto = model(nodes, {"x": [3, 4], "s": [3]}, ["rows", "end", "column", "means"], constants)
        same_as_reference(proto, *({"x": X, "s": np.array(s, np.float32)} for s in ([1, 0, 1], [0, 1, 0])))

    def test_an_operator_of_ones_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It says where the axis goes, and what to compute with in place of what lies past the size."""
        monkeypatch.setitem(OPERATORS, Spread.key(), Spread)
        nodes = [
            node("NonZero", "x", "where"), node("Transpose", "where", "tuples", perm=[1, 0]),
            node("GatherND", "x tuples", "found"), node("Spread", "found", "y", domain="example"),
        ]  # fmt: skip
        proto = model(nodes, {"x": [3, 4]}, ["y"], imports=[helper.make_opsetid("example", 1)])
        for backend in ("interpreter", "cpu"):
            y = gt.compile(load(proto), backend=backend)({"x": self.MASKED})["y"]
            found = self.MASKED[self.MASKED != 0]
            np.testing.assert_allclose(y, np.stack([found, found - found.sum()]), rtol=1e-6)

    @pytest.mark.parametrize(
        ("reader", "message"),
        [
            (node("ReduceMean", "floats zero", "y"), "ReduceMean runs over an axis whose size is found"),
            (node("Reshape", "floats flat", "y"), "Reshape joins an axis"),
            (node("Slice", "floats one last zero", "y"), "Slice of an axis.*only the first elements"),
            (node("Concat", "floats floats", "y", axis=0), "Concat along an axis"),
            (node("Mul", "floats where", "y"), "Mul broadcasts different axes"),
        ],
        ids=lambda value: value.op_type if hasattr(value, "op_type") else "",
    )
    def test_what_cannot_be_followed(self, reader: Any, message: str) -> None:
        nodes = [
            node("NonZero", "x", "places"), node("Cast", "places", "where", to=F),
            node("Transpose", "where", "floats", perm=[1, 0]), reader,
        ]  # fmt: skip
        constants = {"zero": ints(0), "one": ints(1), "last": ints(4), "flat": ints(-1)}
        with pytest.raises(ModelError, match=message):
            load(model(nodes, {"x": [1, 2]}, ["y"], constants))

    def test_what_has_no_rule_is_named(self) -> None:
        nodes = [node("NonZero", "x", "where"), node("Softmax", "f", "y", "soft", axis=1)]
        nodes.insert(1, node("Cast", "where", "f", to=F))
        with pytest.raises(ModelError, match="'soft'|Softmax.*size is found at run time"):
            load(model(nodes, {"x": [3, 4]}, ["y"]))

    def test_a_saved_model_cuts_what_it_returns(self) -> None:
        nodes = [
            node("Greater", "s half", "mask"), node("Compress", "x mask", "rows", axis=0), node("Exp", "rows", "y"),
        ]  # fmt: skip
        proto = model(nodes, {"x": [3, 4], "s": [3]}, ["rows", "y"], {"half": np.float32(0.5)})
        feeds = {"x": X, "s": np.array([1, 0, 1], np.float32)}
        graph = load(proto)
        assert isinstance(graph, gt.Graph)
        saved = checked(gt.save(graph))
        assert [output.name for output in saved.graph.output] == ["rows", "y"]
        rows, y = ReferenceEvaluator(saved).run(None, feeds)
        _same(rows, X[[0, 2]])
        _same(y, np.exp(X[[0, 2]]))

    def test_a_loss_over_a_found_size_is_refused(self) -> None:
        nodes = [node("Mul", "x w", "h"), node("Greater", "x w", "mask"), node("Compress", "h mask", "y")]
        graph = load(model(nodes, {"x": [4]}, ["y"], {"w": np.ones(4, np.float32)}))
        with pytest.raises(InputError, match="size of output 'y' is found at run time"):
            gt.Trainer(graph, gt.losses.mse(), gt.optim.SGD(lr=0.1))

    def test_a_detector_tail(self) -> None:
        """Boxes and scores, suppression, and the boxes that are kept: as detectors end."""
        random = np.random.default_rng(0)
        corners = random.random((1, 30, 2)).astype(np.float32)
        boxes = np.concatenate([corners, corners + random.random((1, 30, 2)).astype(np.float32)], axis=2)
        nodes = [
            node("NonMaxSuppression", "boxes scores most overlap least", "kept"),
            node("Gather", "kept two", "places", axis=1), node("Squeeze", "places one", "flat"),
            node("Squeeze", "boxes zero", "all"), node("Gather", "all flat", "y", axis=0),
        ]  # fmt: skip
        constants = {
            "most": ints(10), "overlap": np.array([0.4], np.float32), "least": np.array([0.3], np.float32),
            "two": ints(2), "one": ints(1), "zero": ints(0),
        }  # fmt: skip
        scores = random.random((1, 2, 30)).astype(np.float32)
        proto = model(nodes, {"boxes": [1, 30, 4], "scores": [1, 2, 30]}, ["kept", "y"], constants)
        same_as_reference(proto, {"boxes": boxes, "scores": scores})
