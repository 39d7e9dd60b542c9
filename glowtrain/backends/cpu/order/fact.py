"""The fact of the backend by which passes learn in which order sums are taken."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glowtrain.backends.cpu import order

if TYPE_CHECKING:
    from glowtrain.program.program import Kernel


@dataclass(frozen=True)
class Sums:
    """The fact of this name: it is the same for every target."""

    def __call__(self, kernel: Kernel) -> tuple[Hashable, ...]:
        return order.kernel.orders(kernel)
