"""``torch.compile(module, backend="glowtrain")``: what Dynamo captures, forward and backward compiled by us.

Dynamo looks this up by the entry point ``torch_dynamo_backends``. Its graphs may have symbolic shapes; each shape that
is met is compiled for itself, and a bounded number of them is kept.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from threading import RLock
from typing import Any

import torch
from torch.autograd import forward_ad

from glowtrain.backends.discovery import backend_of
from glowtrain.bounded_cache import BoundedCache
from glowtrain.compiler.function import SPECIALISATIONS
from glowtrain.errors import GlowtrainError, InputError, ModelError
from glowtrain.forks import renew_in_children
from glowtrain.torch.dynamo.capture import Captured, captured, check_disjoint
from glowtrain.torch.dynamo.differentiable import Formula, compiled
from glowtrain.torch.memory import Spans, address, array_of, row_major, span

OWN = "_buffers_", "_parameters_"
"""What Dynamo's names of a module's tensors have in them."""

torch._dynamo.config.allow_rnn = True  # LSTM, GRU and RNN would break graphs otherwise
torch._dynamo.config.skip_nnmodule_hook_guards = False  # hooks that come later would not be called


class FallbackWarning(UserWarning):
    """Something that torch.compile captured is computed by PyTorch, as it cannot be compiled."""


def glowtrain(
    module: torch.fx.GraphModule, examples: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """The backend: a captured module as one function of its arguments.

    What cannot be compiled is left to PyTorch, and a :class:`FallbackWarning` names operator and line, once. Raises
    :class:`InputError` for ``options``: there are none.
    """
    if options:
        raise InputError(
            f'torch.compile(backend="glowtrain") has no options, and not {", ".join(options)}; as many threads are '
            "used as torch.set_num_threads says"
        )
    return CapturedFunction(module, examples).call


class CapturedFunction:
    """A captured module, compiled for each shape of its arguments, and for calls with gradients and without."""

    def __init__(self, module: torch.fx.GraphModule, examples: Sequence[Any]) -> None:
        self.module = module
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        self._open = [n for n, node in enumerate(placeholders) if _is_open(node, examples[n])]
        self._kept: BoundedCache[Specialised] = BoundedCache(SPECIALISATIONS)
        self._compute = self._refused if torch.is_autocast_enabled("cpu") else self._compiled
        self.renew()
        renew_in_children(self)

    def renew(self) -> None:
        """The lock, free of threads that a child of fork does not have."""
        self._lock = RLock()

    def call(self, *arguments: Any) -> Any:
        """The module's results."""
        return self._compute(arguments)

    def _compiled(self, arguments: Sequence[Any]) -> Any:
        if forward_ad._current_level >= 0:
            self._refuse(ModelError("it is called within forward_ad.dual_level(): there are no gradients forward"))
            return self._eager(arguments)
        key = (torch.is_grad_enabled(), *[_shape(arguments[number]) for number in self._open])
        special = self._kept.get(key)
        if special is None:
            special = self._specialised(key, arguments)
        if special is None:
            return self._eager(arguments)
        if special.checks:
            try:
                special.check(arguments)
            except GlowtrainError as error:
                self._refuse(error)
                return self._eager(arguments)
            if not special.indices_hold(arguments):
                return self._eager(arguments)
        return special(arguments)

    def _specialised(self, key: Any, arguments: Sequence[Any]) -> Specialised | None:
        with self._lock:
            if (found := self._kept.get(key)) is not None:
                return found
            try:
                special = Specialised(self.module, arguments)
            except GlowtrainError as error:
                self._refuse(error)
                return None
            self._kept.put(key, special)
            return special

    def _refused(self, arguments: Sequence[Any]) -> Any:
        self._refuse(ModelError("it runs under autocast; convert the module instead, with .to(torch.bfloat16)"))
        return self._eager(arguments)

    def _refuse(self, error: GlowtrainError) -> None:
        """Leave all calls to PyTorch, and say so."""
        self._compute = self._eager
        self._kept.clear()
        message = f'backend "glowtrain" leaves a part of the module to PyTorch: {error}'
        warnings.warn(message, FallbackWarning, stacklevel=5)

    def _eager(self, arguments: Sequence[Any]) -> Any:
        return self.module.forward(*arguments)


def _is_open(node: torch.fx.Node, example: Any) -> bool:
    """Whether an argument differs from call to call in more than its elements: a number, or the shape of a tensor."""
    if not isinstance(example, torch.Tensor):
        return True
    described = node.meta.get("example_value", example)
    return any(isinstance(extent, torch.SymInt) for extent in (*described.shape, *described.stride()))


