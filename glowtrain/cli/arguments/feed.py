"""Which array of a file goes to which input of a model and target of its loss."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from glowtrain import data
from glowtrain.cli.arguments.models import NOTHING, TrainedOn
from glowtrain.cli.terminal.console import note
from glowtrain.data import Dataset
from glowtrain.datasets.images import image_files, read_files
from glowtrain.datasets.stored import ExampleArray, StoredArray, sample_of
from glowtrain.datasets.table import READERS
from glowtrain.errors import DataError, InputError
from glowtrain.graph import Graph, HostedModel, Template
from glowtrain.graph.specialise.template import example_of
from glowtrain.losses import Loss
from glowtrain.memory.resources import TRAINING
from glowtrain.settings import setting
from glowtrain.trainer.arrays import converted, mismatch, shaped, transposition, with_unit_axes
from glowtrain.trainer.feed import sources
from glowtrain.trainer.graphs import specs_of, target_specs
from glowtrain.trainer.settings import SAMPLE_WEIGHT
from glowtrain.types import Array, Spec

ExampleArrays = Mapping[str, ExampleArray]


@dataclass(frozen=True)
class Stored:
    """The arrays of a data set as they are stored, before a model and its loss say which of them are examples; what
    ``labels`` are called, where somebody says, and what a model says that is trained on them."""

    name: str
    train: Mapping[str, ExampleArray]
    valid: Mapping[str, ExampleArray]
    labels: str | None = None
    trained_on: TrainedOn = NOTHING
    weight: str | None = None
    """The array of weights of examples."""


@dataclass(frozen=True)
class InputOptions:
    """Where examples come from, and which columns they are."""

    data_dir: Path | None = setting(None, "Directory with the files of fashion-mnist.", metavar="DIR")
    drop: Sequence[str] = setting(
        (), "Of a table: a column that is no feature (repeatable).", metavar="COLUMN", type=list[str]
    )
    image_size: str | None = setting(
        None, "Of images: what each is resized to, 32x48 or 32 for a square.", metavar="HxW"
    )
    channels: int | None = setting(None, "Of images: 1 (grey) or 3 (colours); by default what they have.", metavar="N")

    def inputs(self, name: str, trained_on: TrainedOn, network: Graph | Template) -> tuple[ExampleArrays, list[str]]:
        """The arrays of a data set to predict on, and the names of its images, where it is a folder of such. Raises
        :class:`DataError` and :class:`InputError`."""
        self._check(name)
        if Path(name).suffix in READERS:
            return data.table(name, None, self.drop, columns=trained_on.columns).train, []
        if _is_folder_of_images(name):
            if not (files := image_files(Path(name))):
                raise DataError(f"{name}: there are no images in this folder")
            shown = [str(path.relative_to(name)) for path in files]
            return {"x": read_files(files, *self._of_images(network))}, shown
        if name.endswith(".npz"):
            return examples_in(Path(name), specs_of(network)), []
        return data.load(name, self.data_dir).train, []

    def on_host(self, name: str, model: HostedModel) -> dict[str, Array]:
        """The arrays for a model of strings or encoded images. Raises :class:`DataError` and :class:`InputError`."""
        self._check(name)
        if not name.endswith(".npz"):
            raise InputError(f"{name}: strings and encoded images are taken from .npz files of numpy.savez")
        arrays = examples_in(Path(name), model.inputs)
        say_unused([each for each in arrays if each not in model.inputs])
        return {each: arrays[each] for each in model.inputs if each in arrays}

    def _check(self, name: str) -> None:
        """Raise :class:`InputError` for options of another kind of data."""
        if (self.image_size or self.channels) and not _is_folder_of_images(name):
            raise InputError(f"--image-size and --channels are for folders of images, which {name} is not")
        if self.drop and Path(name).suffix not in READERS:
            raise InputError(f"--drop leaves columns of a table out ({', '.join(READERS)}), and not arrays of {name}")

    def _of_images(self, network: Graph | Template | None) -> tuple[tuple[int, int] | None, int | None]:
        """The size and the channels of images: those of a model that takes one kind of them, where nobody says any."""
        size, channels = image_size(self.image_size), self.channels
        shapes = [] if network is None else [spec.shape[1:] for spec in specs_of(network).values()]
        if len(shapes) == 1 and len(shapes[0]) == 3 and all(isinstance(extent, int) for extent in shapes[0]):
            depth, height, width = map(int, shapes[0])
            return size or (height, width), channels or depth
        return size, channels


@dataclass(frozen=True)
class DataOptions(InputOptions):
    """Where examples come from, and which arrays or columns they and their labels are."""

    labels: str | None = setting(
        None, "The array of labels or targets in the data (y), or the column of a table.", metavar="NAME",
        panel=TRAINING,
    )  # fmt: skip

    def stored(
        self,
        name: str,
        weight: str | None = None,
        trained_on: TrainedOn = NOTHING,
        network: Graph | Template | None = None,
    ) -> Stored:
        """The data set of a --data option, with the array or column of weights of examples, and with labels and columns
        as the model that it goes to has them. Images have the size that a ``network`` takes. Raises
        :class:`DataError`, and :class:`InputError` for columns of what is no table."""
        self._check(name)
        if Path(name).suffix in READERS:
            rows = data.table(
                name, self.labels, self.drop, weight, classes=trained_on.classes, columns=trained_on.columns
            )
            found = replace(trained_on, classes=rows.classes or trained_on.classes, columns=rows.columns)
            return Stored(rows.name, rows.train, rows.valid, None, found, weight and SAMPLE_WEIGHT)
        if _is_folder_of_images(name):
            size, channels = self._of_images(network)
            photos = data.images(name, size, channels=channels, classes=trained_on.classes)
            found = replace(trained_on, classes=photos.classes)
            return Stored(photos.name, photos.train, photos.valid, self.labels, found, weight)
        if name.endswith(".npz"):
            return Stored(name, *data.npz_parts(name), self.labels, trained_on, weight)
        loaded = data.load(name, self.data_dir)
        if Path(name).is_dir():
            _say_naming(loaded.train)
        return Stored(loaded.name, loaded.train, loaded.valid, self.labels, trained_on, weight)


def _is_folder_of_images(name: str) -> bool:
    return Path(name).is_dir() and not data.holds_shards(name)


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


def inputs_in(arrays: ExampleArrays, network: Graph | Template) -> dict[str, ExampleArray]:
    """The arrays of a file that inputs take, fitted to them. Raises :class:`DataError` and :class:`InputError`."""
    specs = specs_of(network)
    structures = network.structures if isinstance(network, Template) else {}
    plain = {name: array for name, array in arrays.items() if name not in structures}
    taken = sources(plain, tuple(specs), ())
    _check_all(plain, taken, specs, (), "the input", None)
    say_unused([name for name in plain if name not in taken.values()])
    structured = {name: arrays[name] for name in structures if name in arrays}
    return _fitted_examples(plain, taken, specs) | structured


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
