"""The verifier of partitions finds what is planted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import PartitionError
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.graph import Graph, Input, Node, Variable
from glowtrain.graph.retype import retyped
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.runtime.partition.assembling import _Assembling, assembled
from glowtrain.runtime.partition.grouping import Item, StageCut, Stages, Update, _Merging
from glowtrain.runtime.partition.partition import Part, Partition, whole
from glowtrain.runtime.partition.storage import Storage
from glowtrain.runtime.partition.verify import verify
from glowtrain.types import f32, f64
from tests.compiler.networks import mlp, step_of
from tests.runtime.partition.cutting_models import cut_at, differing

Plant = Callable[[Partition], Partition]


@pytest.fixture(scope="module")
def step() -> Graph:
    random = np.random.default_rng(5)
    x, labels = random.normal(size=(4, 1, 8, 8)).astype(np.float32), random.integers(0, 10, 4)
    return step_of(mlp, gt.optim.SGD(0.1, momentum=0.9), x=x, labels=labels)[0]


def changed(partition: Partition, number: int, **changes: object) -> Partition:
    """The partition with another graph in one of its parts."""
    parts = list(partition.parts)
    parts[number] = replace(parts[number], graph=parts[number].graph.with_(**changes))
    return replace(partition, parts=tuple(parts))


def backwards(partition: Partition) -> Partition:
    return replace(partition, parts=partition.parts[::-1])


def without_an_edge(partition: Partition) -> Partition:
    outputs = dict(partition.parts[0].graph.outputs)
    outputs.pop(next(name for name in outputs if name in partition.parts[1].takes))
    return changed(partition, 0, outputs=outputs)


def given_twice(partition: Partition) -> Partition:
    name, value = next(iter(partition.parts[0].graph.outputs.items()))
    outputs = {**partition.parts[1].graph.outputs, name: next(iter(partition.parts[1].graph.outputs.values()))}
    return changed(partition, 1, outputs=outputs) if value is not None else partition


def of_another_type(partition: Partition) -> Partition:
    outputs = dict(partition.parts[0].graph.outputs)
    name = next(name for name in outputs if name in partition.parts[1].takes)
    return changed(partition, 0, outputs={**outputs, name: Input(f64[3], "strange")}, inputs=())


def in_two_stages(partition: Partition) -> Partition:
    parts = tuple(replace(part, stage=index) for index, part in enumerate(partition.parts))
    return replace(partition, parts=parts)


def updated_twice(partition: Partition) -> Partition:
    updates = partition.parts[-1].graph.updates
    variable: Variable = next(v for v in updates if v in partition.parts[0].graph.variables)
    return changed(partition, 0, updates={variable: variable})


def without_an_output(partition: Partition) -> Partition:
    return replace(partition, outputs={**partition.outputs, "accuracy": "accuracy"})


def of_one_name(partition: Partition) -> Partition:
    return replace(partition, parts=tuple(replace(part, name="part") for part in partition.parts))


def without_parts(partition: Partition) -> Partition:
    return replace(partition, parts=())


PLANTED: dict[str, tuple[Plant, str]] = {
    "order": (backwards, "gives after it"),
    "edge": (without_an_edge, "which nothing gives"),
    "twice": (given_twice, "is what part stage0.1 gives already"),
    "type": (of_another_type, "as f32"),
    "stages": (in_two_stages, "is of stage 0 and of stage 2"),
    "updates": (updated_twice, "is updated by 'stage0.1', 'stage0.2'"),
    "output": (without_an_output, "output 'accuracy' is 'accuracy', which nothing gives"),
    "names": (of_one_name, "3 parts are called 'part'"),
    "empty": (without_parts, "it has no parts"),
}


def test_what_is_well_formed_passes(step: Graph) -> None:
    verify(cut_at(step, [2], "interpreter"))
    verify(whole(step))


@pytest.mark.parametrize(("plant", "message"), PLANTED.values(), ids=PLANTED)
def test_what_is_planted_is_found(plant: Plant, message: str, step: Graph) -> None:
    with pytest.raises(PartitionError, match="not well formed") as caught:
        verify(plant(cut_at(step, [2], "interpreter")))
    assert message in str(caught.value)


def test_a_part_that_updates_what_another_one_still_reads() -> None:
    """Nothing that passes makes it wait."""
    counter, x = Variable("counter", np.zeros(2, np.float32)), Input(f32[2], "x")
    reading = Part("reading", Graph((x,), {"y": x + counter}, {}, "reading"))
    updating = Part("updating", Graph((x,), {}, {counter: Relu()(x)}, "updating"))
    with pytest.raises(PartitionError) as caught:
        verify(Partition("both", (reading, updating), {"x": f32[2]}, {"y": "y"}))
    assert "part reading reads variable 'counter', which part updating updates without waiting" in str(caught.value)


@pytest.mark.spread(1)
@pytest.mark.parametrize(("example", "bounds"), [(60, [10, 18]), (86, [1, 3]), (161, [2, 5])])
def test_a_part_takes_what_it_does_not_use_to_wait(
    example: int, bounds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs in which one part of a stage reads a variable that another one updates, of whose values that one has no
    use."""
    case = drawn_case(23, example)
    graph = retyped(case.step, (f64,), f32).graph
    arrays = {value.name: array for value, array in zip(case.inputs, case.arrays, strict=True)}
    inputs = {value.name: arrays[value.name].astype(value.dtype.numpy) for value in graph.inputs}
    partition = cut_at(graph, bounds, "cpu")
    verify(partition)
    assert not differing(graph, partition, inputs, "cpu", steps=2)
    monkeypatch.setattr(_Assembling, "_wait", lambda self, index, variable: None)
    with pytest.raises(PartitionError, match="without waiting for it"):
        verify(cut_at(graph, bounds, "cpu"))


def test_updates_before_reads_give_other_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The counter is read by the last part of its stage; updated where its new value is made, it would be new there."""
    x, counter = Input(f32[2], "x"), Variable("counter", np.ones(2, np.float32))
    there = Relu()(Relu()(x * counter) * 2.0)
    graph = Graph((x,), {"y": there - counter}, {counter: counter + 0.5}, "late")
    inputs = {"x": np.array([2, 1], np.float32)}
    stages = Stages(dict(zip(graph.nodes, (0, 1, 1, 1, 0, 0), strict=True)), {counter: 0})

    def cut() -> Partition:
        return assembled(graph, stages, Storage(), lambda nodes, stage: 0.0)

    assert [part.stage for part in cut().parts] == [0, 1, 0]
    assert not differing(graph, cut(), inputs, "interpreter", steps=3)
    before = StageCut.before.func  # type: ignore[attr-defined]

    def careless(self: StageCut) -> dict[Item, list[Item]]:
        found: dict[Item, list[Item]] = before(self)
        for item, others in found.items():
            if isinstance(item, Update):
                others[:] = [other for other in others if isinstance(other, Node) and item.value in other.outputs]
        return found

    monkeypatch.setattr(StageCut, "before", property(careless))
    monkeypatch.setattr(_Merging, "run", lambda self: None)
    assert differing(graph, cut(), inputs, "interpreter", steps=3)
