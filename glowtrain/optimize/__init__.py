"""Passes over graphs: each a frozen dataclass with ``run(graph) -> graph``; :func:`optimize` runs them all."""

from glowtrain.optimize.pipeline import PASSES, Pass, optimize

__all__ = ["PASSES", "Pass", "optimize"]
