"""The cpu backend: a planned program as native code, for this processor or another."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glowtrain.backends.base import Artifact, Backend, Executable, View
from glowtrain.backends.cache import Cache
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.executable import NativeExecutable
from glowtrain.backends.cpu.step import Code, generate
from glowtrain.backends.cpu.tasks import Whole
from glowtrain.backends.cpu.threads.count import checked, default
from glowtrain.backends.cpu.threads.share import GRAIN, Shared
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.llvm.pieces import compile_pieces
from glowtrain.backends.llvm.target import Target
from glowtrain.errors import ArtifactError
from glowtrain.presentation.words import plural
from glowtrain.program.memory.plan import Plan
from glowtrain.stages import Options, Stage


class Cpu(Backend):
    """Native code for a processor: the one this process runs on, or a :class:`Target` (also by name).

    Code for another processor can be compiled, kept and linked, but not loaded here. With a ``cache`` folder, compiled
    graphs are kept there and found again by later processes.

    A step runs on so many ``threads``, by default on as many as this process has cores (or PyTorch is set to use); the
    code and its results are the same for any number. ``grain`` is how many cycles of work a thread takes at least
    before it comes back for more; with 0 all that can be shared is, however small.

    Raises :class:`InputError` for threads that are no number from 1 to 1024.
    """

    name = "cpu"
    threaded = True

    def __init__(
        self,
        target: Target | str | None = None,
        cache: str | os.PathLike[str] | None = None,
        *,
        threads: int | None = None,
        grain: int = GRAIN,
    ) -> None:
        self.target = Target.named(target) if isinstance(target, str) else target or Target.host()
        self.cache = None if cache is None else Cache(cache)
        self.threads = None if threads is None else checked(threads)
        self.grain = grain

    def __reduce__(self) -> tuple[Callable[..., Cpu], tuple[Target | None, Path | None, int | None, int]]:
        """By what it was made of: the host is then the processor of the process that reads it."""
        target = None if self.target == Target.host() else self.target
        return _made, (target, self._folder, self.threads, self.grain)

    def on(self, threads: int) -> Cpu:
        return self._like(threads=checked(threads))

    def sharing(self, threads: int) -> Cpu:
        return self._like(threads=threads, grain=0, cache=None)

    def _like(self, **changed: Any) -> Cpu:
        """The same, also of a derived class, but for some attributes."""
        other: Cpu = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changed)
        return other

    @property
    def _folder(self) -> Path | None:
        return None if self.cache is None else self.cache.folder

    @property
    def fingerprint(self) -> str:
        return f"cpu {toolchain.version()} {self.target.fingerprint} {self.grain}"

    @property
    def views(self) -> Mapping[str, View]:
        return {"asm": View("llvm", "the assembler text", assembly_of)}

    def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
        return (
            *walk,
            Stage("llvm", "a function for each kernel structure", lambda o: GenerateCode(self.target, o, self.grain)),
            Stage("compiled", "machine code", self._emit),
        )

    def in_numbers(self, result: Any) -> str:
        match result:
            case Code():
                lines = plural(len(result.text.splitlines()), "line")
                return f"{plural(len(result.functions), 'function')}, {lines} of LLVM text"
            case NativeArtifact():
                return f"{result.size:,} bytes of machine code for {result.target.cpu or result.target.name}"
        return ""

    def compile(self, subject: Plan, options: Options) -> NativeArtifact:
        return self._emit(options).run(GenerateCode(self.target, options, self.grain).run(subject))

    def _emit(self, options: Options) -> EmitObjects:
        return EmitObjects(1 if options.linkable else self._threads)

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
        return NativeExecutable(artifact, self._threads)

    @property
    def _threads(self) -> int:
        return self.threads or default()


def _made(target: Target | None, cache: Path | None, threads: int | None, grain: int) -> Cpu:
    return Cpu(target, cache, threads=threads, grain=grain)


@dataclass(frozen=True)
class GenerateCode:
    """The pass from a plan to LLVM text."""

    target: Target
    options: Options
    grain: int = GRAIN

    def run(self, plan: Plan) -> Code:
        """The module. Raises :class:`CodegenError` naming the kernel that cannot be written."""
        return generate(plan, self.target, self.options, Shared(self.grain) if self.target.hosted else Whole())


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
