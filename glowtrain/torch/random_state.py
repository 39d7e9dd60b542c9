"""The random state of a traced module: our counter-based generator, not PyTorch's."""

from __future__ import annotations

from itertools import count

import numpy as np

from glowtrain.graph import Input, Value, Variable, constant
from glowtrain.modes.training_and_inference import COUNTER, SEED
from glowtrain.types import TensorType, i64


class Draws:
    """A stream of its own for each random operator, under one ``seed`` and ``counter``."""

    def __init__(self, seed: Value, counter: Value) -> None:
        self.seed = seed
        self.counter = counter
        self._streams = count()
        self.used = False

    def stream(self) -> int:
        """The number of the next draw."""
        self.used = True
        return next(self._streams)


class RandomState(Draws):
    """The variables that random operators read, and a stream of its own for each of them.

    The seed is PyTorch's (``torch.manual_seed``), the counter counts steps, from ``draws`` on.
    """

    def __init__(self, seed: int, draws: int = 0) -> None:
        # PyTorch's seeds have 64 bits, with or without sign
        bits = np.array(seed & (1 << 64) - 1, np.uint64).view(np.int64)
        self._counter = Variable(COUNTER, np.array(draws, np.int64), trainable=False)
        super().__init__(Variable(SEED, bits, trainable=False), self._counter)

    @property
    def updates(self) -> dict[Variable, Value]:
        """What a step changes: the next one draws other numbers."""
        return {self._counter: self._counter + 1} if self.used else {}


class RandomKey(Draws):
    """Random numbers under a seed that each call is given, as ``key``."""

    def __init__(self) -> None:
        self.key = Input(TensorType(i64), "key")
        super().__init__(self.key, constant(0, i64))
