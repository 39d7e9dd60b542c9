"""The ladder of rungs from the reference to native code: ``glowtrain verify``."""

from glowtrain.verification.climb import ladder, random_inputs
from glowtrain.verification.report import Report, Rung

__all__ = ["Report", "Rung", "ladder", "random_inputs"]
