"""What binds a template to one call's inputs, and how tensors make up what a call returns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from glowtrain.errors import InputError
from glowtrain.types import Array, Spec, TensorType, type_of

Parts = tuple[TensorType, ...] | None
"""The types of the tensors that a structured input holds; ``None`` where an optional one is absent."""

Key = tuple[Hashable, ...]
"""What two bindings that give the same graph have in common."""


@dataclass(frozen=True)
class Structure:
    """An input that is a list of tensors, or a tensor or list that may be absent. Its parts are bound by a call."""

    kind: Literal["sequence", "optional", "optional sequence"]
    element: Spec

    def items(self, name: str, value: Any) -> list[Array] | None:
        """The tensors in a call's value. Raises :class:`InputError` for a value of another structure."""
        if value is None and self.kind != "sequence":
            return None
        if self.kind != "optional" and not isinstance(value, (list, tuple)):
            raise InputError(f"input {name!r} is a sequence: pass a list of arrays, not {type(value).__name__}")
        items = [value] if self.kind == "optional" else value
        return [np.asarray(item, order="C") for item in items]

    def parts(self, name: str, value: Any) -> Parts:
        """The types of the tensors in a call's value. Raises :class:`InputError` for other element types or ranks."""
        items = self.items(name, value)
        if items is None:
            return None
        for item in items:
            if item.dtype != self.element.dtype.numpy:
                raise InputError(f"input {name!r} holds {self.element.dtype}, not {item.dtype}")
        return tuple(type_of(item) for item in items)


@dataclass(frozen=True)
class Binding:
    """What makes a template a graph.

    ``dims`` are extents of symbolic dimensions, ``values`` the elements of inputs that shapes or structure depend on,
    ``parts`` the types of the tensors in structured inputs.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Array] = field(default_factory=dict)
    parts: Mapping[str, Parts] = field(default_factory=dict)

    @property
    def key(self) -> Key:
        """Equal for bindings that give the same graph."""
        values = ((name, str(array.dtype), array.shape, array.tobytes()) for name, array in self.values.items())
        return tuple(sorted(self.dims.items())), tuple(sorted(values)), tuple(sorted(self.parts.items(), key=repr))

    def with_values(self, values: Mapping[str, Array]) -> Binding:
        """The binding with the elements of more inputs."""
        return replace(self, values={**self.values, **values})


def part_name(name: str, index: int) -> str:
    """The name of the graph input that is one tensor of a structured input."""
    return f"{name}.{index}"


@dataclass(frozen=True)
class Trimmed:
    """An output that holds its greatest possible size, cut to the size that a call found."""

    output: str
    size: str
    axis: int


Result = str | Trimmed | tuple[Any, ...] | None
"""What a call returns under a name: an output, a trimmed output, a list of results, or nothing (an absent optional)."""


def collected(results: Mapping[str, Result], outputs: Mapping[str, Array]) -> dict[str, Any]:
    """What a call returns, from the arrays of the graph's outputs."""
    return {name: _collect(result, outputs) for name, result in results.items()}


def parts_of(results: Iterable[Result]) -> Iterator[str | Trimmed]:
    """The outputs that make up results, whole or trimmed."""
    for result in results:
        if isinstance(result, tuple):
            yield from parts_of(result)
        elif result is not None:
            yield result


def _collect(result: Result, outputs: Mapping[str, Array]) -> Any:
    if isinstance(result, tuple):
        return [_collect(item, outputs) for item in result]
    if isinstance(result, Trimmed):
        size = int(outputs[result.size].reshape(()).item())
        return outputs[result.output][(slice(None),) * result.axis + (slice(0, size),)]
    return None if result is None else outputs[result]


def spread(structures: Mapping[str, Structure], inputs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """A call's inputs with those that are structured taken apart."""
    for name, value in inputs.items():
        if name in structures:
            items = structures[name].items(name, value) or []
            yield from ((part_name(name, index), item) for index, item in enumerate(items))
        else:
            yield name, value
