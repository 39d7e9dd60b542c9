"""Containers of the standard library, and weak references: what is put there between steps counts; what a call puts
there is not left, which is said."""

from __future__ import annotations

from collections import ChainMap, Counter, UserDict, UserList, defaultdict
from collections.abc import Callable
from queue import LifoQueue, PriorityQueue, Queue, SimpleQueue
from threading import Event
from types import SimpleNamespace
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary, ref

import pytest
import torch
from eager import data, eager_step
from steps import compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy

import glowtrain.torch as gtt

Put, Read = Callable[[Any, Any], object], Callable[[Any], float]
KEY = SimpleNamespace()


class Holder:
    """A number that can be referred to weakly."""

    def __init__(self, number: float) -> None:
        self.number = number


ONE, TWO = Holder(1.0), Holder(2.0)


def set_last(kept: Any, number: Any) -> None:
    kept["last"] = number


def refill(kept: Any, number: Any) -> None:
    kept.get_nowait() if kept.qsize() else None
    kept.put(number)


CONTAINERS: dict[str, tuple[Callable[[], Any], Put, Read]] = {
    "Queue": (Queue, refill, lambda kept: kept.queue[0]),
    "LifoQueue": (LifoQueue, refill, lambda kept: kept.queue[-1]),
    "PriorityQueue": (PriorityQueue, refill, lambda kept: kept.queue[0]),
    "UserDict": (UserDict, set_last, lambda kept: kept["last"]),
    "UserList": (UserList, lambda kept, number: kept.append(number), lambda kept: kept[-1]),
    "ChainMap": (ChainMap, set_last, lambda kept: kept["last"]),
    "Counter": (Counter, set_last, lambda kept: kept["last"]),
    "defaultdict": (lambda: defaultdict(int), set_last, lambda kept: kept["last"]),
    "WeakKeyDictionary": (
        WeakKeyDictionary, lambda kept, number: kept.__setitem__(ONE, number), lambda kept: kept[ONE]
    ),
}  # fmt: skip


class Keeping(nn.Module):
    """What is kept, and used for the inputs of a layer."""

    def __init__(self, kept: Any, use: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.kept, self.use, self.linear = kept, use, nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(self.use(self.kept, x))
        return result


def losses(module: Keeping, change: Callable[[Any, float], object], *, compiles: bool) -> list[float]:
    """Of three steps, before each of which what is kept has changed."""
    step = compiled(module) if compiles else None
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    found = []
    for number, batch in zip((1.0, 2.0, 1.0), data(3), strict=True):
        change(module.kept, number)
        found.append(float(step(*batch) if step else eager_step(module, cross_entropy, optimizer, batch)))
    return found


def check_followed(make: Callable[[], Any], change: Callable[[Any, float], object], read: Read) -> None:
    found = []
    for compiles in (True, False):
        torch.manual_seed(0)
        found.append(losses(Keeping(make(), lambda kept, x: x * read(kept)), change, compiles=compiles))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_is_put_there_between_steps(name: str) -> None:
    check_followed(*CONTAINERS[name])


@pytest.mark.parametrize("name", CONTAINERS)
def test_what_a_call_puts_there(name: str) -> None:
    make, put, read = CONTAINERS[name]

    def use(kept: Any, x: torch.Tensor) -> torch.Tensor:
        put(kept, x.mean())
        return x

    module = Keeping(make(), use)
    put(module.kept, 1.0)
    with pytest.warns(gtt.UnkeptAttributeWarning, match="kept"):
        compiled(module)(*data(1)[0])
    assert read(module.kept) == 1.0


def test_what_a_weak_reference_leads_to() -> None:
    def change(kept: Any, number: float) -> None:
        kept().number = number

    check_followed(lambda: ref(ONE), change, lambda kept: kept().number)


def test_what_a_dict_of_weak_values_holds() -> None:
    def change(kept: Any, number: float) -> None:
        kept["last"] = ONE if number == 1.0 else TWO
        ONE.number, TWO.number = 1.0, 2.0

    check_followed(WeakValueDictionary, change, lambda kept: kept["last"].number)


def test_an_event_that_a_call_sets() -> None:
    def use(kept: Event, x: torch.Tensor) -> torch.Tensor:
        was = kept.is_set()
        kept.set()
        return x * (2 if was else 1)

    found = []
    for compiles in (True, False):
        torch.manual_seed(0)
        module = Keeping(Event(), use)
        found.append((losses(module, lambda *_: None, compiles=compiles), module.kept.is_set()))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    assert found[0][1] is found[1][1] is True


def test_queues_that_cannot_be_read_are_refused() -> None:
    def use(kept: Any, x: torch.Tensor) -> torch.Tensor:
        return x * kept.get()

    kept: SimpleQueue[float] = SimpleQueue()
    kept.put(1.0)
    assert "draws numbers from a _queue.SimpleQueue" in refusal(lambda: compiled(Keeping(kept, use))(*data(1)[0]))
