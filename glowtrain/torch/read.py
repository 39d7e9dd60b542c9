"""Translate a functional graph of ATen operators to our graph code."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from glowtrain.errors import GlowtrainError, ModelError, UnsupportedOperatorError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Input, Node, Value, Variable, constant
from glowtrain.graph.modules import path
from glowtrain.graph.traversal import topological
from glowtrain.graph.value import layers
from glowtrain.ops.tensor.move import zeros
from glowtrain.torch.aten import TABLE, AtenCall
from glowtrain.torch.dtypes import OURS
from glowtrain.torch.memory import array_of
from glowtrain.torch.random_state import Draws
from glowtrain.torch.tracing.computation import GRADIENT
from glowtrain.torch.tracing.source_locations import module_path, source_line
from glowtrain.torch.tracing.trace import FIXED, Trace, name_of

SAID = {"_local_scalar_dense.default": ".item()"}
"""What a module calls, by the operator that it becomes, where one does not tell the other."""
IN_ORDER = "with_effects"
"""A call around what may raise, such as a look at whether a matrix could be inverted: nothing is computed by it."""
LISTED = 8
"""Unsupported operators that a message names."""


@dataclass(frozen=True)
class Read:
    """A trace as graph code: the results, flat, and the new values of buffers by name; which traced node each node was
    made for."""

    results: list[Any]
    updates: dict[str, Value]
    made_for: dict[Node, torch.fx.Node]


def read(trace: Trace, leaves: Mapping[str, Value], random: Draws, prefix: str = "") -> Read:
    """Graph code of a trace, from the values of its inputs, parameters and buffers by their placeholders' names.

    Nodes are named after the submodules and nodes of the trace, ``/layers.0/linear``, without ``prefix``. Raises
    :class:`UnsupportedOperatorError` that names all operators which cannot be read, with their lines.
    """
    check_shapes(trace, prefix)
    _check(trace, prefix)
    values: dict[torch.fx.Node, Any] = {}
    made_for: dict[Node, torch.fx.Node] = {}
    known: set[Value] = set()
    with layers() as layer:
        for node in trace.graph.nodes:
            if node.op == "placeholder":
                values[node] = leaves[node.name] if node.name in leaves else _constant(trace, node)
            elif name_of(node.target) == IN_ORDER:
                values[node] = [None for _ in node.meta["val"]]
            elif node.op == "call_function":
                module = _layer(node, prefix)
                layer(module)
                values[node] = _called(node, values, random, prefix)
                for made in _new(values[node], known):
                    made.name = path(module, node.name) if module else node.name
                    made_for[made] = node
    return Read(
        [_looked_up(result, values) if isinstance(result, torch.fx.Node) else result for result in trace.results],
        {name: _looked_up(node, values) for name, node in trace.updates.items()},
        made_for,
    )


def _new(result: Any, known: set[Value]) -> list[Node]:
    """The nodes that a result needs beside those whose results are known, which all are from then on."""
    results = result if isinstance(result, (tuple, list)) else [result]
    nodes = topological([each for each in results if isinstance(each, Value)], known)
    known.update(output for node in nodes for output in node.outputs)
    return nodes


def _looked_up(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any]) -> Any:
    """The value of a node. Raises :class:`ModelError` for a tensor that the table does not compute."""
    if values[node] is None and isinstance(node.meta.get("val"), torch.Tensor):
        raise ModelError(f"{_where(node.args[0], '')}: its result {node.args[1]} is not supported, others are")
    return values[node]


def _layer(node: torch.fx.Node, prefix: str) -> str:
    return module_path(node).removeprefix(prefix).removeprefix(".")


def _constant(trace: Trace, node: torch.fx.Node) -> Value | None:
    """A tensor that the module holds and does not name; None for an input that is none."""
    tensor = trace.tensors.get(node.name)
    return None if tensor is None else constant(array_of(tensor).copy())


def _called(node: torch.fx.Node, values: Mapping[torch.fx.Node, Any], random: Draws, prefix: str) -> Any:
    args, kwargs = torch.fx.map_arg((node.args, dict(node.kwargs)), lambda each: _looked_up(each, values))
    if node.target is operator.getitem:
        return args[0][args[1]]
    call = AtenCall(node, random)
    try:
        result = _reading(node)(call, *args, **kwargs)
    except GlowtrainError as error:
        raise ModelError(f"{_where(node, prefix)}: {_mixed(args) or error}") from error
    _check_type(call, result, prefix)
    return result


def _mixed(args: Sequence[Any]) -> str:
    """What to do about operands of several types of floats, which PyTorch refuses, too; '' for others."""
    floats = [value for value in args if isinstance(value, Value) and value.dtype.is_float]
    if len({value.dtype for value in floats}) < 2:
        return ""
    named = [f"{value.type} ({value.name})" if isinstance(value, Input | Variable) else value.type for value in floats]
    return f"its operands are {', '.join(map(str, named))}: convert one, as x.float() makes f32 and module.double() f64"


def _reading(node: torch.fx.Node) -> Callable[..., Any]:
    return _differentiated if _is_gradient(node.target) else TABLE[name_of(node.target)]


def _is_gradient(target: Any) -> bool:
    return isinstance(target, torch._ops.OpOverload) and target._schema.name == GRADIENT


def _differentiated(
    call: AtenCall, outputs: Sequence[Value], inputs: Sequence[Value], cotangents: Sequence[Value]
) -> list[Value]:
    """torch.autograd.grad, by our reverse walk."""
    found = pullback(outputs, cotangents, inputs)
    return [zeros(value.type) if gradient is None else gradient for value, gradient in zip(inputs, found, strict=True)]


def check_shapes(trace: Trace, prefix: str = "") -> None:
    """Raise :class:`ModelError` where shapes depend on elements."""
    for node in trace.graph.nodes:
        if node.op == "call_function" and any(map(_depends_on_elements, _facts(node))):
            raise ModelError(f"{_where(node, prefix)}: what it gives, or its shape, depends on elements. {FIXED}")


def _check(trace: Trace, prefix: str) -> None:
    """Raise :class:`UnsupportedOperatorError` if operators cannot be read."""
    found: dict[str, torch.fx.Node] = {}
    for node in trace.graph.nodes:
        known = node.target is operator.getitem or _is_gradient(node.target) or name_of(node.target) in TABLE
        if node.op == "call_function" and not known and name_of(node.target) != IN_ORDER:
            found.setdefault(name_of(node.target), node)
    if found:
        named = [f"{_where(node, prefix)}{_not_computed(node)}" for node in list(found.values())[:LISTED]]
        more = f"\n  - and {len(found) - LISTED} more" if len(found) > LISTED else ""
        raise UnsupportedOperatorError(
            "the module uses operators of PyTorch that are not supported:"
            + "".join(f"\n  - {at}" for at in named)
            + more,
        )


def _facts(node: torch.fx.Node) -> list[Any]:
    """What is known of a node's results."""
    leaves: list[Any] = pytree.tree_leaves(node.meta.get("val"))
    return leaves


