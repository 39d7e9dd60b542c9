"""Sources of batches: lists of them, and loaders like PyTorch's that need no PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import glowtrain as gt
from tests.training.trainers import Points

Batch = tuple[np.ndarray, np.ndarray]


def cut(points: Points, size: int = 4) -> list[Batch]:
    """The batches that ``fit`` cuts out of arrays without shuffling."""
    x, y = points
    return [(x[start : start + size], y[start : start + size]) for start in range(0, len(x), size)]


def as_dicts(batches: list[Batch]) -> list[dict[str, np.ndarray]]:
    return [{"labels": y, "x": x} for x, y in batches]


def bits(trainer: gt.Trainer) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in trainer.variables().items()}


class Loader:
    """A loader with a length, in an order that it draws for each epoch anew."""

    def __init__(self, batches: list[Batch], seed: int = 0) -> None:
        self.batches = batches
        self.random = np.random.default_rng(seed)

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Batch]:
        order = self.random.permutation(len(self.batches))
        return (self.batches[number] for number in order)


class StatefulLoader(Loader):
    """One that says where it is, and can be set there, as torchdata's StatefulDataLoader: also with arrays in it."""

    order: np.ndarray | None = None
    done = 0

    def __iter__(self) -> Iterator[Batch]:
        if self.order is None:
            self.order, self.done = self.random.permutation(len(self.batches)), 0
        for number in self.order[self.done :]:
            self.done += 1
            yield self.batches[number]
        self.order = None

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order, "done": self.done, 0: (self.random.bit_generator.state,)}

    def load_state_dict(self, state: dict[Any, Any]) -> None:
        self.order, self.done = state["order"], state["done"]
        (self.random.bit_generator.state,) = state[0]


class FakeTensor:
    """What is seen of a PyTorch tensor without PyTorch."""

    layout = "torch.strided"

    def __init__(self, array: np.ndarray, device: str = "cpu", requires_grad: bool = False) -> None:
        self.array = array
        self.device = device
        self.requires_grad = requires_grad

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.array)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if self.device != "cpu":
            raise TypeError("can't convert cuda:0 device type tensor to numpy")
        if self.requires_grad:
            raise RuntimeError("Can't call numpy() on Tensor that requires grad")
        return self.array
