"""Federated learning with Flower (the ``flower`` extra): a trainer and its data as a client.

What goes between clients and server are the model's parameters and running statistics, in the order of their names
(:attr:`Client.names`), which depends on nothing else. Those narrower than f32 travel as f32, so that a server averages
in f32. The optimizer's state, counters and integers stay with the client.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from glowtrain import data as datasets
from glowtrain.data import Dataset
from glowtrain.errors import InputError
from glowtrain.extras import check_extra
from glowtrain.modes.variables import COUNTERS
from glowtrain.presentation.words import plural
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.trainer.feed import Data, held_out, named
from glowtrain.trainer.trainer import Trainer
from glowtrain.types import Array, type_of

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp

Config = Mapping[str, Any]
"""What a server asks for: ``epochs``, ``lr``, ``batch_size``; whatever else it says is not looked at."""
Metrics = dict[str, float]
EXAMPLES = "num-examples"
"""The metric by which Flower's strategies weigh the replies of its Message API."""
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
LOCAL, PROGRESS = "glowtrain.local", "glowtrain.progress"
"""Records of a node's state: what of a trainer stays with it."""


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


def app(client_of: Callable[[Context], Client]) -> ClientApp:
    """A ``flwr.clientapp.ClientApp`` of Flower's Message API; ``client_of(context)`` is the client of a node.

    Flower may make a node's client anew for each message: the optimizer's state is in the context's state, and compiled
    code on disk. Arrays go by name, or where a server sends a list, by place. Raises
    :class:`MissingExtraError` without Flower.
    """
    check_flower()
    from flwr.clientapp import ClientApp  # noqa: PLC0415  an extra

    made: ClientApp = ClientApp()
    made.train()(lambda message, context: _train(client_of(context), message, context))
    made.evaluate()(lambda message, context: _evaluate(client_of(context), message))
    return made


class Client:
    """A trainer and its data, as Flower's clients are asked: by lists of arrays.

    ``data``: what ``trainer.fit`` takes, or an iterable of batches, such as a DataLoader. ``validation``: the same, to
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

        ``config`` may have ``epochs``, ``lr`` and ``batch_size``. Raises :class:`InputError` for what does not fit.
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
            arrays = named(held_out(part), *self.trainer.signature.names)
            count = datasets.count_examples(arrays)
            for name, value in self.trainer.evaluate(arrays, batch_size=size).items():
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
        """Train for some epochs: the number of examples, and the mean loss of the last epoch."""
        if not is_arrays(self.data):
            return [self._epoch() for _ in range(epochs)][-1]
        arrays = named(self.data, *self.trainer.signature.names)
        history = self.trainer.fit(arrays, epochs, size, progress=False)
        return datasets.count_examples(arrays), history.loss[-1]

    def _epoch(self) -> tuple[int, float]:
        """One run through an iterable of batches."""
        count, total = 0, 0.0
        for batch in _parts(self.data):
            arrays = named(batch, *self.trainer.signature.names)
            examples = datasets.count_examples(arrays)
            total += self.trainer.step(arrays) * examples
            count += examples
        if not count:
            raise InputError("there are no examples to train on: the iterable gave no batch; a generator runs out, so "
                             "pass what can be iterated over again, such as a list or a DataLoader")  # fmt: skip
        return count, total / count


def is_arrays(data: Any) -> bool:
    """Whether data are whole arrays, not batches one after the other: a data set, arrays by name or by place."""
    by_place = isinstance(data, (tuple, list)) and all(isinstance(each, np.ndarray) for each in data)
    return isinstance(data, (Dataset, Mapping)) or by_place


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


# --- Message API


def _train(client: Client, message: Message, context: Context) -> Message:
    """The reply to a message that asks for training."""
    _restore(client, context)
    arrays, count, metrics = client.fit(_received(client, message.content[ARRAYS]), _config(message))
    _keep(client, context)
    return _reply(message, metrics, count, dict(zip(client.names, arrays, strict=True)))


def _evaluate(client: Client, message: Message) -> Message:
    """The reply to a message that asks for an evaluation."""
    loss, count, metrics = client.evaluate(_received(client, message.content[ARRAYS]), _config(message))
    return _reply(message, {"eval_loss": loss, **{f"eval_{name}": value for name, value in metrics.items()}}, count)


def _config(message: Message) -> Config:
    return dict(message.content.get(CONFIG, {}))


def _received(client: Client, record: ArrayRecord) -> list[Array]:
    """The arrays in the order of the client's names. Raises :class:`InputError` for other names."""
    arrays = {name: array.numpy() for name, array in record.items()}
    if list(arrays) == [str(number) for number in range(len(arrays))] and set(arrays) != set(client.names):
        return list(arrays.values())
    strange = [repr(name) for name in arrays if name not in client.names]
    missing = [repr(name) for name in client.names if name not in arrays]
    if strange or missing:
        told = [f"{what}: {', '.join(names)}" for what, names in (("unknown", strange), ("missing", missing)) if names]
        raise InputError(f"the server's arrays are not those of the model ({'; '.join(told)})")
    return [arrays[name] for name in client.names]


def _reply(message: Message, metrics: Metrics, count: int, arrays: Mapping[str, Array] | None = None) -> Message:
    from flwr.app import Message, MetricRecord, RecordDict  # noqa: PLC0415  an extra

    content = RecordDict({METRICS: MetricRecord({**metrics, EXAMPLES: count})})
    if arrays is not None:
        content[ARRAYS] = _record(arrays)
    return Message(content=content, reply_to=message)


def _record(arrays: Mapping[str, Array]) -> ArrayRecord:
    from flwr.app import Array, ArrayRecord  # noqa: PLC0415  an extra

    return ArrayRecord({name: Array(np.array(array, order="C")) for name, array in arrays.items()})


def _keep(client: Client, context: Context) -> None:
    """Put what stays with a node into its context's state."""
    from flwr.app import ConfigRecord  # noqa: PLC0415  an extra

    context.state[LOCAL] = _record(client.local())
    context.state[PROGRESS] = ConfigRecord({"epoch": client.trainer.position.epoch})


def _restore(client: Client, context: Context) -> None:
    """Go on from a context's state, if there is one."""
    if LOCAL in context.state:
        client.trainer.set_variables({name: array.numpy() for name, array in context.state[LOCAL].items()})
        client.trainer.position = Position(epoch=int(context.state[PROGRESS]["epoch"]))
