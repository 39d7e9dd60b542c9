"""Expressions of which equal ones are one node."""

from __future__ import annotations

from glowtrain.loops.language import Apply, Buffer, Cast, Const, Expr, Index, Load, Ref


class EqualNodes:
    """One node for all equal expressions; loads of what the kernel writes may differ from one another."""

    def __init__(self, written: frozenset[Buffer]) -> None:
        self._written = written
        self._nodes: dict[tuple[object, ...], Expr] = {}
        self.memo: dict[Expr, Expr] = {}

    def of(self, expr: Expr) -> Expr:
        """The first expression that was equal to this one; its children are such already."""
        match expr:
            case Index() | Ref():
                return expr
            case Apply(function=function, arguments=arguments, dtype=dtype):
                return self._nodes.setdefault((function, arguments, dtype.name), expr)
            case Load(buffer=buffer, index=index, fill=None) if buffer not in self._written:
                return self._nodes.setdefault((buffer, index), expr)
            case Const(value=value, dtype=dtype):  # by their text: -0.0 equals 0.0
                return self._nodes.setdefault((repr(value), dtype.name), expr)
            case Cast(value=value, dtype=dtype):
                return self._nodes.setdefault((Cast, value, dtype.name), expr)
        return expr
