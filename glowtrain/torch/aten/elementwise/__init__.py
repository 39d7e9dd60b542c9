"""Elementwise operators of ATen: arithmetic, functions, activations, comparisons, choices, conversions.

Operands are first converted to the type that ATen promotes them to; results have that of PyTorch's.
"""

from glowtrain.torch.aten.elementwise import (
    activation,
    arithmetic,
    bits,
    conversion,
    extrema,
    logic,
    same_name,
    special,
    transcendental,
)

__all__ = [
    "activation",
    "arithmetic",
    "bits",
    "conversion",
    "extrema",
    "logic",
    "same_name",
    "special",
    "transcendental",
]
