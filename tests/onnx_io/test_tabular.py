"""Models of ai.onnx.ml against ONNX Runtime, compiled and interpreted; and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

import glowtrain as gt
from glowtrain.errors import GlowtrainError
from glowtrain.graph import Graph
from glowtrain.types import Array
from tests.onnx_io.onnx_models import in_onnx_runtime

TABLE = np.round(np.random.default_rng(0).normal(size=(50, 4)) * 2) / 2
LABELS = {"label": TensorProto.INT64, "scores": TensorProto.FLOAT}
SCORES = {"scores": TensorProto.FLOAT}
WEIGHTS: dict[str, Any] = {"coefficients": [1.0, 2, 3, 4, -1, 0, 1, 2], "intercepts": [0.0, 0.5]}


def model(op_type: str, x: Array, outputs: dict[str, int], version: int = 3, **attributes: Any) -> ModelProto:
    given = {name: value for name, value in attributes.items() if value != []}
    node = helper.make_node(op_type, ["x"], list(outputs), domain="ai.onnx.ml", **given)
    types = {np.float32: TensorProto.FLOAT, np.float64: TensorProto.DOUBLE, np.int64: TensorProto.INT64}
    declared = helper.make_tensor_value_info("x", types[x.dtype.type], x.shape)
    results = [helper.make_tensor_value_info(name, type_, None) for name, type_ in outputs.items()]
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", version)]
    graph = helper.make_graph([node], "table", [declared], results)
    return helper.make_model(graph, opset_imports=imports, ir_version=9)


def agrees(proto: ModelProto, x: Array, tolerance: float = 1e-5) -> Graph:
    """Compiled and interpreted results are ONNX Runtime's, also after a save, which ONNX Runtime runs as well."""
    graph = gt.load(proto)
    assert isinstance(graph, Graph)
    expected = in_onnx_runtime(proto, {"x": x})
    saved = gt.save(graph)
    again = gt.load(saved)
    for name, array in in_onnx_runtime(saved, {"x": x}).items():
        np.testing.assert_allclose(array, expected[name], tolerance, tolerance, err_msg=f"saved: {name}")
    for candidate, backend in ((graph, "cpu"), (graph, "interpreter"), (again, "interpreter")):
        found = gt.compile(candidate, backend)({"x": x})
        for name, array in expected.items():
            assert found[name].dtype == array.dtype
            np.testing.assert_allclose(found[name], array, tolerance, tolerance, err_msg=f"{backend}: {name}")
    return graph


def trees(modes: tuple[str, ...], missing: int = 0, count: int = 3, depth: int = 4) -> dict[str, Any]:
    """Complete trees with thresholds that elements of the table meet exactly."""
    random, branches = np.random.default_rng(1), 2**depth - 1
    nodes = [(tree, node) for tree in range(count) for node in range(2 * branches + 1)]
    inner = [node < branches for _, node in nodes]
    return {
        "nodes_treeids": [tree for tree, _ in nodes],
        "nodes_nodeids": [node for _, node in nodes],
        "nodes_featureids": random.integers(0, 4, len(nodes)).tolist(),
        "nodes_modes": [modes[k % len(modes)] if is_inner else "LEAF" for k, is_inner in enumerate(inner)],
        "nodes_values": (random.integers(-2, 3, len(nodes)) / 2).tolist(),
        "nodes_truenodeids": [
            2 * node + 1 if is_inner else 0 for (_, node), is_inner in zip(nodes, inner, strict=True)
        ],
        "nodes_falsenodeids": [
            2 * node + 2 if is_inner else 0 for (_, node), is_inner in zip(nodes, inner, strict=True)
        ],
        "nodes_missing_value_tracks_true": [missing] * len(nodes),
    }


def votes(attributes: dict[str, Any], prefix: str, targets: list[int], *, positive: bool = False) -> dict[str, Any]:
    """A vote of every leaf for every one of ``targets``."""
    kinds = zip(attributes["nodes_treeids"], attributes["nodes_nodeids"], attributes["nodes_modes"], strict=True)
    leaves = [(tree, node) for tree, node, mode in kinds if mode == "LEAF"]
    weights = np.random.default_rng(2).normal(size=len(leaves) * len(targets))
    return {
        f"{prefix}_treeids": [tree for tree, _ in leaves for _ in targets],
        f"{prefix}_nodeids": [node for _, node in leaves for _ in targets],
        f"{prefix}_ids": targets * len(leaves),
        f"{prefix}_weights": (np.abs(weights) / 4 if positive else weights).tolist(),
    }


