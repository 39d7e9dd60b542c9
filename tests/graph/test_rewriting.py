"""Changing graphs: one walk, by which names pass alike and the given graph stays as it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.graph import (
    Graph,
    Input,
    Node,
    Replacements,
    Value,
    Variable,
    constant,
    rebuild,
    rewrite,
    substituted,
    to_text,
    translate,
)
from glowtrain.graph.retype import widened
from glowtrain.ops.elementwise.arithmetic import Add, Mul
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.ops.tensor.split import Split


def layers() -> Graph:
    """y = tanh(scaled) + scaled, scaled = x * 2, all values named."""
    x = Input(gt.f32[3], "x")
    scaled = x * 2.0
    bent = Tanh()(scaled)
    total = bent + scaled
    scaled.name, bent.name, total.name = "scaled", "bent", "total"
    return Graph((x,), {"y": total})


def doubled(node: Node) -> Sequence[Value] | None:
    """x · 2 as x + x, without a name."""
    x = node.inputs[0]
    return (Add()(x, x),) if isinstance(node.operator, Mul) else None


def by_rewrite(graph: Graph) -> Graph:
    return rewrite(graph, doubled)


def by_translate(graph: Graph) -> Graph:
    def change(node: Node, replacements: Replacements) -> Sequence[Value] | None:
        assert node in graph.nodes
        return doubled(replacements.refreshed(node))

    return translate(graph, change)


@pytest.mark.parametrize("change", [by_rewrite, by_translate])
def test_new_values_take_the_names_of_those_they_stand_for(change: Callable[[Graph], Graph]) -> None:
    graph = layers()
    before = to_text(graph)
    changed = change(graph)
    assert [node.outputs[0].name for node in changed.nodes] == ["scaled", "bent", "total"]
    assert [node.operator.key() for node in changed.nodes] == ["Add", "Tanh", "Add"]
    assert to_text(graph) == before


@pytest.mark.parametrize("change", [by_rewrite, by_translate])
def test_what_does_not_change_is_the_same_object(change: Callable[[Graph], Graph]) -> None:
    x = Input(gt.f32[3], "x")
    graph = Graph((x,), {"y": Tanh()(x)})
    assert change(graph) is graph


def test_translate_shows_nodes_as_they_were() -> None:
    graph = layers()
    seen = []

    def change(node: Node, replacements: Replacements) -> Sequence[Value] | None:
        seen.append((node, replacements.operands(node)))
        return doubled(node)

    changed = translate(graph, change)
    assert [node for node, _ in seen] == list(graph.nodes)
    assert [operands[0] for _, operands in seen][1:] == [changed.nodes[0].output, changed.nodes[1].output]


def test_values_that_are_given_keep_their_names() -> None:
    first, second = Split(num_outputs=2)(Input(gt.f32[4], "x"))
    first.name, second.name = "first", "second"
    stand_in = Input(gt.f32[2])
    (total,) = rebuild([first + second], {first: stand_in})
    assert stand_in.name == ""
    assert total.node is not None
    assert [None if value is None else value.name for value in total.node.inputs] == ["", "second"]


def test_parts_that_nothing_changes_are_shared() -> None:
    x, other = Input(gt.f32[3], "x"), Input(gt.f32[3], "other")
    kept, changed = Tanh()(x), Tanh()(other)
    (total,) = rebuild([kept + changed], {other: x})
    assert total.node is not None
    assert total.node.inputs[0] is kept
    assert total.node.inputs[1] is not changed


def test_an_update_goes_with_its_variable() -> None:
    w = Variable("w", np.zeros(3, np.float32))
    graph = Graph((), {"y": w * 2.0}, {w: w + 1.0})
    other = Variable("w", np.ones(3, np.float32))
    renewed = substituted(graph, {w: other})
    assert list(renewed.updates) == [other]
    assert renewed.variables == (other,)
    fixed = substituted(graph, {w: constant(w.initial)})
    assert (fixed.updates, fixed.variables) == ({}, ())


def test_a_wider_copy_has_the_same_names_and_shares_no_node() -> None:
    graph = layers()
    wide = widened(graph)
    assert [node.outputs[0].name for node in wide.graph.nodes] == ["scaled", "bent", "total"]
    assert not set(wide.graph.nodes) & set(graph.nodes)
    assert {value.dtype for node in wide.graph.nodes for value in node.outputs} == {gt.f64}
    assert wide.values[graph.outputs["y"]] is wide.graph.outputs["y"]
