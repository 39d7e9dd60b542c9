"""Keep the accumulators of reductions on the stack where there are too many for the registers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glowtrain.backends.cpu.loop_nest.expressions import LlvmExpressions
from glowtrain.backends.llvm.values import LlvmValue


class PartialResults:
    """Accumulators on the stack: ``count`` vectors for each of some reductions, whose identities are given."""

    def __init__(self, e: LlvmExpressions, identities: Sequence[LlvmValue], count: int) -> None:
        self.f, self.count, self.identities = e.f, count, identities
        self.types = [value.type for value in identities]
        self.memory = [e.f.buffer(count, type_) for type_ in self.types]

    def clear(self) -> None:
        """Set all to the identities."""
        with self.f.loop(self.count) as loop:
            self.store(loop.index, self.identities)

    def load(self, first: LlvmValue, count: int) -> list[LlvmValue]:
        """Vector after vector from ``first`` on, of each all reductions."""
        addresses = (self._address(at, first, k) for k in range(count) for at in range(len(self.types)))
        return [
            self.f.load(type_, address, type_.size)
            for address, type_ in zip(addresses, self.types * count, strict=True)
        ]

    def store(self, first: LlvmValue, values: Sequence[LlvmValue]) -> None:
        """Write what :meth:`load` gives."""
        for number, value in enumerate(values):
            k, at = divmod(number, len(self.types))
            self.f.store(value, self._address(at, first, k), value.type.size)

    def folded(
        self, both: Callable[[Sequence[LlvmValue], Sequence[LlvmValue]], list[LlvmValue]], most: int
    ) -> list[LlvmValue]:
        """Halves combined until at most so many vectors are left."""
        while self.count > most:
            self.count //= 2
            with self.f.loop(self.count) as loop:
                other = self.f.op("add", loop.index, self.count)
                self.store(loop.index, both(self.load(loop.index, 1), self.load(other, 1)))
        return self.load(self.f.index(0), self.count)

    def _address(self, at: int, first: LlvmValue, k: int) -> LlvmValue:
        type_ = self.types[at]
        offset = self.f.op("mul", self.f.op("add", first, k) if k else first, type_.width)
        return self.f.shift(self.memory[at], offset, type_.scalar)
