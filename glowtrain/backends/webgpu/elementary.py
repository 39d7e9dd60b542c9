"""exp, log, tanh and the like as WGSL functions: the recipes of :mod:`glowtrain.backends.llvm.vector_math`.

The recipes are written in operations that IEEE 754 defines exactly, at any number of lanes. Here there is one lane, and
each operation is a line of WGSL; so results are those of processors without fused multiply-adds, on adapters that
divide and take roots exactly. WGSL's own functions may be off by far more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cache

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I1, LlvmType, LlvmValue, Number, vector
from glowtrain.backends.llvm.vector_math import UNARY, FloatLanes
from glowtrain.backends.target import Target
from glowtrain.backends.webgpu.literals import float_literal
from glowtrain.errors import CodegenError

SEPARATE = Target.named("generic")
"""A processor that keeps multiplication and addition apart: the arithmetic that WGSL can promise."""
PLAIN = {"fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/", "add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|"}
PLAIN |= {"xor": "^"}
SHIFTS = {"shl": "<<", "lshr": ">>", "ashr": ">>"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
TYPES = {"float": "f32", "i32": "i32", "i1": "bool"}
FLOAT, INTEGER = vector("float"), vector("i32")
ROUNDINGS = {"floor": "floor", "ceil": "ceil", "trunc": "trunc", "roundeven": "round"}


def written(name: str) -> bool:
    """Whether a function of one float is written by its recipe."""
    return name in UNARY


@cache
def elementary_text(name: str) -> str:
    """The WGSL function ``f32_NAME`` of one float."""
    f = WgslFunction(name)
    result = UNARY[name](WgslLanes(f, FLOAT, SEPARATE), LlvmValue("x", FLOAT))
    return "\n".join([f"fn f32_{name}(x: f32) -> f32 {{", *f.lines, f"  return {result.text};", "}"])


class WgslFunction(LlvmFunction):
    """The body of a WGSL function under construction, with the instructions that recipes write."""

    def __init__(self, name: str) -> None:
        super().__init__(name, [])
        self.lines: list[str] = []
        self.depth = 1

    def line(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def value(self, text: str, type_: LlvmType) -> LlvmValue:
        return Computed(self.name_of(text, TYPES[type_.scalar]), type_)

    def name_of(self, text: str, type_: str) -> str:
        """The name of a new line's result, of a type of WGSL."""
        name = f"v{self._count}"
        self._count += 1
        self.line(f"let {name}: {type_} = {text};")
        return name

    def op(self, operation: str, a: LlvmValue, b: Number) -> LlvmValue:
        if operation in SHIFTS:
            bits = f"u32({a.text})" if operation == "lshr" else a.text
            return self.value(f"i32({bits} {SHIFTS[operation]} u32({_text(b, INTEGER)}))", a.type)
        left, right = (_operand(each, a.type) for each in (a, b))
        return self.value(f"{left} {PLAIN[operation]} {right}", a.type)

    def compare(self, predicate: str, a: LlvmValue, b: Number) -> LlvmValue:
        left, right = a.text, _text(b, a.type)
        if a.type.floats:
            return self._compare_floats(predicate, left, right)
        if predicate[0] == "u":
            left, right = f"u32({left})", f"u32({right})"
        return self.value(f"{left} {COMPARISONS[predicate.lstrip('us')]} {right}", I1)

    def _compare_floats(self, predicate: str, left: str, right: str) -> LlvmValue:
        """Ordered comparisons are false for NaN, others true; that is asked by bits."""
        unordered = f"f32_isnan({left}) || f32_isnan({right})" if left != right else f"f32_isnan({left})"
        if predicate == "uno":
            return self.value(unordered, I1)
        plain = f"{left} {COMPARISONS[predicate[1:]]} {right}"
        return self.value(f"({unordered}) || {plain}" if predicate[0] == "u" else f"!({unordered}) && {plain}", I1)

    def select(self, condition: LlvmValue, a: Number, b: Number) -> LlvmValue:
        type_ = a.type if isinstance(a, LlvmValue) else b.type if isinstance(b, LlvmValue) else INTEGER
        return self.value(f"select({_text(b, type_)}, {_text(a, type_)}, {condition.text})", type_)

    def cast(self, operation: str, a: LlvmValue, type_: LlvmType) -> LlvmValue:
        if operation != "bitcast" or type_.scalar not in TYPES:
            raise CodegenError(f"function {self.name}: WGSL has no {operation} to {type_.text}")
        return self.value(f"bitcast<{TYPES[type_.scalar]}>({a.text})", type_)


class Computed(LlvmValue):
    """A value that a line computes."""

    __slots__ = ()

    @property
    def is_constant(self) -> bool:
        return False


