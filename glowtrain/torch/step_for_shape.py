"""A compiled step for one shape of batches: its graph, compiled, and what goes between it and PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import compress, count
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils import _pytree as pytree

from glowtrain.backends.inputs import check_inputs
from glowtrain.backends.state import address_of
from glowtrain.compiler.specialisation import Specialisation
from glowtrain.errors import InputError
from glowtrain.grad.training import LOSS, training_graph
from glowtrain.graph import Graph, Input, Value
from glowtrain.optim import HYPER
from glowtrain.stages import Options
from glowtrain.torch.aten.table import type_of_fake
from glowtrain.torch.loss import check_loss
from glowtrain.torch.memory import Allocation, Spans, address, array_of, check_allocated, row_major, span, tensor_of
from glowtrain.torch.module import placed, variables_of
from glowtrain.torch.optimizers import GroupedUpdates
from glowtrain.torch.random_state import RandomState
from glowtrain.torch.read import read
from glowtrain.torch.shapes import ByShape
from glowtrain.torch.tracing.places import warn_caller
from glowtrain.torch.tracing.trace import MODULE, Computation, differentiates, traced
from glowtrain.torch.watching.call import CallArgument, FollowedNumber, NativeCall, NativeWork, can_call
from glowtrain.torch.watching.guard import Guard, within
from glowtrain.torch.watching.turn import Turn
from glowtrain.types import Array

if TYPE_CHECKING:
    from glowtrain.torch.step import CompiledStep

Places = dict[str, int]
"""Addresses by the names of inputs or outputs."""
RATE, PARAMETERS, OPTIMIZED = "lr", "params", "_opt_called"
"""What PyTorch calls a learning rate and the parameters of a group, and an optimizer's attribute that says whether it
has made a step."""


class NonFiniteLossWarning(UserWarning):
    """A loss was NaN or infinite: its step has updated nothing."""


class StepForShape:
    """A step for one shape of batches."""

    def __init__(self, step: CompiledStep, batch: Sequence[Any]) -> None:
        self.optimizer = step.optimizer
        self.updates = GroupedUpdates(step.optimizer, step.names, *step.clips)
        graph, self.structure = _step_graph(step, batch, self.updates)
        self.changed = step.borrow(graph, self.updates)
        self.guard, self.moves = step.guard(self.updates), step.outside.moves
        options = Options(facts=step.backend.facts, row_major_variables=True)
        self.special = Specialisation(graph, step.backend, options, step.state)
        names = [value.name for value in graph.inputs if not value.name.startswith(HYPER)]
        self.names = names
        self.described = ", ".join(str(value.type) for value in graph.inputs if value.name in names)
        self.leaves = [n for n, leaf in enumerate(pytree.tree_leaves(batch)) if isinstance(leaf, torch.Tensor)]
        """Which leaves of a batch the inputs of these names are."""
        self.indices = [(name, names.index(name)) for name in {use.input.name for use in graph.index_uses}]
        bounds = [(names.index(use.input.name), *use.bounds) for use in graph.index_uses if use.bounds is not None]
        self.bounds = bounds if len(bounds) == len(graph.index_uses) else None
        self.written = Spans(self.changed)
        types = graph.input_types
        self.numbers = {name: np.zeros((), types[name].dtype.numpy) for name in self.updates.numbers() if name in types}
        self.places = {name: address_of(number) for name, number in self.numbers.items()}
        self.results = Allocation([value.type for value in graph.outputs.values()])
        self.result_names = list(graph.outputs)
        own = set(map(id, step.watch.tensors.values()))
        self.noticed = [tensor for tensor in self.changed if id(tensor) in own]
        """The changed tensors that autograd may have kept: the optimizer's state, none differentiates through."""
        self.settings: list[dict[str, Any]] = []
        """Those whose numbers :attr:`numbers` are; empty where these may be later ones."""
        self.calls: ByShape[NativeCall] = ByShape()
        self.heed = _Heed()

    @property
    def live(self) -> bool:
        """Whether settings are tensors or arrays, which schedulers change in place."""
        values = (value for group in self.optimizer.param_groups for key, value in group.items() if key != PARAMETERS)
        parts = (part for value in values for part in (value if isinstance(value, (list, tuple)) else (value,)))
        return any(isinstance(part, (torch.Tensor, np.ndarray)) for part in parts)

    def run(self, leaves: Sequence[Any]) -> Any:
        """One step."""
        self._set_numbers()
        tensors, results = self._inputs(leaves), self.results()
        self._check_indices(tensors)
        self._announce()
        if not self.special.run_at(*self._places(tensors, results)):
            outputs = self.special.run(self._arrays(tensors))
            results = [tensor_of(outputs[name]) for name in self.result_names]
        return self._returned(results)

    def timed(self, leaves: Sequence[Any]) -> float:
        """The seconds of one step within native code; the rest is done as by :meth:`run`."""
        self._set_numbers()
        tensors, results = self._inputs(leaves), self.results()
        self._check_indices(tensors)
        self._announce()
        seconds = self.special.timed_at(*self._places(tensors, results))
        self._returned(results)
        return seconds

    def native(self, arguments: Sequence[Any], instead: Callable[..., Any], turn: Turn) -> NativeCall | None:
        """How native code does this step, which has just run, for arguments that lie in memory like these; None where
        it cannot. ``instead`` is called where they do not."""
        if self.live:
            return None
        followed = self._followed()
        strides = [each.stride() if isinstance(each, torch.Tensor) else None for each in arguments]
        key = (*strides, *[id(number.owner) for number in followed])
        found = self.calls.get(key)
        if found is None or found.guard is not self.guard:
            found = self._native(arguments, followed, instead, turn)
            if found is None:
                return None
            self.calls.put(key, found)
        elif not found.settings.holds:
            found.follow(self._settings_guard(followed))
        self.settings = []
        return found

    def _native(
        self, arguments: Sequence[Any], followed: Sequence[FollowedNumber], instead: Callable[..., Any], turn: Turn
    ) -> NativeCall | None:
        direct, numbers = self.special.direct(), count()
        bounds = {at: (low, high, ignored) for at, low, high, ignored in self.bounds or ()}
        if direct is None or self.bounds is None or len(bounds) < len(self.bounds):
            return None
        places = [next(numbers) if isinstance(each, torch.Tensor) else -1 for each in arguments]
        own = [
            CallArgument(each, self.names[at] if at >= 0 else "", bounds.get(at))
            for each, at in zip(arguments, places, strict=True)
        ]
        if not can_call(self.guard, own):
            return None
        results = self.result_names, self.results
        maker = partial(pytree.tree_unflatten, treespec=self.structure) if len(self.result_names) > 1 else None
        owner = self.special, self.numbers
        work = NativeWork(direct, self.written, self.noticed, *results, owner, maker, self.heed, instead, turn)
        return NativeCall(self.guard, self._settings_guard(followed), own, followed, work)

    def _followed(self) -> list[FollowedNumber]:
        """The learning rates that native code reads from their groups."""
        rates = [(group.settings, f"{HYPER}{group.prefix}{RATE}") for group in self.updates.groups]
        own = [(settings, self.numbers[name]) for settings, name in rates if name in self.numbers]
        plain = [place.dtype in (np.float32, np.float64) and type(settings[RATE]) is float for settings, place in own]
        return [FollowedNumber(settings, RATE, place) for settings, place in compress(own, plain)]

    def _settings_guard(self, followed: Sequence[FollowedNumber]) -> Guard:
        """What notices changes of settings but for numbers that are followed, and of the way PyTorch computes."""
        guard = Guard()
        owners = [id(each.owner) for each in followed]
        for group in self.optimizer.param_groups:
            guard.add_dicts([group], (RATE,) if id(group) in owners else ())
        guard.add_item(vars(self.optimizer), OPTIMIZED)
        guard.add_answer(torch.get_default_dtype, torch.get_default_dtype())
        guard.add_answer(torch._C._is_any_autocast_enabled, expected=False)
        guard.add_answer(torch.is_inference_mode_enabled, expected=False)
        guard.seal()
        return guard

    def _check_indices(self, tensors: Sequence[torch.Tensor]) -> None:
        """Raise :class:`InputError` for indices that are out of range."""
        if not self._indices_hold(tensors):
            check_inputs(self.special.graph, self._arrays(tensors))

    def _indices_hold(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether the inputs that are indices are certainly allowed."""
        if self.bounds is not None:
            return all(within(tensors[at], *bounds) for at, *bounds in self.bounds)
        return self.special.indices_hold({name: array_of(tensors[at]) for name, at in self.indices})

    def _places(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> tuple[Places, Places]:
        """Where inputs and outputs lie."""
        inputs = self.places.copy()
        inputs.update(zip(self.names, map(address, tensors), strict=True))
        return inputs, dict(zip(self.result_names, map(address, results), strict=True))

    def _arrays(self, tensors: Sequence[torch.Tensor]) -> dict[str, Array]:
        return {**self.numbers, **dict(zip(self.names, map(array_of, tensors), strict=True))}

    def _inputs(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """What of a batch is tensors, in memory that the step does not write, perhaps before it reads."""
        tensors = [row_major(leaves[number]) for number in self.leaves]
        for tensor in tensors:
            check_allocated(tensor, "an argument of the step")
        return [tensor.clone() if self.written.meet(span(tensor)) else tensor for tensor in tensors]

    def _announce(self) -> None:
        """Let PyTorch know of the step: autograd, of tensors that change, and schedulers, which warn of loops without
        steps. Before it, as its work pushes all of this out of the processor's caches."""
        torch.autograd.graph.increment_version(self.noticed)
        setattr(self.optimizer, OPTIMIZED, True)

    def _set_numbers(self) -> None:
        """Hyperparameters as they are now, where they are not those of the step before."""
        groups = self.optimizer.param_groups
        if groups != self.settings or self.live:
            present = self.updates.numbers()
            for name, number in self.numbers.items():
                number[...] = present[name]
            self.settings = [dict(group) for group in groups]

    def _returned(self, results: Sequence[torch.Tensor]) -> Any:
        if not math.isfinite(results[0].item()):
            self.heed(results)
        return results[0] if len(results) == 1 else pytree.tree_unflatten(list(results), self.structure)


class _Heed:
    """Warns once of a loss that is not finite, where a step was called: native code calls this at once."""

    def __init__(self) -> None:
        self.warned = False

    def __call__(self, results: torch.Tensor | Sequence[torch.Tensor]) -> None:
        if not self.warned:
            self.warned = True
            loss = results if isinstance(results, torch.Tensor) else results[0]
            warn_caller(f"the loss is {float(loss)}: such a step updates nothing", NonFiniteLossWarning)


def _step_graph(step: CompiledStep, batch: Sequence[Any], updates: GroupedUpdates) -> tuple[Graph, pytree.TreeSpec]:
    """Forward, backward and update for batches like this one; and how its outputs make up what the loss returns."""
    modules = {name or MODULE: module for name, module in step.modules.items()}
    computation = Computation(step.loss, generators=step.reads.generators, **modules)
    # in memory of their own, as export looks for parameters by their memory
    trace = traced(
        computation, pytree.tree_map_only(torch.Tensor, lambda each: row_major(each.detach()).clone(), batch)
    )
    computation.assign()
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    if any(each.requires_grad for each in tensors) and not differentiates(trace):
        raise InputError("an argument requires a gradient, which a step does not give: detach() it")
    inputs = [Input(type_of_fake(tensor), f"input{number}") for number, tensor in enumerate(tensors)]
    arrays = {name: array_of(tensor) for name, tensor in step.watch.tensors.items()}
    variables = variables_of(trace, step.watch.tensors, arrays)
    random = RandomState(torch.initial_seed(), step.draws)
    parts = [part for module in modules.values() for part in module.modules()]
    leaves = {**placed(trace, inputs), **variables, **step.outside.variables(trace, variables, parts)}
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
    return training_graph(
        model, loss, (), reached or list(trained), updates, extra, connected=connected
    ), trace.structure


def _loss(results: Sequence[Any]) -> Value:
    """The first result. Raises :class:`InputError` unless it is a float scalar, and all are tensors."""
    others = [result for result in results if not isinstance(result, Value)]
    loss: Any = next(iter([*others, *results]), None)
    check_loss(loss)
    scalar: Value = loss
    return scalar
