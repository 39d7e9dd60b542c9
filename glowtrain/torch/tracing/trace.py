"""From a module to a functional graph of ATen operators, by PyTorch's own export.

Operators stay as whole as ATen has them (``linear``, ``lstm``, ``scaled_dot_product_attention``): those that
:mod:`glowtrain.torch.aten` cannot read are decomposed by PyTorch, only those. What a module writes in place (running
statistics, slices) has become results. ``torch.autograd.grad`` within the module stays a call, which our own
differentiation answers: so a gradient penalty is differentiated again, by verified rules.

Source of the method: PyTorch's documentation of torch.export (training IR, ``run_decompositions``).
"""

from __future__ import annotations

import operator
import os
import re
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.utils import _pytree as pytree

from glowtrain.errors import GlowtrainError, InputError, ModelError
from glowtrain.torch.aten import TABLE
from glowtrain.torch.tracing.computation import GRADIENT, MODULE, Computation, Originals
from glowtrain.torch.tracing.quiet import quiet
from glowtrain.torch.tracing.source_locations import innermost_line
from glowtrain.torch.tracing.substitutes import traceable
from glowtrain.torch.tracing.tape import Connected

WRITING = ("batch_norm.default", "instance_norm.default")
"""Operators that write running statistics without saying so in their schema."""
TRANSFORMS = tuple(os.path.join("_functorch", file) for file in ("apis.py", "vmap.py", "eager_transforms.py"))
"""Where PyTorch transforms functions (``vmap``, ``jacrev``), which a trace meets halfway."""
VALIDATION = os.path.join("torch", "distributions", "distribution.py")
"""Where distributions look at their arguments."""
AVERAGES = os.path.join("optim", "swa_utils.py")
"""Where PyTorch averages weights."""
CHANGED = (
    "a tensor that belongs to no module of the computation is changed in place (an average of the weights, say): do it "
    "between calls, or make it a buffer (register_buffer) of the module, or of a loss that is a module"
)
MUTATED = "is mutated in the forward method", "expected compiled_fn to be GraphModule"
"""What PyTorch says of tensors outside that are changed in place; the second of those that require gradients."""
ELEMENTS_WANTED = ("data-dependent", ".numpy() is not supported", "got FakeTensor", "FakeTensor.__format__")
"""What PyTorch's messages say where a module looks at elements."""
LEFT = 'torch.compile(module, backend="glowtrain") leaves such a part of a module to PyTorch'
FIXED = (
    "A compiled module computes the same way, in the same shapes, for all inputs: use torch.where in place of if on "
    "tensors and of masks as indices, and leave .item(), .tolist() and .numpy() out of it"
)


@dataclass(frozen=True)
class Trace:
    """A functional graph. ``tensors``: the parameters, buffers and constants that placeholders stand for, by the
    placeholder's name; ``names``: what parameters and buffers are called in the module. ``inputs``: the placeholders of
    inputs that are tensors, in order; ``outside``: placeholders of tensors that are no module's and were there before,
    ``others``: modules that were called besides; ``read``: tensors outside whose elements are numbers of Python in the
    graph; ``results``: the nodes (or plain values) of the outputs, flat, and
    ``structure`` how they make up what the function returns; ``updates``: the new values of buffers by name,
    ``mutations`` those of inputs by placeholder; ``tape``: the placeholders that autograd connects each result with."""

    graph: torch.fx.Graph
    tensors: Mapping[str, torch.Tensor]
    names: Mapping[str, str]
    inputs: Sequence[str]
    results: Sequence[Any]
    structure: pytree.TreeSpec
    updates: Mapping[str, Any] = field(default_factory=dict)
    mutations: Mapping[str, Any] = field(default_factory=dict)
    outside: frozenset[str] = frozenset()
    others: Sequence[torch.nn.Module] = ()
    read: Sequence[torch.Tensor] = ()
    tape: Sequence[Connected] = ()