def _text(operand: Number, type_: LlvmType) -> str:
    """An operand as WGSL writes it; a number takes the type of the operand beside it."""
    if isinstance(operand, LlvmValue):
        return operand.text
    return float_literal(float(operand)) if type_.floats else _integer(operand)


def _operand(operand: Number, type_: LlvmType) -> str:
    """The same of arithmetic: a compiler moves constants of operations together unless it does not know them."""
    text = _text(operand, type_)
    known = type_.floats and not (isinstance(operand, LlvmValue) and not operand.is_constant)
    return f"f32_opaque({text})" if known else text


def _integer(value: int) -> str:
    bits = value & 0xFFFFFFFF
    return str(bits) if bits < 1 << 31 else f"i32({bits}u)"


class WgslLanes(FloatLanes):
    """One lane of f32, whose operations are lines of WGSL."""

    f: WgslFunction

    def number(self, value: float) -> LlvmValue:
        return LlvmValue(float_literal(value), FLOAT)

    def integer(self, value: int) -> LlvmValue:
        return LlvmValue(_integer(value), INTEGER)

    def neg(self, a: LlvmValue) -> LlvmValue:
        return self.f.value(f"-({a.text})", FLOAT)

    def abs(self, a: LlvmValue) -> LlvmValue:
        return self.f.value(f"abs({a.text})", FLOAT)

    def sqrt(self, a: LlvmValue) -> LlvmValue:
        return self.f.value(f"sqrt({a.text})", FLOAT)

    def copysign(self, magnitude: LlvmValue, sign: LlvmValue) -> LlvmValue:
        return self.f.value(f"f32_copysign({magnitude.text}, {sign.text})", FLOAT)

    def fused(self, a: LlvmValue, b: LlvmValue, c: LlvmValue) -> LlvmValue:
        return self.f.value(f"f32_fma({a.text}, {b.text}, {c.text})", FLOAT)

    def rounded(self, mode: str, x: LlvmValue) -> LlvmValue:
        return self.f.value(f"{ROUNDINGS[mode]}({x.text})", FLOAT)

    def sum(self, a: LlvmValue, b: LlvmValue) -> tuple[LlvmValue, LlvmValue]:
        """The rounded sum and its error, which no compiler may take for 0."""
        high = self._opaque(self.add(a, b))
        b_part = self._opaque(self.sub(high, a))
        a_part = self._opaque(self.sub(high, b_part))
        return high, self.add(self.sub(a, a_part), self.sub(b, b_part))

    def nearest(self, x: LlvmValue, factor: float) -> tuple[LlvmValue, LlvmValue]:
        magic = self.number(self.format.magic)
        shifted = self._opaque(self.fma(x, self.number(factor), magic))
        return self.sub(shifted, magic), self.bits(shifted)

    def nearest_power(self, x: LlvmValue, factor: float, exponent: int) -> tuple[LlvmValue, LlvmValue]:
        magic = self.number(self.format.magic + self.format.bias + exponent)
        shifted = self._opaque(self.fma(x, self.number(factor), magic))
        return self.sub(shifted, magic), self.power_of_two(self.bits(shifted))

    def reduced(
        self, recipe: Callable[[FloatLanes, LlvmValue], tuple[LlvmValue, LlvmValue]], angle: LlvmValue
    ) -> tuple[LlvmValue, LlvmValue]:
        """The recipe in integers of 96 bits is a function of the prelude."""
        parts = self.f.name_of(f"f32_large_angle({angle.text})", "vec2<u32>")
        return self.f.value(f"bitcast<f32>({parts}.x)", FLOAT), self.f.value(f"i32({parts}.y)", INTEGER)

    def _opaque(self, x: LlvmValue) -> LlvmValue:
        return self.f.value(f"f32_opaque({x.text})", FLOAT)

    def where_rare(
        self, mask: LlvmValue, usual: Sequence[LlvmValue], rare: Callable[[], Iterable[LlvmValue]]
    ) -> list[LlvmValue]:
        names = [f"{self._variable(value)}" for value in usual]
        self.f.line(f"if ({mask.text}) {{")
        self.f.depth += 1
        for name, value in zip(names, rare(), strict=True):
            self.f.line(f"{name} = {value.text};")
        self.f.depth -= 1
        self.f.line("}")
        return [Computed(name, value.type) for name, value in zip(names, usual, strict=True)]

    def _variable(self, value: LlvmValue) -> str:
        name = f"r{len(self.f.lines)}"
        self.f.line(f"var {name}: {TYPES[value.type.scalar]} = {value.text};")
        return name
