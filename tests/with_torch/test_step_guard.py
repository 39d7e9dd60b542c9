"""The guard of a compiled step notices each change of a dict, a list and a tensor, and the bounds of indices."""

from __future__ import annotations

import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

from glowtrain.torch.watching import guard
from glowtrain.torch.watching.dict_versions import CHANGES as DICT_CHANGES
from glowtrain.torch.watching.dict_versions import USES, version_word
from glowtrain.torch.watching.tensor_layout import CHANGES, is_seen, tensor_layout


def test_the_memory_of_tensors_can_be_looked_at() -> None:
    """A step relies on it to be quick; where it is not so, it is slower only."""
    layout = tensor_layout()
    assert layout is not None
    assert all(is_seen(layout, change) for change in CHANGES)


def looking_at(*dicts: dict[str, Any]) -> guard.Guard:
    watching = guard.Guard()
    watching.add_dicts(dicts)
    watching.seal()
    return watching


@pytest.mark.parametrize("quickly", [True, False])
def test_a_guard_looks_at_objects(quickly: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not quickly:
        monkeypatch.setattr(guard, "version_word", lambda: None)
    mapping, elements = {"a": 1, "b": None}, [mse_loss]
    watching = guard.Guard()
    watching.add_dicts([mapping])
    watching.add_list(elements)
    watching.add_item(mapping, "b")
    watching.seal()
    assert watching.holds
    for change, undo in (
        (lambda: mapping.update(c=2), lambda: mapping.pop("c")),
        (lambda: mapping.update(b=2), lambda: mapping.update(b=None)),
        (lambda: elements.append(mse_loss), elements.pop),
    ):
        change()
        assert not watching.holds
        assert not watching.holds
        undo()
        assert watching.holds
        assert watching.holds
    elements[0] = cross_entropy
    assert not watching.holds


def test_what_changes_before_a_guard_is_complete_is_noticed() -> None:
    mapping = {"a": 1}
    watching = guard.Guard()
    watching.add_dicts([mapping])
    mapping["a"] = 2
    watching.seal()
    assert not watching.holds


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="dicts have no version any more")
def test_versions_of_dicts_are_found() -> None:
    """A guard relies on them to be quick; where there are none, it is slower only."""
    assert version_word() is not None


@pytest.mark.parametrize("make", [dict, OrderedDict, lambda given: defaultdict(dict, given)])
@pytest.mark.parametrize("change", DICT_CHANGES[:-2])
def test_changes_of_dicts_are_noticed(make: Callable[..., dict[str, Any]], change: Callable[..., Any]) -> None:
    mapping = make({"a": 1, "b": None})
    watching = looking_at({}, mapping, {"other": 1})
    assert watching.holds
    for use in USES:
        use(mapping)
    assert watching.holds
    change(mapping)
    assert not watching.holds


@pytest.mark.parametrize("change", CHANGES)
def test_changes_of_tensors_are_noticed(change: Callable[[torch.Tensor], None]) -> None:
    tensors = [nn.Parameter(torch.zeros(17, dtype=torch.bfloat16)[:16].view(4, 4)) for _ in range(3)]
    watching = guard.Guard()
    for tensor in tensors:
        watching.add_tensor(tensor)
    watching.seal()
    assert watching.holds
    for tensor in tensors:
        tensor.sum().backward()
        with torch.no_grad():
            tensor.add_(1)
    assert watching.holds
    change(tensors[1])
    assert not watching.holds


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 40])
@pytest.mark.parametrize("low", [0, -3])
def test_bounds_of_numbers(count: int, low: int) -> None:
    numbers = torch.arange(count) % 5 + low
    high = low + 4
    assert guard.within(numbers, low, high, low)
    for at in range(count):
        for wrong in (high + 1, low - 1, 1 << 40):
            other = numbers.clone()
            other[at] = wrong
            assert not guard.within(other, low, high, low)
            assert guard.within(other, low, high, wrong)
