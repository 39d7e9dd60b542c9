"""The text form of a graph: printed by :func:`to_text`, read back by :func:`parse`.

    graph    ::= "graph" NAME "(" [input ("," input)*] ")" "{" line* "}"
    input    ::= VALUE ":" type
    line     ::= VALUE ":" type "=" "constant" (number | "[" number,* "]" | ARRAY)
               | VALUE ":" type "=" "variable" ARRAY ["frozen"]
               | VALUE ":" type ("," VALUE ":" type)* "=" call
               | "output" NAME "=" VALUE
               | VALUE "<-" VALUE
    call     ::= OPERATOR ["{" NAME "=" attribute,* "}"] "(" operand,* ")" [STRING]
    operand  ::= VALUE | "-"                                         an absent optional operand
    attribute ::= number | STRING | DTYPE | "true" | "false" | "none" | "[" attribute,* "]" | graph

    VALUE is %name, ARRAY is @name; a name with other characters than letters, digits and _ . : / $ - is quoted.
    A value without a name prints as a number; a second value of one name gets the suffix ~1. The string after a
    node is the node's name. A comment runs from "#" to the end of the line.

Constants of up to 16 elements are written out; larger ones, and the initial values of variables, are arrays by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from glowtrain.errors import GraphError, ShapeError, TextError
from glowtrain.graph.graph import Graph
from glowtrain.graph.operator import Operator, format_attribute
from glowtrain.graph.registry import lookup
from glowtrain.graph.value import Constant, Input, Node, Value, Variable
from glowtrain.types import DTYPES, Array, LazyArray, TensorType, elements_of, parse_type

INLINE_ELEMENTS = 16
"""Constants with at most this many elements are written out."""

_NAME = r"(?!(?:inf|nan)\b)[A-Za-z_/$](?:[\w./$:-]*[\w/$-])?"
_PLAIN_NAME = re.compile(_NAME, re.ASCII)


def to_text(graph: Graph) -> str:
    """The graph as text, one line a node. :func:`parse` reads it back, given :func:`arrays_of` the graph."""
    return "\n".join(_Printer().graph(graph, "")) + "\n"


def arrays_of(graph: Graph) -> dict[str, Array]:
    """The arrays that the text of ``graph`` refers to by ``@name``."""
    printer = _Printer()
    for _ in printer.graph(graph, ""):
        pass
    return {name: elements_of(array) for name, array in printer.arrays.items()}


def parse(text: str, arrays: Mapping[str, Array] | None = None) -> Graph:
    """Read a graph from text, taking large constants and variables' initial values from ``arrays``.

    Raises :class:`TextError` naming the line: unknown operators or names, types that are not what the operator gives,
    missing arrays, or text outside the grammar.
    """
    parser = _Parser(text, arrays or {})
    graph = parser.graph()
    parser.expect("end")
    return graph


class _Printer:
    """Prints graphs; names are unique over a graph and the graphs nested in it."""

    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.taken: dict[str, int] = {}
        self.arrays: dict[str, Array | LazyArray] = {}
        self.unnamed = 0

    def graph(self, graph: Graph, indent: str) -> Iterator[str]:
        inputs = ", ".join(self.declare(value) for value in graph.inputs)
        yield f"{indent}graph {_quote(graph.name)}({inputs}) {{"
        inner = indent + "  "
        for leaf in graph.leaves:
            if not isinstance(leaf, Input):
                yield f"{inner}{self.declare(leaf)} = {self.leaf(leaf)}"
        for node in graph.nodes:
            yield inner + self.node(node, inner)
        for name, value in graph.outputs.items():
            yield f"{inner}output {_quote(name)} = {self.use(value)}"
        for variable, value in graph.updates.items():
            yield f"{inner}{self.use(variable)} <- {self.use(value)}"
        yield indent + "}"

    def leaf(self, leaf: Value) -> str:
        if isinstance(leaf, Variable):
            return f"variable {self.array(leaf, leaf.source)}{'' if leaf.trainable else ' frozen'}"
        if not isinstance(leaf, Constant):
            raise GraphError(f"{leaf!r} is neither an input, a constant, a variable nor a node's output")
        if leaf.type.size <= INLINE_ELEMENTS:
            return f"constant {_format_array(leaf.array)}"
        return f"constant {self.array(leaf, leaf.array)}"

    def node(self, node: Node, indent: str) -> str:
        operator = self.operator(node.operator, indent)
        operands = ", ".join("-" if value is None else self.use(value) for value in node.inputs)
        outputs = ", ".join(self.declare(value) for value in node.outputs)
        return f"{outputs} = {operator}({operands})" + (f" {format_attribute(node.name)}" if node.name else "")

    def operator(self, operator: Operator, indent: str) -> str:
        subgraphs = {name: value for name, value in operator.stated().items() if isinstance(value, Graph)}
        if not subgraphs:
            return str(operator)
        stated = {name: value for name, value in operator.stated().items() if name not in subgraphs}
        shown = [f"{name}={format_attribute(value)}" for name, value in stated.items()]
        for name, body in subgraphs.items():
            shown.append(f"{name}=" + "\n".join(self.graph(body, indent)).lstrip())
        return f"{operator.key()}{{{','.join(shown)}}}"

    def declare(self, value: Value) -> str:
        return f"{self.use(value)}: {value.type}"

    def use(self, value: Value) -> str:
        if value not in self.names:
            self.names[value] = self.unique(value)
        return f"%{self.names[value]}"

    def unique(self, value: Value) -> str:
        if not value.name:
            self.unnamed += 1
            return str(self.unnamed - 1)
        name = _quote(value.name)
        repeat = self.taken[name] = self.taken.get(name, -1) + 1
        return f"{name}~{repeat}" if repeat else name

    def array(self, value: Value, array: Array | LazyArray) -> str:
        self.arrays[_array_key(self.use(value)[1:])] = array
        return "@" + self.names[value]


def _quote(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else '"' + _escape(name) + '"'


def _escape(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _unquote(text: str) -> str:
    """A printed name without quotes; a repeat suffix stays."""
    match = re.fullmatch(r'"(.*)"(~\d+)?', text)
    return text if match is None else _unescape(match[1]) + (match[2] or "")


def _array_key(text: str) -> str:
    """The key of an array printed as ``@text``: the value's name; ``%12`` where it has none."""
    return f"%{text}" if text.isdigit() else _unquote(text)


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], text)


