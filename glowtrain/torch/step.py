"""A training step of a PyTorch module: forward, backward and update as one native function over its own tensors."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch.utils import _pytree as pytree

from glowtrain.backends.base import Backend
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.inputs import check_inputs
from glowtrain.backends.state import State, address_of
from glowtrain.compiler.specialisation import Specialisation
from glowtrain.errors import InputError, UnpicklableError
from glowtrain.grad.training import LOSS, training_graph
from glowtrain.graph import Graph, Input, Value, Variable
from glowtrain.modes.training_and_inference import COUNTER
from glowtrain.optim import HYPER
from glowtrain.presentation.words import kind_of, plural
from glowtrain.stages import Options
from glowtrain.torch.aten.table import type_of_fake
from glowtrain.torch.loss import check_loss, check_loss_function
from glowtrain.torch.memory import Allocation, Spans, address, array_of, check_device, row_major, tensor_of
from glowtrain.torch.module import check_module, placed, variables_of
from glowtrain.torch.optimizers import GroupedUpdates, kind_of_optimizer
from glowtrain.torch.random_state import RandomState
from glowtrain.torch.read import read
from glowtrain.torch.shapes import ByShape
from glowtrain.torch.tracing.trace import MODULE, Computation, Trace, traced
from glowtrain.torch.watching.guard import Guard, within
from glowtrain.torch.watching.watch import Flags, Watch
from glowtrain.types import Array

LossFunction = Callable[..., Any]
Places = dict[str, int]
"""Addresses by the names of inputs or outputs."""


class NonFiniteLossWarning(UserWarning):
    """A loss was NaN or infinite: its step has updated nothing."""


def compile_step(
    module: torch.nn.Module,
    loss_fn: LossFunction,
    optimizer: torch.optim.Optimizer,
    *,
    targets: int = 1,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    backend: str | Backend = "cpu",
    threads: int | None = None,
) -> CompiledStep:
    """``step = compile_step(module, loss_fn, optimizer)``; ``loss = step(x, y)`` trains on one batch.

    A step does what ``optimizer.zero_grad(); loss = loss_fn(module(x), y); loss.backward(); optimizer.step()`` does, in
    one native function that works on the memory of the module's parameters and buffers and of the optimizer's state:
    nothing is copied, and ``state_dict()`` of both is always true. The last ``targets`` arguments of a step go to the
    loss, after what the module makes of the others. With ``targets=0`` the loss is ``loss_fn(module, *batch)``: for
    losses that call the module themselves, several times or with gradients of it (``torch.autograd.grad``). A loss may
    return further tensors, ``(loss, accuracy)``: the step then returns all of them.

    Learning rates and other numbers are read from ``optimizer.param_groups`` before each step, so schedulers work;
    ``clip_norm`` and ``clip_value`` do what ``torch.nn.utils.clip_grad_norm_`` and ``clip_grad_value_`` do. Each shape
    of a batch is compiled when it is first met, and so is each mode (``train()``, ``eval()``, ``requires_grad_()``).
    Random numbers (dropout) come from a generator of ours with PyTorch's seed: other ones than PyTorch's. ``threads``:
    as :func:`glowtrain.compile` takes them, by default as many as PyTorch uses. Attributes ``grad`` are neither read
    nor written.

    A loss that is NaN or infinite updates nothing, and warns once (:class:`NonFiniteLossWarning`).

    Raises :class:`InputError` for modules, losses, optimizers and batches that do not fit, :class:`ModelError` for what
    cannot be traced and :class:`UnsupportedOperatorError` that names operators with their lines.
    """
    check_module(module)
    check_loss_function(loss_fn)
    if targets < 0:
        raise InputError(f"targets must be a number of arguments from 0 up, not {targets!r}")
    for name, bound in (("clip_norm", clip_norm), ("clip_value", clip_value)):
        if bound is not None and not 0 < bound < math.inf:
            raise InputError(f"{name} must be a positive number, not {bound!r}")
    return CompiledStep(module, loss_fn, optimizer, backend_of(backend, threads), targets, (clip_norm, clip_value))


class CompiledStep:
    """What :func:`compile_step` returns; one native function for each shape and mode."""

    def __init__(
        self, module: torch.nn.Module, loss_fn: LossFunction, optimizer: torch.optim.Optimizer, backend: Backend,
        targets: int, clips: tuple[float | None, float | None],
    ) -> None:  # fmt: skip
        self.module = module
        self.loss_fn = loss_fn
        self.optimizer = optimizer
        self.backend = backend
        self.targets = targets
        self.clips = clips
        self.state = State({})
        self.draws = _first_draw(module)
        """The number of the next draw of random numbers, when it was last compiled anew."""
        self.recompile()
        optimizer.register_load_state_dict_post_hook(_Recompiling(self))

    def recompile(self) -> None:
        """Look at the module and the optimizer anew, and compile when next called.

        A step does so on its own where parameters were replaced or moved, or the optimizer's state was loaded.
        """
        watch = Watch(self.modules)
        watch.check()
        self.names = _names(self.optimizer, watch)
        kind_of_optimizer(self.optimizer)
        self.watch = watch
        self._outside: dict[int, str] = {}
        self._others: dict[str, torch.Tensor] = {}
        self.draws = int(self.state.read(COUNTER)) if COUNTER in self.state else self.draws
        self.state = State({})
        self._compiled: ByShape[_Compiled] = ByShape()
        self._modes: dict[Flags, int] = {}
        """Numbers of all flags that were met, which are quicker to look up."""
        self._mode = 0

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The module, and the loss if it is one, by what the names of their tensors begin with."""
        return {"": self.module, **({LOSS: self.loss_fn} if isinstance(self.loss_fn, torch.nn.Module) else {})}

    def __reduce__(self) -> Any:
        """Raises :class:`UnpicklableError`: a step works in the memory of one module."""
        raise UnpicklableError("a compiled step is neither copied nor pickled: make one for the copy of the module")

    def __call__(self, *batch: Any) -> Any:
        """Train on one batch: the loss from before the update, and what else the loss function returns.

        Arguments are tensors, numbers, and tuples, lists and dicts of them.
        """
        compiled, leaves = self._for(batch)
        return compiled.run(leaves)

    def timed(self, *batch: Any) -> float:
        """Train on one batch, and say how many seconds the native function alone took."""
        compiled, leaves = self._for(batch)
        return compiled.timed(leaves)

    def _for(self, batch: Sequence[Any]) -> tuple[_Compiled, Sequence[Any]]:
        """The step for batches like this one, and the batch's tensors and numbers."""
        if torch.is_autocast_enabled("cpu"):
            raise InputError("a step does not run under autocast: convert the module instead, with .to(torch.bfloat16)")
        if torch.is_inference_mode_enabled():
            raise InputError("a step trains, which inference_mode() forbids: call it outside")
        leaves, structure = _flat(batch)
        key = (torch.get_default_dtype(), structure, *map(_key, leaves))
        compiled = self._compiled.get((self._mode, *key))
        if compiled is None or not compiled.guard.holds:
            compiled = self._looked_at(key, batch)
        return compiled, leaves

    def _looked_at(self, key: Sequence[Any], batch: Sequence[Any]) -> _Compiled:
        """The step for batches like this one, after a look at all that it works on."""
        if not self.watch.unchanged:
            self.recompile()
        compiled = self._compiled.get(self._with_mode(key))
        if compiled is not None and not compiled.updates.kept:
            self.recompile()
            compiled = None
        if compiled is None:
            compiled = self._compile(self._with_mode(key), batch)
        if not compiled.guard.holds:
            compiled.guard = self.guard(compiled.updates)
        return compiled

    def _with_mode(self, key: Sequence[Any]) -> Sequence[Any]:
        """A key with the number of the flags that hold now."""
        self._mode = self._modes.setdefault(self.watch.flags, len(self._modes))
        return (self._mode, *key)

    def guard(self, updates: GroupedUpdates) -> Guard:
        """What notices changes of all that a step works on."""
        guard = Guard()
        self.watch.guarded(guard)
        updates.guarded(guard)
        guard.seal()
        return guard

    def _compile(self, key: Any, batch: Sequence[Any]) -> _Compiled:
        if len(batch) <= self.targets and self.targets:
            raise InputError(
                f"a step takes the module's arguments and then {plural(self.targets, 'target')} for the loss, not "
                f"{plural(len(batch), 'argument')} in all; targets= says how many go to the loss alone"
            )
        for number, value in enumerate(batch):
            for leaf in pytree.tree_leaves(value):
                _check_input(f"argument {number} of the step", leaf)
        compiled = _Compiled(self, batch)
        self._compiled.put(key, compiled)
        return compiled

    def loss(self, *batch: Any) -> Any:
        """What the loss function makes of a batch, by PyTorch."""
        if not self.targets:
            return self.loss_fn(self.module, *batch)
        inputs, targets = batch[: -self.targets], batch[-self.targets :]
        return self.loss_fn(self.module(*inputs), *targets)

    def outside(self, trace: Trace) -> dict[str, Variable]:
        """Variables for the float tensors of nobody's module that the loss reads, another network's weights say: they
        are read where they lie, so that what others make of them counts."""
        found = {}
        for placeholder, tensor in trace.tensors.items():
            if placeholder not in trace.names and tensor.is_floating_point():
                name = self._outside.setdefault(tensor.data_ptr(), f"outside{len(self._outside)}")
                self._others[name] = tensor.contiguous()
                found[placeholder] = Variable(name, array_of(self._others[name]), trainable=False)
        return found

    def borrow(self, graph: Graph, updates: GroupedUpdates) -> list[torch.Tensor]:
        """Keep a step's variables in the tensors of the module and of the optimizer. Those that it changes."""
        variables = {variable.name: variable for variable in graph.variables}
        tensors = {**self.watch.tensors, **self._others, **updates.state(variables)}
        for name in variables.keys() & tensors.keys():
            self.state.borrow(name, array_of(tensors[name]))
        for variable in updates.uncounted:
            if variable.name in self.state:  # eager steps may have made the first update of some
                self.state.write(variable.name, np.maximum(self.state.read(variable.name), variable.initial))
        return [tensors[variable.name] for variable in graph.updates if variable.name in tensors]


