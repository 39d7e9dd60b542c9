"""Ways to make a function wrong: changes of its syntax, and of its behaviour.

A change of the syntax looks for a pattern (``patterns.py``), which must match exactly one expression. It changes what
the pattern marks by ``X``, or all that it matches: ``negate("X * (1.0 - _)")`` negates the first factor. A change of
the behaviour calls another function instead, or after the right one. Either takes the place of the function's code, so
everybody who holds the function gets the wrong one.
"""

from __future__ import annotations

import ast
import copy
import functools
import inspect
import sys
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any

import pytest
from patterns import Match, matches

Patch = pytest.MonkeyPatch
Replacements = list[tuple[ast.expr, ast.expr]]
OTHER = "_planted"
"""What the wrong code calls a function that comes from the mistake."""


class NotPlanted(Exception):
    """A mistake does not fit the code (any more)."""


class Change(ABC):
    """A way to make a function wrong."""

    @abstractmethod
    def plant(self, what: Any, patch: Patch) -> None:
        """Do so until ``patch`` is undone. Raises :class:`NotPlanted` if the change does not fit."""


# --- Of the syntax


def negate(pattern: str) -> Change:
    """-x for x."""
    return Syntax(pattern, lambda m: [(m.marked, ast.UnaryOp(ast.USub(), m.marked))])


def scale(pattern: str, factor: float) -> Change:
    """x * factor for x."""
    return Syntax(pattern, lambda m: [(m.marked, ast.BinOp(m.marked, ast.Mult(), ast.Constant(factor)))])


def off_by_one(pattern: str, by: int = 1) -> Change:
    """x + 1 for x, or x - 1."""
    return Syntax(pattern, lambda m: [(m.marked, ast.BinOp(m.marked, ast.Add(), ast.Constant(by)))])


def constant(pattern: str, value: Any) -> Change:
    """A literal for x."""
    literal = ast.parse(repr(value), mode="eval").body
    return Syntax(pattern, lambda m: [(m.marked, literal)])


def always(pattern: str) -> Change:
    """True for x."""
    return constant(pattern, True)


def never(pattern: str) -> Change:
    """False for x."""
    return constant(pattern, False)


def flip(pattern: str) -> Change:
    """The comparison the other way around: > for <, != for ==."""
    return Syntax(pattern, lambda m: [(m.marked, _flipped(m.marked))])


def keep(pattern: str) -> Change:
    """Of all that the pattern matches only what it marks: ``keep("X + _")`` drops an addend."""
    return Syntax(pattern, lambda m: [(m.whole, m.parts["X"])])


def swap(pattern: str) -> Change:
    """Y in the place of X, and X in that of Y."""
    return Syntax(pattern, lambda m: [(m.parts["X"], m.parts["Y"]), (m.parts["Y"], m.parts["X"])])


def rewrite(pattern: str, other: str) -> Change:
    """Another expression, in which the pattern's letters stand for what they matched."""
    return Syntax(pattern, lambda m: [(m.whole, _filled_in(other, m.parts))])


def wrap(pattern: str, function: Callable[[Any], Any]) -> Change:
    """function(x) for x."""
    called = ast.Name(OTHER, ast.Load())
    return Syntax(pattern, lambda m: [(m.marked, ast.Call(called, [m.marked], []))], {OTHER: function})


# --- Of the behaviour


def instead(wrong: Callable[..., Any]) -> Change:
    """Another function in the place of this one."""
    return Behaviour(lambda right: wrong)


def result(wrong: Callable[[Any], Any]) -> Change:
    """Something else made of the result."""
    return Behaviour(lambda right: lambda *args, **kwargs: wrong(right(*args, **kwargs)))


def around(wrong: Callable[..., Any]) -> Change:
    """Another function, which is given this one before its arguments."""
    return Behaviour(lambda right: functools.partial(wrong, right))


# --- How it is done


@dataclass(frozen=True)
class Syntax(Change):
    """Other expressions in the place of some of those that the pattern matched; ``names`` are what they may name."""

    pattern: str
    change: Callable[[Match], Replacements]
    names: Mapping[str, Any] = field(default_factory=dict)

    def plant(self, what: Any, patch: Patch) -> None:
        function, tree, match = self._only(what)
        replacements = self.change(match)
        if all(ast.dump(old) == ast.dump(new) for old, new in replacements):
            raise NotPlanted(f"`{self.pattern}` is changed into itself: `{ast.unparse(match.whole)}`")
        wrong = _Replacing({id(old): new for old, new in replacements}).visit(tree)
        _put(function, wrong, self.names, patch)

    def _only(self, what: Any) -> tuple[FunctionType, ast.FunctionDef, Match]:
        trees = [(function, parsed(function)) for function in functions_of(what)]
        found = [(function, tree, match) for function, tree in trees for match in matches(self.pattern, tree)]
        if len(found) != 1:
            listed = [f"`{ast.unparse(match.whole)}` in {function.__qualname__}" for function, _, match in found]
            some = f"{len(found)} expressions: " + ", ".join(listed) if found else "nothing"
            raise NotPlanted(f"`{self.pattern}` should match one expression of {_name(what)}, but matches {some}")
        return found[0]


