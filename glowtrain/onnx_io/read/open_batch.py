"""Opening the batch of a file that was exported for one.

The inputs' first axis gets a name. A file for one batch also holds its size in the targets of Reshape and Expand: the
model is built once as it is and once for another batch, and a target in which the batch is an axis, or the outer part
of one, gets -1 or 1 in its place. What else holds the size is refused with its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from onnx import GraphProto, NodeProto

from glowtrain.errors import BindingError, ModelError
from glowtrain.graph import Binding, Constant, Value
from glowtrain.onnx_io.read.build import Bound, Builder, BuildRecipe
from glowtrain.onnx_io.read.parameters import class_of, key_of
from glowtrain.onnx_io.read.source import describe, reads
from glowtrain.onnx_io.read.upgrade.opset_7_up import UpgradeScope
from glowtrain.onnx_io.schema.attributes import static_inputs
from glowtrain.types import Array, Shape, Spec

BATCH = "batch"
"""The name of the dimension that is opened."""

OTHER = 64
"""The extent of other dimensions that are open while the batch is being opened."""

_TARGET = 1
"""The operand of Reshape and Expand that is the shape."""


def open_batch(recipe: BuildRecipe, dims: Mapping[str, int], values: Mapping[str, Any]) -> BuildRecipe:
    """The model with the first axis open in all inputs in which it is as long as in the first one that fixes it.

    ``dims`` and ``values`` are bound where that is needed to build the model. Raises :class:`BindingError` if no input
    has a fixed first axis, and :class:`ModelError` naming the node that keeps the batch from being opened.
    """
    first = {name: spec.shape[0] for name, spec in recipe.inputs.items() if spec.shape}
    fixed = {name: extent for name, extent in first.items() if isinstance(extent, int)}
    if recipe.structures:
        raise BindingError(f"{recipe.name}: the batch of a model that takes sequences cannot be opened")
    if not fixed:
        shown = ", ".join(f"{name} {spec}" for name, spec in recipe.inputs.items()) or "none"
        raise BindingError(f"{recipe.name}: there is no fixed batch to open; its inputs are: {shown}")
    batch = next(iter(fixed.values()))
    inputs = {name: _opened(spec) if fixed.get(name) == batch else spec for name, spec in recipe.inputs.items()}
    bound = {symbol: dims.get(symbol, OTHER) for spec in inputs.values() for symbol in spec.symbols}
    elements = {
        name: np.asarray(values[name], spec.dtype.numpy) for name, spec in recipe.inputs.items() if name in values
    }
    closed = Builder(recipe, Binding({**bound, BATCH: batch}, elements))
    closed.graph()
    changed = replace(recipe, inputs=inputs)
    probe = _Opening(changed, Binding({**bound, BATCH: batch + 1}, elements), closed=closed.environment, batch=batch)
    try:
        probe.graph()
    except ModelError as error:
        raise ModelError(f"{error}{probe.cause()}. {_ADVICE.format(batch)}") from None
    return probe.opened()


_ADVICE = "The file is for batches of {} only; export the model with an open batch, as docs/exporting.md says"


def _opened(spec: Spec) -> Spec:
    return Spec(spec.dtype, (BATCH, *spec.shape[1:]))


@dataclass
class _Opening(Builder):
    """Builds a model for a larger batch than that of the file, changing targets as this needs."""

    closed: Mapping[str, Bound] = field(default_factory=dict)
    """What names stand for in the model as it is."""
    batch: int = 1
    merged: dict[int, set[tuple[int, int]]] = field(default_factory=dict)
    """How the batch lies in axes that Reshape made of it and others, by their extent: outside of it and inside."""
    targets: dict[str, tuple[str, Array]] = field(default_factory=dict)
    """The new shapes and names for them, by the first output of the node that takes them."""
    at: NodeProto | None = None

    def add(self, node: NodeProto) -> None:
        self.at = node
        rule = _RULES.get(key_of(node))
        target = rule(self, node) if rule is not None else None
        if target is None:
            super().add(node)
            return
        name, array = self.scope.fresh(f"{node.output[0]}.target"), np.array(target, np.int64)
        self.targets[node.output[0]] = name, array
        self.environment[name] = Constant(array)
        super().add(_with_target(node, name))

    @cached_property
    def scope(self) -> UpgradeScope:
        """The names that the model has."""
        return UpgradeScope(self.recipe.proto)

    def shapes(self, name: str) -> tuple[Shape, Shape] | None:
        """The shape of a value in the model as it is and in this one; ``None`` where it is the same or no tensor."""
        before, now = self.closed.get(name), self.environment.get(name)
        if not isinstance(before, Value) or not isinstance(now, Value) or before.type.shape == now.type.shape:
            return None
        return before.type.shape, now.type.shape

    def stated(self, name: str) -> list[int] | None:
        """The elements of a shape that does not depend on the batch."""
        before, now = self.closed.get(name), self.read(name)
        if not isinstance(before, Constant) or not isinstance(now, Constant):
            return None
        same = now.array.ndim == 1 and np.array_equal(before.array, now.array)
        return [int(extent) for extent in now.array] if same else None

    def opened(self) -> BuildRecipe:
        """The model with the new targets."""
        proto = GraphProto()
        proto.CopyFrom(self.recipe.proto)
        arrays = dict(self.recipe.arrays)
        for node in proto.node:
            if node.output and node.output[0] in self.targets:
                name, array = self.targets[node.output[0]]
                arrays[name] = array
                node.CopyFrom(_with_target(node, name))
        return replace(self.recipe, proto=proto, arrays=arrays)

    def cause(self) -> str:
        """What holds the size of the batch before the node that could not be built."""
        names = list(dict.fromkeys(self._causes()))
        verb = "holds" if len(names) == 1 else "hold"
        return f"; {' and '.join(names)} {verb} the size {self.batch}" if names else ""

    def _causes(self) -> Iterator[str]:
        makers = {name: node for node in self.recipe.proto.node for name in node.output}
        waiting, seen = [] if self.at is None else [self.at], set()
        while waiting:
            node = waiting.pop(0)
            for name in reads(node):
                array = self.recipe.arrays.get(name)
                if array is not None and node is self.at and self.batch > 1 and self.batch in array.shape:
                    yield f"initializer {name!r}"
                if name in makers and name not in seen and self.shapes(name) is None:
                    seen.add(name)
                    waiting.append(makers[name])
            if node is not self.at and self._states_batch(node):
                yield describe(node)

    def _states_batch(self, node: NodeProto) -> bool:
        cls = class_of(node)
        operands = () if cls is None else static_inputs(cls)
        stated = [self.stated(node.input[k]) for k in operands if k < len(node.input) and node.input[k]]
        return any(self.batch in shape for shape in stated if shape is not None)


def _with_target(node: NodeProto, name: str) -> NodeProto:
    changed = NodeProto()
    changed.CopyFrom(node)
    changed.input[_TARGET] = name
    return changed


def _reshaped(model: _Opening, node: NodeProto) -> list[int] | None:
    """The target of a Reshape with -1 where the batch goes; ``None`` if it need not change.

    As many elements lie outside of the batch after it as before, and as many inside. Raises :class:`ModelError` where
    no axis of the result is such.
    """
    shapes, stated = model.shapes(node.input[0]), model.stated(node.input[_TARGET])
    result = model.closed[node.output[0]]
    if shapes is None or stated is None or not isinstance(result, Value):
        return None
    before, now = shapes
    into = result.type.shape
    axes = [axis for axis, (old, new) in enumerate(zip(before, now, strict=True)) if old != new]
    position = _place(model, before, axes[0], into) if len(axes) == 1 and 0 not in into else None
    if position is None:
        raise ModelError(f"{model.what(node)} of {list(before)} to {list(into)} does not say where the batch goes")
    return [-1 if axis == position else extent for axis, extent in enumerate(into)]


def _place(model: _Opening, before: Shape, axis: int, into: Shape) -> int | None:
    """The axis of a shape that the batch goes into; ``None`` if there is none, or it is not known how it lies."""
    extent = before[axis]
    ways = {(1, 1)} if extent == model.batch else model.merged.get(extent, set())
    if len(ways) != 1:
        kept = axis < len(into) and before[: axis + 1] == into[: axis + 1]
        return axis if kept else None
    ((outside, inside),) = ways
    outside, inside = math.prod(before[:axis]) * outside, inside * math.prod(before[axis + 1 :])
    positions = list(_places(outside, inside, model.batch, into))
    alone = [found for found in positions if found[:2] == (1, 1)]
    if not alone and len(positions) != 1:
        return None
    outside, inside, position = min(alone or positions, key=lambda found: abs(found[2] - axis))
    if into[position] != model.batch:
        model.merged.setdefault(into[position], set()).add((outside, inside))
    return position


def _places(outside: int, inside: int, batch: int, into: Shape) -> Iterator[tuple[int, int, int]]:
    """The axes of a shape that hold a batch with so many elements outside and inside of it.

    Each after what the axis itself has outside and inside of the batch.
    """
    for axis, extent in enumerate(into):
        own_outside, rest = divmod(outside, math.prod(into[:axis]))
        own_inside = extent // (own_outside * batch) if own_outside else 0
        fits = own_outside * batch * own_inside == extent and own_inside * math.prod(into[axis + 1 :]) == inside
        if not rest and own_inside and fits:
            yield own_outside, own_inside, axis


def _expanded(model: _Opening, node: NodeProto) -> list[int] | None:
    """The target of an Expand with 1, which keeps the operand's extent, where the batch is."""
    shapes, stated = model.shapes(node.input[0]), model.stated(node.input[_TARGET])
    if shapes is None or stated is None:
        return None
    before, now = (shape[-len(stated) :] for shape in shapes)
    changed = {axis - len(now): old for axis, (old, new) in enumerate(zip(before, now, strict=True)) if old != new}
    return [1 if changed.get(axis - len(stated)) == extent else extent for axis, extent in enumerate(stated)]


_RULES: dict[str, Callable[[_Opening, NodeProto], list[int] | None]] = {"Reshape": _reshaped, "Expand": _expanded}
