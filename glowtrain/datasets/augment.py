"""Augmentation: examples are changed at random before a training step takes them.

What is drawn for an example is a function of the trainer's seed, the epoch, the augmentation's place in the list and
the example's number: not of the batch size, of threads, or of where a run goes on. Mixing takes pairs that follow each
other in the epoch's order. All draws are integer arithmetic and tables, so they are the same on every machine.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

import numpy as np

from glowtrain.errors import InputError
from glowtrain.presentation.messages import kind_of
from glowtrain.types import Array

GOLDEN = 0x9E3779B97F4A7C15
"""What SplitMix64 adds from one integer to the next: 2**64 over the golden ratio."""

Arrays = Mapping[str, Array]


@dataclass(frozen=True)
class ExampleDraws:
    """Random numbers for examples of these ``numbers``, the same whichever others there are; ``stream`` keeps those of
    several augmentations apart."""

    seed: int
    epoch: int
    stream: int
    numbers: Array

    def integers(self, count: int) -> Array:
        """So many 64-bit integers for each example, u64[n, count].

        Source: Steele, Lea, Flood, Fast Splittable Pseudorandom Number Generators (OOPSLA 2014), fig. 17.
        """
        state = self.numbers.astype(np.uint64)
        for key in (self.seed, self.epoch, self.stream):
            state = _mix(state + np.uint64((key + 1) * GOLDEN % 2**64))
        steps = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(GOLDEN)
        return _mix(state[:, None] + steps)

    def uniform(self, count: int) -> Array:
        """So many numbers in [0, 1) for each example, f64[n, count]."""
        fractions: Array = (self.integers(count) >> np.uint64(11)) * 2.0**-53
        return fractions

    def normal(self, shape: Sequence[int]) -> Array:
        """Numbers of the standard normal distribution for each example, f32[n, *shape]: quantiles of 16 bits."""
        count = math.prod(shape)
        parts = self.integers(-(-count // 4)).astype("<u8").view("<u2")[:, :count]
        quantiles: Array = _quantiles()[parts].reshape(len(self.numbers), *shape)
        return quantiles

    def beta(self, alpha: float) -> Array:
        """Numbers of the distribution Beta(alpha, alpha), one for each example, f32[n]."""
        uniform = self.uniform(1)[:, 0]
        small = np.interp(np.minimum(uniform, 1 - uniform), *_beta(alpha)) ** (1 / alpha)
        shares: Array = np.where(uniform < 0.5, small, 1 - small).astype(np.float32)
        return shares


def _mix(integers: Array) -> Array:
    integers = (integers ^ (integers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    integers = (integers ^ (integers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = integers ^ (integers >> np.uint64(31))
    return mixed


@lru_cache(maxsize=1)
def _quantiles() -> Array:
    """The standard normal distribution's quantiles at 2**16 levels, f32."""
    upper = np.array([NormalDist().inv_cdf((level + 0.5) / 2**16) for level in range(2**15, 2**16)], np.float32)
    return np.concatenate([-upper[::-1], upper])


@lru_cache(maxsize=16)
def _beta(alpha: float) -> tuple[Array, Array]:
    """Levels of the lower half of Beta(alpha, alpha), and x**alpha there: in that the density is bounded for any alpha,
    alpha t**(alpha-1) dt being d(t**alpha)."""
    powers = np.linspace(0, 0.5**alpha, 1 << 12)
    density = (1 - powers ** (1 / alpha)) ** (alpha - 1)
    levels = np.concatenate([[0], np.cumsum(density[1:] + density[:-1])])
    return levels / levels[-1] / 2, powers


class Augmentation(ABC):
    """What changes examples. Subclasses are frozen dataclasses, whose first field is what a name's ``=`` sets."""

    @abstractmethod
    def __call__(self, arrays: Arrays, inputs: Collection[str], draw: ExampleDraws) -> dict[str, Array]:
        """The arrays by name, changed; ``inputs`` are those of the model, the others targets. Examples 2k and 2k + 1
        may be mixed. Raises :class:`InputError` for arrays of other kinds than it changes."""