@dataclass(frozen=True)
class Behaviour(Change):
    """Another function, made of this one."""

    other: Callable[[Callable[..., Any]], Callable[..., Any]]

    def plant(self, what: Any, patch: Patch) -> None:
        if isinstance(what, type | ModuleType):
            raise NotPlanted(f"{_name(what)} is no function, so it has no behaviour to replace")
        (function,) = functions_of(what)
        right = FunctionType(
            function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
        )
        right.__kwdefaults__ = function.__kwdefaults__
        source = f"def {function.__name__}(*args, **kwargs):\n    return {OTHER}(*args, **kwargs)"
        _put(function, _definition(source), {OTHER: self.other(right)}, patch)


def functions_of(what: Any) -> list[FunctionType]:
    """A function itself; those of a class, or of a module and its classes, that are written there."""
    if isinstance(what, type | ModuleType):
        file = sys.modules[what.__module__ if isinstance(what, type) else what.__name__].__file__
        return [each for each in dict.fromkeys(_members(what)) if each.__code__.co_filename == file]
    function = unwrapped(what)
    if not isinstance(function, FunctionType):
        raise NotPlanted(f"{what!r} is neither a function nor a class nor a module")
    return [function]


def _members(what: type | ModuleType) -> Iterator[FunctionType]:
    for member in vars(what).values():
        inner = unwrapped(member)
        if isinstance(inner, FunctionType) and inner.__name__ != "<lambda>":
            yield inner
        elif isinstance(member, type) and isinstance(what, ModuleType) and member.__module__ == what.__name__:
            yield from _members(member)


def unwrapped(member: Any) -> Any:
    """The function within a property, a cached property, a static or class method, or a decorator."""
    if isinstance(member, property):
        member = member.fget
    elif isinstance(member, functools.cached_property):
        member = member.func
    return inspect.unwrap(member) if callable(member) else getattr(member, "__func__", member)


def parsed(function: FunctionType) -> ast.FunctionDef:
    """The syntax tree of a function."""
    return _definition(textwrap.dedent(inspect.getsource(function)))


def _definition(source: str) -> ast.FunctionDef:
    tree = ast.parse(source).body[0]
    assert isinstance(tree, ast.FunctionDef), f"{source} defines no function"
    return tree


def _put(function: FunctionType, tree: ast.FunctionDef, names: Mapping[str, Any], patch: Patch) -> None:
    for name, value in names.items():
        patch.setitem(function.__globals__, name, value)
    patch.setattr(function, "__code__", compiled(tree, function.__code__.co_freevars))


def compiled(tree: ast.FunctionDef, captured: tuple[str, ...] = ()) -> CodeType:
    """The code of a function that captures names around it, which it must read to have them in its closure."""
    tree.decorator_list = []
    tree.body[:0] = [ast.Expr(ast.Name(name, ast.Load())) for name in captured]
    assigned = "".join(f"    {name} = None\n" for name in captured)
    outer = _definition(f"def outer():\n    global {tree.name}\n{assigned}    pass")
    outer.body[-1] = tree
    module = ast.fix_missing_locations(ast.Module([outer], []))
    return _code(_code(compile(module, f"<mistake in {tree.name}>", "exec"), "outer"), tree.name)


def _code(code: CodeType, name: str) -> CodeType:
    return next(each for each in code.co_consts if isinstance(each, CodeType) and each.co_name == name)


def _name(what: Any) -> str:
    return str(getattr(unwrapped(what), "__qualname__", None) or what.__name__)


@dataclass(frozen=True)
class _Replacing(ast.NodeTransformer):
    """Puts other nodes in the place of some, which it knows by their id."""

    new: Mapping[int, ast.expr]

    def visit(self, node: ast.AST) -> Any:
        return copy.deepcopy(self.new[id(node)]) if id(node) in self.new else self.generic_visit(node)


def _filled_in(source: str, parts: Mapping[str, ast.expr]) -> ast.expr:
    tree = ast.parse(source, mode="eval").body
    letters = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in parts)
    filled: ast.expr = _Replacing({id(node): parts[node.id] for node in letters}).visit(tree)
    return filled


_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt,
    ast.LtE: ast.GtE,
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
}
_FLIPPED |= {new: old for old, new in _FLIPPED.items()}


def _flipped(node: ast.expr) -> ast.expr:
    if not isinstance(node, ast.Compare) or len(node.ops) != 1:
        raise NotPlanted(f"`{ast.unparse(node)}` is no single comparison to flip")
    return ast.Compare(node.left, [_FLIPPED[type(node.ops[0])]()], node.comparators)
