"""A model that leaves something open: dimensions, values that shapes depend on, the structure of inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MethodType
from typing import Any, NoReturn, TypeVar

import numpy as np

from glowtrain.errors import BindingError, GraphError, ShapeError
from glowtrain.graph.graph import Graph
from glowtrain.graph.specialise.binding import Binding, Structure
from glowtrain.presentation.messages import kind_of
from glowtrain.types import Array, Shape, Spec

PROBES = (2, 1, 3, 4, 8, 16, 32, 64, 128)
"""Extents tried for symbolic dimensions to learn a template's variables before data says what they are."""


def whole_extents(name: str, dims: Mapping[str, Any]) -> dict[str, int]:
    """``dims`` as Python integers. Raises :class:`BindingError` for extents that are not whole numbers from 0 up."""
    wrong = [
        f"{symbol}={extent!r}"
        for symbol, extent in dims.items()
        if isinstance(extent, bool) or not isinstance(extent, (int, np.integer)) or extent < 0
    ]
    if wrong:
        raise BindingError(f"{name}: dimensions must be whole numbers from 0 up, not {', '.join(wrong)}")
    return {symbol: int(extent) for symbol, extent in dims.items()}


def no_model(value: object) -> str:
    """``not Quantized; give its .model``: what was given in place of a graph or a template, and what to give."""
    inner, advice = getattr(value, "model", None), "see gt.load, gt.model"
    if hasattr(value, "state_dict"):
        advice = "make a model of PyTorch's module: gt.from_torch(module, example)"
    if isinstance(inner, (Graph, Template)):
        advice = "give its .model"
    elif isinstance(inner, MethodType):
        advice = "give its .model()"
    return f"not {kind_of(value)}; {advice}"


def no_graph(value: object) -> str:
    """The same where a graph is wanted."""
    inner, bound = getattr(value, "model", None), getattr(value, "graph", None)
    if isinstance(value, Template):
        advice = "bind its dimensions: .bind(dims)"
    elif isinstance(inner, Template):
        other = ", or its .graph" if isinstance(bound, Graph) else ""
        advice = f"give its .model with bound dimensions: .model.bind(dims){other}"
    else:
        return no_model(value)
    return f"not {kind_of(value)}; {advice}"


