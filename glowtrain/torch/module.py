"""PyTorch modules as graphs."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch._dynamo import OptimizedModule
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from glowtrain.errors import InputError, ModelError
from glowtrain.graph import Binding, Graph, Input, Template, Value, Variable
from glowtrain.torch.aten.table import type_of_fake
from glowtrain.torch.dtypes import OURS, THEIRS
from glowtrain.torch.memory import array_of, check_device
from glowtrain.torch.random_state import RandomState
from glowtrain.torch.read import read
from glowtrain.torch.tracing.computation import MODULE, Computation, name_in_module
from glowtrain.torch.tracing.trace import Trace, traced
from glowtrain.torch.watching.python_reads import TracedCode
from glowtrain.types import Array, Spec, type_of

BATCH = "batch"
"""The dimension that the first axes of all inputs share, unless something else is said."""

Examples = Any
"""A tensor, a tuple of a module's arguments, or a mapping of them by name. Arguments may hold tensors within dicts,
tuples and lists."""


def from_torch(
    module: torch.nn.Module, example: Examples, *, dims: Mapping[str, Sequence[str | None]] | None = None
) -> Graph | Template:
    """A module as a graph, with its parameters' present values, under its own names.

    ``example``: one input, a tuple of inputs, or inputs by name; their element types and shapes count. Tensors within
    dicts and tuples are inputs of their own, ``batch.image``; what is no tensor is part of the model. ``dims`` names
    the axes that stay open, by input: ``{"x": ("batch", "time", None)}``; by default the first axis of all inputs is
    ``batch``, if they agree in it. ``{}`` leaves none open, and gives a graph in place of a template. The module is
    traced when shapes are bound, in the mode that it has then: in training mode (``module.train()``) with dropout and
    the batch's statistics, after ``module.eval()`` without.

    Raises :class:`ModelError` for what cannot be traced, and :class:`UnsupportedOperatorError` that names operators
    which cannot be read, with their lines.
    """
    check_module(module)
    module = original_of(module)
    arguments = arguments_of(module, example)
    specs = _specs(arguments.tensors, dims)
    arrays = {name: _copied(name, tensor) for name, tensor in state_tensors(module).items()}
    template = Template(type(module).__name__.lower(), specs, ModuleBuild(module, arguments, specs, arrays))
    return template if template.symbols else template.bind({})


def check_module(module: Any) -> None:
    """Raise :class:`InputError` for what is no module."""
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"a torch.nn.Module is wanted, not {type(module).__name__}")
    if isinstance(module, torch.jit.ScriptModule):
        raise InputError("a torch.jit.ScriptModule cannot be traced: give the module that it was made of")
    lazy = [name for name, tensor in state_tensors(module).items() if is_lazy(tensor)]
    if lazy:
        raise InputError(f"{lazy[0]} has no shape yet: call the module once, so that its lazy layers get theirs")


def original_of(module: torch.nn.Module) -> torch.nn.Module:
    """The module that ``torch.compile`` wrapped, or itself."""
    return module._orig_mod if isinstance(module, OptimizedModule) else module


def state_tensors(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module by all of their names: what is shared has several."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}


def _copied(name: str, tensor: torch.Tensor) -> Array:
    """The elements of a parameter or buffer. Raises :class:`InputError` that names it, if they cannot be had."""
    check_device(tensor, name)
    if tensor.dtype not in OURS:
        raise InputError(f"{name} has elements of {tensor.dtype}, which nothing computes with here")
    return array_of(tensor.detach().contiguous()).copy()


@dataclass(frozen=True)
class ModuleArguments:
    """What a module is called with: ``leaves``, by name, make up the arguments of its signature as ``structure`` says.

    Leaves within others have both names, ``batch.image``, ``states.0``; those of ``*inputs`` are ``inputs0``, ...
    """

    signature: inspect.Signature
    structure: pytree.TreeSpec
    leaves: Mapping[str, Any]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return {name: leaf for name, leaf in self.leaves.items() if isinstance(leaf, torch.Tensor)}

    def bound(self, leaves: Sequence[Any]) -> inspect.BoundArguments:
        """The arguments that other leaves make up."""
        return inspect.BoundArguments(self.signature, OrderedDict(pytree.tree_unflatten(leaves, self.structure)))

    def call(self, module: torch.nn.Module, leaves: Sequence[Any]) -> Any:
        """The module's result for other leaves."""
        bound = self.bound(leaves)
        return module(*bound.args, **bound.kwargs)


