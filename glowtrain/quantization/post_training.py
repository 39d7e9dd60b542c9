"""From a float model and typical data to an integer model, in one call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from glowtrain.backends.base import Backend
from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Template
from glowtrain.presentation.messages import plural
from glowtrain.quantization.calibration.batches import Batch, Data, batches
from glowtrain.quantization.calibration.calibrate import calibrate
from glowtrain.quantization.calibration.profile import Profile
from glowtrain.quantization.calibration.ranges import method_of
from glowtrain.quantization.export.constants import with_state
from glowtrain.quantization.export.convert import converted
from glowtrain.quantization.export.fold import folded
from glowtrain.quantization.improve.adaround import round_weights
from glowtrain.quantization.improve.bias_correction import correct_biases
from glowtrain.quantization.improve.equalize import equalized
from glowtrain.quantization.improve.sensitivity import sensitivity
from glowtrain.quantization.placement.placement import Kept
from glowtrain.quantization.placement.prepare import PreparedModel, check_float, check_request, prepared
from glowtrain.quantization.placement.recipe import Recipe
from glowtrain.quantization.placement.scheme import Parameters
from glowtrain.types import Array

RANKED = 8
"""Batches over which layers are ranked by their sensitivity."""


@dataclass(frozen=True, eq=False)
class Quantized:
    """A quantized model and how it came about.

    ``model`` has QuantizeLinear and DequantizeLinear and integer weights: compile it, or save it with ``gt.save``.
    ``prepared`` is the same with FakeQuantize and float weights; ``exact`` the float model with folded
    BatchNormalization. ``kept`` lists what stays in floating point, and why. The three models have the same inputs and
    outputs; they are templates if the given model is one, and ``example`` is the graph of ``prepared`` that the first
    calibration batch binds. ``fixed`` are the parameters of weights that were rounded otherwise than to the nearest.
    """

    model: Graph | Template
    prepared: Graph | Template
    exact: Graph | Template
    profile: Profile
    recipe: Recipe
    kept: list[Kept]
    example: PreparedModel
    data: list[Batch] = field(repr=False)
    fixed: Mapping[str, Parameters] = field(default_factory=dict, repr=False)

    def __repr__(self) -> str:
        """``<Quantized mlp: activations u8 ..., weights i8 ...; 1 operator in floating point>``"""
        kept = f"{plural(len(self.kept), 'operator')} in floating point"
        return f"<Quantized {self.example.graph.name}: {self.recipe}; {kept}>"

    @property
    def graph(self) -> Graph:
        """The quantized model as a graph: as bound by the first calibration batch where it is a template."""
        return bound(self.model, self.data[0])

    def ready(self, graph: Graph) -> PreparedModel:
        """A graph of the float model ``exact`` with FakeQuantize."""
        return prepared(graph, self.profile, self.recipe, fixed=self.fixed)


def quantize(
    model: Graph | Template,
    data: Data,
    recipe: Recipe | None = None,
    *,
    state: Mapping[str, Array] | None = None,
    profile: Profile | None = None,
    batch_size: int = 32,
    examples: int | None = None,
    histograms: bool = False,
    backend: str | Backend = "cpu",
) -> Quantized:
    """Quantize a float model after training.

    ``data`` are typical inputs (see :func:`~glowtrain.quantization.calibration.calibrate.calibrate`), ``state``
    variables' values by name, ``profile`` an earlier calibration of the same model with the same weights (a recipe that
    equalises changes them, and calibrates anew); with ``histograms`` they are recorded for the report even where the
    method does not need them. Raises :class:`~glowtrain.errors.QuantizationError` for data, ranges, recipes and
    profiles that do not fit the model.
    """
    recipe = Recipe() if recipe is None else recipe
    check_request(model, recipe, profile)
    fed = batches(model, data, batch_size, examples)
    floats = model.map(lambda graph: folded(check_float(graph), state))
    if recipe.equalize:
        floats, profile = _with_weights(floats, equalized(bound(floats, fed[0]))), None
    if profile is not None:
        profile.check_model(bound(floats, fed[0]))
    else:
        profile = calibrate(floats, fed, histograms=histograms or method_of(recipe.method).histograms, backend=backend)
    work = _Work(floats, floats, profile, recipe, fed, backend)
    work.keep_sensitive()
    work.round_weights()
    work.correct_biases()
    return work.result()


@dataclass
class _Work:
    """A model on its way: folded, equalised and calibrated. ``floats`` are ``exact`` with weights that are changed."""

    exact: Graph | Template
    floats: Graph | Template
    profile: Profile
    recipe: Recipe
    fed: list[Batch]
    backend: str | Backend
    fixed: dict[str, Parameters] = field(default_factory=dict)

    def ready(self, graph: Graph) -> PreparedModel:
        return prepared(graph, self.profile, self.recipe, fixed=self.fixed)

    def keep_sensitive(self) -> None:
        """Leave the layers in floating point whose rounding disturbs the results most."""
        if self.recipe.keep_sensitive:
            ranking = sensitivity(self.floats, self.ready, self.fed[:RANKED], self.backend)
            if self.recipe.keep_sensitive >= len(ranking):
                few = f"keep_sensitive is {self.recipe.keep_sensitive}, and {len(ranking)} are quantized"
                raise QuantizationError(f"no layer of {self.profile.model} would be left to quantize: {few}")
            names = [row.name for row in ranking[: self.recipe.keep_sensitive]]
            self.recipe = self.recipe.with_(keep=[*self.recipe.keep, *names])

    def round_weights(self) -> None:
        if self.recipe.round_weights:
            weights, self.fixed = round_weights(
                self.floats, self.ready, self.fed, self.recipe.round_weights, self.backend
            )
            self.floats = _with_weights(self.floats, weights)

    def correct_biases(self) -> None:
        if self.recipe.correct_bias:
            biases = correct_biases(self.exact, self.floats, self.ready, self.fed, self.backend)
            self.floats = _with_weights(self.floats, biases)

    def result(self) -> Quantized:
        """All forms of the model, once its weights have their final values."""
        example = self.ready(bound(self.floats, self.fed[0]))
        if not example.parameters:
            listed = "".join(f"\n  - {kept.name} ({kept.operator}): {kept.reason}" for kept in example.kept)
            raise QuantizationError(f"nothing in {example.graph.name} is quantized:{listed}")
        forms = self.floats.map(lambda graph: self.ready(graph).graph)
        model = forms.map(converted)
        return Quantized(
            model, forms, self.floats, self.profile, self.recipe, example.kept, example, self.fed, self.fixed
        )


def bound(model: Graph | Template, batch: Batch) -> Graph:
    """The graph for a batch: the model itself, or what its template builds."""
    if isinstance(model, Graph):
        return model
    return model.bind(model.dims_for({name: array.shape for name, array in batch.items()}))


def _with_weights(floats: Graph | Template, weights: Mapping[str, Array]) -> Graph | Template:
    """The model with other initial values of variables."""
    return floats.map(lambda graph: with_state(graph, weights))
