"""Where the time of a compiled step goes: measured kernel by kernel, beside what the machine could do."""

from glowtrain.profiling.measure import profile
from glowtrain.profiling.report import KernelRow, ProfileReport

__all__ = ["KernelRow", "ProfileReport", "profile"]
