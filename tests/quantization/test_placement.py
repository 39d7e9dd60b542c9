"""What is rounded, what stays in floating point and why, and that BatchNormalization is folded exactly."""

from __future__ import annotations

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Template, Value, Variable, constant
from glowtrain.names import matches
from glowtrain.onnx_io import inference
from glowtrain.ops.contraction.products import MatMul
from glowtrain.ops.convolution.convolution import Conv, ConvTranspose
from glowtrain.ops.normalize.batch_and_layer import BatchNormalization
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.ops.tensor.pad import Pad
from glowtrain.quantization import Recipe, Scheme, folded
from glowtrain.quantization.export.constants import Arrays, named, with_state
from glowtrain.quantization.placement.placement import Placement, name_of, place_rounding
from glowtrain.types import f32, i4, i8, u8
from tests.quantization.models import branches, conv_norm, images, mobile, state_of, transformer


def graph_of(model: Template, batch: int = 2) -> Graph:
    return folded(model.bind({"batch": batch}), state_of(model))


def placed(model: Template, recipe: Recipe | None = None) -> Placement:
    return place_rounding(graph_of(model), recipe or Recipe())


def reasons(placement: Placement) -> dict[str, str]:
    return {kept.name: kept.reason for kept in placement.kept}


class TestFolding:
    @pytest.mark.parametrize("model", [mobile, branches, transformer])
    def test_results_stay(self, model: object) -> None:
        made: Template = model()  # type: ignore[operator]
        state, graph = state_of(made), graph_of(made)
        draw = np.random.default_rng(0)
        x = {value.name: draw.standard_normal(value.shape).astype(np.float32) for value in graph.inputs}
        plain = gt.compile(inference(with_state(made.bind({"batch": 2}), state)), "interpreter")(x)
        for name, array in gt.compile(graph, "interpreter")(x).items():
            np.testing.assert_allclose(array, plain[name], atol=2e-6 * np.abs(plain[name]).max() + 1e-6)

    def test_no_normalization_is_left(self) -> None:
        graph = graph_of(mobile())
        assert not [node for node in graph.nodes if isinstance(node.operator, BatchNormalization)]
        assert {"stem.conv.weight", "stem.conv.bias"} <= {variable.name for variable in graph.variables}

    def test_names_are_unique_and_the_same_for_every_binding(self) -> None:
        graphs = [graph_of(mobile(), batch) for batch in (1, 5)]
        names = [[value.name for node in graph.nodes for value in node.outputs] for graph in graphs]
        assert names[0] == names[1]
        assert len(set(names[0])) == len(names[0])
        assert "block1.project.norm" in names[0]

    def test_transposed_convolutions_of_groups(self) -> None:
        @gt.model(x=f32["batch", 4, 3, 3])
        def grown(x: Value) -> Value:
            weight = Variable("weight", np.random.default_rng(0).standard_normal((4, 3, 2, 2)).astype(np.float32))
            return nn.batch_norm(ConvTranspose(group=2, kernel_shape=(2, 2))(x, weight), name="norm")

        state, x = state_of(grown), images(2, channels=4, size=3)
        plain = gt.compile(inference(with_state(grown.bind({"batch": 2}), state)), "interpreter")({"x": x})["output"]
        graph = folded(grown.bind({"batch": 2}), state)
        assert len(graph.nodes) == 1
        np.testing.assert_allclose(gt.compile(graph, "interpreter")({"x": x})["output"], plain, atol=1e-5)

    def test_what_others_read_is_not_folded(self) -> None:
        @gt.model(x=f32["batch", 3, 8, 8])
        def read_twice(x: Value) -> Value:
            y = nn.conv(x, 4, 3, name="conv")
            return y + nn.batch_norm(y, name="norm")

        graph = graph_of(read_twice)
        assert [type(node.operator).__name__ for node in graph.nodes] == ["Conv", "BatchNormalization", "Add"]
        assert reasons(place_rounding(graph, Recipe()))["norm"] == "has no integer form"

    def test_weights_that_two_layers_share_are_folded_for_each(self) -> None:
        @gt.model(x=f32["batch", 3, 8, 8])
        def shared(x: Value) -> Value:
            weight = Variable(
                "shared.weight", np.random.default_rng(0).standard_normal((3, 3, 1, 1)).astype(np.float32)
            )
            for number in (1, 2):
                x = nn.relu(nn.batch_norm(Conv(kernel_shape=(1, 1))(x, weight), name=f"norm{number}"))
            return x

        state, x = state_of(shared), images(2)
        graph = folded(shared.bind({"batch": 2}), state)
        assert len({variable.name for variable in graph.variables}) == 4
        plain = gt.compile(inference(with_state(shared.bind({"batch": 2}), state)), "interpreter")({"x": x})["output"]
        np.testing.assert_allclose(gt.compile(graph, "interpreter")({"x": x})["output"], plain, atol=1e-5)

    def test_means_over_images_are_pooling(self) -> None:
        for keepdims in (True, False):

            @gt.model(x=f32["batch", 3, 8, 8])
            def pooled(x: Value, keepdims: bool = keepdims) -> Value:
                return ReduceMean(axes=(2, -1), keepdims=keepdims)(nn.conv(x, 4, 3, name="conv"))

            graph, x = graph_of(pooled), images(2)
            assert "GlobalAveragePool" in {node.operator.key() for node in graph.nodes}
            loaded = with_state(pooled.bind({"batch": 2}), state_of(pooled))
            plain = gt.compile(loaded, "interpreter")({"x": x})["output"]
            found = gt.compile(graph, "interpreter")({"x": x})["output"]
            assert found.shape == plain.shape
            np.testing.assert_allclose(found, plain, atol=1e-6)

    def test_matrices_with_a_bias_become_gemm(self) -> None:
        @gt.model(x=f32["batch", 3])
        def affine(x: Value) -> Value:
            weight, bias = (Variable(name, np.ones(shape, np.float32)) for name, shape in (("w", (3, 2)), ("b", (2,))))
            return MatMul()(x, weight) + bias

        assert [type(node.operator).__name__ for node in graph_of(affine).nodes] == ["Gemm"]

    def test_state_of_another_shape(self) -> None:
        with pytest.raises(QuantizationError, match=r"variable 'stem.conv.weight' is f32\[8,3,3,3\], but its value is"):
            folded(mobile().bind({"batch": 1}), {"stem.conv.weight": np.ones(3, np.float32)})


