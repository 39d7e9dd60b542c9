"""The guard of a compiled step notices each change of collections and of tensors; memory stays while it is used."""

from __future__ import annotations

import logging
from collections import OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager import data, differences, eager_step, net, state_of, twins
from steps import refusal
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.utils._python_dispatch import TorchDispatchMode

import glowtrain.torch as gtt
from glowtrain.torch.watching.guard import Guard


def test_a_guard_looks_at_objects() -> None:
    mapping, elements, empty = {"a": 1, "b": None}, [mse_loss], dict[str, int]()
    guard = Guard((), [mapping.values(), elements, empty.values()], [(mapping, "b"), (mapping, "missing")])
    assert guard.holds
    for change, undo in (
        (lambda: mapping.update(c=2), lambda: mapping.pop("c")),
        (lambda: mapping.update(b=2), lambda: mapping.update(b=None)),
        (lambda: mapping.update(missing=2), lambda: mapping.pop("missing")),
        (lambda: empty.update(d=2), empty.clear),
        (lambda: elements.append(mse_loss), elements.pop),
    ):
        change()
        assert not guard.holds
        undo()
        assert guard.holds
    elements[0] = cross_entropy
    assert not guard.holds


def test_elements_that_go_from_one_collection_to_the_next() -> None:
    one, other = [cross_entropy, mse_loss], [net]
    guard = Guard((), [one, other])
    other.insert(0, one.pop())
    assert not guard.holds


DICT_CHANGES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "other": lambda changed: changed.__setitem__("a", 2),
    "more": lambda changed: changed.setdefault("c", 2),
    "del": lambda changed: changed.__delitem__("a"),
    "popitem": lambda changed: changed.popitem(),
    "clear": lambda changed: changed.clear(),
    "merge": lambda changed: changed.__ior__({"b": 2}),
    "equal": lambda changed: changed.update(b=torch.tensor(1.0)),
}


@pytest.mark.parametrize("make", [dict, OrderedDict, lambda given: defaultdict(dict, given)])
@pytest.mark.parametrize("change", DICT_CHANGES.values(), ids=DICT_CHANGES.keys())
def test_changes_of_dicts(make: Callable[..., dict[str, Any]], change: Callable[..., Any]) -> None:
    mapping = make({"a": 1, "b": torch.tensor(1.0)})
    guard = Guard((), [mapping.values()])
    assert (mapping["a"], list(mapping), len(mapping.copy())) == (1, ["a", "b"], 2)
    assert guard.holds
    change(mapping)
    assert not guard.holds


def as_negative(tensor: torch.Tensor) -> None:
    tensor.data = torch._neg_view(tensor.data)


