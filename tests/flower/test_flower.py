"""Clients of Flower by its own classes: NumPyClient, ClientApp and FedAvg, without a network."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, Metadata, RecordDict
from flwr.client import NumPyClient
from flwr.serverapp.strategy import FedAvg

import glowtrain as gt
from glowtrain import flower
from glowtrain.data import digits
from glowtrain.errors import InputError

DIGITS = digits()
EACH, CLIENTS, ROUNDS = 60, 3, 10


def trainer(seed: int = 0, dtype: gt.TensorType = gt.f32) -> gt.Trainer:
    @gt.model(x=dtype["batch", 1, 8, 8])
    def network(x: Any) -> Any:
        hidden = gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 32, name="hidden"))
        return gt.nn.linear(hidden, 10, name="head")

    return gt.Trainer(network, "softmax_cross_entropy", gt.optim.SGD(lr=0.1, momentum=0.9), seed=seed)


def client(number: int, made: gt.Trainer | None = None) -> flower.Client:
    """With examples of not more than four classes; evaluated on all."""
    mine = np.isin(DIGITS.y, [(3 * number + k) % 10 for k in range(4)])
    arrays = {"x": DIGITS.x[mine][:EACH], "y": DIGITS.y[mine][:EACH]}
    return flower.client(made or trainer(), arrays, (DIGITS.x_valid, DIGITS.y_valid), epochs=2, batch_size=20)


def record(arrays: dict[str, Any]) -> ArrayRecord:
    return ArrayRecord({name: Array(array) for name, array in arrays.items()})


def message(kind: str, arrays: ArrayRecord, node: int = 0, **config: Any) -> Message:
    content = RecordDict({"arrays": arrays, "config": ConfigRecord({"server-round": 1, **config})})
    return Message(content, metadata=Metadata(1, "m", 9, node, "", "", time.time(), 3600.0, kind))


def contexts() -> list[Context]:
    return [Context(1, node, {}, RecordDict(), {}) for node in range(CLIENTS)]


Send = Callable[[Message], Message]


def rounds(app: Any, arrays: ArrayRecord, nodes: list[Context]) -> tuple[ArrayRecord, float]:
    """Rounds of FedAvg over the app's replies: the last parameters, and their accuracy."""
    strategy = FedAvg()
    for number in range(ROUNDS):
        replies = [app(message("train", arrays, node.node_id), node) for node in nodes]
        averaged, metrics = strategy.aggregate_train(number, replies)
        assert averaged is not None
        assert metrics is not None
        assert set(metrics) == {"train_loss"}
        arrays = averaged
    replies = [app(message("evaluate", arrays, node.node_id), node) for node in nodes]
    metrics = strategy.aggregate_evaluate(ROUNDS, replies)
    assert metrics is not None
    assert set(metrics) == {"eval_loss", "eval_accuracy"}
    return arrays, float(metrics["eval_accuracy"])


def test_three_clients_of_the_message_api_do_better_than_one_alone() -> None:
    app = flower.app(lambda context: client(context.node_id))
    start = record(client(0).named_parameters())
    _, together = rounds(app, start, contexts())
    alone = client(0)
    parameters, _, _ = alone.fit(alone.get_parameters(), {"epochs": 2 * ROUNDS})
    assert together > alone.evaluate(parameters, {})[2]["accuracy"] + 0.2
    assert together > 0.8


def test_a_client_made_anew_for_each_message_is_the_same_as_one_that_stays() -> None:
    """The optimizer's state, the seed's order of examples and counters are in the context."""
    kept = [client(number) for number in range(CLIENTS)]
    start = record(kept[0].named_parameters())
    anew, _ = rounds(flower.app(lambda context: client(context.node_id)), start, contexts())
    stays, _ = rounds(flower.app(lambda context: kept[context.node_id]), start, contexts())
    assert list(anew) == list(stays) == list(kept[0].names)
    assert all(anew[name].numpy().tobytes() == stays[name].numpy().tobytes() for name in anew)


def test_lists_go_by_place_and_names_in_any_order() -> None:
    made = client(0)
    app = flower.app(lambda context: made)
    parameters = made.get_parameters()
    by_name = record(dict(reversed(made.named_parameters().items())))
    replies = []
    for arrays in (ArrayRecord(parameters), by_name):
        reply = app(message("evaluate", arrays), contexts()[0])
        replies.append(dict(reply.content["metrics"]))
    assert replies[0] == replies[1]
    assert replies[0]["num-examples"] == 360


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"extra": np.zeros(1)}, r"not those of the model \(unknown: 'extra'\)"),
        ({"head.bias": None}, r"not those of the model \(missing: 'head.bias'\)"),
        ({"head.bias": np.zeros(3, np.float32)}, r"'head.bias' is f32\[10\], not float32\[3\]"),
    ],
)
def test_wrong_arrays_are_refused(change: dict[str, Any], told: str) -> None:
    made = client(0)
    arrays = {name: array for name, array in {**made.named_parameters(), **change}.items() if array is not None}
    with pytest.raises(InputError, match=told):
        flower.app(lambda context: made)(message("train", record(arrays)), contexts()[0])


def test_bf16_passes_through_flowers_records() -> None:
    made = client(0, trainer(dtype=gt.bf16))
    context = contexts()[0]
    app = flower.app(lambda _: made)
    reply = app(message("train", record(made.named_parameters())), context)
    for name, array in reply.content["arrays"].items():
        assert array.numpy().dtype == np.float32
        np.testing.assert_array_equal(array.numpy(), made.trainer.parameters()[name].astype(np.float32))
    app(message("train", reply.content["arrays"]), context)


def test_it_is_a_numpy_client() -> None:
    made = client(0)
    assert isinstance(made, NumPyClient)
    assert isinstance(made, flower.Client)
    assert made.to_client() is not None
    arrays, count, metrics = made.fit(made.get_parameters({}), {"epochs": 1, "lr": 0.5})
    assert (len(arrays), count, set(metrics)) == (4, EACH, {"train_loss"})
