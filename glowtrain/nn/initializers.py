"""Initial values of parameters: a pure function of the seed, the parameter's name and its shape.

Random words come from Philox (Salmon et al., SC 2011) keyed by a hash of seed and name; they do not depend on the order
in which parameters are made.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from glowtrain.errors import InputError
from glowtrain.types import Array, Shape


@dataclass(frozen=True)
class Request:
    """A parameter to be filled. ``fan_in``, ``fan_out``: inputs per output and outputs per input of its layer."""

    seed: int
    name: str
    shape: Shape
    fan_in: int
    fan_out: int


class Initializer(ABC):
    """A rule for initial values."""

    repeatable: ClassVar[bool] = False
    """Whether the same request always gives the same values: then they are not kept, but drawn again when wanted."""

    def __init_subclass__(cls) -> None:
        """What draws in another way than its base says itself whether it is repeatable."""
        if "__call__" in vars(cls) and "repeatable" not in vars(cls):
            cls.repeatable = False

    @abstractmethod
    def __call__(self, request: Request) -> Array:
        """The initial value, f64."""


@dataclass(frozen=True)
class Fill(Initializer):
    """The same number everywhere."""

    repeatable = True

    value: float

    def __call__(self, request: Request) -> Array:
        return np.full(request.shape, self.value)


zeros = Fill(0.0)
ones = Fill(1.0)


@dataclass(frozen=True)
class Normal(Initializer):
    """Normally distributed with mean 0."""

    repeatable = True

    std: float = 0.02

    def __call__(self, request: Request) -> Array:
        values = normals(request)
        values *= self.std
        return values


@dataclass(frozen=True)
class FanIn(Initializer):
    """Uniform in ±1/√fan_in: PyTorch's default for linear layers and convolutions, weights and biases."""

    repeatable = True

    def __call__(self, request: Request) -> Array:
        values = uniforms(request)
        values /= math.sqrt(max(request.fan_in, 1))
        return values


@dataclass(frozen=True)
class Scaled(Initializer):
    """Base of the two below: a spread that keeps the variance of signals, uniform or normal."""

    repeatable = True

    gain: float = 1.0
    distribution: str = "uniform"

    def __post_init__(self) -> None:
        if self.distribution not in ("uniform", "normal"):
            raise InputError(
                f'{type(self).__name__}: distribution must be "uniform" or "normal", not {self.distribution!r}'
            )

    @abstractmethod
    def fan(self, request: Request) -> float:
        """The number by which the variance is divided."""

    def __call__(self, request: Request) -> Array:
        std = self.gain / math.sqrt(max(self.fan(request), 1.0))
        normal = self.distribution == "normal"
        values = normals(request) if normal else uniforms(request)
        values *= std if normal else math.sqrt(3.0) * std
        return values


@dataclass(frozen=True)
class Kaiming(Scaled):
    """Standard deviation gain / √fan_in, with a gain of √2 for layers before a ReLU.

    Source: He et al., Delving Deep into Rectifiers (ICCV 2015), eq. 10.
    """

    gain: float = math.sqrt(2.0)

    def fan(self, request: Request) -> float:
        return request.fan_in


@dataclass(frozen=True)
class Xavier(Scaled):
    """Standard deviation gain / √((fan_in + fan_out) / 2).

    Source: Glorot and Bengio, Understanding the difficulty of training deep feedforward neural networks (AISTATS 2010),
    eq. 16.
    """

    def fan(self, request: Request) -> float:
        return (request.fan_in + request.fan_out) / 2


def uniforms(request: Request) -> Array:
    """f64 numbers in (-1, 1), 53 bits each."""
    values = _units(request, math.prod(request.shape))
    values *= 2.0
    values -= 1.0
    return values.reshape(request.shape)


def normals(request: Request) -> Array:
    """f64 standard normal numbers, by the transform of Box and Muller (1958)."""
    count = math.prod(request.shape)
    unit = _units(request, 2 * count)
    radius, angle = np.sqrt(-2.0 * np.log(unit[:count])), 2.0 * np.pi * unit[count:]
    return np.asarray(radius * np.cos(angle)).reshape(request.shape)


def _units(request: Request, count: int) -> Array:
    """f64 numbers in (0, 1), 53 bits each; in place, as there may be many."""
    digest = hashlib.sha256(f"{request.seed}:{request.name}".encode()).digest()
    words = np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)).random_raw(count)
    words >>= np.uint64(11)
    values: Array = words.astype(np.float64)
    values += 0.5
    values *= 2.0**-53
    return values
