"""Patterns of expressions, looked for in the syntax tree of a function.

A pattern is written as the expression that it matches, in which

- ``_`` stands for any expression;
- one capital letter stands for any expression, the same one wherever the letter is repeated: ``A * A`` is a square;
- ``...`` among arguments or elements stands for any number of them, also of keyword arguments;
- a name matches however it is qualified: ``Where`` also matches ``logic.Where``.

Layout, comments and superfluous parentheses make no difference. Nor do the names of locals and parameters, unless the
pattern spells one out; arguments of a lambda are written ``_``. A local that is assigned once counts as what it is
assigned: ``_ * (1.0 - _)`` matches ``g * slope`` after ``slope = 1.0 - y * y``.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

Parts = dict[str, ast.expr]


@dataclass(frozen=True)
class Match:
    """An expression that a pattern matches, and what each letter stands for."""

    whole: ast.expr
    parts: Mapping[str, ast.expr]

    @property
    def marked(self) -> ast.expr:
        """What X stands for; everything, if the pattern has no X."""
        return self.parts.get("X", self.whole)


def matches(pattern: str, function: ast.FunctionDef) -> list[Match]:
    """Every expression in the body of a function that the pattern matches; where a local is assigned, not read."""
    wanted, matcher = ast.parse(pattern, mode="eval").body, _Matcher(assigned_once(function))
    found = []
    for node in (node for statement in function.body for node in ast.walk(statement)):
        parts: Parts = {}
        if isinstance(node, type(wanted)) and _is_read(node) and matcher.is_instance(node, wanted, parts):
            found.append(Match(node, parts))
    return found


def assigned_once(function: ast.FunctionDef) -> Parts:
    """The locals of a function that are assigned once, and what they are assigned."""
    nodes = list(ast.walk(function))
    bound = Counter(node.id for node in nodes if isinstance(node, ast.Name) and not _is_read(node))
    bound.update(node.arg for node in nodes if isinstance(node, ast.arg))
    values = {target.id: value for target, value in _assignments(nodes) if isinstance(target, ast.Name)}
    return {name: value for name, value in values.items() if bound[name] == 1}


def _assignments(nodes: Sequence[ast.AST]) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Targets and values; of ``a, b = c, d`` each."""
    for node in nodes:
        if isinstance(node, ast.AnnAssign) and node.value is not None:
            yield node.target, node.value
        elif isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
                yield from zip(target.elts, value.elts, strict=True)
            else:
                yield target, value


def _is_read(node: ast.expr) -> bool:
    return isinstance(getattr(node, "ctx", ast.Load()), ast.Load)


def _is_rest(pattern: ast.AST) -> bool:
    return isinstance(pattern, ast.Constant) and pattern.value is ...


@dataclass(frozen=True)
class _Matcher:
    locals: Parts

    def is_instance(self, node: ast.AST, pattern: ast.AST, parts: Parts) -> bool:
        """Whether a node is an instance of a pattern; what letters stand for is added to ``parts``."""
        if isinstance(pattern, ast.Name):
            return isinstance(node, ast.expr) and self._is_named(node, pattern.id, parts)
        if isinstance(node, ast.Name) and node.id in self.locals:
            node = self.locals[node.id]
        if type(node) is not type(pattern):
            return False
        if isinstance(node, ast.arg):
            return True
        if isinstance(node, ast.Call) and isinstance(pattern, ast.Call):
            return self._is_call(node, pattern, parts)
        fields = (name for name in pattern._fields if name not in ("ctx", "kind"))
        return all(self._is_field(getattr(node, name), getattr(pattern, name), parts) for name in fields)

    def _is_named(self, node: ast.expr, name: str, parts: Parts) -> bool:
        if name == "_":
            return True
        if len(name) == 1 and name.isupper():
            return ast.dump(parts.setdefault(name, node)) == ast.dump(node)
        return name == (node.id if isinstance(node, ast.Name) else getattr(node, "attr", None))

    def _is_field(self, value: object, pattern: object, parts: Parts) -> bool:
        if isinstance(value, list) and isinstance(pattern, list):
            return self._is_list(value, pattern, parts)
        if isinstance(value, ast.AST) and isinstance(pattern, ast.AST):
            return self.is_instance(value, pattern, parts)
        return type(value) is type(pattern) and value == pattern

    def _is_list(self, values: Sequence[ast.AST], patterns: Sequence[ast.AST], parts: Parts) -> bool:
        rest = next((place for place, pattern in enumerate(patterns) if _is_rest(pattern)), None)
        if rest is not None:
            after = len(patterns) - rest - 1
            if len(values) < rest + after:
                return False
            values = [*values[:rest], *values[len(values) - after :]]
            patterns = [*patterns[:rest], *patterns[rest + 1 :]]
        return len(values) == len(patterns) and all(
            self.is_instance(value, pattern, parts) for value, pattern in zip(values, patterns, strict=True)
        )

    def _is_call(self, call: ast.Call, pattern: ast.Call, parts: Parts) -> bool:
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        wanted = {keyword.arg: keyword.value for keyword in pattern.keywords}
        names_fit = keywords.keys() == wanted.keys() or any(map(_is_rest, pattern.args))
        return (
            names_fit
            and wanted.keys() <= keywords.keys()
            and self.is_instance(call.func, pattern.func, parts)
            and self._is_list(call.args, pattern.args, parts)
            and all(self.is_instance(keywords[name], value, parts) for name, value in wanted.items())
        )
