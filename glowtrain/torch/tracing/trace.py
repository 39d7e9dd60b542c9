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
from torch._subclasses.fake_tensor import is_fake
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind, OutputSpec, TensorArgument
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from glowtrain.errors import GlowtrainError, InputError, ModelError
from glowtrain.torch.aten import TABLE
from glowtrain.torch.tracing.attributes import Assigned, Attributes, Registered
from glowtrain.torch.tracing.quiet import quiet
from glowtrain.torch.tracing.source_locations import innermost_line
from glowtrain.torch.tracing.started_code import StartedCode, TraceObserver
from glowtrain.torch.tracing.substitutes import INSTEAD, REFUSED, calls_observed, traceable
from glowtrain.torch.tracing.tape import Connected, Tape, TapedMemory

GRADIENT = "glowtrain::gradient"
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

    def put_in(self, trace: Trace) -> Trace:
        """A trace with them for the tensors that are no module's."""
        places = {name: _place(tensor) for name, tensor in trace.tensors.items() if name not in trace.names}
        found = {name: self._by_place[place] for name, place in places.items() if place in self._by_place}
        return replace(trace, tensors={**trace.tensors, **found}, outside=frozenset(found))


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
        self.memory.check(versions)
        self.memory.take(pytree.tree_leaves(result))
        if self.enabled:
            return result
        given = set(map(id, leaves))  # an operand that is returned, written or not, stays the tensor that it is
        return pytree.tree_map_only(torch.Tensor, lambda y: y if id(y) in given else y.detach(), result)


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


WRITING = ("batch_norm.default", "instance_norm.default")
"""Operators that write running statistics without saying so in their schema."""
TRANSFORMS = tuple(os.path.join("_functorch", file) for file in ("apis.py", "vmap.py", "eager_transforms.py"))
"""Where PyTorch transforms functions (``vmap``, ``jacrev``), which a trace meets halfway."""
VALIDATION = os.path.join("torch", "distributions", "distribution.py")
"""Where distributions look at their arguments."""
ELEMENTS_WANTED = ("data-dependent", ".numpy() is not supported", "got FakeTensor")
"""What PyTorch's messages say where a module looks at elements."""
LEFT = 'torch.compile(module, backend="glowtrain") leaves such a part of a module to PyTorch'
FIXED = (
    "A compiled module computes the same way, in the same shapes, for all inputs: use torch.where in place of if on "
    "tensors and of masks as indices, and leave .item(), .tolist() and .numpy() out of it"
)


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

        try:
            with mode, calls_observed(observe), self.code.started:
                results = self._function[0](*inputs)
            self.code.draws.check()
            buffers = registered.assigned()
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


def _is_constant(value: Any) -> bool:
    """Whether it is a tensor without a gradient, whose changes are counted."""
    return isinstance(value, torch.Tensor) and not value.requires_grad and not value.is_inference()


def name_in_module(full: str) -> str:
    """The name of a parameter within its module, from that within the traced computation."""
    return full.removeprefix(f"{MODULE}.")


@dataclass(frozen=True)
class Trace:
    """A functional graph. ``tensors``: the parameters, buffers and constants that placeholders stand for, by the
    placeholder's name; ``names``: what parameters and buffers are called in the module. ``inputs``: the placeholders of
    inputs that are tensors, in order; ``outside``: placeholders of tensors that are no module's and were there before,
    ``others``: modules that were called besides; ``results``: the nodes (or plain values) of the outputs, flat, and
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
    trace = replace(computation.originals.put_in(_trace(program)), others=computation.others)
    _check_replaced(computation.surroundings.replaced, list(trace.tensors.values()))
    outside = {placeholder: trace.tensors[placeholder] for placeholder in trace.outside}
    numbers = {placeholder: number for number, placeholder in enumerate(trace.inputs)}
    trace = replace(trace, tape=computation.tape.read({**numbers, **trace.names, **outside}))
    if trace.mutations and not mutable:
        raise ModelError(
            "the module changes one of its inputs in place: compute a new tensor, or change a clone of the input"
        )
    return trace


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
    if any(sign in str(error) for sign in ELEMENTS_WANTED):
        if any(frame.filename.endswith(VALIDATION) for frame in frames):
            return (
                f"{failed}: validate_args=True of a distribution asks for elements, which a trace has not: leave it out"
            )
        return f"{failed}: it asks for the elements of a tensor, which has none yet in a trace. {FIXED}"
    if "exported program constant" in first:
        return f"{failed}: use .detach() in place of .data, and torch.autograd.grad in place of .backward()"
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
    return f"the module changes its parameter {name!r} in place: make a buffer of what it keeps (register_buffer)"


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
