"""What Dynamo captured, run node by node for a trace.

Dynamo's graphs hold more than functions of tensors: calls that change how PyTorch computes (autocast, levels of
functorch, hooks) and calls of graphs with a gradient of their own. A trace would take these for what they look like,
and an error between two of them would leave PyTorch changed: a graph is run only if every call in it is listed here.
"""

from __future__ import annotations

import builtins
import math
import operator
from functools import cache
from typing import Any

import torch
import torch.masked
import torch.signal
from torch._dynamo import utils
from torch.fx.traceback import preserve_node_meta
from torch.overrides import get_overridable_functions

from glowtrain.errors import ModelError
from glowtrain.torch.tracing.source_locations import source_location

BODIES = {"wrap": 1, "tag_activation_checkpoint": 1, "invoke_subgraph": 2}
"""Higher-order operators that compute what the graph does which is their first operand, by the operand that is its
first argument: ``checkpoint`` says what is kept for a backward, which we decide ourselves."""
MODES = frozenset({torch._C._set_grad_enabled, torch._C._log_api_usage_once})
"""Calls that compute nothing: a trace follows what they change, if anything."""
METHODS = frozenset(
    {"stride", "unflatten"} | {f"new_{kind}" for kind in ("empty", "empty_strided", "full", "ones", "tensor", "zeros")}
)
"""Methods of tensors that subclasses cannot replace, and that are traced as others are."""
OF_TAPES = frozenset(
    {"backward", "detach_", "register_hook", "register_post_accumulate_grad_hook", "requires_grad_", "retain_grad"}
)
"""Methods that change the tape of autograd, where a trace has none."""
LIBRARIES = (
    builtins, math, operator, torch._C._nn, torch._C._fft, torch._C._linalg, torch._C._special, torch.functional,
    torch.nn.functional, torch.masked._ops, torch.signal.windows,
)  # fmt: skip

CALLS = (
    torch._ops.OpOverload, torch._ops.OpOverloadPacket, utils.numpy_method_wrapper, utils.numpy_operator_wrapper,
    utils.numpy_to_tensor_wrapper,
)  # fmt: skip
"""Objects that call operators, and what stands for NumPy's functions in a graph."""


def check_calls(module: torch.fx.GraphModule) -> None:
    """Raise :class:`ModelError` that names a call which cannot be traced, and its line, if there is one."""
    for part in module.modules():
        for node in part.graph.nodes if isinstance(part, torch.fx.GraphModule) else ():
            if not _is_traceable(node):
                said = " ".join(filter(None, (_name(node), source_location(node, ""))))
                raise ModelError(f"{said} changes how PyTorch computes or differentiates, which is not followed")


def replay(module: torch.fx.GraphModule, *arguments: Any) -> Any:
    """The module's results. Each traced operator knows the line that it comes from."""
    with preserve_node_meta():
        return _Replay(module).run(*arguments)


class _Replay(torch.fx.Interpreter):
    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        if isinstance(target, torch._ops.HigherOrderOperator):
            return _Replay(args[0]).run(*args[BODIES[target.name()] :])
        return super().call_function(target, args, kwargs)


def _name(node: torch.fx.Node) -> str:
    return str(getattr(node.target, "__name__", node.target))


def _is_traceable(node: torch.fx.Node) -> bool:
    target: Any = node.target
    if node.op == "call_method":
        listed = target in METHODS or getattr(torch.Tensor, target, None) in _functions()
        return bool(listed and target not in OF_TAPES)
    if node.op != "call_function":
        return bool(node.op != "call_module")
    if isinstance(target, torch._ops.HigherOrderOperator):
        return bool(target.name() in BODIES and not node.kwargs.get("use_reentrant"))
    return isinstance(target, CALLS) or target in _functions()


@cache
def _functions() -> frozenset[Any]:
    """Python's functions, ATen's, and those on top that PyTorch lets subclasses of tensors replace, as they see tensors
    alone."""
    aten = torch._C._VariableFunctions
    found = [getattr(aten, name) for name in dir(aten) if not name.startswith("__") and not _is_forward_mode(name)]
    found += [each for library in LIBRARIES for each in vars(library).values() if callable(each)]
    found += [each for functions in get_overridable_functions().values() for each in functions]
    return frozenset([*found, *MODES, utils.numpy_attr_wrapper])


def _is_forward_mode(name: str) -> bool:
    return "dual" in name or "_fw_" in name
