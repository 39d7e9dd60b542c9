"""What is traced: a function of modules, which runs with substitutes for what a trace cannot follow, and is left as it
was: attributes, buffers, modes, and what its code reaches otherwise."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch._subclasses.fake_tensor import is_fake
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from glowtrain.errors import InputError, ModelError
from glowtrain.torch.tracing.attributes import Assigned, Attributes, LentAttributes, Registered
from glowtrain.torch.tracing.drawn import check_left
from glowtrain.torch.tracing.started_code import StartedCode, TraceObserver
from glowtrain.torch.tracing.substitutes import INSTEAD, REFUSED, calls_observed, unseeded
from glowtrain.torch.tracing.tape import Tape, TapedMemory

GRADIENT = "glowtrain::gradient"
ASKING = frozenset(
    getattr(torch.Tensor, name)
    for name in ("item", "tolist", "equal", "__bool__", "__complex__", "__float__", "__index__", "__int__")
) | {torch.equal}
"""Functions that give Python values of elements."""
MODULE = "module"
"""What the module is called within a traced computation."""


@torch.library.custom_op(GRADIENT, mutates_args=())
def gradient(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], cotangents: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Stands for a call of torch.autograd.grad in a traced graph; it is never run."""
    raise NotImplementedError("a traced gradient is read by glowtrain, and runs nowhere else")


@gradient.register_fake
def _(outputs: Any, inputs: Any, cotangents: Any) -> list[torch.Tensor]:
    return [torch.empty_like(each) for each in inputs]