COMPARISONS = ("BRANCH_LEQ", "BRANCH_LT", "BRANCH_GTE", "BRANCH_GT", "BRANCH_EQ", "BRANCH_NEQ")


class TestTrees:
    @pytest.mark.parametrize("mode", COMPARISONS)
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_comparisons(self, mode: str, dtype: type) -> None:
        attributes = trees((mode,))
        if dtype is np.float64:  # thresholds of double precision
            attributes["nodes_values_as_tensor"] = helper.make_tensor(
                "v", TensorProto.DOUBLE, [len(attributes["nodes_values"])], attributes.pop("nodes_values")
            )
            voted = votes(attributes, "target", [0, 1])
            voted["target_weights_as_tensor"] = helper.make_tensor(
                "w", TensorProto.DOUBLE, [len(voted["target_weights"])], voted.pop("target_weights")
            )
        else:
            voted = votes(attributes, "target", [0, 1])
        x = TABLE.astype(dtype)
        agrees(model("TreeEnsembleRegressor", x, SCORES, n_targets=2, **attributes, **voted), x)

    @pytest.mark.parametrize("missing", [0, 1])
    def test_missing_values(self, missing: int, random: np.random.Generator) -> None:
        """NaN goes where the node says. (Where x ≠ t has NaN go to false, ONNX Runtime does not follow ONNX.)"""
        x = np.where(random.random(TABLE.shape) < 0.3, np.nan, TABLE).astype(np.float32)
        attributes = trees(COMPARISONS[:5], missing)
        agrees(
            model("TreeEnsembleRegressor", x, SCORES, n_targets=1, **attributes, **votes(attributes, "target", [0])), x
        )

    @pytest.mark.parametrize("aggregate", ["SUM", "AVERAGE", "MIN", "MAX"])
    @pytest.mark.parametrize("transform", ["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"])
    def test_aggregates_and_transforms(self, aggregate: str, transform: str) -> None:
        attributes, x = trees(("BRANCH_LEQ",)), TABLE.astype(np.float32)
        proto = model("TreeEnsembleRegressor", x, SCORES, n_targets=3, aggregate_function=aggregate,
                      post_transform=transform, base_values=[0.5, -0.5, 0.1], **attributes,
                      **votes(attributes, "target", [0, 1, 2]))  # fmt: skip
        agrees(proto, x)

    @pytest.mark.parametrize("positive", [True, False])
    @pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX"])
    @pytest.mark.parametrize("base", [[], [0.25]])
    def test_binary_classifier_with_one_score(self, positive: bool, transform: str, base: list[float]) -> None:
        attributes, x = trees(("BRANCH_LEQ",)), TABLE.astype(np.float32)
        voted = votes(attributes, "class", [0], positive=positive)
        proto = model("TreeEnsembleClassifier", x, LABELS, classlabels_int64s=[3, 8], base_values=base,
                      post_transform=transform, **attributes, **voted)  # fmt: skip
        agrees(proto, x)

    @pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
    def test_classifier(self, transform: str, random: np.random.Generator) -> None:
        attributes, x = trees(("BRANCH_LT",)), random.integers(-2, 3, (20, 4))
        proto = model("TreeEnsembleClassifier", x, LABELS, classlabels_int64s=[3, 8, 1], post_transform=transform,
                      base_values=[0.1, 0.2, 0.3], **attributes, **votes(attributes, "class", [0, 1, 2]))  # fmt: skip
        agrees(proto, x)

    def test_deeper_than_one_kernel(self, random: np.random.Generator) -> None:
        """A chain of 40 levels: three walks, one after another."""
        depth = 40
        x = random.uniform(0, depth + 1, (30, 1)).astype(np.float32)
        nodes = range(2 * depth + 1)
        attributes = {
            "nodes_treeids": [0 for _ in nodes],
            "nodes_nodeids": list(nodes),
            "nodes_featureids": [0 for _ in nodes],
            "nodes_modes": ["BRANCH_LT" if node < depth else "LEAF" for node in nodes],
            "nodes_values": [float(node + 1) for node in nodes],
            "nodes_truenodeids": [depth + node if node < depth else 0 for node in nodes],
            "nodes_falsenodeids": [min(node + 1, depth) if node + 1 < depth else 2 * depth if node < depth else 0
                                   for node in nodes],
        }  # fmt: skip
        voted = votes(attributes, "target", [0])
        graph = agrees(model("TreeEnsembleRegressor", x, SCORES, n_targets=1, **attributes, **voted), x)
        assert graph.nodes[0].operator.key() == "ai.onnx.ml.TreeEnsembleRegressor"

    @pytest.mark.parametrize(
        ("name", "value", "message"),
        [
            ("nodes_truenodeids", 99, "node 99 of tree 0, which does not exist"),
            ("nodes_truenodeids", 0, "below itself"),
            ("nodes_featureids", 7, "read feature 7, but there are 4"),
            ("nodes_featureids", -1, "reads feature -1"),
            ("nodes_featureids", (1 << 32) + 1, "reads feature"),
            ("nodes_nodeids", 1, "two nodes with one id"),
            ("nodes_modes", "BRANCH_MAYBE", "no mode of a node"),
            ("target_ids", 5, "a vote is for target 5"),
            ("target_ids", -1, "a vote is for target -1"),
            ("target_nodeids", 0, "not a leaf votes"),
        ],
    )
    def test_broken_tables(self, name: str, value: Any, message: str) -> None:
        attributes = trees(("BRANCH_LEQ",))
        attributes |= votes(attributes, "target", [0])
        attributes[name] = [value, *attributes[name][1:]]
        x = TABLE.astype(np.float32)
        with pytest.raises(GlowtrainError, match=message):
            gt.load(model("TreeEnsembleRegressor", x, SCORES, n_targets=1, **attributes))


