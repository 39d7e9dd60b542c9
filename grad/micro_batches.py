"""A training step in equal parts of its batch, one after the other: their gradients are added up, and one update is
made of the mean.

    step ::= total = 0; for each part of the batch: total = total + gradients of its loss; update from total / parts

The loop is a Scan over the parts, so the code of the model is there once however many there are, and activations of one
part at a time are in memory. Gradients are added up in the order of the parts, as an optimizer does that accumulates
them (``accumulate=``): the update is that of so many batches, to the bit where sums have
one order in both steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from glowtrain.errors import DifferentiationError
from glowtrain.grad.data_parallel import frontier
from glowtrain.grad.gradients import check_scalar, reached
from glowtrain.grad.parts import WHOLE, Parts
from glowtrain.grad.training import LOSS, Optimize, guarded
from glowtrain.graph import Graph, Input, Value, Variable, rebuild
from glowtrain.graph.operator import as_tuple
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.reduce.reduction import accumulator, as_dtype, filled


@dataclass(frozen=True)
class BatchSplit:
    """How a batch is split: into ``count`` parts, along the first axis of the inputs and targets in ``batched``.

    The loss of the whole is the mean of theirs, or with ``sums`` their sum.
    """

    count: int
    batched: frozenset[str]
    sums: bool = False


def micro_batched_graph(
    model: Graph, loss: Value, targets: Sequence[Input], parameters: Sequence[Variable], optimize: Optimize,
    split: BatchSplit, metrics: Mapping[str, Value] | None = None, parts: Parts = WHOLE,
) -> Graph:  # fmt: skip
    """The step of :func:`~glowtrain.grad.training.training_graph` for a batch of ``split.count`` times the size that
    ``model`` is bound to. ``metrics`` are the means over the parts.

    Raises :class:`DifferentiationError` if nothing is left to train, and for a model that updates variables with what
    it sees in a batch, such as running statistics: it would see a part.
    """
    check_scalar(loss)
    _check_statistics(model)
    gradients = parts.trained(reached(loss, parameters))
    if not gradients:
        raise DifferentiationError(f"the loss does not depend on any trainable parameter of {model.name}")
    loop = _Loop(model, {LOSS: loss, **(metrics or {})}, (*model.inputs, *targets), gradients, split)
    optimizer = optimize(loop.gradients)
    updates = parts.updates(guarded({**loop.state, **optimizer.values}, loop.measured[LOSS]))
    inputs = (*loop.inputs, *optimizer.inputs)
    return parts.read_from_whole(Graph(inputs, loop.measured, updates, f"{model.name}.step"))


def _check_statistics(model: Graph) -> None:
    """Raise :class:`DifferentiationError` for a model that takes statistics of a batch."""
    changing = tuple(model.updates)
    for variable, value in model.updates.items():
        if frontier([value], changing):
            raise DifferentiationError(
                f"{model.name} cannot be trained in parts of a batch: {variable.name} takes in statistics of each "
                "batch (BatchNormalization) and normalises by them; freeze_statistics=True uses running ones where "
                "scales are not trained, and an optimizer's accumulate= takes each part for a batch of its own"
            )


class _Loop:
    """The loop over the parts of a batch, as a Scan that carries sums and the model's own variables.

    ``measured`` are means over the parts, ``gradients`` those of the whole batch in the type that sums are taken in,
    ``state`` the model's own variables after the last part; ``inputs`` are those of the whole batch.
    """

    def __init__(
        self, model: Graph, measured: Mapping[str, Value], inputs: Sequence[Input],
        gradients: Mapping[Variable, Value], split: BatchSplit,
    ) -> None:  # fmt: skip
        self.model, self.split, self.part_inputs = model, split, inputs
        self.inputs = tuple(self._whole(value) for value in inputs)
        terms = [as_dtype(gradient, accumulator(parameter.dtype)) for parameter, gradient in gradients.items()]
        results = iter(self._run([*measured.values(), *terms]))
        self.measured = {name: self._mean(next(results), sums=split.sums and name == LOSS) for name in measured}
        self.gradients = {parameter: self._mean(next(results), sums=split.sums) for parameter in gradients}
        self.state: dict[Variable, Value] = dict(zip(model.updates, results, strict=True))

    def _whole(self, value: Input) -> Input:
        if value.name not in self.split.batched:
            return value
        return Input(value.type.with_shape((self.split.count * value.shape[0], *value.shape[1:])), value.name)

    def _mean(self, total: Value, *, sums: bool) -> Value:
        return total if sums else total * (1.0 / self.split.count)

    def _run(self, terms: Sequence[Value]) -> tuple[Value, ...]:
        """The sums of ``terms`` over all parts, and the model's own variables after them."""
        body, leaves = self._body(terms)
        sliced = [self.inputs[self.part_inputs.index(value)] for value in leaves if self._is_batched(value)]
        captured = [value for value in leaves if not self._is_batched(value)]
        starts = [filled(0.0, term.type) for term in terms]
        scan = Scan(body, len(sliced), num_captured=len(captured), parts=True)
        return as_tuple(scan(*starts, *self.model.updates, *sliced, *captured))

    def _body(self, terms: Sequence[Value]) -> tuple[Graph, list[Value]]:
        """One part's body, and what it reads of the whole step: first what is sliced, then what is captured."""
        changed = self.model.updates
        roots = {str(place): value for place, value in enumerate([*terms, *changed.values()])}
        read = [value for value in Graph((), roots).variables if value not in changed]
        leaves = sorted((*self.part_inputs, *read), key=lambda value: not self._is_batched(value))
        totals = [Input(term.type, f"total{place}") for place, term in enumerate(terms)]
        inner = {value: Input(value.type, value.name) for value in (*changed, *leaves)}
        values = rebuild(list(roots.values()), inner)
        values[: len(terms)] = [total + value for total, value in zip(totals, values, strict=False)]
        return Graph((*totals, *inner.values()), dict(zip(roots, values, strict=True)), name="part"), leaves

    def _is_batched(self, value: Value) -> bool:
        return isinstance(value, Input) and value.name in self.split.batched
