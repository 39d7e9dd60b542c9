"""What is small in a step of a fleet, from all shards to all ranks: losses, metrics, contributions to statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from glowtrain.fleet.communicator import NOTES, Communicator, Pending
from glowtrain.fleet.shards import Share
from glowtrain.types import Array, TensorType

Arrays = dict[str, Array]


class Notes:
    """Arrays of the same types of each shard, beside a number that each rank has."""

    def __init__(self, types: Mapping[str, TensorType], share: Share, ranks: Communicator) -> None:
        self.share, self.ranks = share, ranks
        self._layout = np.dtype([(name, type_.dtype.numpy, type_.shape) for name, type_ in types.items()])
        self._received: list[Array] = []

    def begin(self, local: Mapping[int, Mapping[str, Array]], examples: int, number: int) -> Pending:
        """Send what this rank's shards of a batch have, and its number."""
        ranks = range(self.share.ranks)
        records = [np.empty(len(self.share.present(examples, self.share.of(rank))), self._layout) for rank in ranks]
        for record, arrays in zip(records[self.share.rank], local.values(), strict=True):
            for name, array in arrays.items():
                record[name] = array
        parts = [np.empty(8 + record.nbytes, np.uint8) for record in records]
        mine = parts[self.share.rank]
        mine[:8] = np.frombuffer(np.int64(number).tobytes(), np.uint8)
        mine[8:] = records[self.share.rank].view(np.uint8)
        self._received = parts
        return self.ranks.exchange([mine] * len(parts), parts, NOTES)

    @property
    def numbers(self) -> list[int]:
        """The ranks' numbers."""
        return [int(part[:8].view(np.int64)[0]) for part in self._received]

    @property
    def shards(self) -> list[Arrays]:
        """What each shard has, in their order."""
        records = [record for part in self._received for record in part[8:].view(self._layout)]
        return [{name: np.asarray(record[name]) for name in self._layout.names or ()} for record in records]
