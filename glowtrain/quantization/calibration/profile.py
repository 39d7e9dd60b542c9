"""The profile: what was observed of each value of a model while it ran over calibration data.

A profile is a JSON file, for people too: one object per value with its least and greatest element, their moving
averages, counts, and a histogram. It is independent of schemes and methods, so one calibration serves many of them.
What makes each value is written down too, so that the profile of another model is noticed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain.errors import QuantizationError
from glowtrain.files import write_atomically
from glowtrain.graph import Graph
from glowtrain.quantization.calibration.provenance import Provenance, provenances
from glowtrain.types import Array

FORMAT = "glowtrain.profile"
VERSION = 1


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts of elements in bins of one width between ``low`` and ``high``."""

    low: float
    high: float
    counts: Array

    @property
    def edges(self) -> Array:
        """The ends of the bins, one more than there are bins."""
        return np.linspace(self.low, self.high, len(self.counts) + 1)

    @property
    def centres(self) -> Array:
        edges = self.edges
        middles: Array = (edges[1:] + edges[:-1]) / 2
        return middles


@dataclass(frozen=True, eq=False)
class Observed:
    """What was observed of one value: its least and greatest element, the moving averages of those of each batch, and
    the number of elements, of batches, and of elements that are NaN or infinite (which count as 0 elsewhere).

    ``provenance`` says what made it (see :mod:`~glowtrain.quantization.calibration.provenance`); empty in files
    from before there was one.
    """

    low: float
    high: float
    average_low: float
    average_high: float
    elements: int
    batches: int
    nonfinite: int = 0
    histogram: Histogram | None = None
    provenance: Provenance = field(default_factory=Provenance)

    def check(self, name: str) -> None:
        """Raise :class:`QuantizationError` if there is no range: nothing was observed, or elements are not finite."""
        if not self.elements:
            raise QuantizationError(
                f"{name}: no element was observed, so it has no range; calibrate with data that reach it, or keep what "
                f"reads it in float (keep=...)"
            )
        if self.nonfinite:
            raise QuantizationError(
                f"{name}: {self.nonfinite:,} of {self.elements:,} observed elements are NaN or infinite, so it has no "
                f"range; look at the calibration data, or keep what reads it in float (keep=...)"
            )

    def required_histogram(self) -> Histogram:
        """The histogram. Raises :class:`QuantizationError` if it was not recorded."""
        if self.histogram is None:
            raise QuantizationError("the profile has no histograms, which this method needs; calibrate with histograms")
        return self.histogram

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        plain: dict[str, Any] = {
            "low": self.low,
            "high": self.high,
            "average_low": self.average_low,
            "average_high": self.average_high,
            "elements": self.elements,
            "batches": self.batches,
            "nonfinite": self.nonfinite,
        }
        plain.update({name: text for name, text in asdict(self.provenance).items() if text})
        if self.histogram is not None:
            counts = [int(count) for count in self.histogram.counts]
            plain["histogram"] = {"low": self.histogram.low, "high": self.histogram.high, "counts": counts}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> Observed:
        """The inverse of :meth:`to_json`. Raises ``KeyError``, ``TypeError`` or ``ValueError``."""
        histogram = plain.get("histogram")
        return cls(
            *_range_of(plain, "low", "high"),
            *_range_of(plain, "average_low", "average_high"),
            **{name: _count(plain, name) for name in ("elements", "batches", "nonfinite")},
            histogram=None if histogram is None else _histogram(histogram),
            provenance=Provenance(str(plain.get("made_by", "")), str(plain.get("weights", ""))),
        )


def _range_of(plain: Mapping[str, Any], first: str, last: str) -> tuple[float, float]:
    low, high = float(plain[first]), float(plain[last])
    if not (math.isfinite(low) and math.isfinite(high) and low <= high):
        raise ValueError(f"{first} and {last} must be finite numbers in this order, not {low:g} and {high:g}")
    return low, high


def _count(plain: Mapping[str, Any], name: str) -> int:
    if int(plain[name]) < 0:
        raise ValueError(f"{name} must not be negative, as {plain[name]} is")
    return int(plain[name])


def _histogram(plain: Mapping[str, Any]) -> Histogram:
    counts = np.array(plain["counts"], np.int64)
    if counts.ndim != 1 or not counts.size or counts.min() < 0 or not counts.any():
        raise ValueError("counts must be a list of whole numbers from 0 up, and not all be 0")
    return Histogram(*_range_of(plain, "low", "high"), counts)


@dataclass(frozen=True)
class Difference:
    """A value that two profiles tell differently of; ``None`` where one does not know it. ``change`` is the larger move
    of an end, over the width of the first range."""

    name: str
    before: tuple[float, float] | None
    after: tuple[float, float] | None
    change: float


