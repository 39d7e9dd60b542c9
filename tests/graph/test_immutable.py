"""Graphs stay as they are: whatever is done with one, its text and its arrays are the same afterwards."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import WALK, arrive
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.graph import Graph, Input, to_text
from glowtrain.graph.registry import Named
from glowtrain.ops.elementwise.logic import Identity
from tests.program.random_graphs import RandomGraph


def unnamed_operand() -> Graph:
    """A rule gives a value that has no name in place of one that has."""
    x = Input(gt.f32[3], "x")
    inner = x * 2.0
    same = Identity()(inner)
    same.name = "same"
    return Graph((x,), {"y": same + 1.0})


def test_optimizing_names_nothing_in_the_graph_that_it_is_given() -> None:
    graph = unnamed_operand()
    before = to_text(graph)
    arrive(graph, stages=gt.Cpu().stages(WALK))
    assert to_text(graph) == before


@pytest.mark.spread(13)
@pytest.mark.parametrize("seed", range(40))
def test_compiling_leaves_random_graphs_as_they_are(seed: int) -> None:
    graph = RandomGraph(ChoiceDraw(seed)).graph()
    text, key = to_text(graph), graph.key
    arrive(graph, stages=gt.Cpu().stages(WALK))
    assert (to_text(graph), graph.with_().key) == (text, key)


def test_a_key_says_what_is_computed() -> None:
    def of(scale: float = 2.0, name: str = "x", output: str = "y", inner: str = "") -> str:
        x = Input(gt.f32[3], name)
        y = x * scale
        y.name = inner
        return Graph((x,), {output: y + 1.0}).key

    assert of() == of() == of(inner="scaled")
    assert len({of(), of(scale=3.0), of(name="z"), of(output="z")}) == 4
    a, b = Input(gt.f32[3], "a"), Input(gt.f32[3], "b")
    assert Graph((a, b), {"y": a + b}).key != Graph((b, a), {"y": a + b}).key
    w = gt.Variable("w", np.zeros(3, np.float32))
    assert Graph((a,), {"y": a + w}).key != Graph((a,), {"y": a + w}, {w: a + w}).key


def test_a_positional_key_counts_inputs_and_outputs_by_their_order() -> None:
    def of(first: str, second: str, output: str, turned: bool = False, extent: int = 3) -> str:
        a, b = Input(gt.f32[extent], first), Input(gt.f32[extent], second)
        return Graph((b, a) if turned else (a, b), {output: a - b}).positional_key

    assert of("a", "b", "y") == of("p", "q", "z") != of("a", "b", "y", turned=True)
    assert of("a", "b", "y") != of("a", "b", "y", extent=4)
    x = Input(gt.f32[3], "x")
    y, z = x + 1.0, x + 2.0
    assert Graph((x,), {"y": y, "z": z}).positional_key != Graph((x,), {"y": z, "z": y}).positional_key


@pytest.mark.parametrize(
    "program",
    [
        "gt.Input(gt.f32[2], 'x') + 1",
        "gt.parse('graph g(%x: f32[2]) {\\n  %y: f32[2] = Tanh(%x)\\n  output y = %y\\n}\\n')",
        "gt.verify(gt.Graph((), {}))",
        "gt.gradients(gt.constant(1.0) * 2, [])",
    ],
)
def test_the_registry_is_full_whenever_a_graph_can_be_made(program: str) -> None:
    """In a process that has done nothing but import Glowtrain."""
    subprocess.run([sys.executable, "-c", f"import glowtrain as gt; {program}"], check=True)


def test_every_public_name_works_alone() -> None:
    """Each in the same fresh process: none needs another to have been asked for before."""
    code = "import glowtrain as gt\nfor name in gt.__all__: getattr(gt, name)\nassert set(gt.__all__) <= set(dir(gt))"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_operators_by_name_are_there() -> None:
    """Those that modules name because they cannot import them."""
    named = {
        value.key
        for name, module in list(sys.modules.items())
        if name.startswith("glowtrain.")
        for value in vars(module).values()
        if isinstance(value, Named)
    }
    assert {"ReduceSum", "Pad", "Split"} <= named
    for key in named:
        assert Named(key).cls.key() == key


def test_changing_a_graph_changes_what_its_template_builds() -> None:
    @gt.model(x=gt.f32["n"])
    def double(x: gt.Value) -> gt.Value:
        return x * 2.0

    def halved(graph: Graph) -> Graph:
        return graph.with_(outputs={name: value * 0.25 for name, value in graph.outputs.items()})

    bound = double.bind({"n": 3})
    changed = bound.map(halved)
    assert changed.template is not None
    keys = {changed.key, changed.template.bind({"n": 3}).key, double.map(halved).bind({"n": 3}).key}
    assert keys == {halved(bound).key}
    assert bound.template is double
    alone = Graph(bound.inputs, bound.outputs)
    assert alone.map(halved).template is None
