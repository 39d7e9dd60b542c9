"""Calibration: run a model over typical data and note down what its values are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from glowtrain.backends.base import Backend, State
from glowtrain.compiler import compile
from glowtrain.errors import QuantizationError
from glowtrain.graph import Graph, Template, Value, Variable
from glowtrain.quantization.batches import Batch, Data, batches
from glowtrain.quantization.fold import folded
from glowtrain.quantization.observe import FIELDS, histogram_observer, range_observer, variable_name
from glowtrain.quantization.profile import Histogram, Observed, Profile
from glowtrain.quantization.settled import each, settled
from glowtrain.types import Array, f32

Observer = Callable[[Mapping[str, Value]], dict[Variable, Value]]

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
    floats = each(model, lambda graph: folded(graph, state))
    ranges = _observe(floats, fed, backend, lambda values: range_observer(values, momentum))
    observed = {name: _observed(ranges, name) for name in _names(ranges)}
    if histograms:
        spans = {name: _span(entry) for name, entry in observed.items()}
        counted = _observe(floats, fed, backend, lambda values: histogram_observer(values, spans, bins))
        observed = {
            name: replace(entry, histogram=Histogram(*spans[name], counted.read(variable_name(name, "counts"))))
            for name, entry in observed.items()
        }
    count = sum(len(next(iter(batch.values()))) if _has_examples(batch) else 1 for batch in fed)
    return Profile(observed, model.name, count)


def observable(graph: Graph) -> dict[str, Value]:
    """The values, by name, that may be quantized: f32, not known before the graph runs, and read or made by an operator
    that computes with quantized numbers."""
    known, found = settled(graph), dict[str, Value]()
    for node in graph.nodes:
        if node.operator.quantized:
            for value in (*node.inputs, *node.outputs):
                if value is not None and value.dtype == f32 and value not in known and value.type.size:
                    found[value.name] = value
    return found


def _observe(floats: Graph | Template, fed: Sequence[Batch], backend: str | Backend, observer: Observer) -> State:
    """Run all batches through the observing form of a model: the state that its observers leave."""

    def observing(graph: Graph) -> Graph:
        updates = observer(observable(graph))
        if not updates:
            raise QuantizationError(
                f"{graph.name} has nothing to quantize: no operator computes with quantized numbers"
            )
        return graph.with_(outputs={}, updates=updates, results=None)

    function = compile(each(floats, observing), backend)
    for batch in fed:
        function(batch)
    return function.state


def _names(state: State) -> list[str]:
    """The observed values, in the order in which they are computed."""
    head, tail = variable_name("|", "batches").split("|")
    counts = (name for name in state.names if name.startswith(head) and name.endswith(tail))
    return [name.removeprefix(head).removesuffix(tail) for name in counts]


def _observed(state: State, name: str) -> Observed:
    numbers = {entry: state.read(variable_name(name, entry)).item() for entry in FIELDS}
    return Observed(**numbers)


def _span(observed: Observed) -> tuple[float, float]:
    """The range of a histogram: that of the value, or one around its only number."""
    if observed.low < observed.high:
        return observed.low, observed.high
    width = max(abs(observed.low), 1.0) * 1e-3
    return observed.low - width, observed.high + width


def _has_examples(batch: Batch) -> bool:
    return bool(batch) and next(iter(batch.values())).ndim > 0
