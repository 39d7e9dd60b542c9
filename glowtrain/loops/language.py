"""The loop language: what the body of a kernel is written in.

    statement ::= For(indices, body, serial?)               every point of the index box; parallel unless serial
                | Let(ref, expr)                             a scalar name for the rest of the enclosing body
                | Store(buffer, index*, expr)                buffer[index] = expr
                | Accumulate(op, buffer, index*, expr)       buffer[index] op= expr; places outside are dropped
    expr      ::= Const(value) | Index | Ref
                | Load(buffer, index*, fill?)                buffer[index]; outside the buffer: fill
                | Apply(function, expr*) | Cast(expr)
                | Reduce(op, indices, expr, partials?)       the sum (max, ...) of expr over the index box

Subscripts are i64 expressions; most are affine in the indices (see :mod:`glowtrain.loops.affine`). Expressions are
compared by identity, and shared sub-expressions are computed once. New operators never extend the language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, Literal

from glowtrain.loops.functions import FUNCTIONS, PREDICATES
from glowtrain.types import Array, DType, LazyArray, Shape, TensorType, boolean, elements_of, i64

Number = bool | int | float
BufferKind = Literal["input", "output", "constant", "variable", "activation"]


@dataclass(frozen=True, eq=False)
class Buffer:
    """A typed piece of memory. It never changes; a pass that wants another layout puts a new buffer in its place.

    ``layout`` is the order of the logical axes in memory, outermost first; subscripts are always logical.
    ``initial`` holds the contents of constants and the start value of variables.
    """

    name: str
    type: TensorType
    kind: BufferKind = "activation"
    layout: tuple[int, ...] = ()
    initial: Array | LazyArray | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "layout", self.layout or tuple(range(self.type.rank)))

    @property
    def constant_array(self) -> Array | None:
        """The elements of a constant."""
        return elements_of(self.initial) if self.kind == "constant" and self.initial is not None else None

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def shape(self) -> Shape:
        return self.type.shape

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Elements between neighbours along each logical axis."""
        strides, step = [0] * self.type.rank, 1
        for axis in reversed(self.layout):
            strides[axis] = step
            step *= self.shape[axis]
        return tuple(strides)

    def __repr__(self) -> str:
        return f"<Buffer {self.name}: {self.type} {self.kind}>"


class Expr:
    """A scalar expression; ``dtype`` is its element type, ``children`` are the direct sub-expressions (subscripts
    included). Python's operators build larger ones."""

    __slots__ = ()
    dtype: DType
    children: tuple[Expr, ...]

    def __add__(self, other: Expr | Number) -> Expr:
        return call("add", self, other)

    def __radd__(self, other: Number) -> Expr:
        return call("add", other, self)

    def __sub__(self, other: Expr | Number) -> Expr:
        return call("sub", self, other)

    def __rsub__(self, other: Number) -> Expr:
        return call("sub", other, self)

    def __mul__(self, other: Expr | Number) -> Expr:
        return call("mul", self, other)

    def __rmul__(self, other: Number) -> Expr:
        return call("mul", other, self)

    def __truediv__(self, other: Expr | Number) -> Expr:
        return call("div", self, other)

    def __rtruediv__(self, other: Number) -> Expr:
        return call("div", other, self)

    def __floordiv__(self, other: Expr | Number) -> Expr:
        return call("div", self, other)

    def __mod__(self, other: Expr | Number) -> Expr:
        return call("mod", self, other)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: Expr | Number) -> Expr:
        return call("lt", self, other)

    def __le__(self, other: Expr | Number) -> Expr:
        return call("le", self, other)

    def __gt__(self, other: Expr | Number) -> Expr:
        return call("gt", self, other)

    def __ge__(self, other: Expr | Number) -> Expr:
        return call("ge", self, other)

    def __and__(self, other: Expr) -> Expr:
        return call("and", self, other)

    def __or__(self, other: Expr) -> Expr:
        return call("or", self, other)


@dataclass(frozen=True, eq=False, slots=True)
class Const(Expr):
    """A number of a given element type."""

    value: Number
    dtype: DType
    children: ClassVar[tuple[Expr, ...]] = ()  # type: ignore[misc]


@dataclass(frozen=True, eq=False, slots=True)
class Index(Expr):
    """A loop index: i64, from 0 to ``extent`` - 1."""

    extent: int
    name: str = "i"
    dtype: ClassVar[DType] = i64  # type: ignore[misc]
    children: ClassVar[tuple[Expr, ...]] = ()  # type: ignore[misc]


@dataclass(frozen=True, eq=False, slots=True)
class Ref(Expr):
    """The value of a :class:`Let`."""

    dtype: DType
    name: str = "t"
    children: ClassVar[tuple[Expr, ...]] = ()  # type: ignore[misc]