def exchanged(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.clone()


def turned(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.t()


def retyped(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(torch.float16)


def reshaped(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.view(2, 8)


def shifted(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data.as_strided((4, 4), (4, 1), 1)


def shrunk(tensor: torch.Tensor) -> None:
    tensor.data = tensor.data[:2]


def swapped(tensor: torch.Tensor) -> None:
    torch.utils.swap_tensors(tensor, nn.Parameter(torch.zeros(4, 4, dtype=torch.bfloat16)))


def resized(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(1 << 22)


def emptied(tensor: torch.Tensor) -> None:
    tensor.untyped_storage().resize_(0)


def set_to_another(tensor: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.set_(torch.zeros(4, 4, dtype=torch.bfloat16))


def shared(tensor: torch.Tensor) -> None:
    tensor.share_memory_()


@pytest.mark.parametrize("quickly", [True, False])
@pytest.mark.parametrize("change", [
    as_negative, exchanged, turned, retyped, reshaped, shifted, shrunk, swapped, resized, emptied, set_to_another,
    shared,
])  # fmt: skip
def test_changes_of_tensors(
    change: Callable[[torch.Tensor], None], quickly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is noticed, and use alone is not, also without the guards of Dynamo."""
    if not quickly:
        monkeypatch.delattr(torch._C._dynamo.guards, "TensorGuards")
    tensors = [nn.Parameter(torch.zeros(17, dtype=torch.bfloat16)[:16].view(4, 4)) for _ in range(3)]
    guard = Guard(tensors)
    assert guard.holds
    for tensor in tensors:
        tensor.sum().backward()
        with torch.no_grad():
            tensor.add_(1)
    assert guard.holds
    change(tensors[1])
    assert not guard.holds


class Counting(TorchDispatchMode):
    """It counts PyTorch's operators."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_other_modes_of_dispatch_are_no_change() -> None:
    (batch,) = data(1)
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.Adam(module.parameters()))
    step(*batch)
    before = list(step._compiled.values())
    with torch.no_grad(), Counting() as mode:
        step(*batch)
    assert list(step._compiled.values()) == before
    assert mode.count < 20


def with_weights_elsewhere(module: nn.Module, _: torch.optim.Optimizer) -> None:
    for parameter in module.parameters():
        parameter.data = parameter.data.clone()


def with_weights_set(module: nn.Module, _: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        module[0].weight.set_(module[0].weight.detach() * 2)


def with_weights_shared(module: nn.Module, _: torch.optim.Optimizer) -> None:
    module.share_memory()


def with_weights_to_and_fro(module: nn.Module, _: torch.optim.Optimizer) -> None:
    module.double().float()


def with_state_elsewhere(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].data = state["exp_avg"].data * 2


def with_other_state(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    state = optimizer.state[module[0].weight]
    state["exp_avg_sq"] = state["exp_avg_sq"] * 4


def with_counts_elsewhere(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["step"].data = torch.tensor(100.0)


def with_state_shared(_: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for state in optimizer.state.values():
        state["exp_avg"].share_memory_()


@pytest.mark.parametrize("change", [
    with_weights_elsewhere, with_weights_set, with_weights_shared, with_weights_to_and_fro, with_state_elsewhere,
    with_counts_elsewhere, with_other_state, with_state_shared,
])  # fmt: skip
def test_memory_that_is_moved(change: Callable[[nn.Module, torch.optim.Optimizer], None]) -> None:
    """What was there before may be given to others, who keep it as they have it."""
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step, others = gtt.compile_step(module, cross_entropy, optimizer), []
    for number, batch in enumerate(data(6)):
        if number == 3:
            change(module, optimizer)
            change(other, theirs)
            others = [torch.full((size,), 7.0) for size in (16 * 6, 16, 3 * 16, 3) for _ in range(100)]
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert all(bool((each == 7).all()) for each in others)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-5


def test_what_a_step_is_compiled_anew_for_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    (batch,) = data(1)
    teacher, module = torch.tensor([0, 1, 2]), net()
    optimizer = torch.optim.Adam(module.parameters())
    step = gtt.compile_step(module, lambda y, t: cross_entropy(y[:, teacher], t), optimizer)

    def cause(change: Callable[[], Any]) -> str:
        step(*batch)
        caplog.clear()
        change()
        with caplog.at_level(logging.INFO, "glowtrain.torch"):
            step(*batch)
        return caplog.text

    assert "anew: 0.weight, 3.bias moved" in cause(lambda: [exchanged(module[0].weight), exchanged(module[3].bias)])
    assert "anew: modules have other tensors, submodules" in cause(lambda: module.__setitem__(1, nn.ReLU()))
    assert "anew: tensors or modules that the loss captures" in cause(lambda: teacher.add_(1).remainder_(3))
    assert "anew: the optimizer has other groups or state" in cause(optimizer.state.clear)
    assert cause(lambda: None) == ""


def test_memory_that_a_step_works_on_cannot_be_resized() -> None:
    (batch,) = data(1)
    module = net()
    optimizer = torch.optim.Adam(module.parameters())
    step = gtt.compile_step(module, cross_entropy, optimizer)
    step(*batch)
    state = [each for entry in optimizer.state.values() for each in entry.values()]
    for tensor in [*module.parameters(), *state]:
        assert not tensor.untyped_storage().resizable()


def test_batches_may_be_resized_after_a_step() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    x, y = torch.empty(0), torch.empty(0, dtype=torch.long)
    for size in (4, 9, 4):
        ((rows, labels),) = data(1, size)
        torch.cat([rows], out=x), torch.cat([labels], out=y)
        expected = eager_step(other, cross_entropy, theirs, (x, y))
        assert float(step(x, y)) == pytest.approx(float(expected), abs=1e-5)
        x.resize_(0), y.resize_(0)


def test_batches_whose_memory_was_resized() -> None:
    ((x, y),) = data(1)
    step = gtt.compile_step(module := net(), cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
    step(x, y)
    before = module[0].weight.detach().clone()
    for size in (0, x.nbytes - 4):
        x.untyped_storage().resize_(size)
        assert f"its storage was resized to {size} bytes" in refusal(lambda: step(x, y))
    assert torch.equal(module[0].weight, before)
