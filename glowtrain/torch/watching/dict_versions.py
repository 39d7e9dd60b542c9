"""Where the memory of a dict holds a number that is another one after each change, found out by experiments.

CPython has had one, unique in the process, up to version 3.13. Looking at it alone spares looking at what a dict holds.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from glowtrain.torch.watching.tensor_layout import WORD, read

FIRST, WORDS = 2, 6
"""The words of a dict behind what all objects have, and how many there are at least."""
Contents = dict[str, Any]


@cache
def version_word() -> int | None:
    """Its number among the words of a dict; None where there is none."""
    return next(filter(_tells_of_changes, range(FIRST, WORDS)), None)


def _tells_of_changes(word: int) -> bool:
    kinds: Sequence[Callable[[Contents], Contents]] = (dict, OrderedDict, lambda given: defaultdict(dict, given))
    changed = all(_differs(word, make, change) for make in kinds for change in CHANGES)
    return changed and not any(_differs(word, make, use) for make in kinds for use in USES)


def _differs(word: int, make: Callable[[Contents], Contents], change: Callable[[Contents], Any]) -> bool:
    changed = make({"a": 1, "b": None})
    before = read(id(changed) + WORD * word, 1)
    change(changed)
    return read(id(changed) + WORD * word, 1) != before


def _back_and_forth(changed: Contents) -> None:
    changed["c"] = 0
    del changed["c"]
    changed["a"], changed["a"] = 2, 1


def _filled_anew(changed: Contents) -> None:
    changed.clear()
    changed.update(a=1, b=None)


CHANGES: Sequence[Callable[[Contents], Any]] = (
    lambda changed: changed.__setitem__("a", 2), lambda changed: changed.__setitem__("c", 2),
    lambda changed: changed.__delitem__("a"), lambda changed: changed.pop("a"), lambda changed: changed.popitem(),
    lambda changed: changed.clear(), lambda changed: changed.update(a=2), lambda changed: changed.update({"c": 2}),
    lambda changed: changed.setdefault("c", 2), lambda changed: changed.__ior__({"b": 2}), _back_and_forth,
    _filled_anew,
)  # fmt: skip
USES: Sequence[Callable[[Contents], Any]] = (
    lambda used: used["a"], lambda used: used.get("c"), lambda used: list(used.items()), lambda used: used.copy(),
    lambda used: used == {"a": 1}, len, repr,
)  # fmt: skip
