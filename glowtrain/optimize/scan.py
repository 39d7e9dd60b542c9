"""Scans: those that run the same loop become one, and stacks that nobody reads are not made."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from glowtrain.graph import Graph, Node, Replacements, Value, rewrite, translate
from glowtrain.ops.control.scan import Scan

Output = tuple[Value, int, int]
"""A scan output: the body's value, its direction and its axis."""


@dataclass(frozen=True)
class MergeScans:
    """Merge Scans over the same operands whose bodies share their inputs and next states.

    The gradient of a Scan leaves a second one that runs the same loop again to stack residuals.
    """

    def run(self, graph: Graph) -> Graph:
        """The merged graph; the same object if no Scans can be merged."""
        groups: dict[Hashable, list[Node]] = defaultdict(list)
        for node in graph.nodes:
            if isinstance(node.operator, Scan):
                groups[_loop(node.operator, node)].append(node)
        merged = {node: group for group in groups.values() if len(group) > 1 for node in group}
        made: dict[int, Node] = {}

        def change(node: Node) -> Sequence[Value] | None:
            if node not in merged:
                return None
            group = merged[node]
            if id(group) not in made:
                made[id(group)] = _merge(group)
            return _outputs(node, made[id(group)])

        return rewrite(graph, change, bodies=False) if merged else graph


def _loop(scan: Scan, node: Node) -> Hashable:
    """What two Scans must have in common to run as one."""
    states = tuple(scan.body.outputs.values())[: scan.num_states]
    axes = scan.scan_input_axes or (0,) * scan.num_scan_inputs
    return node.inputs, scan.body.inputs, states, scan.num_scan_inputs, axes, scan.input_directions, scan.num_captured


def _scan_outputs(scan: Scan) -> list[Output]:
    values = list(scan.body.outputs.values())[scan.num_states :]
    axes = scan.scan_output_axes or (0,) * scan.num_scan_outputs
    return list(zip(values, scan.output_directions, axes, strict=True))


def _merge(group: list[Node]) -> Node:
    """One Scan with every state and each different scan output once."""
    scans = [node.operator for node in group if isinstance(node.operator, Scan)]
    stacks = dict.fromkeys(output for scan in scans for output in _scan_outputs(scan))
    return Node(_with_stacks(scans[0], list(stacks)), group[0].inputs, group[0].name)


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


def _outputs(node: Node, merged: Node) -> list[Value]:
    """The merged node's outputs in the order of the node's own."""
    scan, whole = node.operator, merged.operator
    assert isinstance(scan, Scan)
    assert isinstance(whole, Scan)
    places = {output: place for place, output in enumerate(_scan_outputs(whole), whole.num_states)}
    return [*merged.outputs[: scan.num_states], *(merged.outputs[places[output]] for output in _scan_outputs(scan))]


@dataclass(frozen=True)
class DropUnreadStacks:
    """Take scan outputs that nothing reads out of Scans."""

    def run(self, graph: Graph) -> Graph:
        """The smaller graph; the same object if every scan output is read."""
        read = {*graph.users, *graph.roots}

        def change(node: Node, replacements: Replacements) -> Sequence[Value] | None:
            if isinstance(node.operator, Scan) and any(value not in read for value in _stacks(node.operator, node)):
                return _smaller(node.operator, node, replacements, read)
            return None

        return translate(graph, change)


def _stacks(scan: Scan, node: Node) -> tuple[Value, ...]:
    return node.outputs[scan.num_states :]


def _smaller(scan: Scan, node: Node, replacements: Replacements, read: set[Value]) -> list[Value]:
    """What takes the place of the outputs that are read; those that are not stay."""
    stacks = zip(_stacks(scan, node), _scan_outputs(scan), strict=True)
    kept = {value: output for value, output in stacks if value in read}
    fresh = Node(_with_stacks(scan, list(kept.values())), replacements.operands(node), node.name)
    new = dict(zip((*node.outputs[: scan.num_states], *kept), fresh.outputs, strict=True))
    return [new.get(value, value) for value in node.outputs]