_STEPS: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()
"""How many steps were made of a module."""


def _first_draw(module: torch.nn.Module) -> int:
    """Where the random numbers of a module's next step begin: not those of another step, however many these draw."""
    number = _STEPS.get(module, 0)
    _STEPS[module] = number + 1
    return number << 40


class _Compiled:
    """A step for one shape of batches."""

    def __init__(self, step: CompiledStep, batch: Sequence[Any]) -> None:
        self.optimizer = step.optimizer
        self.updates = GroupedUpdates(step.optimizer, step.names, *step.clips)
        graph, self.structure = _step_graph(step, batch, self.updates)
        self.changed = step.borrow(graph, self.updates)
        self.guard = step.guard(self.updates)
        options = Options(facts=step.backend.facts, row_major_variables=True)
        self.special = Specialisation(graph, step.backend, options, step.state)
        names = [value.name for value in graph.inputs if not value.name.startswith(HYPER)]
        self.names = names
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
        self.live = any(
            isinstance(value, torch.Tensor) for group in self.updates.groups for value in group.settings.values()
        )
        """Whether settings are tensors, which schedulers change in place."""
        self.warned = False

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
        return [tensor.clone() if self.written.meet(tensor) else tensor for tensor in tensors]

    def _announce(self) -> None:
        """Let PyTorch know of the step: autograd, of tensors that change, and schedulers, which warn of loops without
        steps. Before it, as its work pushes all of this out of the processor's caches."""
        torch.autograd.graph.increment_version(self.noticed)
        self.optimizer._opt_called = True

    def _set_numbers(self) -> None:
        """Hyperparameters as they are now, where they are not those of the step before."""
        groups = self.optimizer.param_groups
        if groups != self.settings or self.live:
            present = self.updates.numbers()
            for name, number in self.numbers.items():
                number[...] = present[name]
            self.settings = [dict(group) for group in groups]

    def _returned(self, results: Sequence[torch.Tensor]) -> Any:
        if not self.warned and not math.isfinite(results[0].item()):
            self.warned = True
            message = f"the loss is {float(results[0])}: such a step updates nothing"
            warnings.warn(message, NonFiniteLossWarning, stacklevel=4)
        if len(results) == 1:
            return results[0]
        return pytree.tree_unflatten(list(results), self.structure)


