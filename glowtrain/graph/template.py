"""A model whose symbolic dimensions are not bound yet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.errors import BindingError
from glowtrain.graph.graph import Graph
from glowtrain.types import Array, Shape, Spec


def whole_extents(name: str, dims: Mapping[str, Any]) -> dict[str, int]:
    """``dims`` as Python integers. Raises :class:`BindingError` for extents that are not whole numbers from 1 up."""
    wrong = [
        f"{symbol}={extent!r}"
        for symbol, extent in dims.items()
        if isinstance(extent, bool) or not isinstance(extent, (int, np.integer)) or extent < 1
    ]
    if wrong:
        raise BindingError(f"{name}: dimensions must be whole numbers and at least 1, not {', '.join(wrong)}")
    return {symbol: int(extent) for symbol, extent in dims.items()}


@dataclass(frozen=True, eq=False)
class Template:
    """A recipe for graphs: ``build(dims)`` gives the graph for one binding of the symbolic dimensions.

    ``inputs`` are the input specs by name, e.g. ``{"x": f32["batch", 784]}``. Every graph that a template builds has
    the same variables by name, so a compiled function keeps one state over all its specialisations.
    """

    name: str
    inputs: dict[str, Spec]
    build: Callable[[dict[str, int]], Graph]

    @property
    def symbols(self) -> tuple[str, ...]:
        """Names of the symbolic dimensions."""
        return tuple(dict.fromkeys(symbol for spec in self.inputs.values() for symbol in spec.symbols))

    def bind(self, dims: Mapping[str, int]) -> Graph:
        """The graph with every dimension bound.

        Raises :class:`BindingError` if a dimension is missing, unknown or not positive.
        """
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
        whole = whole_extents(self.name, dims)
        return self.build(dict(whole)).with_(template=self, dims=dict(whole))

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
            for declared, extent in zip(spec.shape, shape, strict=True):
                known = dims.setdefault(declared, extent) if isinstance(declared, str) else declared
                if known != extent:
                    raise BindingError(
                        f"{self.name}: input {name} has shape {tuple(shape)} but {declared} is {known} ({spec})"
                    )
        return dims

    def for_inputs(self, inputs: Mapping[str, Array]) -> Graph:
        """The graph for a call's inputs."""
        return self.bind(self.dims_for({name: array.shape for name, array in inputs.items()}))
