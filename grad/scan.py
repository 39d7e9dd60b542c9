"""The gradient of a Scan: a Scan in the other direction, over the slices that the forward one left behind.

Its body is the reverse walk over the forward body. What that reads of forward values is stacked by a second forward
Scan with the same body values and more outputs, which a graph pass can merge with the first. A captured matrix gets
its gradient as one contraction over steps and rows after the loop, rather than as a sum carried through it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property

from glowtrain.graph import Constant, Graph, Input, Node, Operator, Value, rebuild
from glowtrain.graph.operator import as_tuple
from glowtrain.ops.contraction.products import Gemm, MatMul, swapped
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.core.family import Elementwise, Grads
from glowtrain.ops.elementwise.arithmetic import Add
from glowtrain.ops.reduce.reduction import ReduceSum, filled
from glowtrain.ops.tensor.move import Transpose, reshape
from glowtrain.ops.tensor.pad import Pad

FEW = 6
"""Elementwise operators by which a value is computed again rather than stacked, at most."""

Ints = tuple[int, ...]
Sum = Callable[[], Value]


def step_seeds(scan: Scan, cotangents: Sequence[Value | None]) -> list[Input | None]:
    """The cotangents of a body's outputs within one step, as inputs of the gradient's body; ``None`` for zero.

    States carry one from later steps even where the final state has none.
    """
    return [
        Input(value.type, f"d.{value.name or place}")
        if value.dtype.is_float and (place < scan.num_states or cotangents[place] is not None)
        else None
        for place, value in enumerate(scan.body.outputs.values())
    ]


@dataclass
class ScanGradient:
    """The gradient of one canonical Scan.

    ``operands`` and ``results`` are the node's, ``cotangents`` those of the results (``None``: zero). ``seeds`` are the
    cotangents of the body's outputs within one step (:func:`step_seeds`), ``by_input`` what the reverse walk over the
    body makes of them, for each body input. The gradient runs backwards in time, so what the forward Scan read or wrote
    in direction d, it reads or writes in direction 1 - d.
    """

    scan: Scan
    operands: Sequence[Value]
    results: Sequence[Value]
    cotangents: Sequence[Value | None]
    seeds: Sequence[Input | None]
    by_input: Sequence[Value | None]
    wanted: dict[tuple[Value, int], None] = field(default_factory=dict)
    """Values of the gradient's body to be stacked, and whether backwards (step t at place steps - 1 - t)."""
    residuals: dict[Value, None] = field(default_factory=dict)
    """Values of the forward body to be stacked."""
    stacks: dict[tuple[Value, int], Value] = field(default_factory=dict)
    """The stacks, once they are made."""

    def __post_init__(self) -> None:
        body, states, cut = self.scan.body, self.scan.num_states, self.scan.num_states + self.scan.num_scan_inputs
        self.states, self.slices, self.captured = body.inputs[:states], body.inputs[states:cut], body.inputs[cut:]
        self.outer: dict[Value, Value] = dict(zip(body.inputs, self.operands, strict=True))
        self.step_gradients: dict[Value, Value | None] = dict(zip(body.inputs, self.by_input, strict=True))

    @cached_property
    def varying(self) -> set[Value]:
        """The forward body's values that differ from step to step."""
        found: set[Value] = {*self.states, *self.slices}
        for node in self.scan.body.nodes:
            if any(value in found for value in node.inputs):
                found.update(node.outputs)
        return found

    def gradients(self) -> Grads:
        """The cotangents of all operands."""
        sums = {value: self._plan(value) for value in self.captured}
        carried = [value for value, seed in zip(self.states, self.seeds, strict=False) if seed is not None]
        added = [v for v in self.captured if self.step_gradients[v] is not None and sums[v] is None]
        for value in self.slices:
            if self.step_gradients[value] is not None:
                self.wanted[self._step_gradient(value), self._direction(value)] = None
        inputs = [seed for seed in self.seeds[: self.scan.num_states] if seed is not None]
        starts = [self._final(seed) for seed in inputs] + [filled(0.0, value.type) for value in added]
        totals = [Input(value.type, f"d.{value.name}") for value in added]
        roots = [self._step_gradient(value) for value in carried]
        roots += [total + self._step_gradient(value) for total, value in zip(totals, added, strict=True)]
        finals: dict[Value, Value] = dict(
            zip([*carried, *added], self._run([*inputs, *totals], starts, roots), strict=True)
        )
        return tuple(self._result(value, finals, sums.get(value)) for value in self.scan.body.inputs)

    def _step_gradient(self, value: Value) -> Value:
        gradient = self.step_gradients[value]
        return filled(0.0, value.type) if gradient is None else gradient

    def _final(self, seed: Input) -> Value:
        """The cotangent with which a state enters the last step."""
        cotangent = self.cotangents[self.seeds.index(seed)]
        return filled(0.0, seed.type) if cotangent is None else cotangent

    def _result(self, value: Value, finals: dict[Value, Value], total: Sum | None) -> Value | None:
        if value in finals:
            return finals[value]
        if value in self.slices and self.step_gradients[value] is not None:
            return self.stacks[self._step_gradient(value), self._direction(value)]
        return None if total is None else total()

    def _direction(self, slice_: Value) -> int:
        return self.scan.input_directions[self.slices.index(slice_)]

    def _plan(self, captured: Value) -> Sum | None:
        """How to get a captured value's gradient from stacks after the loop; ``None``: add it up inside."""
        gradient = self.step_gradients[captured]
        before = dict(self.wanted), dict(self.residuals)
        total = None if gradient is None else self._summed(gradient)
        if total is None:
            self.wanted, self.residuals = before
        return total

    def _summed(self, value: Value) -> Sum | None:
        """The sum of a gradient over all steps, as one contraction or reduction over stacks where it has that form."""
        node = value.node
        if node is None or value in self.varying:
            return None
        op, (first, *others) = node.operator, node.inputs
        assert first is not None
        if isinstance(op, Add) and others[0] is not None and first.type == others[0].type:
            left, right = self._summed(first), self._summed(others[0])
            return None if left is None or right is None else lambda: left() + right()
        if _places(op) and not others:
            inner = self._summed(first)
            return None if inner is None else lambda: op(inner())
        if isinstance(op, ReduceSum):
            axes = (0, *(axis + 1 for axis in op.reduced(first.type)))
            stack = self._stack(first)
            return lambda: reshape(ReduceSum(axes=axes, keepdims=False)(stack()), value.shape)
        return self._contraction(node)

    def _contraction(self, node: Node) -> Sum | None:
        """sum over t of A_t B_t is one product over (t, k)."""
        op, a, b = node.operator, node.inputs[0], node.inputs[1] if len(node.inputs) > 1 else None
        if a is None or b is None or a.rank != 2 or b.rank != 2:
            return None
        if isinstance(op, MatMul):
            return self._product(a, b, Gemm())
        if isinstance(op, Gemm) and (len(node.inputs) == 2 or node.inputs[2] is None):
            return self._product(a, b, op)
        return None

    def _product(self, a: Value, b: Value, form: Gemm) -> Sum:
        left, right = self._stack(a), self._stack(b)

        def total() -> Value:
            rows, columns = left(), right()
            rows = swapped(rows) if form.transA else rows
            columns = swapped(columns) if form.transB else columns
            _, m, k = rows.shape
            n, terms = columns.shape[2], rows.shape[0] * k
            rows = reshape(Transpose(perm=(1, 0, 2))(rows), (m, terms))
            product = rows @ reshape(columns, (terms, n))
            return product if form.alpha == 1 else product * form.alpha

        return total

    def _stack(self, value: Value) -> Sum:
        """Ask for the stack of a body value; moves are taken out of the loop."""
        node = value.node
        if node is not None and isinstance(node.operator, Transpose) and node.inputs[0] is not None:
            inner, perm = self._stack(node.inputs[0]), node.operator.perm or tuple(reversed(range(value.rank)))
            return lambda: Transpose(perm=(0, *(axis % value.rank + 1 for axis in perm)))(inner())
        if value in self.slices and not self._direction(value):
            return lambda: self.outer[value]
        if value in self.varying:
            self.residuals[value] = None
        else:
            self.wanted[value, 0] = None
        return lambda: self.stacks[value, 0]

    def _run(self, states: Sequence[Input], starts: Sequence[Value], roots: Sequence[Value]) -> Sequence[Value]:
        """Make the forward Scan that leaves the residuals and the backward one; returns the final states."""
        seeds = [seed for seed in self.seeds[self.scan.num_states :] if seed is not None]
        results = [*roots, *(value for value, _ in self.wanted)]
        if not results:
            return []
        read = self._read(results)
        kept = [value for value in read if value in self.varying and value not in self.slices]
        self._stack_residuals([*self.residuals, *kept])
        scanned = [*kept, *(value for value in read if value in self.slices)]
        captured = [value for value in read if value in self.captured]
        if not seeds and not scanned:
            scanned = [self.slices[0]]
        fresh = {value: Input(value.type, value.name or "r") for value in (*scanned, *captured)}
        values = rebuild(results, fresh)
        inputs = (*states, *seeds, *fresh.values())
        named = {f"v{place}": value for place, value in enumerate(values)}
        body = Graph(inputs, named, name=f"{self.scan.body.name}.grad")
        operands, directions = self._scanned(seeds, scanned)
        scan = self.scan.replace(
            body=body,
            scan_input_axes=(),
            scan_output_axes=(),
            num_scan_inputs=len(operands),
            scan_input_directions=directions,
            scan_output_directions=tuple(1 - backwards for _, backwards in self.wanted),
            num_captured=len(captured),
        )
        outputs = as_tuple(scan(*starts, *operands, *(self.outer[value] for value in captured)))
        self.stacks.update(zip(self.wanted, outputs[len(roots) :], strict=True))
        return outputs[: len(roots)]

    def _scanned(self, seeds: Sequence[Input], values: Sequence[Value]) -> tuple[list[Value], Ints]:
        """The gradient's scan inputs (cotangents first), and the directions that run backwards in time."""
        operands: list[Value] = []
        directions: list[int] = []
        for seed in seeds:
            place = self.seeds.index(seed)
            cotangent = self.cotangents[place]
            assert cotangent is not None
            operands.append(cotangent)
            directions.append(1 - self.scan.output_directions[place - self.scan.num_states])
        for value in values:
            given = value in self.slices
            operands.append(self.outer[value] if given else self.stacks[value, 0])
            directions.append(1 - self._direction(value) if given else 1)
        return operands, tuple(directions)

    def _read(self, roots: Sequence[Value]) -> list[Value]:
        """The forward body's values that ``roots`` are to be computed from.

        What does not vary, and what only moves elements, is computed again rather than stacked.
        """
        found: dict[Value, None] = {}
        seen: set[Value] = set()
        stack = list(reversed(roots))
        while stack:
            value = stack.pop()
            if value in seen:
                continue
            seen.add(value)
            if value in self.outer or (value in self.varying and not _cheap(value)):
                found[value] = None
            elif value.node is not None:
                stack.extend(operand for operand in reversed(value.node.inputs) if operand is not None)
        return self._without_derived(list(found))

    def _without_derived(self, read: Sequence[Value]) -> list[Value]:
        """The values without those that a few elementwise operators make of the others: they are computed again, too,
        unless they are stacked anyway. The last ones of the body go first."""
        order = {output: place for place, node in enumerate(self.scan.body.nodes) for output in node.outputs}
        at_hand = {*self.outer, *self.residuals, *self.scan.body.outputs.values()}
        kept = dict.fromkeys(read)
        for value in sorted(read, key=lambda value: order.get(value, -1), reverse=True):
            if value not in at_hand and _derived(value, kept.keys() - {value}):
                del kept[value]
        return list(kept)

    def _stack_residuals(self, values: Sequence[Value]) -> None:
        """Stack values of the forward body: those that are scan outputs already are at hand."""
        given = list(self.scan.body.outputs.values())[self.scan.num_states :]
        for value in dict.fromkeys(values):
            if value in given and not self.scan.output_directions[given.index(value)]:
                self.stacks[value, 0] = self.results[self.scan.num_states + given.index(value)]
        missing = [value for value in dict.fromkeys(values) if (value, 0) not in self.stacks]
        if not missing:
            return
        extra = {f"residual{place}": value for place, value in enumerate(missing, len(self.scan.body.outputs))}
        scan = self.scan.replace(
            body=self.scan.body.with_(outputs=self.scan.body.outputs | extra),
            scan_input_axes=(),
            scan_output_axes=(),
            scan_output_directions=(*self.scan.output_directions, *(0 for _ in missing)),
        )
        outputs = as_tuple(scan(*self.operands))
        self.stacks.update(zip(((value, 0) for value in missing), outputs[len(self.results) :], strict=True))


def _places(op: Operator) -> bool:
    """Whether an operator of one operand puts its elements elsewhere, and zeros beside them: then sums may be taken
    before."""
    return op.moves or (isinstance(op, Pad) and op.mode == "constant")


def _derived(value: Value, given: Set[Value]) -> bool:
    """Whether a few elementwise operators make a value of ``given`` ones and of constants."""
    nodes, waiting = set[Node](), [value]
    while waiting:
        node = waiting.pop().node
        if node is None or not isinstance(node.operator, Elementwise) or len(nodes) == FEW:
            return False
        nodes.add(node)
        operands = [each for each in node.inputs if each is not None and not isinstance(each, Constant)]
        waiting += [each for each in operands if each not in given]
    return True


def _cheap(value: Value) -> bool:
    """Whether a value is a rearrangement of a tensor that is not larger."""
    if value.node is None or not value.node.operator.moves:
        return False
    source = value.node.inputs[0]
    return source is not None and source.type.size <= value.type.size