def traced(computation: Computation, examples: Sequence[Any], *, mutable: bool = False) -> Trace:
    """Trace a computation for inputs like ``examples``: their shapes hold for the graph. It may change inputs in place
    if they are ``mutable``.

    PyTorch traces for one thread at a time, and Dynamo takes this lock, too. Raises :class:`ModelError` for what cannot
    be traced: control flow that depends on elements, calls out of PyTorch.
    """
    try:
        with (
            compile_lock, torch.enable_grad(), quiet() as said, traceable(forward_only=computation.forward_only),
            _autocast_uncached(),
        ):  # fmt: skip
            program = torch.export.export(computation, tuple(examples), strict=False)
            _check_attributes(program, " ".join(str(warning.message) for warning in said))
            # the casts of autocast around it come with the decomposition
            if torch.is_autocast_enabled("cpu") or not _is_functional(program) or _missing(program):
                program = program.run_decompositions(_decompositions())
    except InputError:
        raise
    except GlowtrainError as error:
        raise ModelError(f"the module cannot be traced{innermost_line(error)}: {error}") from None
    except Exception as error:  # noqa: BLE001  (a module may raise anything, and PyTorch does)
        raise ModelError(_untraceable(error)) from None
    finally:
        computation.restore()
    trace = replace(_with_originals(_trace(program), computation.originals), others=computation.others)
    _check_replaced(computation.surroundings.replaced, list(trace.tensors.values()))
    outside = {placeholder: trace.tensors[placeholder] for placeholder in trace.outside}
    numbers = {placeholder: number for number, placeholder in enumerate(trace.inputs)}
    trace = replace(trace, tape=computation.tape.read({**numbers, **trace.names, **outside}))
    if trace.mutations and not mutable:
        raise ModelError(
            "the module changes one of its inputs in place: compute a new tensor, or change a clone of the input"
        )
    return trace


def _with_originals(trace: Trace, originals: Originals) -> Trace:
    """A trace with the tensors that were there before for those that are no module's."""
    unnamed = {name: tensor for name, tensor in trace.tensors.items() if name not in trace.names}
    found = originals.of(unnamed)
    used = {node.name for node in trace.graph.nodes if node.op == "placeholder" and node.users}
    read = originals.read({id(tensor) for name, tensor in found.items() if name in used})
    return replace(trace, tensors={**trace.tensors, **found}, outside=frozenset(found), read=read)


@contextmanager
def _autocast_uncached() -> Iterator[None]:
    """Within, autocast casts a weight for each use: a cast of one trace must not be met in another."""
    before = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)
    try:
        yield
    finally:
        torch.set_autocast_cache_enabled(before)


@cache
def _decompositions() -> dict[Any, Callable[..., Any]]:
    """PyTorch's decompositions of all operators that the table lacks, also of those that others decompose to."""
    known = torch.export.default_decompositions()
    return {operator: rule for operator, rule in known.items() if name_of(operator) not in TABLE}


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


def _check_replaced(replaced: Sequence[tuple[str, torch.Tensor]], read: Sequence[torch.Tensor]) -> None:
    """Raise :class:`ModelError` for tensors beside those of modules that one call leaves to the next."""
    names = [name for name, tensor in replaced if any(tensor is each for each in read)]
    if names:
        raise ModelError(
            f"the module or the loss reads and assigns {', '.join(names)}, so that a call depends on the one before: "
            "make buffers of them with register_buffer()"
        )


def _untraceable(error: Exception) -> str:
    """What export could not do, and where in the module."""
    first = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__).strip()
    frames = traceback.extract_tb(error.__traceback__)
    if any(frame.filename.endswith(TRANSFORMS) for frame in frames) or "TensorWrapper" in first:
        return (
            f"the module cannot be traced{innermost_line(error)}: transforms of torch.func (vmap, hessian, jacrev) are "
            "not followed; gradients by torch.autograd.grad(..., create_graph=True) are, grad(f(x).sum(), x) of a batch"
        )
    failed = f"the module cannot be traced{innermost_line(error)}"
    if any(frame.filename.endswith(AVERAGES) for frame in frames) or any(sign in first for sign in MUTATED):
        return f"{failed}: {CHANGED}"
    if any(sign in str(error) for sign in ELEMENTS_WANTED):
        if any(frame.filename.endswith(VALIDATION) for frame in frames):
            return (
                f"{failed}: validate_args=True of a distribution asks for elements, which a trace has not: leave it out"
            )
        return f"{failed}: it asks for the elements of a tensor, which has none yet in a trace. {FIXED}"
    if "Cannot access data pointer" in first:
        return (
            f"{failed}: it goes between PyTorch and NumPy (torch.from_numpy, .numpy()), which a trace cannot: make "
            "buffers of arrays (register_buffer), and compute by PyTorch"
        )
    if "exported program constant" in first:
        return (
            f"{failed}: use .detach() in place of .data, torch.autograd.grad in place of .backward(), and average "
            "weights between calls"
        )
    if "leaf Variable that requires grad" in first:
        return f"{failed}: a tensor that requires a gradient is changed in place: make a new one of it"
    if first.startswith("aten."):
        name = first.split(".")[1].lstrip("_")
        return f"{failed}: {name} has no compiled form, or gives what depends on elements. {LEFT}"
    if "higher order operator" in first:
        return (
            f"{failed}: torch.cond and its like choose by elements: compute both, and take one by torch.where. {LEFT}"
        )
    return f"{failed}: {first.rstrip('.')}"


