"""Values and nodes: the immutable expressions that graphs are made of.

A :class:`Value` is a leaf (:class:`Input`, :class:`Constant`, :class:`Variable`) or an output of a :class:`Node`.
Nodes know their operands and nothing else, so building a value never changes a graph, and what no output needs does
not exist. Types are inferred when a node is made: a shape error is raised at the line that wrote the expression.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from glowtrain.errors import GraphError
from glowtrain.graph.indexing import indexing
from glowtrain.graph.operator import Operator
from glowtrain.graph.registry import Named, class_of
from glowtrain.names import layer_of, module_in
from glowtrain.types import Array, DType, LazyArray, TensorType, elements_of, type_of


class Value:
    """A typed tensor in a graph. ``name`` is a hint for printing and export; identity is the object."""

    __slots__ = ("index", "name", "node", "type")
    __array_priority__ = 1000  # NumPy arrays on the left defer to our reflected operators

    def __init__(self, type_: TensorType, name: str = "", node: Node | None = None, index: int = 0) -> None:
        self.type = type_
        self.name = name
        self.node = node
        self.index = index

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def rank(self) -> int:
        return self.type.rank

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name or '?'}: {self.type}>"

    def __add__(self, other: Any) -> Value:
        return _binary("Add", self, other)

    def __radd__(self, other: Any) -> Value:
        return _binary("Add", other, self)

    def __sub__(self, other: Any) -> Value:
        return _binary("Sub", self, other)

    def __rsub__(self, other: Any) -> Value:
        return _binary("Sub", other, self)

    def __mul__(self, other: Any) -> Value:
        return _binary("Mul", self, other)

    def __rmul__(self, other: Any) -> Value:
        return _binary("Mul", other, self)

    def __truediv__(self, other: Any) -> Value:
        return _binary("Div", self, other)

    def __rtruediv__(self, other: Any) -> Value:
        return _binary("Div", other, self)

    def __pow__(self, other: Any) -> Value:
        return _binary("Pow", self, other)

    def __rpow__(self, other: Any) -> Value:
        return _binary("Pow", other, self)

    def __matmul__(self, other: Any) -> Value:
        return _binary("MatMul", self, other)

    def __neg__(self) -> Value:
        return _unary("Neg", self)

    def __abs__(self) -> Value:
        return _unary("Abs", self)

    def __lt__(self, other: Any) -> Value:
        return _binary("Less", self, other)

    def __le__(self, other: Any) -> Value:
        return _binary("LessOrEqual", self, other)

    def __gt__(self, other: Any) -> Value:
        return _binary("Greater", self, other)

    def __ge__(self, other: Any) -> Value:
        return _binary("GreaterOrEqual", self, other)

    def __invert__(self) -> Value:
        return _unary("Not", self)

    def __and__(self, other: Any) -> Value:
        return _binary("And", self, other)

    def __or__(self, other: Any) -> Value:
        return _binary("Or", self, other)

    def __bool__(self) -> bool:
        raise GraphError(
            f"{self!r} has no truth value while a graph is being built; use Where to choose between values"
        )

    def __iter__(self) -> Any:
        raise GraphError(f"{self!r} cannot be iterated over; use Split, or x[0], x[1] ...")

    def __getitem__(self, key: Any) -> Value:
        """Elements as NumPy takes them, by integers, slices, ``...``, ``None`` and one array of integers.

        The array's axes stand where the indexed one stood, beside an integer too. Raises :class:`GraphError`.
        """
        found = indexing(self.type, key)
        result: Value = self
        if found.ranges != tuple(map(range, self.shape)):
            result = apply(Named("Slice")(**found.bounds), (result,))
        if found.shape != result.shape:
            result = apply(Named("Reshape")(shape=found.shape, allowzero=0 in found.shape), (result,))
        if found.indices is not None:
            result = apply(Named("Gather")(axis=found.axis), (result, found.indices))
        return result


class Input(Value):
    """A tensor that each call provides."""

    __slots__ = ()


class Constant(Value):
    """A tensor known when compiling; ``array`` must not be changed."""

    __slots__ = ("array",)

    def __init__(self, array: Array, name: str = "") -> None:
        array = np.asarray(array)
        super().__init__(type_of(array), name)
        self.array = array


class Variable(Value):
    """State: a tensor that lives in the compiled function's instance and that a step may update.

    ``initial`` is its value at the start, which must not be changed; ``source`` is where that comes from: the array
    itself, or a :class:`~glowtrain.types.LazyArray`, of which nothing is in memory while nobody looks at it.
    ``trainable`` says whether an optimizer may change it.
    """

    __slots__ = ("source", "trainable")

    def __init__(self, name: str, initial: Array | LazyArray, trainable: bool = True) -> None:
        source = initial if isinstance(initial, LazyArray) else np.asarray(initial)
        super().__init__(source.type if isinstance(source, LazyArray) else type_of(source), name)
        self.source = source
        self.trainable = trainable

    @property
    def initial(self) -> Array:
        return elements_of(self.source)

    def value_in(self, state: Mapping[str, Array]) -> Array:
        """Its value among those of variables by name, the initial one where there is none."""
        value = state.get(self.name)
        return self.initial if value is None else value


_layer: ContextVar[str] = ContextVar("layer", default="")
"""The layer of new nodes, where they are made for another one (see :func:`layers`)."""


class Node:
    """An operator applied to operands (``None`` where an optional one is absent).

    ``layer`` is the part of a model that it belongs to: that of the node which it was made for, to take its place or as
    a part of its gradient; else the module of its name; else that of its first parameter, or this parameter's name
    where it is in none; else that of the largest operand that has one. Graphs that differ in nothing but layers have
    one text and one key.
    """

    __slots__ = ("inputs", "layer", "name", "operator", "outputs")

    def __init__(
        self,
        operator: Operator,
        inputs: Sequence[Value | None],
        name: str = "",
        types: Sequence[TensorType] | None = None,
        layer: str = "",
    ) -> None:
        """``types``: those of the results, where they are known."""
        self.operator = operator
        self.inputs = tuple(inputs)
        self.name = name
        self.layer = layer or _layer.get() or module_in(name) or _layer_of(self.inputs)
        if types is None:
            inferred = operator.infer(*[None if value is None else value.type for value in self.inputs])
            types = (inferred,) if isinstance(inferred, TensorType) else inferred
        self.outputs = tuple([Value(type_, "", self, index) for index, type_ in enumerate(types)])

    @property
    def output(self) -> Value:
        """The only output."""
        (value,) = self.outputs
        return value

    def __repr__(self) -> str:
        return f"<Node {self.name or '?'}: {self.operator}>"

    def __str__(self) -> str:
        """For messages: the operator with its operand types, and the node's name."""
        call = self.operator.on(*(None if value is None else value.type for value in self.inputs))
        return f"{call} of node {self.name!r}" if self.name else call


