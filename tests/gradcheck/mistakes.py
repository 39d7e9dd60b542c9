"""All known kinds of mistake."""

from __future__ import annotations

from mistakes_in_rules import IN_RULES
from mistakes_in_stages import IN_STAGES
from planting import Mistake

MISTAKES = [*IN_RULES, *IN_STAGES]


def known(name: str) -> Mistake:
    """The mistake of a name."""
    return next(mistake for mistake in MISTAKES if mistake.name == name)
