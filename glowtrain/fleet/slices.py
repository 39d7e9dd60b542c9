"""Variables of which each rank has slices: what an optimizer keeps for each element of a parameter."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from glowtrain.backends.state import State
from glowtrain.errors import InputError
from glowtrain.fleet.all_reduce import buckets_of
from glowtrain.fleet.communicator import SLICES, Communicator
from glowtrain.grad.data_parallel import GRADIENT
from glowtrain.grad.slices import SLICE, Slices, slot_slice
from glowtrain.graph import Variable
from glowtrain.types import Array, LazyArray, TensorType

Arrays = dict[str, Array]
Slots = Mapping[str, tuple[Variable, str]]
"""Variables by name, each with the name of the parameter whose elements it is of."""


def slices_of(gradients: Mapping[str, TensorType], limit: int, ranks: int) -> list[dict[str, slice]]:
    """The elements of parameters that each rank updates: those whose gradients' sums it owns."""
    buckets = buckets_of(gradients, limit)
    return [
        {name.removeprefix(GRADIENT): taken for each in buckets for name, taken, _ in each.pieces(rank, ranks)}
        for rank in range(ranks)
    ]


class SlicedState(State):
    """Variables, of some of which (``slots``) this rank has only the elements of its slice of a parameter.

    Those are read and written whole by their names: after :meth:`gather`, on rank 0, until the next update.
    """

    def __init__(
        self, variables: Mapping[str, Array | LazyArray], slots: Slots, slices: Sequence[Slices], ranks: Communicator
    ) -> None:
        self.slots, self.ranks, self._slices = slots, ranks, slices
        self._order = tuple(variables)
        self._whole: Arrays | None = None
        own = [slot_slice(slot, taken) for slot, taken in self._of(ranks.rank)]
        whole = {name: initial for name, initial in variables.items() if name not in slots}
        super().__init__({**whole, **{each.name: each.source for each in own}})

    def __contains__(self, name: str) -> bool:
        return name in self.slots or super().__contains__(name)

    @property
    def names(self) -> tuple[str, ...]:
        pieces = {name + SLICE for name in self.slots}
        return tuple(dict.fromkeys((*self._order, *(name for name in super().names if name not in pieces))))

    @property
    def sizes(self) -> dict[str, int]:
        """The bytes that this rank has of each variable."""
        sizes = super().sizes
        return {name: sizes.get(name, 0) + sizes.get(name + SLICE, 0) for name in self.names}

    @property
    def common(self) -> Arrays:
        """Copies of the variables that each rank has all of."""
        return {name: self.read(name) for name in self.names if name not in self.slots}

    def read(self, name: str) -> Array:
        """A copy of a variable. Raises :class:`InputError` where only slices of it are here."""
        if name not in self.slots:
            return super().read(name)
        if self._whole is None or name not in self._whole:
            raise InputError(
                f"rank {self.ranks.rank} has a slice of {name} (sharded_optimizer=): trainer.gather() on all ranks "
                "brings the optimizer's state to rank 0, until the next update"
            )
        return np.array(self._whole[name])

    def write(self, name: str, array: Array) -> None:
        if name not in self.slots:
            super().write(name, array)
            return
        slot, parameter = self.slots[name]
        if slot.shape != array.shape or slot.dtype.numpy != array.dtype:
            raise InputError(f"variable {name} is {slot.type}, not {array.dtype}{list(array.shape)}")
        taken = self._slices[self.ranks.rank].get(parameter)
        if taken is not None:
            super().write(name + SLICE, array.reshape(-1)[taken])
        if self._whole:
            self._whole[name] = np.array(array)

    def gather(self) -> None:
        """Bring all slices to rank 0; all ranks call it."""
        if self._whole is not None:
            return
        ranks = self.ranks
        parts = [np.empty(sum(map(_nbytes, self._of(rank))), np.uint8) for rank in range(ranks.size)]
        mine, first = parts[ranks.rank], ranks.rank == 0
        for (slot, _), place in self._places(ranks.rank):
            mine[place] = super().read(slot.name + SLICE).view(np.uint8)
        sent = [mine if rank == 0 else None for rank in range(ranks.size)]
        ranks.wait(ranks.exchange(sent, list(parts) if first else [None] * ranks.size, SLICES))
        self._whole = self._joined(parts) if first else {}

    def forget(self) -> None:
        """Variables are about to be updated: what was gathered is of before."""
        self._whole = None

    def _joined(self, parts: Sequence[Array]) -> Arrays:
        """Whole variables from the slices of all ranks."""
        found = {name: np.empty(slot.shape, slot.dtype.numpy) for name, (slot, _) in self.slots.items()}
        for rank, part in enumerate(parts):
            for (slot, taken), place in self._places(rank):
                found[slot.name].reshape(-1)[taken] = part[place].view(slot.dtype.numpy)
        return found

    def _of(self, rank: int) -> list[tuple[Variable, slice]]:
        """A rank's slices."""
        slices = self._slices[rank]
        return [(slot, slices[parameter]) for slot, parameter in self.slots.values() if parameter in slices]

    def _places(self, rank: int) -> Iterator[tuple[tuple[Variable, slice], slice]]:
        """A rank's slices, and the bytes where each is in what it sends."""
        begin = 0
        for each in self._of(rank):
            yield each, slice(begin, begin + _nbytes(each))
            begin += _nbytes(each)


def _nbytes(each: tuple[Variable, slice]) -> int:
    slot, taken = each
    return int((taken.stop - taken.start) * slot.dtype.numpy.itemsize)
