"""Expressions of the loop language as lines of WGSL: each shared one is computed once in a block.

Subscripts and whole numbers of 64 bits that surely fit 32 are computed in i32; other i64 and u64 as pairs of u32, with
the results of 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from glowtrain.backends.cpu.order.analysis import Free
from glowtrain.backends.webgpu.literals import integer_literal, literal
from glowtrain.backends.webgpu.memory import KernelMemory
from glowtrain.backends.webgpu.scalar import WgslValue, apply, bits, computed_in, convert, of_bits, spelled
from glowtrain.errors import CodegenError
from glowtrain.loops import (
    Affine,
    Apply,
    Buffer,
    Cast,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Ref,
    address,
    affine,
    within,
)
from glowtrain.loops.affine import Atom, Quotient, Remainder
from glowtrain.loops.functions import FUNCTIONS, Cost
from glowtrain.types import DType, boolean, i32, i64

INT32 = -(1 << 31), (1 << 31) - 1
NARROWED = frozenset({"add", "sub", "mul", "neg", "min", "max", "div", "mod", "select"})
"""Functions of i64 that are computed in i32 where their operands and results surely fit."""


@dataclass
class WgslBlock:
    """What is computed in a block: what stays as it is, and what holds until the kernel writes again."""

    stable: dict[Expr, WgslValue] = field(default_factory=dict)
    volatile: dict[Expr, WgslValue] = field(default_factory=dict)


class WgslExpressions:
    """Writes expressions into ``lines``; ``written`` are the buffers that the kernel writes."""

    def __init__(
        self, memory: KernelMemory, written: Iterable[Buffer], indices: Mapping[Index, str], free: Free
    ) -> None:
        self.memory = memory
        self.written = frozenset(written)
        self.free = free
        self.lines: list[str] = []
        self.blocks = [WgslBlock({index: WgslValue(name, "i32") for index, name in indices.items()})]
        self._depth = 1
        self._count = 0
        self._volatile: dict[Expr, bool] = {}

    # ---- lines and blocks

    def line(self, text: str) -> None:
        """Append a line."""
        self.lines.append("  " * self._depth + text)

    def name(self, hint: str = "v") -> str:
        """A fresh name."""
        self._count += 1
        return f"{hint}{self._count}"

    @contextmanager
    def block(self, head: str, indices: Mapping[Index, str]) -> Iterator[None]:
        """A block behind ``head`` in which these indices are bound."""
        self.line(f"{head} {{")
        self._depth += 1
        self.blocks.append(WgslBlock({index: WgslValue(name, "i32") for index, name in indices.items()}))
        yield
        self.blocks.pop()
        self._depth -= 1
        self.line("}")

    @contextmanager
    def loops(self, indices: Sequence[Index]) -> Iterator[None]:
        """Loops over indices, the first one outermost."""
        if not indices:
            yield
            return
        first, *rest = indices
        name = self.name("at")  # i32 would be a type
        head = f"for (var {name}: i32 = 0; {name} < {first.extent}; {name}++)"
        with self.block(head, {first: name}), self.loops(rest):
            yield

    def forget(self) -> None:
        """Something was written: what was loaded from the kernel's own results has to be loaded again."""
        for block in self.blocks:
            block.volatile.clear()

    def computed(self, expr: Expr) -> WgslValue | None:
        """The value of an expression that a block around has."""
        for block in reversed(self.blocks):
            value = block.stable.get(expr) or block.volatile.get(expr)
            if value is not None:
                return value
        return None

    # ---- expressions

    def value(self, expr: Expr) -> WgslValue:
        """The value of an expression, computed at its first use. Raises :class:`CodegenError` for what WGSL cannot
        express."""
        stack = [expr]
        while stack:
            missing = [child for child in self._operands(stack[-1]) if not self._has(child)]
            stack += missing
            if not missing:
                self._keep(stack.pop())
        return self._value(expr)

    def _operands(self, expr: Expr) -> tuple[Expr, ...]:
        """What is computed before an expression, so that long chains need no long recursion."""
        return expr.children if isinstance(expr, (Apply, Cast)) and not self._has(expr) else ()

    def _has(self, expr: Expr) -> bool:
        return isinstance(expr, Const) or self.computed(expr) is not None

    def _keep(self, expr: Expr) -> None:
        if not self._has(expr):
            value, block = self._write(expr), self.blocks[-1]
            (block.volatile if self.is_volatile(expr) else block.stable)[expr] = value

    def _value(self, expr: Expr) -> WgslValue:
        value = self.constant(expr) if isinstance(expr, Const) else self.computed(expr)
        assert value is not None, f"{expr} was not computed"
        return value

    def constant(self, expr: Const) -> WgslValue:
        """A constant; of i64 as an i32 where it fits."""
        if expr.dtype == i64 and INT32[0] <= int(expr.value) <= INT32[1]:
            return WgslValue(integer_literal(int(expr.value)), "i32")
        type_ = computed_in(expr.dtype)
        return WgslValue(literal(expr.value, expr.dtype, type_), type_)

    def set(self, expr: Expr, value: WgslValue) -> None:
        """Say what an expression is in this block, whatever is written."""
        self.blocks[-1].stable[expr] = value

    def let(self, text: str, type_: str) -> WgslValue:
        """A name for an expression in WGSL."""
        name = self.name()
        self.line(f"let {name}: {spelled(type_)} = {text};")
        return WgslValue(name, type_)

    def as_type(self, value: WgslValue, type_: str) -> WgslValue:
        """A value that was computed in i32 as a pair, or the lower half of a pair that fits."""
        if value.type == type_:
            return value
        if type_ == "i32":
            return WgslValue(f"i32({value.text}.x)", "i32")
        return WgslValue(f"i64_of_i32({value.text})", type_)

    def _write(self, expr: Expr) -> WgslValue:
        match expr:
            case Load():
                return self._load(expr)
            case Cast(value=inner, dtype=dtype):
                return self._cast(self.value(inner), inner.dtype, dtype)
            case Apply():
                return self._apply(expr)
            case Reduce():
                return self.reduce(expr)
        raise CodegenError(f"{type(expr).__name__.lower()} {expr} is not bound here")

    def reduce(self, reduction: Reduce) -> WgslValue:
        """The result of a reduction."""
        raise NotImplementedError

    def _cast(self, value: WgslValue, source: DType, dtype: DType) -> WgslValue:
        if value.type == "i32" and source == i64:  # the number is known to fit
            if dtype == i64:
                return value
            source = i32
        type_ = computed_in(dtype)
        return self.let(convert(value, source, dtype), type_)

    def _apply(self, expr: Apply) -> WgslValue:
        function, operands = expr.function, expr.arguments
        if function == "bitcast":
            return self._bitcast(operands[0], expr.dtype)
        values = [self.value(operand) for operand in operands]
        dtype = operands[-1].dtype
        type_ = computed_in(dtype)
        if dtype == i64 and self._narrow(expr, values):
            type_, dtype = "i32", i32
        typed = [v.text if v.type == "bool" else self.as_type(v, type_).text for v in values]
        result = type_ if expr.dtype != boolean else "bool"
        simple = _divided(expr, typed) if type_ == "i32" else ""
        value = self.let(simple or apply(function, typed, dtype, type_), result)
        if type_ == "i64" and result == "i64" and _fits(expr):
            return self.let(f"i32({value.text}.x)", "i32")
        return value

    def _narrow(self, expr: Apply, values: Sequence[WgslValue]) -> bool:
        """Whether operands were computed in i32 and the result is known to fit, if it is no comparison."""
        if any(value.type not in ("i32", "bool") for value in values):
            return False
        return expr.dtype == boolean or (expr.function in NARROWED and _fits(expr))

    def _bitcast(self, operand: Expr, dtype: DType) -> WgslValue:
        source, value = operand.dtype, self.as_type(self.value(operand), computed_in(operand.dtype))
        type_ = computed_in(dtype)
        if dtype.size == 8:
            return WgslValue(value.text, type_)
        text = self.let(bits(value, source), "u32").text
        return self.let(of_bits(text, dtype), type_)

    # ---- loads

    def _load(self, load: Load) -> WgslValue:
        offset = self.offset(load.index, load.buffer)
        checks = [] if load.fill is None else self.inside(load.index, load.buffer)
        if not checks:
            loaded = self.memory.load(load.buffer, offset)
            return self.let(loaded.text, loaded.type)
        inside = self.let(" && ".join(checks), "bool").text
        loaded = self.memory.load(load.buffer, self.let(f"select(0u, {offset}, {inside})", "u32").text)
        assert load.fill is not None
        fill = literal(load.fill, load.dtype, loaded.type)
        return self.let(f"select({fill}, {loaded.text}, {inside})", loaded.type)

    def inside(self, index: Sequence[Expr], buffer: Buffer) -> list[str]:
        """Conditions under which subscripts lie in a buffer, but for those that always hold."""
        found: list[str] = []
        for subscript, extent in zip(index, buffer.shape, strict=True):
            form = affine(subscript)
            if within(form, extent):
                continue
            if form.of_indices and _in_range(form):
                found.append(f"u32({self.integer(form)}) < {extent}u")
                continue
            value = self.value(subscript)
            wide = value.type != "i32"
            found.append(f"i64_within({value.text}, {extent}u)" if wide else f"u32({value.text}) < {extent}u")
        return found

    def offset(self, index: Sequence[Expr], buffer: Buffer) -> str:
        """The number of an element in memory, as the name of a u32 or a literal."""
        form = address(index, buffer.strides)
        if not form.terms:
            return f"{form.constant}u"
        return self.let(f"u32({self.integer(form)})", "u32").text

    def integer(self, expression: Affine) -> str:
        """An affine expression in i32, which wraps meanwhile. Raises :class:`CodegenError` for quotients of numbers
        that may not fit."""
        terms = [self._term(atom, factor) for atom, factor in expression.terms]
        if expression.constant or not terms:
            terms.append(integer_literal(_wrapped(expression.constant)))
        return terms[0] if len(terms) == 1 else f"({' + '.join(terms)})"

    def _term(self, atom: Atom, factor: int) -> str:
        text = self._atom(atom)
        return text if factor == 1 else f"{text} * {integer_literal(_wrapped(factor))}"

    def _atom(self, atom: Atom) -> str:
        match atom:
            case Quotient(dividend=dividend, divisor=divisor) | Remainder(dividend=dividend, divisor=divisor):
                if not _in_range(dividend) or divisor > INT32[1]:
                    raise CodegenError("subscripts are computed in 32 bits, which one does not fit; use backend cpu")
                return self._divided(atom, self.integer(dividend), dividend.range()[0] >= 0)
        return self.as_type(self.value(atom), "i32").text

    def _divided(self, atom: Quotient | Remainder, dividend: str, positive: bool) -> str:
        if isinstance(atom, Quotient):
            return f"({dividend} / {atom.divisor})"
        return f"({dividend} % {atom.divisor})" if positive else f"i32_mod({dividend}, {atom.divisor})"

    # ---- what may be computed where

    def is_volatile(self, expr: Expr) -> bool:
        """Whether the kernel may change it: it loads from a buffer that the kernel writes."""
        known = self._volatile.get(expr)
        if known is None:
            own = isinstance(expr, Load) and expr.buffer in self.written
            known = self._volatile[expr] = own or any(self.is_volatile(child) for child in expr.children)
        return known

    def hoist(self, exprs: Iterable[Expr], bound: Iterable[Expr]) -> None:
        """Compute before loops over ``bound`` what takes long and does not depend on them."""
        inner, seen = frozenset(bound), set[Expr]()
        stack = list(exprs)
        while stack:
            expr = stack.pop()
            if expr in seen or not expr.children:
                continue
            seen.add(expr)
            if self._leaves(expr, inner):
                self.value(expr)
            else:
                stack += expr.children

    def _leaves(self, expr: Expr, inner: frozenset[Expr]) -> bool:
        if not (isinstance(expr, Reduce) or (isinstance(expr, Apply) and _is_expensive(expr))):
            return False
        needed = self.free.of(expr)
        bound = all(self.computed(leaf) is not None for leaf in needed if isinstance(leaf, (Index, Ref)))
        return inner.isdisjoint(needed) and bound and not self.is_volatile(expr)


def _is_expensive(expr: Apply) -> bool:
    return FUNCTIONS[expr.function].cost == Cost.EXPENSIVE and expr.dtype.is_float


def _fits(expr: Expr) -> bool:
    """Whether an i64 is known to be an i32."""
    return _in_range(affine(expr))


def _in_range(form: Affine) -> bool:
    low, high = form.range()
    return low >= INT32[0] and high <= INT32[1]


def _wrapped(number: int) -> int:
    return (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _divided(expr: Apply, operands: Sequence[str]) -> str:
    """A quotient or remainder of indices that is an operation of WGSL: of what is not negative, by a constant."""
    match expr:
        case Apply(function="div" | "mod" as function, arguments=(dividend, Const(value=divisor))):
            low, high = affine(dividend).range()
            if expr.dtype == i64 and low >= 0 and high <= INT32[1] and 0 < int(divisor) <= INT32[1]:
                return f"{operands[0]} {'/' if function == 'div' else '%'} {operands[1]}"
    return ""
