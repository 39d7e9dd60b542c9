"""What the Python code of a step reaches is replaced between steps, and the next step computes with what is there now:
functions, methods, objects; names that code makes up; state in places that are easily overlooked."""

from __future__ import annotations

import functools
import itertools
import types
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import asdict, astuple, dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from eager import data
from steps import compiled
from torch import nn
from torch.nn import functional as F

import glowtrain.torch as gtt
from glowtrain.errors import InputError

DEPTH = 0
SETTINGS = types.ModuleType("settings")


def single(x: torch.Tensor) -> torch.Tensor:
    return x


def triple(x: torch.Tensor) -> torch.Tensor:
    return 3 * x


@dataclass
class Scale:
    factor: float = 1.0

    def once(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor * 2

    @staticmethod
    def fixed(x: torch.Tensor) -> torch.Tensor:
        return x

    @property
    def double(self) -> float:
        return 2 * self.factor


class Scaled(nn.Module):
    """A layer whose inputs go through whatever ``use`` makes of it."""

    def __init__(self, use: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.use, self.linear, self.function, self.scale, self.other = use, nn.Linear(6, 3), single, Scale(), Scale(3.0)
        self.method, self.chosen, self.w_0 = self.scale.once, self.scale, 1.0
        self.partly: Any = functools.partial(F.leaky_relu)
        self.cached: Any = functools.lru_cache(lambda: 1.0)
        self.pool: Any = F.max_pool1d

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(self.use(self, x))
        return result

    def prepared(self, x: torch.Tensor) -> torch.Tensor:
        return x


def scaled_by(x: torch.Tensor, factor: float) -> torch.Tensor:
    return x * factor


Change = Callable[[Any], object]
USES: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], Change]] = {
    "function": (lambda m, x: m.function(x), lambda m: setattr(m, "function", triple)),
    "bound method": (lambda m, x: m.method(x), lambda m: setattr(m, "method", m.scale.twice)),
    "method of another object": (lambda m, x: m.method(x), lambda m: setattr(m, "method", m.other.once)),
    "partial": (lambda m, x: m.partly(x), lambda m: setattr(m, "partly", functools.partial(torch.tanh))),
    "cached": (lambda m, x: x * m.cached(), lambda m: setattr(m, "cached", functools.lru_cache(lambda: 2.0))),
    "function of PyTorch": (
        lambda m, x: m.pool(x[:, None], 6)[:, 0] + x, lambda m: setattr(m, "pool", F.adaptive_avg_pool1d)
    ),
    "method of the instance": (
        lambda m, x: m.prepared(x), lambda m: setattr(m, "prepared", types.MethodType(lambda _, x: 2 * x, m))
    ),
    "forward of a layer": (
        lambda _, x: x, lambda m: setattr(m.linear, "forward", lambda x: F.linear(x, m.linear.weight))
    ),
    "object": (lambda m, x: m.chosen.once(x), lambda m: setattr(m, "chosen", m.other)),
    "one of two objects": (
        lambda m, x: x * m.chosen.factor + m.scale.factor - m.other.factor, lambda m: setattr(m, "chosen", m.other)
    ),
    "attributes by vars": (lambda m, x: scaled_by(x, **vars(m.scale)), lambda m: setattr(m.scale, "factor", 2.0)),
    "attributes as a dict": (lambda m, x: scaled_by(x, **asdict(m.scale)), lambda m: setattr(m.scale, "factor", 2.0)),
    "attributes as a tuple": (lambda m, x: x * astuple(m.scale)[0], lambda m: setattr(m.scale, "factor", 2.0)),
    "a name made up": (lambda m, x: x * getattr(m, f"w_{m.linear.in_features - 6}"), lambda m: setattr(m, "w_0", 2.0)),
}  # fmt: skip


def losses(run: Callable[[Any], Callable[..., Any]], use: Any, change: Change) -> list[float]:
    torch.manual_seed(0)
    module, found = Scaled(use), []
    step = run(module)
    for number, (x, y) in enumerate(data(4)):
        if number == 2:
            change(module)
        found.append(float(step(x, y)))
    return found


def eagerly(module: nn.Module) -> Callable[..., torch.Tensor]:
    return lambda x, y: F.cross_entropy(module(x), y).detach()


def frozen(module: nn.Module) -> Any:
    """A step that leaves the parameters as they are."""
    return gtt.compile_step(module, F.cross_entropy, torch.optim.SGD(module.parameters(), lr=0.0))


@pytest.mark.parametrize("name", USES)
def test_the_next_step_uses_what_is_there(name: str) -> None:
    use, change = USES[name]
    assert losses(frozen, use, change) == pytest.approx(losses(eagerly, use, change), rel=1e-5)
    assert losses(eagerly, use, change) != pytest.approx(losses(eagerly, use, lambda _: None), rel=1e-5)


MEMBERS: dict[str, tuple[Any, Any]] = {
    "once": (lambda m, x: m.scale.once(x), Scale.twice),
    "fixed": (lambda m, x: m.scale.fixed(x), staticmethod(triple)),
    "double": (lambda m, x: x * m.scale.double, property(lambda _: 5.0)),
}


