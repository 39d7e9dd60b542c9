"""Initial values of parameters: a pure function of the seed, the parameter's name and its shape.

Random words come from Philox (Salmon et al., SC 2011) keyed by a hash of seed and name; they do not depend on the order
in which parameters are made.
"""

from __future__ import annotations

import hashlib
import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

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

    @abstractmethod
    def __call__(self, request: Request) -> Array:
        """The initial value, f64."""


@dataclass(frozen=True)
class Fill(Initializer):
    """The same number everywhere."""

    value: float

    def __call__(self, request: Request) -> Array:
        return np.full(request.shape, self.value)


zeros = Fill(0.0)
ones = Fill(1.0)


@dataclass(frozen=True)
class Normal(Initializer):
    """Normally distributed with mean 0."""

    std: float = 0.02

    def __call__(self, request: Request) -> Array:
        return self.std * normals(request)


@dataclass(frozen=True)
class FanIn(Initializer):
    """Uniform in ±1/√fan_in: PyTorch's default for linear layers and convolutions, weights and biases."""

    def __call__(self, request: Request) -> Array:
        return uniforms(request) / math.sqrt(max(request.fan_in, 1))


@dataclass(frozen=True)
class Scaled(Initializer):
    """Base of the two below: a spread that keeps the variance of signals, uniform or normal."""

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
        if self.distribution == "normal":
            return std * normals(request)
        return math.sqrt(3.0) * std * uniforms(request)


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
    words = _words(request, math.prod(request.shape))
    unit = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return (2.0 * unit - 1.0).reshape(request.shape)


def normals(request: Request) -> Array:
    """f64 standard normal numbers, by the transform of Box and Muller (1958)."""
    count = math.prod(request.shape)
    words = _words(request, 2 * count)
    unit = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    radius, angle = np.sqrt(-2.0 * np.log(unit[:count])), 2.0 * np.pi * unit[count:]
    return np.asarray(radius * np.cos(angle)).reshape(request.shape)


def _words(request: Request, count: int) -> Array:
    digest = hashlib.sha256(f"{request.seed}:{request.name}".encode()).digest()
    return np.random.Philox(key=np.frombuffer(digest[:16], np.uint64)).random_raw(count)