@dataclass(frozen=True, eq=False, slots=True)
class Load(Expr):
    """An element of a buffer. With ``fill``, any subscript outside [0, extent) gives ``fill`` and nothing is read."""

    buffer: Buffer
    index: tuple[Expr, ...]
    fill: Number | None = None

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.buffer.dtype


Load.children = vars(Load)["index"]  # the slot itself: walks ask every node, and a property takes three times as long


@dataclass(frozen=True, eq=False, slots=True)
class Apply(Expr):
    """A scalar function of :data:`glowtrain.loops.FUNCTIONS`."""

    function: str
    arguments: tuple[Expr, ...]
    dtype: DType
    affine: Any = field(init=False, repr=False)
    """What :func:`glowtrain.loops.affine` gives, once it has been called."""


Apply.children = vars(Apply)["arguments"]


@dataclass(frozen=True, eq=False, slots=True)
class Cast(Expr):
    """Conversion to another element type, as NumPy's ``astype``."""

    value: Expr
    dtype: DType

    @property
    def children(self) -> tuple[Expr, ...]:  # type: ignore[override]
        return (self.value,)


@dataclass(frozen=True, eq=False, slots=True)
class Reduce(Expr):
    """``expr`` combined over an index box by "add", "mul", "max", "min", "and" or "or".

    "max" and "min" propagate NaN. f16 and bf16 accumulate in f32 (the cast is written out by whoever builds the
    expression). In which order is the backend's choice, the same for all of its targets, unless ``partials``, a power
    of two, says it: over one index, element i goes into partial sum i mod ``partials``, and these are combined half
    with half. Products in f32 are then added by fused multiply-adds, those in f64 are rounded before.
    """

    op: str
    indices: tuple[Index, ...]
    body: Expr
    partials: int = 0

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.body.dtype

    @property
    def children(self) -> tuple[Expr, ...]:  # type: ignore[override]
        return (self.body,)


@dataclass(frozen=True, eq=False)
class For:
    """The body at every point of the box of ``indices``. Points are independent unless ``serial`` (then in order)."""

    indices: tuple[Index, ...]
    body: tuple[Statement, ...]
    serial: bool = False


