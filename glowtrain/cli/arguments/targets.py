"""The names of processors that commands take."""

from __future__ import annotations

from glowtrain.backends.target import ALIASES, target_names

TARGETS = ("host", *ALIASES, *target_names())
"""What ``--target`` takes, the names that compilers have first."""
