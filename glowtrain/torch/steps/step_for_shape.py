"""A compiled step for one shape of batches: its graph, compiled, and what goes between it and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from glowtrain.backends.inputs import check_inputs
from glowtrain.backends.state import address_of
from glowtrain.compiler.service import options_for
from glowtrain.compiler.specialisation import Specialisation
from glowtrain.errors import BackendError, InputError
from glowtrain.grad.training import LOSS, training_graph
from glowtrain.graph import Graph, Input, Value
from glowtrain.optim import HYPER
from glowtrain.torch.aten.table import type_of_fake
from glowtrain.torch.memory import (
    Allocation,
    Spans,
    address,
    array_of,
    check_allocated,
    row_major,
    span,
    tensor_of,
    view_of,
)
from glowtrain.torch.module import by_placeholder, variables_of
from glowtrain.torch.random_state import RandomState
from glowtrain.torch.read import read
from glowtrain.torch.steps.loss import check_loss
from glowtrain.torch.steps.optimizers import PARAMETERS, GroupedUpdates
from glowtrain.torch.tracing.attributes import Assigned
from glowtrain.torch.tracing.computation import MODULE, Computation
from glowtrain.torch.tracing.packed import LengthUse, length_uses
from glowtrain.torch.tracing.source_locations import warn_caller
from glowtrain.torch.tracing.surroundings import namespace_of_items
from glowtrain.torch.tracing.trace import differentiates, traced
from glowtrain.torch.watching.python_reads import PythonReads, TracedCode
from glowtrain.types import Array

if TYPE_CHECKING:
    from glowtrain.torch.steps.step import CompiledStep

Places = dict[str, int]
"""Addresses by the names of inputs or outputs."""
OPTIMIZED = "_opt_called"
"""The attribute by which an optimizer says whether it has made a step."""


class NonFiniteLossWarning(UserWarning):
    """A loss was NaN or infinite: its step has updated nothing."""


class UnkeptAttributeWarning(UserWarning):
    """A module's code changes attributes, to tensors say, which a compiled step does not."""


