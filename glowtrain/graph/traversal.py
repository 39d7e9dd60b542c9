"""The order in which nodes are visited."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from glowtrain.graph.value import Node, Value


def topological(roots: Iterable[Value], boundary: Collection[Value] = ()) -> list[Node]:
    """The nodes that ``roots`` need, each after its operands, in a deterministic order (depth first, iteratively).

    Values of ``boundary`` count as leaves.
    """
    order: list[Node] = []
    done: dict[Node, bool] = {}
    stack = [value.node for value in reversed(list(roots)) if value.node is not None and value not in boundary]
    while stack:
        node = stack[-1]
        if node not in done:
            done[node] = False
            for value in reversed(node.inputs):
                maker = None if value is None or value in boundary else value.node
                if maker is not None and maker not in done:
                    stack.append(maker)
            continue
        stack.pop()
        if not done[node]:
            done[node] = True
            order.append(node)
    return order
