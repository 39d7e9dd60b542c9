"""Updates of variables as one nest for each variable and its state: what elementwise operators alone lead to.

An optimizer's update of a parameter is some twenty such operators, which give new values of two or three variables. A
nest for each of them would be written only to be inlined into others and fused with these, always, and those of all
parameters alike: here the same loop is found for a fraction of the time. What other operators lead from, what has
another shape than the variables, and large groups are left to the passes on programs, which weigh them.

Each nest reads and writes its variables at one place at a time, and stands behind all others that read them; so all see
the values from before the step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from glowtrain.graph import Graph, Node, Value, Variable
from glowtrain.loops import Expr, For, Let, Ref, Statement, Tensor, indices_of
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.logic import Cast

LARGEST, MOST_OPERANDS = 160, 18
"""Operators and their operands in a group, and the tensors that it reads, at most: well within what one kernel may
have, as what makes the gradient is to be fused with it."""

_LOWERING = ("lower", "called", "layouts")
"""What decides how an operator is lowered."""


@dataclass(frozen=True)
class UpdateGroup:
    """Elementwise operators over one shape, operands first, which only updates of these ``variables`` need."""

    nodes: tuple[Node, ...]
    variables: tuple[Variable, ...]

    @cached_property
    def operands(self) -> tuple[Value, ...]:
        """What it reads and does not make, each once, in order."""
        made = {node.outputs[0] for node in self.nodes}
        read = dict.fromkeys(value for node in self.nodes for value in node.inputs if value is not None)
        return tuple(value for value in read if value not in made)


def update_groups(graph: Graph) -> list[UpdateGroup]:
    """The groups of a graph, in the order of their first updates."""
    home = _connected(_members(graph))
    found: dict[int, tuple[list[Node], list[Variable]]] = {}
    for variable, value in graph.updates.items():
        if value.node in home:
            nodes = home[value.node]
            found.setdefault(id(nodes), (nodes, []))[1].append(variable)
    groups = [_behind_rounding(tuple(nodes), tuple(variables), graph) for nodes, variables in found.values()]
    return _independent([group for group in groups if _is_small(group)])


def lower_group(
    group: UpdateGroup, updates: Mapping[Variable, Value], tensor: Callable[[Value], Tensor], names: Mapping[Value, str]
) -> list[Statement]:
    """The nest of a group: it writes its variables last, of what they and the operands hold before.

    ``tensor`` gives that of an operand or a variable; what several read has one of ``names``.
    """
    indices = indices_of(group.variables[0].shape)
    stored = {updates[variable] for variable in group.variables}
    reads = Counter(value for node in group.nodes for value in node.inputs)
    elements: dict[Value, Expr] = {value: tensor(value).broadcast(indices) for value in group.operands}
    body: list[Statement] = []
    for node in group.nodes:
        operator, (result,) = node.operator, node.outputs
        assert isinstance(operator, Elementwise)
        element = operator.scalar(*[elements[value] for value in node.inputs if value is not None])
        if result in stored or reads[result] > 1:
            name = Ref(result.dtype, names[result])
            body.append(Let(name, element))
            element = name
        elements[result] = element
    body += [tensor(variable).store(indices, elements[updates[variable]]) for variable in group.variables]
    return [For(indices, tuple(body))]


def _members(graph: Graph) -> list[Node]:
    """The elementwise nodes that only updates need, operands first: what reads one is another of the same shape."""
    outputs, found = frozenset(graph.outputs.values()), dict[Node, None]()
    for node in reversed(graph.nodes):
        result = node.outputs[0]
        if _is_plain(node) and result.rank and result not in outputs:
            readers = graph.users.get(result, ())
            if all(reader in found and reader.outputs[0].shape == result.shape for reader in readers):
                found[node] = None
    return list(reversed(found))


def _connected(members: Sequence[Node]) -> dict[Node, list[Node]]:
    """For each node those that it is connected with, itself among them, operands first."""
    home = {node: [node] for node in members}
    for node in members:
        for value in node.inputs:
            operands = home.get(value.node) if value is not None and value.node is not None else None
            if operands is not None and operands is not home[node]:
                own = home[node]
                operands += own
                home.update(dict.fromkeys(own, operands))
    return home


def _behind_rounding(nodes: tuple[Node, ...], variables: tuple[Variable, ...], graph: Graph) -> UpdateGroup:
    """The group without nodes that round what others make: these may be sums, behind which rounding belongs."""
    stored, kept = {graph.updates[variable] for variable in variables}, dict[Node, None]()
    for node in nodes:
        made = any(value is not None and value.node in kept for value in node.inputs)
        if made or node.outputs[0] in stored or not _rounds(node):
            kept[node] = None
    return UpdateGroup(tuple(kept), variables)


def _rounds(node: Node) -> bool:
    """Whether a node makes what has fewer bytes of what another one made."""
    (value,) = node.inputs[:1]
    narrower = value is not None and value.node is not None and value.dtype.size > node.outputs[0].dtype.size
    return narrower and isinstance(node.operator, Cast)


def _is_small(group: UpdateGroup) -> bool:
    """Whether a group and what makes the gradient fit into one kernel."""
    size = sum(1 + len(node.inputs) for node in group.nodes)
    return size <= LARGEST and len(group.operands) <= MOST_OPERANDS


def _independent(groups: Sequence[UpdateGroup]) -> list[UpdateGroup]:
    """The groups without those that read a variable which another of them writes."""
    writers = {variable: group for group in groups for variable in group.variables}
    found: list[UpdateGroup] = []
    for group in groups:
        if all(writers.get(value, group) is group for value in group.operands if isinstance(value, Variable)):
            found.append(group)
        else:
            for variable in group.variables:
                del writers[variable]
    return found


def _is_plain(node: Node) -> bool:
    """Whether the family alone says how a node is lowered."""
    cls = type(node.operator)
    return issubclass(cls, Elementwise) and all(getattr(cls, own) is getattr(Elementwise, own) for own in _LOWERING)
