"""PyTorch's optimizers: their groups as updates in the step's graph, over their own state.

What PyTorch keeps for a parameter, ``optimizer.state[p]["exp_avg"]``, is the memory that the step updates. Counts of
updates (``state[p]["step"]``) are views of one vector for each group. Numbers (learning rates, which schedulers change)
are read from ``param_groups`` before each step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from glowtrain.errors import InputError
from glowtrain.grad.training import Updates
from glowtrain.graph import Input, Value, Variable, constant
from glowtrain.ops.elementwise.logic import Where
from glowtrain.ops.indexing.gather import Gather
from glowtrain.ops.reduce.reduction import accumulator, as_dtype
from glowtrain.optim import HYPER, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, Optimizer, RAdam, RMSProp
from glowtrain.optim.optimizer import Accumulation, clipped, widest
from glowtrain.presentation.messages import kind_of
from glowtrain.torch.dtypes import THEIRS
from glowtrain.torch.memory import address, tensor_of
from glowtrain.torch.steps.step_spec import StepSpec
from glowtrain.torch.watching.guard import Guard

COUNT, PARAMETERS = "step", "params"
"""What PyTorch calls the count of a parameter's updates, and the parameters of a group."""
CLIP_NORM, CLIP_VALUE = "clip_norm", "clip_value"


@dataclass(frozen=True)
class Kind:
    """An optimizer of PyTorch's: ours that does the same, its numbers from a group's settings, what it calls slots, and
    settings that it must not have, with their usual value."""

    make: Callable[[Mapping[str, Any]], Optimizer]
    slots: Mapping[str, str]
    refused: Mapping[str, Any] = field(default_factory=dict)
    counts: bool = True
    """Whether it keeps a count of updates."""


def _sgd(group: Mapping[str, Any]) -> Optimizer:
    return SGD(
        lr=float(group["lr"]), momentum=float(group["momentum"]), dampening=float(group["dampening"]),
        nesterov=bool(group["nesterov"]), weight_decay=float(group["weight_decay"]),
    )  # fmt: skip


def _moments(group: Mapping[str, Any]) -> dict[str, Any]:
    """The numbers of all optimizers that are like Adam."""
    beta1, beta2 = group["betas"]
    numbers = {name: float(group[name]) for name in ("lr", "eps", "weight_decay")}
    return {**numbers, "beta1": float(beta1), "beta2": float(beta2)}


def _adam(group: Mapping[str, Any]) -> Optimizer:
    form = AdamW if group.get("decoupled_weight_decay") else Adam
    return form(amsgrad=bool(group["amsgrad"]), **_moments(group))


def _adamw(group: Mapping[str, Any]) -> Optimizer:
    return _adam({**group, "decoupled_weight_decay": True})


def _rmsprop(group: Mapping[str, Any]) -> Optimizer:
    return RMSProp(
        lr=float(group["lr"]), alpha=float(group["alpha"]), eps=float(group["eps"]),
        momentum=float(group["momentum"]), centered=bool(group["centered"]),
        weight_decay=float(group["weight_decay"]),
    )  # fmt: skip


def _adagrad(group: Mapping[str, Any]) -> Optimizer:
    return Adagrad(
        lr=float(group["lr"]), lr_decay=float(group["lr_decay"]), eps=float(group["eps"]),
        initial=float(group["initial_accumulator_value"]), weight_decay=float(group["weight_decay"]),
    )  # fmt: skip


def _nadam(group: Mapping[str, Any]) -> Optimizer:
    return NAdam(momentum_decay=float(group["momentum_decay"]), **_moments(group))


def _radam(group: Mapping[str, Any]) -> Optimizer:
    return RAdam(**_moments(group))


def _adamax(group: Mapping[str, Any]) -> Optimizer:
    return Adamax(**_moments(group))


def _adadelta(group: Mapping[str, Any]) -> Optimizer:
    return Adadelta(
        lr=float(group["lr"]), rho=float(group["rho"]), eps=float(group["eps"]),
        weight_decay=float(group["weight_decay"]),
    )  # fmt: skip


_MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq"}
_PLAIN = {"differentiable": False}
_COUPLED = {**_PLAIN, "decoupled_weight_decay": False}
KINDS: dict[type, Kind] = {
    torch.optim.SGD: Kind(_sgd, {"momentum": "momentum_buffer"}, _PLAIN, counts=False),
    torch.optim.Adam: Kind(_adam, {**_MOMENTS, "largest": "max_exp_avg_sq"}, _PLAIN),
    torch.optim.AdamW: Kind(_adamw, {**_MOMENTS, "largest": "max_exp_avg_sq"}, _PLAIN),
    torch.optim.NAdam: Kind(_nadam, {**_MOMENTS, "product": "mu_product"}, _COUPLED),
    torch.optim.RAdam: Kind(_radam, _MOMENTS, _COUPLED),
    torch.optim.Adamax: Kind(_adamax, {"m": "exp_avg", "largest": "exp_inf"}, _PLAIN),
    torch.optim.Adadelta: Kind(_adadelta, {"square": "square_avg", "delta": "acc_delta"}, _PLAIN),
    torch.optim.RMSprop: Kind(
        _rmsprop, {"square": "square_avg", "mean": "grad_avg", "momentum": "momentum_buffer"}, _PLAIN
    ),
    torch.optim.Adagrad: Kind(_adagrad, {"sum": "sum"}, _PLAIN),
}
"""The optimizers that are taken, these classes and no classes derived from them."""


def kind_of_optimizer(optimizer: Any) -> Kind:
    """How an optimizer is done. Raises :class:`InputError` for one that cannot be."""
    kind = KINDS.get(type(optimizer))
    if kind is None:
        names = ", ".join(cls.__name__ for cls in KINDS)
        raise InputError(
            f"{kind_of(optimizer)} is not an optimizer that can be compiled: use one of torch.optim's {names}; "
            "or torch.compile(module, backend='glowtrain') with a loop and optimizer of your own"
        )
    for group in optimizer.param_groups:
        for name, usual in kind.refused.items():
            if group.get(name, usual) != usual:
                raise InputError(f"{type(optimizer).__name__}({name}={group[name]!r}) is not supported")
    if any(_hooks(optimizer)):
        raise InputError("the optimizer has hooks on step, which a compiled step would not call: remove them")
    return kind


def _hooks(optimizer: torch.optim.Optimizer) -> tuple[dict[Any, Any], dict[Any, Any]]:
    """What is to be called before and after an optimizer's own steps."""
    return optimizer._optimizer_step_pre_hooks, optimizer._optimizer_step_post_hooks


FORM = ("nesterov", "maximize", "centered", "decoupled_weight_decay", "amsgrad")
"""Settings that decide what a step computes."""