def _layer_of(operands: Iterable[Value | None]) -> str:
    """That of the first parameter among operands, else the one of the largest that has one."""
    layer, largest = "", -1
    for value in operands:
        if isinstance(value, Variable):
            if value.trainable:
                return layer_of(value.name)
        elif value is not None and value.node is not None and value.node.layer and value.type.size > largest:
            layer, largest = value.node.layer, value.type.size
    return layer


@contextmanager
def layers() -> Iterator[Callable[[str], object]]:
    """For what makes nodes that take the place of others: a function that says which layer they belong to from then on,
    until the end of the block."""
    token = _layer.set(_layer.get())
    try:
        yield _layer.set
    finally:
        _layer.reset(token)


def apply(operator: Operator, inputs: Sequence[Any], name: str = "") -> Any:
    """Apply an operator; numbers and arrays among ``inputs`` become constants (numbers take the operands' dtype).

    Returns the output value, or the tuple of outputs of an operator with several.
    """
    node = Node(operator, _operands(inputs), name)
    return node.outputs[0] if len(node.outputs) == 1 else node.outputs


def constant(value: Any, dtype: DType | None = None) -> Constant:
    """A constant from an array or number. Arrays keep their dtype unless one is given."""
    return Constant(np.asarray(value) if dtype is None else np.asarray(value).astype(dtype.numpy))


def _operands(inputs: Sequence[Any]) -> Sequence[Value | None]:
    for value in inputs:
        if not isinstance(value, Value):
            break
    else:
        return inputs
    dtype = next((value.dtype for value in inputs if isinstance(value, Value) and value.dtype.kind != "bool"), None)
    return [_operand(value, dtype) for value in inputs]


def _operand(value: Any, dtype: DType | None) -> Value | None:
    if value is None or isinstance(value, Value):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return constant(value)
    return constant(value, dtype)


def _binary(key: str, left: Any, right: Any) -> Value:
    result: Value = apply(class_of(key)(), (left, right))
    return result


def _unary(key: str, value: Value) -> Value:
    result: Value = apply(class_of(key)(), (value,))
    return result
