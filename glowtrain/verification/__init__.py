"""The ladder of rungs from the reference to native code: ``glowtrain verify``."""

from glowtrain.verification.climb import ladder, random_inputs
from glowtrain.verification.report import Rung, VerificationReport

__all__ = ["Rung", "VerificationReport", "ladder", "random_inputs"]