@dataclass(frozen=True)
class Flip(Augmentation):
    """Mirror images: ``"horizontal"`` (left and right) or ``"vertical"``, with a probability."""

    direction: str = "horizontal"
    probability: float = 0.5

    def __post_init__(self) -> None:
        _check(self.direction in ("horizontal", "vertical"), "Flip", 'direction "horizontal" or "vertical"', self)
        _check(0 <= self.probability <= 1, "Flip", "a probability from 0 to 1", self)

    def __call__(self, arrays: Arrays, inputs: Collection[str], draw: ExampleDraws) -> dict[str, Array]:
        chosen, axis = draw.uniform(1)[:, 0] < self.probability, -1 if self.direction == "horizontal" else -2
        return _on_images(
            self, arrays, inputs, lambda image, _: np.where(_along(chosen, image), np.flip(image, axis), image)
        )


@dataclass(frozen=True)
class Crop(Augmentation):
    """Shift images by up to ``padding`` pixels in each direction: cut them out of padded ones. Inputs are padded by
    ``value``, masks by what is at their edges."""

    padding: int = 4
    value: float = 0.0

    def __post_init__(self) -> None:
        _check(self.padding > 0 and self.padding % 1 == 0, "Crop", "a padding of at least one pixel", self)

    def __call__(self, arrays: Arrays, inputs: Collection[str], draw: ExampleDraws) -> dict[str, Array]:
        down, right = (draw.uniform(2) * (2 * self.padding + 1)).astype(np.int64).T

        def cut(image: Array, is_input: bool) -> Array:
            mode: dict[str, Any] = {"constant_values": self.value} if is_input else {"mode": "edge"}
            wide = np.pad(image, [(0, 0)] * (image.ndim - 2) + [(self.padding, self.padding)] * 2, **mode)
            shifts = np.lib.stride_tricks.sliding_window_view(wide, image.shape[-2:], axis=(-2, -1))
            chosen: Array = shifts[np.arange(len(image)), *[slice(None)] * (image.ndim - 3), down, right]
            return chosen

        return _on_images(self, arrays, inputs, cut)


@dataclass(frozen=True)
class Noise(Augmentation):
    """Add normal noise of a standard deviation to all inputs of floats."""

    deviation: float = 0.1

    def __post_init__(self) -> None:
        _check(0 <= self.deviation < math.inf, "Noise", "a standard deviation that is not negative", self)

    def __call__(self, arrays: Arrays, inputs: Collection[str], draw: ExampleDraws) -> dict[str, Array]:
        floats = [name for name in inputs if _is_float(arrays[name])]
        if not floats:
            raise InputError(f"augment: {self} is added to inputs of floats, and the model has none")
        changed = {}
        for stream, name in enumerate(floats):
            own = dataclasses.replace(draw, stream=draw.stream + (stream << 16))
            noise = own.normal(arrays[name].shape[1:]) * np.float32(self.deviation)
            changed[name] = (arrays[name] + noise).astype(arrays[name].dtype)
        return {**arrays, **changed}


@dataclass(frozen=True)
class MixUp(Augmentation):
    """Mix each example with another, inputs and targets, by shares of the distribution Beta(alpha, alpha).

    Source: Zhang et al., mixup: Beyond Empirical Risk Minimization (2018).
    """

    alpha: float = 0.2

    def __post_init__(self) -> None:
        _check(0 < self.alpha < math.inf, "MixUp", "an alpha above 0", self)

    def __call__(self, arrays: Arrays, inputs: Collection[str], draw: ExampleDraws) -> dict[str, Array]:
        share = draw.beta(self.alpha)
        if whole := [name for name in inputs if not _is_float(arrays[name])]:
            raise InputError(f"augment: {self} mixes inputs of floats, and {whole[0]!r} is {arrays[whole[0]].dtype}")
        return {name: _mixed(self, name, array, share) for name, array in arrays.items()}


@dataclass(frozen=True)
class CutMix(Augmentation):
    """Paste a rectangle of another image into each, and mix targets by the areas, of which one has the distribution
    Beta(alpha, alpha) before what is outside of the image is cut off. Masks are pasted, too.

    Source: Yun et al., CutMix (2019).
    """

    alpha: float = 1.0

    def __post_init__(self) -> None:
        _check(0 < self.alpha < math.inf, "CutMix", "an alpha above 0", self)

    def __call__(self, arrays: Arrays, inputs: Collection[str], draw: ExampleDraws) -> dict[str, Array]:
        images = _images(self, arrays, inputs)
        height, width = arrays[images[0]].shape[-2:]
        size = np.sqrt(1 - draw.beta(self.alpha))
        own = dataclasses.replace(draw, stream=draw.stream + (1 << 16)).uniform(2)
        rows, columns = (_span(own[:, axis], size, extent) for axis, extent in enumerate((height, width)))
        box = rows[:, :, None] & columns[:, None, :]
        share = (1 - box.mean(axis=(1, 2))).astype(np.float32)
        changed = {
            name: np.where(box if array.ndim == 3 else box[:, None], array[_partners(array)], array)
            for name, array in arrays.items() if name in images
        }  # fmt: skip
        targets = [name for name in arrays if name not in images and name not in inputs]
        return {**arrays, **changed, **{name: _mixed(self, name, arrays[name], share) for name in targets}}


