"""What random programs are compiled with: every option that users' programs are, in combinations that a seed draws."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from glowtrain.graph import Draw, Graph
from glowtrain.lower.forward_updates import residuals_for
from glowtrain.memory.budget import KEEP, SMALLEST, UNSAID, Budget, budget_of
from glowtrain.memory.precision import RoundedFactors
from glowtrain.stages import Facts, Options

Choice = Mapping[str, str]
"""The name of a value of :data:`CHOICES` for some options; the others have their first."""

DEFAULTS: Choice = MappingProxyType({})
"""What :func:`glowtrain.compile` takes by default."""
_FLAG = MappingProxyType({"no": False, "yes": True})
CHOICES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "memory": {
            "free": UNSAID, "keep": KEEP, "small": budget_of("small"), "smallest": SMALLEST,
            "70%": Budget(share=0.7), "95%": Budget(share=0.95),
        },
        "precision": {"own": None, "bf16": RoundedFactors()},
        "residuals": {"exact": None, "bf16": "bf16"},
        "pack_variables": {"yes": True, "no": False},
        "row_major_variables": _FLAG,
        "fixed_point": _FLAG,
        "linkable": _FLAG,
        "segmented": _FLAG,
        "profile": _FLAG,
        "prefix": {"none": "", "model_": "model_"},
    }
)  # fmt: skip
"""The values of each option by name; first those of :func:`glowtrain.compile`."""


def drawn_choice(draw: Draw) -> Choice:
    """A value for each option, the first for half of them."""
    return {
        name: next(iter(values)) if draw.boolean() else draw.choice(tuple(values)) for name, values in CHOICES.items()
    }


def options_for(choice: Choice, step: Graph, facts: Facts) -> Options:
    """The options of a choice for a step, each stage verified. Raises :class:`KeyError` for what is not in
    :data:`CHOICES`."""
    values = {name: values[choice.get(name, next(iter(values)))] for name, values in CHOICES.items()}
    if unknown := choice.keys() - CHOICES.keys():
        raise KeyError(f"no option {', '.join(sorted(unknown))}; there are {', '.join(CHOICES)}")
    return Options(facts=facts, check=True, **{**values, "residuals": residuals_for(step, values["residuals"])})


def described(choice: Choice) -> str:
    """What differs from :func:`glowtrain.compile`'s options, in words."""
    return ", ".join(f"{name}={value}" for name, value in choice.items() if value != next(iter(CHOICES[name])))
