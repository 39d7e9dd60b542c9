"""Models as they are served: bound to each size of a batch, in parts, with what they take and give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from glowtrain.errors import BindingError, InputError
from glowtrain.graph import Graph, Template, no_model
from glowtrain.modes.training_and_inference import inference
from glowtrain.modes.variables import with_values
from glowtrain.presentation.messages import kind_of, unknown
from glowtrain.runtime.fitting import check_partitions
from glowtrain.runtime.network import Service
from glowtrain.runtime.partition.partition import Partition, whole
from glowtrain.runtime.placement.provisioner import Partitions
from glowtrain.runtime.signature import NetworkSignature, batch_symbol, gives_rows, open_dims, signature_of
from glowtrain.trainer import Trainer

Model = Graph | Template | Trainer
"""What can be served; of a trainer, the inference form of its model with its present parameters."""
Cut = Callable[[Graph], Partition]
MAX_BATCH = 8
"""Rows of the largest batch, unless it is said."""
LARGEST_BATCH = 1 << 20
"""Rows that a batch can have: each size up to it is compiled, and run once."""


@dataclass(frozen=True)
class ServedModel:
    """A model to be placed. ``graphs`` and ``partitions`` are by the size of the batch, ``None`` for a network without
    batches."""

    signature: NetworkSignature
    graphs: Mapping[int | None, Graph]
    partitions: Partitions

    @property
    def sizes(self) -> tuple[int, ...]:
        """The sizes of batches, ascending."""
        return tuple(sorted(size for size in self.graphs if size is not None))

    @property
    def stages(self) -> int:
        """How many devices it is for."""
        return len(next(iter(self.partitions.values())).stages)

    def service(self, service: Service) -> Service:
        """How it is to be served, with what follows from the model."""
        updates = any(graph.updates for graph in self.graphs.values())
        return replace(service, sizes=self.sizes, updates=updates)


@dataclass(frozen=True)
class Terms:
    """What was said about a model's batches, open dimensions and parts; see :meth:`HostManager.add_network`."""

    max_batch: int | None = None
    batch_sizes: Sequence[int] | None = None
    dims: Mapping[str, int] | None = None
    partition: Partition | Cut | None = None

    @property
    def wants_batches(self) -> bool:
        """Whether somebody said that there be batches."""
        return self.max_batch is not None or self.batch_sizes is not None


def prepared(name: str, model: Model, terms: Terms, *, batched: bool = True) -> ServedModel:
    """A model in the forms that are to be placed; without batches if not ``batched``.

    Raises :class:`InputError` for batches that a model cannot have, :class:`BindingError` for dimensions.
    """
    model, wants_batches = _model(name, model), terms.wants_batches
    sizes = _sizes(name, terms.max_batch, terms.batch_sizes)
    graphs: dict[int | None, Graph]
    if isinstance(model, Template):
        graphs = _bound(name, model, sizes, terms.dims or {}, wants_batches)
    else:
        graphs = {_own_size(name, model, sizes, terms.dims, wants_batches) if batched else None: model}
    largest = graphs[max(graphs, key=lambda size: size or 0)]
    signature = signature_of(name, largest, batched=None not in graphs)
    return ServedModel(signature, graphs, _cut(name, graphs, terms.partition))


def _model(name: str, model: Any) -> Graph | Template:
    if isinstance(model, Trainer):
        return _with_present_values(model)
    if not isinstance(model, (Graph, Template)):
        raise InputError(f"network {name}: the model is to be a graph or a template, {no_model(model)}")
    return model


def _with_present_values(trainer: Trainer) -> Graph | Template:
    values, model = trainer.variables(), trainer.graphs.model
    if isinstance(model, Graph):
        return with_values(inference(model), values)
    return inference(model).map(partial(with_values, values=values))