class TestLinear:
    @pytest.mark.parametrize("transform", ["NONE", "LOGISTIC", "SOFTMAX", "SOFTMAX_ZERO"])
    @pytest.mark.parametrize("columns", [1, 2, 3])
    def test_classifier(self, columns: int, transform: str, random: np.random.Generator) -> None:
        x = TABLE.astype(np.float32)
        weights, bias = random.normal(size=4 * columns).tolist(), random.normal(size=columns).tolist()
        labels = list(range(4, 4 + max(columns, 2)))
        agrees(model("LinearClassifier", x, LABELS, coefficients=weights, intercepts=bias, classlabels_ints=labels,
                     post_transform=transform), x)  # fmt: skip

    def test_regressor_trains(self) -> None:
        """The gradient flows through a tabular model to what stands before it."""
        x = TABLE.astype(np.float32)
        proto = model("LinearRegressor", x, SCORES, coefficients=[1.0, 2.0, 3.0, 4.0], intercepts=[1.0])
        graph = agrees(proto, x)
        (slope,) = gt.gradients(gt.nn.total(graph.outputs["scores"]), graph.inputs)
        found = gt.compile(graph.with_(outputs={"g": slope}))({"x": x})["g"]
        np.testing.assert_allclose(found, np.tile([1.0, 2, 3, 4], (50, 1)))


class TestSupportVectors:
    @pytest.mark.parametrize("kernel", ["LINEAR", "POLY", "RBF", "SIGMOID"])
    @pytest.mark.parametrize("single", [0, 1])
    def test_regressor(self, kernel: str, single: int, random: np.random.Generator) -> None:
        x = TABLE.astype(np.float32)
        weights, vectors = random.normal(size=6).tolist(), random.normal(size=24).tolist()
        agrees(model("SVMRegressor", x, SCORES, kernel_type=kernel, coefficients=weights, support_vectors=vectors,
                     n_supports=6, rho=[0.1], one_class=single, kernel_params=[0.3, 0.2, 2.0]), x, 1e-4)  # fmt: skip

    @pytest.mark.parametrize("classes", [2, 4])
    @pytest.mark.parametrize("probable", [True, False])
    def test_classifier(self, classes: int, probable: bool, random: np.random.Generator) -> None:
        x, pairs = TABLE.astype(np.float32), classes * (classes - 1) // 2
        likely = {"prob_a": [-1.0 - k / 9 for k in range(pairs)], "prob_b": [k / 9 for k in range(pairs)]}
        agrees(model("SVMClassifier", x, LABELS, kernel_type="RBF", classlabels_ints=list(range(classes)),
                     vectors_per_class=[3] * classes, coefficients=random.normal(size=6 * pairs).tolist(),
                     support_vectors=random.normal(size=12 * classes).tolist(), rho=random.normal(size=pairs).tolist(),
                     kernel_params=[0.3, 0.2, 2.0], **(likely if probable else {})), x, 1e-4)  # fmt: skip


