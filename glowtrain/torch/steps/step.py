"""A training step of a PyTorch module: forward, backward and update as one native function over its own tensors."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import RLock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, ref

import numpy as np
import torch
from torch._C import _get_dispatch_mode, _TorchDispatchModeKey
from torch._dynamo.convert_frame import compile_lock
from torch.nn.utils.rnn import PackedSequence
from torch.utils import _pytree as pytree

from glowtrain.backends.discovery import backend_of
from glowtrain.backends.state import State
from glowtrain.bounded_cache import BoundedCache
from glowtrain.compiler.function import SPECIALISATIONS
from glowtrain.errors import InputError, UnpicklableError
from glowtrain.forks import renew_in_children
from glowtrain.grad.training import LOSS, MICRO
from glowtrain.graph import Graph
from glowtrain.modes.training_and_inference import COUNTER
from glowtrain.ops.reduce.reduction import accumulator
from glowtrain.optim.optimizer import ACCUMULATED
from glowtrain.presentation.messages import kind_of, plural
from glowtrain.settings import takes
from glowtrain.torch.dtypes import OURS
from glowtrain.torch.memory import array_of, check_device, is_plain
from glowtrain.torch.module import original_of
from glowtrain.torch.steps.optimizers import GroupedUpdates, kind_of_optimizer
from glowtrain.torch.steps.pending_update import PendingUpdate
from glowtrain.torch.steps.progress import spinner
from glowtrain.torch.steps.recompilations import Recompilations, named_leaves
from glowtrain.torch.steps.step_for_shape import StepForShape
from glowtrain.torch.steps.step_spec import StepSpec
from glowtrain.torch.tracing.packed import AS_ARGUMENT
from glowtrain.torch.tracing.source_locations import loaded_by_caller, warn_caller
from glowtrain.torch.watching.captured import CapturedTensors
from glowtrain.torch.watching.guard import Watch
from glowtrain.types import Array, Shape

Result = TypeVar("Result")
UNGIVEN = "{} requires a gradient, which a step does not give: detach() it"
LOGGER = logging.getLogger(__name__)
CLIPPING = {"clip_grad_norm_": "clip_norm", "clip_grad_value_": "clip_value"}
"""PyTorch's functions, and the settings that do the same in a step."""
SHOWN = 3
"""Shapes that a step says it is compiled for."""


class IneffectiveClippingWarning(UserWarning):
    """Whoever calls a step clips gradients, too, which the step's update has not got."""


@takes(StepSpec)
def compile_step(spec: StepSpec) -> CompiledStep:
    """``step = compile_step(module, loss_fn, optimizer)``; ``loss = step(x, y)`` trains on one batch.

    A step does what ``optimizer.zero_grad(); loss = loss_fn(module(x), y); loss.backward(); optimizer.step()`` does, in
    one native function that works on the memory of the module's parameters and buffers and of the optimizer's state:
    nothing is copied, and ``state_dict()`` of both is always true. A loss may return further tensors,
    ``(loss, accuracy)``: the step then returns all of them.

    Learning rates and other numbers are read from ``optimizer.param_groups`` before each step, so schedulers work.
    Each shape of a batch is compiled when it is first met, and so is each mode (``train()``, ``eval()``,
    ``requires_grad_()``). Random numbers (dropout) come from a generator of ours with PyTorch's seed: other ones than
    PyTorch's. A step runs on as many threads as PyTorch uses, where nothing else is said. Attributes ``grad`` are not
    read, and written with ``gradients=True`` alone.

    A loss that is NaN or infinite updates nothing, and warns once (:class:`NonFiniteLossWarning`).

    Raises :class:`InputError` for modules, losses, optimizers and batches that do not fit, :class:`ModelError` for what
    cannot be traced, :class:`UnsupportedOperatorError` that names operators with their lines, and
    :class:`MemoryBudgetError` for a budget that cannot be kept.
    """
    return CompiledStep(spec)


