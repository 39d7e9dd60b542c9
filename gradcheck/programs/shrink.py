"""A random program that fails, made small, and kept as files with the command that repeats it.

Programs are made smaller on the graph itself, so any failing one can be, however it was found: what is not needed
beside the loss is dropped, the loss is taken of a value nearer to the inputs, values become inputs with the numbers
they have, and nodes are left out where an operand fits in their place. A change stays if the same check still fails
(delta debugging; Zeller and Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain.backends.interpreter import evaluate
from glowtrain.errors import InputError
from glowtrain.gradcheck.programs.case import Case
from glowtrain.gradcheck.programs.options import DEFAULTS, Choice
from glowtrain.gradcheck.programs.rungs import check_case
from glowtrain.graph import Graph, Input, Value, constant, rebuild
from glowtrain.onnx_io import save
from glowtrain.onnx_io.read.load import load_numeric
from glowtrain.ops.reduce.reduction import ReduceMean
from glowtrain.types import Array

MOST = 300
"""Smaller programs that are tried, at most."""
ABOUT = "about"
"""The entry of an ``.npz`` file that says, as JSON, what failed."""

Fails = Callable[[Case], bool]


def fails_by(oracle: str, seed: int = 0, choice: Choice = DEFAULTS) -> Fails:
    """Whether an oracle for programs fails on a case, and in the same way as on the first: differs, or raises."""
    ways: list[str] = []

    def fails(case: Case) -> bool:
        measures = check_case(case, [oracle], seed, choice)
        failed = [measure.detail for measure in measures if measure.status == "failed"]
        ways.extend(map(_way, failed[:1]))
        return bool(failed) and _way(failed[0]) == ways[0]

    return fails


def _way(detail: str) -> str:
    """The name of the error that was raised, if one was."""
    first = detail.split(":")[0]
    return first if first.endswith("Error") else "differs"


def minimal(case: Case, fails: Fails) -> Case:
    """The smallest case found for which ``fails`` holds; the case itself if nothing smaller does."""
    tried = 0
    smaller = True
    while smaller and tried < MOST:
        smaller, size = False, _size(case)
        for candidate in _candidates(case):
            if tried < MOST and _size(candidate) < size:
                tried += 1
                if _finite(candidate) and fails(candidate):
                    case, smaller = candidate, True
                    break
    return case


def _size(case: Case) -> tuple[int, ...]:
    """Nodes first (those of bodies too): what counts as smaller."""
    further = len(case.losses) + len(case.outputs) + len(case.states) + int(case.apart)
    return _nodes(case.graph), further, len(case.parameters), len(case.inputs)


def _nodes(graph: Graph) -> int:
    bodies = (value for node in graph.nodes for value in node.operator.attributes().values())
    return len(graph.nodes) + sum(_nodes(value) for value in bodies if isinstance(value, Graph))


def _finite(case: Case) -> bool:
    """Whether all losses are: what is not tells nothing about gradients."""
    known = evaluate(case.graph, _feeds(case))
    return all(np.isfinite(np.asarray(known[loss], np.float64)).all() for loss in case.losses)


def _candidates(case: Case) -> Iterator[Case]:
    """Smaller cases, those that drop most first."""
    yield from _fewer_roots(case)
    values = _values(case)
    for value in values:
        if value.dtype.is_float and not (len(case.losses) == 1 and value is case.losses[0]):
            yield _trimmed(replace(case, losses=(_mean(value),)))
    for value in reversed(values):
        yield from _cut(case, value)
    for value in reversed(values):
        yield from _left_out(case, value)
    for number in case.parameters:
        yield replace(case, parameters=tuple(k for k in case.parameters if k != number))


def _fewer_roots(case: Case) -> Iterator[Case]:
    """The case without states, further results, or all losses but one."""
    if case.states:
        yield _trimmed(replace(case, states=()))
    if case.outputs:
        yield _trimmed(replace(case, outputs=()))
    if len(case.losses) > 1:
        for loss in case.losses:
            yield _trimmed(replace(case, losses=(loss,), apart=False))
    if case.apart:
        yield replace(case, apart=False)
    for value in case.outputs:
        yield _trimmed(replace(case, outputs=tuple(other for other in case.outputs if other is not value)))


def _values(case: Case) -> list[Value]:
    """What the roots are computed from, operands first, without the roots themselves where one is the only loss."""
    return [value for node in case.graph.nodes for value in node.outputs if value.type.size]


def _mean(value: Value) -> Value:
    """A loss that weighs the elements of a value differently."""
    if not value.shape:
        return value
    weights = constant(np.linspace(0.5, 1.5, value.type.size).reshape(value.shape), value.dtype)
    result: Value = ReduceMean(axes=None, keepdims=False)(value * weights)
    return result


def _cut(case: Case, value: Value) -> Iterator[Case]:
    """The case with a value as an input that holds what the value is, if that is finite."""
    known = np.asarray(evaluate(case.graph, _feeds(case))[value])
    if value.dtype.is_float and not np.isfinite(known.astype(np.float64)).all():
        return
    used = {leaf.name for leaf in case.inputs}
    name = next(f"v{k}" for k in range(len(used) + 1) if f"v{k}" not in used)
    leaf = Input(value.type, name)
    wider = replace(case, inputs=(*case.inputs, leaf), arrays=(*case.arrays, known))
    yield _trimmed(wider.with_roots(rebuild(case.roots, {value: leaf})))


def _left_out(case: Case, value: Value) -> Iterator[Case]:
    """The case with an operand of a value's node in its place."""
    assert value.node is not None
    for operand in dict.fromkeys(value.node.inputs):
        if operand is not None and operand.type == value.type:
            yield _trimmed(case.with_roots(rebuild(case.roots, {value: operand})))


