"""The text of a plan in C: each kernel's loops as they stand, each expression a local constant."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from glowtrain.errors import CodegenError
from glowtrain.loops import Accumulate, Apply, Buffer, Cast, Const, Expr, For, Let, Load, Reduce, Statement, Store
from glowtrain.program.interpret.functions import identity
from glowtrain.program.program import Instruction, Plan
from glowtrain.types import DType

TYPES = {"f32": "float", "f64": "double", "bool": "_Bool"}
TYPES |= {f"{kind[0]}{size}": f"{kind}{size}_t" for kind in ("int", "uint") for size in (8, 16, 32, 64)}

PRELUDE = r"""
#include <stdint.h>
#include <tgmath.h>

static inline int64_t to_i64(double x) { return x > -0x1p63 && x < 0x1p63 ? (int64_t)x : INT64_MIN; }
static inline int64_t to_i32(double x) { return x > -0x1p31 - 1 && x < 0x1p31 ? (int64_t)x : INT32_MIN; }
static inline uint64_t to_u64(double x) { return x >= 0x1p64 ? 0 : x >= 0x1p63 ? (uint64_t)x : to_i64(x); }
static inline uint64_t power(uint64_t base, uint64_t n) {
  uint64_t result = 1;
  for (; n; n >>= 1, base *= base) if (n & 1) result *= base;
  return result;
}
"""

BOTH = {
    "add": "a + b", "sub": "a - b", "mul": "a * b", "neg": "-a", "select": "a ? b : c",
    "min": "a != a || a < b ? a : b", "max": "a != a || a > b ? a : b", "sign": "a != a ? a : (a > 0) - (a < 0)",
    "eq": "a == b", "ne": "a != b", "lt": "a < b", "le": "a <= b", "gt": "a > b", "ge": "a >= b",
}  # fmt: skip
"""Functions that are written alike for all types, of operands a, b and c. A minimum of NaN is NaN."""
FLOATS = {
    **{name: f"{name}(a)" for name in (
        "floor", "ceil", "trunc", "exp", "log", "log1p", "expm1", "tanh", "erf", "sqrt", "sin", "cos", "tan", "asin",
        "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "isnan", "isinf",
    )},
    "div": "a / b", "fmod": "fmod(a, b)", "pow": "pow(a, b)", "fma": "fma(a, b, c)", "abs": "fabs(a)",
    "mod": "fmod(a, b) && (fmod(a, b) < 0) != (b < 0) ? fmod(a, b) + b : fmod(a, b)", "round": "rint(a)",
    "sigmoid": "a >= 0 ? 1 / (1 + exp(-a)) : exp(a) / (1 + exp(a))", "rsqrt": "1 / sqrt(a)", "reciprocal": "1 / a",
    "softplus": "(a > 0 ? a : 0) + log1p(exp(-fabs(a)))",
}  # fmt: skip
INTEGERS = {
    "div": "b == 0 ? 0 : b + 1 == 0 && b < 0 ? -a : a / b", "abs": "a < 0 ? -a : a",
    "fmod": "b == 0 || (b + 1 == 0 && b < 0) ? 0 : a % b",
    "mod": "b == 0 || (b + 1 == 0 && b < 0) ? 0 : a % b && (a % b < 0) != (b < 0) ? a % b + b : a % b",
    "pow": "b >= 0 ? power(a, b) : a == 1 ? 1 : a + 1 == 0 && a < 0 ? (b & 1 ? -1 : 1) : 0",
    "and": "a & b", "or": "a | b", "xor": "a ^ b", "not": "a ^ (__typeof__(a))-1", "mulhi_u32": "(uint64_t)a * b >> 32",
    "shift_left": "(uint64_t)b < 8 * sizeof(a) ? (uint64_t)a << b : 0",
    "shift_right": "(uint64_t)b < 8 * sizeof(a) ? a >> b : a < 0 ? -1 : 0",
}  # fmt: skip


class Writer:
    """Writes lines; ``names`` are the C names of indices, and of what is computed in an enclosing block."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.lines: list[str] = []
        self.line = self.lines.append
        self.names: dict[Expr, str] = {}
        self.buffers: dict[Buffer, str] = {}
        self.count, self.kernel = 0, ""

    def text(self) -> str:
        """The whole module. Raises :class:`CodegenError` for what C cannot express, naming the kernel."""
        program = self.plan.program
        outside = [*program.inputs.values(), *program.variables.values(), *program.outputs.values(), *program.constants]
        addresses = {buffer: f"table[{number}]" for number, buffer in enumerate(outside, 1)}
        addresses |= {buffer: f"arena + {offset}" for buffer, offset in self.plan.offsets.items()}
        with self.block("void step(char **table)"):
            self.line("char *arena = (char *)(((uintptr_t)table[0] + 63) / 64 * 64);")
            for buffer, address in addresses.items():
                self.kernel, self.buffers[buffer] = buffer.name, self.name("b")
                type_ = self.type(buffer.dtype)
                self.line(f"{type_} *{self.buffers[buffer]} = ({type_} *)({address});")
            self.instructions(program.instructions)
        return PRELUDE + "\n".join(self.lines) + "\n"

    def name(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """A block, after which the names in it are forgotten."""
        outer, self.names = self.names, dict(self.names)
        self.line(f"{head} {{")
        yield
        self.line("}")
        self.names = outer

    @contextmanager
    def loops(self, indices: Sequence[Expr]) -> Iterator[None]:
        """Nested loops, the last index the fastest."""
        with self.block(""):
            for index in indices:
                at = self.names[index] = self.name("i")
                self.line(f"for (int64_t {at} = 0; {at} < {index.extent}; {at}++) {{")
            yield
            self.line("}" * len(indices))

    def type(self, dtype: DType) -> str:
        if dtype.name not in TYPES:
            raise CodegenError(f"kernel {self.kernel}: C has no type {dtype}; use backend cpu")
        return TYPES[dtype.name]

    def instructions(self, instructions: Sequence[Instruction]) -> None:
        """Kernels in order; those inside of a repeat in a loop."""
        for each in instructions:
            self.kernel = each.name
            if each.kernel is not None:
                with self.block(f"/* {each.name.replace('*/', '')} */"):
                    self.statements(each.kernel.body)
            elif each.native is not None:
                raise CodegenError(f"call {each.name} runs a function of this process; use backend cpu")
            else:
                with self.loops(each.indices):
                    self.instructions(each.children)

    def statements(self, body: Sequence[Statement]) -> None:
        """All of a body. Only what a Let names is used by later ones: they may read what was stored before."""
        for statement in body:
            if isinstance(statement, For):
                with self.loops(statement.indices):
                    self.statements(statement.body)
            elif isinstance(statement, Let):
                self.names[statement.ref] = name = self.name("t")
                self.line(f"{self.type(statement.ref.dtype)} {name};")
                with self.block(""):
                    self.line(f"{name} = {self.value(statement.value)};")
            else:
                with self.block(""):
                    self.write(statement)

    def write(self, statement: Store | Accumulate) -> None:
        """A store; an accumulation where its element exists."""
        value, (element, inside) = self.value(statement.value), self.element(statement.buffer, statement.index)
        if isinstance(statement, Store):
            self.line(f"{element} = {value};")
        else:
            self.line(f"if ({inside}) {element} = {applied(statement.op, statement.buffer.dtype, element, value)};")

    def value(self, expr: Expr) -> str:
        """The name of an expression's value, which is computed where it is not yet."""
        if expr not in self.names:
            text, self.names[expr] = self.expression(expr), self.name("v")
            self.line(f"const {self.type(expr.dtype)} {self.names[expr]} = {text};")
        return self.names[expr]

    def expression(self, expr: Expr) -> str:
        """An expression of the names of its operands."""
        match expr:
            case Const(value=value):
                return literal(value, expr.dtype)
            case Load(buffer=buffer, index=index, fill=fill):
                element, inside = self.element(buffer, index)
                return element if fill is None else f"{inside} ? {element} : {literal(fill, buffer.dtype)}"
            case Cast(value=value):
                return convert(self.value(value), value.dtype, expr.dtype)
            case Apply(function="bitcast", arguments=(value,)):
                target = "uint8_t" if expr.dtype.name == "bool" else self.type(expr.dtype)
                return f"(union {{ {self.type(value.dtype)} a; {target} b; }}){{.a = {self.value(value)}}}.b"
            case Apply(function=function, arguments=arguments):
                return applied(function, arguments[-1].dtype, *map(self.value, arguments))
            case Reduce():
                return self.reduce(expr)

    def element(self, buffer: Buffer, index: Sequence[Expr]) -> tuple[str, str]:
        """An element, and the condition that it exists."""
        at = [self.value(each) for each in index]
        offset = " + ".join(f"{i} * {stride}" for i, stride in zip(at, buffer.strides, strict=True))
        checks = (f"{i} >= 0 && {i} < {extent}" for i, extent in zip(at, buffer.shape, strict=True))
        return f"{self.buffers[buffer]}[{offset or 0}]", f"({' && '.join(checks) or 1})"

    def reduce(self, expr: Reduce) -> str:
        """The name of a result; of several partial ones, combined half with half, where the program says so."""
        name, number = self.name("r"), expr.partials or 1
        start = literal(identity(expr.op, expr.dtype).item(), expr.dtype)
        self.line(f"{self.type(expr.dtype)} {name}[{number}];")
        self.line(f"for (int p = 0; p < {number}; p++) {name}[p] = {start};")
        with self.loops(expr.indices):
            element = f"{name}[{self.names[expr.indices[0]]} % {number}]" if expr.partials else f"{name}[0]"
            match expr.body:
                case Apply(function="mul", arguments=factors, dtype=dtype) if expr.partials and dtype.name == "f32":
                    text = applied("fma", dtype, *map(self.value, factors), element)
                case body:
                    text = applied(expr.op, expr.dtype, element, self.value(body))
            self.line(f"{element} = {text};")
        halves = applied(expr.op, expr.dtype, f"{name}[p]", f"{name}[p + h]")
        self.line(f"for (int h = {number // 2}; h; h /= 2) for (int p = 0; p < h; p++) {name}[p] = {halves};")
        return f"{name}[0]"


def applied(function: str, dtype: DType, *operands: str) -> str:
    """A function of operands of a type, which are names or elements."""
    text = (FLOATS if dtype.is_float else INTEGERS).get(function) or BOTH[function]
    return re.sub(r"\b[abc]\b", lambda found: operands["abc".index(found[0])], text)


def convert(value: str, source: DType, target: DType) -> str:
    """A conversion; floats become integers as :func:`glowtrain.loops.functions.truncated` says."""
    if not (source.is_float and target.is_integer):
        return value
    wide = "u64" if target.name == "u64" else "i64" if target.name in ("i64", "u32") else "i32"
    return f"to_{wide}({value})"


def literal(value: float, dtype: DType) -> str:
    """A number of a type; integers wrap."""
    if not dtype.is_float:
        return f"({TYPES[dtype.name]}){int(value) & (1 << 64) - 1}ull"
    if not math.isfinite(value):
        return "NAN" if math.isnan(value) else "INFINITY" if value > 0 else "-INFINITY"
    return f"({TYPES[dtype.name]}){float(value).hex()}"
