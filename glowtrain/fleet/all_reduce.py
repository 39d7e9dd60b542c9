"""AllReduce of gradients over all shards of a fleet, in buckets.

    partial sums of nodes --slices to their owners--> sums in the tree's order --gather--> sums on all ranks

Each rank owns one slice of every bucket: it gets the others' partial sums of it, adds them up as the tree says, and
gives the sum to all. As many bytes travel as in a ring, and the ranks' number decides nothing about the bits. A bucket
is sent as soon as its last gradient is complete, while the backward part of the shard goes on.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from glowtrain.fleet.communicator import FIRST, Communicator, Pending
from glowtrain.fleet.shards import Share, TreeNode, fold
from glowtrain.types import Array, TensorType

Arrays = dict[str, Array]
PATIENCE = 20
"""Messages are looked after again when that many times as long has passed as it took."""


@dataclass(frozen=True)
class Bucket:
    """Arrays of one element type, by name, that travel together."""

    types: Mapping[str, TensorType]

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """The type of all elements."""
        dtype: np.dtype[np.generic] = next(iter(self.types.values())).dtype.numpy
        return dtype

    @property
    def size(self) -> int:
        """Elements of all arrays."""
        return sum(type_.size for type_ in self.types.values())

    def unpack(self, flat: Array) -> Arrays:
        """The arrays as they lie in such memory."""
        return {name: flat[place].reshape(self.types[name].shape) for name, place in self.offsets()}

    def owned(self, ranks: int) -> int:
        """Elements that each of so many ranks owns."""
        return -(-self.size // ranks)

    def pieces(self, rank: int, ranks: int) -> Iterator[tuple[str, slice, slice]]:
        """Which elements of which arrays a rank owns, and where they are in its slice."""
        first = rank * self.owned(ranks)
        behind = first + self.owned(ranks)
        for name, place in self.offsets():
            begin, end = max(place.start, first), min(place.stop, behind)
            if begin < end:
                yield name, slice(begin - place.start, end - place.start), slice(begin - first, end - first)

    def offsets(self) -> Iterator[tuple[str, slice]]:
        """Where each array lies."""
        begin = 0
        for name, type_ in self.types.items():
            yield name, slice(begin, begin + type_.size)
            begin += type_.size


def buckets_of(types: Mapping[str, TensorType], limit: int) -> list[Bucket]:
    """Consecutive arrays in buckets of at most ``limit`` bytes each, or of one larger array; the last ones come first,
    as the backward part of a step comes to the gradients of a model's last layers first."""
    found: list[dict[str, TensorType]] = []
    room, last = 0, None
    for name, type_ in reversed(list(types.items())):
        if type_.nbytes > room or type_.dtype != last:
            found.append({})
            room, last = limit, type_.dtype
        found[-1][name] = type_
        room -= type_.nbytes
    return [Bucket(each) for each in found]