class FlatStatement:
    """A statement that evaluates expressions and has no statements inside. What it consists of is listed once: passes
    put statements that they leave as they are into other kernels.
    """

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The expressions that are evaluated, subscripts included."""
        raise NotImplementedError

    @cached_property
    def nodes(self) -> tuple[Expr, ...]:
        """The operands and everything below them; what several operands share, once for each."""
        found: list[Expr] = []
        for operand in self.operands:
            _collect(operand, found)
        return tuple(found)

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        return tuple([node for node in self.nodes if isinstance(node, Load)])

    @cached_property
    def reductions(self) -> tuple[Reduce, ...]:
        return tuple([node for node in self.nodes if isinstance(node, Reduce)])


@dataclass(frozen=True, eq=False)
class Let(FlatStatement):
    """Evaluate once; ``ref`` stands for the value in the rest of the enclosing body."""

    ref: Ref
    value: Expr

    @property
    def operands(self) -> tuple[Expr, ...]:
        return (self.value,)


@dataclass(frozen=True, eq=False)
class Store(FlatStatement):
    """``buffer[index] = value``."""

    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr

    @property
    def operands(self) -> tuple[Expr, ...]:
        return (*self.index, self.value)


@dataclass(frozen=True, eq=False)
class Accumulate(FlatStatement):
    """Points of the enclosing loops may hit the same element, so their order is kept."""

    op: str
    buffer: Buffer
    index: tuple[Expr, ...]
    value: Expr

    @property
    def operands(self) -> tuple[Expr, ...]:
        return (*self.index, self.value)


Statement = For | Let | Store | Accumulate


def walk(expr: Expr) -> Iterator[Expr]:
    """The expression and everything below it, each shared node once."""
    found: list[Expr] = []
    _collect(expr, found)
    return iter(found)


def _collect(expr: Expr, found: list[Expr]) -> None:
    """Append an expression and everything below it, each shared node once."""
    if not expr.children:  # most are subscripts that are an index
        found.append(expr)
        return
    seen: set[Expr] = set()
    stack = [expr]
    take, note, append = stack.pop, seen.add, found.append
    while stack:
        node = take()
        if node not in seen:
            note(node)
            append(node)
            stack += node.children


def call(function: str, *arguments: Expr | Number) -> Expr:
    """Apply a scalar function; plain numbers take the element type of the expressions beside them."""
    assert function in FUNCTIONS, f"{function} is not in the loop language"
    typed = arguments[1:] if function == "select" else arguments
    dtype = next((argument.dtype for argument in typed if isinstance(argument, Expr)), None)
    assert dtype is not None, f"{function}: no operand has an element type"
    operands = tuple(argument if isinstance(argument, Expr) else Const(argument, dtype) for argument in arguments)
    return Apply(function, operands, boolean if function in PREDICATES else dtype)


def select(condition: Expr, then: Expr | Number, otherwise: Expr | Number) -> Expr:
    """``then`` where the condition holds. Both sides are evaluated."""
    return call("select", condition, then, otherwise)


def cast(value: Expr, dtype: DType) -> Expr:
    """Conversion; nothing where the type is the same already."""
    return value if value.dtype == dtype else Cast(value, dtype)


def bitcast(value: Expr, dtype: DType) -> Expr:
    """The same bits as another element type of the same size; a bool counts as the byte 0 or 1."""
    assert value.dtype.size == dtype.size, f"bitcast of {value.dtype} to {dtype}"
    return value if value.dtype == dtype else Apply("bitcast", (value,), dtype)


def reduce(op: str, extents: Sequence[int], body: Callable[..., Expr], partials: int = 0) -> Expr:
    """``body(r0, r1, ...)`` combined over fresh indices of the given extents; ``partials``: see :class:`Reduce`."""
    indices = indices_of(extents, "r")
    return Reduce(op, indices, body(*indices), partials)


def indices_of(extents: Sequence[int], prefix: str = "i") -> tuple[Index, ...]:
    """Fresh loop indices, one per extent."""
    return tuple(Index(extent, f"{prefix}{axis}") for axis, extent in enumerate(extents))


@dataclass(frozen=True)
class Rows:
    """So many elements along the first axis, from ``first`` on."""

    first: Expr
    count: int

    def certain(self, row: Expr | int) -> bool:
        """Whether a subscript is plainly one of them: an index, or a number."""
        return row.extent <= self.count if isinstance(row, Index) else isinstance(row, int) and 0 <= row < self.count


@dataclass(frozen=True)
class Tensor:
    """What an operator's ``lower`` sees: a buffer, or the slice of one at ``prefix`` (one step of a Scan), or some of
    its ``rows``."""

    buffer: Buffer
    prefix: tuple[Expr, ...] = ()
    rows: Rows | None = None

    @property
    def type(self) -> TensorType:
        return self.buffer.type.with_shape(self.shape)

    @property
    def shape(self) -> Shape:
        shape = self.buffer.shape[len(self.prefix) :]
        return shape if self.rows is None else (self.rows.count, *shape[1:])

    @property
    def whole(self) -> bool:
        """Whether it is all of its buffer."""
        return not self.prefix and self.rows is None

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    def __getitem__(self, index: Sequence[Expr | int]) -> Expr:
        return self.load(index)

    def load(self, index: Sequence[Expr | int], fill: Number | None = None) -> Expr:
        """The element at ``index``; with ``fill``, that value outside the tensor."""
        value = Load(self.buffer, self._full(index), fill)
        if fill is None or self.rows is None or self.rows.certain(index[0]):
            return value
        row = _subscript(index[0])
        return select((Const(0, i64) <= row) & (row < self.rows.count), value, Const(fill, self.dtype))

    def broadcast(self, index: Sequence[Expr]) -> Expr:
        """The element for a point of a larger (NumPy-broadcast) index space."""
        trailing = index[len(index) - len(self.shape) :]
        return self.load([0 if extent == 1 else i for extent, i in zip(self.shape, trailing, strict=True)])

    def store(self, index: Sequence[Expr | int], value: Expr) -> Store:
        return Store(self.buffer, self._full(index), cast(value, self.dtype))

    def accumulate(self, op: str, index: Sequence[Expr | int], value: Expr) -> Accumulate:
        return Accumulate(op, self.buffer, self._full(index), cast(value, self.dtype))

    def _full(self, index: Sequence[Expr | int]) -> tuple[Expr, ...]:
        assert len(index) == len(self.shape), f"{self.buffer}: {len(index)} subscripts for shape {self.shape}"
        own = [_subscript(i) for i in index]
        if self.rows is not None:
            own[0] = self.rows.first + own[0]
        return (*self.prefix, *own)


def _subscript(index: Expr | int) -> Expr:
    return index if isinstance(index, Expr) else Const(index, i64)


def pointwise(output: Tensor, value: Callable[..., Expr]) -> list[Statement]:
    """``output[i, j, ...] = value(i, j, ...)`` everywhere."""
    indices = indices_of(output.shape)
    return [For(indices, (output.store(indices, value(*indices)),))]
