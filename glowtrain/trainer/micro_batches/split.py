"""Choose the equal parts of a batch, and check that it may be split."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import numpy as np

from glowtrain.compiler import compile
from glowtrain.compiler.batch_dependence import batch_dependence
from glowtrain.errors import BindingError, InputError, ShapeError
from glowtrain.grad import BatchSplit
from glowtrain.graph import Binding, Graph, Template
from glowtrain.losses import Loss
from glowtrain.types import Array, Spec

AUTO: Literal["auto"] = "auto"
"""As few parts as a budget of memory needs."""

MicroBatches = int | Literal["auto"]
"""What a person may say about the parts of a batch."""


def checked_count(count: object) -> MicroBatches:
    """The number of parts that a person gave, or :data:`AUTO`. Raises :class:`InputError` for what is none."""
    if count == AUTO and isinstance(count, str):
        return AUTO
    if not isinstance(count, (int, np.integer)) or isinstance(count, bool) or count < 1:
        raise InputError(f'micro_batches must be a whole number of at least 1, or "auto", not {count!r}')
    return int(count)


def check_batches(count: MicroBatches, size: int, examples: int, *, drop_last: bool) -> None:
    """Raise :class:`InputError` where batches of ``size``, or the last one of so many examples, cannot be cut."""
    if count == AUTO:
        return
    rest = 0 if drop_last else examples % size
    for batch in (size, rest):
        if batch % count:
            raise InputError(cannot_be_cut("fit", batch, count))


def cannot_be_cut(what: str, batch: int, count: int) -> str:
    """That a batch has no such parts, and what to do."""
    return (
        f"{what}: a batch of {batch} cannot be cut into {count} equal micro-batches; choose a batch size that {count} "
        "divides, and leave out a last, short batch (drop_last=True, --drop-last)"
    )


def part_of(
    model: Graph, specs: Mapping[str, Spec], loss: Loss, count: int, dependence: str | None
) -> tuple[Graph, BatchSplit]:
    """The model for a part of the batch that ``model`` is bound to, and how the batch is split into ``count`` of them.

    ``specs``: all inputs and targets, with symbolic extents where they can be bound anew; ``dependence``: that of
    :func:`dependence_of`. Raises :class:`InputError` for a model whose batch is fixed or whose examples depend on it,
    for a loss that is no mean or sum over examples, and for a batch that does not divide.
    """
    symbol = batch_symbol(model.name, specs)
    if dependence is not None:
        raise InputError(f"{model.name} cannot be trained in micro-batches: {dependence}")
    if loss.over_examples is None:
        raise InputError(
            f"{model.name} cannot be trained in micro-batches: nothing says that its loss is a mean or a sum over "
            "examples; accumulate= of an optimizer takes each part for a batch of its own"
        )
    batch = model.dims[symbol]
    if batch % count:
        raise InputError(cannot_be_cut(model.name, batch, count))
    assert model.template is not None
    binding = replace(model.binding, dims={**model.dims, symbol: batch // count})
    batched = frozenset(name for name, spec in specs.items() if spec.shape[:1] == (symbol,))
    return model.template.bound(binding), BatchSplit(count, batched, sums=loss.over_examples == "sum")


def dependence_of(model: Graph | Template, binding: Binding, symbol: str) -> str | None:
    """What outputs of an example depend on of its batch, whose dimension is ``symbol``; None where nothing shows.

    ``model`` is an inference form, which runs in NumPy, for one example and for two; where it does not take random
    numbers, or as few, nothing is known.
    """
    assert isinstance(model, Template)
    try:
        bound = {size: model.bound(replace(binding, dims={**binding.dims, symbol: size})) for size in (1, 2)}
        functions = {size: compile(graph, "interpreter") for size, graph in bound.items()}
        each = [name for name in bound[1].outputs if all(g.outputs[name].shape[:1] == (n,) for n, g in bound.items())]
        if any(graph.results is not None or not all(i.shape for i in graph.inputs) for graph in bound.values()):
            return None

        def run(size: int, arrays: Mapping[str, Array]) -> dict[str, Array]:
            outputs = functions[size](arrays)
            return {name: outputs[name] for name in each}

        return batch_dependence(bound, run)
    except (BindingError, ShapeError):
        return None


def batch_symbol(name: str, specs: Mapping[str, Spec], how: str = "in micro-batches") -> str:
    """The dimension that counts examples: the first of every input and target that has any.

    Raises :class:`InputError` where it is fixed, where inputs disagree, and where it is another axis, too.
    """
    first = {spec.shape[0] for spec in specs.values() if spec.shape}
    symbols = {extent for extent in first if isinstance(extent, str)}
    if len(first) == 1 and len(symbols) == 1:
        (symbol,) = symbols
        if all(symbol not in spec.shape[1:] for spec in specs.values()):
            return symbol
    axes = ", ".join(f"{key} {spec}" for key, spec in specs.items())
    raise InputError(
        f"{name} cannot be trained {how}: the first axis of all inputs and targets must be one symbolic "
        f"batch dimension ({axes}); gt.load(..., open_batch=True) and --open-batch open that of a file"
    )
