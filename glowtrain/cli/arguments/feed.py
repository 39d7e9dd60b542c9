"""Which array of a file goes to which input of a model and target of its loss."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from glowtrain import data
from glowtrain.cli.arguments import options
from glowtrain.cli.arguments.models import class_metadata
from glowtrain.cli.terminal.console import note
from glowtrain.data import Dataset
from glowtrain.datasets.stored import ExampleArray, StoredArray, sample_of
from glowtrain.datasets.table import READERS
from glowtrain.errors import DataError, InputError
from glowtrain.graph import Graph, Template
from glowtrain.graph.specialise.template import example_of
from glowtrain.losses import Loss
from glowtrain.trainer.arrays import converted, mismatch, shaped, transposition, with_unit_axes
from glowtrain.trainer.feed import sources
from glowtrain.trainer.graphs import specs_of, target_specs
from glowtrain.trainer.settings import SAMPLE_WEIGHT
from glowtrain.types import Array, Spec


@dataclass(frozen=True)
class Stored:
    """The arrays of a data set as they are stored, before a model and its loss say which of them are examples; what
    ``labels`` are called, where somebody says, and the classes that they count, where these have names."""

    name: str
    train: Mapping[str, ExampleArray]
    valid: Mapping[str, ExampleArray]
    labels: str | None = None
    classes: tuple[str, ...] = ()
    weight: str | None = None
    """The array of weights of examples."""

    @property
    def metadata(self) -> dict[str, str]:
        """What a model says of the data that it has learnt from."""
        return class_metadata(self.classes)


@dataclass(frozen=True)
class DataOptions:
    """Where examples come from, and which arrays or columns they are."""

    data_dir: options.DataDir = None
    labels: options.Labels = None
    drop: options.Drop = field(default_factory=list)
    image_size: options.ImageSize = None
    channels: options.Channels = None

    def stored(self, name: str, weight: str | None = None, classes: tuple[str, ...] = ()) -> Stored:
        """The data set of a --data option, with the array or column of weights of examples, and with its labels
        numbered by the ``classes`` of the model that it goes to, where these have names. Raises :class:`DataError`, and
        :class:`InputError` for columns of what is no table."""
        of_images = Path(name).is_dir() and not data.holds_shards(name)
        if (self.image_size or self.channels) and not of_images:
            raise InputError(f"--image-size and --channels are for folders of images, which {name} is not")
        if Path(name).suffix in READERS:
            rows = data.table(name, self.labels, self.drop, weight, classes=classes)
            return Stored(rows.name, rows.train, rows.valid, None, rows.classes or classes, weight and SAMPLE_WEIGHT)
        if self.drop:
            raise InputError(f"--drop leaves columns of a table out ({', '.join(READERS)}), and not arrays of {name}")
        if of_images:
            found = data.images(name, image_size(self.image_size), channels=self.channels, classes=classes)
            return Stored(found.name, found.train, found.valid, self.labels, found.classes, weight)
        if name.endswith(".npz"):
            return Stored(name, *data.npz_parts(name), self.labels, classes, weight)
        known = data.load(name, self.data_dir)
        if Path(name).is_dir():
            _say_naming(known.train)
        return Stored(known.name, known.train, known.valid, self.labels, classes, weight)


def image_size(text: str | None) -> tuple[int, int] | None:
    """Height and width from ``32x48`` or ``32``. Raises :class:`InputError`."""
    if text is None:
        return None
    height, _, width = text.lower().partition("x")
    if not height.isdecimal() or not (width or height).isdecimal():
        raise InputError(f"--image-size {text}: write HEIGHTxWIDTH in pixels, for example 32x48, or 32 for a square")
    return int(height), int(width or height)


@dataclass(frozen=True)
class Fed:
    """The arrays that a model and its loss take, by the names of inputs and targets."""

    train: dict[str, ExampleArray]
    valid: dict[str, ExampleArray] | None
    sources: dict[str, str]
    """The name in the file of each."""

    def __len__(self) -> int:
        return data.count_examples(self.train)

    def explained(self, message: str) -> str:
        """A message about inputs and targets, with their names in the file where these are others."""
        renamed = [f"{name!r} is {source} in the data" for name, source in self.sources.items() if name != source]
        told = [text for text in renamed if text.split(" is ")[0] in message]
        return f"{message} ({', '.join(told)})" if told else message


def feed(stored: Stored, specs: Mapping[str, Spec], loss: Loss | None) -> Fed:
    """The training and validation arrays of a data set for a model and its loss, if there is one.

    Raises :class:`DataError` for arrays that are missing or no examples, :class:`InputError` for transposed ones.
    """
    targets, labels = loss.targets if loss else (), stored.labels
    taken = sources(stored.train, tuple(specs), targets, labels)
    _check_all(stored.train, taken, specs, targets, stored.name, labels)
    valid: dict[str, ExampleArray] = {}
    if any(source in stored.valid for source in taken.values()):
        there = {name: source for name, source in taken.items() if source in stored.valid}
        _check_all(stored.valid, there, specs, targets, f"{stored.name} (validation)", labels)
        valid = {source: stored.valid[source] for source in taken.values()}
    examples = Dataset(stored.name, {source: stored.train[source] for source in taken.values()}, valid)
    say_unused([name for name in stored.train if name not in (*taken.values(), stored.weight)])
    train = _fitted_examples(examples.train, taken, specs) | _weights_in(stored, stored.train)
    held = _fitted_examples(valid, taken, specs) | _weights_in(stored, stored.valid) if valid else None
    return Fed(train, held, taken)


def _weights_in(stored: Stored, part: Mapping[str, ExampleArray]) -> dict[str, ExampleArray]:
    """The weights of examples, which a part for validation may lack."""
    if stored.weight is None or (stored.weight not in part and part is stored.valid):
        return {}
    if stored.weight not in part:
        raise DataError(f"{stored.name} has no array {stored.weight!r} for --sample-weight; it has {', '.join(part)}")
    return {SAMPLE_WEIGHT: part[stored.weight]}


def examples_in(path: Path, names: Collection[str]) -> dict[str, Array]:
    """The arrays of a file by name: those that are called as inputs are, and of others what is not for validation."""
    everything = data.read_npz(path)
    return data.npz_parts(path)[0] | {name: everything[name] for name in names if name in everything}


def inputs_in(arrays: Mapping[str, Array], network: Graph | Template) -> dict[str, Array]:
    """The arrays of a file that inputs take, fitted to them. Raises :class:`DataError` and :class:`InputError`."""
    specs = specs_of(network)
    structures = network.structures if isinstance(network, Template) else {}
    plain = {name: array for name, array in arrays.items() if name not in structures}
    taken = sources(plain, tuple(specs), ())
    _check_all(plain, taken, specs, (), "the input", None)
    say_unused([name for name in plain if name not in taken.values()])
    structured = {name: arrays[name] for name in structures if name in arrays}
    return _fitted(plain, taken, specs) | structured


def some_inputs_in(arrays: Mapping[str, Array], network: Graph | Template, loss: Loss | None) -> dict[str, Array]:
    """Those inputs and targets that a file has an array for, fitted to them.

    What is neither keeps its name, unless nothing is missing: then it is left out.
    """
    specs, targets = specs_of(network), loss.targets if loss else ()
    named = sources(arrays, tuple(specs), targets)
    taken = {name: source for name, source in named.items() if source in (name, "x", "y")}
    found = _fitted(arrays, taken, specs)
    if loss is not None and any(name in taken for name in targets):
        wanted = target_specs(network if isinstance(network, Graph) else example_of(network), loss)
        for name, spec in wanted.items():
            if name in taken:
                found[name] = with_unit_axes(converted(taken[name], found[name], spec.dtype), spec)
    unused = [name for name in arrays if name not in taken.values()]
    if all(name in taken for name in (*specs, *targets)):
        say_unused(unused)
        return found
    return found | {name: arrays[name] for name in unused}


def say_unused(names: Collection[str]) -> None:
    """Say which arrays nothing takes: it may be a name that is misspelt."""
    if names:
        note(f"not used: {', '.join(names)}")


def _say_naming(names: Collection[str]) -> None:
    """Say how shards are called, where arrays of a folder differ by a number alone: they may be meant for such."""
    if len({re.sub(r"\d+", "", name) for name in names}) < len(names):
        note(f"{', '.join(names)} are arrays of their own; shards of one are called NAME-SHARD.npy, as x-000.npy")


def fitted(name: str, array: Array, spec: Spec) -> Array:
    """An array as an input takes it. Raises :class:`InputError` where its axes are in another order."""
    array = shaped(array, spec)
    if transposition(array.shape, spec):
        raise InputError(mismatch(name, array, spec))
    return converted(name, array, spec.dtype)


def _fitted_examples(
    part: Mapping[str, ExampleArray], taken: Mapping[str, str], specs: Mapping[str, Spec]
) -> dict[str, ExampleArray]:
    """:func:`_fitted` for arrays that need not be in memory: those that are not are converted batch by batch."""
    stored = {name: part[source] for name, source in taken.items() if isinstance(part[source], StoredArray)}
    for name in stored.keys() & specs.keys():
        fitted(taken[name], sample_of(stored[name]), specs[name])
    there = {source: array for source, array in part.items() if not isinstance(array, StoredArray)}
    plain = _fitted(there, {name: source for name, source in taken.items() if source in there}, specs)
    return {name: stored[name] if name in stored else plain[name] for name in taken}


def _fitted(part: Mapping[str, Array], taken: Mapping[str, str], specs: Mapping[str, Spec]) -> dict[str, Array]:
    """The arrays by the names of inputs, as these take them, and of targets, as they are."""
    return {
        name: fitted(source, part[source], specs[name]) if name in specs else part[source]
        for name, source in taken.items()
    }


def _check_all(
    part: Mapping[str, ExampleArray], taken: Mapping[str, str], specs: Mapping[str, Spec], targets: Collection[str],
    title: str, labels: str | None,
) -> None:  # fmt: skip
    """Raise :class:`DataError` unless each input and each target has an array."""
    listed = ", ".join(f"{name} {array.dtype}{list(array.shape)}" for name, array in part.items()) or "no arrays"
    for name, spec in specs.items():
        if name not in taken:
            raise DataError(f"{title} has {listed}, but no array for the model's input {name!r} ({spec})")
    for name in targets:
        if name not in taken:
            wanted = labels or ("y" if len(targets) == 1 else name)
            advice = "; name it with --labels" if len(targets) == 1 else ""
            raise DataError(f"{title} has {listed}, but no {wanted!r} for the loss{advice}")
