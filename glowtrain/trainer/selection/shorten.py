"""Shorten a set of parameters to patterns, as a person would write them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from glowtrain.names import matches, module_of


def patterns_for(names: Sequence[str], others: Collection[str]) -> list[str]:
    """Patterns that match all of ``names`` and none of ``others``: ``head.*`` for all parameters of a module,
    ``*.bias`` for the biases of all; what fits no such pattern stands by its name."""
    found: list[str] = []
    for name in names:
        if not any(matches(name, [pattern]) for pattern in found):
            fitting = (p for p in _patterns(name) if matches(name, [p]))
            found.append(next((p for p in fitting if not any(matches(other, [p]) for other in others)), name))
    return found


def _patterns(name: str) -> Iterator[str]:
    """What may stand for a name and others like it, the widest first."""
    outer, _, rest = name.partition(".")
    module, last = module_of(name), name.rpartition(".")[2]
    if rest:
        yield f"*.{last}"
        yield f"{outer}.*"
        yield f"{outer}.*.{last}"
        yield f"{module}.*"