def arguments_of(module: torch.nn.Module, example: Examples) -> ModuleArguments:
    """The arguments that an example is. Raises :class:`InputError` where they do not fit the module, or are none."""
    signature = inspect.signature(module.forward)
    if not isinstance(example, (torch.Tensor, Mapping, tuple, list)):
        raise InputError(
            "an example is a tensor, a tuple of the module's arguments, or a mapping of them by name, "
            f"not {type(example).__name__}"
        )
    named = dict(example) if isinstance(example, Mapping) else {}
    positional = (example,) if isinstance(example, torch.Tensor) else () if named else tuple(example)
    try:
        bound = signature.bind(*positional, **named)
    except TypeError as error:
        raise InputError(f"the example does not fit {type(module).__name__}.forward{signature}: {error}") from None
    pairs, structure = pytree.tree_flatten_with_path(dict(bound.arguments))
    names = [_leaf_name(signature, path) for path, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise InputError(f"two inputs are called {name!r}: give one of them another key")
    leaves = {name: leaf for name, (_, leaf) in zip(names, pairs, strict=True)}
    arguments = ModuleArguments(signature, structure, leaves)
    _check_leaves(arguments)
    return arguments


def _leaf_name(signature: inspect.Signature, path: Sequence[Any]) -> str:
    first, *rest = (str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path)
    kind = signature.parameters[first].kind
    if kind is inspect.Parameter.VAR_POSITIONAL:
        return ".".join((first + rest[0], *rest[1:]))
    return ".".join(rest if kind is inspect.Parameter.VAR_KEYWORD else (first, *rest))


def _check_leaves(arguments: ModuleArguments) -> None:
    """Raise :class:`InputError` for examples without tensors, with arrays, or with tensors that are elsewhere."""
    for name, leaf in arguments.leaves.items():
        if isinstance(leaf, np.ndarray):
            raise InputError(f"{name} is an array of NumPy: give torch.from_numpy of it")
        if isinstance(leaf, torch.Tensor):
            check_device(leaf, name)
    if not arguments.tensors:
        raise InputError("the example has no tensor: a module is traced for inputs of certain types and shapes")


def _specs(tensors: Mapping[str, torch.Tensor], dims: Mapping[str, Sequence[str | None]] | None) -> dict[str, Spec]:
    """The types of the inputs that are tensors; others are part of the model."""
    if dims is None:
        shared = {tensor.shape[0] if tensor.dim() else None for tensor in tensors.values()}
        dims = dict.fromkeys(tensors, (BATCH,)) if len(shared) == 1 and None not in shared else {}
    if not isinstance(dims, Mapping):
        raise InputError(f"dims maps names of inputs to those of their axes, and is no {type(dims).__name__}")
    unknown = [name for name in dims if name not in tensors]
    if unknown:
        raise InputError(
            f"dims: {', '.join(unknown)} is not an input that is a tensor; there are: {', '.join(tensors)}"
        )
    return {name: _spec(name, tensor, dims.get(name, ())) for name, tensor in tensors.items()}


def _spec(name: str, tensor: torch.Tensor, symbols: Sequence[str | None]) -> Spec:
    type_ = type_of_fake(tensor)
    if len(symbols) > type_.rank:
        raise InputError(f"dims names {len(symbols)} axes of {name}, which has {type_.rank}")
    extents = [*symbols, *[None] * (type_.rank - len(symbols))]
    return Spec(type_.dtype, tuple(e if s is None else s for s, e in zip(extents, type_.shape, strict=True)))


@dataclass(frozen=True, eq=False)
class ModuleBuild:
    """Builds the graphs of a module: each binding is traced anew, so that Python code that looks at shapes holds."""

    module: torch.nn.Module
    arguments: ModuleArguments
    specs: Mapping[str, Spec]
    arrays: Mapping[str, Array]

    def __call__(self, binding: Binding) -> Graph:
        self._check_unchanged()
        types = {name: spec.bind(dict(binding.dims)) for name, spec in self.specs.items()}
        examples = [
            torch.zeros(types[name].shape, dtype=THEIRS[types[name].dtype]) if name in types else value
            for name, value in self.arguments.leaves.items()
        ]
        code = TracedCode((self.module,))
        trace = traced(Computation(self._called, code=code.observed, **{MODULE: self.module}), examples)
        given = {name: Input(type_, name) for name, type_ in types.items()}
        variables = variables_of(trace, state_tensors(self.module), self.arrays)
        leaves = {**by_placeholder(trace, list(given.values())), **variables}
        random = RandomState(torch.initial_seed())
        found = read(trace, leaves, random, MODULE)
        updates = {variables[_placeholder(trace, name)]: value for name, value in found.updates.items()}
        name = type(self.module).__name__.lower()
        outputs = named_results(trace.structure, found.results)
        if not outputs:
            raise ModelError(f"{type(self.module).__name__}.forward returns no tensor")
        return Graph(tuple(given.values()), outputs, {**updates, **random.updates}, name)

    def _check_unchanged(self) -> None:
        """Raise :class:`ModelError` where the module has other parameters or buffers than it had."""
        now = {
            name: (OURS.get(tensor.dtype), tuple(tensor.shape)) for name, tensor in state_tensors(self.module).items()
        }
        changed = {*now.items()} ^ {(name, (type_of(array).dtype, array.shape)) for name, array in self.arrays.items()}
        if changed:
            names = ", ".join(dict.fromkeys(sorted(name for name, _ in changed)))
            raise ModelError(
                f"{type(self.module).__name__} has other parameters, buffers, shapes or element types than when it was "
                f"given to from_torch ({names}): make a graph of it again"
            )

    def _called(self, *leaves: Any) -> Any:
        return self.arguments.call(self.module, leaves)


def variables_of(trace: Trace, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, Array]) -> dict[str, Variable]:
    """A variable for each parameter and buffer of a trace, by its placeholder's name.

    A tensor that has several names is one variable, under the first of them: its weights are tied. So is one that is
    read by another reference than the module's. ``tensors`` are the module's by name, ``arrays`` their values.
    """
    firsts: dict[int, str] = {}
    for name, tensor in tensors.items():
        firsts.setdefault(id(tensor), name)
    made: dict[str, Variable] = {}
    found = {}
    read = {placeholder: tensors[name_in_module(full)] for placeholder, full in trace.names.items()}
    read.update((name, trace.tensors[name]) for name in trace.outside if id(trace.tensors[name]) in firsts)
    for placeholder, tensor in read.items():
        first = firsts[id(tensor)]
        if first not in made:
            trained = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad
            made[first] = Variable(first, arrays[first], trainable=trained)
        found[placeholder] = made[first]
    return found


def _placeholder(trace: Trace, full: str) -> str:
    return next(placeholder for placeholder, name in trace.names.items() if name == full)


def by_placeholder(trace: Trace, inputs: Sequence[Value]) -> dict[str, Value]:
    """Inputs by the names of their placeholders."""
    return dict(zip(trace.inputs, inputs, strict=True))


def named_results(structure: pytree.TreeSpec, results: Sequence[Any]) -> dict[str, Value]:
    """The tensors among results by name: ``output``, ``output0`` ... of a tuple, the keys of a dict."""
    tree = pytree.tree_unflatten(list(results), structure)
    named = {}
    for path, value in pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(value, Value):
            name = _joined(path)
            if name in named:
                raise ModelError(f"two results are called {name!r}: give one of them another key")
            named[name] = value
    return named


def _joined(path: Sequence[Any]) -> str:
    """``output``; ``output0``; ``logits``; ``logits.1``"""
    words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    if not words or words[0].isdigit():
        return "output" + ".".join(words)
    return ".".join(words)
