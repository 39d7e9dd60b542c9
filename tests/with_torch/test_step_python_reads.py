"""What Python code of a module or a loss reads or draws: a step computes what eager PyTorch does, or says why not."""

from __future__ import annotations

import cProfile
import functools
import gc
import random
import types
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from eager import differences, eager_step, twins
from steps import compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import glowtrain.torch as gtt

X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])
BETA = 1.0
TABLE = {"weights": [1.0, 2.0]}


class Settings:
    scale = 1.0

    def __init__(self) -> None:
        self.offset = 1

    @property
    def shifted(self) -> float:
        return self.offset + 0.5


class Reading(nn.Module):
    """It reads its own attributes, by methods, properties and names too."""

    factor = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.dropout = nn.Linear(6, 3), nn.Dropout(0.0)
        self.tau, self.deep, self.power, self.unread = 1.0, True, (1, 2), 0
        self.settings, self.act, self.recent = Settings(), torch.tanh, deque([1.0])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.dropout(self.act(self.linear(x))) / self._temperature() * self.settings.shifted
        y = y * self.recent[-1] * getattr(self.settings, "late", 1.0)
        return (y + y.detach() ** self.power[1] if self.deep else y) * Settings.scale * getattr(self, "factor")  # noqa: B009

    def _temperature(self) -> float:
        return self.tau