class BucketReduction(Pending):
    """The sum of one bucket's arrays, from partial sums on all ranks; its memory is kept from step to step. Unless it
    ``gathers``, each rank has the sums of its own slice alone. ``updated``: the type of what may take their place."""

    def __init__(
        self, bucket: Bucket, share: Share, ranks: Communicator, tag: int, updated: np.dtype[np.generic], *,
        gathers: bool,
    ) -> None:  # fmt: skip
        self.bucket, self.share, self.ranks, self.tag = bucket, share, ranks, tag
        self.gathers = gathers
        self.slice = bucket.owned(share.ranks)
        self._total = self._gathered = self.empty()
        self._fresh = self._total if updated == bucket.dtype else np.zeros(self._total.shape, updated)
        self._theirs: dict[TreeNode, Array] = {}
        self._nodes: list[list[TreeNode]] = []
        self._given: dict[TreeNode, Array] = {}
        self._pending: list[Pending] = []
        self._added = False

    def expect(self, examples: int) -> None:
        """Receive the others' partial sums of a batch as they come."""
        self._nodes = [self.share.nodes(rank, examples) for rank in range(self.share.ranks)]
        self._given, self._added = {}, False
        self._pending = [self._receive(number) for number in range(max(map(len, self._nodes)))]

    def send(self, node: TreeNode, partial: Array) -> None:
        """Send this rank's partial sum of a node, in the nodes' order; it is not to be touched before all is done."""
        self._given[node] = partial[self.share.rank]
        self._pending.append(self.ranks.exchange(list(partial), [None] * self.share.ranks, self.tag))

    def missing(self) -> list[int]:
        """The ranks that are waited for; where all slices are there they are added, and sums are gathered."""
        found = _missing(self._pending)
        if found or self._added:
            return found
        if any(node not in self._given for node in self._nodes[self.share.rank]):
            return [self.share.rank]
        self._add()
        self._added = True
        self._pending = [self._gather(self._total)] if self.gathers else []
        return _missing(self._pending)

    def replace(self, arrays: Mapping[str, Array]) -> Pending:
        """Put others in the place of :attr:`local`, and give them to all in that of the sums."""
        for name, _, place in self.bucket.pieces(self.share.rank, self.share.ranks):
            self._fresh[self.share.rank, place] = arrays[name]
        return self._gather(self._fresh)

    def _gather(self, slices: Array) -> Pending:
        """Give this rank's slice to all, and get theirs."""
        self._gathered, parts = slices, list(slices)
        return self.ranks.exchange([parts[self.share.rank]] * len(parts), parts, self.tag + 1)

    @property
    def local(self) -> Arrays:
        """This rank's elements of arrays, by name."""
        mine: Array = self._total[self.share.rank]
        return {name: mine[place] for name, _, place in self.bucket.pieces(self.share.rank, self.share.ranks)}

    @property
    def sums(self) -> Arrays:
        """The sums, or what has taken their place, where they are to stay as they are until the next step."""
        return self.bucket.unpack(self._gathered.reshape(-1))

    def empty(self) -> Array:
        """Memory for the bucket's arrays, by the slices of all ranks."""
        return np.zeros((self.share.ranks, self.slice), self.bucket.dtype)

    def _receive(self, number: int) -> Pending:
        """Receive slices of the nodes with a number in each rank's list."""
        received: list[Array | None] = [None] * self.share.ranks
        for rank, nodes in enumerate(self._nodes):
            if number < len(nodes) and rank != self.share.rank:
                node = nodes[number]
                received[rank] = self._given[node] = self._theirs[node] = self._theirs_at(node)
        return self.ranks.exchange([None] * self.share.ranks, received, self.tag)

    def _theirs_at(self, node: TreeNode) -> Array:
        kept = self._theirs.get(node)
        return np.empty(self.slice, self.bucket.dtype) if kept is None else kept

    def _add(self) -> None:
        """Add up this rank's slice of all nodes, in the order of the tree."""
        total = fold((0, self.share.shards), self._given.get, _add_in_place)
        assert total is not None
        self._total[self.share.rank] = total


def _add_in_place(left: Array, right: Array) -> Array:
    result: Array = np.add(left, right, out=left)
    return result


@dataclass(frozen=True)
class Gradients:
    """Memory for the gradients of a shard or the sum of several: ``flats`` by bucket, ``arrays`` in them by name."""

    flats: list[Array]
    arrays: Arrays


Run = Callable[[Gradients, Callable[[Sequence[str]], None]], None]
"""Runs a shard, which writes its gradients into memory and says when arrays of them are complete."""


class PartialSum:
    """The sum of a node of the tree on its rank: of ``lefts``, sums of the shards before its last one, and of the
    ``last`` shard's gradients, as they become complete. Each bucket of it is given away at once."""

    def __init__(
        self, lefts: Sequence[Gradients], last: Gradients, numbers: Mapping[str, int],
        send: Callable[[int, Array], None],
    ) -> None:  # fmt: skip
        """``numbers``: the bucket of each array."""
        self.lefts, self.last, self.numbers, self.send = lefts, last, numbers, send
        self._left = Counter(numbers.values())

    def completed(self, names: Iterable[str]) -> None:
        """Arrays of the last shard are complete, or outputs that are no gradients."""
        for number in [self.numbers[name] for name in names if name in self.numbers]:
            self._left[number] -= 1
            if not self._left[number]:
                self._add(number)

    def _add(self, number: int) -> None:
        total = self.last.flats[number]
        for left in reversed(self.lefts):
            total = _add_in_place(left.flats[number], total)
        self.send(number, total)


