"""Find the buffers that instructions decide by: they compare, round or count. A value that was rounded decides
otherwise now and then.

That can be harmless: the derivatives of ReLU and Clip ask on which side of a bound that is known a value lies, where
rounding moves few across. But the gradient of a maximum goes to the elements that equal it: of elements
that were rounded none may, or several. And a number of a class is no class at all once it is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from glowtrain.loops import Apply, Buffer, Cast, Const, Expr, Let, Load, Ref, evaluations, statements
from glowtrain.loops.functions import PREDICATES
from glowtrain.loops.language import walk
from glowtrain.program.program import Instruction, Kernel, leaves_of

STEPS = frozenset({"floor", "ceil", "round", "trunc", "mod", "fmod", "bitcast"})
"""Functions that jump elsewhere than at zero."""
EQUALITIES = frozenset({"eq", "ne"})


def decisive(instructions: Sequence[Instruction]) -> set[Buffer]:
    """The buffers by whose exact values instructions decide something, or of which others are made that they decide by.
    Native functions may decide by all that they read."""
    found: set[Buffer] = set()
    leaves, known = list(leaves_of(instructions)), -1
    while known != len(found):
        known = len(found)
        for leaf in reversed(leaves):
            if leaf.kernel is None or not found.isdisjoint(leaf.written):
                found.update(leaf.reads)
            else:
                found.update(_decided_by(leaf.kernel))
    return found


def _decided_by(kernel: Kernel) -> Iterator[Buffer]:
    """The buffers of floats that a kernel loads to decide by."""
    named: dict[Expr, Expr] = {s.ref: s.value for s in statements(kernel.body) if isinstance(s, Let)}
    for statement in evaluations(kernel.body):
        for node in statement.nodes:
            for operand in _deciding(node):
                yield from _loaded(operand, named)


def _deciding(node: Expr) -> tuple[Expr, ...]:
    """The operands of a function that jumps, or of a comparison of what is not known with what is not known either."""
    match node:
        case Apply(function=name, arguments=arguments) if name in PREDICATES:
            floats = [each for each in arguments if each.dtype.is_float]
            return () if any(_is_bound(each, name) for each in floats) else tuple(floats)
        case Apply(function=name, arguments=arguments) if name in STEPS:
            return tuple(each for each in arguments if each.dtype.is_float)
        case Cast(value=value, dtype=dtype) if value.dtype.is_float and not dtype.is_float:
            return (value,)
    return ()


def _is_bound(operand: Expr, comparison: str) -> bool:
    """Whether a comparison with this operand is one with a known bound: being equal to anything but 0 is no bound."""
    return isinstance(operand, Const) and (comparison not in EQUALITIES or operand.value == 0)


def _loaded(expr: Expr, named: dict[Expr, Expr]) -> Iterator[Buffer]:
    """What is loaded to compute an expression, names followed."""
    waiting, seen = [expr], set[Expr]()
    while waiting:
        for node in walk(waiting.pop()):
            if isinstance(node, Load):
                yield node.buffer
            if isinstance(node, Ref) and node in named and node not in seen:
                seen.add(node)
                waiting.append(named[node])
