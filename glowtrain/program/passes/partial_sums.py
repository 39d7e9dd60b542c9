"""Results that a product of matrices has for nothing but sums in parts.

A contraction whose epilogue updates a parameter keeps partial sums in a result that nobody reads, as large as the
parameter. It can do without: sums that are not taken in parts need no place but the element that they update. That is
slow for long sums, whose terms for one tile of results leave the cache before those for the next one use them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from glowtrain.deferred import remembered
from glowtrain.loops import Buffer, Expr, For, Let, Statement, Store, evaluations
from glowtrain.program.analysis.kernel_facts import box, contractions, covers, summed_indices
from glowtrain.program.passes.rows_in_place import same_element
from glowtrain.program.program import Instruction, Kernel

LONG = 4096
"""Terms of a sum above which parts of it save more time than they take memory: those of the weight gradient of a
convolution over 64 images of 24x24 take 2.8 times as long in one go."""


@remembered
def homes_of_sums(instruction: Instruction) -> list[Buffer]:
    """Activations that a contraction writes and does not read, where something else that it writes has room for sums
    that are not :data:`LONG`: a buffer that it reads at the element that it writes alone."""
    kernel = instruction.kernel
    loop = box(kernel) if kernel is not None else None
    total = next((total for total, *_ in contractions(kernel.body)), None) if kernel is not None else None
    if kernel is None or loop is None or total is None or prod(i.extent for i in summed_indices(total)) > LONG:
        return []
    stores = [inner for inner in loop.body if isinstance(inner, Store)]
    if not any(store.buffer.dtype == total.dtype and _updates(store, loop, kernel) for store in stores):
        return []
    return [s.buffer for s in stores if s.buffer.kind == "activation" and s.buffer not in kernel.reads]


def _updates(store: Store, loop: For, kernel: Kernel) -> bool:
    loads = [load for load in kernel.survey.loads if load.buffer is store.buffer]
    return bool(loads) and covers(store, loop.indices) and all(same_element(load, store) for load in loads)


def without_results(kernel: Kernel, unread: set[Buffer]) -> Kernel:
    """A loop without its stores to some buffers, and without the names that only these used."""
    loop = box(kernel)
    assert loop is not None
    return replace(kernel, body=(replace(loop, body=tuple(_needed(loop, unread))),))


def _needed(loop: For, unread: set[Buffer]) -> Iterator[Statement]:
    kept = [inner for inner in loop.body if not (isinstance(inner, Store) and inner.buffer in unread)]
    used = set[Expr]()
    needed: list[Statement] = []
    for inner in reversed(kept):
        if not isinstance(inner, Let) or inner.ref in used:
            needed.append(inner)
            used.update(node for each in evaluations([inner]) for node in each.nodes)
    return reversed(needed)