class Originals:
    """The tensors that take part in a trace and were there before, as objects that others have, too: export makes new
    ones of parameters, which do not follow where these lie; and the modules that take part. An object that export does
    not look into: what a module has itself, it puts back as it was."""

    def __init__(self) -> None:
        self._by_place: dict[tuple[Any, ...], torch.Tensor] = {}
        self.modules: set[torch.nn.Module] = set()
        """Those that were called."""
        self._read: list[torch.Tensor] = []
        """Those whose elements were asked for."""
        self._computed = False
        """Whether elements of other tensors were asked for, which PyTorch may have computed of these at once."""
        self.attributes: Attributes | None = None
        """What modules had before."""
        self.assigned: list[Assigned] = []
        self.unkept: list[str] = []
        """Attributes of modules that were assigned or filled, with plain values and with others."""

    def take(self, arguments: Sequence[Any]) -> None:
        """Remember those among the arguments of a call."""
        for each in arguments:
            if isinstance(each, torch.Tensor) and not is_fake(each) and each.layout is torch.strided:
                with torch._C.DisableTorchFunction():
                    self._by_place.setdefault(_place(each), each)

    def take_elements(self, arguments: Sequence[Any]) -> None:
        """Remember whose elements a call gives to Python."""
        real = [each for each in arguments if isinstance(each, torch.Tensor) and not is_fake(each)]
        self._read += real
        self._computed |= not real

    def read(self, used: Container[int]) -> list[torch.Tensor]:
        """Those whose elements are numbers of the graph, as code has asked for them, or a function that wants numbers.
        Of the others, the graph has tensors of the identities ``used``."""
        others = [each for each in self._by_place.values() if id(each) not in used]
        numbers = [each for each in others if self._computed or each.numel() == 1]
        return list({id(each): each for each in (*self._read, *numbers)}.values())

    def of(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Those that have the memory of ``tensors``, by the same names."""
        places = {name: _place(tensor) for name, tensor in tensors.items()}
        return {name: self._by_place[place] for name, place in places.items() if place in self._by_place}


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Where and how a tensor lies in memory."""
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


class _Gradients(TorchFunctionMode):
    """Calls of ``torch.autograd.grad`` become calls of our operator, and those of ``instead`` are replaced.

    A trace forgets where ``torch.no_grad()`` was: what is computed there is detached, and so is what is written there.
    """

    def __init__(
        self, instead: Mapping[Any, Callable[..., Any]], originals: Originals, started: StartedCode
    ) -> None:  # fmt: skip
        super().__init__()
        self.instead = instead
        self.originals = originals
        self.started = started
        self.enabled = True
        """Whether gradients flow, as far as the traced code says it."""
        self.memory = TapedMemory()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.started.pause()
        try:
            return self._called(function, args, kwargs or {})
        finally:
            self.started.go_on()

    def _called(self, function: Any, args: Any, kwargs: Any) -> Any:
        leaves = pytree.tree_leaves((args, kwargs))
        leaves += [part for each in leaves if isinstance(each, slice) for part in (each.start, each.stop, each.step)]
        self.originals.take(leaves)
        if function is torch.autograd.grad:
            return _asked(*args, **kwargs)
        if function is torch._C._set_grad_enabled:
            self.enabled = bool(args[0])
            with torch._C.DisableTorchFunction():  # PyTorch's own mode would record it
                return function(*args, **kwargs)
        versions = self.memory.versions(leaves)
        if any(map(callable, leaves)):  # a person's code, which the function calls
            self.started.go_on()
        result = self.instead.get(function, function)(*args, **kwargs)
        if function in ASKING:
            self.originals.take_elements(leaves)
        self.memory.check(versions)
        computed = pytree.tree_leaves(result)
        self.memory.take(computed)
        if not self.enabled:
            given = set(map(id, leaves))  # an operand that is returned, written or not, stays the tensor that it is
            result = pytree.tree_map_only(torch.Tensor, lambda y: y if id(y) in given else y.detach(), result)
            leaves += computed
        self.memory.alias(leaves, pytree.tree_leaves(result))
        return result


def _asked(
    outputs: Any, inputs: Any, grad_outputs: Any = None, retain_graph: bool | None = None, create_graph: bool = False,
    *_: Any, **__: Any,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients by our operator: constants, as PyTorch gives them, unless their graph is wanted, too."""
    results, at = _listed(outputs), _listed(inputs)
    given = [None] * len(results) if grad_outputs is None else _listed(grad_outputs)
    cotangents = [torch.ones_like(y) if g is None else g for y, g in zip(results, given, strict=True)]
    found = gradient(results, at, cotangents)
    return tuple(each if create_graph else each.detach() for each in found)


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) or tensors is None else list(tensors)


class Computation(torch.nn.Module):
    """What is traced: a function of a module, and of others that have parameters too (a loss).

    What says how gradients are computed (``torch.autograd.Function``, hooks of tensors) is refused, unless the
    computation is wanted ``forward_only``: then it is passed over. Draws of random numbers by Python and NumPy, which
    the trace would make constants of, are always refused. ``code`` notices what else its code does, whose surroundings
    are left as they are.
    """

    def __init__(
        self, function: Callable[..., Any], *, forward_only: bool = False, code: TraceObserver | None = None,
        **modules: torch.nn.Module,
    ) -> None:  # fmt: skip
        super().__init__()
        self.code = code or TraceObserver()
        self.surroundings = self.code.surroundings
        self.forward_only = forward_only
        self.originals = Originals()
        self.tape = Tape(GRADIENT)
        self._function = (function,)  # in a tuple, so that a function which is a module is not registered twice
        for name, module in modules.items():
            self.add_module(name, module)
        self._lent = LentAttributes(self._tensors())

    def _tensors(self) -> dict[str, torch.Tensor]:
        """The parameters and buffers of all its modules, or what stands for them in a trace."""
        named = self.named_parameters(remove_duplicate=False), self.named_buffers(remove_duplicate=False)
        return dict(chain(*named))

    def forward(self, *inputs: Any) -> Any:
        registered = Registered(self)
        attributes = Attributes(dict(self.named_modules()))
        self.originals.attributes = self.originals.attributes or attributes
        constant = [(each, each._version) for each in pytree.tree_leaves(inputs) if _is_constant(each)]
        mode = _Gradients(INSTEAD if self.forward_only else INSTEAD | REFUSED, self.originals, self.code.started)

        def observe(called: torch.nn.Module) -> None:
            self.originals.modules.add(called)
            if called not in self.surroundings.modules:
                attributes.take(called, type(called).__name__)

        trained = {name: each.requires_grad for name, each in self.named_parameters()}

        self._lent.lend(self._tensors())
        try:
            with mode, calls_observed(observe), unseeded(), preserved_grad_mode(), self.code.started:
                results = self._function[0](*inputs)
            self.code.draws.check()
            check_left(chain(attributes.left, self.surroundings.left))
            buffers = registered.assigned()
            self._lent.take_back(self.surroundings.known)
            self.originals.assigned += attributes.assigned
            self.originals.unkept += attributes.unkept
        finally:
            registered.restore()
            self.surroundings.modules.leave_to(attributes)
            self.surroundings.restore()  # while what PyTorch replaces for a trace is in its place
        self._check_trained(trained)
        if any(each.requires_grad and each._version != version for each, version in constant):
            raise ModelError("what requires a gradient is written to a tensor that does not: write it under no_grad")
        for buffer, value in buffers:  # what is assigned becomes a write, which export sees
            with torch.no_grad():
                buffer.copy_(value)
        self.tape.record(results, inputs, dict(self.named_parameters(remove_duplicate=False)))
        return results

    def restore(self) -> None:
        """Give the modules the attributes that they had."""
        if self.originals.attributes is not None:
            self.originals.attributes.restore()

    def _check_trained(self, before: Mapping[str, bool]) -> None:
        """Raise :class:`ModelError` where a call has frozen parameters or thawed them."""
        changed = [name for name, each in self.named_parameters() if each.requires_grad is not before.get(name)]
        if changed:
            raise ModelError(
                f"a call of the module or the loss sets requires_grad of {', '.join(map(name_in_module, changed))}: a "
                "compiled step trains what requires gradients when it begins; set it before the step"
            )

    @property
    def unkept(self) -> list[str]:
        """The attributes and names that calls of the modules would have left with other tensors or contents."""
        own = map(name_in_module, self.originals.unkept)
        return list(dict.fromkeys([*own, *self.surroundings.unkept]))

    @property
    def assigned(self) -> list[Assigned]:
        """The plain values that calls of the modules leave in their attributes and elsewhere."""
        return [*self.originals.assigned, *self.surroundings.assigned]

    @property
    def others(self) -> list[torch.nn.Module]:
        """The modules that were called, and what they are made of, but for its own."""
        own = set(map(id, self.modules()))
        parts = dict.fromkeys(part for module in self.originals.modules for part in module.modules())
        return [part for part in parts if id(part) not in own]


@contextmanager
def preserved_grad_mode() -> Iterator[None]:
    """Raise :class:`InputError` where what runs within leaves gradients turned off or on for its caller."""
    before = torch.is_grad_enabled()
    yield
    if torch.is_grad_enabled() is not before:
        raise InputError(
            "the module or the loss turns gradients on or off (torch.set_grad_enabled) for whoever calls it, which "
            "compiled code does not: with torch.no_grad() or torch.enable_grad() they are as before behind it"
        )


def _is_constant(value: Any) -> bool:
    """Whether it is a tensor without a gradient, whose changes are counted."""
    return isinstance(value, torch.Tensor) and not value.requires_grad and not value.is_inference()


def name_in_module(full: str) -> str:
    """The name of a parameter within its module, from that within the traced computation."""
    return full.removeprefix(f"{MODULE}.")
