"""The cpu backend: a planned program as native code, for this processor or another."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from glowtrain.backends import cpu
from glowtrain.backends.base import Artifact, Backend, Executable
from glowtrain.backends.cache.location import CacheChoice, chosen
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.executable import NativeExecutable
from glowtrain.backends.cpu.order.fact import Sums
from glowtrain.backends.cpu.threads.pool import expect_pool
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.backends.thread_count import GRAIN, checked, default
from glowtrain.errors import ArtifactError
from glowtrain.stages import Facts, FusedStages, Options, Stage, View

if TYPE_CHECKING:
    from glowtrain.backends.limits import MachineLimits
    from glowtrain.backends.table import LinkableModule
    from glowtrain.program.memory.plan import Plan


class Cpu(Backend):
    """Native code for a processor: the one this process runs on, or a :class:`Target` (also by name).

    Code for another processor can be compiled, kept and linked, but not loaded here. Compiled graphs are kept on disk
    and found again by later processes: in the user's folder for caches, or in the folder that ``cache`` says; False and
    None keep none. The user's folder holds no code of operators from elsewhere, and where it cannot be used, a
    :class:`CacheWarning` says so; one that was asked for and cannot be used is an :class:`InputError`.

    A step runs on so many ``threads``, by default on as many as this process has cores (or PyTorch is set to use), as
    compiling always does; the code and its results are the same for any number. ``grain`` is how many cycles of work a
    thread takes at least before it comes back for more; with 0 all that can be shared is, however small.

    ``fused`` says whether multiply-adds are rounded once (:attr:`Target.fused`; by default as the target has it). Code
    for all processors computes the same bits where it is the same: with False those that processors without fused
    multiply-add compute, such as a browser's.

    Raises :class:`InputError` for threads that are no number from 1 to 1024.
    """

    name = "cpu"
    threaded = True
    target: Target

    def __init__(
        self,
        target: Target | str | None = None,
        cache: CacheChoice = True,
        *,
        threads: int | None = None,
        grain: int = GRAIN,
        fused: bool | None = None,
    ) -> None:
        found = Target.named(target) if isinstance(target, str) else target or Target.host()
        self.target = found if fused is None else replace(found, fused=fused)
        self.cache = chosen(cache)
        self.threads = None if threads is None else checked(threads)
        self.grain = grain
        self.tools = toolchain.version()
        self.facts = Facts(alignment=self.target.plan_alignment, sums=Sums())

    def __reduce__(self) -> tuple[Callable[..., Cpu], tuple[Target | None, CacheChoice, int | None, int, bool | None]]:
        """By what it was made of: the host is then the processor of the process that reads it."""
        fused, host = self.target.fused, Target.host()
        target = None if replace(self.target, fused=host.fused) == host else self.target
        return _made, (target, self._choice, self.threads, self.grain, None if fused == host.fused else fused)

    def with_threads(self, threads: int) -> Cpu:
        return self._like(threads=checked(threads))

    def for_checks(self, threads: int) -> Cpu:
        return self._like(threads=threads, grain=0, cache=None)

    def bit_equal(self) -> Mapping[str, Cpu]:
        """This processor with vectors of half the size, and without any."""
        own = self.target.vector_bits
        return {words: self._like(target=self._narrow(words, bits), cache=None) for words, bits in _narrower(own)}

    def _narrow(self, words: str, bits: int) -> Target:
        fewer = replace(self.target, name=words, vector_bits=bits, families=frozenset())
        return fewer if bits else replace(fewer, masked=False)

    def with_cache(self, cache: CacheChoice) -> Cpu:
        return self._like(cache=chosen(cache))

    def _like(self, **changed: Any) -> Cpu:
        """The same, also of a derived class, but for some attributes."""
        other: Cpu = object.__new__(type(self))
        other.__dict__.update(self.__dict__, **changed)
        return other

    @property
    def _choice(self) -> CacheChoice:
        """What the cache was made of: the user's folder is then that of whoever reads it."""
        return self.cache if self.cache is None else self.cache.private or self.cache.folder

    @property
    def fingerprint(self) -> str:
        return f"cpu {self.tools} {self.target.fingerprint} {self.grain}"

    def stages(self, walk: Sequence[Stage]) -> tuple[Stage, ...]:
        fused, numbers = FusedStages(self._generate, self._emit, self._compile), attrgetter("in_numbers")
        views = (View("asm", attrgetter("assembly")),)
        return (
            *walk,
            Stage("llvm", "a function for each kernel structure", self._generate, views=views, numbers=numbers),
            Stage("compiled", "machine code", self._emit, fused=fused, numbers=numbers),
        )

    def expect(self) -> None:
        """Code that runs on several threads needs their pool's, which is compiled while Python makes its plan."""
        if self._threads > 1:
            expect_pool(self.cache)

    def limits(self, kinds: Collection[str]) -> MachineLimits:
        return cpu.limits.measured(self.target, self._threads, kinds)

    def compile(self, subject: Plan, options: Options) -> NativeArtifact:
        return self._compile(options).run(subject)

    def _generate(self, options: Options) -> cpu.emit.GenerateCode:
        target = self.target.unasked if options.linkable else self.target
        return cpu.emit.GenerateCode(target, options, self.grain)

    def _emit(self, options: Options) -> cpu.emit.EmitObjects:
        return cpu.emit.EmitObjects(default(), options.linkable)

    def _compile(self, options: Options) -> cpu.emit.CompilePlan:
        return cpu.emit.CompilePlan(self._generate(options), self._emit(options))

    def module(self, plans: Mapping[str, Plan], options: Options) -> LinkableModule:
        grain = self.grain if self._threads > 1 else None
        return cpu.emit.module_of(plans, self.target.unasked, options, grain)

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
        return NativeExecutable(artifact, self._threads, self.cache)

    @property
    def _threads(self) -> int:
        return self.threads or default()


def _narrower(bits: int) -> Iterator[tuple[str, int]]:
    """Sizes of vectors below one, in words and bits."""
    if bits:
        yield f"vectors of {bits // 2} bits", bits // 2
        yield "no vectors", 0


def _made(target: Target | None, cache: CacheChoice, threads: int | None, grain: int, fused: bool | None) -> Cpu:
    return Cpu(target, cache, threads=threads, grain=grain, fused=fused)
