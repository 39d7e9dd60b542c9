"""Steps that keep a budget of memory by parts of their batches: in how many, and what they would take.

Gradients of a split batch differ from those of the whole by rounding, as sums are taken in another order. So a budget
alone splits nothing; it says what splitting would take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from glowtrain import compiler
from glowtrain.backends.base import Backend
from glowtrain.backends.state import State
from glowtrain.compiler import Function, Specialisation, service
from glowtrain.errors import DifferentiationError, InputError, MemoryBudgetError
from glowtrain.graph import Binding, Graph
from glowtrain.stages import Options, Stage
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.micro_batches.split import AUTO, batch_symbol

STEP = "step"
GraphTransform = Callable[[Graph], Graph]
"""Makes of a trainer's step what is compiled."""


def as_it_is(step: Graph) -> Graph:
    """A step that is compiled as a trainer has it."""
    return step


@dataclass(frozen=True)
class PartsOfBatches:
    """The steps of a bound ``model`` in any number of parts, and what each needs within the budget of ``options``;
    ``transform`` makes of a step what is compiled."""

    graphs: TrainerGraphs
    model: Graph
    options: Options
    backend: Backend
    transform: GraphTransform = as_it_is

    def within(self) -> PartsOfBatches:
        """The same within a budget that a share says of the whole step, with nothing rounded: so many bytes."""
        return replace(self, options=service.in_bytes({STEP: self.step(1)}, self.options, self._stages))

    def counts(self) -> list[int]:
        """The numbers of parts that the batch has, from 2 on; none where it cannot be split."""
        try:
            batch = self.model.dims[batch_symbol(self.model.name, self.graphs.all_specs)]
            self.graphs.step_in_parts(self.model, batch)
        except (InputError, DifferentiationError):
            return []
        return [count for count in range(2, batch + 1) if batch % count == 0]

    def least_count(self) -> int | None:
        """The smallest number of parts with which the budget is kept; more parts need less memory. None if none is
        enough."""
        counts = self.counts()
        if not counts or self.needed(counts[-1]) is None:
            return None
        return counts[bisect_left(counts[:-1], True, key=lambda count: self.needed(count) is not None)]

    def needed(self, count: int) -> int | None:
        """The bytes of variables and arena of a step in so many parts; None where they are more than the budget."""
        try:
            return service.needed(service.plans_of({STEP: self.step(count)}, self.options, self._stages))
        except MemoryBudgetError:
            return None

    @property
    def _stages(self) -> tuple[Stage, ...]:
        return self.backend.stages(compiler.walk.WALK)

    def step(self, count: int) -> Graph:
        """The step in so many parts."""
        graphs = self.graphs
        return self.transform(
            graphs.whole_step_of(self.model) if count == 1 else graphs.step_in_parts(self.model, count)
        )


class StepFunction(Function):
    """A trainer's compiled step.

    A batch with which a budget of memory cannot be kept is split into as few parts as it takes where ``micro_batches``
    is :data:`AUTO`; else :class:`MemoryBudgetError` says what parts would take.
    """

    def __init__(self, graphs: TrainerGraphs, backend: Backend, state: State, options: Options) -> None:
        self.graphs = graphs
        super().__init__(graphs.step(), backend, state, options)

    def _specialise(self, graph: Graph) -> Specialisation:
        if self.graphs.spec.micro_batches != AUTO:
            with proposing(self.graphs, graph.binding, self.options, self.backend):
                return super()._specialise(graph)
        try:
            return super()._specialise(graph)
        except MemoryBudgetError:
            model = self.graphs.at(graph.binding)
            parts = PartsOfBatches(self.graphs, model, self.options, self.backend).within()
            count = parts.least_count()
            if count is None:
                raise
            split = parts.step(count).with_(template=graph.template, binding=graph.binding)
            return Specialisation(split, self.backend, parts.options, self.state)


@contextmanager
def proposing(
    graphs: TrainerGraphs | None,
    binding: Binding,
    options: Options,
    backend: Backend,
    transform: GraphTransform = as_it_is,
) -> Iterator[None]:
    """Let a :class:`MemoryBudgetError` of a step at a binding say in how many parts it would keep the budget."""
    try:
        yield
    except MemoryBudgetError as error:
        if graphs is None or graphs.spec.micro_batches not in (1, AUTO):
            raise
        parts = PartsOfBatches(graphs, graphs.at(binding), options, backend, transform).within()
        count = parts.least_count()
        if count is None:
            raise
        raise MemoryBudgetError(
            f"{error}; so would parts of the batch: micro_batches={count} (--micro-batches {count}) takes "
            f"{parts.needed(count):,}"
        ) from None
