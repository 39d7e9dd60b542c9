"""Tokenize the lines of a program's text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from glowtrain.errors import TextError
from glowtrain.program.statement_text import NAME as NAME_PATTERN
from glowtrain.types import DTYPES, DType, TensorType

NAME, STRING, NUMBER, END = "<name>", "<string>", "<number>", "<end>"
"""Kinds of tokens; signs have their text for kind."""
MOST_DIGITS = 40
"""Of an integer: more than any extent, index or word has, and fewer than Python refuses to read."""


@dataclass(frozen=True)
class Token:
    """A name, number, string or sign, and where it begins."""

    kind: str
    text: str
    column: int


_TOKENS = re.compile(
    rf"""(?P<space>[ \t\r]+)
      |(?P<string>"(?:[^"\\]|\\.)*")
      |(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?)
      |(?P<name>{NAME_PATTERN})
      |(?P<sign>==|!=|<=|>=|->|\+=|\*=|//|[\[\](),:;<>=+*/%&|^@-])""",
    re.VERBOSE | re.ASCII,
)


@dataclass
class Line:
    """The tokens of one line, read from left to right."""

    number: int
    text: str
    tokens: list[Token] = field(default_factory=list)
    at: int = 0

    def __post_init__(self) -> None:
        column = 0
        while column < len(self.text):
            match = _TOKENS.match(self.text, column)
            if match is None:
                self.fail(f"cannot read {self.text[column : column + 20]!r}", Token(END, "", column))
            kind = str(match.lastgroup)
            if kind != "space":
                self.tokens.append(Token(f"<{kind}>", match[0], column))
            column = match.end()
        self.tokens.append(Token(END, "the end of the line", column))

    @property
    def indent(self) -> int:
        return self.tokens[0].column

    @property
    def next(self) -> Token:
        return self.tokens[self.at]

    def fail(self, problem: str, token: Token | None = None) -> NoReturn:
        raise TextError(f"line {self.number}, column {(token or self.next).column + 1}: {problem}")

    def next_is(self, *texts: str) -> bool:
        """Whether these are the next tokens, by kind or by text."""
        following = self.tokens[self.at : self.at + len(texts)]
        return len(following) == len(texts) and all(map(_is, following, texts))

    def accept(self, text: str) -> Token | None:
        if not self.next_is(text):
            return None
        self.at += 1
        return self.tokens[self.at - 1]

    def expect(self, text: str, what: str = "") -> Token:
        return self.accept(text) or self.fail(f"expected {what or repr(text)}, found {token_text(self.next)}")

    def end(self) -> None:
        self.expect(END, "the end of the line")

    def name(self) -> str:
        token = self.accept(STRING) or self.expect(NAME, "a name")
        return unquoted(token)

    def names(self) -> list[str]:
        found = [self.name()]
        while self.accept(","):
            found.append(self.name())
        return found

    def title(self) -> str:
        found = self.name()
        while self.accept("+"):
            found += "+" + self.name()
        return found

    def integer(self) -> int:
        token = self.expect(NUMBER, "a number")
        if not token.text.isdigit():
            self.fail(f"{token.text} is no integer", token)
        if len(token.text) > MOST_DIGITS:
            self.fail(f"a number of {len(token.text)} digits is too large", token)
        return int(token.text)

    def integers(self) -> tuple[int, ...]:
        """``[1, 2]``"""
        return tuple(self.integer() for _ in self.items("[", "]"))

    def items(self, opening: str, closing: str) -> Iterator[int]:
        """Iterate over items between commas; the loop's body reads each."""
        self.expect(opening)
        count = 0
        while not self.accept(closing):
            if count:
                self.expect(",", f"',' or {closing!r}")
            yield count
            count += 1

    def size(self, word: str) -> int:
        """``arena 1,024 bytes``"""
        self.expect(word)
        digits = self.expect(NUMBER, "a size").text
        while self.next_is(",", NUMBER):
            self.at += 1
            digits += self.expect(NUMBER).text
        self.expect("bytes")
        return int(digits)

    def number_text(self) -> str:
        """A number as it stands there, with its sign."""
        sign = "-" if self.accept("-") else ""
        token = self.accept(NUMBER) or self.accept(NAME) or self.next
        if token.kind != NUMBER and token.text not in ("inf", "nan", *([] if sign else ["true", "false"])):
            self.fail(f"expected a number, found {token_text(token)}", token)
        return sign + token.text


def unquoted(token: Token) -> str:
    """The name that a token stands for."""
    if token.kind != STRING:
        return token.text
    return re.sub(r"\\(.)", lambda match: "\n" if match[1] == "n" else match[1], token.text[1:-1])


def token_text(token: Token) -> str:
    """A token in a message."""
    return token.text if token.kind == END else repr(token.text)


def _is(token: Token, text: str) -> bool:
    """Whether a token is of this kind, or has this text (quoted names have none)."""
    return text == token.kind or (text == token.text and token.kind != STRING)


def is_comment(line: str) -> bool:
    """Whether a line begins with a semicolon."""
    return line.lstrip().startswith(";")


def type_of(line: Line) -> TensorType:
    """``f32[4,3]``"""
    return TensorType(dtype_of(line), line.integers())


def dtype_of(line: Line) -> DType:
    """``f32``"""
    token = line.expect(NAME, "an element type")
    if token.text not in DTYPES:
        line.fail(f"there is no element type {token.text}; there are {', '.join(DTYPES)}", token)
    return DTYPES[token.text]