def _changed(spec: OutputSpec) -> str:
    """What is written in place that is neither a buffer nor an input."""
    name = str(spec.target).removeprefix(f"{MODULE}.")
    return (
        f"the module changes its parameter {name!r} in place: make a buffer (register_buffer) of what it keeps, an "
        "average of the weights say, and change weights between calls"
    )


def _is_functional(program: ExportedProgram) -> bool:
    """Whether nothing is written in place. Asking first saves the decomposition, 0.2 s of every trace."""
    return not any(map(_writes, _targets(program)))


def _writes(target: Any) -> bool:
    """Whether a call may write: calls of whole graphs may, and operators that say so, or that are known to do it."""
    if not isinstance(target, torch._ops.OpOverload):
        return target is not operator.getitem
    return bool(target._schema.is_mutable) or name_of(target) in WRITING


def _targets(program: ExportedProgram) -> set[Any]:
    return {node.target for node in program.graph.nodes if node.op == "call_function"}


def differentiates(trace: Trace) -> bool:
    """Whether the traced code asks for gradients (``torch.autograd.grad``)."""
    return any(str(node.target).startswith(GRADIENT.replace("::", ".")) for node in trace.graph.nodes)


def _missing(program: ExportedProgram) -> set[Any]:
    """Operators of a program that cannot be read as they are."""
    return {
        target
        for target in _targets(program)
        if isinstance(target, torch._ops.OpOverload) and name_of(target) not in TABLE
    }


def name_of(target: Any) -> str:
    """``add.Tensor``: an operator and its overload, with the library's name where that is not ATen."""
    name = str(target)
    return name.removeprefix("aten.")


def _trace(program: ExportedProgram) -> Trace:
    signature = program.graph_signature
    held: dict[str, torch.Tensor] = {**program.state_dict, **program.constants}
    tensors, names, inputs = {}, {}, []
    for spec in signature.input_specs:
        if spec.kind == InputKind.USER_INPUT:
            inputs += [spec.arg.name] if isinstance(spec.arg, TensorArgument) else []
            continue
        if spec.kind == InputKind.TOKEN:  # the order of operators that may raise, such as decompositions of matrices
            continue
        if spec.target not in held:
            raise ModelError(f"the module reads {spec.target or spec.arg.name!r}, which is no tensor")
        if isinstance(held[spec.target], torch.Generator):
            raise ModelError(
                "the module or the loss draws from a torch.Generator, which compiled code has not: leave generator= "
                "out, or draw outside and pass tensors"
            )
        tensors[spec.arg.name] = held[spec.target]
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            names[spec.arg.name] = spec.target
    results, updates, mutations = [], {}, {}
    (outputs,) = (node.args[0] for node in program.graph.nodes if node.op == "output")
    for spec, node in zip(signature.output_specs, outputs, strict=True):
        if spec.kind == OutputKind.TOKEN:
            continue
        if spec.kind == OutputKind.USER_OUTPUT:
            results.append(node)
        elif spec.kind == OutputKind.BUFFER_MUTATION:
            updates[spec.target] = node
        elif spec.kind == OutputKind.USER_INPUT_MUTATION:
            mutations[spec.target] = node
        else:
            raise ModelError(_changed(spec))
    return Trace(program.graph, tensors, names, inputs, results, program.call_spec.out_spec, updates, mutations)
