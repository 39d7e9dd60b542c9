"""Equalisation, bias correction and trained rounding: exact where they claim it, better where they are meant to be."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.graph import Template, Value
from glowtrain.ops.elementwise.activation import LeakyRelu
from glowtrain.quantization import Quantized, Recipe, Scheme, folded
from glowtrain.quantization.export.constants import with_state
from glowtrain.quantization.improve.equalize import equalized
from glowtrain.quantization.improve.sensitivity import decibels
from glowtrain.types import Array, f32, i4, i8, i16, u16
from tests.quantization.models import conv_norm, images, mobile, relu6, state_of

FOUR = Scheme(i4, "symmetric", "channel", narrow=True)
X = images(32, seed=3)


@gt.model(x=f32["batch", 3, 8, 8])
def chain(x: Value) -> Value:
    """Convolutions (one depthwise) with ReLU between them, then linear layers."""
    x = nn.relu(conv_norm(x, 8, 3, "first"))
    x = nn.relu(conv_norm(x, 8, 3, "depthwise", groups=8))
    x = nn.max_pool(nn.relu(conv_norm(x, 6, 1, "pointwise")), 4)
    hidden = LeakyRelu()(nn.linear(nn.flatten(x), 10, name="hidden"))
    return nn.linear(hidden, 3, name="last")


def uneven() -> dict[str, Array]:
    """Channels whose weights differ by powers of ten in one layer, and inversely in the next."""
    state, factors = state_of(chain), (10.0 ** np.linspace(-1.5, 1.5, 8)).astype(np.float32)
    for name in ("first.norm.scale", "first.norm.bias"):
        state[name] = state[name] * factors
    state["depthwise.conv.weight"] = state["depthwise.conv.weight"] / factors.reshape(8, 1, 1, 1)
    return state


@cache
def quantized(recipe: Recipe) -> Quantized:
    return gt.quantize(chain, X, recipe, state=uneven(), batch_size=16)


def noise(recipe: Recipe) -> float:
    """Decibels of the results on images that were not calibrated with."""
    x = {"x": images(32, seed=9)}
    exact = gt.compile(folded(chain.bind({"batch": 32}), uneven()))(x)["output"].astype(np.float64)
    rounded = gt.compile(quantized(recipe).model)(x)["output"]
    return decibels(float((exact**2).sum()), float(((exact - rounded) ** 2).sum()))


def ranges(weight: Array, axis: int) -> Array:
    found: Array = np.abs(weight).max(tuple(a for a in range(weight.ndim) if a != axis))
    return found


class TestEqualisation:
    def test_results_stay(self) -> None:
        graph = folded(chain.bind({"batch": 32}), uneven())
        changed = with_state(graph, equalized(graph))
        before, after = (gt.compile(g)({"x": X})["output"] for g in (graph, changed))
        np.testing.assert_allclose(after, before, atol=2e-6 * np.abs(before).max())

    def test_neighbours_have_equal_ranges(self) -> None:
        graph = folded(chain.bind({"batch": 2}), uneven())
        found = equalized(graph)
        assert {"first.conv.weight", "depthwise.conv.weight", "pointwise.conv.weight", "hidden.weight"} <= set(found)
        pairs = (("first.conv.weight", 0, "depthwise.conv.weight", 0), ("hidden.weight", 1, "last.weight", 0))
        for first, made, second, read in pairs:
            np.testing.assert_allclose(ranges(found[first], made), ranges(found[second], read), rtol=2e-2)

    @pytest.mark.exhaustive
    def test_one_scale_for_all_serves_better(self) -> None:
        tensor = Recipe(weights=Scheme(i8, "symmetric"))
        assert noise(tensor.with_(equalize=True)) > noise(tensor) + 6

    def test_bounded_activations_are_left_alone(self) -> None:
        """min(s · x, 6) is not s · min(x, 6)."""

        @gt.model(x=f32["batch", 3, 8, 8])
        def bounded(x: Value) -> Value:
            return conv_norm(relu6(conv_norm(x, 4, 3, "first")), 4, 3, "second")

        assert equalized(folded(bounded.bind({"batch": 2}), state_of(bounded))) == {}

    def test_layers_with_several_readers_are_left_alone(self) -> None:
        found = equalized(folded(mobile().bind({"batch": 2}), state_of(mobile())))
        assert not [name for name in found if name.startswith(("stem", "block1.project"))]


class TestBiasCorrection:
    RECIPE = Recipe(weights=FOUR)

    def test_means_are_those_of_the_float_model(self) -> None:
        exact, plain, right = (
            gt.compile(model)({"x": X})["output"].mean(0)
            for model in (
                quantized(self.RECIPE).exact,
                quantized(self.RECIPE).model,
                quantized(self.RECIPE.with_(correct_bias=True)).model,
            )
        )
        assert np.abs(right - exact).max() < 0.25 * np.abs(plain - exact).max()

    @pytest.mark.exhaustive
    def test_it_helps(self) -> None:
        assert noise(self.RECIPE.with_(correct_bias=True)) > noise(self.RECIPE) + 1

    def test_only_biases_change(self) -> None:
        before, after = (quantized(recipe).exact for recipe in (self.RECIPE, self.RECIPE.with_(correct_bias=True)))
        graphs = [model.bind({"batch": 1}) for model in (before, after) if isinstance(model, Template)]
        values = [{variable.name: variable.initial for variable in graph.variables} for graph in graphs]
        changed = {name for name in values[0] if not np.array_equal(values[0][name], values[1][name])}
        assert changed == {name for name in values[0] if name.endswith(".bias")}


class TestRounding:
    LAYERS = ("pointwise.norm", "hidden", "last")
    PLAIN = Recipe(weights=FOUR, only=LAYERS)
    RECIPE = PLAIN.with_(round_weights=200)

    @pytest.mark.exhaustive
    def test_it_helps(self) -> None:
        assert noise(self.RECIPE) > noise(self.PLAIN) + 1

    def test_weights_are_one_of_the_two_neighbours(self) -> None:
        plain, trained = quantized(self.PLAIN), quantized(self.RECIPE)
        assert set(trained.fixed) <= {"pointwise.conv.weight", "hidden.weight", "last.weight"}
        assert trained.fixed
        graph = plain.example.placement.graph
        for name, parameters in trained.fixed.items():
            weight = graph.variable(name).initial
            chosen = trained.example.placement.graph.variable(name).initial
            np.testing.assert_array_equal(parameters.rounded(chosen), chosen)
            scale = parameters.scale.reshape([-1 if a == parameters.axis else 1 for a in range(weight.ndim)])
            assert np.abs((chosen - weight) / scale).max() < 1 + 1e-5
            assert np.any(chosen != parameters.rounded(weight))

    @pytest.mark.exhaustive
    def test_a_layer_that_does_not_get_better_keeps_the_nearest_weights(self) -> None:
        """With 16 bits there is nothing to gain, and one step of training does not find it."""
        sixteen = Recipe(Scheme(u16), Scheme(i16, "symmetric", "channel"), only=["last"], round_weights=1)
        assert quantized(sixteen).fixed == {}

    @pytest.mark.exhaustive
    def test_with_bias_correction(self) -> None:
        assert noise(self.RECIPE.with_(correct_bias=True)) > noise(self.PLAIN) + 1
