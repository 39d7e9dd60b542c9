"""What a trainer trains, as tables: its settings, and layers with shapes, parameters, work and memory."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glowtrain.compiler.memory_use import MemoryUse
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table

if TYPE_CHECKING:
    from glowtrain.compiler.outline import Outline
    from glowtrain.trainer.graphs import TrainerGraphs
    from glowtrain.trainer.steps import Steps

COLUMNS = ("layer", "operator", "result", "bytes>", "parameters>", "trained>", "multiply-adds>")
NOT_COMPILED = "what a step takes besides is known once it is compiled: summary(64), for a batch of 64"
HYPER = ("lr", "weight_decay", "clip_norm", "clip_value")
"""Hyperparameters that a trainer shows of itself."""


@dataclass(frozen=True)
class TrainingSummary(Displayable):
    """The layers of a trained model for a batch; printed, a table.

    ``step_multiply_adds`` are those of a whole step: forward, backward and update; operations (FLOPs) are two each.
    ``state`` is what its variables take in bytes, and ``memory`` what all of it takes, or why that is not known.
    """

    outline: Outline
    step_multiply_adds: int
    state: int
    memory: MemoryUse | str

    def __repr__(self) -> str:
        return self._as_text()

    def _contents(self) -> Iterator[str | Table]:
        outline, total = self.outline, self.step_multiply_adds
        yield Table(COLUMNS, self._rows())
        yield outline.total()
        share = total / max(outline.multiply_adds, 1)
        step = f"a step takes {plural(total, 'multiply-add')}, {share:.2g} × those of the model"
        yield f"{outline.trained:,} of the parameters are trained; {step}"
        if isinstance(self.memory, str):
            yield f"{byte_text(self.state)} of state; {self.memory}"
        else:
            yield ""
            yield from self.memory._contents()

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for layer in self.outline.layers:
            counts = (layer.result.nbytes, layer.parameters, layer.trained, layer.multiply_adds)
            yield layer.name, layer.operator, str(layer.result), *(f"{count:,}" if count else "" for count in counts)


def trained_sizes(graphs: TrainerGraphs) -> dict[str, int]:
    """How many elements of each variable a step updates for the loss's sake, by name."""
    sizes = {variable.name: variable.type.size for variable in graphs.example_step.updates}
    chosen = {name: bounds for name, bounds in graphs.chosen.items() if name in sizes}
    return {name: sizes[name] if box is None else math.prod(map(len, box)) for name, box in chosen.items()}


def settings_of_trainer(trainer: Steps) -> Iterator[tuple[str, str]]:
    """A trainer's settings, in words."""
    graphs = trainer.graphs
    parameters = sum(variable.type.size for variable in graphs.example.variables if variable.trainable)
    hyper = [f"{name} {value:g}" for name, value in trainer.hyper.items() if name in HYPER and value]
    yield "inputs", ", ".join(f"{name} {spec}" for name, spec in graphs.all_specs.items())
    yield "loss", re.sub(r"<function (\S+) at 0x\w+>", r"\1", str(graphs.loss))
    yield "optimizer", ", ".join([trainer.optimizer.name, *hyper])
    yield "trained", f"{sum(trained_sizes(graphs).values()):,} of {plural(parameters, 'parameter')}"
    yield "state", byte_text(trainer.nbytes)
