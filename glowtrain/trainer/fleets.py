"""A trainer as one of the ranks of a fleet: its step, its rows of the data, and what all ranks must agree on."""

from __future__ import annotations

import math
import socket
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeVar

from glowtrain.backends.base import Backend
from glowtrain.backends.state import State
from glowtrain.errors import FleetError, InputError
from glowtrain.fleet.digest import digest
from glowtrain.fleet.slices import SlicedState
from glowtrain.fleet.spec import FleetSpec
from glowtrain.grad.training import LOSS
from glowtrain.metrics.measures import Gatherer
from glowtrain.presentation.messages import plural
from glowtrain.stages import Options
from glowtrain.trainer.diagnose import first_bad
from glowtrain.trainer.fitting.spec import FitSpec
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.micro_batches.split import batch_symbol
from glowtrain.trainer.settings import TrainingSettings
from glowtrain.trainer.sources.cut import ArraySource
from glowtrain.trainer.sources.results import Evaluate, Mass, Measured, counted, results
from glowtrain.trainer.sources.source import BatchRow, BatchSource
from glowtrain.types import Array, LazyArray
from glowtrain.version import __version__

if TYPE_CHECKING:
    from glowtrain.fleet.fleet import Fleet


T = TypeVar("T")
E = TypeVar("E", bound=BaseException)
NONE: Any = object()
OWN = "threads", "memory", "fleet", "trainable", "metrics", "micro_batches"
"""Settings that may differ between ranks, or are compared as what follows from them."""


def joined(spec: FleetSpec | None) -> Fleet | None:
    """The fleet that this process is a rank of. Raises :class:`InputError`, :class:`FleetError`."""
    if spec is None:
        return None
    from glowtrain.fleet.fleet import join  # noqa: PLC0415  (only fleets need what they are made of)

    return join(spec)


