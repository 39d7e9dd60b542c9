"""The cpu backend: a planned program as native code, for this processor or another."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glowtrain.backends.base import Artifact, Backend, Executable, View
from glowtrain.backends.cache import Cache
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.executable import NativeExecutable
from glowtrain.backends.cpu.step import Code, generate
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.target import Target
from glowtrain.errors import ArtifactError
from glowtrain.presentation.words import plural
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import Options, Stage


class Cpu(Backend):
    """Native code for a processor: the one this process runs on, or a :class:`Target` (also by name).

    Code for another processor can be compiled, kept and linked, but not loaded here. With a ``cache`` folder, compiled
    graphs are kept there and found again by later processes.
    """

    name = "cpu"

    def __init__(self, target: Target | str | None = None, cache: str | os.PathLike[str] | None = None) -> None:
        self.target = Target.named(target) if isinstance(target, str) else target or Target.host()
        self.cache = None if cache is None else Cache(cache)

    def __reduce__(self) -> tuple[type[Cpu], tuple[Target | None, Path | None]]:
        """By what it was made of: the host is then the processor of the process that reads it."""
        target = None if self.target == Target.host() else self.target
        return Cpu, (target, None if self.cache is None else self.cache.folder)

    @property
    def fingerprint(self) -> str:
        return f"cpu {toolchain.version()} {self.target.fingerprint}"

    @property
    def views(self) -> Mapping[str, View]:
        return {"asm": View("llvm", "the assembler text", assembly_of)}

    def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
        return (
            *walk,
            Stage("llvm", "a function for each kernel structure", lambda o: GenerateCode(self.target, o)),
            Stage("compiled", "machine code", lambda o: EmitObject()),
        )

    def in_numbers(self, result: Any) -> str:
        match result:
            case Code():
                lines = plural(len(result.text.splitlines()), "line")
                return f"{plural(len(result.functions), 'function')}, {lines} of LLVM text"
            case NativeArtifact():
                return f"{len(result.code):,} bytes of machine code for {result.target.cpu or result.target.name}"
        return ""

    def compile(self, subject: Plan, options: Options) -> NativeArtifact:
        return EmitObject().run(GenerateCode(self.target, options).run(subject))

    def read(self, data: bytes) -> NativeArtifact:
        return NativeArtifact.from_bytes(data)

    def load(self, artifact: Artifact) -> Executable:
        if not isinstance(artifact, NativeArtifact):
            raise ArtifactError(f"backend cpu loads what it compiled, not {type(artifact).__name__}")
        if not artifact.target.runs_here:
            raise ArtifactError(
                f"compiled for {artifact.target.name} ({artifact.target.triple}, {artifact.target.cpu}), which the "
                f"processor of this process, {Target.host().cpu}, cannot run"
            )
        return NativeExecutable(artifact)


@dataclass(frozen=True)
class GenerateCode:
    """The pass from a plan to LLVM text."""

    target: Target
    options: Options

    def run(self, plan: Plan) -> Code:
        """The module. Raises :class:`CodegenError` naming the kernel that cannot be written."""
        return generate(plan, self.target, self.options)


@dataclass(frozen=True)
class EmitObject:
    """The pass from LLVM text to machine code."""

    def run(self, code: Code) -> NativeArtifact:
        """The artifact. Raises :class:`CodegenError` that names the function for text that LLVM rejects."""
        return NativeArtifact.of(toolchain.compile_text(code.text, code.target), code)


def assembly_of(code: Code) -> str:
    """The assembler text of a module."""
    return toolchain.assembly(code.text, code.target)
