"""The passes of the cpu backend: from a plan to LLVM text, and to machine code."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.step import Code, generate, generate_together
from glowtrain.backends.cpu.tasks import Whole
from glowtrain.backends.cpu.threads.share import Shared
from glowtrain.backends.llvm.pieces import LEAST, ObjectPieces
from glowtrain.backends.table import LinkableFunction, LinkableModule
from glowtrain.backends.target import Target
from glowtrain.backends.thread_count import GRAIN
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import Options


@dataclass(frozen=True)
class GenerateCode:
    """The pass from a plan to LLVM text."""

    target: Target
    options: Options
    grain: int = GRAIN

    def run(self, plan: Plan, wrote: Callable[[str], None] | None = None) -> Code:
        """The module; ``wrote`` is told of its functions (see :func:`~glowtrain.backends.cpu.step.generate`). Raises
        :class:`CodegenError` naming the kernel that cannot be written."""
        events = self.target if self.options.profile else None
        runner = Shared(self.grain, events) if self.target.hosted else Whole()
        return generate(plan, self.target, self.options, runner, wrote)


@dataclass(frozen=True)
class EmitObjects:
    """The pass from LLVM text to machine code, by so many threads; ``whole``: in one object."""

    threads: int = 1
    whole: bool = False

    def run(self, code: Code) -> NativeArtifact:
        """The artifact. Raises :class:`CodegenError` that names the function for text that LLVM rejects."""
        with self.pieces(code.target) as pieces:
            pieces.add(code.text)
            return NativeArtifact.of(pieces.finish(), code)

    def pieces(self, target: Target) -> ObjectPieces:
        """What makes the objects."""
        return ObjectPieces(target, self.threads, math.inf if self.whole else LEAST)


@dataclass(frozen=True)
class CompilePlan:
    """Both passes in one, with the same result: LLVM begins while text is still being written."""

    generate: GenerateCode
    emit: EmitObjects

    def run(self, plan: Plan) -> NativeArtifact:
        """The artifact. Raises :class:`CodegenError` as the two do."""
        with self.emit.pieces(self.generate.target) as pieces:
            code = self.generate.run(plan, pieces.add)
            return NativeArtifact.of(pieces.finish(), code)


def module_of(plans: Mapping[str, Plan], target: Target, options: Options, grain: int | None) -> LinkableModule:
    """Planned programs as one module, each under its name; ``grain``: of what is shared out, None where one thread runs
    all of it. Raises :class:`CodegenError` naming the kernel that cannot be written."""
    prefixes = {name: f"{options.prefix}{name}_" for name in plans}
    runner = Whole() if grain is None else Shared(grain)
    named = {prefixes[name]: plan for name, plan in plans.items()}
    codes = generate_together(named, target, options, runner, exported=False)
    functions = {name: _function(codes[prefix]) for name, prefix in prefixes.items()}
    return LinkableModule(next(iter(codes.values())).text, functions)


def _function(code: Code) -> LinkableFunction:
    artifact = NativeArtifact.of((), code)
    return LinkableFunction(code.plan, code.entry, code.workspace, artifact.slots, artifact.constants, code.natives)
