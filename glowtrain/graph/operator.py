"""What an operator is, and the registry of all of them.

An operator is one frozen dataclass: its fields are its attributes (under ONNX's names), its methods are its meanings.
Nothing else in the compiler lists operators: passes ask for the facts below, the loader and the text form go by the
registry, every test runs over it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self, TypeVar

from glowtrain.errors import ModelError, PluginError, ShapeError
from glowtrain.graph.attributes import tested_values
from glowtrain.graph.specialise.ragged import Operand, Ragged, broadcast, whole
from glowtrain.native import NativeFunction
from glowtrain.presentation.messages import page
from glowtrain.types import Array, DType, TensorType

if TYPE_CHECKING:
    from glowtrain.graph.specialise.index_ranges import IndexRange, IndexUse
    from glowtrain.graph.value import Value
    from glowtrain.loops import Statement, Tensor
    from glowtrain.stages import Costs

Types = TensorType | tuple[TensorType, ...]
Arrays = Array | tuple[Array, ...]
Result = TypeVar("Result")
Quantized = Literal["", "contraction", "passes", "rescales", "clips"]


def static(position: int, default: Any = dataclasses.MISSING) -> Any:
    """A field that ONNX passes as an input (Reshape's shape, Slice's bounds) and that must be known when compiling.

    ``position`` is the input's place in ONNX's signature; the operator's own operands are the remaining ones, in order.
    """
    return dataclasses.field(default=default, metadata={"input": position})


class Draw(Protocol):
    """A source of choices for :meth:`Operator.sample`: hypothesis in tests, a seeded generator in benchmarks."""

    def integer(self, low: int, high: int) -> int:
        """An integer in [low, high]."""

    def choice(self, options: Any) -> Any:
        """One element of a sequence."""

    def boolean(self) -> bool: ...

    def shape(
        self, min_rank: int = 0, max_rank: int = 4, min_extent: int = 1, max_extent: int = 5
    ) -> tuple[int, ...]: ...

    def floats(
        self, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0, avoid: tuple[float, ...] = ()
    ) -> Array:
        """f64 values in [low, high], at least 0.05 away from each of ``avoid`` and from each other's rank (no ties)."""

    def integers(self, shape: tuple[int, ...], low: int, high: int) -> Array:
        """i64 values in [low, high]; repeats are likely."""

    def booleans(self, shape: tuple[int, ...]) -> Array: ...


@dataclasses.dataclass(frozen=True)
class Sample:
    """One drawn use of an operator: the operator with its attributes, and its inputs (floats in f64; ``None`` =
    absent).
    """

    operator: Operator
    inputs: tuple[Array | None, ...]


