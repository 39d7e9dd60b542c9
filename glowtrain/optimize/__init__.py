"""Passes over graphs: each a frozen dataclass with ``run(graph) -> graph``; :func:`optimize` runs them all."""

from glowtrain.optimize.pipeline import PASSES, optimize

__all__ = ["PASSES", "optimize"]
