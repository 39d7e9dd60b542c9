"""What Python code of a module or a loss leaves behind: a step leaves it, too, or warns; a trace leaves nothing."""

from __future__ import annotations

import copy
import functools
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from eager import data, differences, eager_step
from steps import compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils import parametrize

import glowtrain.torch as gtt

PHASE = 0
LAST: torch.Tensor | None = None
CACHE: dict[int, torch.Tensor] = {}
LOG: list[torch.Tensor] = []


@functools.lru_cache
def triangle(size: int) -> torch.Tensor:
    return torch.ones(size, size).tril()


class Net(nn.Module):
    """Calls a function of itself and its input before its layer."""

    def __init__(self, prepare: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.prepare, self.linear = prepare, nn.Linear(6, 3)
        self.phase, self.owner, self.previous = 0, SimpleNamespace(phase=0, last=None), 0
        self.named = Phase.FIRST
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("none", None)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(self.prepare(self, x))
        return result


def alternating(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.phase = 1 - net.phase
    return x * (1 + net.phase)


class Phase(Enum):
    FIRST, SECOND = 1, 2


def alternating_by_name(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.named = Phase.SECOND if net.named is Phase.FIRST else Phase.FIRST
    return x * net.named.value


def alternating_outside(net: Any, x: torch.Tensor) -> torch.Tensor:
    net.owner.phase = 1 - net.owner.phase
    return x * (1 + net.owner.phase)


def alternating_globally(_: Any, x: torch.Tensor) -> torch.Tensor:
    global PHASE  # noqa: PLW0603
    PHASE = (PHASE + 1) % 3
    return x * (1 + PHASE)


def by_the_batch_before(net: Any, x: torch.Tensor) -> torch.Tensor:
    before = getattr(net, "rows", 0)
    net.rows = len(x)
    return x * (1 + before)


@pytest.mark.parametrize(
    "prepare", [alternating, alternating_by_name, alternating_outside, alternating_globally, by_the_batch_before]
)
def test_plain_values_that_code_assigns_are_assigned_by_each_step(prepare: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(globals(), "PHASE", 0)
    module = Net(prepare)
    twin = copy.deepcopy(module)
    batches = [(x[:rows], y[:rows]) for (x, y), rows in zip(data(8), (8, 8, 5, 8, 5, 5, 8, 8), strict=True)]
    optimizer = torch.optim.SGD(twin.parameters(), 0.1)
    expected = [float(eager_step(twin, cross_entropy, optimizer, batch)) for batch in batches]
    monkeypatch.setitem(globals(), "PHASE", 0)
    step = compiled(module)
    losses = [float(step(x, y)) for x, y in batches]
    assert losses == pytest.approx(expected, abs=1e-5)
    assert differences(module.state_dict(), twin.state_dict()) < 1e-5
    assert (module.phase, module.named, module.owner.phase) == (twin.phase, twin.named, twin.owner.phase)


class Slotted:
    __slots__ = ("phase",)


@dataclass(frozen=True)
class Frozen:
    phase: int = 0


@pytest.mark.parametrize(
    "make", [Frozen, Slotted, threading.local, lambda: lambda: None, lambda: type("Class", (), {})]
)
def test_attributes_of_other_objects(make: Callable[[], Any]) -> None:
    owner = make()
    change = object.__setattr__ if isinstance(owner, Frozen) else setattr
    change(owner, "phase", 0)

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        change(owner, "phase", (owner.phase + 1) % 2)
        return cross_entropy(scores, labels) * (1 + owner.phase)

    ((x, y),) = data(1)
    step = gtt.compile_step(module := nn.Linear(6, 3), loss, torch.optim.SGD(module.parameters(), 0.0))
    once = float(cross_entropy(module(x), y).detach())
    assert [float(step(x, y)) / once for _ in range(5)] == pytest.approx([2, 1, 2, 1, 2])


def test_a_variable_of_an_enclosing_function() -> None:
    calls = 0

    def loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls = (calls + 1) % 2
        return cross_entropy(scores, labels) * (1 + calls)

    ((x, y),) = data(1)
    step = gtt.compile_step(module := nn.Linear(6, 3), loss, torch.optim.SGD(module.parameters(), 0.0))
    once = float(cross_entropy(module(x), y).detach())
    assert [float(step(x, y)) / once for _ in range(5)] == pytest.approx([2, 1, 2, 1, 2])


@pytest.mark.filterwarnings("ignore::glowtrain.torch.UnkeptAttributeWarning")
class TestTensorsOfATrace:
    """None is left in what outlives the trace."""

    def check(self, prepare: Any) -> None:
        module = Net(prepare)
        step = compiled(module)
        for x, y in data(2):
            step(x, y)
            step(x[:3], y[:3])
            expected = cross_entropy(module(x), y)
            assert type(expected) is torch.Tensor
            assert float(step(x, y)) == pytest.approx(float(expected.detach()), abs=1e-5)

    def test_of_cached_functions(self) -> None:
        triangle.cache_clear()
        self.check(lambda _, x: x @ triangle(6))
        assert type(triangle(6)) is torch.Tensor

    def test_in_dicts_and_lists(self) -> None:
        def cached(_: Any, x: torch.Tensor) -> torch.Tensor:
            if 6 not in CACHE:
                CACHE[6] = torch.ones(6, 6).tril()
            LOG.append(x.mean())
            return x @ CACHE[6]

        CACHE.clear()
        LOG.clear()
        self.check(cached)
        assert {type(each) for each in (*CACHE.values(), *LOG)} == {torch.Tensor}

    def test_in_objects_and_globals(self) -> None:
        def kept(net: Any, x: torch.Tensor) -> torch.Tensor:
            global LAST  # noqa: PLW0603
            net.owner.last = LAST = x.detach()
            return x

        self.check(kept)
        assert type(LAST) is torch.Tensor

    def test_of_parametrizations(self) -> None:
        module = nn.utils.parametrizations.weight_norm(nn.Linear(6, 3))
        ((x, y),) = data(1)
        with parametrize.cached():
            compiled(module)(x, y)
            assert type(module(x)) is torch.Tensor

    def test_what_is_left_is_named(self) -> None:
        def kept(net: Any, x: torch.Tensor) -> torch.Tensor:
            net.owner.last = x.detach()
            LOG.append(x.mean())
            return x

        ((x, y),) = data(1)
        with pytest.warns(gtt.UnkeptAttributeWarning, match=r"leaves as it was \(.*owner\.last, LOG\)"):
            compiled(Net(kept))(x, y)


def test_an_attribute_that_a_call_deletes() -> None:
    def once(net: Any, x: torch.Tensor) -> torch.Tensor:
        if hasattr(net, "previous"):
            del net.previous
        return x

    ((x, y),) = data(1)
    with pytest.warns(gtt.UnkeptAttributeWarning, match=r"leaves as it was \(previous\)"):
        compiled(module := Net(once))(x, y)
    assert module.previous == 0


@pytest.mark.filterwarnings("error::glowtrain.torch.UnkeptAttributeWarning")
def test_a_dict_of_numbers_that_code_computes_once() -> None:
    scales: dict[int, float] = {}
    ((x, y),) = data(1)
    step = compiled(nn.Linear(6, 3), lambda y, t: cross_entropy(y, t) * scales.setdefault(len(y), 1 / len(y)))
    step(x, y)
    step(x[:3], y[:3])
    assert scales.keys() == {16, 3}


@pytest.mark.filterwarnings("error::glowtrain.torch.UnkeptAttributeWarning")
def test_sets_have_no_order() -> None:
    """A copy of one from which much was removed may have another."""
    kept = set(range(100))
    kept -= kept - {9, 40}
    assert [*kept] != [*set(kept)]
    ((x, y),) = data(1)
    module = nn.Linear(6, 3)
    module.kept = kept
    compiled(module, lambda y, t: cross_entropy(y, t) * len(kept))(x, y)


def test_a_tensor_of_an_object_that_goes_from_call_to_call() -> None:
    def averaged(net: Any, x: torch.Tensor) -> torch.Tensor:
        net.owner.last = 0.9 * net.owner.last + x.detach().mean()
        return x + net.owner.last

    module = Net(averaged)
    module.owner.last = torch.zeros(())
    ((x, y),) = data(1)
    assert "reads and assigns" in refusal(lambda: compiled(module)(x, y))
    assert float(module.owner.last) == 0


@pytest.mark.parametrize(
    ("assign", "said"),
    [
        (lambda net, x: setattr(net, "mean", x.detach().mean()), "'mean', float32[6], what is float32[]"),
        (lambda net, x: setattr(net, "mean", x.detach().double().mean(0)), "'mean', float32[6], what is float64[6]"),
        (lambda net, x: setattr(net, "none", x.detach().mean(0)), "registers, replaces or removes 'none'"),
        (lambda net, x: net.register_buffer("late", x.detach()), "registers, replaces or removes 'late'"),
        (lambda net, _: setattr(net, "mean", None), "registers, replaces or removes 'mean'"),
    ],
)
def test_buffers_that_a_call_makes_anew(assign: Any, said: str) -> None:
    """They are refused, and the module is what it was."""

    def prepare(net: Any, x: torch.Tensor) -> torch.Tensor:
        if net.phase:
            assign(net, x)
        return x

    module = Net(prepare)
    module.phase = 1
    ((x, y),) = data(1)
    assert said in refusal(lambda: compiled(module)(x, y))
    assert "late" not in module._buffers
    assert module.none is None
    module.phase = 0
    assert float(compiled(module)(x, y)) == pytest.approx(float(cross_entropy(module(x), y)), abs=1)


def _numbers() -> Any:
    yield from itertools.cycle([1.0, 2.0])


@pytest.mark.parametrize("numbers", [itertools.cycle([1.0, 2.0]), iter([1.0] * 9), _numbers(), itertools.count()])
def test_iterators_are_refused(numbers: Any) -> None:
    ((x, y),) = data(1)
    step = compiled(nn.Linear(6, 3), lambda scores, labels: cross_entropy(scores, labels) * next(numbers))
    assert "draws numbers from a " in refusal(lambda: step(x, y))


KEEPING: dict[str, Callable[[Any], Any]] = {
    "attribute": lambda net: vars(net).setdefault("numbers", itertools.count(1)),
    "attribute of an object": lambda net: vars(net.owner).setdefault("numbers", itertools.cycle([1.0, 2.0])),
    "element": lambda net: net.owner.kept.setdefault("numbers", iter([1.0] * 9)),
    "generator of random numbers": lambda net: iter(vars(net).setdefault("random", random.Random(0)).random, None),
}


@pytest.mark.parametrize("name", KEEPING)
def test_iterators_that_a_call_leaves_to_the_next_are_refused(name: str) -> None:
    ((x, y),) = data(1)
    module = Net(lambda net, x: x * next(KEEPING[name](net)))
    module.owner.kept = {}
    assert "keeps it for the next call" in refusal(lambda: compiled(module)(x, y))
    assert not module.owner.kept
    assert "numbers" not in vars(module)


def test_iterators_that_a_call_uses_up() -> None:
    ((x, y),) = data(1)
    module = Net(lambda _, x: x * sum(itertools.islice(_numbers(), 3)))
    expected = cross_entropy(module(x), y).item()
    assert float(compiled(module)(x, y)) == pytest.approx(expected, rel=1e-5)


class Registry(dict[Any, Any]):
    """Keys its entries otherwise than by what it is asked for, and makes its values anew, as transformers' do."""

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(f"class {key}", value)

    def __getitem__(self, key: Any) -> Any:
        return [super().__getitem__(key)]


REGISTRY = Registry()
REGISTRY[1] = "one"


def registering(net: Any, x: torch.Tensor) -> torch.Tensor:
    REGISTRY[2] = "two"
    return x * len(REGISTRY)


def test_dicts_with_methods_of_their_own_are_left_as_they_are(recwarn: pytest.WarningsRecorder) -> None:
    ((x, y),) = data(1)
    compiled(Net(registering))(x, y)
    assert dict(dict.items(REGISTRY)) == {"class 1": "one", "class 2": "two"}
    assert not [each for each in recwarn if issubclass(each.category, gtt.UnkeptAttributeWarning)]