class Operator:
    """Base of all operators. A subclass is a frozen dataclass decorated with :func:`operator`.

    A single-output operator gives and receives bare values; one with several outputs gives and receives tuples.
    Absent optional inputs are ``None`` everywhere.
    """

    onnx: ClassVar[str] = ""
    """Name in its domain; the class name unless stated."""
    domain: ClassVar[str] = ""
    """"" is ai.onnx; what ONNX lacks lives in "glowtrain" and decomposes into standard operators."""
    random: ClassVar[bool] = False
    """Two equal nodes differ (never true of operators that take their counter as an input)."""
    differentiable: ClassVar[bool] = True
    """False: gradients stop here by definition (comparisons, integer results); see also :attr:`reason`."""
    reason: ClassVar[str] = ""
    """Why the operator is not differentiable."""
    broadcasts: ClassVar[bool] = False
    """Operands broadcast as in NumPy; the reverse walk sums gradients back to each operand's shape."""
    elementwise: ClassVar[bool] = False
    """Each output element depends on the operands' elements at the same (broadcast) place only."""
    moves: ClassVar[bool] = False
    """Only rearranges or repeats elements of its first operand."""
    copies: ClassVar[bool] = False
    """Passes elements of operands on, joined, parted or chosen, and does not compute with them; see also
    :attr:`moves`."""
    from_type: ClassVar[bool] = False
    """The results depend on the operands' types only, so they are known when compiling."""
    control: ClassVar[bool] = False
    """Runs a subgraph; the compiler lowers it itself."""
    running_inputs: ClassVar[tuple[int, ...]] = ()
    """ONNX's inputs, by position, that hold running statistics: state that is not trained."""
    state_inputs: ClassVar[tuple[int, ...]] = ()
    """ONNX's inputs that hold an initial state: a parameter unless it is zero."""
    setting_inputs: ClassVar[tuple[int, ...]] = ()
    """ONNX's inputs that hold settings, which are not trained: bounds, ratios, scales."""
    quantized: ClassVar[Quantized] = ""
    """How the operator computes with quantized numbers. "contraction": sums of products of operands 0 and 1, plus
    operand 2 if there is one, exactly in i32; "passes": the first operand's elements as they are, so that they keep
    their scale; "clips": cuts the first operand off, and belongs to the operator before it; "rescales": its operands
    and results have scales of their own; "": only in floating point."""

    def infer(self, *inputs: Any) -> Types:
        """Result type(s) from operand types (``TensorType`` or ``None``). Raises :class:`ShapeError` via
        :meth:`fail`.
        """
        raise NotImplementedError

    def reference(self, *inputs: Any) -> Arrays:
        """NumPy semantics, in any float dtype; the results have the inferred types."""
        raise NotImplementedError

    def vjp(self, g: Any, y: Any, *inputs: Any) -> tuple[Value | None, ...]:
        """Cotangents of the inputs, as graph code. ``g``: cotangent of the output(s) (``None`` where zero, for several
        outputs), ``y``: output(s). ``None`` in the result: no gradient flows there (integer inputs, absent inputs)."""
        raise NotImplementedError

    def surrogate(self, *inputs: Any) -> Any:
        """The function that :meth:`vjp` gives the gradient of, where by convention that is not the operator itself
        (straight-through estimators): the same results in graph code, in which a StopGradient holds what counts as
        constant. Gradients are checked against differences of it."""
        raise NotImplementedError

    def lower(self, outputs: tuple[Tensor, ...], *inputs: Any) -> list[Statement]:
        """Loop nests that write ``outputs`` from input :class:`~glowtrain.loops.Tensor` s."""
        raise self.lacks("lower", "its loops; or a decompose")

    def native(self, *inputs: TensorType | None) -> NativeFunction | None:
        """The operator in native code, for operands of these types; it is called instead of what ``lower`` gives.

        Operands that are absent are left out of the call. ``None``: there is none for these types.
        """
        return None

    def called(self, *inputs: Value | None) -> NativeFunction | None:
        """What :meth:`native` gives for these operands. Raises :class:`PluginError` for anything but a function or
        ``None``."""
        function: Any = self.native(*(None if value is None else value.type for value in inputs))
        if function is None or isinstance(function, NativeFunction):
            return function
        raise PluginError(
            f"the native of {self.key()} must return a gt.NativeFunction, or None where there is none, not "
            f"{type(function).__name__}"
        )

    def lowers(self, *inputs: Value | None) -> bool:
        """Whether this use is lowered; otherwise it is replaced by its decomposition."""
        return self.has("lower") or self.called(*inputs) is not None

    def weight_axes(self, operand: int, *inputs: TensorType | None) -> tuple[int, int] | None:
        """Of a contraction's operand 0 or 1: the axis whose indices go to different results (the channels of weights),
        and one along which products are summed; ``None`` where the operand has no axis of its own."""
        return None

    def factors(self, *inputs: TensorType | None) -> tuple[int, ...]:
        """The operands, by position, whose elements are multiplied with each other and summed: those that a precision
        rounds. None where a sum has too few products for that to gain anything."""
        return ()

    def layouts(self, *inputs: Any) -> tuple[tuple[int, ...] | None, ...]:
        """The memory layouts (order of axes, outermost first) that the lowering likes: of the results, then of the
        operands; ``None`` for no wish."""
        return ()

    def layouts_matter(self, *inputs: Any) -> bool:
        """Whether it is several times as slow in others: then its wishes come before those of other operators."""
        return False

    def decompose(self, *inputs: Any) -> Any:
        """The same result(s) by simpler operators, as graph code on Values."""
        raise NotImplementedError

    def decompose_for(self, costs: Costs, *inputs: Any) -> Any:
        """:meth:`decompose` for a backend with these costs, where there are several ways."""
        return self.decompose(*inputs)

    def index_ranges(self, *inputs: TensorType | None) -> Mapping[int, IndexRange]:
        """The operands, by position, whose elements are indices into others, and the range of each: calls are checked
        against it."""
        return {}

    def index_uses_inside(self) -> Iterable[tuple[int, IndexUse]]:
        """Of a loop, what its body reads as indices, each with the position of the operand that slices are taken of."""
        return ()

    def data_dependent_sizes(self, *inputs: TensorType | None) -> Mapping[int, int]:
        """The results, by position, that hold their greatest size along an axis, and that axis: the last result is the
        size that a call found."""
        return {}

    def counted(self, *operands: Operand) -> list[Value | None]:
        """The tensors to compute with where the sizes of some operands are found at run time
        (:class:`~glowtrain.graph.specialise.ragged.Ragged`), so that places past a size do no harm."""
        return [whole(operand) for operand in operands]

    def follow(self, result: Value, *operands: Operand) -> Value | Ragged:
        """A result on :meth:`counted` operands, of which at least one is ragged: with its own size, if it has one.

        Operands that broadcast are followed; other operators say what becomes of the axis. Raises
        :class:`ModelError` where a size cannot be followed.
        """
        if self.broadcasts:
            return broadcast(self.key(), operands, result)
        raise ModelError(f"{self.key()} reads a tensor whose size is found at run time; that is not supported")

    @classmethod
    def from_onnx(cls, attributes: dict[str, Any], inputs: tuple[TensorType | None, ...], outputs: int) -> Operator:
        """The operator of an ONNX node, from what the node says of the fields, the operands' types and the number of
        outputs that are named. Raises ``TypeError`` for fields that are missing."""
        fields = dataclasses.fields(cls)  # type: ignore[arg-type]
        missing = [f.name for f in fields if f.default is dataclasses.MISSING and f.name not in attributes]
        if missing:
            raise TypeError(f"{' and '.join(missing)} is missing")
        return cls(**attributes)

    @classmethod
    def sample(cls, draw: Draw) -> Sample:
        """Draw attributes and inputs from the domain on which the operator is tested."""
        raise PluginError(
            f"{cls.key()} cannot be tested: give the class {cls.__name__} a sample, which draws attributes and "
            "inputs, see docs/operators.md"
        )

    @classmethod
    def draw_operator(cls, draw: Draw, **attributes: Any) -> Self:
        """The operator with these ``attributes``, and the others drawn from the domains of their fields
        (:func:`~glowtrain.graph.attributes.attribute`).

        Raises :class:`PluginError` for a field without a default for which nothing says what to draw.
        """
        fields = [field for field in dataclasses.fields(cls) if field.name not in attributes]  # type: ignore[arg-type]
        options = {field.name: tested_values(cls, field) for field in fields}
        unknown = [name for name, values in options.items() if not values]
        if unknown:
            raise PluginError(
                f"{cls.key()} cannot be tested: {' and '.join(unknown)} has neither a default nor a domain; "
                "give it one by glowtrain.attribute(low=..., high=...), or the class a sample"
            )
        drawn = {name: values[0] if len(values) == 1 else draw.choice(values) for name, values in options.items()}
        return cls(**attributes, **drawn)

    @classmethod
    def has(cls, method: str) -> bool:
        """Whether the class (or a family it belongs to) defines ``lower``, ``decompose``, ``vjp`` ..."""
        own, base = getattr(cls, method), getattr(Operator, method)
        return getattr(own, "__func__", own) is not getattr(base, "__func__", base)

    @classmethod
    def key(cls) -> str:
        """Registry key and printed name: ``Tanh``, ``glowtrain.ConvWeightGradient``."""
        return f"{cls.domain}.{cls.onnx}" if cls.domain else cls.onnx

    def attributes(self) -> dict[str, Any]:
        """Attribute names and values as ONNX has them, in field order."""
        return self.field_values()

    def field_values(self) -> dict[str, Any]:
        """What the class's fields hold, by name: all that tells two operators of a class apart."""
        return {name: getattr(self, name) for name in field_names(type(self))}  # type: ignore[arg-type]

    def stated(self) -> dict[str, Any]:
        """The attributes that are not at their defaults: with the operator's key, all that its text says."""
        pairs = ((name, getattr(self, name), default) for name, default in _defaults(type(self)))  # type: ignore[arg-type]
        return {name: value for name, value, default in pairs if not same_attribute(value, default)}

    def replace(self, **changes: Any) -> Self:
        """A copy with some attributes changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    def fail(self, rule: str, *inputs: TensorType | None) -> ShapeError:
        """The error for a broken rule, naming the operator, its attributes and the operand types."""
        return ShapeError(f"{self.on(*inputs)}: {rule}")

    def lacks(self, method: str, meaning: str) -> PluginError:
        """The error for a method that is needed to compile the operator and that its class does not have."""
        name = type(self).__name__
        return PluginError(
            f"{self.key()} cannot be compiled: give the class {name} a {method} ({meaning}), see {page('operators.md')}"
        )

    def on(self, *inputs: TensorType | None) -> str:
        """The operator with its operand types, for messages: ``Concat{axis=0}(f32[2], f32[3])``."""
        operands = ", ".join("-" if type_ is None else str(type_) for type_ in inputs)
        return f"{self}({operands})"

    def __call__(self, *inputs: Any) -> Any:
        """Apply to values (or arrays and numbers, which become constants): a new node's output(s)."""
        from glowtrain.graph.value import apply  # noqa: PLC0415  (operators make nodes, nodes hold operators)

        return apply(self, inputs)

    def __str__(self) -> str:
        shown = ",".join(f"{name}={format_attribute(value)}" for name, value in self.stated().items())
        return f"{self.key()}{{{shown}}}" if shown else self.key()