class CompiledStep:
    """What :func:`compile_step` returns; one native function for each shape and mode.

    ``step(*batch)`` trains on one batch: the loss from before the update, and what else the loss function returns.
    Arguments are tensors, numbers, and tuples, lists and dicts of them.
    """

    def __init__(self, spec: StepSpec) -> None:
        self.spec = spec
        self.module = original_of(spec.module)
        self.loss_fn, self.optimizer, self.targets = spec.loss_fn, spec.optimizer, spec.targets
        self.backend = backend_of(spec.backend, spec.threads)
        self.state = State({})
        self.recompilations = Recompilations()
        self._clipping_said = False
        self.draws = _first_draw(self.module)
        """The number of the next draw of random numbers, when it was last compiled anew."""
        self._reached: tuple[str, ...] = ()
        """The parameters for which the calls that wait have gradients."""
        self._turn = RLock()
        """One thread runs a step at a time. PyTorch's lock of traces is taken after it: while one is made, modules have
        stand-ins for their tensors, which no step must look at, nor must two share an optimizer's state then."""
        renew_in_children(self)
        self.recompile()
        self.optimizer.register_load_state_dict_post_hook(_Recompiling(self))

    def recompile(self) -> None:
        """Look at the module and the optimizer anew, and compile when next called.

        A step does so on its own where parameters were replaced or moved, or the optimizer's state was loaded.
        """
        with self._turn, compile_lock:
            self._recompile()

    def renew(self) -> None:
        """Nobody runs a step in a child of fork."""
        self._turn = RLock()

    def _recompile(self) -> None:
        watch = Watch(self.modules)
        watch.check()
        self.names = _names(self.optimizer, watch)
        kind_of_optimizer(self.optimizer)
        self.watch = watch
        self.captured = CapturedTensors()
        self.draws = int(self.state.read(COUNTER)) if COUNTER in self.state else self.draws
        self.state = State(self._accumulated())
        self._compiled: BoundedCache[StepForShape] = BoundedCache(SPECIALISATIONS)
        self._states: dict[Any, list[StepForShape]] = {}
        """Steps by what decides about them beside what Python code reads: one for each state of that."""
        self._pending_update: PendingUpdate | None = None
        self.recompilations.forget()

    def _accumulated(self) -> dict[str, Array]:
        """What waits for the next update, of parameters that have the shapes and types that they had."""
        slots = {f"{name}.{ACCUMULATED}": tensor for name, tensor in self.watch.tensors.items()}
        present = {name: self.state.read(name) for name in (MICRO, *slots) if name in self.state}
        return {
            name: array
            for name, array in present.items()
            if name == MICRO or (array.shape, array.dtype) == _accumulator_of(slots[name])
        }

    @property
    def pending(self) -> int:
        """How many calls have gradients that wait for the next update, with ``accumulate=``; 0 just after one."""
        with self._turn:
            return int(self.state.read(MICRO)) if MICRO in self.state else 0

    def flush(self) -> int:
        """Make the update of the calls that wait, if any do, of the mean of their gradients: behind an epoch whose
        batches are no multiple of ``accumulate``. How many calls these were."""
        with self._turn, compile_lock:
            if pending := self.pending:
                if not self.watch.unchanged:
                    self._recompile_as(self.watch.reason)
                if self._pending_update is None or not self._pending_update.updates.is_intact:
                    self._pending_update = PendingUpdate(self, self._reached)
                self._pending_update.run()
            return pending

    @property
    def modules(self) -> dict[str, torch.nn.Module]:
        """The module, and the loss if it is one, by what the names of their tensors begin with."""
        return {"": self.module, **({LOSS: self.loss_fn} if isinstance(self.loss_fn, torch.nn.Module) else {})}

    def __reduce__(self) -> Any:
        """Raises :class:`UnpicklableError`: a step works in the memory of one module."""
        raise UnpicklableError("a compiled step is neither copied nor pickled: make one for the copy of the module")

    def __repr__(self) -> str:
        shapes = list(dict.fromkeys(f"({compiled.described})" for compiled in self._compiled.values()))
        shown = ", ".join(shapes[-SHOWN:]) + (f" and {len(shapes) - SHOWN} more" if len(shapes) > SHOWN else "")
        trained = f"{type(self.module).__name__} by {type(self.optimizer).__name__}"
        waiting = f", {self.pending} of {self.spec.accumulate} calls wait" if self.spec.accumulate > 1 else ""
        return f"<compiled step of {trained}, {f'compiled for {shown}' if shapes else 'not called yet'}{waiting}>"

    def __call__(self, *batch: Any, **named: Any) -> Any:
        """Train on one batch."""
        if named:
            raise InputError(f"a step takes its arguments by position, not by name ({', '.join(named)})")
        return self._run(batch, StepForShape.run)

    def timed(self, *batch: Any) -> tuple[float, float]:
        """Train on one batch: the seconds of the call, and of the native function alone."""
        began = time.perf_counter()
        native = self._run(batch, StepForShape.timed)
        return time.perf_counter() - began, native

    @torch.compiler.disable  # Dynamo would follow a step within what torch.compile wraps, into its own trace
    def _run(self, batch: Sequence[Any], run: Callable[[StepForShape, Sequence[Any]], Result]) -> Result:
        if _get_dispatch_mode(_TorchDispatchModeKey.FAKE) is not None:  # whose turn it is may wait for this trace
            raise InputError("a compiled step cannot be part of what is traced, of another step's loss say: call both")
        with self._turn:
            with compile_lock:
                compiled, leaves = self._for(batch)
                if self.spec.accumulate > 1 and compiled.updates.reached != self._reached:
                    self._begin_window(compiled.updates.reached)
                compiled.leave_values()  # as eager code does, before its optimizer reads a learning rate
            return run(compiled, leaves)

    def _begin_window(self, reached: tuple[str, ...]) -> None:
        """Raise :class:`InputError` where a call has gradients for other parameters than those whose update waits."""
        others = {*reached} ^ {*self._reached}
        if others and self.pending:
            names = ", ".join(sorted(others))
            raise InputError(
                f"with accumulate={self.spec.accumulate} all calls of one update must have gradients for the same "
                f"parameters, and only some have for {names}: {plural(self.pending, 'call')} wait for the others"
            )
        self._reached, self._pending_update = reached, None

    def _for(self, batch: Sequence[Any]) -> tuple[StepForShape, Sequence[Any]]:
        """The step for batches like this one, and the batch's tensors and numbers."""
        if torch.is_inference_mode_enabled():
            raise InputError("a step trains, which inference_mode() forbids: call it outside")
        if not self.watch.unchanged:
            self._recompile_as(self.watch.reason)
        elif not self.captured.follow(self.state):
            self._recompile_as("tensors or modules that the loss captures have changed")
        leaves, structure = _flat(batch)
        compiled = self._compiled_for(self._key(leaves, structure))
        if compiled is not None and not compiled.updates.is_intact:
            self._recompile_as("the optimizer has other groups or state")
            compiled = None
        return compiled or self._compile(self._key(leaves, structure), batch), leaves

    def _compiled_for(self, key: Any) -> StepForShape | None:
        """The step that was compiled for what Python code reads now: the same objects, or equal ones."""
        steps = self._states.get(key, ())
        unchanged = (step for step in steps if step.reads.unchanged)
        found = next(unchanged, None) or next((step for step in steps if step.reads_the_same()), None)
        return found and self._compiled.get(id(found))

    def _recompile_as(self, reason: str) -> None:
        LOGGER.info("compiling the step of %s anew: %s", type(self.module).__name__, reason)
        self.recompile()

    def _key(self, leaves: Sequence[Any], structure: Any) -> Sequence[Any]:
        """What decides about the step beside what is watched."""
        narrow = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu")
        return (self.watch.flags, torch.get_default_dtype(), narrow, structure, *map(_key, leaves))

    def _compile(self, key: Any, batch: Sequence[Any]) -> StepForShape:
        if len(batch) <= self.targets and self.targets:
            raise InputError(
                f"a step takes the module's arguments and then {plural(self.targets, 'target')} for the loss, not "
                f"{plural(len(batch), 'argument')} in all; targets= says how many go to the loss alone"
            )
        for number, value in enumerate(batch):
            _check_unpacked(f"argument {number} of the step", value)
        for name, leaf in named_leaves(batch):
            _check_input(f"{name} of the step", leaf)
        self.recompilations.compile(batch)
        self._check_clipping()
        number = len(self._compiled) + 1
        title = f"compiling step {number} of {type(self.module).__name__}, for ({_described(batch)})"
        LOGGER.info(title)
        began = time.perf_counter()
        with spinner(title):
            compiled = StepForShape(self, batch)
        LOGGER.info("traced and differentiated for (%s) in %.1f s", compiled.described, time.perf_counter() - began)
        self._keep(key, compiled)
        return compiled

    def _keep(self, key: Any, compiled: StepForShape) -> None:
        steps = self._states.setdefault(key, [])
        if steps:  # Python code read other values then
            self.recompilations.read(compiled.reads.named_values, compiled.reads.changes(steps[-1].reads))
        steps.append(compiled)
        if self._compiled.put(id(compiled), compiled):
            self.recompilations.drop(self._compiled.limit)
            kept = set(map(id, self._compiled.values()))
            self._states = {key: [each for each in all_ if id(each) in kept] for key, all_ in self._states.items()}

    def _check_clipping(self) -> None:
        """Warn of gradients that are clipped beside the step."""
        calls = [name for name in loaded_by_caller(CLIPPING) if getattr(self.spec, CLIPPING[name]) is None]
        if calls and not self._clipping_said:
            self._clipping_said = True
            settings = " and ".join(f"{CLIPPING[name]}=" for name in calls)
            warn_caller(
                f"{' and '.join(calls)} beside a compiled step does not clip its gradients, as the step has made its "
                f"update by then: give {settings} to compile_step",
                IneffectiveClippingWarning,
            )

    def loss(self, *batch: Any) -> Any:
        """What the loss function makes of a batch, by PyTorch."""
        if not self.targets:
            return self.loss_fn(self.module, *batch)
        inputs, targets = batch[: -self.targets], batch[-self.targets :]
        return self.loss_fn(self.module(*inputs), *targets)

    def borrow(self, graph: Graph, updates: GroupedUpdates) -> list[torch.Tensor]:
        """Keep a step's variables in the tensors of the module and of the optimizer. Those that it changes."""
        variables = {variable.name: variable for variable in graph.variables}
        tensors = {**self.watch.tensors, **self.captured.tensors, **updates.state(variables)}
        for name in variables.keys() & tensors.keys():
            self.state.borrow(name, array_of(tensors[name]))
        for variable in updates.uncounted:
            if variable.name in self.state:  # eager steps may have made the first update of some
                self.state.write(variable.name, np.maximum(self.state.read(variable.name), variable.initial))
        return [tensors[variable.name] for variable in graph.updates if variable.name in tensors]


