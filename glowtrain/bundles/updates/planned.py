"""Plan a training step that trains a part of a model, and tell what it takes: what is not trained is constant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from glowtrain.bundles.contents import PREDICT, STEP, training_of
from glowtrain.compiler.service import plans_of
from glowtrain.errors import MemoryBudgetError
from glowtrain.graph import Graph
from glowtrain.losses import Loss
from glowtrain.memory.budget import SMALLEST, Budget
from glowtrain.optim import Optimizer
from glowtrain.stages import Options
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.settings import TrainingSpec


@dataclass(frozen=True)
class StepBytes:
    """Bytes that are written while a step runs: ``parameters`` of which at least a part is trained, what an
    ``optimizer`` and the model keep from step to step, and the arena. ``fitted``: a budget was needed for that."""

    parameters: int
    optimizer: int
    arena: int
    fitted: bool = False

    @property
    def total(self) -> int:
        """All of it."""
        return self.parameters + self.optimizer + self.arena


@dataclass
class Planner:
    """Plans steps of a bound model for a processor within ``limit`` bytes, each once."""

    model: Graph
    loss: Loss
    optimizer: Optimizer
    options: Options
    limit: int
    _known: dict[tuple[str, ...], StepBytes] = field(default_factory=dict)
    _least: dict[tuple[str, ...], StepBytes] = field(default_factory=dict)
    _predicting: dict[Budget, int] = field(default_factory=dict)

    def bytes(self, trainable: Sequence[str]) -> StepBytes:
        """What a step takes that trains this: as it is planned where nothing is said of memory, and where that is more
        than the limit, with as much computed again as it takes, if it can be done."""
        key = tuple(trainable)
        if key not in self._known:
            self._known[key] = self._planned(key)
        return self._known[key]

    def least(self, trainable: Sequence[str]) -> StepBytes:
        """What that step takes at least, whatever time it needs then."""
        key = tuple(trainable)
        if key not in self._least:
            _, found = self._step(key, replace(self.options, memory=SMALLEST))
            self._least[key] = replace(found, fitted=True)
        return self._least[key]

    def fits(self, trainable: Sequence[str]) -> bool:
        """Whether that is within the limit."""
        return self.bytes(trainable).total <= self.limit

    def _planned(self, trainable: tuple[str, ...]) -> StepBytes:
        fixed, found = self._step(trainable, self.options)
        return found if found.total <= self.limit else self._fitted(found, fixed)

    def _step(self, trainable: tuple[str, ...], options: Options) -> tuple[Mapping[str, Graph], StepBytes]:
        """The graphs of a step that trains this, and what it takes."""
        graphs = TrainerGraphs(
            TrainingSpec(self.model, self.loss, self.optimizer, trainable=trainable, freeze_statistics=True)
        )
        fixed = training_of(graphs, {}, {}, {}, None).fixed().graphs
        sizes = {variable.name: variable.type.nbytes for variable in fixed[STEP].variables}
        parameters = sum(size for name, size in sizes.items() if name in graphs.chosen)
        return fixed, StepBytes(parameters, sum(sizes.values()) - parameters, self._arena(fixed, options))

    def _fitted(self, found: StepBytes, fixed: Mapping[str, Graph]) -> StepBytes:
        if found.parameters + found.optimizer >= self.limit:
            return found
        try:
            arena = self._arena(fixed, replace(self.options, memory=Budget(nbytes=self.limit)))
        except MemoryBudgetError:
            return found
        return StepBytes(found.parameters, found.optimizer, arena, fitted=True)

    def _arena(self, graphs: Mapping[str, Graph], options: Options) -> int:
        """That of the step, or of the prediction where it is larger: they use the same one."""
        return max(_arena(graphs[STEP], options), self._prediction(graphs[PREDICT], options))

    def _prediction(self, graph: Graph, options: Options) -> int:
        """What is trained changes it only where a limit counts variables."""
        if options.memory.limited:
            return _arena(graph, options)
        if options.memory not in self._predicting:
            self._predicting[options.memory] = _arena(graph, options)
        return self._predicting[options.memory]


def _arena(graph: Graph, options: Options) -> int:
    (plan,) = plans_of({graph.name: graph}, options).values()
    return plan.arena