class TestPlacement:
    def test_mobile(self) -> None:
        found = placed(mobile())
        assert found.kept == []
        operators = [node.operator.key() for node in found.quantized]
        assert {name: operators.count(name) for name in ("Conv", "Add", "GlobalAveragePool", "Gemm")} == {
            "Conv": 7,
            "Add": 2,
            "GlobalAveragePool": 1,
            "Gemm": 1,
        }
        assert len(found.biases) == 8

    def test_clips_belong_to_what_is_before_them(self) -> None:
        """One rounding for a convolution and its ReLU6: after the ReLU6."""
        found = placed(mobile())
        assert {"Clip", "Clip.1", "block1.project.norm", "Add"} <= set(found.observed())
        assert "stem.norm" not in found.observed()

    def test_results_of_the_model_stay_exact_unless_asked_for(self) -> None:
        assert "scores" not in placed(mobile()).observed()
        assert "scores" in placed(mobile(), Recipe(outputs=True)).observed()

    def test_inputs_may_stay_exact(self) -> None:
        assert "x" in placed(mobile()).observed()
        assert "x" not in placed(mobile(), Recipe(inputs=False)).observed()

    def test_what_passes_elements_has_the_range_of_what_it_passes(self) -> None:
        found = placed(mobile())
        flat = next(value for value in found.sites if value.name.startswith("Flatten"))
        assert found.sites[flat].name == "GlobalAveragePool"

    def test_normalization_and_scaling_of_a_transformer_stay(self) -> None:
        assert reasons(placed(transformer())) == {
            "norm1": "has no integer form",
            "Mul": "one operand is a parameter",
            "Softmax": "reads nothing that is quantized",
            "norm2": "has no integer form",
        }

    def test_results_of_convolutions_are_rounded_whoever_reads_them(self) -> None:
        """Runtimes have no integer convolution with results in floats; of matrix products they have."""

        @gt.model(x=f32["batch", 3, 8, 8])
        def patches(x: Value) -> Value:
            found = nn.relu(nn.conv(x, 4, 4, stride=4, name="patches"))
            rows = nn.transpose(nn.reshape(found, (found.shape[0], 4, 4)), 0, 2, 1)
            placed_rows = rows + nn.parameter("positions", (4, 4), nn.Normal(0.1))
            return nn.linear(nn.layer_norm(placed_rows, name="norm"), 2, name="scores")

        assert set(placed(patches).observed()) == {"x", "Relu", "norm"}
        assert set(placed(patches, Recipe(keep=["patches"])).observed()) == {"norm"}

    def test_padding_with_zero_passes_and_with_others_rescales(self) -> None:
        for filling, own in ((0.0, False), (1.0, True)):

            @gt.model(x=f32["batch", 3, 8, 8])
            def padded(x: Value, filling: float = filling) -> Value:
                wide = Pad((0, 0, 1, 1, 0, 0, 1, 1))(nn.conv(x, 4, 3, name="first"), constant(filling, f32))
                return nn.conv(wide, 4, 3, name="second")

            found = placed(padded)
            site = next(value for value in found.sites if value.name.startswith("Pad"))
            assert (found.sites[site] is site) is own

    @pytest.mark.parametrize(
        ("keep", "expected"),
        [
            (["Add"], {"Add", "Add.1"}),
            (["Add.1"], {"Add.1"}),
            (["block1.*"], {"block1.expand.norm", "block1.depthwise.norm", "block1.project.norm"}),
            (["scores.weight"], {"scores"}),
            (
                ["*2.*.norm", "Gemm"],
                {"scores", *(f"block2.{part}.norm" for part in ("expand", "depthwise", "project"))},
            ),
        ],
    )
    def test_operators_are_kept_by_name_type_and_weight(self, keep: list[str], expected: set[str]) -> None:
        found = reasons(placed(mobile(), Recipe(keep=keep)))
        assert {name for name, reason in found.items() if reason == "asked for"} == expected

    def test_only_some(self) -> None:
        found = placed(mobile(), Recipe(only=["scores", "stem.*"]))
        assert {name_of(node) for node in found.quantized} == {"scores", "stem.norm"}
        assert reasons(found)["Add"] == "not among those asked for"

    @pytest.mark.parametrize("recipe", [Recipe(keep=["Sotfmax"]), Recipe(only=["block9.*"])], ids=str)
    def test_patterns_that_fit_nothing(self, recipe: Recipe) -> None:
        with pytest.raises(
            QuantizationError, match=r"no operator of mobile is called '(Sotfmax|block9.\*)'.*there are:"
        ):
            placed(mobile(), recipe)

    @pytest.mark.exhaustive
    def test_an_operator_that_cannot_be_quantized_is_kept_and_the_model_runs(self) -> None:
        model = transformer()
        x = np.random.default_rng(0).standard_normal((4, 6, 16)).astype(np.float32)
        found = gt.quantize(model, x, state=state_of(model))
        assert {kept.operator for kept in found.kept} == {"LayerNormalization", "Mul", "Softmax"}

    def test_values_that_are_always_zero_stay(self) -> None:
        @gt.model(x=f32["batch", 3, 8, 8])
        def dead(x: Value) -> Value:
            off = nn.relu(nn.conv(x, 4, 3, name="first"))
            return nn.conv(off, 2, 3, name="second")

        state = state_of(dead) | {"first.bias": np.full(4, -100.0, np.float32)}
        found = gt.quantize(dead, images(4), state=state)
        assert [(kept.name, kept.reason) for kept in found.kept] == [("Relu", "only zeros were observed")]
        y = gt.compile(found.model)({"x": images(4)})["output"]
        np.testing.assert_allclose(y, np.broadcast_to(state["second.bias"].reshape(1, 2, 1, 1), y.shape), atol=1e-6)