def _format_array(array: Array) -> str:
    if array.ndim == 0:
        return _format_element(array)
    return "[" + ", ".join(_format_element(element) for element in array.reshape(-1)) + "]"


def _format_element(element: Any) -> str:
    """The shortest digits that read back as the same number of the same type."""
    if element.dtype == np.bool_:
        return str(bool(element)).lower()
    short, exact = str(element), repr(element.item())
    return short if element.dtype in (np.float32, np.float16) and element.dtype.type(float(short)) == element else exact


@dataclass(frozen=True)
class _Token:
    kind: str
    text: str
    line: int


_TOKENS = re.compile(
    rf"""(?P<space>[ \t\r]+|\#[^\n]*)|(?P<newline>\n)
      |(?P<value>%(?:\d+|(?:"(?:[^"\\\n]|\\.)*"|{_NAME})(?:~\d+)?))
      |(?P<array>@(?:\d+|(?:"(?:[^"\\\n]|\\.)*"|{_NAME})(?:~\d+)?))
      |(?P<string>"(?:[^"\\]|\\.)*")
      |(?P<arrow><-)
      |(?P<number>-?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf\b|nan\b))
      |(?P<name>{_NAME})
      |(?P<sign>[(){{}}\[\],:=-])""",
    re.VERBOSE | re.ASCII,
)


