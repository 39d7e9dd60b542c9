"""Keys of kernels: equal for kernels that are the same code on other buffers."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from glowtrain.loops import (
    Accumulate,
    Apply,
    Cast,
    Const,
    Expr,
    For,
    Index,
    Let,
    Load,
    Reduce,
    Ref,
    Statement,
    Store,
)
from glowtrain.program.program import Kernel

Key = tuple[Hashable, ...]


def structure(kernel: Kernel, outer: Sequence[Index] = ()) -> Key:
    """A key that is equal for kernels that differ in names and in which buffers they touch, and in nothing else.

    Operands count by their place in ``kernel.operands``, with type and layout. ``outer``: the indices of enclosing
    repeats; they are told apart by identity.
    """
    return _Numbering(kernel, outer).key()


@dataclass
class _Numbering:
    """Numbers of expressions and names in order of appearance, and what each is made of."""

    kernel: Kernel
    outer: Sequence[Index]
    numbers: dict[Hashable, int] = field(default_factory=dict)
    parts: list[Hashable] = field(default_factory=list)

    def key(self) -> Key:
        for buffer in self.kernel.operands:
            self._new(buffer, (buffer.dtype.name, buffer.shape, buffer.layout))
        for index in self.outer:
            self._new(index, id(index))
        self._body(self.kernel.body)
        return tuple(self.parts)

    def _new(self, thing: Hashable, part: Hashable) -> None:
        self.numbers[thing] = len(self.numbers)
        self.parts.append(part)

    def _body(self, body: Sequence[Statement]) -> None:
        for statement in body:
            match statement:
                case For(indices=indices, body=inner, serial=serial):
                    self.parts.append(("for", serial, tuple(self._of(index) for index in indices), len(inner)))
                    self._body(inner)
                case Let(ref=ref, value=value):
                    self.parts.append(("let", self._of(value), self._of(ref)))
                case Store(buffer=buffer, index=at, value=value):
                    places = tuple(self._of(i) for i in at)
                    self.parts.append(("store", self.numbers[buffer], places, self._of(value)))
                case Accumulate(op=op, buffer=buffer, index=at, value=value):
                    places = tuple(self._of(i) for i in at)
                    self.parts.append(("accumulate", op, self.numbers[buffer], places, self._of(value)))

    def _of(self, expr: Expr) -> int:
        """The number of an expression; what it is made of gets numbers before it."""
        stack = [expr]
        while stack:
            node = stack[-1]
            missing = [child for child in node.children if child not in self.numbers]
            if missing:
                stack += reversed(missing)
                continue
            stack.pop()
            if node not in self.numbers:
                self._new(node, self._part(node))
        return self.numbers[expr]

    def _part(self, node: Expr) -> Hashable:
        below = tuple(self.numbers[child] for child in node.children)
        match node:
            case Const(value=value, dtype=dtype):
                return "const", repr(value), dtype.name
            case Index(extent=extent):
                return "index", extent
            case Ref(dtype=dtype):
                return "ref", dtype.name
            case Load(buffer=buffer, fill=fill):
                return "load", self.numbers[buffer], below, repr(fill)
            case Apply(function=function, dtype=dtype):
                return function, below, dtype.name
            case Cast(dtype=dtype):
                return "cast", below, dtype.name
            case Reduce(op=op, indices=indices, partials=partials):
                return "reduce", op, partials, tuple(self._of(index) for index in indices), below
        raise AssertionError(f"{node} is no expression")
