"""What is trained: patterns of parameters' names, and ranges of elements behind them.

    pattern ::= name, or a pattern as of files in a shell           head.*   *.bias
              | pattern "[" range ("," range)* "]"                  conv2.*[:32]   head.weight[:, 4:8]
    range   ::= start? ":" stop?                                    as in NumPy, one for each axis from the first

Brackets at the end that hold a colon are ranges; others are characters of the pattern, as ``conv[12].weight``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from typing import Any

from glowtrain.errors import InputError
from glowtrain.grad.parts import Bounds
from glowtrain.graph import Variable
from glowtrain.names import matches
from glowtrain.presentation.messages import LISTED

Trainable = Sequence[str] | Callable[[str], bool] | None

RANGES = re.compile(r"(?P<name>.+)\[(?P<ranges>[^\[\]]*:[^\[\]]*)\]", re.DOTALL)
RANGE = re.compile(r"\s*(-?\d+)?\s*:\s*(-?\d+)?\s*", re.ASCII)


def select(variables: Sequence[Variable], trainable: Trainable) -> dict[Variable, Bounds | None]:
    """The variables to train: all floats that may be, or those whose names match a pattern or satisfy a function; with
    the part of each that is trained, where that is not the whole.

    Raises :class:`InputError` for a pattern that matches nothing, and for ranges that are not in what it matches.
    """
    candidates = [variable for variable in variables if variable.trainable and variable.dtype.is_float]
    if trainable is None:
        return dict.fromkeys(candidates)
    if not _is_choice(trainable):
        raise InputError(f"trainable must be None, patterns of names or a function of a name, not {trainable!r}")
    if callable(trainable):
        return {variable: None for variable in candidates if trainable(variable.name)}
    patterns: tuple[Any, ...] = (trainable,) if isinstance(trainable, str) else tuple(trainable)
    if wrong := [pattern for pattern in patterns if not isinstance(pattern, str)]:
        raise InputError(f"trainable: a pattern of names is text, not {wrong[0]!r}")
    found = [_Pattern.of(pattern, candidates) for pattern in patterns]
    chosen = {variable: [each for each in found if each.matches(variable)] for variable in candidates}
    return {variable: _bounds(variable, each) for variable, each in chosen.items() if each}


@dataclass(frozen=True)
class _Pattern:
    """A pattern as it is written, its part for names, and its ranges."""

    text: str
    name: str
    ranges: tuple[slice, ...]

    @staticmethod
    def of(text: str, candidates: Sequence[Variable]) -> _Pattern:
        """Raises :class:`InputError` where it matches none of the candidates."""
        split = None if any(variable.name == text for variable in candidates) else RANGES.fullmatch(text)
        name, ranges = (text, ()) if split is None else (split["name"], _ranges(text, split["ranges"]))
        found = _Pattern(text, name, ranges)
        if not any(map(found.matches, candidates)):
            known = _shown([variable.name for variable in candidates])
            raise InputError(f"trainable: nothing matches {found.name!r}; the parameters are: {known}")
        return found

    def matches(self, variable: Variable) -> bool:
        """Whether it names a variable."""
        return matches(variable.name, [self.name])

    def bounds(self, variable: Variable) -> Bounds:
        """The elements that it means of a variable. Raises :class:`InputError` where they are not there."""
        if len(self.ranges) > variable.rank:
            axes = f"{len(self.ranges)} ranges, but {variable.name} is {variable.type}"
            raise InputError(f"trainable: {self.text!r} has {axes}")
        given = zip(self.ranges, variable.shape, strict=False)
        taken = [self._taken(variable, axis, part, extent) for axis, (part, extent) in enumerate(given)]
        return (*taken, *(range(extent) for extent in variable.shape[len(taken) :]))

    def _taken(self, variable: Variable, axis: int, part: slice, extent: int) -> range:
        begin, end = (side + extent if side is not None and side < 0 else side for side in (part.start, part.stop))
        taken = range(0 if begin is None else begin, extent if end is None else end)
        if not 0 <= taken.start < taken.stop <= extent:
            what = f"{variable.name} ({variable.type}) has {extent} elements along axis {axis}"
            raise InputError(f"trainable: {self.text!r}: {what}, so {_written(part)} is no part of it")
        return taken


def _bounds(variable: Variable, patterns: Sequence[_Pattern]) -> Bounds | None:
    """The part of a variable that some patterns mean together; ``None`` for the whole. Raises :class:`InputError`."""
    whole = tuple(map(range, variable.shape))
    found = dict.fromkeys(pattern.bounds(variable) for pattern in patterns)
    if whole in found:
        return None
    if len(found) > 1:
        texts = " and ".join(repr(pattern.text) for pattern in patterns)
        raise InputError(f"trainable: {texts} are different parts of {variable.name}, of which one can be trained")
    return next(iter(found))


def _ranges(text: str, ranges: str) -> tuple[slice, ...]:
    parts = [RANGE.fullmatch(part) for part in ranges.split(",")]
    if None in parts:
        raise InputError(
            f"trainable: {text!r}: ranges are start:stop for each axis, such as [:32] or [:, 4:8], not [{ranges}]"
        )
    return tuple(slice(*(None if side is None else int(side) for side in part.groups())) for part in parts if part)


def _written(part: slice) -> str:
    return ":".join("" if side is None else str(side) for side in (part.start, part.stop))


def described(chosen: Mapping[str, Bounds | None]) -> list[str]:
    """Parameters as patterns that mean just them: their names, and ranges where they are not whole."""
    return [name if bounds is None else f"{escape(name)}[{_text(bounds)}]" for name, bounds in chosen.items()]


def _text(bounds: Bounds) -> str:
    return ", ".join(f"{taken.start}:{taken.stop}" for taken in bounds)


def _shown(names: Sequence[str]) -> str:
    """Names for a message: many of them as patterns of their first parts, with counts."""
    if len(names) <= LISTED:
        return ", ".join(names) or "none"
    counts = Counter(name.partition(".")[0] + (".*" if "." in name else "") for name in names)
    shown = [f"{pattern} ({count})" if count > 1 else pattern for pattern, count in counts.items()]
    return ", ".join(shown[:LISTED]) + (f" and {len(shown) - LISTED} more" if len(shown) > LISTED else "")


def _is_choice(trainable: Any) -> bool:
    return callable(trainable) or isinstance(trainable, Iterable)