@pytest.mark.parametrize("name", MEMBERS)
def test_members_of_a_class(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    use, member = MEMBERS[name]
    found = []
    for run in (eagerly, frozen):
        with monkeypatch.context() as patch:
            found.append(losses(run, use, lambda _, patch=patch: patch.setattr(Scale, name, member)))
    assert found[0] == pytest.approx(found[1], rel=1e-5)


class Counter:
    """A count in an object that is replaced."""

    def __init__(self) -> None:
        self.count = 0


def counted(m: Any, x: torch.Tensor) -> torch.Tensor:
    m.scale.count = (m.scale.count + 1) % 3
    return x * (1 + m.scale.count)


def test_an_equal_object_in_place_of_one_that_is_assigned_to() -> None:
    def renew(module: Any) -> None:
        module.scale = Counter()

    def run_from(run: Any) -> Any:
        def begin(module: Any) -> Any:
            renew(module)
            return run(module)

        return begin

    assert losses(run_from(frozen), counted, renew) == pytest.approx(losses(run_from(eagerly), counted, renew))


def deeper(x: torch.Tensor) -> torch.Tensor:
    global DEPTH  # noqa: PLW0603
    DEPTH = (DEPTH + 1) % 3
    return x * (1 + DEPTH)


def deepest(m: Any, x: torch.Tensor) -> torch.Tensor:
    global DEPTH  # noqa: PLW0603
    DEPTH = (DEPTH + 1) % 3
    return deeper(x) * (1 + DEPTH)


def in_another_module(m: Any, x: torch.Tensor) -> torch.Tensor:
    SETTINGS.count = (SETTINGS.count + 1) % 3
    return x * (1 + SETTINGS.count)


@pytest.mark.parametrize("use", [deepest, in_another_module], ids=["written by two functions", "of another module"])
def test_globals(use: Any) -> None:
    global DEPTH
    found = []
    for run in (eagerly, frozen):
        DEPTH, SETTINGS.count = 0, 0
        found.append((losses(run, use, lambda _: None), DEPTH, SETTINGS.count))
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1:] == found[1][1:]


class Teacher(nn.Module):
    """A module that is asked by a method, and never called."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.last = 0, None

    def ask(self, x: torch.Tensor) -> torch.Tensor:
        self.asked, self.last = self.asked + 1, x.mean()
        return x * self.asked


@pytest.mark.filterwarnings("ignore::glowtrain.torch.UnkeptAttributeWarning")
def test_modules_that_are_not_called() -> None:
    found = []
    for run in (eagerly, frozen):
        teacher = Teacher()
        found.append((losses(run, lambda _, x, t=teacher: t.ask(x), lambda _: None), teacher.asked))
        assert teacher.last is None or type(teacher.last) is torch.Tensor
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1] == found[1][1]


ORDERED = OrderedDict(first=1.0, second=2.0)
FILLED: list[torch.Tensor] = []
APPEND = FILLED.append


def ordered(_: Any, x: torch.Tensor) -> torch.Tensor:
    ORDERED["third"] = x
    return x


def appended(_: Any, x: torch.Tensor) -> torch.Tensor:
    APPEND(x)
    return x


def defaulted(_: Any, x: torch.Tensor, kept: list[torch.Tensor] = FILLED) -> torch.Tensor:
    kept.append(x)
    return x


@pytest.mark.parametrize("use", [ordered, appended, defaulted])
def test_containers_that_code_fills_are_left_whole(use: Any) -> None:
    ((x, y),) = data(1)
    with pytest.warns(gtt.UnkeptAttributeWarning):
        compiled(Scaled(use))(x, y)
    assert not FILLED
    assert repr(ORDERED) == repr(OrderedDict(first=1.0, second=2.0))


def test_modes_that_code_sets() -> None:
    found = []
    for run in (eagerly, frozen):
        norm = nn.BatchNorm1d(6)

        def fixed(_: Any, x: torch.Tensor, norm: nn.Module = norm) -> torch.Tensor:
            norm.eval()
            return x if norm.training else 2 * x

        found.append((losses(run, fixed, lambda _, norm=norm: norm.train()), norm.training))
    assert found[0][0] == pytest.approx(found[1][0])
    assert found[0][1] is found[1][1] is False


def test_parameters_that_code_freezes_are_refused() -> None:
    def freezing(m: Any, x: torch.Tensor) -> torch.Tensor:
        m.linear.bias.requires_grad_(False)
        return x

    ((x, y),) = data(1)
    with pytest.raises(
        gtt.ModelError if hasattr(gtt, "ModelError") else Exception, match=r"requires_grad of linear\.bias"
    ):
        compiled(Scaled(freezing))(x, y)


def _primed() -> Any:
    yield from itertools.cycle([1.0, 2.0])


PRIMED = _primed()
next(PRIMED)
ITERATORS: dict[str, Any] = {
    "islice": itertools.islice(itertools.count(), 100),
    "map": map(lambda each: each, itertools.count()),  # noqa: C417  the kind that is tested
    "reversed": reversed([1.0] * 99),
    "product": itertools.product([1.0, 2.0], repeat=5),
    "generator within another": PRIMED,
}


@pytest.mark.parametrize("name", ITERATORS)
def test_iterators_of_all_kinds_are_refused(name: str) -> None:
    numbers = SimpleNamespace(it=ITERATORS[name])

    def used(_: Any, x: torch.Tensor) -> torch.Tensor:
        return x * len(str(next(numbers.it)))

    ((x, y),) = data(1)
    with pytest.raises(InputError, match="draws numbers"):
        compiled(Scaled(used))(x, y)