@cache
def field_names(cls: type) -> tuple[str, ...]:
    """The names of a class's attributes: asked for at every node, in every pass."""
    return tuple(field.name for field in dataclasses.fields(cls))


@cache
def _defaults(cls: type) -> tuple[tuple[str, Any], ...]:
    """The names of a class's attributes with their defaults."""
    return tuple((field.name, field.default) for field in dataclasses.fields(cls))


def as_tuple(results: Result | tuple[Result, ...]) -> tuple[Result, ...]:
    """What an operator gives for all its outputs, where one with a single output gives it bare."""
    return results if isinstance(results, tuple) else (results,)


def same_attribute(value: Any, other: Any) -> bool:
    """Whether two attributes are equal and compute the same: 0.0 is not -0.0."""
    if value is other and not isinstance(value, (float, tuple)):
        return True
    if isinstance(value, tuple) and isinstance(other, tuple):
        return len(value) == len(other) and all(map(same_attribute, value, other))
    if isinstance(value, (int, float)) and isinstance(other, (int, float)):
        return value == other and math.copysign(1, value) == math.copysign(1, other)
    return bool(value == other)


def format_attribute(value: Any) -> str:
    """An attribute as printed: numbers, strings, ``[1,2]``, dtype names; a subgraph by its name."""
    if isinstance(value, tuple):
        return "[" + ",".join(format_attribute(item) for item in value) + "]"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if isinstance(value, DType):
        return value.name
    return f"@{value.name}"
