"""Where gradients flow: which values results depend on, whether differentiably, and the nodes that cut the way.

A node links an operand to a result where the result depends on it, and passes a gradient where its rule gives one; both
are asked of the node itself, so this says what the reverse walk (:mod:`glowtrain.grad.reverse`) would do. Loops, and
operators whose gradient is that of their decomposition, are looked into.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

from glowtrain.errors import DifferentiationError
from glowtrain.grad.reverse import pullback
from glowtrain.graph import Input, Node, Value, topological
from glowtrain.graph.operator import as_tuple
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.objective.stop_gradient import StopGradient

CutKind = Literal["stopped", "type", "integer", "constant", "operand", "no rule"]
"""Why a node passes no gradient: it stops it on purpose; its result depends on types only; its result is no float; it
is not differentiable, or constant wherever it is; its rule has none for that operand; it has no rule at all."""

Link = tuple[int, int]
"""An operand and a result of a node, by position."""


@dataclass(frozen=True)
class GradientCut:
    """A node that passes no gradient from a result that is needed to an operand.

    ``why``: the reason, for a person; ``within``: the loops and operators that the node is a part of, outermost first.
    """

    node: Node
    kind: CutKind
    why: str
    within: tuple[Node, ...] = ()


@dataclass(frozen=True)
class Reach:
    """How results depend on a value: at all, and differentiably; ``cuts`` are the first on each way from the value."""

    depends: bool
    differentiable: bool
    cuts: tuple[GradientCut, ...]


@dataclass(frozen=True)
class FlowStep:
    """A node on a way from some values to the results, and what it is in.

    ``outcome``: a gradient flows back through it; it is cut there; there is none to cut, as no operand on the way is a
    float.
    """

    node: Node
    outcome: Literal["passes", "cut", "constant"]
    within: tuple[Node, ...] = ()


@dataclass
class _Sweep:
    """What was reached from some values: differentiably (``near``), and at all (``far``)."""

    near: set[Value]
    far: set[Value]
    cuts: dict[tuple[Node, CutKind], GradientCut] = field(default_factory=dict)


class _Links:
    """The links of a node to results that are needed: an operator is linked everywhere, unless it can be seen that it
    is not."""

    def __init__(self, node: Node, results: Sequence[int]) -> None:
        self.node = node
        self.results = results
        self.inside = _inside(node, results)
        present = [operand for operand, value in enumerate(node.inputs) if value is not None]
        links = ((operand, result) for operand in present for result in results)
        if self.inside is not None:
            links = (link for operand in present for link in self.inside.depends(operand) if link[1] in results)
        self.depends = frozenset(links)

    @cached_property
    def passes(self) -> frozenset[Link]:
        """The links that pass a gradient."""
        passes, _ = self._rule
        if self.inside is None:
            return passes
        operands = {operand for operand, _ in passes}  # a loop's rule gives zeros for states that do not matter
        return passes.intersection(link for operand in operands for link in self.inside.passes(operand))

    @property
    def error(self) -> str:
        """Why there is no rule, if there is none."""
        return self._rule[1]

    @cached_property
    def _rule(self) -> tuple[frozenset[Link], str]:
        try:
            return self.depends.intersection(link for k in self.results for link in _passed(self.node, k)), ""
        except DifferentiationError as error:
            return frozenset(), str(error)


class Flow:
    """The ways from any values to ``outputs``."""

    def __init__(self, outputs: Sequence[Value]) -> None:
        self.outputs = tuple(outputs)
        self.nodes = topological(outputs)

    def of(self, value: Value) -> Reach:
        """How the outputs depend on a value."""
        sweep = self.sweep([value])
        depends = any(output in sweep.far for output in self.outputs)
        return Reach(depends, any(output in sweep.near for output in self.outputs), tuple(sweep.cuts.values()))

    def steps(self, values: Collection[Value]) -> Iterator[FlowStep]:
        """The nodes on the ways from ``values`` to the outputs, operands first; what is in a loop after the loop."""
        sweep = self.sweep(values)
        for node in self.nodes:
            links = self._links[node]
            operands = {operand for operand, _ in links.depends}
            reached = {k: value for k in operands if (value := node.inputs[k]) is not None and value in sweep.far}
            if not reached:
                continue
            passes = any(operand in reached for operand, _ in links.passes)
            floats = any(value.dtype.is_float for value in reached.values())
            yield FlowStep(node, "passes" if passes else "cut" if floats else "constant")
            if links.inside is not None:
                yield from (replace(step, within=(node, *step.within)) for step in links.inside.steps(reached))

    def sweep(self, values: Collection[Value]) -> _Sweep:
        """Follow the ways from ``values``, operands first; values that are not floats are reached, but not near."""
        sweep = _Sweep({value for value in values if value.dtype.is_float}, set(values))
        for node in self.nodes:
            for operand, value in enumerate(node.inputs):
                if value in sweep.far:
                    self._follow(node, operand, sweep, near=value in sweep.near)
        return sweep

    def _follow(self, node: Node, operand: int, sweep: _Sweep, *, near: bool) -> None:
        links = self._links[node]
        for link in links.depends:
            if link[0] != operand:
                continue
            output = node.outputs[link[1]]
            sweep.far.add(output)
            if near and link in links.passes:
                sweep.near.add(output)
            elif near:
                for cut in _cuts(node, link, links):
                    sweep.cuts.setdefault((cut.node, cut.kind), cut)

    @cached_property
    def needed(self) -> frozenset[Value]:
        """What the outputs depend on."""
        operands = ((node, operand) for node, links in self._links.items() for operand, _ in links.depends)
        return frozenset([*self.outputs, *(value for node, k in operands if (value := node.inputs[k]) is not None)])

    @cached_property
    def _links(self) -> dict[Node, _Links]:
        """The links of each node to what the outputs depend on."""
        needed, found = set(self.outputs), {}
        for node in reversed(self.nodes):
            found[node] = _Links(node, [k for k, value in enumerate(node.outputs) if value in needed])
            needed.update(value for operand, _ in found[node].depends if (value := node.inputs[operand]) is not None)
        return found


class _Inside:
    """What a node computes, where that is a graph: operands are its ``inputs``, results its ``outputs``, of which those
    at ``results`` are wanted; the first ``states`` come back as the first inputs."""

    def __init__(
        self, inputs: Sequence[Value | None], outputs: Sequence[Value], results: Collection[int], states: int = 0
    ) -> None:
        self.inputs = tuple(inputs)
        self.states = states
        more = set(results)
        self.results: set[int] = set()
        while more - self.results:  # a state is wanted, too, if a wanted result depends on it a step later
            self.results |= more
            self.flow = Flow([output for k, output in enumerate(outputs) if k in self.results])
            more = {k for k, value in enumerate(self.inputs[:states]) if value in self.flow.needed}
        self._sweeps: dict[int, _Sweep] = {}

    def depends(self, operand: int) -> Iterator[Link]:
        """The links from an operand to results."""
        return self._links(operand, self._sweep_from(operand).far)

    def passes(self, operand: int) -> Iterator[Link]:
        """Those of them that pass a gradient."""
        return self._links(operand, self._sweep_from(operand).near)

    def cuts(self, operand: int) -> tuple[GradientCut, ...]:
        """What cuts the ways from an operand."""
        return tuple(self._sweep_from(operand).cuts.values())

    def _links(self, operand: int, reached: Collection[Value]) -> Iterator[Link]:
        pairs = zip(sorted(self.results), self.flow.outputs, strict=True)
        return ((operand, result) for result, output in pairs if output in reached)

    def _sweep_from(self, operand: int) -> _Sweep:
        """What one operand reaches."""
        if operand not in self._sweeps:
            self._sweeps[operand] = self._reached([operand])
        return self._sweeps[operand]

    def steps(self, operands: Collection[int]) -> Iterator[FlowStep]:
        """The nodes on the ways from operands."""
        far = self._reached(operands).far
        return self.flow.steps([value for value in self.inputs if value is not None and value in far])

    def _reached(self, operands: Collection[int]) -> _Sweep:
        """What operands reach, once around for each state that they reach."""
        far = {value for operand in operands if (value := self.inputs[operand]) is not None}
        near: set[Value] = {value for value in far if value.dtype.is_float}
        while True:
            sweep = self.flow.sweep(near)
            sweep.far |= self.flow.sweep(far).far
            more, closer = self._carried(sweep.far) - far, self._carried(sweep.near) - near
            if not more and not closer:
                return sweep
            far, near = far | more, near | closer

    def _carried(self, reached: Collection[Value]) -> set[Value]:
        """The inputs that hold states which were reached."""
        pairs = zip(sorted(self.results), self.flow.outputs, strict=True)
        states = ((self.inputs[k], output) for k, output in pairs if k < self.states)
        return {value for value, output in states if value is not None and output in reached}


def _passed(node: Node, result: int) -> Iterator[Link]:
    """The links that pass a gradient from one result."""
    output = node.outputs[result]
    operands = [value for value in dict.fromkeys(node.inputs) if value is not None]
    wanted = [value for value in operands if value.dtype.is_float]
    found = pullback([output], [Input(output.type, "cotangent")], wanted, boundary=frozenset(operands))
    known = {value for value, gradient in zip(wanted, found, strict=True) if gradient is not None}
    yield from ((operand, result) for operand, value in enumerate(node.inputs) if value in known)


def _inside(node: Node, results: Collection[int]) -> _Inside | None:
    """The graph that the gradient of some results is computed from, if there is one."""
    operator = node.operator
    if not results:
        return None
    if isinstance(operator, Scan):
        outputs: list[Value] = list(operator.body.outputs.values())
        if not operator.steps(*(value.type for value in node.inputs if value is not None)):
            outputs[: operator.num_states] = operator.body.inputs[: operator.num_states]
        return _Inside(operator.body.inputs, outputs, results, operator.num_states)
    if not operator.differentiable or operator.has("vjp") or not operator.has("decompose"):
        return None
    inputs = [None if value is None else Input(value.type, value.name) for value in node.inputs]
    return _Inside(inputs, as_tuple(operator.decompose(*inputs)), results)


def _cuts(node: Node, link: Link, links: _Links) -> Iterator[GradientCut]:
    """What cuts a link: nodes inside, where they can be named, else the node itself."""
    inner = links.inside.cuts(link[0]) if links.inside else ()
    for cut in inner:
        yield replace(cut, within=(node, *cut.within))
    if not inner:
        yield _own_cut(node, link, links.error)


def _own_cut(node: Node, link: Link, error: str) -> GradientCut:
    operator, output = node.operator, node.outputs[link[1]]
    if isinstance(operator, StopGradient):
        return GradientCut(node, "stopped", operator.reason)
    if error:
        return GradientCut(node, "no rule", error)
    if operator.from_type:
        return GradientCut(node, "type", operator.reason)
    if not output.dtype.is_float:
        return GradientCut(node, "integer", operator.reason or "its result is not a float")
    if not operator.differentiable:
        return GradientCut(node, "constant", operator.reason or "it is not differentiable")
    return GradientCut(node, "operand", f"it has no gradient for operand {link[0]}")