def _tokens(text: str) -> Iterator[_Token]:
    line, position = 1, 0
    while position < len(text):
        match = _TOKENS.match(text, position)
        if match is None:
            raise TextError(f"line {line}: cannot read {text[position : position + 20]!r}")
        position = match.end()
        kind = str(match.lastgroup)
        if kind not in ("space", "newline"):
            yield _Token(match[0] if kind == "sign" else kind, match[0], line)
        line += match[0].count("\n")
    yield _Token("end", "the end", line)


class _Parser:
    """Recursive descent over the tokens; one scope of value names for each graph."""

    def __init__(self, text: str, arrays: Mapping[str, Array]) -> None:
        self.tokens = list(_tokens(text))
        self.position = 0
        self.arrays = arrays

    @property
    def next(self) -> _Token:
        return self.tokens[self.position]

    def fail(self, problem: str, token: _Token | None = None) -> TextError:
        return TextError(f"line {(token or self.next).line}: {problem}")

    def accept(self, kind: str, text: str | None = None) -> _Token | None:
        token = self.next
        if token.kind != kind or (text is not None and token.text != text):
            return None
        self.position += 1
        return token

    def expect(self, kind: str, text: str | None = None) -> _Token:
        token = self.accept(kind, text)
        if token is None:
            raise self.fail(f"expected {text or kind}, found {self.next.text!r}")
        return token

    def graph(self) -> Graph:
        self.expect("name", "graph")
        name = self.name()
        scope: dict[str, Value] = {}
        inputs = tuple(self.input(scope) for _ in self.items("(", ")"))
        outputs: dict[str, Value] = {}
        updates: dict[Variable, Value] = {}
        self.expect("{")
        while not self.accept("}"):
            if self.accept("name", "output"):
                key = self.name()
                self.expect("=")
                outputs[key] = self.use(scope)
            elif self.next.kind == "value" and self.tokens[self.position + 1].kind == "arrow":
                self.update(scope, updates)
            else:
                self.definition(scope)
        return Graph(inputs, outputs, updates, name)

    def items(self, opening: str, closing: str) -> Iterator[int]:
        """Iterate over comma-separated items; the loop's body reads each."""
        self.expect(opening)
        count = 0
        while not self.accept(closing):
            if count:
                self.expect(",")
            yield count
            count += 1

    def name(self) -> str:
        token = self.accept("string") or self.accept("name")
        if token is None:
            raise self.fail(f"expected a name, found {self.next.text!r}")
        return _unescape(token.text[1:-1]) if token.kind == "string" else token.text

    def input(self, scope: dict[str, Value]) -> Input:
        token = self.expect("value")
        value = Input(self.type(), _value_name(token.text))
        self.define(scope, token, value)
        return value

    def type(self) -> TensorType:
        """``: f32[64,784]``."""
        self.expect(":")
        dtype = self.expect("name")
        extents = ",".join(self.expect("number").text for _ in self.items("[", "]"))
        try:
            return parse_type(f"{dtype.text}[{extents}]")
        except ShapeError as error:
            raise self.fail(str(error), dtype) from None

    def define(self, scope: dict[str, Value], token: _Token, value: Value) -> None:
        if token.text in scope:
            raise self.fail(f"{token.text} is defined twice", token)
        scope[token.text] = value

    def use(self, scope: dict[str, Value]) -> Value:
        token = self.expect("value")
        if token.text not in scope:
            raise self.fail(f"{token.text} is not defined before this line", token)
        return scope[token.text]

    def update(self, scope: dict[str, Value], updates: dict[Variable, Value]) -> None:
        token = self.next
        variable = self.use(scope)
        self.expect("arrow")
        if not isinstance(variable, Variable):
            raise self.fail(f"{token.text} is not a variable, so it cannot be updated", token)
        if variable in updates:
            raise self.fail(f"{token.text} is updated twice", token)
        updates[variable] = self.use(scope)

    def definition(self, scope: dict[str, Value]) -> None:
        names, types = [self.expect("value")], [self.type()]
        while self.accept(","):
            names.append(self.expect("value"))
            types.append(self.type())
        self.expect("=")
        if self.accept("name", "constant"):
            values: tuple[Value, ...] = (self.constant(_value_name(names[0].text), types[0]),)
        elif self.accept("name", "variable"):
            array = self.array(types[0])
            values = (Variable(_value_name(names[0].text), array, trainable=not self.accept("name", "frozen")),)
        else:
            values = self.node(scope, types)
        if len(values) != len(names):
            raise self.fail(f"{len(names)} names for {len(values)} values", names[0])
        for token, value in zip(names, values, strict=True):
            value.name = _value_name(token.text)
            self.define(scope, token, value)

    def constant(self, name: str, type_: TensorType) -> Constant:
        if self.next.kind == "array":
            return Constant(self.array(type_), name)
        token = self.next
        literal = self.attribute() if token.kind == "[" else [self.attribute()]
        try:
            array = np.asarray(literal, dtype=object).astype(type_.dtype.numpy).reshape(type_.shape)
        except (ValueError, TypeError, OverflowError):
            raise self.fail(f"these elements do not make a {type_}", token) from None
        return Constant(array, name)

    def array(self, type_: TensorType) -> Array:
        token = self.expect("array")
        key = _array_key(token.text[1:])
        array = self.arrays.get(key)
        if array is None:
            raise self.fail(f"there is no array {token.text}; pass arrays={{{key!r}: ...}} (see arrays_of)", token)
        if not type_.accepts(array):
            raise self.fail(f"array {token.text} is {array.dtype}{list(array.shape)}, not {type_}", token)
        return array

    def node(self, scope: dict[str, Value], types: list[TensorType]) -> tuple[Value, ...]:
        token = self.expect("name")
        operator = self.operator(token)
        inputs = [None if self.accept("-") else self.use(scope) for _ in self.items("(", ")")]
        name = self.accept("string")
        try:
            node = Node(operator, inputs, _unescape(name.text[1:-1]) if name else "")
        except ShapeError as error:
            raise self.fail(str(error), token) from None
        except TypeError:
            raise self.fail(f"{operator} does not take {len(inputs)} operands", token) from None
        found = [value.type for value in node.outputs]
        if found != types:
            raise self.fail(f"{operator} gives {found}, not {types}", token)
        return node.outputs

    def operator(self, token: _Token) -> Operator:
        cls = lookup(token.text)
        if cls is None:
            raise self.fail(f"there is no operator {token.text}", token)
        attributes: dict[str, Any] = {}
        if self.next.kind == "{":
            for _ in self.items("{", "}"):
                key = self.expect("name").text
                self.expect("=")
                attributes[key] = self.attribute()
        try:
            return cls(**attributes)
        except (TypeError, ValueError, ShapeError) as error:
            raise self.fail(f"{token.text}: {error}", token) from None

    def attribute(self) -> Any:
        token = self.next
        if token.kind == "[":
            return tuple(self.attribute() for _ in self.items("[", "]"))
        if token.text == "graph":
            return self.graph()
        self.position += 1
        if token.kind == "number":
            return _number(token.text)
        if token.kind == "string":
            return _unescape(token.text[1:-1])
        if token.kind == "name" and token.text in _WORDS:
            return _WORDS[token.text]
        raise self.fail(f"expected an attribute, found {token.text!r}", token)


_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "none": None,
    "inf": float("inf"),
    "nan": float("nan"),
    **DTYPES,
}


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"-?\d+", text) else float(text)


def _value_name(text: str) -> str:
    """The name behind ``%h``, ``%h~1`` or ``%"odd name"``; empty for ``%12``."""
    name = re.sub(r"~\d+$", "", text[1:])
    return _unquote(name) if not name.isdigit() else ""