@dataclass(frozen=True, eq=False)
class Profile:
    """What was observed of the values of a model, by name.

    It belongs to a model with certain weights, and :meth:`check_model` tells others, also where their values have the
    same names: by the operator that makes a value with the types of its parameters, and by a digest of these
    parameters, as ranges follow weights. :func:`~glowtrain.quantization.quantize` refuses such a profile;
    :func:`~glowtrain.quantization.prepare_training` takes it, since weights may have been trained since. How operators
    are connected and their other attributes are not compared: they may differ from one batch size to another.
    """

    values: Mapping[str, Observed] = field(default_factory=dict)
    model: str = ""
    examples: int = 0
    file: str = ""

    def __getitem__(self, name: str) -> Observed:
        """Raises :class:`QuantizationError` for a value that was not observed."""
        if name not in self.values:
            names = list(self.values)
            known = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
            why = f"it has {known}: was it made from another model?" if names else "it is empty."
            raise QuantizationError(f"{self.title} does not know {name!r}; {why} Calibrate this one")
        return self.values[name]

    @property
    def title(self) -> str:
        """What messages call it: its model and the file that it was read from."""
        return f"the profile of {self.model or 'a model'}" + (f" in {self.file}" if self.file else "")

    def __iter__(self) -> Iterator[str]:
        return iter(self.values)

    def __len__(self) -> int:
        return len(self.values)

    def check_model(self, graph: Graph) -> None:
        """Raise :class:`QuantizationError`, saying what differs, if the profile is of another model than ``graph``
        (folded, its values named), or of other weights. Values without a provenance are not compared."""
        known = {name: self.values[name].provenance for name in self if self.values[name].provenance.made_by}
        values = {value.name: value for value in (*graph.inputs, *(v for node in graph.nodes for v in node.outputs))}
        own = provenances(graph, {name: values[name] for name in known if name in values})
        whose = self.title
        others = [name for name in own if own[name].made_by != known[name].made_by]
        if others:
            first = others[0]
            raise QuantizationError(
                f"{whose} is of another model than {graph.name}: {first!r} is made by {known[first].made_by} there, by "
                f"{own[first].made_by} here{_and_more(others)}; calibrate this one"
            )
        changed = [name for name in own if own[name].weights != known[name].weights]
        if changed:
            raise QuantizationError(
                f"{whose} was taken with other weights: those that make {changed[0]!r}{_and_more(changed)} differ from "
                f"{graph.name}'s; calibrate again"
            )

    def differences(self, other: Profile, threshold: float = 0.05) -> list[Difference]:
        """Values whose range another profile moves by more than ``threshold`` of its width, the largest change first,
        and values that only one of them knows."""
        found = []
        for name in dict.fromkeys((*self, *other)):
            before, after = (_range(profile.values.get(name)) for profile in (self, other))
            change = _change(before, after)
            if change > threshold:
                found.append(Difference(name, before, after, change))
        return sorted(found, key=lambda difference: -difference.change)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a JSON file. Raises :class:`QuantizationError` if it cannot be written."""
        values = {name: observed.to_json() for name, observed in self.values.items()}
        plain = {"format": FORMAT, "version": VERSION, "model": self.model, "examples": self.examples, "values": values}
        lines = json.dumps(plain, indent=1, allow_nan=False).encode()
        try:
            write_atomically(Path(path), lines)
        except OSError as error:
            raise QuantizationError(f"cannot write the profile {path}: {error.strerror}") from None

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Profile:
        """Read what :meth:`save` wrote. Raises :class:`QuantizationError` with what is wrong with the file."""
        try:
            plain = json.loads(Path(path).read_bytes())
        except OSError as error:
            raise QuantizationError(f"cannot read the profile {path}: {error.strerror}") from None
        except ValueError as error:
            raise QuantizationError(f"{path} is not a profile: it is not JSON: {error}") from None
        if not isinstance(plain, dict) or plain.get("format") != FORMAT or plain.get("version") != VERSION:
            raise QuantizationError(f"{path} is not a profile of version {VERSION}; `glowtrain quantize` writes them")
        try:
            if not isinstance(plain["values"], dict):
                raise TypeError(f"values must be an object, not a {type(plain['values']).__name__}")
            entries = {str(name): entry for name, entry in plain["values"].items()}
            about = str(plain["model"]), int(plain["examples"])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise QuantizationError(f"{path} is a broken profile: {type(error).__name__} {error}") from None
        return cls({name: _entry(path, name, entry) for name, entry in entries.items()}, *about, os.fspath(path))


def _entry(path: str | os.PathLike[str], name: str, plain: Any) -> Observed:
    try:
        return Observed.from_json(plain)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise QuantizationError(f"{path} is a broken profile: {name!r}: {type(error).__name__} {error}") from None


def _and_more(names: Sequence[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


def _range(observed: Observed | None) -> tuple[float, float] | None:
    return None if observed is None else (observed.low, observed.high)


def _change(before: tuple[float, float] | None, after: tuple[float, float] | None) -> float:
    if before is None or after is None:
        return math.inf
    width = before[1] - before[0]
    moved = max(abs(before[0] - after[0]), abs(before[1] - after[1]))
    if not moved:
        return 0.0
    return moved / width if width else math.inf