@dataclass(frozen=True, eq=False)
class Template:
    """A recipe for graphs: ``build(binding)`` gives the graph for one binding of what the model leaves open.

    ``inputs`` are the input specs by name, e.g. ``{"x": f32["batch", 784]}``; ``structures`` are inputs that are lists
    of tensors or may be absent. Every graph that a template builds has the same variables by name, so a compiled
    function keeps one state over all its specialisations.
    """

    name: str
    inputs: dict[str, Spec]
    build: Callable[[Binding], Graph]
    structures: dict[str, Structure] = field(default_factory=dict)

    def __repr__(self) -> str:
        """``<Template mlp(x f32[batch,784])>``"""
        taken = ", ".join(f"{name} {spec}" for name, spec in self.inputs.items())
        return f"<Template {self.name}({', '.join(filter(None, (taken, *self.structures)))})>"

    def __deepcopy__(self, memo: dict[int, Any]) -> Template:
        """The template: it is immutable."""
        return self

    def __call__(self, *args: Any, **inputs: Any) -> NoReturn:
        """A model is no function. Raises :class:`GraphError` that says what to do."""
        raise GraphError(
            f"the model {self.name} is not a function: gt.compile({self.name}) makes one, which takes "
            f"{{{', '.join(f'{name!r}: array' for name in self.inputs)}}}; to use layers in several models, put them "
            "in a function of their own"
        )

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbolic dimensions."""
        return tuple(dict.fromkeys(symbol for spec in self.inputs.values() for symbol in spec.symbols))

    def bind(self, dims: Mapping[str, int], values: Mapping[str, Any] | None = None) -> Graph:
        """The graph with every dimension bound, and inputs whose elements are given in ``values`` made constants.

        Raises :class:`BindingError` if a dimension is missing, unknown or not positive, or a value does not fit its
        input, and :class:`UnknownValueError` if shapes depend on the elements of further inputs.
        """
        known = self._checked_values(values or {}, dims)
        found = self.dims_for({name: array.shape for name, array in known.items()})
        return self.bound(Binding({**found, **dims}, known))

    def bound(self, binding: Binding) -> Graph:
        """The graph of a binding. Raises what :meth:`bind` raises."""
        dims = binding.dims
        missing = [symbol for symbol in self.symbols if symbol not in dims]
        if missing:
            raise BindingError(
                f"{self.name}: no value for dimension {', '.join(missing)}; pass dims={{{missing[0]!r}: ...}}"
            )
        unknown = [symbol for symbol in dims if symbol not in self.symbols]
        if unknown:
            known = ", ".join(self.symbols) or "none"
            raise BindingError(
                f"{self.name}: there is no dimension {', '.join(map(repr, unknown))}; the model has: {known}"
            )
        absent = [name for name in self.structures if name not in binding.parts]
        if absent:
            raise BindingError(f"{self.name}: the structure of input {', '.join(absent)} is bound by a call's inputs")
        binding = replace(binding, dims=whole_extents(self.name, dims))
        return self.build(binding).with_(template=self, binding=binding)

    def map(self, change: Callable[[Graph], Graph]) -> Template:
        """The template of the changed graphs."""
        return replace(self, build=_Changed(self, change))

    def partly(self, dims: Mapping[str, int], values: Mapping[str, Any]) -> Template:
        """The template that is left when some dimensions and the elements of some inputs are bound."""
        known = self._checked_values(values, dims)
        inputs = {
            name: Spec(
                spec.dtype,
                tuple(dims.get(extent, extent) if isinstance(extent, str) else extent for extent in spec.shape),
            )
            for name, spec in self.inputs.items()
            if name not in known
        }
        return replace(self, inputs=inputs, build=_Partly(self.build, dict(dims), known))

    def _checked_values(self, values: Mapping[str, Any], dims: Mapping[str, int]) -> dict[str, Array]:
        unknown = [name for name in values if name not in self.inputs]
        if unknown:
            known = ", ".join(self.inputs) or "none"
            raise BindingError(
                f"{self.name}: there is no input {', '.join(map(repr, unknown))}; the model has: {known}"
            )
        arrays = {name: np.asarray(value, self.inputs[name].dtype.numpy) for name, value in values.items()}
        for name, array in arrays.items():
            shape = self.inputs[name].shape
            extents = tuple(dims.get(extent, None) if isinstance(extent, str) else extent for extent in shape)
            if len(extents) != array.ndim or any(e not in (None, n) for e, n in zip(extents, array.shape, strict=True)):
                raise BindingError(
                    f"{self.name}: input {name} is {self.inputs[name]}, not {array.dtype}{list(array.shape)}"
                )
        return arrays

    def dims_for(self, shapes: Mapping[str, Shape]) -> dict[str, int]:
        """The binding under which inputs have these shapes.

        Raises :class:`BindingError` where a rank or a fixed extent differs, or a symbol would need two values.
        """
        dims: dict[str, int] = {}
        for name, spec in self.inputs.items():
            shape = shapes.get(name)
            if shape is None:
                continue
            if len(shape) != len(spec.shape):
                raise BindingError(f"{self.name}: input {name} has shape {tuple(shape)} but the model declares {spec}")
            for axis, (declared, extent) in enumerate(zip(spec.shape, shape, strict=True)):
                known = dims.setdefault(declared, extent) if isinstance(declared, str) else declared
                if known != extent:
                    what = declared if isinstance(declared, str) else f"axis {axis}"
                    raise BindingError(
                        f"{self.name}: input {name} has shape {tuple(shape)} but {what} is {known} ({spec})"
                    )
        return dims


Model = TypeVar("Model", Graph, Template)
"""What is bound, or still to be bound: what changes one changes the other by ``model.map(change)``."""


@dataclass(frozen=True, eq=False)
class _Changed:
    """Builds another template's graphs, changed."""

    template: Template
    change: Callable[[Graph], Graph]

    def __call__(self, binding: Binding) -> Graph:
        return self.change(self.template.bound(binding))


@dataclass(frozen=True, eq=False)
class _Partly:
    """Builds graphs of which some dimensions and the elements of some inputs are bound."""

    build: Callable[[Binding], Graph]
    dims: Mapping[str, int]
    values: Mapping[str, Array]

    def __call__(self, binding: Binding) -> Graph:
        return self.build(replace(binding, dims={**self.dims, **binding.dims}).with_values(self.values))


def example_of(template: Template, dims: Mapping[str, int] | None = None) -> Graph:
    """A graph of a template: with dimensions that ``dims`` leaves open bound to the first of :data:`PROBES` that fits.

    Raises what binding raises if none does.
    """
    problems = []
    for extent in PROBES:
        try:
            return template.bind({**dict.fromkeys(template.symbols, extent), **(dims or {})})
        except (ShapeError, BindingError) as error:
            problems.append(error)
    raise problems[0]