class _Recompiling:
    """Recompiles a step that somebody still has."""

    def __init__(self, step: CompiledStep) -> None:
        self.step = ref(step)

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        step = self.step()
        if step is not None:
            step.recompile()


def _step_graph(step: CompiledStep, batch: Sequence[Any], updates: GroupedUpdates) -> tuple[Graph, pytree.TreeSpec]:
    """Forward, backward and update for batches like this one; and how its outputs make up what the loss returns."""
    modules = {name or MODULE: module for name, module in step.modules.items()}
    trace = traced(Computation(step.loss, **modules), batch)
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    inputs = [Input(type_of_fake(tensor), f"input{number}") for number, tensor in enumerate(tensors)]
    arrays = {name: array_of(tensor) for name, tensor in step.watch.tensors.items()}
    variables = variables_of(trace, step.watch.tensors, arrays)
    random = RandomState(torch.initial_seed(), step.draws)
    found = read(trace, {**placed(trace, inputs), **variables, **step.outside(trace)}, random, MODULE)
    loss = _loss(found.results)
    by_name = {full: variables[placeholder] for placeholder, full in trace.names.items()}
    state = {by_name[name]: value for name, value in found.updates.items()}
    extra = {f"result{number}": value for number, value in enumerate(found.results[1:])}
    model = Graph(tuple(inputs), {LOSS: loss, **extra}, {**state, **random.updates}, type(step.module).__name__.lower())
    chosen = {step.names[id(parameter)] for group in step.optimizer.param_groups for parameter in group["params"]}
    trained = list(dict.fromkeys(v for v in variables.values() if v.trainable and v.name in chosen))
    return training_graph(model, loss, (), trained, updates, extra), trace.structure


