"""What Dynamo captured, as graph code: what is computed, what is changed in place, and how results lie in memory."""

from __future__ import annotations

import itertools
import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from typing import Any

import numpy as np
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from glowtrain.errors import ModelError
from glowtrain.graph import Input, Value, Variable
from glowtrain.torch.aten.table import type_of_fake
from glowtrain.torch.memory import check_memory, overlap, row_major
from glowtrain.torch.random_state import RandomKey
from glowtrain.torch.read import check_shapes, read
from glowtrain.torch.tracing.computation import Computation, preserved_grad_mode
from glowtrain.torch.tracing.replay import check_calls, replay
from glowtrain.torch.tracing.trace import Trace, traced

Tensors = Sequence[torch.Tensor]
View = Callable[[torch.Tensor], torch.Tensor]
SHAPED = {
    torch.ops.aten.view_as.default: torch.ops.aten.view.default,
    torch.ops.aten.reshape_as.default: torch.ops.aten.reshape.default,
    torch.ops.aten.expand_as.default: torch.ops.aten.expand.default,
}
"""Views in the shape of another tensor, of which nothing else is read, and those in a given shape."""


@dataclass(frozen=True)
class Returned:
    """A result: a plain ``value``; or ``views``, one after the other, of an argument that is a tensor or of what is
    ``computed``, by number."""

    value: Any = None
    argument: int | None = None
    computed: int | None = None
    views: tuple[View, ...] = ()

    def of(self, arguments: Tensors, computed: Tensors) -> Any:
        """The result of a call."""
        if self.argument is None and self.computed is None:
            return self.value
        result = arguments[self.argument] if self.argument is not None else computed[self.computed or 0]
        for view in self.views:
            result = view(result)
        return result


@dataclass(frozen=True)
class Captured:
    """``leaves`` stand for the arguments that are tensors, and last for the key of random numbers if ``draws``;
    variables for those that are changed in place, by ``updates``; ``tape``: the leaves, by number, that autograd would
    connect each value with that is ``computed``."""

    leaves: list[Input | Variable]
    computed: list[Value]
    returned: list[Returned]
    updates: dict[Variable, Value]
    draws: bool
    tape: list[frozenset[int]]

    @property
    def is_plain(self) -> bool:
        """Whether the results are what is computed, in order."""
        return self.returned == [Returned(computed=number) for number in range(len(self.computed))]


def captured(module: torch.fx.GraphModule, arguments: Sequence[Any]) -> Captured:
    """A captured module for arguments like these: tensors, and numbers that hold for the graph.

    Raises :class:`ModelError` for what cannot be traced, or is changed in place where that is not possible, and
    :class:`UnsupportedOperatorError` that names operators with their lines.
    """
    for number, argument in enumerate(arguments):
        _check(argument, number)
    check_calls(module)
    enabled = torch.is_grad_enabled()
    computation = Computation(partial(_replayed, module, enabled), module=module)
    with saved_tensors_hooks(_forgotten, _forgotten):  # a checkpoint around the call counts what is saved
        trace = traced(computation, [_plain(each) for each in arguments], mutable=True)
    check_shapes(trace)
    if not enabled and any(connected.leaves for connected in trace.tape):
        raise ModelError("it turns gradients on where its caller has turned them off")
    if enabled and any(map(_has_sparse_gradient, trace.graph.nodes)):
        raise ModelError("it asks for a sparse gradient (sparse=True), and gets dense ones here")
    if trace.updates:
        raise ModelError(f"{next(iter(trace.updates))!r} is changed in place, and belongs to what was captured")
    tensors = dict(zip(trace.inputs, filter(_is_tensor, arguments), strict=True))
    _check_mutated([tensors[name] for name in trace.mutations], list(tensors.values()))
    leaves = {name: _leaf(tensor, name, name in trace.mutations) for name, tensor in tensors.items()}
    computed, returned = _returned(trace)
    _check_shared(module, arguments, returned)
    random = RandomKey()
    wanted = [*computed, *trace.mutations.values()]
    found = read(replace(trace, results=wanted), leaves, random).results
    changed = [leaf for leaf in leaves.values() if isinstance(leaf, Variable)]
    updates = {leaf: found[wanted.index(trace.mutations[leaf.name])] for leaf in changed}
    keys = [random.key] if random.used else []
    tape = _tape(trace, returned, len(computed))
    return Captured([*leaves.values(), *keys], found[: len(computed)], returned, updates, random.used, tape)


