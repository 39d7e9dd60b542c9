"""The update of a step whose calls are too few: ``accumulate=4``, and an epoch that ends with two of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from glowtrain.compiler.service import options_for
from glowtrain.compiler.specialisation import Specialisation
from glowtrain.grad.training import MICRO
from glowtrain.graph import Graph, Variable
from glowtrain.torch.memory import array_of
from glowtrain.torch.steps.optimizers import GroupedUpdates
from glowtrain.torch.steps.step_for_shape import OPTIMIZED

if TYPE_CHECKING:
    from glowtrain.torch.steps.step import CompiledStep


class PendingUpdate:
    """An update of parameters of these names, by the gradients that a step has added up."""

    def __init__(self, step: CompiledStep, names: tuple[str, ...]) -> None:
        self.optimizer = step.optimizer
        self.updates = GroupedUpdates(step.names, step.spec)
        update = self.updates.of_pending([Variable(name, array_of(step.watch.tensors[name])) for name in names])
        calls = next(variable for variable in update.values if variable.name == MICRO)
        graph = Graph(
            update.inputs, {"calls": calls}, dict(update.values), f"{type(step.module).__name__.lower()}.flush"
        )
        self.changed = step.borrow(graph, self.updates)
        spec = replace(step.spec, precision=None)  # an update has no products
        options = replace(options_for(graph, spec, step.backend.facts), row_major_variables=True)
        self.special = Specialisation(graph, step.backend, options, step.state)
        self.types = graph.input_types

    def run(self) -> None:
        """Make it, with the optimizer's present numbers."""
        present = self.updates.numbers()
        self.special.run({name: np.asarray(present[name], type_.dtype.numpy) for name, type_ in self.types.items()})
        torch.autograd.graph.increment_version(self.changed)
        setattr(self.optimizer, OPTIMIZED, True)
