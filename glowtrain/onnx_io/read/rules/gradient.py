"""ai.onnx.preview.training's Gradient: the gradient of a part of the model, by reverse mode while the graph is built.

https://github.com/onnx/onnx/blob/main/docs/Operators.md#aionnxpreviewtraininggradient. The node names tensors of its
graph: ``y`` is a function of ``xs`` and ``zs``, differentiated with respect to ``xs`` at the values that are the node's
operands.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields

import numpy as np
from onnx import NodeProto, helper

from glowtrain.errors import DifferentiationError, ModelError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Constant, Value, constant
from glowtrain.onnx_io.read.build import Bound, Builder
from glowtrain.onnx_io.read.rules.control import Branch
from glowtrain.onnx_io.read.source import reads
from glowtrain.ops.elementwise.logic import Identity
from glowtrain.ops.tensor.move import zeros

KEY = "ai.onnx.preview.training.Gradient"
"""The operator's registry key."""


@dataclass(frozen=True)
class GradientRequest:
    """What a Gradient node asks for: names of its graph."""

    xs: tuple[str, ...]
    zs: tuple[str, ...]
    y: str

    @classmethod
    def of(cls, node: NodeProto, what: str) -> GradientRequest:
        """Read a node's attributes. Raises :class:`ModelError` where they are missing or do not fit its inputs."""
        found = {attribute.name: helper.get_attribute_value(attribute) for attribute in node.attribute}
        if not found.get("xs") or not found.get("y"):
            raise ModelError(f"{what}: attributes xs and y must name what is differentiated, and by what")
        xs, zs = ([name.decode() for name in found.get(key, ())] for key in ("xs", "zs"))
        if len(node.input) != len(xs) + len(zs):
            raise ModelError(f"{what} has {len(node.input)} inputs, but xs and zs name {len(xs) + len(zs)} tensors")
        return cls(tuple(xs), tuple(zs), found["y"].decode())


@dataclass
class _Part(Branch):
    """Builds what one name of the graph around it needs, with other values for some of the names."""

    gradient: NodeProto = field(kw_only=True)

    @classmethod
    def within(cls, outer: Builder, environment: dict[str, Bound], gradient: NodeProto) -> _Part:
        """The part of what ``outer`` builds for a Gradient node, in which some names are ``environment``.

        Raises :class:`ModelError` where it is to be built within itself.
        """
        around = outer
        while isinstance(around, Branch):
            if isinstance(around, _Part) and around.gradient.output == gradient.output:
                raise ModelError(f"{outer.what(gradient)}: what it differentiates depends on its own result")
            around = around.outer
        settings = {entry.name: getattr(outer, entry.name) for entry in fields(Builder)}
        return cls(**{**settings, "environment": environment}, outer=outer, gradient=gradient)

    def compute(self, name: str) -> None:
        """Add the nodes that ``name`` depends on and that depend on what is replaced.

        Raises :class:`ModelError` if nothing gives that name.
        """
        nodes, recipe = self.recipe.proto.node, self.recipe
        made = (output for node in nodes for output in node.output)
        given = {*self.environment, *recipe.inputs, *recipe.arrays, *made}
        if name not in given:
            raise ModelError(f"{recipe.title}: a Gradient node asks for y={name!r}, which nothing in the graph gives")
        for node in _needed(nodes, name, self.environment):
            self.add(node)


def _needed(nodes: Iterable[NodeProto], name: str, available: Iterable[str]) -> list[NodeProto]:
    """The nodes between ``known`` names and ``name``, in the order of the graph, that a known name reaches."""
    listed, reached = list(nodes), set(available)
    through: list[NodeProto] = []
    for node in listed:
        if not reached.isdisjoint(reads(node)) and reached.isdisjoint(node.output):
            reached.update(node.output)
            through.append(node)
    wanted, chosen = {name}, []
    for node in reversed(through):
        if not wanted.isdisjoint(node.output):
            wanted.update(reads(node))
            chosen.append(node)
    return chosen[::-1]


def gradient_rule(builder: Builder, node: NodeProto) -> tuple[Bound, ...]:
    """The gradients of y, one for each of xs; zero where y does not depend on one differentiably."""
    what = builder.what(node)
    request = GradientRequest.of(node, what)
    names = (*request.xs, *request.zs)
    values = [builder.tensor(name, what) for name in node.input]
    same = tuple(node.input) == names and request.y in builder.environment
    points = values if same and not any(isinstance(value, Constant) for value in values) else None
    part: Builder = builder
    if points is None:
        points = [_opaque(value) for value in values]
        inner = _Part.within(builder, dict(zip(names, points, strict=True)), node)
        inner.compute(request.y)
        part = inner
    y = part.tensor(request.y, what)
    ones = constant(np.ones(y.shape), y.dtype)
    try:
        gradients = pullback([y], [ones], points[: len(request.xs)], boundary=frozenset(points))
    except DifferentiationError as error:
        raise ModelError(f"{what}: {error}") from None
    pairs = zip(gradients, points, strict=False)
    return tuple(zeros(point.type) if gradient is None else gradient for gradient, point in pairs)


def _opaque(value: Value) -> Value:
    """The same value as a node's result, through which nothing is folded."""
    result: Value = Identity()(value)
    return result
