"""PyTorch modules as graphs."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from glowtrain.errors import InputError
from glowtrain.graph import Binding, Graph, Input, Template, Value, Variable
from glowtrain.torch.aten.table import type_of_fake
from glowtrain.torch.dtypes import THEIRS
from glowtrain.torch.memory import array_of
from glowtrain.torch.random_state import RandomState
from glowtrain.torch.read import read
from glowtrain.torch.trace import Computation, Trace, traced
from glowtrain.types import Array, Spec

MODULE = "module"
"""What the module is called within a traced computation."""
BATCH = "batch"
"""The dimension that the first axes of all inputs share, unless something else is said."""

Examples = Any
"""A tensor, a sequence of a module's arguments, or a mapping of them by name."""


def from_torch(
    module: torch.nn.Module, example: Examples, *, dims: Mapping[str, Sequence[str | None]] | None = None
) -> Graph | Template:
    """A module as a graph, with its parameters' present values, under its own names.

    ``example``: one input, a tuple of inputs, or inputs by name; their element types and shapes count. ``dims`` names
    the axes that stay open, by input: ``{"x": ("batch", "time", None)}``; by default the first axis of all inputs is
    ``batch``, if they agree in it. ``{}`` leaves none open, and gives a graph in place of a template. The module is
    traced as it is: in training mode (``module.train()``) with dropout and the batch's statistics, after
    ``module.eval()`` without.

    Raises :class:`ModelError` for what cannot be traced, and :class:`UnsupportedOperatorError` that names operators
    which cannot be read, with their lines.
    """
    check_module(module)
    inputs = named_inputs(module, example)
    specs = _specs(inputs, dims)
    arrays = {name: array_of(tensor.detach().contiguous()).copy() for name, tensor in held(module).items()}
    build = _Build(module, inputs, specs, arrays)
    name = type(module).__name__.lower()
    template = Template(name, {name: spec for name, spec in specs.items() if spec is not None}, build)
    return template if template.symbols else template.bind({})


def check_module(module: Any) -> None:
    """Raise :class:`InputError` for what is no module."""
    if not isinstance(module, torch.nn.Module):
        raise InputError(f"a torch.nn.Module is wanted, not {type(module).__name__}")


