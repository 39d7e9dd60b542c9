"""Check that kernels which were changed to save memory still sum in the same order.

The order of a sum follows from the kernel that it is in: one result less to store, or one more element to read, can
make another loop the better one for the lanes. So a change is made only where the backend says that all orders stay.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from glowtrain.program.passes.loop_fusion.fuse_pair import Sums
from glowtrain.program.program import Instruction, Kernel


def keeps_orders(sums: Sums | None, before: Iterable[Instruction], after: Sequence[Kernel]) -> bool:
    """Whether each sum in the kernels ``after`` has the order of one in those that they are made of; always where
    nobody says what the orders are."""
    earlier = [instruction.kernel for instruction in before if instruction.kernel is not None]
    changed = [kernel for kernel in after if kernel.survey.reductions and kernel not in earlier]
    if sums is None or not changed:
        return True
    found = Counter(order for kernel in changed for order in sums(kernel))
    return found <= Counter(order for kernel in earlier if kernel not in after for order in sums(kernel))
