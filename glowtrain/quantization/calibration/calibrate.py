"""Calibration: run a model over typical data and note down what its values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.backends.state import State
from glowtrain.compiler import compile
from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Template, Value, Variable
from glowtrain.quantization.calibration.batches import Batch, Data, batches
from glowtrain.quantization.calibration.observe import FIELDS, histogram_observer, range_observer, variable_name
from glowtrain.quantization.calibration.profile import Histogram, Observed, Profile
from glowtrain.quantization.calibration.provenance import Provenance, provenances
from glowtrain.quantization.export.constants import constant_values
from glowtrain.quantization.export.fold import folded
from glowtrain.quantization.placement.scheme import SMALLEST_SCALE
from glowtrain.types import Array, f32

Observer = Callable[[Graph], dict[Variable, Value]]

BINS = 2048
"""Bins of a histogram: 8 for each step of a byte."""
MOMENTUM = 0.9
"""The part of the old one in a moving average."""


def calibrate(
    model: Graph | Template,
    data: Data,
    *,
    state: Mapping[str, Array] | None = None,
    histograms: bool = True,
    batch_size: int = 32,
    examples: int | None = None,
    bins: int = BINS,
    momentum: float = MOMENTUM,
    backend: str | Backend = "cpu",
) -> Profile:
    """The profile of a float model over calibration data.

    ``data`` are arrays of examples by input name (cut into batches of ``batch_size``, at most ``examples`` of them),
    one array, a :class:`~glowtrain.data.Dataset`, or an iterable of batches. ``state`` holds variables' values by name
    (those of a trained model). BatchNormalization is folded first, as it is when the model is quantized. With
    ``histograms`` the data are run over twice; only methods that cut off need them. Raises
    :class:`~glowtrain.errors.QuantizationError` where there are no data or they do not fit the model.
    """
    if bins < 2 or not 0 <= momentum < 1:
        raise QuantizationError(f"bins is at least 2 and momentum in [0, 1), not {bins} and {momentum}")
    fed = batches(model, data, batch_size, examples)
    floats = model.map(lambda graph: folded(graph, state))
    observer = _Ranges(momentum)
    ranges = _observe(floats, fed, backend, observer)
    observed = {name: _observed(ranges, name, observer.made[name]) for name in _names(ranges)}
    if histograms:
        spans = {name: _span(entry, bins) for name, entry in observed.items()}
        counted = _observe(floats, fed, backend, lambda graph: histogram_observer(observable(graph), spans, bins))
        observed = {
            name: replace(entry, histogram=Histogram(*spans[name], counted.read(variable_name(name, "counts"))))
            for name, entry in observed.items()
        }
    count = sum(len(next(iter(batch.values()))) if _has_examples(batch) else 1 for batch in fed)
    empty = {name: Observed(0, 0, 0, 0, 0, len(fed), provenance=made) for name, made in observer.made.items()}
    return Profile(observed | {name: none for name, none in empty.items() if name not in observed}, model.name, count)


@dataclass
class _Ranges:
    """Observers of ranges; on the way it notes what makes each value, those without elements too."""

    momentum: float
    made: dict[str, Provenance] = field(default_factory=dict)

    def __call__(self, graph: Graph) -> dict[Variable, Value]:
        check_parameters(graph)
        values = observable(graph)
        self.made.update(provenances(graph, values | observable(graph, empty=True)))
        return range_observer(values, self.momentum)


def check_parameters(graph: Graph) -> None:
    """Raise :class:`QuantizationError` for weights and biases that are NaN or infinite."""
    for node in graph.nodes:
        for value in node.inputs[1:] if node.operator.quantized == "contraction" else ():
            if isinstance(value, Variable) and not np.isfinite(value.initial).all():
                raise QuantizationError(
                    f"{value.name}: weights are NaN or infinite; a model that diverged cannot be quantized"
                )


def observable(graph: Graph, *, empty: bool = False) -> dict[str, Value]:
    """The values, by name, that may be quantized: f32, not known before the graph runs, and read or made by an operator
    that computes with quantized numbers; those with elements, or those without."""
    constants, found = constant_values(graph), dict[str, Value]()
    for node in graph.nodes:
        if node.operator.quantized:
            for value in (*node.inputs, *node.outputs):
                if value is None or value in constants or value.dtype != f32:
                    continue
                if bool(value.type.size) != empty:
                    found[value.name] = value
    return found


def _observe(floats: Graph | Template, fed: Sequence[Batch], backend: str | Backend, observer: Observer) -> State:
    """Run all batches through the observing form of a model: the state that its observers leave."""

    def observing(graph: Graph) -> Graph:
        updates = observer(graph)
        if not updates:
            raise QuantizationError(f"{graph.name} has nothing to quantize: {_why_nothing(graph)}")
        return graph.with_(outputs={}, updates=updates, results=None)

    function = compile(floats.map(observing), backend)
    for batch in fed:
        function(batch)
    return function.state


def _why_nothing(graph: Graph) -> str:
    able = [node for node in graph.nodes if node.operator.quantized and node.outputs[0].dtype.is_float]
    if not able:
        found = ", ".join(sorted({node.operator.key() for node in graph.nodes}))
        return f"no operator computes with quantized numbers (it has {found or 'none'})"
    if all(value.dtype == f32 for node in able for value in node.outputs):
        return "the operators that could be read nothing that depends on the inputs and has elements"
    types = ", ".join(sorted({str(value.dtype) for node in able for value in node.outputs if value.dtype != f32}))
    return f"it computes in {types}, and only numbers of f32 are quantized"


def _names(state: State) -> list[str]:
    """The observed values, in the order in which they are computed."""
    head, tail = variable_name("|", "batches").split("|")
    counts = (name for name in state.names if name.startswith(head) and name.endswith(tail))
    return [name.removeprefix(head).removesuffix(tail) for name in counts]


def _observed(state: State, name: str, provenance: Provenance) -> Observed:
    numbers = {entry: state.read(variable_name(name, entry)).item() for entry in FIELDS}
    return Observed(**numbers, provenance=provenance)


def _span(observed: Observed, bins: int) -> tuple[float, float]:
    """The range of a histogram: that of the value, or one around numbers that are all but the same."""
    if observed.high - observed.low > bins * SMALLEST_SCALE:  # less, and bins are too narrow for f32
        return observed.low, observed.high
    width = max(abs(observed.low), 1.0) * 1e-3
    return observed.low - width, observed.high + width


def _has_examples(batch: Batch) -> bool:
    return bool(batch) and next(iter(batch.values())).ndim > 0
