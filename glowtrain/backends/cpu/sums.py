"""What passes are told of the order in which sums are taken."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from glowtrain.deferred import Deferred

if TYPE_CHECKING:
    from glowtrain.backends.cpu import sum_orders
    from glowtrain.program.program import Kernel
else:
    sum_orders = Deferred("glowtrain.backends.cpu.sum_orders")


@dataclass(frozen=True)
class Sums:
    """The fact of this name: it is the same for every target."""

    def __call__(self, kernel: Kernel) -> Hashable:
        return sum_orders.orders(kernel)
