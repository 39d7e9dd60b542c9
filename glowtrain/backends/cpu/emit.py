"""The passes of the cpu backend: from a plan to LLVM text, and to machine code."""

from __future__ import annotations

from typing import Any

from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.step import Code, generate
from glowtrain.backends.cpu.tasks import Whole
from glowtrain.backends.cpu.threads.count import GRAIN
from glowtrain.backends.cpu.threads.share import Shared
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.pieces import compile_pieces
from glowtrain.backends.llvm.target import Target
from glowtrain.deferred import dataclass
from glowtrain.presentation.words import plural
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import Options


@dataclass(frozen=True)
class GenerateCode:
    """The pass from a plan to LLVM text."""

    target: Target
    options: Options
    grain: int = GRAIN

    def run(self, plan: Plan) -> Code:
        """The module. Raises :class:`CodegenError` naming the kernel that cannot be written."""
        noting = self.target if self.options.profile else None
        runner = Shared(self.grain, noting) if self.target.hosted else Whole()
        return generate(plan, self.target, self.options, runner)


@dataclass(frozen=True)
class EmitObjects:
    """The pass from LLVM text to machine code, in at most so many objects, which are made at the same time."""

    most: int = 1

    def run(self, code: Code) -> NativeArtifact:
        """The artifact. Raises :class:`CodegenError` that names the function for text that LLVM rejects."""
        return NativeArtifact.of(compile_pieces(code.text, code.target, self.most), code)


def assembly_of(code: Code) -> str:
    """The assembler text of a module."""
    return toolchain.assembly(code.text, code.target)


def in_numbers(code: Any) -> str:
    """A module in a few words; nothing for what is none."""
    if not isinstance(code, Code):
        return ""
    lines = plural(len(code.text.splitlines()), "line")
    return f"{plural(len(code.functions), 'function')}, {lines} of LLVM text"