class TestRecipe:
    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"activations": Scheme(i8, granularity="channel")}, "activations are quantized per tensor"),
            ({"activations": Scheme(i4)}, "activations are quantized to 8 or 16 bits, not to i4"),
            (
                {"activations": Scheme(i8), "weights": Scheme(u8)},
                "signed activations with unsigned weights: no runtime",
            ),
            ({"method": "median"}, "there is no calibration method 'median'; choose from minmax, moving-average"),
            ({"weight_method": "entropy"}, 'the ranges of weights are found by "minmax" or "mse"'),
            ({"keep": "Softmax"}, r"keep and only are lists of names: write \['Softmax'\]"),
            ({"round_weights": -1}, r"round_weights \(steps\) and keep_sensitive \(layers\) are from 0 up"),
        ],
    )
    def test_contradictions(self, settings: dict[str, object], message: str) -> None:
        with pytest.raises(QuantizationError, match=message):
            Recipe(**settings)  # type: ignore[arg-type]

    def test_opsets(self) -> None:
        recipe = Recipe(weights=Scheme(i4, "symmetric", "block", 32))
        assert (recipe.least_opset, Recipe().least_opset) == (21, 13)
        Recipe().check_opset(13)
        with pytest.raises(QuantizationError, match="opset 20 cannot say i4 symmetric per block of 32: it needs"):
            recipe.check_opset(20)
        with pytest.raises(QuantizationError, match="opset 12 cannot say i8 symmetric per channel narrow: it needs"):
            Recipe().check_opset(12)

    def test_what_is_said_of_it(self) -> None:
        text = str(Recipe(method="mse", keep=["Add"], equalize=True, correct_bias=True, round_weights=10))
        assert text == (
            "activations u8 asymmetric per tensor, weights i8 symmetric per channel narrow, method mse, equalised, "
            "biases corrected, weights rounded in 10 steps, in float: Add"
        )


