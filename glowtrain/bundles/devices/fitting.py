"""Decide whether a bundle fits into a processor's RAM, and if not, find what would."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from glowtrain.bundles.devices.sizes import BundleSize, size_of
from glowtrain.bundles.module import BundleModule
from glowtrain.errors import BundleError

Attempt = Callable[[int | None, Sequence[str] | None], BundleModule]
"""Compiles the same bundle with another batch, or with these parameters trained, as far as they are given."""


Beside = Callable[[BundleModule, int], int]
"""Bytes of RAM that a program needs besides a bundle, whose functions take so much stack."""


def require_ram(
    module: BundleModule,
    ram: int,
    attempt: Attempt,
    batch: int | None,
    layers: Sequence[str],
    beside: Beside | None = None,
) -> None:
    """Raise :class:`BundleError` for a bundle that needs more than ``ram`` bytes: by how much, and what would fit.

    ``batch``: that of the module, where it may be chosen; ``layers``: patterns of the parameters of each layer, of
    which fewer may be trained; ``beside``: what the example on a board needs itself.
    """
    size = size_of(module)
    own = beside(module, size.stack) if beside else 0
    if size.ram + own <= ram:
        return
    parts = f"variables {size.variables:,}, arena {size.arena:,}, handle {size.handle:,}, stack {size.stack:,}"
    parts += f"; the example's inputs and outputs, its stack and C library {own:,}" if own else ""
    needs = f"{module.name} needs {size.ram + own:,} bytes of RAM on {module.target.name} ({parts})"
    advice = _Fitting(size, ram, attempt, batch, layers, beside).advice()
    raise BundleError(f"{needs}, {size.ram + own - ram:,} more than the {ram:,} there are; {advice}")


class _Fitting:
    """The search for what fits. The stack is taken to be that of the whole bundle."""

    def __init__(
        self,
        size: BundleSize,
        ram: int,
        attempt: Attempt,
        batch: int | None,
        layers: Sequence[str],
        beside: Beside | None,
    ) -> None:
        self.ram, self.attempt, self.batch, self.layers, self.beside = ram, attempt, batch, layers, beside
        self.stack, self.handle = size.stack, size.handle

    def advice(self) -> str:
        """What would fit, in words."""
        found = [self._smaller_batch(), self._frozen(None)]
        if not any(found):
            found = [self._frozen(1) if self.batch else ""]
        if not any(found):
            least = self._bytes(1 if self.batch else None, self._last(1) if len(self.layers) > 1 else None)
            return f"the least that it can do with is {least:,}"
        return f"what would fit: {', or '.join(each for each in found if each)}"

    def _smaller_batch(self) -> str:
        fits = most((self.batch or 1) - 1, lambda n: self._bytes(n, None) <= self.ram)
        return f"a batch of {fits}" if fits else ""

    def _frozen(self, batch: int | None) -> str:
        """The most of the last layers that can be trained, perhaps with another batch."""
        fits = most(len(self.layers) - 1, lambda n: self._bytes(batch, self._last(n)) <= self.ram)
        with_batch = f" with a batch of {batch}" if batch else ""
        return f"trainable={self._last(fits)}{with_batch}" if fits else ""

    def _last(self, count: int) -> list[str]:
        return list(self.layers[-count:])

    def _bytes(self, batch: int | None, trainable: Sequence[str] | None) -> int:
        module = self.attempt(batch, trainable)
        own = self.beside(module, self.stack) if self.beside else 0
        return self.stack + self.handle + module.memory.size + module.interface.arena + own


def layers_of(module: BundleModule) -> list[str]:
    """Patterns of the parameters that are trained, one for each layer, in the order of the model."""
    contents = module.contents
    trained = [v.name for v in contents.variables if module.trains and contents.roles[v.name] == "parameter"]
    layers = (name.rpartition(".") for name in trained)
    return list(dict.fromkeys(f"{layer}.*" if dot else name for layer, dot, name in layers))


def most(limit: int, fits: Callable[[int], bool]) -> int:
    """The largest number up to ``limit`` that fits, where more never fits better; 0 if none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low