def _form(settings: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(settings.get(name) for name in FORM)


_VECTORS: WeakKeyDictionary[torch.optim.Optimizer, dict[str, torch.Tensor]] = WeakKeyDictionary()
"""The counts of an optimizer's updates, by the prefix of the group."""


@dataclass(frozen=True)
class ParameterGroup:
    """A group of an optimizer. ``settings``: the entry of ``param_groups``; ``rule``: our optimizer, by the settings
    when it was made; ``names`` those of the parameters; ``counts``: the variable that says how often each was updated;
    ``prefix`` begins the names of the group's inputs and variables; ``form``: the settings of :data:`FORM`."""

    settings: dict[str, Any]
    rule: Optimizer
    names: Sequence[str]
    counts: Variable
    prefix: str
    form: tuple[Any, ...]


class GroupedUpdates:
    """All updates of an optimizer as graph code: what :func:`glowtrain.grad.training.training_graph` calls.

    ``names`` are the module's for the optimizer's parameters, by their identity.
    """

    def __init__(self, names: Mapping[int, str], spec: StepSpec) -> None:
        self.optimizer = optimizer = spec.optimizer
        self.kind = kind_of_optimizer(optimizer)
        self.bounds = {CLIP_NORM: spec.clip_norm, CLIP_VALUE: spec.clip_value}
        self.accumulate, self.gradients = spec.accumulate, spec.gradients
        self.reached: tuple[str, ...] = ()
        """The names of the parameters that get gradients, in the order of the outputs that are these."""
        self.groups = [self._group(number, entry, names) for number, entry in enumerate(optimizer.param_groups)]
        self._states: list[dict[Any, Any]] = []
        """What the optimizer keeps for its parameters."""
        self._counts: list[torch.Tensor] = []
        self._places: list[int] = []
        """How often each was updated, and where that lies: within the vector of a group."""
        self._guard = Guard()

    def _group(self, number: int, settings: dict[str, Any], names: Mapping[int, str]) -> ParameterGroup:
        counts = np.array([self._count(parameter) for parameter in settings[PARAMETERS]], np.float32)
        variable = Variable(f"{number}.{COUNT}", counts, trainable=False)
        own = [names[id(parameter)] for parameter in settings[PARAMETERS]]
        return ParameterGroup(settings, self.kind.make(settings), own, variable, f"{number}.", _form(settings))

    def _count(self, parameter: torch.Tensor) -> float:
        """How often a parameter has been updated; where that is not kept, whether it was."""
        state = self.optimizer.state.get(parameter, {})
        return float(state.get(COUNT, any(state.get(name) is not None for name in self.kind.slots.values())))

    def __call__(self, gradients: Mapping[Variable, Value]) -> Updates:
        window = Accumulation(self.accumulate) if self.accumulate > 1 else None
        sums: dict[Variable, Value] = {}
        if window is not None:
            wide = {p: as_dtype(gradient, accumulator(p.dtype)) for p, gradient in gradients.items()}
            gradients = {p: window.averaged(p, gradient, sums) for p, gradient in wide.items()}
        inputs, values, final = self._clipped_updates(gradients)
        self.reached = tuple(p.name for p in gradients)
        if window is None:
            return Updates(inputs, values, self._reported(final))
        values = {variable: window.at_last(variable, value) for variable, value in values.items()}
        shown = {p: Where()(window.last, gradient, gradients[p]) for p, gradient in final.items()}
        return Updates(inputs, {**values, **sums, **window.counted()}, self._reported(shown))

    def of_pending(self, parameters: Sequence[Variable]) -> Updates:
        """The update of the mean of those gradients that wait for more of them."""
        window, drained = Accumulation(self.accumulate), dict[Variable, Value]()
        inputs, values, _ = self._clipped_updates({p: window.drained(p, drained) for p in parameters})
        return Updates(inputs, {**values, **drained})

    def _clipped_updates(
        self, gradients: Mapping[Variable, Value]
    ) -> tuple[tuple[Input, ...], dict[Variable, Value], dict[Variable, Value]]:
        """Inputs and values of the updates of all groups, and the gradients as clipping leaves them."""
        dtype = widest(gradients)
        bounds = {name: Input(dtype[()], HYPER + name) for name, bound in self.bounds.items() if bound is not None}
        final = clipped(gradients, bounds.get(CLIP_VALUE), bounds.get(CLIP_NORM), dtype)
        inputs: list[Input] = list(bounds.values())
        values: dict[Variable, Value] = {}
        for group in self.groups:
            updates = self._updates(group, final)
            inputs += updates.inputs
            values.update(updates.values)
        return tuple(inputs), values, final

    def _reported(self, gradients: Mapping[Variable, Value]) -> dict[str, Value]:
        """Gradients as outputs of the step, where they are wanted."""
        wanted = gradients.items() if self.gradients else ()
        return {f"gradient{number}": as_dtype(value, p.dtype) for number, (p, value) in enumerate(wanted)}

    def _updates(self, group: ParameterGroup, gradients: Mapping[Variable, Value]) -> Updates:
        """Those of a group, for what gets gradients."""
        variables = {variable.name: variable for variable in gradients}
        reached = [number for number, name in enumerate(group.names) if name in variables]
        if not reached:
            return Updates()
        own = [variables[group.names[number]] for number in reached]
        ascent = group.settings.get("maximize")
        signed = {variable: -gradients[variable] if ascent else gradients[variable] for variable in own}
        counts = group.counts if len(reached) == len(group.names) else Gather(axis=0)(group.counts, np.array(reached))
        updates = group.rule.updates(signed, group.prefix, counts)
        more = np.isin(np.arange(len(group.names)), reached).astype(np.float32)
        return Updates(updates.inputs, {**updates.values, group.counts: group.counts + constant(more)})

    def numbers(self) -> dict[str, float]:
        """The present hyperparameters, by the names of the step's inputs.

        Raises :class:`InputError` where what is part of the compiled step was turned on or off.
        """
        found = {HYPER + name: bound for name, bound in self.bounds.items() if bound is not None}
        for group in self.groups:
            present = self.kind.make(group.settings).hyper()
            if present.keys() != group.rule.hyper().keys() or _form(group.settings) != group.form:
                raise InputError(
                    f"{type(self.optimizer).__name__}: {', '.join(('momentum', *FORM))} are part of a compiled step: "
                    "call its recompile() after turning one of them on or off"
                )
            found.update({f"{HYPER}{group.prefix}{name}": value for name, value in present.items()})
        return found

    @property
    def uncounted(self) -> list[Variable]:
        """Counts of updates that the optimizer does not keep, but a step does."""
        return [] if self.kind.counts else [group.counts for group in self.groups]

    def state(self, variables: Mapping[str, Variable]) -> dict[str, torch.Tensor]:
        """The tensors of PyTorch's state by the names of a step's ``variables``; what it lacks is made, and put there.

        Raises :class:`InputError` for state that does not fit its parameter.
        """
        found: dict[str, torch.Tensor] = {}
        for group in self.groups:
            for parameter, name, key, variable in self._slots(group, variables):
                found[variable.name] = self._slot(parameter, key, name, variable)
            if self.kind.counts and group.counts.name in variables:
                found[group.counts.name] = self._counted(group)
        self._states = list(self.optimizer.state.values())
        self._counts = [state[COUNT] for state in self._states if isinstance(state.get(COUNT), torch.Tensor)]
        self._places = list(map(address, self._counts))
        groups, dicts = self.optimizer.param_groups, [*self._states, *_hooks(self.optimizer)]
        lists = [groups, *[group[PARAMETERS] for group in groups]]
        items = [(vars(self.optimizer), "state"), (vars(self.optimizer), "param_groups")]
        items += [(group, PARAMETERS) for group in groups]
        self._guard = Guard(list(found.values()), [*lists, *[each.values() for each in dicts]], items)
        return found

    def _slots(
        self, group: ParameterGroup, variables: Mapping[str, Variable]
    ) -> Iterator[tuple[torch.Tensor, str, str, Variable]]:
        """What a group keeps in variables of a step: parameters, names, what PyTorch calls slots, and variables."""
        for parameter, name in zip(group.settings[PARAMETERS], group.names, strict=True):
            for slot, theirs in self.kind.slots.items():
                variable = variables.get(f"{name}.{group.rule.name}.{slot}")
                if variable is not None:
                    yield parameter, name, theirs, variable

    def _counted(self, group: ParameterGroup) -> torch.Tensor:
        """The vector whose views are the counts of what has state: that of other steps, or a new one."""
        states = [self.optimizer.state.get(parameter, {}) for parameter in group.settings[PARAMETERS]]
        vectors = _VECTORS.setdefault(self.optimizer, {})
        counts = vectors.get(group.prefix)
        if counts is None or not all(map(_counted_by, states, counts)):
            numbers = [float(state.get(COUNT, 0.0)) for state in states]
            counts = vectors[group.prefix] = torch.tensor(numbers, dtype=torch.float32)
        for state, count in zip(states, counts, strict=True):
            if state and (COUNT not in state or not _counted_by(state, count)):
                state[COUNT] = count  # only then, as steps of other shapes look for the object that they have put there
        return counts

    @property
    def is_intact(self) -> bool:
        """Whether the optimizer still has the groups, and the state that a step works on: none of it was cleared,
        replaced or moved. It may have got more."""
        states = self.optimizer.state
        return (
            len(states) >= len(self._states)
            and all(map(is_, states.values(), self._states))
            and self._guard.holds
            and list(map(address, self._counts)) == self._places
        )

    def _slot(self, parameter: torch.Tensor, key: str, name: str, variable: Variable) -> torch.Tensor:
        state = self.optimizer.state[parameter]
        if state.get(key) is None:
            state[key] = tensor_of(np.array(variable.initial))
        tensor: torch.Tensor = state[key]
        shape, dtype = parameter.shape, THEIRS[variable.dtype]
        if not variable.rank:  # one number, which PyTorch keeps in its default type
            shape, tensor = torch.Size(), tensor.to(dtype)
            state[key] = tensor
        if tensor.shape != shape or tensor.dtype != dtype:
            raise InputError(
                f"the optimizer's {key} of {name} is {tensor.dtype}{list(tensor.shape)}, the parameter "
                f"{parameter.dtype}{list(parameter.shape)}: make a new optimizer"
            )
        if not tensor.is_contiguous():
            tensor = state[key] = tensor.contiguous()
        return tensor


def _counted_by(state: Mapping[str, Any], count: torch.Tensor) -> bool:
    """Whether this is where a parameter's updates are counted, if there were any."""
    return state[COUNT].data_ptr() == count.data_ptr() if COUNT in state else float(count) == 0
