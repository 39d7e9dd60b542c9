"""Convert a call's inputs to arrays of exactly the declared types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from glowtrain.backends.base import Batches
from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.graph.specialise.index_ranges import index_problems
from glowtrain.types import Array, DType, Shape, TensorType


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


def as_array(value: Any, type_: TensorType, name: str) -> Array:
    """A call's input of a name as an array; Python numbers and lists take the declared element type.

    Raises :class:`InputError` for a list that is no tensor of numbers, or has one that the element type does not.
    """
    if isinstance(value, (bool, int, float, list, tuple)):
        return _of_numbers(value, type_.dtype, name)
    return np.asarray(value, order="C")


def _of_numbers(value: Any, dtype: DType, name: str) -> Array:
    try:
        given = np.asarray(value)
        if given.size and given.dtype != dtype.numpy and not _are_numbers(value, given, dtype):
            raise InputError(f"{name!r} is a list of {given.dtype}, which are not all numbers of {dtype}")
        with np.errstate(over="ignore"):
            array = np.asarray(value, dtype.numpy)
    except ValueError as error:
        raise InputError(f"{name!r} is a list that is no tensor: {error}") from None
    except OverflowError:
        raise InputError(f"{name!r} has a number that is out of the range of {dtype}") from None
    if given.size and given.dtype != array.dtype and not _same(array, given, dtype):
        raise InputError(f"{name!r} has a number that is out of the range of {dtype}")
    return array


_KINDS = {"float": "fiub", "int": "iub", "uint": "iub", "bool": "biu", "stored": "fiub"}
"""For each kind of element types, NumPy's kinds of Python numbers that are meant by it."""


def _are_numbers(value: Any, given: Array, dtype: DType) -> bool:
    """Whether an element type is meant by a list that is ``given`` to NumPy: of large whole numbers, beside others, it
    makes floats or objects."""
    if given.dtype.kind in _KINDS[dtype.kind]:
        return True
    wanted = (int, float) if dtype.kind == "float" else (int,)
    return given.dtype.kind in "fO" and all(isinstance(item, wanted) for item in np.asarray(value, object).ravel())


def _same(array: Array, given: Array, dtype: DType) -> bool:
    """Whether numbers are those that were given: whole ones exactly, others up to rounding. Small formats, which are
    only stored, round as they do."""
    if dtype.kind == "stored":
        return True
    if dtype.kind == "float":
        return bool((np.isfinite(array) | ~np.isfinite(given.astype(float))).all())
    return bool((array.astype(given.dtype) == given).all())
