"""Which rows of a batch are which shard's, which shards a rank has, and the tree in which shards are added up.

The tree over shards is halved again and again, whatever the number of ranks: shards [0, n) are the sum of [0, n // 2)
and [n // 2, n). A rank adds up those nodes of the tree that it has all shards of, and nothing else; so the sum of all
has the same bits wherever its shards were computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from glowtrain.errors import InputError

T = TypeVar("T")
TreeNode = tuple[int, int]
"""The shards from the first to before the second."""


def fold(node: TreeNode, leaf: Callable[[TreeNode], T | None], add: Callable[[T, T], T]) -> T | None:
    """The sum of a node: what ``leaf`` knows of it, or the sum of its halves. Halves without a value add nothing."""
    known = leaf(node)
    first, behind = node
    if known is not None or behind - first < 2:
        return known
    middle = (first + behind) // 2
    left = fold((first, middle), leaf, add)
    right = fold((middle, behind), leaf, add)
    if left is None or right is None:
        return right if left is None else left
    return add(left, right)


def covering(node: TreeNode, shards: range) -> Iterator[TreeNode]:
    """The largest nodes of the tree below ``node`` that have none but these ``shards``, from the first on."""
    first, behind = node
    if first >= shards.stop or behind <= shards.start:
        return
    if shards.start <= first and behind <= shards.stop:
        yield node
    else:
        middle = (first + behind) // 2
        yield from covering((first, middle), shards)
        yield from covering((middle, behind), shards)


def last_shard(node: TreeNode, present: range) -> tuple[list[TreeNode], TreeNode]:
    """The last of the ``present`` shards of a node, and the left halves beside the way down to it: the node is the sum
    of the first half and of all that follows, and so on."""
    first, behind = node
    lefts = []
    while behind - first > 1:
        middle = (first + behind) // 2
        if present.stop > middle:
            lefts.append((first, middle))
            first = middle
        else:
            behind = middle
    return lefts, (first, behind)


@dataclass(frozen=True)
class Share:
    """What one of ``ranks`` has of each batch in ``shards``. Raises :class:`InputError` where shards cannot be shared
    out evenly."""

    shards: int
    rank: int = 0
    ranks: int = 1

    def __post_init__(self) -> None:
        if self.shards % self.ranks:
            raise InputError(
                f"{self.shards} shards cannot be shared out evenly to {self.ranks} ranks: the number of ranks must "
                f"divide shards= (--shards), e.g. {_next_multiple(self.shards, self.ranks)}"
            )

    def of(self, rank: int) -> range:
        """The shards of a rank."""
        each = self.shards // self.ranks
        return range(rank * each, (rank + 1) * each)

    @property
    def local(self) -> range:
        """The shards of this rank."""
        return self.of(self.rank)

    def rows(self, examples: int, shards: range) -> slice:
        """Where the rows of consecutive shards are in a batch: the first shards have one more where they do not
        divide."""
        size, more = divmod(examples, self.shards)
        return slice(*(shard * size + min(shard, more) for shard in (shards.start, shards.stop)))

    def present(self, examples: int, shards: range) -> range:
        """Those of consecutive shards that have any rows: the first ones."""
        return range(shards.start, max(shards.start, min(shards.stop, examples)))

    def nodes(self, rank: int, examples: int) -> list[TreeNode]:
        """The nodes that a rank adds up, of a batch of so many examples."""
        found = covering((0, self.shards), self.of(rank))
        return [node for node in found if self.present(examples, range(*node))]


def _next_multiple(shards: int, ranks: int) -> int:
    return -(-shards // ranks) * ranks
