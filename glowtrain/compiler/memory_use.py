"""The memory that a compiled function takes, in bytes, by what it is for."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from glowtrain.backends.base import ExecutableMemory
from glowtrain.memory.byte_size import byte_text
from glowtrain.presentation.displayable import Displayable
from glowtrain.presentation.messages import plural
from glowtrain.presentation.tables import Table


@dataclass(frozen=True)
class MemoryUse(Displayable):
    """Bytes that a function takes while one thread calls it; ``str()`` of it is a table.

    ``parameters``: trainable variables, frozen ones included; ``optimizer``: what an optimizer keeps from step to
    step; ``state``: other variables, such as running statistics. ``arena``: activations, gradients, and all else that
    is made and read within a call; ``workspace``: of all ``threads`` together; ``constants`` (copies of weights in
    another form among them) and ``outputs`` are arrays of the function's own. What a caller hands in, and the code
    itself, are not among them.
    """

    title: str
    parameters: int
    optimizer: int
    state: int
    constants: int
    outputs: int
    workspace: int
    arena: int
    threads: int = 1

    @property
    def variables(self) -> int:
        """What stays from call to call."""
        return self.parameters + self.optimizer + self.state

    @property
    def total(self) -> int:
        """All of it."""
        return self.variables + self.constants + self.outputs + self.workspace + self.arena

    def with_variables(
        self, sizes: Mapping[str, int], parameters: Collection[str], optimizer: Collection[str] = ()
    ) -> MemoryUse:
        """The same with variables of these ``sizes``, by name: some are ``parameters``, some an ``optimizer``'s."""
        trained = sum(size for name, size in sizes.items() if name in parameters)
        kept = sum(size for name, size in sizes.items() if name in optimizer)
        return replace(self, parameters=trained, optimizer=kept, state=sum(sizes.values()) - trained - kept)

    def rows(self) -> Iterator[tuple[str, int, str]]:
        """Name, bytes and a remark for each part that there is, then the sum."""
        parts = {
            "parameters": self.parameters,
            "optimizer": self.optimizer,
            "other state": self.state,
            "constants": self.constants,
            "outputs": self.outputs,
            "workspace": self.workspace,
            "arena": self.arena,
        }
        remarks = {"workspace": f"of {plural(self.threads, 'thread')}", "arena": "activations and gradients"}
        for name, size in parts.items():
            if size:
                yield name, size, remarks.get(name, "")
        yield "total", self.total, ""

    def _contents(self) -> Iterator[str | Table]:
        yield f"{self.title}: {byte_text(self.total)} of memory"
        rows = ((name, f"{size:,}", _rounded(size), remark) for name, size, remark in self.rows())
        yield Table(("", "bytes>", ">", ""), rows)

    def __str__(self) -> str:
        lines = [f"{self.title}: {byte_text(self.total)} of memory"]
        for name, size, remark in self.rows():
            lines.append(f"  {name:<12}{size:>16,} bytes{_rounded(size):>12}  {remark}".rstrip())
        return "\n".join(lines)


def _rounded(size: int) -> str:
    return byte_text(size) if size >= 1024 else ""


def memory_use(title: str, memory: ExecutableMemory) -> MemoryUse:
    """What an executable takes, without variables."""
    return MemoryUse(title, 0, 0, 0, memory.constants, memory.outputs, memory.workspace, memory.arena, memory.threads)
