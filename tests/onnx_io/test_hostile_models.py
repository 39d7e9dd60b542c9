"""Models that ask for endless time, memory or stack, and numbers at the ends of their ranges: refused, or right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper

import glowtrain as gt
from glowtrain import load
from glowtrain.graph import Graph
from tests.onnx_io.onnx_models import interpreted, model, node
from tests.onnx_io.refusing import refused


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

    @pytest.mark.parametrize("rank", [65, 127])
    def test_more_axes_than_numpy_has(self, rank: int) -> None:
        what = f"a tensor of {rank} axes: there can be 64 at most"
        wide = {"s": np.ones(rank, np.int64)}
        refused(model([node("Reshape", "x s", "y", "wide")], {"x": [1]}, ["y"], wide), f"node 'wide' (Reshape): {what}")
        refused(model([node("Relu", "x", "y")], {"x": [1] * rank}, ["y"]), f"input 'x': {what}")
        proto = model([node("Add", "x w", "y")], {"x": [1]}, ["y"])
        proto.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [1] * rank, [1.0]))
        refused(proto, f"initializer 'w': {what}")

    def test_a_loop_of_more_steps_than_memory_can_count(self) -> None:
        value = helper.make_empty_tensor_value_info
        declared = [helper.make_tensor_value_info(name, *type_) for name, type_ in (("i", (7, [])), ("c", (9, [])))]
        declared.append(helper.make_tensor_value_info("s", 1, [1]))
        steps = [node("Identity", "c", "d"), node("Add", "s s", "t")]
        body = helper.make_graph(steps, "body", declared, [value("d"), value("t")])
        proto = model([node("Loop", "n _ x", "y", "rounds", body=body)], {"x": [1]}, ["y"], {"n": np.array(10**12)})
        refused(proto, "node 'rounds' (Loop): it runs for 1,000,000,000,000 steps", "16,777,216 at most")

    @pytest.mark.parametrize("name", ["", "body"])
    def test_a_body_that_takes_another_number_of_inputs(self, name: str) -> None:
        value = helper.make_empty_tensor_value_info
        steps = [node("Relu", "x", "t"), node("Cast", "x", "d", to=TensorProto.BOOL)]
        body = helper.make_graph(steps, "body", [], [value("d"), value("t")])
        body.name = name
        proto = model([node("Loop", "n _ x", "y", "rounds", body=body)], {"x": [1]}, ["y"], {"n": np.array(3)})
        what = f"subgraph {name!r}" if name else "subgraph"
        refused(proto, f"node 'rounds' (Loop): its {what} takes 0 inputs, not 3")

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
        monkeypatch.setattr("glowtrain.onnx_io.read.rules.control.MOST_STEPS", 60)
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