def _trimmed(case: Case) -> Case:
    """The case without the inputs that nothing reads."""
    held = {number for number, _ in case.states}
    used = set(case.graph.leaves) | {case.inputs[number] for number in held}
    kept = [k for k, value in enumerate(case.inputs) if value in used]
    return replace(
        case,
        inputs=tuple(case.inputs[k] for k in kept),
        arrays=tuple(case.arrays[k] for k in kept),
        parameters=tuple(kept.index(k) for k in case.parameters if k in kept),
        states=tuple((kept.index(k), value) for k, value in case.states),
    )


def _feeds(case: Case) -> dict[str, Array]:
    return {value.name: array for value, array in zip(case.inputs, case.arrays, strict=True)}


@dataclass(frozen=True)
class Saved:
    """A case in files, the oracle that failed, its seed, and what it was compiled with."""

    case: Case
    oracle: str
    seed: int
    choice: Choice


def save_case(case: Case, path: Path | str, oracle: str, seed: int = 0, choice: Choice = DEFAULTS) -> str:
    """Write ``path`` (.onnx: the loss over its inputs) and the same name with .npz (their numbers, and what failed).

    Returns the command that repeats the failure. Raises what :func:`glowtrain.save` does, and ``OSError``.
    """
    path = Path(path).with_suffix(".onnx")
    outputs = dict(zip(_root_names(case), case.roots, strict=True))
    save(Graph(case.inputs, outputs, name="program"), path)
    names = [case.inputs[k].name for k in case.parameters]
    states = [case.inputs[k].name for k, _ in case.states]
    about = {"oracle": oracle, "seed": seed, "options": dict(choice)}
    about |= {"parameters": names, "states": states, "apart": case.apart}
    arrays: dict[str, Any] = {name: _plain(array) for name, array in _feeds(case).items()}
    arrays[ABOUT] = np.array(json.dumps(about))
    np.savez(path.with_suffix(".npz"), **arrays)
    return f"python -m glowtrain.gradcheck.programs.repeat {path}"


def _root_names(case: Case) -> list[str]:
    losses, outputs = range(len(case.losses)), range(len(case.outputs))
    held = (case.inputs[number].name for number, _ in case.states)
    return [*(f"loss{k}" for k in losses), *(f"z{k}" for k in outputs), *(f"{name}.next" for name in held)]


def _plain(array: Array) -> Array:
    """What an ``.npz`` file can hold: NumPy has no bf16."""
    return array.astype(np.float32) if array.dtype.kind == "V" else array


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
    model = load_numeric(path)
    graph = model if isinstance(model, Graph) else model.bind({})
    numbers = tuple(arrays[value.name].astype(value.dtype.numpy) for value in graph.inputs)
    positions = {value.name: k for k, value in enumerate(graph.inputs)}
    roots = graph.outputs
    case = Case(
        graph.inputs,
        numbers,
        tuple(positions[name] for name in about["parameters"]),
        tuple(value for name, value in roots.items() if name.startswith("loss")),
        tuple(value for name, value in roots.items() if name.startswith("z")),
        tuple((positions[name], roots[f"{name}.next"]) for name in about["states"]),
        bool(about["apart"]),
    )
    return Saved(case, str(about["oracle"]), int(about["seed"]), about["options"])
