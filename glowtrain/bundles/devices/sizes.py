"""Estimate what a bundle takes on its processor, flash, memory and work, before anything is linked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from glowtrain.backends.llvm.sections import sections_of
from glowtrain.backends.llvm.stack import stack_of
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.tables import Table
from glowtrain.program.analysis.work_count import trips_of, work_of


@dataclass(frozen=True)
class FunctionSize:
    """One function, and what it takes: bytes of its inputs and outputs, of the arena that it uses, and of the stack
    below a call of it; and the multiply-adds of a call."""

    name: str
    takes: str
    tensors: int
    arena: int
    stack: int
    multiply_adds: int

    def __str__(self) -> str:
        memory = f"arena {self.arena:,}, stack up to {self.stack:,}, inputs and outputs {self.tensors:,} bytes"
        return f"  {self.takes}: {memory}; {self.multiply_adds:,} multiply-adds"


@dataclass(frozen=True)
class BundleSize(Displayable):
    """Bytes of a bundle. In flash: ``code`` and ``constants``. In RAM, which the caller provides: ``variables``,
    ``arena``, the ``handle`` of an instance, and ``stack``, an upper bound for any of the functions, without what the
    caller's own callbacks take. Inputs and outputs are not in these: see :attr:`functions`."""

    name: str
    target: str
    code: int
    constants: int
    variables: int
    arena: int
    handle: int
    stack: int
    functions: tuple[FunctionSize, ...]

    @property
    def flash(self) -> int:
        """Code and constants."""
        return self.code + self.constants

    @property
    def ram(self) -> int:
        """Variables, arena, handle and stack."""
        return self.variables + self.arena + self.handle + self.stack

    def _contents(self) -> Iterator[str | Table]:
        yield f"{self.name} for {self.target}"
        ram = {"variables": self.variables, "arena": self.arena, "handle": self.handle, "stack, at most": self.stack}
        parts = {"code": self.code, "constants": self.constants, "flash": self.flash, **ram, "RAM": self.ram}
        yield Table(("", "bytes>"), ((name, f"{size:,}") for name, size in parts.items()))
        numbers = ((f.takes, f.arena, f.stack, f.tensors, f.multiply_adds) for f in self.functions)
        rows = ((name, *(f"{number:,}" for number in rest)) for name, *rest in numbers)
        yield Table(("function", "arena>", "stack, at most>", "inputs and outputs>", "multiply-adds>"), rows)

    def __str__(self) -> str:
        ram = f"variables {self.variables:,}, arena {self.arena:,}, handle {self.handle}, stack up to {self.stack:,}"
        lines = [
            f"{self.name} for {self.target}",
            f"  flash {self.flash:>12,} bytes: code {self.code:,}, constants {self.constants:,}",
            f"  RAM   {self.ram:>12,} bytes: {ram}; inputs and outputs are the caller's",
        ]
        return "\n".join([*lines, *map(str, self.functions)])


def size_of(module: BundleModule) -> BundleSize:
    """The sizes of a module, whose object is compiled for it. Raises :class:`CodegenError` as compiling does, and for
    processors whose stack cannot be read from their assembly."""
    stack = stack_of(module.text, module.target)
    own = {name: size for name, size in stack.items() if name.startswith(f"{module.name}_")}
    sections, interface = sections_of(module.code), module.interface
    return BundleSize(
        module.name,
        module.target.name,
        sections.code,
        sections.constants,
        module.memory.size,
        interface.arena,
        interface.handle.size,
        max(own.values()),
        tuple(_of(function, module, own) for function in module.functions),
    )


def _of(function: BundleFunction, module: BundleModule, stack: dict[str, int]) -> FunctionSize:
    program = function.code.plan.program
    return FunctionSize(
        function.name,
        function.takes,
        sum(each.type.nbytes for each in (*function.inputs, *function.hyper, *function.outputs)),
        function.code.plan.arena + module.threads * function.code.workspace,
        stack[f"{module.name}_{function.name}"],
        sum(times * work_of(instruction).multiply_adds for instruction, times in trips_of(program)),
    )
