"""From a module to a functional graph of ATen operators, by PyTorch's own export.

Operators stay as whole as ATen has them (``linear``, ``lstm``, ``scaled_dot_product_attention``): those that
:mod:`glowtrain.torch.aten` cannot read are decomposed by PyTorch, only those. What a module writes in place (running
statistics, slices) has become results. ``torch.autograd.grad`` within the module stays a call, which our own
differentiation answers: so a gradient penalty is differentiated again, by verified rules.

Source of the method: PyTorch's documentation of torch.export (training IR, ``run_decompositions``).
"""

from __future__ import annotations

import operator
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch._higher_order_ops.wrap import wrap_with_set_grad_enabled
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, TensorArgument
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from glowtrain.errors import GlowtrainError, ModelError
from glowtrain.torch.aten import TABLE
from glowtrain.torch.places import innermost_line

GRADIENT = "glowtrain::gradient"


@torch.library.custom_op(GRADIENT, mutates_args=())
def gradient(
    outputs: list[torch.Tensor], inputs: list[torch.Tensor], cotangents: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Stands for a call of torch.autograd.grad in a traced graph; it is never run."""
    raise NotImplementedError("a traced gradient is read by glowtrain, and runs nowhere else")


@gradient.register_fake
def _(outputs: Any, inputs: Any, cotangents: Any) -> list[torch.Tensor]:
    return [torch.empty_like(each) for each in inputs]


class _Gradients(TorchFunctionMode):
    """Calls of ``torch.autograd.grad`` become calls of our operator."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.autograd.grad:
            return _asked(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def _asked(outputs: Any, inputs: Any, grad_outputs: Any = None, *_: Any, **__: Any) -> tuple[torch.Tensor, ...]:
    """The gradients by our operator; how PyTorch would keep its graph for others (``create_graph``) plays no part."""
    results, at = _listed(outputs), _listed(inputs)
    given = [None] * len(results) if grad_outputs is None else _listed(grad_outputs)
    cotangents = [torch.ones_like(y) if g is None else g for y, g in zip(results, given, strict=True)]
    return tuple(gradient(results, at, cotangents))


def _listed(tensors: Any) -> list[Any]:
    return [tensors] if isinstance(tensors, torch.Tensor) or tensors is None else list(tensors)


class Computation(torch.nn.Module):
    """What is traced: a function of a module, and of others that have parameters too (a loss)."""

    def __init__(self, function: Callable[..., Any], **modules: torch.nn.Module) -> None:
        super().__init__()
        self._function = (function,)  # in a tuple, so that a function which is a module is not registered twice
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *inputs: Any) -> Any:
        before = list(self._buffers_in_place())
        with _Gradients():
            results = self._function[0](*inputs)
        for owner, name, buffer in before:
            self._write_back(owner, name, buffer)
        return results

    def _buffers_in_place(self) -> Iterator[tuple[dict[str, Any], str, torch.Tensor]]:
        for part in self.modules():
            yield from ((part._buffers, name, buffer) for name, buffer in part._buffers.items() if buffer is not None)

    def _write_back(self, owner: dict[str, Any], name: str, buffer: torch.Tensor) -> None:
        """What a module has assigned to a buffer becomes a write to it, which export sees."""
        assigned = owner[name]
        if assigned is not buffer:
            owner[name] = buffer
            with torch.no_grad():
                buffer.copy_(assigned)


@dataclass(frozen=True)
class Trace:
    """A functional graph. ``tensors``: the parameters, buffers and constants that placeholders stand for, by the
    placeholder's name; ``names``: what parameters and buffers are called in the module. ``inputs``: the placeholders of
    inputs that are tensors, in order; ``results``: the nodes (or plain values) of the outputs, flat, and ``structure``
    how they make up what the function returns; ``updates``: the new values of buffers by name, ``mutations`` those of
    inputs by placeholder."""

    graph: torch.fx.Graph
    tensors: Mapping[str, torch.Tensor]
    names: Mapping[str, str]
    inputs: Sequence[str]
    results: Sequence[Any]
    structure: pytree.TreeSpec
    updates: Mapping[str, Any] = field(default_factory=dict)
    mutations: Mapping[str, Any] = field(default_factory=dict)


def traced(computation: Computation, examples: Sequence[Any], *, mutable: bool = False) -> Trace:
    """Trace a computation for inputs like ``examples``: their shapes hold for the graph. It may change inputs in place
    if they are ``mutable``.

    Raises :class:`ModelError` for what cannot be traced: control flow that depends on elements, calls out of PyTorch.
    """
    program = _exported(computation, tuple(examples))
    _cut_where_no_grad(program.graph)
    missing = _missing(program)
    table = torch.export.default_decompositions()
    wanted = {each: table[each] for each in missing if each in table}
    with _Quiet():
        program = program.run_decompositions(wanted)
    trace = _trace(program)
    if trace.mutations and not mutable:
        raise ModelError(f"the module changes {next(iter(trace.mutations))!r} in place, which is one of its inputs")
    return trace


def _exported(computation: Computation, examples: tuple[Any, ...]) -> ExportedProgram:
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            program = torch.export.export(computation, examples, strict=False)
        _check_attributes(program, " ".join(str(warning.message) for warning in said))
        return program
    except GlowtrainError:
        raise
    except Exception as error:
        raise ModelError(_untraceable(error)) from error


def _check_attributes(program: ExportedProgram, said: str) -> None:
    """Raise :class:`ModelError` for tensors that a module keeps from call to call without saying so."""
    assigned = {name.rstrip(".,") for name in re.findall(r"self\.(\S+)", said)}
    specs = program.graph_signature.input_specs
    read = {str(spec.target) for spec in specs if spec.kind == InputKind.CONSTANT_TENSOR}
    if kept := sorted(assigned & read):
        raise ModelError(
            f"the module reads and assigns {', '.join(kept)}, which are no buffers, so that a call depends on the one "
            "before: make them buffers with register_buffer()"
        )


def _untraceable(error: Exception) -> str:
    """What export could not do, and where in the module."""
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return (
        f"the module cannot be traced{innermost_line(error)}: {first.strip()}. A traced module computes the same way "
        "for all inputs: use torch.where in place of if on elements of tensors, and leave .item(), .tolist() and "
        ".numpy() out of it"
    )


def _cut_where_no_grad(graph: torch.fx.Graph) -> None:
    """Detach what is computed under ``torch.no_grad``: decompositions forget where that was."""
    regions = [node for node in graph.nodes if node.target is wrap_with_set_grad_enabled and node.args[0] is False]
    for region in regions:
        for result in [user for user in region.users if user.target is operator.getitem]:
            with graph.inserting_after(result):
                cut = graph.call_function(torch.ops.aten.detach.default, (result,))
            cut.meta.update(result.meta)
            result.replace_all_uses_with(cut, lambda user, cut=cut: user is not cut)


def _missing(program: ExportedProgram) -> set[Any]:
    """Operators of a program that cannot be read as they are."""
    parts = [part for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    targets = {node.target for part in parts for node in part.graph.nodes if node.op == "call_function"}
    return {target for target in targets if isinstance(target, torch._ops.OpOverload) and name_of(target) not in TABLE}


def name_of(target: Any) -> str:
    """``add.Tensor``: an operator and its overload, with the library's name where that is not ATen."""
    name = str(target)
    return name.removeprefix("aten.")


class _Quiet(warnings.catch_warnings):
    """Without PyTorch's warnings on what it does inside."""

    def __enter__(self) -> Any:
        entered = super().__enter__()
        warnings.simplefilter("ignore")
        return entered


def _trace(program: ExportedProgram) -> Trace:
    signature = program.graph_signature
    held: dict[str, torch.Tensor] = {**program.state_dict, **program.constants}
    tensors, names, inputs = {}, {}, []
    for spec in signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs += [spec.arg.name] if isinstance(spec.arg, TensorArgument) else []
            continue
        tensors[spec.arg.name] = held[spec.target]
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            names[spec.arg.name] = spec.target
    results, updates, mutations = [], {}, {}
    (outputs,) = (node.args[0] for node in program.graph.nodes if node.op == "output")
    for spec, node in zip(signature.output_specs, outputs, strict=True):
        if spec.kind == OutputKind.USER_OUTPUT:
            results.append(node)
        elif spec.kind == OutputKind.BUFFER_MUTATION:
            updates[spec.target] = node
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            mutations[spec.target] = node
        else:
            raise ModelError(f"the module changes {spec.target!r} in place, which is one of its parameters")
    return Trace(program.graph, tensors, names, inputs, results, program.call_spec.out_spec, updates, mutations)
