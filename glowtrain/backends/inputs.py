"""Convert a call's inputs to arrays of exactly the declared types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from glowtrain.backends.base import Batches
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.graph.input_arrays import as_array
from glowtrain.graph.specialise.index_ranges import index_problems
from glowtrain.types import Array, Shape, TensorType


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs as contiguous arrays of exactly the declared types.

    Python numbers and lists are converted. Raises :class:`InputError` naming missing, unknown and ill-typed inputs, and
    indices that are out of range.
    """
    declared = graph.input_types
    if isinstance(inputs, dict) and not graph.indexed_inputs and _fits(declared, inputs):
        return dict(inputs)
    if not isinstance(inputs, Mapping):
        raise InputError(f"{graph.name}: inputs must be a dict from names to arrays, not a {type(inputs).__name__}")
    problems = [f"{name!r} is missing ({type_})" for name, type_ in declared.items() if name not in inputs]
    problems += [
        f"{name!r} is not an input (inputs: {', '.join(declared) or 'none'})" for name in inputs if name not in declared
    ]
    arrays = {name: as_array(inputs[name], type_, name) for name, type_ in declared.items() if name in inputs}
    for name, array in arrays.items():
        if not declared[name].accepts(array):
            problems.append(f"{name!r} must be {declared[name]}, not {array.dtype}{list(array.shape)}")
    problems = problems or index_problems(graph, arrays)
    if problems:
        raise InputError(f"{graph.name}: " + "; ".join(problems))
    return arrays


def check_batches(graph: Graph, batches: Batches) -> Batches:
    """The inputs of several runs as contiguous arrays.

    Raises :class:`InputError` as :func:`check_inputs` does for a run's; but indices may be counted through all runs.
    """
    check_inputs(graph, batches[0])
    if batches.count > 1 and graph.indexed_inputs:
        problems = _index_problems(graph, batches)
        if problems:
            raise InputError(f"{graph.name}: " + "; ".join(problems))
    if all(array.flags.c_contiguous for array in batches.rows.values()):
        return batches
    return replace(batches, rows={name: np.ascontiguousarray(array) for name, array in batches.rows.items()})


def _index_problems(graph: Graph, batches: Batches) -> list[str]:
    """What is wrong with index inputs: in all rows at once where any number of examples may be looked at."""
    if all(use.fixed for use in graph.indexed_inputs):
        return index_problems(graph, batches.rows)
    found = (index_problems(graph, batches[run]) for run in range(batches.count))
    return next(filter(None, found), [])


def _fits(declared: Mapping[str, TensorType], inputs: dict[str, Any]) -> bool:
    """Whether inputs are just what is declared already, as they mostly are: nothing else is looked at then."""
    if inputs.keys() != declared.keys():
        return False
    for name, type_ in declared.items():  # twice as fast as all() of a generator
        array = inputs[name]
        if not (type(array) is np.ndarray and type_.accepts(array) and array.flags.c_contiguous):
            return False
    return True


def shape_of(value: Any) -> Shape:
    """The shape that an input will have as an array. Raises :class:`InputError` for lists that are no tensor."""
    try:
        return tuple(np.shape(value))
    except ValueError as error:
        raise InputError(f"a list has rows of different lengths, which is not a tensor: {error}") from None