def _accumulator_of(parameter: torch.Tensor) -> tuple[Shape, np.dtype[Any]]:
    """Shape and type of a parameter's gradients, added up."""
    return tuple(parameter.shape), accumulator(OURS[parameter.dtype]).numpy


_STEPS: WeakKeyDictionary[torch.nn.Module, int] = WeakKeyDictionary()
"""How many steps were made of a module."""


def _first_draw(module: torch.nn.Module) -> int:
    """Where the random numbers of a module's next step begin: not those of another step, however many these draw."""
    number = _STEPS.get(module, 0)
    _STEPS[module] = number + 1
    return number << 40


class _Recompiling:
    """Recompiles a step that somebody still has."""

    def __init__(self, step: CompiledStep) -> None:
        self.step = ref(step)

    def __call__(self, optimizer: torch.optim.Optimizer) -> None:
        step = self.step()
        if step is not None:
            step.recompile()


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
        if value.requires_grad:
            _check_input("an argument of the step", value)
        kind = is_plain(value) or type(value)
        return value.shape, value.dtype, value.requires_grad, value.device, value.layout, kind
    _check_input("an argument of the step", value)
    return type(value), repr(value)  # -0.0 is no 0.0


def _described(batch: Sequence[Any]) -> str:
    """The tensors of a batch, also those that a step cannot take."""
    tensors = [leaf for leaf in pytree.tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return ", ".join(f"{OURS.get(each.dtype, each.dtype)}[{','.join(map(str, each.shape))}]" for each in tensors)


def _check_unpacked(what: str, value: Any) -> None:
    """Raise :class:`InputError` for packed sequences, whose parts are tensors."""
    parts = pytree.tree_leaves(value, is_leaf=lambda each: isinstance(each, PackedSequence))
    if any(isinstance(part, PackedSequence) for part in parts):
        raise InputError(f"{what}: {AS_ARGUMENT}")


def _check_input(what: str, value: Any) -> None:
    """Raise :class:`InputError` for what a step cannot take."""
    if isinstance(value, torch.Tensor):
        check_device(value, what)
        if value.requires_grad and (not value.is_leaf or isinstance(value, torch.nn.Parameter)):
            raise InputError(UNGIVEN.format(what))
    elif not isinstance(value, (int, float, bool, str, type(None))):
        advice = ": make it one by torch.from_numpy()" if isinstance(value, np.ndarray) else ""
        raise InputError(f"{what} must be a tensor or a number, not {kind_of(value)}{advice}")
