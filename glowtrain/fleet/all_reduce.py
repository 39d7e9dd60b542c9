"""AllReduce of gradients over all shards of a fleet, in buckets.

    partial sums of nodes --slices to their owners--> sums in the tree's order --gather--> sums on all ranks

Each rank owns one slice of every bucket: it gets the others' partial sums of it, adds them up as the tree says, and
gives the sum to all. As many bytes travel as in a ring, and the ranks' number decides nothing about the bits. Buckets
are under way at the same time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from glowtrain.fleet.communicator import FIRST, Communicator, Nothing, Pending
from glowtrain.fleet.shards import Share, TreeNode, fold
from glowtrain.types import Array, TensorType

Arrays = dict[str, Array]


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
    """Consecutive arrays in buckets of at most ``limit`` bytes each, or of one larger array."""
    found: list[dict[str, TensorType]] = []
    room, last = 0, None
    for name, type_ in types.items():
        if type_.nbytes > room or type_.dtype != last:
            found.append({})
            room, last = limit, type_.dtype
        found[-1][name] = type_
        room -= type_.nbytes
    return [Bucket(each) for each in found]


class BucketReduction(Pending):
    """The sum of one bucket's arrays, from partial sums on all ranks; its memory is kept from step to step. Unless it
    ``gathers``, each rank has the sums of its own slice alone."""

    def __init__(self, bucket: Bucket, share: Share, ranks: Communicator, tag: int, *, gathers: bool) -> None:
        self.bucket, self.share, self.ranks, self.tag = bucket, share, ranks, tag
        self.gathers = gathers
        self.slice = bucket.owned(share.ranks)
        self._total = self.empty()
        self._local: Sequence[Array] = ()
        self._theirs: dict[TreeNode, Array] = {}
        self._nodes: list[list[TreeNode]] = []
        self._pending: list[Pending] = []
        self._added = False

    def begin(self, partial: Sequence[Array], examples: int) -> None:
        """Send the partial sums of this rank's nodes of a batch, in the nodes' order; they are not to be touched before
        all is done."""
        self._nodes = [self.share.nodes(rank, examples) for rank in range(self.share.ranks)]
        self._local = partial
        self._added = False
        self._pending = [self._slices(number) for number in range(max(map(len, self._nodes)))]

    def missing(self) -> list[int]:
        """The ranks that are waited for; where all slices are there they are added, and sums are gathered."""
        found = _missing(self._pending)
        if found or self._added:
            return found
        self._add()
        self._added = True
        self._pending = [self.gather()] if self.gathers else []
        return _missing(self._pending)

    def gather(self) -> Pending:
        """Give this rank's slice to all, and get theirs."""
        parts = list(self._total)
        return self.ranks.exchange([parts[self.share.rank]] * len(parts), parts, self.tag + 1)

    @property
    def local(self) -> Arrays:
        """This rank's elements of arrays, by name."""
        mine: Array = self._total[self.share.rank]
        return {name: mine[place] for name, _, place in self.bucket.pieces(self.share.rank, self.share.ranks)}

    @property
    def sums(self) -> Arrays:
        """The sums, where they are to stay as they are until the next step."""
        return self.bucket.unpack(self._total.reshape(-1))

    def empty(self) -> Array:
        """Memory for the bucket's arrays, by the slices of all ranks."""
        return np.zeros((self.share.ranks, self.slice), self.bucket.dtype)

    def _slices(self, number: int) -> Pending:
        """Exchange slices of the nodes with a number in each rank's list."""
        ranks, own = self.share.ranks, self._nodes[self.share.rank]
        sent: list[Array | None] = list(self._local[number]) if number < len(own) else [None] * ranks
        received: list[Array | None] = [None] * ranks
        for rank, nodes in enumerate(self._nodes):
            if number < len(nodes):
                mine = rank == self.share.rank
                array = self._local[number][rank] if mine else self._theirs_at(nodes[number])
                received[rank] = self._theirs[nodes[number]] = array
        return self.ranks.exchange(sent, received, self.tag)

    def _theirs_at(self, node: TreeNode) -> Array:
        kept = self._theirs.get(node)
        return np.empty(self.slice, self.bucket.dtype) if kept is None else kept

    def _add(self) -> None:
        """Add up this rank's slice of all nodes, in the order of the tree."""
        given = {node: self._theirs[node] for nodes in self._nodes for node in nodes}
        total = fold((0, self.share.shards), given.get, _add_in_place)
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


class AllReduce:
    """The sums of all buckets of a step, on all ranks where it ``gathers``, else of each rank's slices. Memory of
    gradients is used again from step to step."""

    def __init__(
        self, types: Mapping[str, TensorType], limit: int, share: Share, ranks: Communicator, *, gathers: bool = True
    ) -> None:
        self.ranks, self.gathers = share.ranks, gathers
        self._buckets = [
            BucketReduction(bucket, share, ranks, FIRST + 2 * number, gathers=gathers)
            for number, bucket in enumerate(buckets_of(types, limit))
        ]
        self._free: list[Gradients] = []
        self._sent: list[Gradients] = []

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

    def begin(self, partial: Sequence[Gradients], examples: int) -> Pending:
        """Send this rank's partial sums of a batch; what is returned is waited for before the :attr:`sums` are read,
        which are there until the next :meth:`begin`."""
        self._free += self._sent
        self._sent = list(partial)
        if self.ranks == 1:
            return Nothing()
        for number, bucket in enumerate(self._buckets):
            bucket.begin([each.flats[number] for each in partial], examples)
        return All(self._buckets)

    @property
    def sums(self) -> Arrays:
        """The sums over all shards of the batch."""
        if self.ranks == 1:
            return self._sent[0].arrays
        return {name: array for bucket in self._buckets for name, array in bucket.sums.items()}

    @property
    def local(self) -> Arrays:
        """This rank's elements of the sums: those of its slices."""
        return {name: array for bucket in self._buckets for name, array in bucket.local.items()}

    def replace(self, arrays: Mapping[str, Array]) -> Pending:
        """Put others in the place of :attr:`local`; when that was waited for, those of all ranks are :attr:`sums`."""
        for name, array in self.local.items():
            array[...] = arrays[name]
        return All([bucket.gather() for bucket in self._buckets])


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
