"""Federated clients, without Flower: what a server's lists become, three clients beside one, configs, bad input."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import flower
from glowtrain.data import Dataset, digits
from glowtrain.errors import BatchError, InputError
from glowtrain.types import Array

NAMES = ("head.bias", "head.weight", "hidden.bias", "hidden.weight")
DIGITS = digits()
VALID = {"x": DIGITS.x_valid, "y": DIGITS.y_valid}
EACH = 60
"""Examples of a client."""


def trainer(seed: int = 0, dtype: gt.TensorType = gt.f32, lr: float = 0.1, **settings: Any) -> gt.Trainer:
    @gt.model(x=dtype["batch", 1, 8, 8])
    def network(x: Any) -> Any:
        hidden = gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 32, name="hidden"))
        return gt.nn.linear(hidden, 10, name="head")

    return gt.Trainer(network, "softmax_cross_entropy", gt.optim.SGD(lr=lr, momentum=0.9), seed=seed, **settings)


def part(number: int) -> dict[str, Array]:
    """The examples of a client: others for each, of not more than four classes."""
    mine = np.isin(DIGITS.y, [(3 * number + k) % 10 for k in range(4)])
    return {"x": DIGITS.x[mine][:EACH], "y": DIGITS.y[mine][:EACH]}


def averaged(replies: Sequence[tuple[list[Array], int, Any]]) -> list[Array]:
    """What a server does: means weighed by numbers of examples (McMahan et al., arXiv:1602.05629)."""
    total = sum(count for _, count, _ in replies)
    columns = zip(*(arrays for arrays, _, _ in replies), strict=True)
    weights = [count / total for _, count, _ in replies]
    return [sum(w * array for w, array in zip(weights, column, strict=True)) for column in columns]


@pytest.mark.exhaustive
def test_three_clients_together_do_better_than_one_alone() -> None:
    clients = [flower.Client(trainer(seed), part(seed), VALID, epochs=2, batch_size=20) for seed in range(3)]
    parameters = clients[0].get_parameters()
    for _ in range(10):
        parameters = averaged([client.fit(parameters, {}) for client in clients])
    together = clients[0].evaluate(parameters, {})
    alone = flower.Client(trainer(), part(0), VALID, epochs=20, batch_size=20)
    assert together[2]["accuracy"] > alone.evaluate(alone.fit(alone.get_parameters(), {})[0], {})[2]["accuracy"] + 0.2
    assert together[2]["accuracy"] > 0.8
    assert together[:2] == clients[1].evaluate(parameters, {})[:2]
    assert together[1] == 360


def test_arrays_are_in_the_order_of_their_names() -> None:
    client = flower.Client(trainer(), part(0))
    assert client.names == NAMES
    parameters = client.trainer.parameters()
    assert [array.tobytes() for array in client.get_parameters({})] == [parameters[name].tobytes() for name in NAMES]
    assert list(client.named_parameters()) == list(NAMES)
    changed = [array + 1 for array in client.get_parameters()]
    client.set_parameters(changed)
    np.testing.assert_array_equal(client.trainer.parameters()["head.weight"], changed[1])


def test_running_statistics_go_and_counters_stay() -> None:
    @gt.model(x=gt.f32["batch", 4])
    def network(x: Any) -> Any:
        return gt.nn.linear(gt.nn.dropout(gt.nn.batch_norm(gt.nn.linear(x, 4, name="a"), name="norm")), 3, name="b")

    client = flower.Client(gt.Trainer(network, "mse", gt.optim.Adam()), {"x": np.ones((8, 4)), "y": np.ones((8, 3))})
    client.fit(client.get_parameters(), {})
    assert [name for name in client.names if name.startswith("norm")] == [
        "norm.bias", "norm.mean", "norm.scale", "norm.variance",
    ]  # fmt: skip
    local = client.local()
    assert {"random.counter", "optimizer.step", "a.weight.adam.m"} <= set(local)
    assert not set(local) & set(client.names)


def test_bf16_travels_as_f32_and_comes_back_to_the_same_bits() -> None:
    client = flower.Client(trainer(dtype=gt.bf16), part(0))
    sent, before = client.get_parameters(), client.trainer.parameters()
    assert {array.dtype.name for array in sent} == {"float32"}
    client.set_parameters([array.astype(np.float64) for array in sent])
    after = client.trainer.parameters()
    assert all(after[name].tobytes() == before[name].tobytes() for name in NAMES)
    assert after["head.weight"].dtype == gt.bf16.numpy


def test_the_servers_config_holds_for_its_round() -> None:
    client = flower.Client(trainer(lr=0.1), part(0), epochs=1, batch_size=20)
    start = client.get_parameters()
    _, count, metrics = client.fit(start, {"epochs": 3, "lr": 0.01, "batch_size": 30, "server-round": 1})
    assert (count, len(client.trainer.history), client.trainer.lr) == (EACH, 3, 0.01)
    assert metrics == {"train_loss": client.trainer.history.loss[-1]}
    assert int(client.trainer.variables()["optimizer.step"]) == 3 * 2
    client.fit(start, {})
    assert (len(client.trainer.history), client.trainer.lr) == (4, 0.1)
    assert int(client.trainer.variables()["optimizer.step"]) == 3 * 2 + 3


def test_metrics_that_are_numbers_are_told() -> None:
    client = flower.Client(trainer(metrics=["f1", "confusion_matrix"]), part(0), VALID)
    _, _, metrics = client.evaluate(client.get_parameters(), {})
    expected = client.trainer.evaluate(VALID)
    assert metrics == pytest.approx({name: expected[name] for name in ("accuracy", "f1")})


class Loader:
    """Batches, as a DataLoader gives them: tuples, anew in each epoch."""

    def __init__(self, arrays: dict[str, Array], size: int) -> None:
        self.arrays = arrays
        self.size = size

    def __iter__(self) -> Iterator[tuple[Array, Array]]:
        x, y = self.arrays.values()
        return ((x[i : i + self.size], y[i : i + self.size]) for i in range(0, len(x), self.size))


@pytest.mark.spread(1)
@pytest.mark.parametrize(
    "make", [lambda a: Loader(a, 25), lambda a: [dict(zip(a, b, strict=True)) for b in Loader(a, 25)]]
)
def test_batches_of_a_loader_are_the_same_as_the_arrays(make: Any) -> None:
    arrays, loaded = flower.Client(trainer(), part(0), batch_size=25), flower.Client(trainer(), make(part(0)))
    assert loaded.evaluate(loaded.get_parameters(), {})[1] == EACH
    results = [client.evaluate(arrays.get_parameters(), {}) for client in (arrays, loaded)]
    assert results[0][1:] == results[1][1:]
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-6)
    parameters, count, metrics = loaded.fit(arrays.get_parameters(), {"epochs": 2})
    twin = trainer()
    losses = [[twin.step({"x": x, "labels": y}) * len(x) for x, y in Loader(part(0), 25)] for _ in range(2)]
    assert (count, metrics["train_loss"]) == (EACH, sum(losses[-1]) / EACH)
    assert loaded.trainer.history.loss == [sum(each) / EACH for each in losses]
    assert [a.tobytes() for a in parameters] == [twin.parameters()[name].tobytes() for name in NAMES]


def test_a_data_sets_own_validation_part_is_evaluated_on() -> None:
    dataset = Dataset("mine", part(0), {"x": DIGITS.x[:40], "y": DIGITS.y[:40]})
    client = flower.Client(trainer(), dataset)
    assert client.evaluate(client.get_parameters(), {})[1] == 40
    assert client.fit(client.get_parameters(), {})[1] == EACH
    assert "val_loss" not in client.trainer.history.last


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda arrays: arrays[:3], "the server sent 3 arrays, the model has 4: head.bias, head.weight, hidden.bias, "),
        (lambda arrays: arrays[::-1], r"'head.bias' is f32\[10\], not float32\[64, 32\]"),
        (lambda arrays: [arrays[0].astype(complex), *arrays[1:]], r"'head.bias' is f32\[10\], not complex128"),
    ],
)
def test_wrong_lists_from_the_server_are_refused(change: Any, told: str) -> None:
    client = flower.Client(trainer(), part(0))
    before = [array + 0 for array in client.get_parameters()]
    for ask in (client.fit, client.evaluate):
        with pytest.raises(InputError, match=told):
            ask(change([array + 1 for array in before]), {})
    assert [a.tobytes() for a in client.get_parameters()] == [b.tobytes() for b in before]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"epochs": 0}, "the server's config: epochs must be a whole number from 1 up, not 0"),
        ({"epochs": 1.5}, "epochs must be a whole number from 1 up, not 1.5"),
        ({"batch_size": True}, "batch_size must be a whole number from 1 up, not True"),
        ({"lr": "fast"}, "hyperparameter 'lr' must be a number, not 'fast'"),
        ({"lr": -1.0}, "lr"),
    ],
)
def test_wrong_configs_are_refused(config: dict[str, Any], told: str) -> None:
    client = flower.Client(trainer(), part(0))
    with pytest.raises(InputError, match=told):
        client.fit(client.get_parameters(), config)
    assert not client.trainer.history


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            iter([]),
            "the list_iterator is exhausted; pass a list, a DataLoader or a function that returns a new iterator",
        ),
        (3, "data is a int, but the model and its loss take 'x', 'labels'"),
    ],
)
def test_data_without_examples_are_refused(data: Any, told: str) -> None:
    client = flower.Client(trainer(), data)
    with pytest.raises((BatchError, InputError), match=told):
        client.fit(client.get_parameters(), {})


def test_without_flower_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for make in (lambda: flower.client(trainer(), part(0)), lambda: flower.app(lambda _: None)):  # type: ignore[arg-type,return-value]
        with pytest.raises(InputError, match=r"glowtrain.flower needs Flower: pip install -e '.\[flower\]'"):
            make()