def _depends_on_elements(fact: Any) -> bool:
    """Whether a number, or an extent of a tensor, is a symbol: those of inputs are known."""
    numbers = fact.shape if isinstance(fact, torch.Tensor) else (fact,)
    return any(isinstance(number, (torch.SymInt, torch.SymFloat, torch.SymBool)) for number in numbers)


def _not_computed(node: torch.fx.Node) -> str:
    """Of results in element types that nothing computes with, complex numbers say."""
    found = {fact.dtype for fact in _facts(node) if isinstance(fact, torch.Tensor) and fact.dtype not in OURS}
    return f": there is no {', '.join(map(str, found))}" if found else ""


def _where(node: torch.fx.Node, prefix: str) -> str:
    """``fft_fft.default in layers.0 (model.py:12: y = torch.fft.fft(x))``"""
    module, line, name = _layer(node, prefix), source_line(node), name_of(node.target)
    return SAID.get(name, name) + (f" in {module}" if module else "") + (f" ({line})" if line else "")


def _check_type(call: AtenCall, result: Any, prefix: str) -> None:
    """Raise :class:`ModelError` where graph code is of another type than PyTorch's result: a fault in the table."""
    results = result if isinstance(result, (tuple, list)) else (result,)
    for ours, theirs in zip(results, call.types, strict=False):
        if isinstance(ours, Value) and theirs is not None and ours.type != theirs:
            raise ModelError(
                f"{_where(call.node, prefix)} was read as {ours.type}, PyTorch gives {theirs}: please report it"
            )
