"""What is in memory while a step runs: kernel by kernel, by what it is for."""

from glowtrain.profiling.memory.page import plot
from glowtrain.profiling.memory.report import MemoryReport, computed_again, memory_report, training_memory

__all__ = ["MemoryReport", "computed_again", "memory_report", "plot", "training_memory"]
