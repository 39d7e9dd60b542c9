"""Find, and drop, results that a matrix product has only to hold partial sums.

A contraction whose epilogue updates a parameter keeps partial sums in a result that nobody reads, as large as the
parameter. It can do without: sums that are not taken in parts need no place but the element that they update. That is
slow for long sums, whose terms for one tile of results leave the cache before those for the next one use them again.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import prod

from glowtrain.loops import Buffer, For, Store
from glowtrain.memo import memoized
from glowtrain.program.analysis.kernel_facts import PARTLESS, box, contractions, covers, summed_indices
from glowtrain.program.passes.needed import leading_to
from glowtrain.program.passes.rows_in_place import same_element
from glowtrain.program.program import Instruction, Kernel

LONG = 4096
"""Terms of a sum above which parts of it save more time than they take memory: those of the weight gradient of a
convolution over 64 images of 24x24 take 2.8 times as long in one go."""


@memoized
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


def without_results(kernel: Kernel, unread: Collection[Buffer]) -> Kernel:
    """A kernel without its stores to some buffers, and without the names that only these used."""
    body = leading_to(kernel.written.difference(unread), kernel.body)
    return kernel if body is kernel.body else Kernel(kernel.name, body)


def without_stores(kernel: Kernel, unread: Collection[Buffer]) -> Kernel:
    """The same, but a contraction that has its partial sums in one of them, and no other place for these, keeps it."""
    dropped = [buffer for buffer in kernel.writes if buffer in unread]
    home = _home(kernel)
    if home in dropped and not any(_holds_sums(kernel, each, home) for each in kernel.writes if each not in dropped):
        dropped.remove(home)
        kernel = _beside_update(kernel, home)
    return without_results(kernel, dropped) if dropped else kernel


def _beside_update(kernel: Kernel, home: Buffer) -> Kernel:
    """The same with the partial sums in the order in memory of a variable that it updates, which may be transposed: a
    tile of both is then read and written row by row."""
    stores = {store.buffer: store for store in kernel.flat if isinstance(store, Store)}
    places = list(stores[home].index)
    for buffer, store in stores.items():
        order = [store.index[axis] for axis in buffer.layout]
        if buffer.kind == "variable" and len(order) == len(places) and set(order) == set(places):
            layout = tuple(places.index(index) for index in order)
            return kernel if layout == home.layout else kernel.with_buffers({home: replace(home, layout=layout)})
    return kernel


def _home(kernel: Kernel) -> Buffer | None:
    """A result that nothing in a kernel reads, of the sums' type if there is one: a blocked contraction keeps its
    partial sums there. Sums of integers, and short ones, are never taken in parts.
    """
    loop = box(kernel)
    total = None if loop is None or _has_loops(loop) else next((total for total, *_ in contractions(loop.body)), None)
    if total is None or not total.dtype.is_float or prod(index.extent for index in total.indices) <= PARTLESS:
        return None
    unread = [buffer for buffer in kernel.writes if buffer not in kernel.reads]
    return min(unread, key=lambda buffer: buffer.dtype != total.dtype, default=None)


def _has_loops(loop: For) -> bool:
    return any(isinstance(inner, For) for inner in loop.body)


def _holds_sums(kernel: Kernel, result: Buffer, home: Buffer) -> bool:
    """Whether partial sums can be kept in a result as well as in ``home``."""
    return result not in kernel.reads and result.dtype == home.dtype
