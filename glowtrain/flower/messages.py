"""Flower's Message API: messages in, replies out; what stays with a node is in the state of its context."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from glowtrain.errors import InputError
from glowtrain.flower.clients import Client, Config, Metrics, check_flower
from glowtrain.trainer.checkpoints.checkpoint import Position
from glowtrain.types import Array

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Context, Message
    from flwr.clientapp import ClientApp

EXAMPLES = "num-examples"
"""The metric by which Flower's strategies weigh the replies of its Message API."""
ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
LOCAL, PROGRESS = "glowtrain.local", "glowtrain.progress"
"""Records of a node's state: what of a trainer stays with it."""


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