class TestStringsAndMaps:
    def test_zip_map_is_its_tensor(self) -> None:
        x = TABLE.astype(np.float32)
        proto = model("LinearClassifier", x, LABELS, classlabels_ints=[0, 1], **WEIGHTS)
        expected = in_onnx_runtime(proto, {"x": x})["scores"]
        proto.graph.node.append(
            helper.make_node("ZipMap", ["scores"], ["map"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"])
        )
        proto.graph.output.pop()
        entry = helper.make_map_type_proto(TensorProto.STRING, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
        proto.graph.output.append(helper.make_value_info("map", helper.make_sequence_type_proto(entry)))
        np.testing.assert_allclose(gt.compile(gt.load(proto))({"x": x})["map"], expected, rtol=1e-6)

    def test_labels_that_are_strings(self) -> None:
        """Their numbers are compiled, and mapped to strings on the host; scores alone need no host."""
        x = TABLE.astype(np.float32)
        proto = model("LinearClassifier", x, LABELS, classlabels_strings=["no", "yes"], **WEIGHTS)
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
        expected = in_onnx_runtime(proto, {"x": x})
        results = gt.compile(gt.load(proto))({"x": x})
        assert results["label"].tolist() == list(expected["label"])
        np.testing.assert_allclose(results["scores"], expected["scores"], rtol=1e-6)
        del proto.graph.output[0]
        scores = gt.load(proto)
        assert isinstance(scores, (gt.Graph, gt.Template))
        np.testing.assert_allclose(gt.compile(scores)({"x": x})["scores"], expected["scores"], rtol=1e-6)

    @pytest.mark.parametrize("version", [1, 2, 3, 4])
    def test_labels_that_are_strings_are_saved(self, version: int) -> None:
        """LabelEncoder had other attributes in version 1 of the domain, which converters of classifiers name."""
        x = TABLE.astype(np.float32)
        proto = model("LinearClassifier", x, LABELS, classlabels_strings=["no", "yes"], **WEIGHTS)
        proto.graph.output[0].type.tensor_type.elem_type = TensorProto.STRING
        next(entry for entry in proto.opset_import if entry.domain).version = version
        saved = gt.save(gt.load(proto))
        expected = in_onnx_runtime(proto, {"x": x})["label"]
        assert next(entry.version for entry in saved.opset_import if entry.domain) == 4
        assert list(in_onnx_runtime(saved, {"x": x})["label"]) == list(expected)
        assert gt.compile(gt.load(saved))({"x": x})["label"].tolist() == list(expected)

    @pytest.mark.parametrize(
        ("op_type", "attributes"),
        [
            ("LabelEncoder", {"classes_strings": ["a", "b"]}),
            ("CategoryMapper", {"cats_strings": ["a", "b"], "cats_int64s": [1, 0], "default_string": "other"}),
        ],
    )
    @pytest.mark.parametrize("forth", [True, False])
    def test_older_maps_between_strings_and_integers(
        self, op_type: str, attributes: dict[str, Any], forth: bool
    ) -> None:
        node = helper.make_node(op_type, ["x"], ["y"], domain="ai.onnx.ml", **attributes)
        types = (TensorProto.STRING, TensorProto.INT64)[:: 1 if forth else -1]
        x, y = (helper.make_tensor_value_info(name, type_, ["n"]) for name, type_ in zip("xy", types, strict=True))
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1)]
        proto = helper.make_model(helper.make_graph([node], "map", [x], [y]), opset_imports=opsets, ir_version=9)
        values = np.array(["b", "a", "c"], object) if forth else np.array([1, 0, 5])
        expected = in_onnx_runtime(proto, {"x": values})["y"]
        assert gt.compile(gt.load(proto), backend="interpreter")({"x": values})["y"].tolist() == list(expected)

    @pytest.mark.parametrize(
        ("op_type", "attributes", "message"),
        [
            ("OneHotEncoder", {"cats_strings": ["a"]}, "categories must be integers"),
            ("DictVectorizer", {"string_vocabulary": ["a"]}, "reads a map"),
        ],
    )
    def test_refused(self, op_type: str, attributes: dict[str, Any], message: str) -> None:
        with pytest.raises(GlowtrainError, match=message):
            gt.load(model(op_type, np.zeros((2, 2), np.int64), SCORES, 2, **attributes))