class AllReduce(Pending):
    """The sums of all buckets of a step, on all ranks where it ``gathers``, else of each rank's slices. Memory of
    gradients is used again from step to step."""

    def __init__(
        self, types: Mapping[str, TensorType], limit: int, share: Share, ranks: Communicator,
        updated: Mapping[str, TensorType], *, gathers: bool = True,
    ) -> None:  # fmt: skip
        """``updated``: the types of what :meth:`replace` puts in the place of sums."""
        self.ranks, self.gathers = ranks, gathers
        self._buckets = []
        for number, bucket in enumerate(buckets_of(types, limit)):
            tag, replaced = FIRST + 2 * number, Bucket({name: updated[name] for name in bucket.types}).dtype
            self._buckets.append(BucketReduction(bucket, share, ranks, tag, replaced, gathers=gathers))
        self._numbers = {name: number for number, each in enumerate(self._buckets) for name in each.bucket.types}
        self._free: list[Gradients] = []
        self._sent: list[Gradients] = []
        self._examples = 0
        """Examples of a batch for which nothing has been received yet."""
        self._looked_after = 0.0

    def memory(self) -> Gradients:
        """Memory that a shard's gradients can be written to."""
        if self._free:
            return self._free.pop()
        flats = [bucket.empty() for bucket in self._buckets]
        arrays = [bucket.bucket.unpack(flat.reshape(-1)) for bucket, flat in zip(self._buckets, flats, strict=True)]
        return Gradients(flats, {name: array for each in arrays for name, array in each.items()})

    def add(self, left: Gradients, right: Gradients) -> Gradients:
        """The sum of both, in the memory of the left ones; that of the right ones is free."""
        for total, flat in zip(left.flats, right.flats, strict=True):
            np.add(total, flat, out=total)
        self._free.append(right)
        return left

    def begin(self, examples: int) -> None:
        """Begin with a batch. The :attr:`sums` of the one before are gone."""
        self._free += self._sent
        self._sent, self._examples = [], examples

    def add_up(self, node: TreeNode, lefts: Sequence[Gradients], run: Run) -> None:
        """Run the last shard of this rank's next node, add its gradients to ``lefts``, the sums of the shards before
        it, and send the node's sum."""
        last = self.memory()
        total, *rest = *lefts, last
        self._sent.append(total)
        partial_sum = PartialSum(lefts, last, self._numbers, partial(self._send, node))

        def completed(names: Iterable[str]) -> None:
            partial_sum.completed(names)
            self.progress()

        run(last, completed)
        self._free += rest

    def _send(self, node: TreeNode, number: int, total: Array) -> None:
        if self.ranks.size > 1:
            self._expect()
            self._buckets[number].send(node, total)

    def progress(self) -> None:
        """Look after messages, between other things, of whose time that takes a small part."""
        began = time.perf_counter()
        if began >= self._looked_after:
            self.missing()
            ended = time.perf_counter()
            self._looked_after = ended + PATIENCE * (ended - began)

    def missing(self) -> list[int]:
        if self.ranks.size == 1:
            return []
        self._expect()
        return _missing(self._buckets)

    def _expect(self) -> None:
        """Receive what others send, from the moment on at which this rank has computed something, too: a batch that
        does not fit is an error before that."""
        if self._examples:
            self.ranks.track(self)
            for bucket in self._buckets:
                bucket.expect(self._examples)
            self._examples = 0

    @property
    def sums(self) -> Arrays:
        """The sums over all shards of the batch."""
        if self.ranks.size == 1:
            return self._sent[0].arrays
        return {name: array for bucket in self._buckets for name, array in bucket.sums.items()}

    @property
    def local(self) -> Arrays:
        """This rank's elements of the sums: those of its slices."""
        return {name: array for bucket in self._buckets for name, array in bucket.local.items()}

    def replace(self, arrays: Mapping[str, Array]) -> Pending:
        """Put others in the place of :attr:`local`; when that was waited for, those of all ranks are :attr:`sums`."""
        return All([bucket.replace(arrays) for bucket in self._buckets])


class All(Pending):
    """Several that are waited for."""

    def __init__(self, pending: Sequence[Pending]) -> None:
        self._open: list[tuple[Pending, list[int]]] = [(each, []) for each in pending]

    def missing(self) -> list[int]:
        found = [(each, each.missing()) for each, _ in self._open]
        self._open = [(each, ranks) for each, ranks in found if ranks]
        return [rank for _, ranks in self._open for rank in ranks]


def _missing(pending: Iterable[Pending]) -> list[int]:
    return [rank for each in pending for rank in each.missing()]