def _shape(argument: Any) -> Any:
    return argument.shape if isinstance(argument, torch.Tensor) else argument


class Specialised:
    """A captured module for arguments of some shapes."""

    def __init__(self, module: torch.fx.GraphModule, arguments: Sequence[Any]) -> None:
        found = captured(module, arguments)
        tensors = [n for n, argument in enumerate(arguments) if isinstance(argument, torch.Tensor)]
        changed = {leaf.name for leaf in found.updates}
        formula = _formula(found, [arguments[number] for number in tensors])
        self._function = compiled(formula)
        self._tensors = tensors
        self._rearranged = [
            at for at, number in enumerate(tensors) if row_major(arguments[number]) is not arguments[number]
        ]
        self._changed = [at for at, leaf in enumerate(found.leaves) if leaf.name in changed]
        names = [str(node.target) for node in module.graph.nodes if node.op == "placeholder"]
        modules = [any(owner in names[number] for owner in OWN) for number in tensors]
        self._foreign = [at for at in self._changed if not modules[at]]
        """The tensors that are changed in place and are no buffers of the module."""
        self._own = [at for at in self._changed if modules[at]]
        self._given = [at for at in range(len(tensors)) if not modules[at]]
        self._places: tuple[list[int], Spans] = [], Spans(())
        self._partial = formula.partial
        leaves = [leaf.name for leaf in formula.leaves]
        self._indices = [(leaves.index(use.input.name), use.counts_from_front) for use in formula.graph.index_uses]
        self.checks = bool(self._changed or self._partial or self._indices)
        self._draws = found.draws
        self._returned = None if found.is_plain else found.returned
        special = self._rearranged or self._changed or self._draws or self._returned is not None
        self._is_plain = len(tensors) == len(arguments) and not special
        """Whether a call is one of the function, of all arguments."""

    def check(self, arguments: Sequence[Any]) -> None:
        """Raise :class:`ModelError` where a call changes a tensor that shares memory with another one, and where hooks
        on a gradient would be called though the loss reads no result of the tensor: Dynamo does not look at that.
        A module's own tensors were looked at when it was compiled."""
        tensors = [arguments[number] for number in self._tensors]
        if any(tensors[at]._backward_hooks or tensors[at]._post_accumulate_grad_hooks for at in self._partial):
            raise ModelError(
                "a tensor with hooks on its gradient has to do with some results only: PyTorch would call the hooks "
                "with None where only the others are read"
            )
        for at, other in itertools.product(self._foreign, tensors):
            check_disjoint(tensors[at], other)
        own = [tensors[at] for at in self._own]
        if own and any(map(self._spans(own).meet, map(span, [tensors[at] for at in self._given]))):
            raise ModelError("an argument shares memory with a buffer that is changed in place")

    def _spans(self, own: Sequence[torch.Tensor]) -> Spans:
        """Where the module's buffers lie now."""
        addresses = list(map(address, own))
        known, spans = self._places
        if known != addresses:
            spans = Spans(own)
            self._places = addresses, spans
        return spans

    def indices_hold(self, arguments: Sequence[Any]) -> bool:
        """Whether the arguments that are indices are such as PyTorch takes, and counted from the front."""
        tensors = [arguments[number] for number in self._tensors]
        return all(from_front(array_of(row_major(tensors[at]))) for at, from_front in self._indices)

    def __call__(self, arguments: Sequence[Any]) -> Any:
        if self._is_plain:
            return self._function(arguments)
        tensors = given = [arguments[number] for number in self._tensors]
        if self._rearranged:
            tensors = given.copy()
        for at in self._rearranged:
            tensors[at] = row_major(tensors[at])
        if self._draws:
            # from PyTorch's generator, so that its seeds and saved states give the same numbers again
            tensors.append(torch.empty_strided((), (), dtype=torch.int64).random_())
        computed = self._function(tensors)
        if self._changed:
            torch.autograd.graph.increment_version([tensors[at] for at in self._changed])
        if self._returned is None:
            return computed
        return [each.of(given, computed) for each in self._returned]


def _formula(found: Captured, tensors: Sequence[torch.Tensor]) -> Formula:
    """What is computed, with gradients if some are wanted."""
    wanted = [n for n, tensor in enumerate(tensors) if tensor.requires_grad] if torch.is_grad_enabled() else []
    return Formula("captured", found.leaves, found.computed, found.updates, wanted, backend_of("cpu"), found.tape)
