"""Scans: those that run the same loop become one, and stacks that nobody reads are not made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from glowtrain.graph import Graph, Node, Replacements, Value, rebuild, translate
from glowtrain.ops.control.scan import Scan
from glowtrain.optimize.cse import MergeEqual, draws

Output = tuple[Value, int, int]
"""A scan output: the body's value, its direction and its axis."""


@dataclass(frozen=True)
class MergeScans:
    """Merge Scans over the same operands whose bodies compute the same next states.

    The gradient of a Scan leaves a second one that runs the same loop again to stack residuals.
    """

    def run(self, graph: Graph) -> Graph:
        """The merged graph; the same object if no Scans can be merged."""
        alike = _grouped(_loops(graph), _circumstances)
        groups = [group for loops in alike for group in _grouped(loops, _states)]
        group_of = {node: group for group in groups for node in group}
        merged: dict[Node, Sequence[Value]] = {}

        def change(node: Node, replacements: Replacements) -> Sequence[Value] | None:
            if node in group_of and node not in merged:
                merged.update(_merged(group_of[node], replacements.operands(node)))
            return merged.get(node)

        return translate(graph, change) if groups else graph


Loops = dict[Node, Scan]
"""Nodes whose operator is a Scan."""


def _loops(graph: Graph) -> Loops:
    return {node: node.operator for node in graph.nodes if isinstance(node.operator, Scan)}


def _grouped(loops: Loops, key: Callable[[Node, Scan], Hashable]) -> list[Loops]:
    """The loops with equal keys, where there are several."""
    groups: dict[Hashable, Loops] = defaultdict(dict)
    for node, scan in loops.items():
        groups[key(node, scan)][node] = scan
    return [group for group in groups.values() if len(group) > 1]


def _circumstances(node: Node, scan: Scan) -> Hashable:
    """What two Scans must have in common to run as one, but for what their bodies compute."""
    axes = scan.scan_input_axes or (0,) * scan.num_scan_inputs
    return (
        node.inputs,
        scan.num_states,
        scan.num_scan_inputs,
        axes,
        scan.input_directions,
        scan.num_captured,
        scan.parts,
    )


def _states(node: Node, scan: Scan) -> Hashable:
    """What a Scan's states become: where it draws at random, what the very same nodes compute."""
    body = scan.body.with_(outputs=dict(list(scan.body.outputs.items())[: scan.num_states]))
    return (body.inputs, tuple(body.outputs.values())) if draws(body) else body.positional_key


def _scan_outputs(scan: Scan) -> list[Output]:
    values = list(scan.body.outputs.values())[scan.num_states :]
    axes = scan.scan_output_axes or (0,) * scan.num_scan_outputs
    return list(zip(values, scan.output_directions, axes, strict=True))


def _merged(loops: Loops, operands: Sequence[Value | None]) -> dict[Node, Sequence[Value]]:
    """What takes the place of the loops' outputs: those of one Scan with every state and each different scan output
    once."""
    scans = _in_one_body(loops)
    node, first = next(iter(scans.items()))
    stacks = list(dict.fromkeys(output for scan in scans.values() for output in _scan_outputs(scan)))
    whole = Node(_with_stacks(first, stacks), operands, node.name)
    states, made = whole.outputs[: first.num_states], dict(zip(stacks, whole.outputs[first.num_states :], strict=True))
    return {node: [*states, *(made[output] for output in _scan_outputs(scan))] for node, scan in scans.items()}


def _in_one_body(loops: Loops) -> Loops:
    """The same Scans over the inputs of the first one's body, with what is equal in their bodies computed once."""
    bodies = [scan.body for scan in loops.values()]
    inputs, roots = bodies[0].inputs, list[Value]()
    for body in bodies:
        roots += rebuild(list(body.outputs.values()), dict(zip(body.inputs, inputs, strict=True)))
    whole = MergeEqual().run(Graph(inputs, {str(number): root for number, root in enumerate(roots)}))
    results = iter(whole.outputs.values())
    merged = (body.with_(inputs=inputs, outputs={name: next(results) for name in body.outputs}) for body in bodies)
    return {node: scan.replace(body=body) for (node, scan), body in zip(loops.items(), merged, strict=True)}


def _with_stacks(scan: Scan, stacks: list[Output]) -> Scan:
    """The Scan with other scan outputs."""
    states = dict(list(scan.body.outputs.items())[: scan.num_states])
    names = (f"stack{place}" for place in range(len(stacks) + len(states)))
    free = (name for name in names if name not in states)
    outputs = states | {name: value for name, (value, _, _) in zip(free, stacks, strict=False)}
    return scan.replace(
        body=scan.body.with_(outputs=outputs),
        scan_output_axes=tuple(axis for _, _, axis in stacks),
        scan_output_directions=tuple(direction for _, direction, _ in stacks),
    )


@dataclass(frozen=True)
class DropUnreadStacks:
    """Take scan outputs that nothing reads out of Scans."""

    def run(self, graph: Graph) -> Graph:
        """The smaller graph; the same object if every scan output is read."""
        loops = _loops(graph)
        if not loops:
            return graph
        read = {*graph.users, *graph.roots}
        larger = {node: scan for node, scan in loops.items() if not read.issuperset(_stacks(scan, node))}

        def change(node: Node, replacements: Replacements) -> Sequence[Value] | None:
            return _smaller(larger[node], node, replacements, read) if node in larger else None

        return translate(graph, change) if larger else graph


def _stacks(scan: Scan, node: Node) -> tuple[Value, ...]:
    return node.outputs[scan.num_states :]


def _smaller(scan: Scan, node: Node, replacements: Replacements, read: set[Value]) -> list[Value]:
    """What takes the place of the outputs that are read; those that are not stay."""
    stacks = zip(_stacks(scan, node), _scan_outputs(scan), strict=True)
    kept = {value: output for value, output in stacks if value in read}
    fresh = Node(_with_stacks(scan, list(kept.values())), replacements.operands(node), node.name)
    new = dict(zip((*node.outputs[: scan.num_states], *kept), fresh.outputs, strict=True))
    return [new.get(value, value) for value in node.outputs]