def held(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters and buffers of a module by all of their names: what is shared has several."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    return {**parameters, **dict(module.named_buffers(remove_duplicate=False))}


def named_inputs(module: torch.nn.Module, example: Examples) -> dict[str, Any]:
    """Inputs by the names of the module's arguments. Raises :class:`InputError` where they do not fit."""
    signature = inspect.signature(module.forward)
    given: dict[str, Any] = dict(example) if isinstance(example, Mapping) else {}
    positional = () if given else (example,) if isinstance(example, torch.Tensor) else tuple(example)
    try:
        bound = signature.bind(*positional, **given)
    except TypeError as error:
        raise InputError(f"the example does not fit {type(module).__name__}.forward{signature}: {error}") from None
    named: dict[str, Any] = {}
    for name, value in bound.arguments.items():
        several = signature.parameters[name].kind is inspect.Parameter.VAR_POSITIONAL
        named.update({f"{name}{i}": each for i, each in enumerate(value)} if several else {name: value})
    return named


def _specs(inputs: Mapping[str, Any], dims: Mapping[str, Sequence[str | None]] | None) -> dict[str, Spec | None]:
    """The types of the inputs that are tensors; None for others, which are part of the model."""
    tensors = {name: value for name, value in inputs.items() if isinstance(value, torch.Tensor)}
    if dims is None:
        shared = {tensor.shape[0] if tensor.dim() else None for tensor in tensors.values()}
        dims = dict.fromkeys(tensors, (BATCH,)) if len(shared) == 1 and None not in shared else {}
    unknown = [name for name in dims if name not in tensors]
    if unknown:
        raise InputError(
            f"dims: {', '.join(unknown)} is not an input that is a tensor; there are: {', '.join(tensors)}"
        )
    return {name: _spec(name, tensors[name], dims.get(name, ())) if name in tensors else None for name in inputs}


def _spec(name: str, tensor: torch.Tensor, symbols: Sequence[str | None]) -> Spec:
    type_ = type_of_fake(tensor)
    if len(symbols) > type_.rank:
        raise InputError(f"dims names {len(symbols)} axes of {name}, which has {type_.rank}")
    extents = [*symbols, *[None] * (type_.rank - len(symbols))]
    return Spec(type_.dtype, tuple(e if s is None else s for s, e in zip(extents, type_.shape, strict=True)))


@dataclass(frozen=True, eq=False)
class _Build:
    """Builds the graphs of a module: each binding is traced anew, so that Python code that looks at shapes holds."""

    module: torch.nn.Module
    inputs: Mapping[str, Any]
    specs: Mapping[str, Spec | None]
    arrays: Mapping[str, Array]

    def __call__(self, binding: Binding) -> Graph:
        types = {name: spec.bind(dict(binding.dims)) for name, spec in self.specs.items() if spec is not None}
        examples = [
            torch.zeros(types[name].shape, dtype=THEIRS[types[name].dtype]) if name in types else value
            for name, value in self.inputs.items()
        ]
        trace = traced(Computation(self.module, **{MODULE: self.module}), examples)
        given = {name: Input(type_, name) for name, type_ in types.items()}
        variables = variables_of(trace, held(self.module), self.arrays)
        leaves = {**placed(trace, list(given.values())), **variables}
        random = RandomState(torch.initial_seed())
        found = read(trace, leaves, random, MODULE)
        updates = {variables[_placeholder(trace, name)]: value for name, value in found.updates.items()}
        name = type(self.module).__name__.lower()
        outputs = named_results(trace.structure, found.results)
        return Graph(tuple(given.values()), outputs, {**updates, **random.updates}, name)


def variables_of(trace: Trace, tensors: Mapping[str, torch.Tensor], arrays: Mapping[str, Array]) -> dict[str, Variable]:
    """A variable for each parameter and buffer of a trace, by its placeholder's name.

    A tensor that has several names is one variable, under the first of them: its weights are tied. ``tensors`` are the
    module's by name, ``arrays`` their values.
    """
    firsts: dict[int, str] = {}
    for name, tensor in tensors.items():
        firsts.setdefault(id(tensor), name)
    made: dict[str, Variable] = {}
    found = {}
    for placeholder, full in trace.names.items():
        name = own_name(full)
        first = firsts[id(tensors[name])]
        if first not in made:
            trained = isinstance(tensors[name], torch.nn.Parameter) and tensors[name].requires_grad
            made[first] = Variable(first, arrays[first], trainable=trained)
        found[placeholder] = made[first]
    return found


def own_name(full: str) -> str:
    """The name of a parameter within its module, from that within the traced computation."""
    return full.removeprefix(f"{MODULE}.")


def _placeholder(trace: Trace, full: str) -> str:
    return next(placeholder for placeholder, name in trace.names.items() if name == full)


def placed(trace: Trace, inputs: Sequence[Value]) -> dict[str, Value]:
    """Inputs by the names of their placeholders."""
    return dict(zip(trace.inputs, inputs, strict=True))


def named_results(structure: pytree.TreeSpec, results: Sequence[Any]) -> dict[str, Value]:
    """The tensors among results by name: ``output``, ``output0`` ... of a tuple, the keys of a dict."""
    tree = pytree.tree_unflatten(list(results), structure)
    named = {}
    for path, value in pytree.tree_flatten_with_path(tree)[0]:
        if isinstance(value, Value):
            named[_joined(path)] = value
    return named


def _joined(path: Sequence[Any]) -> str:
    """``output``; ``output0``; ``logits``; ``logits.1``"""
    words = [str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path]
    if not words or words[0].isdigit():
        return "output" + ".".join(words)
    return ".".join(words)
