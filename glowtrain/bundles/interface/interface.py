"""What stands around the code of a bundle's functions: sizes of memory, and the structs that C has to do with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from glowtrain.backends.llvm.text import LlvmFunction, index_type
from glowtrain.backends.llvm.values import I32, POINTER, LlvmType, LlvmValue, vector
from glowtrain.backends.target import Target
from glowtrain.bundles.interface.constants import Constants
from glowtrain.bundles.interface.structs import CFunction, Struct
from glowtrain.bundles.memory import VariableMemory
from glowtrain.bundles.signature import BundleFunction, hyper_of

VERSION = 1
"""Of the interface."""
FLOATS = {"f32": "float", "f64": "double"}
"""LLVM's types of hyperparameters."""


@dataclass(frozen=True)
class Interface:
    """A bundle's functions with the memory that they share.

    ``version`` is a number for this bundle's header: memory and handles carry it. ``hyper`` are the defaults of the
    hyperparameters, in the order of the step's; ``threads`` have a workspace each.
    """

    name: str
    target: Target
    functions: Sequence[BundleFunction]
    memory: VariableMemory
    version: int
    hyper: Sequence[float]
    threads: int = 1
    constants: Constants = field(default_factory=Constants)

    @property
    def arena(self) -> int:
        """Bytes of the arena: activations, then the workspaces of all threads."""
        return self.activations + self.threads * max(function.code.workspace for function in self.functions)

    @property
    def activations(self) -> int:
        """Bytes of the largest of the functions' planned memories."""
        return max(function.code.plan.arena for function in self.functions)

    # -- structs of C

    @cached_property
    def usize(self) -> LlvmType:
        """``size_t``."""
        return index_type(self.target)

    @cached_property
    def handle(self) -> Struct:
        """What the caller keeps for each instance. The last three make the pool that steps are given: see ``run``."""
        return self._struct(
            version=I32, variables=POINTER, arena=POINTER, parallel=POINTER, context=POINTER, run=POINTER
        )

    @cached_property
    def init_arguments(self) -> Struct:
        """What the caller hands to ``init``."""
        return self._struct(
            version=I32, variables=POINTER, variables_bytes=self.usize, arena=POINTER, arena_bytes=self.usize,
            parallel=POINTER, context=POINTER,
        )  # fmt: skip

    @cached_property
    def variable(self) -> Struct:
        """A row of the table of variables."""
        return self._struct(
            name=POINTER, type=POINTER, role=I32, size=I32, rank=I32, shape=POINTER, strides=POINTER,
            elements=self.usize, offset=self.usize,
        )  # fmt: skip

    @cached_property
    def hyper_struct(self) -> Struct:
        """Hyperparameters of the step."""
        return self._struct(**{each.name: vector(FLOATS[each.type.dtype.name]) for each in hyper_of(self.functions)})

    def _struct(self, **fields: LlvmType) -> Struct:
        return Struct(fields, self.target.pointer_bits // 8)

    # -- functions under construction

    def function(self, name: str, /, **parameters: LlvmType) -> CFunction:
        """One that C calls as ``NAME_name``."""
        return CFunction(f"{self.name}_{name}", self.usize, **parameters)

    def helper(
        self, symbol: str, /, result: str = "void", **parameters: LlvmType
    ) -> tuple[LlvmFunction, list[LlvmValue]]:
        """One that returns no error code, and its parameters."""
        parameter_types = [(type_.text, parameter) for parameter, type_ in parameters.items()]
        f = LlvmFunction(symbol, parameter_types, index_type=self.usize, result=result)
        return f, [LlvmValue(f"%{parameter}", type_) for parameter, type_ in parameters.items()]
