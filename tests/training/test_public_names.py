"""What a person finds by completing a name, and what the functions there take."""

from __future__ import annotations

from types import ModuleType

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError, ShapeError
from glowtrain.graph import registered


@pytest.mark.parametrize(
    "module", [gt.losses, gt.metrics, gt.data, gt.optim, gt.nn], ids=lambda module: module.__name__
)
def test_only_what_is_public_is_offered(module: ModuleType) -> None:
    assert sorted(dir(module)) == sorted(module.__all__)
    assert {"np", "Any", "annotations", "Mapping", "dataclass"}.isdisjoint(dir(module))
    assert all(hasattr(module, name) for name in module.__all__)


def test_operators_are_found_by_name() -> None:
    own = {cls.__name__ for cls in registered() if cls.__module__.startswith("glowtrain.ops")}
    assert set(dir(gt.ops)) == own
    x = gt.Input(gt.f32[2], "x")
    assert gt.ops.Tanh()(x).type == x.type
    assert gt.ops.Pad.__name__ == "Pad"
    with pytest.raises(AttributeError, match="has no operator 'Convv'"):
        gt.ops.Convv  # noqa: B018


def test_shapes_and_axes_one_by_one_or_as_one() -> None:
    x = gt.Input(gt.f32[2, 3, 4], "x")
    assert gt.nn.reshape(x, 6, -1).shape == gt.nn.reshape(x, (6, -1)).shape == (6, 4)
    assert gt.nn.transpose(x, 0, 2, 1).shape == gt.nn.transpose(x, [0, 2, 1]).shape == (2, 4, 3)
    assert gt.nn.transpose(x).shape == (4, 3, 2)
    for wrong in (2.0, "2", None):
        with pytest.raises(ShapeError, match="reshape: shape must be whole numbers of at least -1"):
            gt.nn.reshape(x, wrong, 3)  # type: ignore[arg-type]
        with pytest.raises(ShapeError, match="transpose: axes must be whole numbers of at least 0"):
            gt.nn.transpose(x, (wrong,))  # type: ignore[arg-type]


def test_the_sum_has_both_names() -> None:
    assert gt.nn.sum is gt.nn.total


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gt.optim.Warmup(20, gt.optim.Cosine(80)), r"Warmup\(\.\.\.\)\.then\(Cosine\(\.\.\.\)\)"),
        (lambda: gt.optim.Cosine("80"), r"Cosine takes numbers, not '80' \(str\)"),
    ],
)
def test_schedules_take_numbers(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


def test_schedules_take_numbers_of_numpy() -> None:
    assert gt.optim.Cosine(np.int64(80)) == gt.optim.Cosine(80)
