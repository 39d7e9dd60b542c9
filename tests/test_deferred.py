"""Dataclasses whose methods are written when they are first asked for: as the standard library's, in any order and by
any number of threads."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain import deferred

THREADS, CLASSES = 8, 50
OPTIONS = st.fixed_dictionaries(
    {}, optional={"frozen": st.booleans(), "eq": st.booleans(), "repr": st.booleans(), "kw_only": st.booleans()}
)
KINDS = st.lists(
    st.sampled_from(("default", "factory", "keyword", "hidden", "uncompared", "not an argument")), max_size=4
)
Decorator = Callable[..., Any]


@deferred.dataclass(frozen=True)
class Point:
    """Two numbers."""

    x: int
    y: int = 2


@deferred.dataclass(frozen=True)
class Named(Point):
    """With a name, and what it was called before."""

    name: str = "n"
    former: tuple[str, ...] = dataclasses.field(default=(), compare=False)


def made(decorator: Decorator, kinds: list[str], options: dict[str, bool], *, checked: bool) -> Any:
    """A class of a required field and one of each kind."""
    ways: dict[str, Any] = {
        "default": lambda: 3,
        "factory": lambda: dataclasses.field(default_factory=list),
        "keyword": lambda: dataclasses.field(kw_only=True),
        "hidden": lambda: dataclasses.field(default=4, repr=False),
        "uncompared": lambda: dataclasses.field(default=5, compare=False, hash=False),
        "not an argument": lambda: dataclasses.field(default=6, init=False),
    }
    fields = {f"{kind.replace(' ', '_')}_{at}": ways[kind]() for at, kind in enumerate(kinds)}
    space: dict[str, Any] = {"__annotations__": {"first": int, **dict.fromkeys(fields, int)}, **fields}
    if checked:
        space["__post_init__"] = check_first
    return decorator(**options)(type("Drawn", (), space))


def check_first(self: Any) -> None:
    """No number is negative."""
    if self.first < 0:
        raise ValueError("negative")


def seen(cls: Any) -> list[Any]:
    """What can be told of a class by using it."""
    keywords = {field.name: 7 for field in dataclasses.fields(cls) if field.kw_only and field.init}
    keywords.pop("first", None)
    tries: list[Callable[[], Any]] = [
        lambda: str(inspect.signature(cls)),
        lambda: [(field.name, field.kw_only, field.init) for field in dataclasses.fields(cls)],
        lambda: cls.__match_args__,
        lambda: vars(cls()),
        lambda: vars(cls(first=-1, **keywords)),
        lambda: vars(cls(first=1, **keywords)),
        lambda: cls(first=1, **keywords) == cls(first=1, **keywords),
        lambda: cls(first=1, **keywords) == cls(first=2, **keywords),
        lambda: hash(cls(first=1, **keywords)) == hash(cls(first=1, **keywords)),
        lambda: setattr(cls(first=1, **keywords), "first", 2),
        lambda: delattr(cls(first=1, **keywords), "first"),
        lambda: repr(cls(first=1, **keywords)).partition(" object at ")[0],
        lambda: vars(dataclasses.replace(cls(first=1, **keywords), first=3)),
    ]
    return [outcome(each) for each in tries]


def outcome(call: Callable[[], Any]) -> Any:
    """A result, or the error."""
    try:
        return call()
    except (TypeError, ValueError, AttributeError) as error:
        return type(error), str(error)


@given(KINDS, OPTIONS, st.booleans(), st.integers(0, 13))
def test_a_class_is_the_standard_librarys(
    kinds: list[str], options: dict[str, bool], checked: bool, begin: int
) -> None:
    """Whatever is asked of it first."""
    expected = seen(made(dataclasses.dataclass, kinds, options, checked=checked))
    cls = made(deferred.dataclass, kinds, options, checked=checked)
    assert outcome(lambda: (str(inspect.signature(cls)), cls.__match_args__, repr(cls))[begin % 3]) is not None
    assert seen(cls) == expected


def test_nothing_is_written_for_a_class_that_nobody_uses() -> None:
    @deferred.dataclass(frozen=True)
    class Unused:
        x: int

    assert not inspect.isfunction(vars(Unused)["__init__"])
    assert vars(Unused)["__dataclass_params__"].frozen
    assert not inspect.isfunction(vars(Unused)["__init__"])
    assert Unused(1).x == 1
    assert inspect.isfunction(vars(Unused)["__init__"])


@pytest.mark.parametrize("decorator", [dataclasses.dataclass, deferred.dataclass])
def test_classes_can_be_derived(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Weighted(Named):
        weight: float = 1.0

    class Plain(Weighted):
        """Without a decorator of its own."""

    value = Plain(1, name="a")
    assert repr(value).endswith("Plain(x=1, y=2, name='a', former=(), weight=1.0)")
    assert (value.x, Weighted.weight) == (1, 1.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.x = 2  # type: ignore[misc]
    loose = deferred.dataclass(type("Loose", (Point,), {"__annotations__": {"z": int}, "z": 0}))
    with pytest.raises(TypeError, match="cannot inherit non-frozen"):
        dataclasses.fields(loose)


def test_objects_are_copied_pickled_and_matched() -> None:
    value = Named(1, name="a", former=("b",))
    assert pickle.loads(pickle.dumps(value)) == copy.deepcopy(value) == Named(1, name="a")
    match value:
        case Named(x, y, "a"):
            assert (x, y) == (1, 2)
        case _:
            pytest.fail("no match")


def test_comparing_in_ones_own_way_keeps_a_frozen_class_hashable() -> None:
    @deferred.dataclass(frozen=True)
    class Rounded:  # noqa: PLW1641  (its hash is the decorator's)
        x: float

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Rounded) and round(self.x) == round(other.x)

    assert Rounded(1.0) == Rounded(1.2)
    assert hash(Rounded(1.0)) == hash(Rounded(1.0))
    with pytest.raises(TypeError, match="unhashable"):
        hash(made(deferred.dataclass, [], {}, checked=False)(1))


@pytest.mark.parametrize("decorator", [dataclasses.dataclass, deferred.dataclass])
def test_methods_of_ones_own_stay(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Own:
        x: int
        __hash__ = None  # type: ignore[assignment]

        def __repr__(self) -> str:
            return f"own {self.x}"

    assert repr(Own(1)) == "own 1"
    assert Own(1) == Own(1)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Own(1))
    defined = type("Defined", (), {"__annotations__": {"x": int}, "__setattr__": object.__setattr__})
    with pytest.raises(TypeError, match="Cannot overwrite attribute __setattr__"):
        decorator(frozen=True)(defined)(1)


@pytest.mark.parametrize("decorator", [dataclasses.dataclass, deferred.dataclass])
def test_what_derived_classes_give_another_default_or_change(decorator: Decorator) -> None:
    @decorator(frozen=True)
    class Base:
        x: int = 1
        items: tuple[Any, ...] = dataclasses.field(default=(), repr=False, hash=False)

    @decorator(frozen=True)
    class Derived(Base):
        y: int = 5
        x: int = dataclasses.field(default=3, kw_only=True)

    class Free(Derived):
        pass

    assert [field.name for field in dataclasses.fields(Derived)] == ["x", "items", "y"]
    assert repr(Derived((), 4)).endswith("Derived(x=3, y=4)")
    assert hash(Derived(([],), 4)) == hash(Derived(([2],), 4))
    assert Derived() != Base()
    assert Derived.__eq__(Derived(), 3) is NotImplemented
    free = Free()
    free.other = 3  # type: ignore[attr-defined]  # it is no field of the frozen class
    del free.other  # type: ignore[attr-defined]
    with pytest.raises(dataclasses.FrozenInstanceError, match="cannot delete field 'y'"):
        del free.y  # type: ignore[misc]
    nested = Base(items=[])  # type: ignore[arg-type]
    object.__setattr__(nested, "x", nested)
    assert repr(nested).endswith("Base(x=...)")
    with pytest.raises(ValueError, match="mutable default"):
        decorator(type("Mutable", (), {"__annotations__": {"x": list}, "x": []}))()
    with pytest.raises(TypeError, match="no type annotation"):
        decorator(type("Bare", (), {"x": dataclasses.field(default=1)}))()


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_threads_that_make_the_first_objects_at_once() -> None:
    classes = [made(deferred.dataclass, ["default"] * 4, {"frozen": True}, checked=True) for _ in range(CLASSES)]
    barrier = Barrier(THREADS)

    def work(_: int) -> list[Any]:
        barrier.wait()
        return [cls(1) for cls in classes]

    with ThreadPoolExecutor(THREADS) as pool:
        rows = list(pool.map(work, range(THREADS)))
    assert all(row == rows[0] for row in rows)