def _loss(results: Sequence[Any]) -> Value:
    """The first result. Raises :class:`InputError` unless it is a float scalar, and all are tensors."""
    others = [result for result in results if not isinstance(result, Value)]
    loss: Any = next(iter([*others, *results]), None)
    check_loss(loss)
    scalar: Value = loss
    return scalar


def _names(optimizer: torch.optim.Optimizer, watch: Watch) -> dict[int, str]:
    """The module's names for the optimizer's parameters, by identity. Raises :class:`InputError` for strangers."""
    names: dict[int, str] = {}
    for name, tensor in watch.tensors.items():
        names.setdefault(id(tensor), name)
    groups = getattr(optimizer, "param_groups", [])
    strangers = sum(id(parameter) not in names for group in groups for parameter in group["params"])
    if strangers:
        raise InputError(
            f"{strangers} of the optimizer's parameters are not the module's (or its loss's): make the optimizer from "
            "module.parameters(), after replacing or moving any of them"
        )
    return names


def _flat(batch: Sequence[Any]) -> tuple[Sequence[Any], Any]:
    """The tensors and numbers of a batch, and how they make it up, where it is more than a row of them."""
    if any(isinstance(value, (dict, list, tuple)) for value in batch):
        leaves, structure = pytree.tree_flatten(tuple(batch))
        return leaves, structure
    return batch, None


def _key(value: Any) -> Any:
    """What of an argument decides about the step: a tensor's type, a number itself, with its type."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.dtype, value.requires_grad, value.device, value.layout
    _check_input("an argument of the step", value)
    return type(value), repr(value)  # -0.0 is no 0.0


def _check_input(what: str, value: Any) -> None:
    """Raise :class:`InputError` for what a step cannot take."""
    if isinstance(value, torch.Tensor):
        check_device(value, what)
        if value.requires_grad:
            raise InputError(f"{what} requires a gradient, which a step does not give: detach() it")
    elif not isinstance(value, (int, float, bool, str, type(None))):
        advice = ": make it one by torch.from_numpy()" if isinstance(value, np.ndarray) else ""
        raise InputError(f"{what} must be a tensor or a number, not {kind_of(value)}{advice}")
