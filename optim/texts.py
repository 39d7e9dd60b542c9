"""What the command line says of some parameters: ``PATTERN:NAME=NUMBER,NAME``, as records of rules by patterns.

The pattern ends at the last colon. Raises :class:`InputError` for a text that says nothing of the kind.
"""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.errors import InputError
from glowtrain.optim.per_parameter import RULES, Constraint, Constraints, Groups, Kind, Penalties, Penalty
from glowtrain.presentation.messages import unknown


def groups_in(texts: Sequence[str]) -> Groups | None:
    """``backbone.*:lr_factor=0.1,weight_decay=0``"""
    groups: dict[str, dict[str, float]] = {}
    for text in texts:
        pattern, entries = _split(text)
        for name, value in entries:
            groups.setdefault(pattern, {})[name] = _number(text, value)
    return groups or None


def penalties_in(texts: Sequence[str]) -> Penalties | None:
    """``*.weight:l1=1e-4,l2=1e-3``"""
    return _rules(texts, Penalty)  # type: ignore[type-abstract]


def constraints_in(texts: Sequence[str]) -> Constraints | None:
    """``*.weight:max_norm=3,non_negative``"""
    return _rules(texts, Constraint)  # type: ignore[type-abstract]


def _rules(texts: Sequence[str], kind: type[Kind]) -> dict[str, list[Kind]] | None:
    choices = {name: rule for name, rule in RULES.items() if issubclass(rule, kind)}
    rules: dict[str, list[Kind]] = {}
    for text in texts:
        pattern, entries = _split(text)
        for name, value in entries:
            if problem := unknown([name], choices, "rule", "there are"):
                raise InputError(f"{text!r}: there is {problem}")
            numbers = [] if value is None else [_number(text, value)]
            try:
                rules.setdefault(pattern, []).append(choices[name](*numbers))
            except TypeError:
                needs = "a number, as in " + f"{name}=0.1" if value is None else "no number"
                raise InputError(f"{text!r}: {name} takes {needs}") from None
    return rules or None


def _split(text: str) -> tuple[str, list[tuple[str, str | None]]]:
    pattern, _, rest = text.rpartition(":")
    if not pattern or not rest:
        raise InputError(
            f"{text!r} must be a pattern of names, a colon, and what it has, as in '*.bias:weight_decay=0'"
        )
    entries = [entry.strip().partition("=") for entry in rest.split(",")]
    return pattern, [(name, value if equals else None) for name, equals, value in entries]


def _number(text: str, value: str | None) -> float:
    try:
        return float(value or "")
    except ValueError:
        problem = f"{value} is no number" if value else "a number is missing, as in '*.bias:weight_decay=0'"
        raise InputError(f"{text!r}: {problem}") from None
