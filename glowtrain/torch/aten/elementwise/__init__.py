"""Elementwise operators of ATen: arithmetic, functions, activations, comparisons, choices, conversions.

Operands are first converted to the type that ATen promotes them to; results have that of PyTorch's.
"""

from glowtrain.torch.aten.elementwise import (
    activation,
    alike,
    arithmetic,
    conversion,
    extrema,
    logic,
    special,
    transcendental,
)

__all__ = ["activation", "alike", "arithmetic", "conversion", "extrema", "logic", "special", "transcendental"]
