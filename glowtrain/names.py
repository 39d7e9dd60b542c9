"""Distinct names, made from hints; patterns of names; and the modules that names are in."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase


class Names:
    """Names that are taken, and fresh ones: ``hint``, then ``hint_1``, ``hint_2`` ... (with another ``separator``)."""

    def __init__(self, taken: Iterable[str] = (), *, separator: str = "_") -> None:
        self.separator = separator
        self._numbers = dict.fromkeys(taken, 1)
        """The number that follows each name, if it is a hint again."""

    def __contains__(self, name: str) -> bool:
        return name in self._numbers

    def take(self, *names: str) -> None:
        """Names that no fresh one is to be."""
        for name in names:
            self._numbers.setdefault(name, 1)

    def fresh(self, hint: str) -> str:
        """``hint``, or where that is taken, ``hint`` with the first number that makes it another name."""
        name = hint
        while name in self._numbers:
            name = f"{hint}{self.separator}{self._numbers[hint]}"
            self._numbers[hint] += 1
        self._numbers[name] = 1
        return name

    def copy(self) -> Names:
        """The same names, to go on from without a trace here: for an inner scope."""
        copy = Names(separator=self.separator)
        copy._numbers = dict(self._numbers)
        return copy


def module_of(parameter: str) -> str:
    """``stage1.conv`` of ``stage1.conv.weight``; empty for a parameter of no module."""
    return parameter.rpartition(".")[0]


def layer_of(parameter: str) -> str:
    """The module of a parameter; of one that is in none, its own name."""
    return module_of(parameter) or parameter


def module_in(name: str) -> str:
    """``stage1.relu`` of ``/stage1/relu/Relu``; empty for a name that is no path."""
    return ".".join(name.split("/")[1:-1]) if name.startswith("/") else ""


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a name is one of the patterns, or fits one as file names do in a shell: ``*`` stands for any characters,
    ``?`` for one, ``[ab]`` for one of these. All options that take names read them so.
    """
    return any(name == pattern or fnmatchcase(name, pattern) for pattern in patterns)


def is_text(name: str) -> bool:
    """Whether a name can be written down: that of a file may have bytes that are no UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