class TestSettled:
    def test_stars(self) -> None:
        for name, pattern, fits in (
            ("block1.conv", "block1.*", True),
            ("block1.conv", "*.conv", True),
            ("block1.conv", "*1*v", True),
            ("block1.conv", "block", False),
            ("block1.conv", "*x*", False),
            ("ab", "ab*ab", False),
            ("a", "*", True),
            ("conv1", "conv?", True),
            ("conv1", "conv[12]", True),
            ("conv3", "conv[12]", False),
            ("conv[0]", "conv[0]", True),
        ):
            assert matches(name, [pattern]) is fits

    def test_arrays_of_expressions_of_parameters(self) -> None:
        weight = Variable("w", np.ones((2, 3), np.float32))
        x = gt.Input(f32[3], "x")
        doubled = weight * 2.0
        found = Arrays({"w": np.full((2, 3), 5, np.float32)})
        np.testing.assert_array_equal(found.required(doubled), np.full((2, 3), 10))
        with pytest.raises(QuantizationError, match="depends on the model's inputs"):
            found.required(doubled @ x)

    def test_names_are_kept(self) -> None:
        graph = named(Graph((x := gt.Input(f32[3], "x"),), {"y": nn.relu(x), "z": nn.relu(x)}))
        assert {value.name for value in graph.outputs.values()} == {"y", "z"}


def test_blocks_of_a_depthwise_model_are_channels() -> None:
    """Blocks are for matrices; the last layer is the only one here."""

    @gt.model(x=f32["batch", 3, 8, 8])
    def mixed(x: Value) -> Value:
        return nn.linear(nn.flatten(nn.relu(conv_norm(x, 4, 3, "conv"))), 3, name="scores")

    found = gt.quantize(mixed, images(4), Recipe(weights=Scheme(i4, "symmetric", "block", 16)))
    parameters = found.example.parameters
    assert parameters["conv.conv.weight"].block_size == 0
    assert parameters["scores.weight"].block_size == 16
