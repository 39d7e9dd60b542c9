"""A trainer and its data, as Flower's clients are asked: by lists of arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from glowtrain import data as datasets
from glowtrain.data import Dataset
from glowtrain.errors import InputError, check_extra
from glowtrain.modes.variables import COUNTERS
from glowtrain.presentation.messages import plural
from glowtrain.trainer.feed import Data, held_out
from glowtrain.trainer.fitting.moments import Moment
from glowtrain.trainer.history import numbers_of
from glowtrain.trainer.trainer import Trainer
from glowtrain.types import Array, type_of

Config = Mapping[str, Any]
"""What a server asks for: ``epochs``, ``lr``, ``batch_size``; whatever else it says is not looked at."""
Metrics = dict[str, float]


def check_flower() -> None:
    """Raise :class:`MissingExtraError` if Flower is not installed."""
    check_extra("glowtrain.flower", "Flower", "flwr", "flower")


def client(
    trainer: Trainer, data: Any, validation: Any = None, *, epochs: int = 1, batch_size: int | None = None
) -> Client:
    """A :class:`Client` that is a ``flwr.client.NumPyClient`` too. Raises :class:`MissingExtraError` without it."""
    check_flower()
    from flwr.client import NumPyClient  # noqa: PLC0415  an extra

    kind = type("FlowerClient", (Client, NumPyClient), {"__doc__": Client.__doc__})
    made: Client = kind(trainer, data, validation, epochs=epochs, batch_size=batch_size)
    return made


class Client:
    """A trainer and its data, as Flower's clients are asked: by lists of arrays.

    ``data``: a data set or arrays, or an iterable of batches, such as a DataLoader. ``validation``: the same, to
    evaluate on; by default the data set's own validation part, else ``data``. ``epochs`` and ``batch_size`` hold where
    the server's ``config`` says nothing. The optimizer keeps its state from round to round.
    """

    def __init__(
        self, trainer: Trainer, data: Any, validation: Any = None, *, epochs: int = 1, batch_size: int | None = None
    ) -> None:
        self.trainer = trainer
        self.data = data
        self.validation = data if validation is None else validation
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = trainer.lr if "lr" in trainer.hyper else None
        model = trainer.graphs.trained(trainer.graphs.example)
        self.names = tuple(sorted(v.name for v in model.variables if v.dtype.is_float and v.name not in COUNTERS))
        """What the arrays of a list are, in order: sorted by name."""

    def get_parameters(self, config: Config | None = None) -> list[Array]:
        """The present parameters and running statistics, in the order of :attr:`names`."""
        variables = self.trainer.variables()
        return [_sent(variables[name]) for name in self.names]

    def set_parameters(self, parameters: Sequence[Array]) -> None:
        """Take a list of arrays. Raises :class:`InputError` where number, shapes or types are wrong: nothing is taken
        then."""
        if len(parameters) != len(self.names):
            raise InputError(
                f"the server sent {plural(len(parameters), 'array')}, the model has {len(self.names)}: "
                f"{', '.join(self.names)}"
            )
        self.trainer.set_variables(dict(zip(self.names, parameters, strict=True)))

    def fit(self, parameters: Sequence[Array], config: Config) -> tuple[list[Array], int, Metrics]:
        """Train from ``parameters``: the new ones, the number of examples of an epoch, and ``train_loss``.

        ``config`` may have ``epochs``, ``lr`` and ``batch_size``. Raises :class:`InputError` for what does not fit,
        and :class:`BatchError` for batches that cannot be made.
        """
        epochs, size = _whole(config, "epochs", self.epochs), _whole(config, "batch_size", self.batch_size)
        self._set_rate(config)
        self.set_parameters(parameters)
        count, loss = self._trained(epochs or 1, size)
        return self.get_parameters(), count, {"train_loss": loss}

    def evaluate(self, parameters: Sequence[Array], config: Config) -> tuple[float, int, Metrics]:
        """The loss of ``parameters`` on the data to evaluate on, the number of its examples, and its metrics."""
        size = _whole(config, "batch_size", self.batch_size)
        self.set_parameters(parameters)
        sums: Metrics = {}
        total = 0
        for part in _parts(self.validation):
            arrays = self.trainer.signature.named(held_out(part))
            count = datasets.count_examples(arrays)
            for name, value in numbers_of(self.trainer.evaluate(arrays, batch_size=size)).items():
                sums[name] = sums.get(name, 0.0) + value * count
            total += count
        if not total:
            raise InputError("there are no examples to evaluate on: the iterable gave no batch")
        means = {name: value / total for name, value in sums.items()}
        return means.pop("loss"), total, means

    def named_parameters(self) -> dict[str, Array]:
        """:meth:`get_parameters` by name."""
        return dict(zip(self.names, self.get_parameters(), strict=True))

    def local(self) -> dict[str, Array]:
        """What stays here between rounds: the optimizer's state and counters, by name."""
        return {name: array for name, array in self.trainer.variables().items() if name not in self.names}

    def _set_rate(self, config: Config) -> None:
        """The learning rate that the server asks for in this round, else the trainer's own."""
        if "lr" in config:
            self.trainer.hyper["lr"] = config["lr"]
        elif self.lr is not None:
            self.trainer.lr = self.lr

    def _trained(self, epochs: int, size: int | None) -> tuple[int, float]:
        """Train for some epochs: the number of examples of one, and the mean loss of the last."""
        if is_arrays(self.data):
            arrays = self.trainer.signature.named(self.data)
            history = self.trainer.fit(arrays, epochs, size, progress=False)
            return datasets.count_examples(arrays), history.loss[-1]
        counts = [0]

        def count(moment: Moment) -> None:
            counts.append(moment.trainer.position.examples)

        history = self.trainer.fit(self.data, epochs, callbacks=[count], progress=False)
        return max(counts), history.loss[-1]


def is_arrays(data: Any) -> bool:
    """Whether data are whole arrays, not batches one after the other: a data set, arrays by name or by place."""
    by_position = isinstance(data, (tuple, list)) and all(isinstance(each, np.ndarray) for each in data)
    return isinstance(data, (Dataset, Mapping)) or by_position


def _parts(data: Any) -> Iterator[Data]:
    """The batches of an iterable; arrays are one."""
    if is_arrays(data):
        yield data
    elif isinstance(data, Iterable):
        yield from data
    else:
        raise InputError(
            f"data must be arrays by name, a tuple of them, a data set or an iterable of batches, not a "
            f"{type(data).__name__}"
        )


def _sent(array: Array) -> Array:
    """An array as it travels: floats narrower than f32 as f32."""
    return array.astype(np.float32) if type_of(array).dtype.size < 4 else array


def _whole(config: Config, name: str, usual: int | None) -> int | None:
    """A whole number that a server asks for. Raises :class:`InputError` for another one than 1 and up."""
    number = config.get(name, usual)
    if number is None or (isinstance(number, int) and not isinstance(number, bool) and number >= 1):
        return number
    raise InputError(f"the server's config: {name} must be a whole number from 1 up, not {number!r}")