NAMED: dict[str, type[Augmentation]] = {
    "flip": Flip, "crop": Crop, "noise": Noise, "mixup": MixUp, "cutmix": CutMix,
}  # fmt: skip
"""The augmentations by name."""


def as_augmentations(augment: Any) -> tuple[Augmentation, ...]:
    """Augmentations from one or several of them, or of their names: ``["flip", "crop=4"]``. Raises
    :class:`InputError`."""
    several = [augment] if isinstance(augment, (str, Augmentation)) else augment
    if not isinstance(several, (list, tuple)):
        raise InputError(
            f"augment is a list of augmentations (gt.data.Flip()) or of their names, not {kind_of(augment)}"
        )
    return tuple(each if isinstance(each, Augmentation) else _by_name(each) for each in several)


def _by_name(text: object) -> Augmentation:
    name, _, value = text.partition("=") if isinstance(text, str) else ("", "", "")
    if name not in NAMED:
        raise InputError(f"augment: there is no {text!r}: choose from {', '.join(NAMED)}, with a number as in crop=4")
    plain: Any = NAMED[name]()
    field = dataclasses.fields(plain)[0].name
    default = getattr(plain, field)
    try:
        named: Augmentation = dataclasses.replace(plain, **{field: type(default)(value)}) if value else plain
    except ValueError:
        raise InputError(f"augment: {text!r}: {field} is a number, as in {name}={default}") from None
    return named


def _check(right: bool, name: str, rule: str, given: object) -> None:
    if not right:
        raise InputError(f"{name} takes {rule}, not {given}")


def _is_float(array: Array) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _along(values: Array, array: Array) -> Array:
    """One value for each example, as it stands beside an array."""
    return values.reshape(-1, *[1] * (array.ndim - 1))


def _images(what: object, arrays: Arrays, inputs: Collection[str]) -> list[str]:
    """The names of images, [n, channels, height, width], and of what has their height and width (masks): the first is
    an input."""
    first = next((name for name in inputs if arrays[name].ndim == 4), None)
    if first is None:
        raise InputError(f"augment: {what} is for images [batch, channels, height, width], and no input has four axes")
    extents = arrays[first].shape[-2:]
    others = (name for name, array in arrays.items() if array.ndim in (3, 4) and array.shape[-2:] == extents)
    return [first, *(name for name in others if name != first)]


def _on_images(
    what: object, arrays: Arrays, inputs: Collection[str], change: Callable[[Array, bool], Array]
) -> dict[str, Array]:
    """The arrays, of which images and masks are changed; ``change`` is told whether one is an input."""
    return {**arrays, **{name: change(arrays[name], name in inputs) for name in _images(what, arrays, inputs)}}


def _partners(array: Array) -> Array:
    """For each example the other of its pair; an odd last one is its own."""
    partners: Array = np.minimum(np.arange(len(array)) ^ 1, len(array) - 1)
    return partners


def _mixed(what: object, name: str, array: Array, share: Array) -> Array:
    """A share of each example, and the rest of its partner. Raises :class:`InputError` for labels."""
    if not _is_float(array):
        raise InputError(
            f"augment: {what} mixes targets, and {name!r} is {array.dtype}: train with soft_target_cross_entropy, "
            "which takes labels and makes vectors of them, or give bce_with_logits, kl or mse targets of floats"
        )
    own = _along(share, array)
    mixed: Array = (own * array + (1 - own) * array[_partners(array)]).astype(array.dtype)
    return mixed


def _span(centre: Array, size: Array, extent: int) -> Array:
    """Which of ``extent`` pixels are within spans of a relative size around relative centres: bool[n, extent]."""
    pixels = (np.arange(extent) + 0.5) / extent
    within: Array = np.abs(pixels - centre[:, None]) < size[:, None] / 2
    return within
