"""What is small in a step of a fleet, from all shards to all ranks: losses, metrics, contributions to statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glowtrain.fleet.communicator import NOTES, Communicator, Pending
from glowtrain.fleet.shards import Share
from glowtrain.types import Array, TensorType

Arrays = dict[str, Array]
HEADER = 24
"""Bytes of the numbers."""


class Notes:
    """Arrays of the same types of each shard, beside three numbers that each rank has."""

    def __init__(self, types: Mapping[str, TensorType], share: Share, ranks: Communicator) -> None:
        self.share, self.ranks = share, ranks
        self._layout = np.dtype([(name, type_.dtype.numpy, type_.shape) for name, type_ in types.items()])
        self._received: list[Array] = []

    def begin(self, local: Mapping[int, Mapping[str, Array]], examples: int, numbers: tuple[int, int, int]) -> Pending:
        """Send what this rank's shards of a batch have, and its numbers."""
        ranks = range(self.share.ranks)
        records = [np.empty(len(self.share.present(examples, self.share.of(rank))), self._layout) for rank in ranks]
        for record, arrays in zip(records[self.share.rank], local.values(), strict=True):
            for name, array in arrays.items():
                record[name] = array
        parts = [np.empty(HEADER + record.nbytes, np.uint8) for record in records]
        mine = parts[self.share.rank]
        mine[:HEADER].view(np.int64)[:] = numbers
        mine[HEADER:] = records[self.share.rank].view(np.uint8)
        self._received = parts
        return self.ranks.exchange([mine] * len(parts), parts, NOTES)

    @property
    def numbers(self) -> list[tuple[int, ...]]:
        """The ranks' numbers."""
        return [tuple(map(int, part[:HEADER].view(np.int64))) for part in self._received]

    @property
    def shards(self) -> list[Arrays]:
        """What each shard has, in their order."""
        records = [record for part in self._received for record in part[HEADER:].view(self._layout)]
        return [{name: np.asarray(record[name]) for name in self._layout.names or ()} for record in records]
