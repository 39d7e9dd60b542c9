"""A trainer as one of the ranks of a fleet: its step, its rows of the data, and what all ranks must agree on."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from glowtrain.backends.base import Backend
from glowtrain.backends.state import State
from glowtrain.errors import InputError
from glowtrain.fleet.spec import FleetSpec
from glowtrain.grad.training import LOSS
from glowtrain.presentation.messages import plural
from glowtrain.stages import Options
from glowtrain.trainer.diagnose import first_bad
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.micro_batches.split import batch_symbol
from glowtrain.trainer.sources.source import BatchRow
from glowtrain.types import Array
from glowtrain.version import __version__

if TYPE_CHECKING:
    from glowtrain.fleet.fleet import Fleet


class TrainerFleet:
    """A trainer's place in its fleet.

    Raises :class:`InputError` for ranks that cannot share the shards out, a model whose batch is fixed and
    ``micro_batches``; :class:`FleetError`, on all ranks, where what they train is not the same.
    """

    def __init__(
        self, spec: FleetSpec, graphs: TrainerGraphs, backend: Backend, state: State, options: Options
    ) -> None:  # fmt: skip
        from glowtrain.fleet.fleet import join  # noqa: PLC0415  (only fleets need what they are made of)

        if graphs.spec.micro_batches != 1:
            raise InputError("fleet: shards are parts of a batch already: leave out micro_batches= (--micro-batches)")
        batch_symbol(graphs.model.name, graphs.all_specs, "in a fleet")
        self.graphs, self.state = graphs, state
        self.fleet: Fleet = join(spec)
        self.step = self.fleet.function(graphs.shard(), graphs.sharded_step(graphs.example), backend, state, options)

    @property
    def first(self) -> bool:
        """Whether this rank writes files and reports."""
        return self.fleet.first

    def check_same(self, facts: Mapping[str, str]) -> None:
        """Raise :class:`FleetError`, on all ranks, for a training that is not the same everywhere."""
        spec = self.graphs.spec
        settings = {"seed": spec.seed, "shards": self.fleet.spec.shards, "glowtrain's version": __version__}
        self.fleet.check_same({**{name: str(value) for name, value in settings.items()}, **facts})

    def check_batch(self, size: int) -> None:
        """Raise :class:`InputError` for batches that are too small for the shards."""
        if size < (shards := self.fleet.spec.shards):
            raise InputError(f"fleet: a batch of {size} has fewer examples than shards={shards} (--shards)")

    def cut(self, row: BatchRow) -> BatchRow:
        """This rank's rows of a whole batch."""
        own = self.fleet.share.rows(row.size, self.fleet.share.own)
        return replace(row, arrays={name: a[own] if a.ndim else a for name, a in row.arrays.items()})

    def agreed(self, value: Any, choose: Callable[[list[Any]], Any]) -> Any:
        """What all ranks take of what each of them has."""
        return self.fleet.agreed(value, choose)

    def diagnosis(self, arrays: Mapping[str, Array], hyper: Mapping[str, Array], state: Mapping[str, Array]) -> str:
        """Where a loss went bad: in which shard, and at which value of it."""
        bad = [shard for shard, loss in self.step.losses.items() if not math.isfinite(loss)]
        if not bad:
            return f"the losses of all {plural(len(self.step.losses), 'shard')} are finite, and their sum is not"
        share, shard = self.fleet.share, bad[0]
        text = None
        if shard in share.own:
            own = self.step.rows_of(shard, arrays)
            graph = self.graphs.whole_step_of(self._bound(own))
            text = first_bad(graph, graph.outputs[LOSS], {**own, **hyper}, state)
        found = next(filter(None, self.fleet.ranks.gathered(text)))
        return f"shard {shard} (rank {shard // len(share.own)}): {found}"

    def _bound(self, arrays: Mapping[str, Array]) -> Any:
        template = self.graphs.template
        assert template is not None
        return template.bind(template.dims_for({name: arrays[name].shape for name in template.inputs}))