def _replayed(module: torch.fx.GraphModule, enabled: bool, *arguments: Any) -> Any:
    """The module's results, where gradients flow or not as in the call."""
    with torch.set_grad_enabled(enabled), preserved_grad_mode():
        return replay(module, *arguments)


def _has_sparse_gradient(node: torch.fx.Node) -> bool:
    """Whether an operator is asked for it, as embeddings and gather may be."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    return bool(given.get("sparse") or given.get("sparse_grad"))


def _forgotten(saved: Any) -> None:
    """What the tape of a trace keeps for a backward, of which there is none."""


def _plain(argument: Any) -> Any:
    """An argument as it is traced: numbers hold for the graph, and memory is row-major as it will be in calls."""
    if not _is_tensor(argument):
        return argument
    return row_major(argument.detach()).detach().requires_grad_(argument.requires_grad)


def _is_tensor(argument: Any) -> bool:
    return isinstance(argument, torch.Tensor)


def _leaf(tensor: torch.Tensor, name: str, changes: bool) -> Input | Variable:
    type_ = type_of_fake(tensor)
    if changes:
        return Variable(name, np.zeros(type_.shape, type_.dtype.numpy), trainable=False)
    return Input(type_, name)


def _check(argument: Any, number: int) -> None:
    if not _is_tensor(argument):
        if not isinstance(argument, (int, float, bool)):
            raise ModelError(f"argument {number} is {type(argument).__name__}, neither a tensor nor a number")
    elif type(argument) not in (torch.Tensor, torch.nn.Parameter):
        raise ModelError(f"argument {number} is {type(argument).__name__}, which computes in ways of its own")
    elif argument.numel():
        check_memory(row_major(argument.detach()), f"argument {number}")


def _check_mutated(mutated: Tensors, tensors: Tensors) -> None:
    for tensor in mutated:
        if tensor.requires_grad:
            raise ModelError("a tensor that requires a gradient is changed in place: make a new one of it")
        if tensor.is_neg():
            raise ModelError("a tensor that is the negative of its memory is changed in place: resolve_neg() it")
        if not tensor.is_contiguous():
            raise ModelError(f"a tensor with strides {tensor.stride()} is changed in place: make it contiguous")
    for tensor, other in itertools.product(mutated, tensors):
        check_disjoint(tensor, other)


def check_disjoint(changed: torch.Tensor, other: torch.Tensor) -> None:
    """Raise :class:`ModelError` where a tensor that is changed in place has elements in common with another one."""
    if changed is not other and overlap(changed, other):
        raise ModelError("a tensor is changed in place that shares memory with another argument")


def _returned(trace: Trace) -> tuple[list[torch.fx.Node], list[Returned]]:
    """The nodes that are computed, and how each result is made of them.

    Results that share memory in PyTorch do so here: they are views, by PyTorch itself, of an argument or of one thing
    that is computed; so are those that do not lie row-major.
    """
    chains = [_chain(result) for result in trace.results]
    arguments = {node: trace.inputs.index(node.name) for node in trace.graph.nodes if node.name in trace.inputs}
    by_name = {node.name: number for node, number in arguments.items()}
    arguments.update({node: by_name[name] for name, node in trace.mutations.items() if not _is_leaf(node)})
    shared = Counter(chain[0] for chain in chains if chain)
    computed: dict[torch.fx.Node, int] = {}
    returned = []
    for result, chain in zip(trace.results, chains, strict=True):
        if not chain:
            returned.append(Returned(value=result))
        elif chain[0] in arguments:
            returned.append(Returned(argument=arguments[chain[0]], views=_views(chain)))
        elif shared[chain[0]] > 1 or not result.meta["val"].is_contiguous():
            number = computed.setdefault(chain[0], len(computed))
            returned.append(Returned(computed=number, views=_views(chain)))
        else:
            returned.append(Returned(computed=computed.setdefault(result, len(computed))))
    return list(computed), returned


def _check_shared(module: torch.fx.GraphModule, arguments: Sequence[Any], returned: Sequence[Returned]) -> None:
    """Raise :class:`ModelError` where results do not share memory with arguments and each other as PyTorch's do: what
    copies there may not in a trace of row-major arguments, and what is a view may be computed. Views by PyTorch do."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    given = [_memory(node) for node, argument in zip(placeholders, arguments, strict=True) if _is_tensor(argument)]
    results = map(_memory, pytree.tree_leaves([node.args[0] for node in module.graph.nodes if node.op == "output"]))
    made = [each.computed if each.argument is None else given[each.argument] for each in returned]
    plain = [each.argument is None or not each.views for each in returned]
    pairs = [pair for pair in compress(zip(results, made, strict=True), plain) if None not in pair]
    theirs, ours = ([*given, *memories] for memories in zip(*pairs, strict=True)) if pairs else ([], [])
    if list(map(theirs.index, theirs)) != list(map(ours.index, ours)):
        raise ModelError("its results share memory with each other or with arguments in other ways than copies would")


