"""A training step of a fleet: each rank computes the gradients of its shards, their sums meet, all ranks update."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from glowtrain.backends.base import Backend, Batches, Completed, one_by_one
from glowtrain.backends.state import State
from glowtrain.compiler import Function, MemoryUse, Specialisation
from glowtrain.errors import FleetError
from glowtrain.fleet.all_reduce import AllReduce, Arrays, Gradients
from glowtrain.fleet.communicator import Communicator
from glowtrain.fleet.notes import Notes
from glowtrain.fleet.shards import Share, TreeNode, fold, last_shard
from glowtrain.fleet.slices import SlicedState, slices_of
from glowtrain.fleet.times import StepTimes
from glowtrain.grad.data_parallel import GRADIENT, STATE
from glowtrain.grad.shards import COUNTER, MASS, WEIGHT, ShardedStep
from glowtrain.grad.slices import FRESH, SlicedUpdate
from glowtrain.grad.training import LOSS
from glowtrain.graph import Graph, Template
from glowtrain.stages import Options


class FleetStep:
    """A trainer's step over whole batches, or over this rank's rows of them.

    ``shard`` is the graph of one shard for any binding, ``step`` has all others; ``bucket``: bytes that travel at once,
    with ``overlap`` while the rest of a shard is computed. With ``sliced`` each rank updates slices of the parameters,
    over a :class:`SlicedState`, and gets the others'.
    """

    def __init__(
        self, shard: Graph | Template, step: ShardedStep, backend: Backend, state: State, options: Options,
        share: Share, ranks: Communicator, bucket: int, sliced: SlicedUpdate | None = None, *, overlap: bool = False,
    ) -> None:  # fmt: skip
        self.backend, self.state, self.options = backend, state, options
        self.step, self.share, self.ranks = step, share, ranks
        self.shard = Function(shard, backend, state, replace(options, segmented=overlap and ranks.size > 1))
        self._counters = self._of(step.counters(share.shards)) if step.split.counters else None
        self._updates: dict[int, Function] = {}
        self.sliced = sliced
        self._slices = slices_of(step.gradients, bucket, share.ranks)[share.rank]
        gathers = sliced is None or sliced.needs_whole_gradients
        replaced = step.gradients if sliced is None else step.updated
        self.sums = AllReduce(step.gradients, bucket, share, ranks, replaced, gathers=gathers)
        self._adopt = None if sliced is None else self._of(sliced.adoption())
        self._small = {name: type_ for name, type_ in step.shard.output_types.items() if name not in step.gradients}
        self.notes = Notes(self._small, share, ranks)
        self.times = StepTimes(ranks)
        self.request = 0
        """A signal that this rank was sent; after each step that of any rank."""
        self.losses: list[float] = []
        """The weighted losses of the last batch's shards."""
        self.masses: list[float] | None = None
        """The sum of the weights of the last batch's examples, where these have any."""
        self.examples = 0
        """Examples of the last batch."""

    def __call__(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Train on a whole batch, which all ranks have; the loss and metrics of all of it."""
        batch = self._batched(inputs)
        examples = len(next(iter(batch.values())))
        rows = self.share.rows(examples, self.share.local)
        return self.on_rows({**inputs, **{name: array[rows] for name, array in batch.items()}}, examples)

    def on_rows(self, inputs: Mapping[str, Any], examples: int) -> dict[str, Any]:
        """Train on a batch of so many examples, of which ``inputs`` are this rank's rows.

        Raises :class:`FleetError` where another rank has failed, and for other hyperparameters on one: then nothing has
        been updated.
        """
        self.examples = examples
        self.sums.begin(examples)
        small = self._add_up(inputs, examples)
        hyper = zlib.crc32(b"".join(array.tobytes() for array in self._known(inputs).values()))
        self.ranks.wait(self.notes.begin(small, examples, (self.request, hyper, self.times.busy)))
        self.ranks.wait(self.sums)
        requests, theirs, busy = zip(*self.notes.numbers, strict=True)
        self.times.exchanged(busy)
        self.request = max(requests)
        if wrong := [rank for rank, each in enumerate(theirs) if each != theirs[0]]:
            raise FleetError(f"rank {wrong[0]} has other hyperparameters than rank 0: change them on all ranks or none")
        return self.updated(inputs, self.sums.sums if self.sums.gathers else self.sums.local, self.notes.shards)

    def updated(self, inputs: Mapping[str, Any], sums: Arrays, shards: Sequence[Arrays]) -> Arrays:
        """Update with the sums of gradients and what all shards have; the loss and metrics."""
        self.losses = [float(own[LOSS]) for own in shards]
        means = self._means(shards)
        self.masses = [float(means.pop(MASS))] if MASS in means else None
        state = {f"{name}.{n}": a for n, own in enumerate(shards) for name, a in own.items() if name.startswith(STATE)}
        fresh = self._update(len(shards))({**self._known(inputs), **sums, **state, LOSS: means[LOSS]})
        if self._adopt is not None:
            self.ranks.wait(self.sums.replace({_renamed(name, FRESH, GRADIENT): a for name, a in fresh.items()}))
            self._adopt({_renamed(name, GRADIENT, FRESH): array for name, array in self.sums.sums.items()})
        if isinstance(self.state, SlicedState):
            self.state.forget()
        return means

    def write(self, inputs: Mapping[str, Any], memory: Gradients, completed: Completed | None = None) -> Arrays:
        """Write the gradients of a shard into memory; what is small beside them."""
        small = {name: np.empty(type_.shape, type_.dtype.numpy) for name, type_ in self._small.items()}
        self.shard.write(inputs, {**memory.arrays, **small}, completed)
        return small

    def first_shard(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs of a whole batch's first shard."""
        return self._first(inputs, self.share.shards)

    def specialised(self, inputs: Mapping[str, Any]) -> Specialisation:
        """What is compiled for the first shard of a rank's rows; and the update, if it is not yet."""
        self._update(self.share.shards)
        return self.shard.specialised(self._first(inputs, len(self.share.local)))

    @property
    def is_compiled(self) -> bool:
        """Whether anything has been compiled yet."""
        return self.shard.is_compiled

    def latest(self) -> Specialisation:
        """What was compiled for the latest shard. Raises :class:`InputError` where nothing has been compiled yet."""
        return self.shard.latest()

    def memory(self, inputs: Mapping[str, Any] | None = None) -> MemoryUse:
        """The bytes that a shard takes, by default the latest, or one of a whole batch."""
        return self.shard.memory(None if inputs is None else self.first_shard(inputs))

    def run_many(self, batches: Batches) -> Arrays:
        """Steps on whole batches, one after the other."""
        return one_by_one(self, batches)

    def rows_of(self, shard: int, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """A shard's rows of the last batch, of which ``inputs`` are all or this rank's."""
        batch = self._batched(inputs)
        whole = len(next(iter(batch.values()))) == self.examples
        begin = 0 if whole else self.share.rows(self.examples, self.share.local).start
        rows = self.share.rows(self.examples, range(shard, shard + 1))
        own = {name: array[rows.start - begin : rows.stop - begin] for name, array in batch.items()}
        return {**self._scalars(inputs), **own}

    def _first(self, inputs: Mapping[str, Any], shards: int) -> dict[str, Any]:
        """The inputs of the first of so many shards of these rows."""
        batch = self._batched(inputs)
        size = -(-len(next(iter(batch.values()))) // shards)
        own = {name: array[:size] for name, array in batch.items()}
        start = {COUNTER + counter.name: counter.initial for counter in self.step.split.counters}
        return {**self._scalars(inputs), **own, **start, **self._weight(1, 1)}

    def _add_up(self, inputs: Mapping[str, Any], examples: int) -> dict[int, Arrays]:
        """Compute this rank's shards and send the sums of their gradients; what is small beside these, by shard."""
        counters = {} if self._counters is None else self._counters({})
        small: dict[int, Arrays] = {}

        def run(shard: int, memory: Gradients, completed: Completed) -> None:
            rows = self.share.rows(examples, range(shard, shard + 1))
            beside = {**self._counted(counters, shard), **self._weight(rows.stop - rows.start, examples)}
            small[shard] = self.write({**self.rows_of(shard, inputs), **beside}, memory, completed)

        def gradients(node: TreeNode) -> Gradients | None:
            if node[1] - node[0] > 1:
                return None
            memory = self.sums.memory()
            run(node[0], memory, lambda names: self.sums.progress())
            return memory

        for node in self.share.nodes(self.share.rank, examples):
            before, (last, _) = last_shard(node, self.share.present(examples, range(*node)))
            lefts = [fold(each, gradients, self.sums.add) for each in before]
            self.sums.add_up(node, [each for each in lefts if each is not None], partial(run, last))
        return small

    def _weight(self, size: int, examples: int) -> Arrays:
        return {WEIGHT: np.asarray(size / examples, self.step.weight.dtype.numpy)}

    def _counted(self, counters: Mapping[str, Any], shard: int) -> Arrays:
        names = [COUNTER + counter.name for counter in self.step.split.counters]
        return {name: counters[f"{name}.{shard}"] for name in names}

    def _means(self, shards: Sequence[Arrays]) -> Arrays:
        """The loss and metrics of the whole batch: sums of what shards have of them, in the tree's order."""
        names = [name for name in shards[0] if not name.startswith(STATE)]

        def leaf(node: TreeNode) -> Arrays | None:
            return shards[node[0]] if node[1] - node[0] == 1 and node[0] < len(shards) else None

        total = fold((0, self.share.shards), leaf, lambda a, b: {name: a[name] + b[name] for name in names})
        assert total is not None
        return {name: np.asarray(total[name]) for name in names}

    def _update(self, shards: int) -> Function:
        """The update from so many shards."""
        if shards not in self._updates:
            sliced, step = self.sliced, self.step
            self._updates[shards] = self._of(sliced.graph(shards, self._slices) if sliced else step.update(shards))
        return self._updates[shards]

    def _of(self, graph: Graph) -> Function:
        return Function(graph, self.backend, self.state, self.options)

    def _batched(self, inputs: Mapping[str, Any]) -> Arrays:
        """What has rows of the batch."""
        names = {value.name for value in self.step.inputs if value.rank}
        return {name: array for name, array in inputs.items() if name in names}

    def _scalars(self, inputs: Mapping[str, Any]) -> Arrays:
        names = {value.name for value in self.step.inputs if not value.rank}
        return {name: array for name, array in inputs.items() if name in names}

    def _known(self, inputs: Mapping[str, Any]) -> Arrays:
        """What the update takes of a call's inputs: hyperparameters."""
        names = {value.name for value in self.step.inputs}
        return {name: array for name, array in inputs.items() if name not in names}


def _renamed(name: str, before: str, after: str) -> str:
    """A name that begins otherwise."""
    return after + name.removeprefix(before)