def _sizes(name: str, max_batch: Any, batch_sizes: Any) -> tuple[int, ...]:
    """The sizes of batches that are wanted, ascending."""
    if max_batch is not None and batch_sizes is not None:
        raise InputError(f"network {name}: say max_batch or batch_sizes, not both")
    sizes = _powers(name, MAX_BATCH if max_batch is None else max_batch) if batch_sizes is None else batch_sizes
    if isinstance(sizes, str) or not isinstance(sizes, Sequence) or not sizes:
        raise InputError(f"network {name}: batch_sizes is a list of numbers, not {sizes!r}")
    wrong = [size for size in sizes if not isinstance(size, int) or isinstance(size, bool) or size < 1]
    if wrong:
        raise InputError(f"network {name}: a batch has a whole number of rows from 1, not {wrong[0]!r}")
    if max(sizes) > LARGEST_BATCH:
        raise InputError(f"network {name}: a batch has {LARGEST_BATCH:,} rows at most, not {max(sizes):,}")
    return tuple(sorted(set(sizes)))


def _powers(name: str, largest: Any) -> tuple[int, ...]:
    """Powers of two, and the largest batch."""
    if not isinstance(largest, int) or isinstance(largest, bool) or largest < 1:
        raise InputError(f"network {name}: max_batch is a whole number of at least 1, not {largest!r}")
    return (*(1 << power for power in range((largest - 1).bit_length())), largest)


def _bound(
    name: str, template: Template, sizes: Sequence[int], dims: Mapping[str, int], wants_batches: bool
) -> dict[int | None, Graph]:
    """A template bound to each size of a batch, or as it is where nothing is left open. Raises :class:`BindingError`
    for dimensions that it does not have."""
    if strange := unknown(dims, template.symbols, "dimension"):
        raise BindingError(f"network {name}: {strange}")
    template = template.partly(dims, {}) if dims else template
    symbol = batch_symbol(template)
    open_dims(template, symbol)
    if symbol is None:
        _no_batches(name, wants_batches, "its inputs have no open first dimension in common")
        return {None: template.bind({})}
    graphs: dict[int | None, Graph] = {size: template.bind({symbol: size}) for size in sizes}
    wrong = [size for size, graph in graphs.items() if size is not None and not gives_rows(graph, size)]
    if not wrong and not any(graph.updates for graph in graphs.values()):
        return graphs
    _no_batches(
        name, wants_batches, "not all of its outputs have a row for each row of the inputs, or it updates variables"
    )
    if len(graphs) == 1:
        return {None: next(iter(graphs.values()))}
    raise InputError(f"network {name} cannot have batches of several sizes; bind it: dims={{{symbol!r}: ...}}")


def _own_size(
    name: str, graph: Graph, sizes: Sequence[int], dims: Mapping[str, int] | None, wants_batches: bool
) -> int | None:
    """The size of the batch that a graph is bound to; None if its first axes are no rows, or have none."""
    if dims:
        raise InputError(f"network {name}: the graph is bound already; dims are for a template")
    first = graph.inputs[0].shape[:1] if graph.inputs else ()
    if first in ((), (0,)) or graph.updates or not gives_rows(graph, first[0]):
        _no_batches(name, wants_batches, "not all of its inputs and outputs have as many rows, or it updates variables")
        return None
    if wants_batches and sizes[-1] != first[0]:
        raise InputError(
            f"network {name}: the graph is bound to batches of {first[0]}, so they cannot be of {sizes[-1]}; give the "
            "template, or a graph of that size"
        )
    return int(first[0])


def _no_batches(name: str, wants_batches: bool, why: str) -> None:
    if wants_batches:
        raise InputError(f"network {name} cannot be batched: {why}; leave max_batch and batch_sizes out")


def _cut(name: str, graphs: Mapping[int | None, Graph], partition: Partition | Cut | None) -> Partitions:
    """The parts of each graph. Raises :class:`InputError` for what is no partition, :class:`PartitionError` for one of
    another graph, or that is not well formed."""
    if partition is None:
        return {size: whole(graph) for size, graph in graphs.items()}
    if isinstance(partition, Partition) and len(graphs) > 1:
        raise InputError(
            f"network {name}: a partition is of one batch size, and there are {len(graphs)}; for several give a "
            "function that cuts each: partition=lambda graph: ..."
        )
    if not isinstance(partition, Partition) and not callable(partition):
        raise InputError(f"network {name}: partition is a Partition or a function, not {kind_of(partition)}")
    cut = {size: partition if isinstance(partition, Partition) else partition(graph) for size, graph in graphs.items()}
    check_partitions(graphs, cut)
    return cut