def _memory(node: Any) -> int | None:
    """The memory of what Dynamo, or a trace, saw a node give first, as an address of PyTorch's."""
    if not isinstance(node, torch.fx.Node):
        return None
    example = next(iter(pytree.tree_leaves(node.meta.get("example_value", node.meta.get("val")))), None)
    if not isinstance(example, torch.Tensor) or example.layout is not torch.strided:
        return None
    return int(example.untyped_storage()._cdata)


def _tape(trace: Trace, returned: Sequence[Returned], count: int) -> list[frozenset[int]]:
    """The leaves that what is computed is connected with, as the results that are made of it are."""
    tape: list[set[int]] = [set() for _ in range(count)]
    for each, connected in zip(returned, trace.tape, strict=True):
        if connected.made:
            raise ModelError("it makes a tensor that requires a gradient: give it one as an argument")
        if each.computed is not None:
            tape[each.computed].update(map(trace.inputs.index, connected.leaves))
    return list(map(frozenset, tape))


def _is_leaf(node: torch.fx.Node) -> bool:
    return bool(node.op == "placeholder")


def _chain(result: Any) -> list[torch.fx.Node]:
    """What a result is a view of, and the nodes that lead from there to it; [] for what is no tensor."""
    if not isinstance(result, torch.fx.Node):
        return []
    chain = [result]
    while _is_view(chain[-1]):
        chain.append(chain[-1].args[0])
    return chain[::-1]


def _is_view(node: torch.fx.Node) -> bool:
    """Whether PyTorch gives a view of the first operand, or that itself: an operator of its own that computes nothing.
    Some do not say so: those that split without a look at what is changed in place, and dropout in inference."""
    if node.target is operator.getitem:
        return _is_view(node.args[0])
    if node.target in SHAPED:
        return True
    given = (*node.args[1:], *node.kwargs.values())
    fixed = not any(isinstance(each, torch.fx.Node) for each in pytree.tree_leaves(given))
    if not isinstance(node.target, torch._ops.OpOverload) or not node.args or not fixed:
        return False
    return bool(node.target.is_view or _memory(node) == _memory(node.args[0]) is not None)


def _views(chain: Sequence[torch.fx.Node]) -> tuple[View, ...]:
    return tuple(
        _View(SHAPED[node.target], (list(node.meta["val"].shape),), {})
        if node.target in SHAPED
        else _View(node.target, node.args[1:], dict(node.kwargs))
        for node in chain[1:]
    )


@dataclass(frozen=True, eq=False)
class _View:
    """An operator of PyTorch with all but its first operand."""

    target: Callable[..., Any]
    rest: tuple[Any, ...]
    named: dict[str, Any]

    def __call__(self, viewed: Any) -> Any:
        return self.target(viewed, *self.rest, **self.named)
