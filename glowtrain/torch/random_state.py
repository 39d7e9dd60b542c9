"""Where a traced module's random numbers come from: our counter-based generator, not PyTorch's."""

from __future__ import annotations

from itertools import count

import numpy as np

from glowtrain.graph import Value, Variable
from glowtrain.modes.training_and_inference import COUNTER, SEED


class RandomState:
    """The variables that random operators read, and a stream of its own for each of them.

    The seed is PyTorch's (``torch.manual_seed``), the counter counts steps.
    """

    def __init__(self, seed: int) -> None:
        # PyTorch's seeds have 64 bits, with or without sign
        self.seed = Variable(SEED, np.array(seed & (1 << 64) - 1, np.uint64).view(np.int64), trainable=False)
        self.counter = Variable(COUNTER, np.array(0, np.int64), trainable=False)
        self._streams = count()
        self.used = False

    def stream(self) -> int:
        """The number of the next draw."""
        self.used = True
        return next(self._streams)

    @property
    def updates(self) -> dict[Variable, Value]:
        """What a step changes: the next one draws other numbers."""
        return {self.counter: self.counter + 1} if self.used else {}