class TrainerFleet:
    """A trainer's place in its fleet.

    Raises :class:`InputError` for a model whose batch is fixed and for ``micro_batches``.
    """

    def __init__(
        self, fleet: Fleet, graphs: TrainerGraphs, backend: Backend, initial: Mapping[str, Array | LazyArray],
        options: Options,
    ) -> None:  # fmt: skip
        if graphs.spec.micro_batches != 1:
            raise InputError("fleet: shards are parts of a batch already: leave out micro_batches= (--micro-batches)")
        batch_symbol(graphs.model.name, graphs.all_specs, "in a fleet")
        self.graphs, self.spreads = graphs, False
        self.agreed = False
        """Whether all ranks have been compared since the trainer was made."""
        self._common_error: BaseException | None = None
        self.fleet = fleet
        step = graphs.sharded_step(graphs.example)
        sliced = fleet.sliced(step)
        self.state = fleet.state(initial, sliced)
        """The trainer's variables, as this rank has them."""
        self.step = fleet.function(graphs.shard(), step, backend, self.state, options, sliced)

    @property
    def first(self) -> bool:
        """Whether this rank writes files and reports."""
        return self.fleet.first

    def local_spec(self, spec: FitSpec) -> FitSpec:
        """What this rank does of a call of ``fit``: all but the first write no files and report nothing."""
        if self.first:
            return spec
        kept = [callback for callback in spec.callbacks if not getattr(callback, "writes", False)]
        nowhere: dict[str, Any] = dict.fromkeys(("checkpoint", "checkpoint_every", "log", "plot"))
        return replace(spec, progress=False, callbacks=kept, **nowhere)

    @contextmanager
    def run(self, doing: str) -> Iterator[None]:
        """What all ranks do together: an error of one is one of all. Ctrl-C and SIGTERM are obeyed by all at once."""
        ranks = self.fleet.ranks
        ranks.begin(doing, self.fleet.spec.timeout)
        try:
            yield
        except FleetError:
            raise
        except BaseException as error:
            if error is self._common_error:
                raise
            host = socket.gethostname()
            ranks.failed(f"rank {ranks.rank} on {host} has failed, {doing}: {str(error) or type(error).__name__}")
            raise

    def raised_by_all(self, error: E) -> E:
        """An error that all ranks raise at the same point: nobody is to be told, who may not be there yet."""
        self._common_error = error
        return error

    def gather(self) -> None:
        """Bring what is in slices to rank 0; all ranks call it."""
        if isinstance(self.state, SlicedState):
            self.state.gather()

    @property
    def common(self) -> dict[str, Array]:
        """Copies of the variables that each rank has all of."""
        return self.state.common if isinstance(self.state, SlicedState) else dict(_all(self.state))

    def rows(self, size: int) -> slice:
        """This rank's rows of a batch."""
        return self.fleet.share.rows(size, self.fleet.share.local)

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Raise :class:`FleetError`, on all ranks, for facts that are not the same everywhere."""
        self.fleet.check_same(facts)

    @property
    def settings(self) -> dict[str, str]:
        """What was said of the training, and must be the same on all ranks."""
        spec, fleet = self.graphs.spec, self.fleet.spec
        given = {each.name: getattr(spec, each.name) for each in fields(TrainingSettings) if each.name not in OWN}
        entries = self.graphs.measures.entries(self.graphs.inference_example, training=True, validation=True)
        given |= {"metrics": sorted(entries), "shards": fleet.shards, "bucket": fleet.limit}
        given |= {"sharded_optimizer": fleet.sharded_optimizer, "gradients": fleet.gradients}
        given["glowtrain's version"] = __version__
        return {name: str(value) for name, value in given.items()}

    def check_whole(self, batch: str, arrays: Mapping[str, Array] | None) -> None:
        """Raise :class:`FleetError`, on all ranks, for a batch of which each has made the whole, or that some do not
        have, where it is not the same everywhere."""
        self.check_same({batch: "none" if arrays is None else digest(arrays)})

    def check_batch(self, size: int) -> None:
        """Raise :class:`InputError` for batches that are too small for the shards."""
        if size < (shards := self.fleet.spec.shards):
            raise InputError(f"fleet: a batch of {size} has fewer examples than shards={shards} (--shards)")

    def cut(self, row: BatchRow) -> BatchRow:
        """This rank's rows of a whole batch."""
        own = self.rows(row.size)
        return replace(row, arrays={name: a[own] if a.ndim else a for name, a in row.arrays.items()})

    @contextmanager
    def spreading(self) -> Iterator[None]:
        """Data sets that are evaluated meanwhile, by all ranks, are shared out among them."""
        self.spreads = True
        try:
            yield
        finally:
            self.spreads = False

    def measured(self, function: Evaluate, source: BatchSource, mass: Mass, gatherer: Gatherer) -> Measured:
        """What is measured of all batches of a source, in their order, each by one rank; what these gather, too."""
        ranks = self.fleet.ranks
        seen: list[str] = []

        def call(row: BatchRow, number: int) -> Mapping[str, Any] | None:
            if not isinstance(source, ArraySource):
                seen.append(digest(row.arrays))
            return function(row.arrays) if number % ranks.size == ranks.rank else None

        own = [(counted(row, mass), outputs) for row, outputs in results(source, call) if outputs is not None]
        self.check_same({"validation": f"{len(seen)} batches, {zlib.crc32(' '.join(seen).encode()):08x}"})
        found, lists = zip(*ranks.gathered((own, gatherer.lists)), strict=True)
        for mine, *theirs in zip(gatherer.lists, *lists, strict=True):
            mine[:] = _in_turns(theirs)
        return _in_turns(found)

    def any_of(self, value: T) -> T:
        """The first value of the ranks' that is true, or what rank 0 has."""
        values: list[T] = self.fleet.ranks.gathered(value)
        return next(filter(None, values), values[0])

    def from_first(self, make: Callable[[], T]) -> T:
        """What rank 0 makes, on all ranks."""
        made: T = self.fleet.ranks.from_first(make)
        return made

    def diagnosis(self, arrays: Mapping[str, Array], hyper: Mapping[str, Array], state: Mapping[str, Array]) -> str:
        """Where a loss went bad: in which shard, and at which value of it."""
        bad = [shard for shard, loss in enumerate(self.step.losses) if not math.isfinite(loss)]
        if not bad:
            return f"the losses of all {plural(len(self.step.losses), 'shard')} are finite, and their sum is not"
        share, shard = self.fleet.share, bad[0]
        text = None
        if shard in share.local:
            own = self.step.rows_of(shard, arrays)
            graph = self.graphs.whole_step_of(self._bound(own))
            text = first_bad(graph, graph.outputs[LOSS], {**own, **hyper}, state)
        found = next(filter(None, self.fleet.ranks.gathered(text)))
        return f"shard {shard} (rank {shard // len(share.local)}): {found}"

    def _bound(self, arrays: Mapping[str, Array]) -> Any:
        template = self.graphs.template
        assert template is not None
        return template.bind(template.dims_for({name: arrays[name].shape for name in template.inputs}))


def _all(state: State) -> Iterator[tuple[str, Array]]:
    return ((name, state.read(name)) for name in state.names)


def _in_turns(lists: Sequence[Sequence[T]]) -> list[T]:
    """First elements, second ones, and so on."""
    rounds = zip_longest(*lists, fillvalue=NONE)
    return [each for turn in rounds for each in turn if each is not NONE]