def constants(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return cross_entropy(y, target) * BETA * TABLE["weights"][1] + y.mean()


def set_global(name: str, value: Any) -> None:
    globals()[name] = value


CHANGES: dict[str, Callable[[Reading], Any]] = {
    "number": lambda module: setattr(module, "tau", 2.0),
    "bool": lambda module: setattr(module, "deep", False),
    "tuple": lambda module: setattr(module, "power", (1, 3)),
    "function": lambda module: setattr(module, "act", torch.relu),
    "attribute of an attribute": lambda module: setattr(module.settings, "offset", 2),
    "object": lambda module: setattr(module, "settings", types.SimpleNamespace(shifted=3.0)),
    "attribute over that of the class": lambda module: setattr(module, "factor", 3.0),
    "attribute that was not there": lambda module: setattr(module.settings, "late", 3.0),
    "element of a deque": lambda module: module.recent.append(2.0),
    "layer's number": lambda module: setattr(module.dropout, "p", 1.0),
    "class": lambda module: setattr(Settings, "scale", 2.0),
    "global": lambda module: set_global("BETA", 3.0),
    "element": lambda module: TABLE["weights"].__setitem__(1, 5.0),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_what_a_module_and_a_loss_read(change: Callable[[Reading], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Settings, "scale", 1.0)
    monkeypatch.setitem(globals(), "BETA", 1.0)
    monkeypatch.setitem(TABLE, "weights", [1.0, 2.0])
    module, optimizer, other, theirs = twins(Reading(), lambda ps: torch.optim.SGD(ps, 0.05))
    step = gtt.compile_step(module, constants, optimizer)
    for number in range(4):
        if number == 2:
            change(module), change(other)
        expected = float(eager_step(other, constants, theirs, (X, Y)))
        assert float(step(X, Y)) == pytest.approx(expected, rel=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4
    assert len(step._compiled) == 2


def test_variables_of_enclosing_functions() -> None:
    """Numbers, and tensors and modules that others take the place of, also within partial functions."""
    beta, weights, teacher = 0.0, torch.ones(3), nn.Linear(6, 3)
    module = nn.Linear(6, 3)

    def loss_fn(power: int, y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return mse_loss(y * weights, teacher(x).detach()) + beta * y.abs().sum() ** power

    bound = partial(loss_fn, 2)
    step = gtt.compile_step(module, bound, torch.optim.SGD(module.parameters(), 0.0))

    def same() -> bool:
        return all(float(step(X, X)) == pytest.approx(bound(module(X), X).item(), rel=1e-4) for _ in range(3))

    assert same()
    beta = 100.0
    assert same()
    weights = torch.full((3,), 2.0)
    assert same()
    teacher = nn.Linear(6, 3)
    assert same()
    assert bound.args == (2,)


def test_values_that_come_back_are_compiled_once() -> None:
    module = Reading()
    module.factor = 1.0
    step = compiled(module)
    for factor in (1.0, 2.0, 1.0, 2.0):
        module.factor, module.unread = factor * 1.0, module.unread + 1
        step(X, Y)
        step(X, Y)
    assert len(step._compiled) == 2


def test_a_value_that_is_another_one_in_each_call() -> None:
    """Compiled right for each, with a warning that names it and says what to do."""

    class Counting(nn.Linear):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x) * self.calls

    module, optimizer, other, theirs = twins(Counting(6, 3), lambda ps: torch.optim.SGD(ps, 0.01))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    with pytest.warns(
        gtt.RecompilationWarning, match=r"Counting\.calls had more than 3 values.*make a tensor of it"
    ) as said:
        losses = [float(step(X, Y)) for _ in range(5)]
    assert [each.filename for each in said] == [__file__]
    assert losses == pytest.approx(
        [float(eager_step(other, cross_entropy, theirs, (X, Y))) for _ in range(5)], rel=1e-4
    )


DRAWS: dict[str, Callable[[], float]] = {
    "random": lambda: random.random(),  # noqa: PLW0108  a name that is looked up when called
    "numpy.random": lambda: np.random.beta(0.4, 0.4),  # noqa: NPY002
    "Generator": functools.partial(lambda own: float(own.random()), np.random.default_rng(0)),
}


@pytest.mark.parametrize(("source", "draw"), DRAWS.items(), ids=DRAWS.keys())
def test_random_numbers_of_python_and_numpy(source: str, draw: Callable[[], float]) -> None:
    said = refusal(lambda: compiled(nn.Linear(6, 3), lambda y, t: draw() * cross_entropy(y, t))(X, Y))
    assert source in said
    assert "draw them by PyTorch" in said


def test_generators_that_nobody_draws_from() -> None:
    module = nn.Linear(6, 3)
    module.rng = unread = np.random.default_rng(0)
    step = compiled(module, lambda y, t: cross_entropy(y, t) if unread is not None else y.sum())
    assert float(step(X, Y)) == pytest.approx(cross_entropy(module(X), Y).item(), rel=0.2)


def test_code_of_libraries_is_not_followed() -> None:
    """Only what it mentions of a module: a network of PyTorch's layers has few values to look at."""
    layers = nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()) for _ in range(10)])
    (step := compiled(layers))(X, Y)
    (traced,) = step._compiled.values()
    assert 0 < len(traced.reads.values) < 200
    assert traced.reads.unchanged


def helper(y: torch.Tensor) -> torch.Tensor:
    return y * BETA


class Choosing(nn.Linear):
    other = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return helper(y) if self.other else y


def test_code_that_has_not_run_is_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until it runs: each compiled step follows its own."""
    monkeypatch.setitem(globals(), "BETA", 1.0)
    step = compiled(module := Choosing(6, 3))
    step(X, Y)
    set_global("BETA", 2.0)
    step(X, Y)
    assert len(step._compiled) == 1
    module.other = True
    step(X, Y)
    set_global("BETA", 3.0)
    expected = cross_entropy(module(X), Y).item()
    assert float(step(X, Y)) == pytest.approx(expected, rel=1e-4)
    assert len(step._compiled) == 3
    module.other = False
    step(X, Y)
    assert len(step._compiled) == 3


def test_a_profiler_goes_on_after_a_trace() -> None:
    def compile_and_compute() -> None:
        compiled(nn.Linear(6, 3))(X, Y)
        helper(X)

    profile = cProfile.Profile()
    profile.runcall(compile_and_compute)
    profile.create_stats()
    assert any(name == "helper" for _, _, name in profile.stats)  # type: ignore[attr-defined]  # made by create_stats


FINALIZED = [0]


class Finalized:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.own = self

    def __del__(self) -> None:
        FINALIZED[0] += 1


def test_finalizers_of_garbage_are_no_code_of_the_step() -> None:
    """What they read and change has nothing to do with it."""

    def loss(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        Finalized()
        gc.collect()
        return cross_entropy(y, t)

    step = compiled(nn.Linear(6, 3), loss)
    step(X, Y)
    assert FINALIZED[0] > 0
    FINALIZED[0] += 7
    step(X, Y)
    assert len(step._compiled) == 1


def test_callbacks_of_the_garbage_collector_are_no_code_of_the_step() -> None:
    """Those that stand before ours and after it: hypothesis measures time in one."""

    def count(phase: str, _: object) -> None:
        FINALIZED[0] += 1

    def loss(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        gc.collect()
        return cross_entropy(y, t)

    gc.callbacks.insert(0, count)
    try:
        step = compiled(nn.Linear(6, 3), loss)
        step(X, Y)
        step(X, Y)
        assert len(step._compiled) == 1
    finally:
        gc.callbacks.remove(count)


class Strict:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"there is no {name}")


class Slots:
    __slots__ = ("bias", "scale")


class Registry:
    entries = Strict()
    slots = Slots()


def test_names_that_objects_do_not_have() -> None:
    """Errors of their own, and slots that are empty."""

    def loss(y: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        own = cross_entropy(y, t) if Registry.entries else y.sum()
        return own + Registry.slots.bias if Registry.slots.scale else own

    Registry.slots.scale = 0.0
    step = gtt.compile_step(module := nn.Linear(6, 3), loss, torch.optim.SGD(module.parameters(), 0.0))
    before = step(X, Y)
    Registry.slots.bias, Registry.slots.scale = 5.0, 1.0
    torch.testing.assert_close(step(X, Y), before + 5)
    Registry.slots.bias = 7.0
    torch.testing.assert_close(step(X, Y), before + 7)


def test_numbers_as_arguments() -> None:
    step = compiled(nn.Linear(6, 3), lambda y, t, beta: cross_entropy(y, t) * beta, targets=2)
    with pytest.warns(gtt.RecompilationWarning, match=r"pass torch\.tensor\(value\)") as said:
        assert all(step(X, Y, beta).isfinite() for beta in (1.0, 1.0, 2.0, 3.0, 4.0))
    assert [each.filename for each in said] == [__file__]
