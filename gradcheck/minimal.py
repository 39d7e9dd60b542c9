"""A random program that fails, made small, and kept as files with the command that repeats it.

Programs are made smaller on the graph itself, so any failing one can be, however it was found: what is not needed
beside the loss is dropped, the loss is taken of a value nearer to the inputs, values become inputs with the numbers
they have, and nodes are left out where an operand fits in their place. A change stays if the same check still fails
(delta debugging; Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import InputError
from glowtrain.gradcheck.programs import Case, check_case
from glowtrain.graph import Graph, Input, Value, constant, rebuild
from glowtrain.onnx_io import load, save
from glowtrain.ops.reduction import ReduceMean
from glowtrain.types import Array, f64

MOST = 300
"""Smaller programs that are tried, at most."""
ABOUT = "about"
"""The entry of an ``.npz`` file that says, as JSON, what failed."""

Fails = Callable[[Case], bool]


def fails_by(oracle: str, seed: int = 0) -> Fails:
    """Whether an oracle for programs fails on a case."""
    return lambda case: any(measure.status == "failed" for measure in check_case(case, [oracle], seed))


def minimal(case: Case, fails: Fails) -> Case:
    """The smallest case found for which ``fails`` holds; the case itself if nothing smaller does."""
    tried = 0
    smaller = True
    while smaller and tried < MOST:
        smaller, size = False, _size(case)
        for candidate in _candidates(case):
            if tried < MOST and _size(candidate) < size:
                tried += 1
                if fails(candidate):
                    case, smaller = candidate, True
                    break
    return case


def _size(case: Case) -> tuple[int, ...]:
    """Nodes first: what counts as smaller."""
    nodes = Graph((), {"loss": case.loss}).nodes
    return len(nodes), len(case.outputs) + int(case.swapped), len(case.parameters), len(case.inputs)


def _candidates(case: Case) -> Iterator[Case]:
    """Smaller cases, those that drop most first."""
    if case.swapped:
        yield replace(case, swapped=False)
    if case.outputs:
        yield _trimmed(case, case.loss, ())
    values = _values(case)
    for value in values[:-1]:
        if value.dtype == f64:
            yield _trimmed(case, _mean(value), case.outputs)
    for value in reversed(values[:-1]):
        yield _cut(case, value)
    for value in reversed(values[:-1]):
        yield from _left_out(case, value)
    for place in case.parameters:
        yield replace(case, parameters=tuple(k for k in case.parameters if k != place))


def _values(case: Case) -> list[Value]:
    """What the loss is computed from, operands first; the loss is last."""
    nodes = Graph((), {"loss": case.loss}).nodes
    return [value for node in nodes for value in node.outputs if value.type.size]


def _mean(value: Value) -> Value:
    """A loss that weighs the elements of a value differently."""
    if not value.shape:
        return value
    weights = constant(np.linspace(0.5, 1.5, value.type.size).reshape(value.shape))
    result: Value = ReduceMean(axes=None, keepdims=False)(value * weights)
    return result


def _cut(case: Case, value: Value) -> Case:
    """The case with a value as an input that holds what the value is."""
    known = evaluate(Graph(case.inputs, {"loss": case.loss, "value": value}), _feeds(case))
    used = {leaf.name for leaf in case.inputs}
    name = next(f"v{k}" for k in range(len(used) + 1) if f"v{k}" not in used)
    leaf = Input(value.type, name)
    loss, *outputs = rebuild((case.loss, *case.outputs), {value: leaf})
    wider = replace(case, inputs=(*case.inputs, leaf), arrays=(*case.arrays, np.asarray(known[value])))
    return _trimmed(wider, loss, tuple(outputs))


def _left_out(case: Case, value: Value) -> Iterator[Case]:
    """The case with an operand of a value's node in its place."""
    assert value.node is not None
    for operand in dict.fromkeys(value.node.inputs):
        if operand is not None and operand.type == value.type:
            loss, *outputs = rebuild((case.loss, *case.outputs), {value: operand})
            yield _trimmed(case, loss, tuple(outputs))


def _trimmed(case: Case, loss: Value, outputs: Sequence[Value]) -> Case:
    """The case with another loss, without the inputs that it does not read."""
    used = set(Graph((), {"loss": loss}).leaves)
    kept = [k for k, value in enumerate(case.inputs) if value in used]
    parameters = tuple(kept.index(k) for k in case.parameters if k in kept)
    inputs, arrays = tuple(case.inputs[k] for k in kept), tuple(case.arrays[k] for k in kept)
    seen = [value for value in outputs if _reads(value) <= set(inputs)]
    return Case(inputs, arrays, parameters, loss, tuple(seen), case.swapped)


def _reads(value: Value) -> set[Value]:
    return {leaf for leaf in Graph((), {"value": value}).leaves if isinstance(leaf, Input)}


def _feeds(case: Case) -> dict[str, Array]:
    return {value.name: array for value, array in zip(case.inputs, case.arrays, strict=True)}


@dataclass(frozen=True)
class Saved:
    """A case in files, the oracle that failed, and its seed."""

    case: Case
    oracle: str
    seed: int


def save_case(case: Case, path: Path | str, oracle: str, seed: int = 0) -> str:
    """Write ``path`` (.onnx: the loss over its inputs) and the same name with .npz (their numbers, and what failed).

    Returns the command that repeats the failure. Raises what :func:`glowtrain.save` does, and ``OSError``.
    """
    path = Path(path).with_suffix(".onnx")
    outputs = {"loss": case.loss, **{f"z{k}": value for k, value in enumerate(case.outputs)}}
    save(Graph(case.inputs, outputs, name="program"), path)
    names = [case.inputs[k].name for k in case.parameters]
    about = {"oracle": oracle, "seed": seed, "parameters": names, "swapped": case.swapped}
    arrays: dict[str, Any] = {ABOUT: np.array(json.dumps(about)), **_feeds(case)}
    np.savez(path.with_suffix(".npz"), **arrays)
    return f"python -m glowtrain.gradcheck.repeat {path}"


def load_case(path: Path | str) -> Saved:
    """Read what :func:`save_case` wrote. Raises :class:`ModelError`, and :class:`InputError` for other files."""
    path = Path(path)
    data = path.with_suffix(".npz")
    if not data.exists():
        raise InputError(f"{data}: no such file; it holds the inputs of {path}")
    with np.load(data) as stored:
        arrays = dict(stored)
    if ABOUT not in arrays:
        raise InputError(f"{data} was not written by gradcheck: it does not say what failed")
    about = json.loads(str(arrays.pop(ABOUT)))
    model = load(path)
    graph = model if isinstance(model, Graph) else model.bind({})
    numbers = tuple(arrays[value.name] for value in graph.inputs)
    places = tuple(k for k, value in enumerate(graph.inputs) if value.name in about["parameters"])
    loss, *others = graph.outputs.values()
    case = Case(graph.inputs, numbers, places, loss, tuple(others), bool(about["swapped"]))
    return Saved(case, str(about["oracle"]), int(about["seed"]))
