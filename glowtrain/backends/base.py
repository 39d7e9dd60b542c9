"""The interface of a backend: a graph in, an executable out; state and scratch memory belong to instances."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from threading import RLock
from typing import Any, ClassVar

import numpy as np

from glowtrain.errors import InputError
from glowtrain.graph import Graph
from glowtrain.graph.places import index_problems
from glowtrain.program.memory.plan import Plan
from glowtrain.types import Array, Shape, TensorType


class State:
    """The values of variables, by name. Reads and writes copy; the storage itself is shared by instances.

    ``layouts`` holds, for each variable, the order of its logical axes in memory (an executable may ask for another).
    ``lock`` is held by whoever runs over the state: native code runs without Python's global lock.
    """

    def __init__(self, variables: Mapping[str, Array]) -> None:
        self.lock = RLock()
        self._storage = {name: aligned(array) for name, array in variables.items()}
        self._layouts = {name: tuple(range(array.ndim)) for name, array in self._storage.items()}

    def __contains__(self, name: str) -> bool:
        return name in self._storage

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._storage)

    def read(self, name: str) -> Array:
        """A row-major copy of a variable."""
        return np.array(np.transpose(self._storage[name], np.argsort(self._layouts[name])), order="C")

    def write(self, name: str, array: Array) -> None:
        """Set a variable, in place. Raises :class:`InputError` for an unknown name or another shape or dtype."""
        if name not in self._storage:
            raise InputError(f"there is no variable {name!r}; the state holds {', '.join(self._storage)}")
        storage = self._storage[name]
        view = np.transpose(storage, np.argsort(self._layouts[name]))
        if view.shape != array.shape or view.dtype != array.dtype:
            raise InputError(f"variable {name} is {view.dtype}{list(view.shape)}, not {array.dtype}{list(array.shape)}")
        view[...] = array

    def add(self, name: str, initial: Array) -> None:
        """Take in a variable that the state does not hold yet."""
        self._storage[name] = aligned(initial)
        self._layouts[name] = tuple(range(initial.ndim))

    def storage(self, name: str, layout: tuple[int, ...]) -> Array:
        """The variable's memory with its axes in the order of ``layout`` (rearranged first where it differs)."""
        if self._layouts[name] != layout:
            logical = np.transpose(self._storage[name], np.argsort(self._layouts[name]))
            self._storage[name] = aligned(np.transpose(logical, layout))
            self._layouts[name] = layout
        return self._storage[name]


def aligned(array: Array, alignment: int = 64) -> Array:
    """A contiguous copy whose data begins at a multiple of ``alignment`` bytes."""
    memory = np.empty(array.nbytes + alignment, np.uint8)
    start = -memory.ctypes.data % alignment
    result: Array = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


class Instance(ABC):
    """An executable bound to a state, with memory of its own. Not to be called from two threads at once."""

    @abstractmethod
    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Outputs for inputs that have the graph's types exactly; variables are updated."""


class Executable(ABC):
    """A compiled graph: immutable, shareable."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def initial_state(self) -> State:
        """The variables at their initial values."""
        return State({variable.name: variable.initial for variable in self.graph.variables})

    @abstractmethod
    def bind(self, state: State) -> Instance:
        """An instance over a state."""


class Backend(ABC):
    """A way to run graphs."""

    name: ClassVar[str]

    @abstractmethod
    def compile(self, graph: Graph, plan: Callable[[], Plan]) -> Executable:
        """The executable of a graph; ``plan()`` gives the planned program for backends that generate code from it."""


def check_inputs(graph: Graph, inputs: Mapping[str, Any]) -> dict[str, Array]:
    """The inputs as contiguous arrays of exactly the declared types.

    Python numbers and lists are converted. Raises :class:`InputError` naming missing, unknown and ill-typed inputs, and
    indices that are out of range.
    """
    if not isinstance(inputs, Mapping):
        raise InputError(f"{graph.name}: inputs must be a dict from names to arrays, not a {type(inputs).__name__}")
    declared = {value.name: value.type for value in graph.inputs}
    problems = [f"{name!r} is missing ({type_})" for name, type_ in declared.items() if name not in inputs]
    problems += [
        f"{name!r} is not an input (inputs: {', '.join(declared) or 'none'})" for name in inputs if name not in declared
    ]
    arrays = {name: as_array(inputs[name], type_) for name, type_ in declared.items() if name in inputs}
    for name, array in arrays.items():
        if not declared[name].accepts(array):
            problems.append(f"{name!r} must be {declared[name]}, not {array.dtype}{list(array.shape)}")
    problems = problems or index_problems(graph, arrays)
    if problems:
        raise InputError(f"{graph.name}: " + "; ".join(problems))
    return arrays


def shape_of(value: Any) -> Shape:
    """The shape that an input will have as an array. Raises :class:`InputError` for lists that are no tensor."""
    try:
        return tuple(np.shape(value))
    except ValueError as error:
        raise InputError(f"a list has rows of different lengths, which is not a tensor: {error}") from None


def as_array(value: Any, type_: TensorType) -> Array:
    """A call's input as an array; Python numbers and lists take the declared element type."""
    if isinstance(value, (bool, int, float, list, tuple)):
        return np.asarray(value, type_.dtype.numpy)
    return np.asarray(value, order="C")
