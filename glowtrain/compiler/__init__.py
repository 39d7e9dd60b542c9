"""compile(): from any graph to a function. The stages between stand in :mod:`glowtrain.compiler.walk`."""

from glowtrain.compiler.function import Function, compile, compile_artifact
from glowtrain.compiler.memory_use import MemoryUse
from glowtrain.compiler.specialisation import Specialisation

__all__ = ["Function", "MemoryUse", "Specialisation", "compile", "compile_artifact"]