class StepForShape:
    """A step for one shape of batches."""

    def __init__(self, step: CompiledStep, batch: Sequence[Any]) -> None:
        self.optimizer = step.optimizer
        self.updates = GroupedUpdates(step.names, step.spec)
        graph, self.structure, self.lengths, self.reads, self.assigned = _step_graph(step, batch, self.updates)
        self.changed = step.borrow(graph, self.updates)
        options = replace(options_for(graph, step.spec, step.backend.facts), row_major_variables=True)
        self.special = Specialisation(graph, step.backend, options, step.state)
        names = [value.name for value in graph.inputs if not value.name.startswith(HYPER)]
        self.names = names
        self.described = ", ".join(str(value.type) for value in graph.inputs if value.name in names)
        self.leaves = [n for n, leaf in enumerate(pytree.tree_leaves(batch)) if isinstance(leaf, torch.Tensor)]
        """Which leaves of a batch the inputs of these names are."""
        self.indices = [(name, names.index(name)) for name in {use.input.name for use in graph.index_uses}]
        self.written = Spans(self.changed)
        types = graph.input_types
        self.numbers = {name: np.zeros((), types[name].dtype.numpy) for name in self.updates.numbers() if name in types}
        self.addresses = {name: address_of(number) for name, number in self.numbers.items()}
        self.results = Allocation([value.type for value in graph.outputs.values()])
        self.result_names = list(graph.outputs)
        self.graded = _graded(step, self.updates)
        own = set(map(id, step.watch.tensors.values()))
        self.noticed = [tensor for tensor in self.changed if id(tensor) in own]
        """The changed tensors that autograd may have kept: the optimizer's state, none differentiates through."""
        self.settings: list[dict[str, Any]] = []
        """The optimizer's groups whose numbers :attr:`numbers` are."""
        self.live = False
        """Whether some of them may change in place, as tensors do."""
        self.warned = False

    def reads_the_same(self) -> bool:
        """Whether what Python code reads has come to be what it was for this step, perhaps as other objects, which are
        looked for from now on."""
        now = self.reads.again()
        same = now.key == self.reads.key and now.reaches(each.owner for each in self.assigned)
        self.reads = now if same else self.reads
        return same

    def run(self, leaves: Sequence[Any]) -> Any:
        """One step."""
        tensors, results = self._prepared(leaves)
        if self.special.run_at(*self._places(tensors, results)) is None:
            outputs = self.special.run(self._arrays(tensors))
            results = [tensor_of(outputs[name]) for name in self.result_names]
        return self._returned(results)

    def timed(self, leaves: Sequence[Any]) -> float:
        """The seconds of one step within native code; the rest is done as by :meth:`run`."""
        tensors, results = self._prepared(leaves)
        seconds = self.special.run_at(*self._places(tensors, results))
        if seconds is None:
            raise BackendError(f"{type(self.special.executable).__name__} does not run on addresses; use backend cpu")
        self._returned(results)
        return seconds

    def leave_values(self) -> None:
        """Assign what the module's code has assigned when it was traced."""
        for each in self.assigned:
            each.write(each.name, each.value)

    def _prepared(self, leaves: Sequence[Any]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors of a batch, and new ones for the results, once all is ready to run."""
        self._set_numbers()
        tensors = self._inputs(leaves)
        self._check_indices(tensors)
        for use in self.lengths:
            use.check(tensors[use.argument])
        self._announce()
        return tensors, self.results()

    def _check_indices(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise :class:`InputError` for indices that are out of range."""
        if not self.special.indices_hold({name: view_of(tensors[at]) for name, at in self.indices}):
            check_inputs(self.special.graph, self._arrays(tensors))

    def _places(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> tuple[Places, Places]:
        """Where inputs and outputs lie."""
        inputs = self.addresses.copy()
        inputs.update(zip(self.names, map(address, tensors), strict=True))
        return inputs, dict(zip(self.result_names, map(address, results), strict=True))

    def _arrays(self, tensors: Sequence[torch.Tensor]) -> dict[str, Array]:
        return {**self.numbers, **dict(zip(self.names, map(view_of, tensors), strict=True))}

    def _inputs(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """What of a batch is tensors, in memory that the step does not write, perhaps before it reads."""
        tensors = [row_major(leaves[number]) for number in self.leaves]
        for tensor in tensors:
            check_allocated(tensor, "an argument of the step")
        return [tensor.clone() if self.written.meet(span(tensor)) else tensor for tensor in tensors]

    def _announce(self) -> None:
        """Let PyTorch know of the step: autograd, of tensors that change, and schedulers, which warn of loops without
        steps."""
        torch.autograd.graph.increment_version(self.noticed)
        setattr(self.optimizer, OPTIMIZED, True)

    def _set_numbers(self) -> None:
        """Hyperparameters as they are now, where they are not those of the step before."""
        groups = self.optimizer.param_groups
        if self.live or groups != self.settings:
            present = self.updates.numbers()
            for name, number in self.numbers.items():
                number[...] = present[name]
            self.settings = [dict(group) for group in groups]
            self.live = any(map(_is_live, self.settings))

    def _returned(self, results: Sequence[torch.Tensor]) -> Any:
        if self.graded:
            count = len(self.updates.reached)
            results, gradients = results[:-count], results[-count:]
            for parameter, number in self.graded:
                parameter.grad = None if number is None else gradients[number]
        loss = results[0].item()
        if not math.isfinite(loss) and not self.warned:
            self.warned = True
            warn_caller(f"the loss is {loss}: such a step updates nothing", NonFiniteLossWarning)
        return results[0] if len(results) == 1 else pytree.tree_unflatten(list(results), self.structure)


def _graded(step: CompiledStep, updates: GroupedUpdates) -> list[tuple[torch.Tensor, int | None]]:
    """The optimizer's parameters, if their gradients are wanted, each with the number of its own, if it has one."""
    numbers = {name: number for number, name in enumerate(updates.reached)}
    parameters = [each for group in step.optimizer.param_groups for each in group[PARAMETERS]]
    return [(each, numbers.get(step.names[id(each)])) for each in parameters if step.spec.gradients]


def _is_live(group: Mapping[str, Any]) -> bool:
    """Whether a group has settings that may change in place."""
    values = [value for key, value in group.items() if key != PARAMETERS]
    parts = chain(values, *[value for value in values if isinstance(value, tuple)])
    return any(isinstance(part, (torch.Tensor, np.ndarray, list)) for part in parts)


def _step_graph(
    step: CompiledStep, batch: Sequence[Any], updates: GroupedUpdates
) -> tuple[Graph, pytree.TreeSpec, list[LengthUse], PythonReads, list[Assigned]]:
    """Forward, backward and update for batches like this one; how its outputs make up what the loss returns; which of
    its tensors are lengths; what Python code has read, and what it assigns."""
    modules = {name or MODULE: module for name, module in step.modules.items()}
    code = TracedCode((step.loss_fn, step.module))
    code.observed.surroundings.add_container("param_groups", step.optimizer.param_groups)
    for number, group in enumerate(step.optimizer.param_groups):
        code.observed.surroundings.add(namespace_of_items(group, f"param_groups[{number}]"))
    computation = Computation(step.loss, code=code.observed, **modules)
    # in memory of their own, as export looks for parameters by their memory
    trace = traced(
        computation, pytree.tree_map_only(torch.Tensor, lambda each: row_major(each.detach()).clone(), batch)
    )
    reads = code.reads(trace.read)  # before values of this step are assigned
    computation.surroundings.leave()
    if computation.unkept:
        warn_caller(
            "the module or the loss changes what a compiled step leaves as it was "
            f"({', '.join(computation.unkept)}): return them from the loss function, or register buffers",
            UnkeptAttributeWarning,
        )
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if any(each.requires_grad for each in tensors) and not differentiates(trace):
        raise InputError("an argument requires a gradient, which a step does not give: detach() it")
    inputs = [Input(type_of_fake(tensor), f"input{number}") for number, tensor in enumerate(tensors)]
    arrays = {name: array_of(tensor) for name, tensor in step.watch.tensors.items()}
    variables = variables_of(trace, step.watch.tensors, arrays)
    random = RandomState(torch.initial_seed(), step.draws)
    parts = [part for module in modules.values() for part in module.modules()]
    leaves = {**by_placeholder(trace, inputs), **variables, **step.captured.variables(trace, variables, parts)}
    found = read(trace, leaves, random, MODULE)
    loss = _loss(found.results)
    by_name = {full: variables[placeholder] for placeholder, full in trace.names.items()}
    state = {by_name[name]: value for name, value in found.updates.items()}
    extra = {f"result{number}": value for number, value in enumerate(found.results[1:])}
    model = Graph(tuple(inputs), {LOSS: loss, **extra}, {**state, **random.updates}, type(step.module).__name__.lower())
    chosen = {step.names[id(parameter)] for group in step.optimizer.param_groups for parameter in group["params"]}
    trained = dict.fromkeys(v for v in variables.values() if v.trainable and v.name in chosen)
    connected, inner = (
        [variables[name] for name in names if name in variables]
        for names in (trace.tape[0].leaves, trace.tape[0].inner)
    )
    reached = [variable for variable in trained if variable in connected or variable in inner]
    graph = training_graph(model, loss, (), reached or list(trained), updates, extra, connected=connected)
    return graph, trace.structure, length_uses(trace.graph, trace.inputs), reads, computation.assigned


def _loss(results: Sequence[Any]) -> Value:
    """The first result. Raises :class:`InputError` unless it is a float scalar, and all are tensors."""
    others = [result for result in results if not isinstance(result, Value)]
    loss: Any = next(iter([*others, *results]), None)
    check_loss(loss)
    scalar: Value = loss
    return scalar
