"""Examples as a training step takes them: converted to the inputs' types, and augmented."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from glowtrain.datasets.augment import Augmentation, ExampleDraws
from glowtrain.datasets.stored import ExampleArray
from glowtrain.trainer.signature import BatchSignature
from glowtrain.types import Array


@dataclass(frozen=True)
class Preparation:
    """Converts examples, then changes them by each augmentation in its turn."""

    signature: BatchSignature
    augmentations: tuple[Augmentation, ...]
    seed: int

    def __call__(self, arrays: dict[str, Array], numbers: Array, epoch: int) -> dict[str, Array]:
        """Examples of these numbers in an epoch. Raises :class:`InputError` for what does not fit."""
        inputs, targets = self.signature.names
        arrays = self.signature.arrays(arrays, (*inputs, *targets))
        for stream, augmentation in enumerate(self.augmentations):
            arrays = augmentation(arrays, inputs, ExampleDraws(self.seed, epoch, stream, numbers))
        return {name: np.ascontiguousarray(array) for name, array in arrays.items()}

    def check(self, arrays: Mapping[str, ExampleArray]) -> None:
        """Raise :class:`InputError` for arrays that cannot be augmented so."""
        zeros = {name: np.zeros((2, *array.shape[1:]), array.dtype) for name, array in arrays.items()}
        self(zeros, np.arange(2), 0)
