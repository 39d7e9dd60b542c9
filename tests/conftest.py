"""Hypothesis profiles: the default draws the same examples in every run; ``--hypothesis-profile=thorough`` new ones."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Examples compile code and share the machine with other workers, so neither a deadline nor a slow draw is a failure.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)

settings.register_profile("glowtrain", _UNTIMED, derandomize=True, database=None, max_examples=50)
settings.register_profile("thorough", _UNTIMED, max_examples=1000)
settings.load_profile("glowtrain")
