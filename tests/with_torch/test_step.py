"""compile_step: the losses, parameters, buffers and optimizer's state of PyTorch, in the module's own memory."""

from __future__ import annotations

import copy
import gc
import resource
import sys
import warnings
import weakref
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from eager import Batch, differences, eager_step, twins
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
    register_module_full_backward_pre_hook,
)
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

import glowtrain as gt
import glowtrain.torch as gtt
from glowtrain.torch.watching import guard
from glowtrain.torch.watching.dict_versions import CHANGES as DICT_CHANGES
from glowtrain.torch.watching.dict_versions import USES, version_word
from glowtrain.torch.watching.tensor_layout import CHANGES, is_seen, tensor_layout

Make = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]

OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.05),
    "sgd, momentum": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, weight_decay=1e-3),
    "sgd, nesterov": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, nesterov=True),
    "sgd, dampening": lambda ps: torch.optim.SGD(ps, 0.05, momentum=0.9, dampening=0.5),
    "sgd, maximize": lambda ps: torch.optim.SGD(ps, 1e-3, maximize=True),
    "adam": lambda ps: torch.optim.Adam(ps, 1e-2, weight_decay=1e-3),
    "adam, decoupled": lambda ps: torch.optim.Adam(ps, 1e-2, weight_decay=0.1, decoupled_weight_decay=True),
    "adam, tensor": lambda ps: torch.optim.Adam(ps, torch.tensor(1e-2)),
    "adamw": lambda ps: torch.optim.AdamW(ps, 1e-2, betas=(0.8, 0.99), weight_decay=0.1),
    "rmsprop": lambda ps: torch.optim.RMSprop(ps, 1e-3),
    "rmsprop, all": lambda ps: torch.optim.RMSprop(ps, 1e-3, momentum=0.9, centered=True, weight_decay=1e-3),
    "adagrad": lambda ps: torch.optim.Adagrad(ps, 1e-2, lr_decay=0.1, initial_accumulator_value=0.1),
}


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))


def data(count: int, size: int = 16, seed: int = 0) -> list[Batch]:
    numbers = torch.Generator().manual_seed(seed)
    shapes = (size, 6), (size,)
    return [
        (torch.randn(*shapes[0], generator=numbers), torch.randint(0, 3, shapes[1], generator=numbers))
        for _ in range(count)
    ]


def state_of(optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    """All that an optimizer keeps, by the number of the parameter and its own name."""
    kept = optimizer.state_dict()["state"]
    return {
        f"{number}.{name}": torch.as_tensor(value)
        for number, entry in kept.items()
        for name, value in entry.items()
        if value is not None
    }


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fifty_steps_are_those_of_pytorch(name: str) -> None:
    module, optimizer, other, theirs = twins(net(), OPTIMIZERS[name])
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for batch in data(50):
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-4


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_eager_and_compiled_steps_in_turns(name: str) -> None:
    """The state goes back and forth: each goes on from what the other left."""
    module, optimizer, other, theirs = twins(net(), OPTIMIZERS[name])
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(12)):
        expected = eager_step(other, cross_entropy, theirs, batch)
        ours = eager_step(module, cross_entropy, optimizer, batch) if number % 3 == 0 else step(*batch)
        assert float(ours) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-4


def test_tensors_keep_their_addresses_and_versions_rise() -> None:
    module = nn.Sequential(net(), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(module.parameters())
    step = gtt.compile_step(module, cross_entropy, optimizer)
    addresses = [tensor.data_ptr() for tensor in module.state_dict().values()]
    for batch in data(3):
        versions = [parameter._version for parameter in module.parameters()]
        step(*batch)
        assert all(p._version > v for p, v in zip(module.parameters(), versions, strict=True))
    assert [tensor.data_ptr() for tensor in module.state_dict().values()] == addresses


def test_a_step_between_forward_and_backward_is_noticed() -> None:
    """PyTorch refuses to go back through parameters that were changed meanwhile."""
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
    (batch,) = data(1)
    loss = cross_entropy(module(batch[0]), batch[1])
    step(*batch)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_running_statistics() -> None:
    make: Make = lambda ps: torch.optim.SGD(ps, 0.05)  # noqa: E731
    module, optimizer, other, theirs = twins(nn.Sequential(net(), nn.BatchNorm1d(3)), make)
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for batch in data(3):
        step(*batch)
        eager_step(other, cross_entropy, theirs, batch)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5
    assert int(module[1].num_batches_tracked) == 3
    module.eval(), other.eval()
    for batch in data(2):
        assert float(step(*batch)) == pytest.approx(float(eager_step(other, cross_entropy, theirs, batch)), abs=1e-5)
    assert int(module[1].num_batches_tracked) == 3


def test_groups_schedulers_and_clipping() -> None:
    def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        several = list(parameters)
        return torch.optim.AdamW(
            [{"params": several[:2], "lr": 1e-2}, {"params": several[2:], "weight_decay": 0.0}], lr=3e-3
        )

    module, optimizer, other, theirs = twins(net(), make)
    schedules = [
        torch.optim.lr_scheduler.OneCycleLR(each, 1e-2, total_steps=30, cycle_momentum=True)
        for each in (optimizer, theirs)
    ]
    step = gtt.compile_step(module, cross_entropy, optimizer, clip_norm=0.5, clip_value=0.1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a scheduler warns of a loop without steps
        for batch in data(20):
            expected = eager_step(other, cross_entropy, theirs, batch, 0.5, 0.1)
            assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
            for schedule in schedules:
                schedule.step()
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


def test_tied_weights_are_one_parameter() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 8)
            self.head = nn.Linear(8, 11, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.head(torch.tanh(self.embedding(tokens)))

    module, optimizer, other, theirs = twins(Tied(), lambda ps: torch.optim.SGD(ps, 0.5, momentum=0.9))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    tokens = torch.randint(0, 11, (40,))
    for _ in range(5):
        expected = eager_step(other, cross_entropy, theirs, (tokens, tokens))
        assert float(step(tokens, tokens)) == pytest.approx(float(expected), abs=1e-5)
    assert module.head.weight is module.embedding.weight
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_frozen_parameters_stay_and_may_be_thawed() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for frozen in (True, False):
        for each in (module, other):
            each[0].requires_grad_(not frozen)
        before = module[0].weight.detach().clone()
        for batch in data(4):
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert torch.equal(module[0].weight, before) is frozen
    assert differences(module.state_dict(), other.state_dict()) < 1e-4
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-4


def test_new_shapes() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for size in (16, 5, 1, 16, 7):
        for batch in data(2, size, seed=size):
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_shapes_in_turns_are_compiled_once(name: str) -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, OPTIMIZERS[name](module.parameters()), backend="interpreter")
    batches = [data(1, size)[0] for size in (4, 5)]
    for batch in batches:
        step(*batch)
    before = list(step._compiled.values())
    for batch in batches * 2:
        step(*batch)
    assert set(step._compiled.values()) == set(before)


def test_several_inputs_outputs_and_results() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Linear(4, 3), nn.Linear(5, 3)

        def forward(self, a: torch.Tensor, b: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
            return {"sum": self.left(a) + self.right(b) * scale, "product": self.left(a) * self.right(b)}

    def loss_of(outputs: dict[str, torch.Tensor], target: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        right = (outputs["sum"].argmax(1) == target).float()
        return cross_entropy(outputs["sum"], target) + outputs["product"].square().mean(), {"right": right}

    module = Two()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = gtt.compile_step(module, loss_of, optimizer)
    a, b, target = torch.randn(6, 4), torch.randn(6, 5), torch.randint(0, 3, (6,))
    expected, extra = loss_of(module(a, b, 2.0), target)
    loss, others = step(a, b, 2.0, target)
    assert float(loss) == pytest.approx(expected.item(), abs=1e-6)
    assert torch.equal(others["right"], extra["right"])


def test_nested_batches() -> None:
    class Nested(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, batch: dict[str, Any]) -> torch.Tensor:
            return self.linear(batch["x"]) * batch["scales"][0] + batch["scales"][1]

    module = Nested()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
    for (x, y), scale in zip(data(4), (1.0, 2.0, 2.0, 3.0), strict=True):
        batch = {"x": x, "scales": (torch.tensor(scale), scale)}
        expected = cross_entropy(module(batch), y).item()
        assert float(step(batch, y)) == pytest.approx(expected, abs=1e-6)
    assert len(step._compiled) == 3


def test_a_loss_with_parameters_of_its_own() -> None:
    class Weighted(nn.Module):
        """Two losses, weighed by what is learnt (Kendall et al., 2018)."""

        def __init__(self) -> None:
            super().__init__()
            self.logs = nn.Parameter(torch.zeros(2))

        def forward(self, scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            losses = torch.stack([cross_entropy(scores, target), scores.square().mean()])
            return (losses * torch.exp(-self.logs) + self.logs).sum()

    module, loss = net(), Weighted()
    other, their_loss = copy.deepcopy(module), copy.deepcopy(loss)
    optimizer = torch.optim.SGD([*module.parameters(), *loss.parameters()], 0.1)
    theirs = torch.optim.SGD([*other.parameters(), *their_loss.parameters()], 0.1)
    step = gtt.compile_step(module, loss, optimizer)
    for batch in data(5):
        expected = eager_step(other, their_loss, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(loss.state_dict(), their_loss.state_dict()) < 1e-5
    assert float(loss.logs.detach().abs().sum()) > 0


def test_a_gradient_penalty() -> None:
    """Double backward: a critic whose gradient by its input should have norm 1 (Gulrajani et al., 2017)."""

    def penalized(module: nn.Module, real: torch.Tensor, fake: torch.Tensor) -> torch.Tensor:
        between = (real * 0.3 + fake * 0.7).requires_grad_()
        (slope,) = torch.autograd.grad(module(between).sum(), between, create_graph=True)
        return module(fake).mean() - module(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()

    critic = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))
    module, optimizer, other, theirs = twins(critic, lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, penalized, optimizer, targets=0)
    numbers = torch.Generator().manual_seed(0)
    for _ in range(5):
        real, fake = (torch.randn(8, 6, generator=numbers) for _ in range(2))
        theirs.zero_grad()
        expected = penalized(other, real, fake)
        expected.backward()
        theirs.step()
        assert float(step(real, fake)) == pytest.approx(expected.item(), abs=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


def test_dropout_follows_the_seed_and_the_mode() -> None:
    def losses(seed: int) -> list[float]:
        torch.manual_seed(7)
        module = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
        step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
        torch.manual_seed(seed)
        (batch,) = data(1)
        found = [float(step(*batch)) for _ in range(3)]
        module.eval()
        return [*found, float(step(*batch)), float(step(*batch))]

    first, again, other = losses(1), losses(1), losses(2)
    assert first == again
    assert first[:3] != other[:3]
    assert len(set(first[:3])) == 3
    assert first[3] == first[4] == other[3]


def test_two_steps_of_a_module_draw_other_numbers() -> None:
    def losses() -> list[list[float]]:
        torch.manual_seed(7)
        module = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
        optimizer = torch.optim.SGD(module.parameters(), 0.0)
        steps = [gtt.compile_step(module, cross_entropy, optimizer) for _ in range(2)]
        (batch,) = data(1)
        return [[float(step(*batch)) for _ in range(3)] for step in steps]

    first, second = losses()
    assert len({*first, *second}) == 6
    assert losses() == [first, second]


def test_loading_states() -> None:
    """Of the module in place and by assignment, and of the optimizer: the step goes on from what was loaded."""
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    batches = data(9)
    saved = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    for batch in batches[:3]:
        step(*batch)
        eager_step(other, cross_entropy, theirs, batch)
    halfway = copy.deepcopy((module.state_dict(), optimizer.state_dict()))
    module.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    for batch in batches[:3]:
        step(*batch)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5
    module.load_state_dict(halfway[0], assign=True)
    optimizer = torch.optim.Adam(module.parameters(), 1e-2)
    optimizer.load_state_dict(halfway[1])
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for batch in batches[3:]:
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)


def test_two_steps_of_one_optimizer() -> None:
    """They share its state, the counts of updates too."""
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    losses = cross_entropy, lambda scores, target: (scores.square().mean(1) * target).mean()
    steps = [gtt.compile_step(module, loss, optimizer) for loss in losses]
    for number, batch in enumerate(data(12)):
        expected = eager_step(other, losses[number % 2], theirs, batch)
        assert float(steps[number % 2](*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-5


def test_a_state_that_was_cleared_begins_anew() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(6)):
        if number == 3:
            optimizer.state.clear()
            theirs.state.clear()
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-5


def test_a_loss_that_is_not_finite_updates_nothing() -> None:
    module = nn.Sequential(net(), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(module.parameters())
    step = gtt.compile_step(module, cross_entropy, optimizer)
    good, bad = data(2)
    step(*good)
    before = copy.deepcopy((module.state_dict(), state_of(optimizer)))
    bad[0][3, 2] = float("nan")
    with pytest.warns(gtt.NonFiniteLossWarning, match="updates nothing"):
        assert np.isnan(float(step(*bad)))
    assert differences(module.state_dict(), before[0]) == 0
    assert differences(state_of(optimizer), before[1]) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        step(*bad)


def test_f64_and_bf16() -> None:
    for dtype, tolerance in ((torch.float64, 1e-12), (torch.bfloat16, 0.05)):
        module, optimizer, other, theirs = twins(net().to(dtype), lambda ps: torch.optim.SGD(ps, 0.05))
        step = gtt.compile_step(module, cross_entropy, optimizer)
        for x, y in data(3):
            expected = eager_step(other, cross_entropy, theirs, (x.to(dtype), y))
            loss = step(x.to(dtype), y)
            assert loss.dtype == dtype
            assert float(loss) == pytest.approx(float(expected), abs=tolerance)


def test_a_module_moved_to_double_is_compiled_anew() -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.05))
    ((x, y),) = data(1)
    step(x, y)
    module.double()
    other = copy.deepcopy(module)
    expected = cross_entropy(other(x.double()), y)
    assert float(step(x.double(), y)) == pytest.approx(expected.item(), abs=1e-12)


def test_batches_in_any_layout() -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
    ((x, y),) = data(1)
    strided = x.T.contiguous().T
    assert not strided.is_contiguous()
    assert float(step(strided, y)) == float(step(x, y))
    assert float(step(x[:1].expand(16, 6), y)) == float(step(x[:1].repeat(16, 1), y))


def test_a_batch_that_is_the_negative_of_its_memory() -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
    ((x, y),) = data(1)
    negative = torch._neg_view(x)
    step(x, y)
    assert float(step(negative, y)) == float(step(negative.resolve_neg(), y)) != float(step(x, y))
    module[0].weight.data = torch._neg_view(module[0].weight.data)
    assert "'0.weight' is the negative of what lies in its memory" in refusal(lambda: step(x, y))


def test_memory_that_begins_anywhere() -> None:
    """Parameters, buffers and batches that are parts of other tensors, so at no multiple of a vector's size."""

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        memory = torch.empty(tensor.numel() + 1, dtype=tensor.dtype)[1:]
        return memory.view(tensor.shape).copy_(tensor.detach())

    make: Make = lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9)  # noqa: E731
    convolutional = nn.Sequential(nn.Conv2d(3, 20, 3), nn.BatchNorm2d(20), nn.ReLU(), nn.Flatten(), nn.Linear(500, 3))
    module, optimizer, other, theirs = twins(convolutional, make)
    for parameter in module.parameters():
        parameter.data = moved(parameter)
        assert parameter.data_ptr() % 64
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for _ in range(4):
        batch = torch.randn(9, 3, 7, 7), torch.randint(0, 3, (9,))
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(moved(batch[0]), moved(batch[1]))) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_shapes_are_bounded() -> None:
    module = nn.Linear(2, 1)
    step = gtt.compile_step(module, mse_loss, torch.optim.SGD(module.parameters(), 1e-3), backend="interpreter")
    for size in range(1, 60):
        step(torch.zeros(size, 2), torch.zeros(size, 1))
    assert len(step._compiled) == 32


def test_the_shape_that_was_used_longest_ago_goes_first() -> None:
    module = nn.Linear(2, 1)
    step = gtt.compile_step(module, mse_loss, torch.optim.SGD(module.parameters(), 1e-3), backend="interpreter")
    step(torch.zeros(7, 2), torch.zeros(7, 1))
    kept = step._for((torch.zeros(7, 2), torch.zeros(7, 1)))[0]
    for size in range(10, 50):
        step(torch.zeros(size, 2), torch.zeros(size, 1))
        step(torch.zeros(7, 2), torch.zeros(7, 1))
    assert step._for((torch.zeros(7, 2), torch.zeros(7, 1)))[0] is kept


def test_a_step_that_nobody_has_is_gone() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = weakref.ref(gtt.compile_step(module, cross_entropy, optimizer))
    gc.collect()
    assert step() is None
    optimizer.load_state_dict(optimizer.state_dict())


def test_what_a_module_warns_of_is_heard(capsys: pytest.CaptureFixture[str]) -> None:
    class Loud(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            warnings.warn("my own words", stacklevel=1)
            print("and these", file=sys.stderr)
            return self.linear(x)

    module = Loud()
    step = gtt.compile_step(module, nn.MSELoss(), torch.optim.SGD(module.parameters(), 0.1))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        step(torch.zeros(4, 6), torch.zeros(4))
    own, operands = sorted(str(each.message) for each in heard)[::-1]
    assert own == "my own words"
    assert "target size" in operands
    assert "and these" in capsys.readouterr().err


def test_memory_stays_over_many_steps() -> None:
    def resident() -> int:
        """Bytes."""
        gc.collect()
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

    module = nn.Linear(4, 1)
    step = gtt.compile_step(module, mse_loss, torch.optim.Adam(module.parameters(), 1e-3))
    x, y = torch.randn(8, 4), torch.randn(8, 1)
    for _ in range(2_000):
        step(x, y)
    before = resident()
    for _ in range(20_000):
        step(x, y)
    assert resident() - before < 1 << 20


def test_threads_give_the_same_bits() -> None:
    def trained(threads: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(3)
        module = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
        optimizer = torch.optim.Adam(module.parameters())
        step = gtt.compile_step(module, cross_entropy, optimizer, threads=threads)
        for _ in range(3):
            step(torch.randn(128, 64), torch.randint(0, 10, (128,)))
        return module.state_dict()

    one, two = trained(1), trained(2)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_names_of_layers() -> None:
    module = net()
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
    ((x, y),) = data(1)
    step(x, y)
    (compiled,) = step._compiled.values()
    layers = {node.layer for node in compiled.special.graph.nodes}
    assert {"0", "1", "2", "3"} <= layers
    assert "0.weight" in {variable.name for variable in compiled.special.graph.variables}


def test_a_network_that_the_loss_reads_is_read_where_it_lies() -> None:
    """A teacher that follows its student: what is made of its weights between steps counts."""
    student, teacher = net(), net().eval().requires_grad_(False)
    other, their_teacher = copy.deepcopy((student, teacher))

    def follow(model: nn.Module, mean: nn.Module) -> None:
        with torch.no_grad():
            for ours, own in zip(mean.parameters(), model.parameters(), strict=True):
                ours.mul_(0.5).add_(own, alpha=0.5)

    optimizer, theirs = (torch.optim.SGD(each.parameters(), 0.1) for each in (student, other))
    step = gtt.compile_step(student, lambda y, x: mse_loss(y, teacher(x)), optimizer)
    for x, _ in data(5):
        expected = eager_step(other, lambda y, x: mse_loss(y, their_teacher(x)), theirs, (x, x))
        assert float(step(x, x)) == pytest.approx(float(expected), abs=1e-6)
        follow(student, teacher)
        follow(other, their_teacher)
    assert differences(student.state_dict(), other.state_dict()) < 1e-6


def test_groups_that_are_added_train() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(list(ps)[:2], 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(6)):
        if number == 3:
            optimizer.add_param_group({"params": list(module[3].parameters()), "lr": 1e-3})
            theirs.add_param_group({"params": list(other[3].parameters()), "lr": 1e-3})
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-4


def test_submodules_that_are_exchanged_are_noticed() -> None:
    ((x, y),) = data(1)
    module = net()
    step = compiled(module)
    step(x, y)
    module[1] = nn.ReLU()
    expected = cross_entropy(module(x), y)
    assert float(step(x, y)) == pytest.approx(expected.item(), abs=1e-6)
    module[3] = nn.Linear(16, 3)
    assert "2 of the optimizer's parameters are not the module's" in refusal(lambda: step(x, y))
    other = net()
    hooked = compiled(other)
    hooked(x, y)
    other[0].register_full_backward_hook(lambda *_: None)
    assert "'0' has backward hooks" in refusal(lambda: hooked(x, y))


def test_the_state_of_one_parameter_may_be_reset() -> None:
    module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(6)):
        if number == 3:
            del optimizer.state[module[3].weight], theirs.state[other[3].weight]
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert differences(state_of(optimizer), state_of(theirs)) < 1e-5


def test_a_batch_may_be_a_parameter() -> None:
    make: Make = lambda ps: torch.optim.Adam(ps, 0.1)  # noqa: E731
    module, optimizer, other, theirs = twins(nn.Linear(6, 6), make)
    step = gtt.compile_step(module, mse_loss, optimizer)
    for _ in range(3):
        expected = eager_step(other, mse_loss, theirs, (other.weight.detach().clone(), torch.ones(6, 6)))
        loss = step(module.weight.detach(), torch.ones(6, 6))
        assert float(loss) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_a_first_update_by_an_eager_step_counts() -> None:
    """Dampening leaves the first update of each parameter out: here of one that was frozen before."""
    module, optimizer, other, theirs = twins(net(), OPTIMIZERS["sgd, dampening"])
    step = gtt.compile_step(module, cross_entropy, optimizer)
    for number, batch in enumerate(data(8)):
        for each in (module, other):
            each[0].requires_grad_(number >= 2)
        expected = eager_step(other, cross_entropy, theirs, batch)
        ours = eager_step(module, cross_entropy, optimizer, batch) if number == 2 else step(*batch)
        assert float(ours) == pytest.approx(float(expected), abs=1e-5)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


@pytest.mark.parametrize("natively", [True, False])
class TestChangesBetweenSteps:
    """What is changed after a step was compiled is noticed, by native code and by Python where that is not possible."""

    @pytest.fixture(autouse=True)
    def _way(self, natively: bool, monkeypatch: pytest.MonkeyPatch) -> None:
        if not natively:
            monkeypatch.setattr(guard, "tensor_layout", lambda: None)

    def test_memory_read_in_another_order(self) -> None:
        module = nn.Linear(4, 4)
        ran = compiled(module, mse_loss)
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        ran(x, y)
        module.weight.data = module.weight.data.t()
        assert "'weight' (4, 4) has strides (1, 4)" in refusal(lambda: ran(x, y))
        module.weight.data = module.weight.data.t()
        expected = mse_loss(module(x), y)
        assert float(ran(x, y)) == pytest.approx(expected.item(), abs=1e-6)

    def test_elements_read_as_another_type(self) -> None:
        module = net().to(torch.bfloat16)
        ran = compiled(module)
        ((x, y),) = data(1)
        ran(x.to(torch.bfloat16), y)
        module[0].weight.data = module[0].weight.data.view(torch.float16)
        assert "f16[16,6]" in refusal(lambda: ran(x.to(torch.bfloat16), y))

    def test_a_count_of_updates(self) -> None:
        module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        for number, batch in enumerate(data(8)):
            if number == 3:
                optimizer.state[module[0].weight]["step"] = torch.tensor(1.0)
                theirs.state[other[0].weight]["step"] = torch.tensor(1.0)
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(ran(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert differences(state_of(optimizer), state_of(theirs)) < 1e-5

    @pytest.mark.parametrize("change", [
        lambda module, optimizer: setattr(optimizer, "state", defaultdict(dict)),
        lambda module, optimizer: setattr(optimizer, "param_groups", [{**optimizer.param_groups[0], "lr": 1e-3}]),
        lambda module, optimizer: optimizer.param_groups[0].update(params=list(module[3].parameters())),
    ], ids=["state", "groups", "parameters"])  # fmt: skip
    def test_what_an_optimizer_has_is_put_in_its_place(self, change: Callable[..., None]) -> None:
        module, optimizer, other, theirs = twins(net(), lambda ps: torch.optim.Adam(ps, 1e-2))
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        for number, batch in enumerate(data(8)):
            if number == 3:
                change(module, optimizer)
                change(other, theirs)
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(ran(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert differences(module.state_dict(), other.state_dict()) < 1e-4

    def test_hooks_on_gradients(self) -> None:
        ((x, y),) = data(1)
        for register in ("register_hook", "register_post_accumulate_grad_hook"):
            module = net()
            ran = compiled(module)
            ran(x, y)
            handle = getattr(module[0].weight, register)(lambda _: None)
            before = copy.deepcopy(module.state_dict())
            assert "'0.weight' has hooks on its gradient" in refusal(lambda: ran(x, y))  # noqa: B023
            assert differences(module.state_dict(), before) == 0
            handle.remove()
            ran(x, y)
            handle = getattr(module[0].weight, register)(lambda _: None)  # into the dict that there is by now
            assert "'0.weight' has hooks on its gradient" in refusal(lambda: ran(x, y))  # noqa: B023

    def test_hooks_of_the_optimizer(self) -> None:
        ((x, y),) = data(1)
        module = net()
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        ran(x, y)
        optimizer.register_step_pre_hook(lambda *_: None)
        assert "hooks on step" in refusal(lambda: ran(x, y))

    @pytest.mark.parametrize("register", [
        register_module_forward_pre_hook, register_module_forward_hook, register_module_full_backward_pre_hook,
        register_module_full_backward_hook, register_optimizer_step_pre_hook, register_optimizer_step_post_hook,
    ])  # fmt: skip
    def test_hooks_of_all_modules_or_optimizers(self, register: Callable[..., Any]) -> None:
        ((x, y),) = data(1)
        module = net()
        ran = compiled(module)
        ran(x, y)
        handle = register(lambda *_: None)
        try:
            assert "hooks on all modules or optimizers" in refusal(lambda: ran(x, y))
            assert "hooks on all modules or optimizers" in refusal(lambda: compiled(net()))
        finally:
            handle.remove()
        assert float(ran(x, y)) > 0

    def test_hooks_on_the_forward_pass_are_traced(self) -> None:
        ((x, y),) = data(1)
        module = net()
        ran = compiled(module)
        ran(x, y)
        handle = module[3].register_forward_hook(lambda _module, _inputs, result: result * 3)
        expected = cross_entropy(module(x), y)
        assert float(ran(x, y)) == pytest.approx(expected.item(), abs=1e-6)
        handle.remove()
        expected = cross_entropy(module(x), y)
        assert float(ran(x, y)) == pytest.approx(expected.item(), abs=1e-6)

    def test_the_tensors_of_a_group(self) -> None:
        module, optimizer, other, theirs = twins(nn.Linear(4, 4), lambda ps: torch.optim.SGD([next(iter(ps))], 0.1))
        ran = gtt.compile_step(module, mse_loss, optimizer)
        for number in range(4):
            if number == 2:
                optimizer.param_groups[0]["params"][0] = module.bias
                theirs.param_groups[0]["params"][0] = other.bias
            batch = torch.full((3, 4), 1.0 + number), torch.zeros(3, 4)
            assert float(ran(*batch)) == pytest.approx(float(eager_step(other, mse_loss, theirs, batch)), abs=1e-5)
        assert differences(module.state_dict(), other.state_dict()) < 1e-5

    def test_modes_and_frozen_parameters(self) -> None:
        dropping = nn.Sequential(net(), nn.BatchNorm1d(3))
        module, optimizer, other, theirs = twins(dropping, lambda ps: torch.optim.SGD(ps, 0.1))
        ran = gtt.compile_step(module, cross_entropy, optimizer)
        for number, batch in enumerate(data(9)):
            for each in (module, other):
                each.train(number % 3 > 0)
                each[0][0].requires_grad_(number % 2 > 0)
            expected = eager_step(other, cross_entropy, theirs, batch)
            assert float(ran(*batch)) == pytest.approx(float(expected), abs=1e-5)
        assert differences(module.state_dict(), other.state_dict()) < 1e-5
        assert len(ran._compiled) == 4


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


def test_what_a_step_computes_is_not_turned_around_silently() -> None:
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    step = gtt.compile_step(module, cross_entropy, optimizer)
    (batch,) = data(1)
    step(*batch)
    optimizer.param_groups[0]["maximize"] = True
    assert "maximize" in refusal(lambda: step(*batch))
    step.recompile()
    before = float(step(*batch))
    assert float(step(*batch)) > before


def test_random_numbers_go_on_after_compiling_anew() -> None:
    module = nn.Sequential(nn.Linear(6, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.0))
    (batch,) = data(1)
    losses = []
    for _ in range(4):
        losses.append(float(step(*batch)))
        step.recompile()
    assert len(set(losses)) == 4


def test_steps_of_several_threads() -> None:
    def trained(number: int) -> float:
        torch.manual_seed(number)
        module = nn.Sequential(nn.Linear(6, 8 + number), nn.Tanh(), nn.Linear(8 + number, 3))
        step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
        return [float(step(*batch)) for batch in data(5)][-1]

    with ThreadPoolExecutor(4) as pool:
        assert all(loss > 0 for loss in pool.map(trained, range(4)))


def test_numbers_are_told_apart() -> None:
    module = nn.Linear(6, 3)

    def signed(scores: torch.Tensor, target: torch.Tensor, number: float) -> torch.Tensor:
        return cross_entropy(scores, target) + (1.0 if str(number).startswith("-") else 0.0)

    step = gtt.compile_step(module, signed, torch.optim.SGD(module.parameters(), 0.0), targets=2)
    ((x, y),) = data(1)
    assert float(step(x, y, -0.0)) == pytest.approx(float(step(x, y, 0.0)) + 1, abs=1e-5)


# --- bad input -------------------------------------------------------------------------------------------------------


def refusal(make: Callable[[], Any]) -> str:
    with pytest.raises(gt.GlowtrainError) as caught:
        make()
    return str(caught.value)


def compiled(module: nn.Module, loss: Any = cross_entropy, **options: Any) -> gtt.CompiledStep:
    return gtt.compile_step(module, loss, torch.optim.SGD(module.parameters(), 0.1), **options)


def test_optimizers_that_cannot_be_compiled() -> None:
    class Own(torch.optim.SGD):
        pass

    module = net()
    parameters = list(module.parameters())
    for optimizer, words in (
        (torch.optim.LBFGS(parameters), "LBFGS is not an optimizer that can be compiled"),
        (Own(parameters, 0.1), "Own is not an optimizer"),
        (torch.optim.Adam(parameters, amsgrad=True), "Adam.amsgrad=True. is not supported"),
        ("adam", "str is not an optimizer"),
    ):
        assert words.replace(".", "") in refusal(
            lambda: gtt.compile_step(module, cross_entropy, optimizer)  # noqa: B023
        ).replace("(", "").replace(")", "").replace(".", "")


def test_an_optimizer_of_other_parameters() -> None:
    optimizer = torch.optim.SGD(net().parameters(), 0.1)
    assert "6 of the optimizer's parameters are not the module's" in refusal(
        lambda: gtt.compile_step(net(), cross_entropy, optimizer)
    )


def test_losses_that_are_no_loss() -> None:
    ((x, y),) = data(1)
    assert "must be a function or a module, not str" in refusal(lambda: compiled(net(), "mse"))
    assert "create one, CrossEntropyLoss()" in refusal(lambda: compiled(net(), nn.CrossEntropyLoss))
    unreduced = compiled(net(), lambda scores, target: cross_entropy(scores, target, reduction="none"))
    assert "must be a float scalar, not f32[16]: reduce it" in refusal(lambda: unreduced(x, y))
    assert "must be a float scalar, not i64[]" in refusal(lambda: compiled(net(), lambda s, t: s.argmax(1).sum())(x, y))
    assert "must return tensors" in refusal(lambda: compiled(net(), lambda scores, target: 1.0)(x, y))


def test_state_between_calls() -> None:
    """A buffer may be assigned; a tensor that is none cannot carry anything from step to step, which is said."""

    class Stateful(nn.Module):
        def __init__(self, *, registered: bool) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)
            if registered:
                self.register_buffer("last", torch.zeros(3))
            else:
                self.last = torch.zeros(3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.linear(x) + self.last
            self.last = 0.5 * y.detach().mean(0)
            return y

    module, optimizer, other, theirs = twins(Stateful(registered=True), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, cross_entropy, optimizer)
    address = module.last.data_ptr()
    for batch in data(4):
        expected = eager_step(other, cross_entropy, theirs, batch)
        assert float(step(*batch)) == pytest.approx(float(expected), abs=1e-5)
    assert module.last.data_ptr() == address
    assert differences(module.state_dict(), other.state_dict()) < 1e-5
    said = refusal(lambda: compiled(Stateful(registered=False))(*data(1)[0]))
    assert "reads and assigns module.last" in said
    assert "register_buffer" in said


def test_a_step_is_not_copied() -> None:
    step = compiled(net())
    assert "make one for the copy of the module" in refusal(lambda: copy.deepcopy(step))
    with torch.inference_mode():
        assert "inference_mode" in refusal(lambda: step(*data(1)[0]))


def test_nothing_to_train() -> None:
    ((x, y),) = data(1)
    frozen = net().requires_grad_(False)
    assert "no trainable parameter" in refusal(lambda: compiled(frozen)(x, y))
    assert "does not depend on any trainable parameter" in refusal(
        lambda: compiled(net(), lambda scores, target: scores.detach().sum())(x, y)
    )


def test_batches_that_do_not_fit() -> None:
    ((x, y),) = data(1)
    step = compiled(net())
    assert "requires a gradient" in refusal(lambda: step(x.clone().requires_grad_(), y))
    assert "is on meta" in refusal(lambda: step(x.to("meta"), y))
    assert "to_dense" in refusal(lambda: step(x.to_sparse(), y))
    assert "torch.from_numpy" in refusal(lambda: step(x.numpy(), y))
    assert "0 to 2" in refusal(lambda: step(x, y + 1))
    assert "the module's arguments and then 1 target for the loss, not 1 argument in all" in refusal(lambda: step(x))
    with torch.autocast("cpu"):
        assert "does not run under autocast" in refusal(lambda: step(x, y))


def test_a_wrong_shape_names_the_module_and_the_line() -> None:
    said = refusal(lambda: compiled(net())(torch.randn(4, 5), torch.zeros(4, dtype=torch.long)))
    assert "cannot be traced" in said


def test_settings_that_mean_nothing() -> None:
    assert "targets must be" in refusal(lambda: compiled(net(), targets=-1))
    assert "clip_norm must be a positive number" in refusal(lambda: compiled(net(), clip_norm=0))
    assert "Module is wanted" in refusal(lambda: gtt.compile_step(len, cross_entropy, None))  # type: ignore[arg-type]


def test_hooks_that_would_not_be_called() -> None:
    module = net()
    module[0].weight.register_hook(lambda g: g * 2)
    assert "'0.weight' has hooks on its gradient" in refusal(lambda: compiled(module))
    module = net()
    module[3].register_full_backward_hook(lambda *_: None)
    assert "'3' has backward hooks" in refusal(lambda: compiled(module))
    module = net()
    optimizer = torch.optim.SGD(module.parameters(), 0.1)
    optimizer.register_step_post_hook(lambda *_: None)
    assert "hooks on step" in refusal(lambda: gtt.compile_step(module, cross_entropy, optimizer))


def test_parameters_in_one_memory() -> None:
    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            whole = torch.randn(4, 6)
            self.a, self.b = nn.Parameter(whole[:3]), nn.Parameter(whole[2:])

    assert "'a' and 'b' are different tensors in the same memory" in refusal(lambda: compiled(Views()))
    strided = net()
    strided[0].weight = nn.Parameter(torch.randn(6, 16).T)
    assert "'0.weight' (16, 6) has strides" in refusal(lambda: compiled(strided))


def test_parameters_without_memory() -> None:
    module = nn.Linear(4, 4)
    module.weight.untyped_storage().resize_(0)
    assert "'weight' (4, 4) has no memory" in refusal(lambda: compiled(module, mse_loss))


def test_parameters_replaced_after_compiling() -> None:
    """What the optimizer does not hold is said, and nothing is updated; in-place changes are simply used."""
    ((x, y),) = data(1)
    module = net()
    step = compiled(module)
    step(x, y)
    with torch.no_grad():
        module[0].weight.zero_()
    expected = cross_entropy(module(x), y)
    assert float(step(x, y)) == pytest.approx(expected.item(), abs=1e-6)
    module[0].weight = nn.Parameter(torch.ones(16, 6))
    before = copy.deepcopy(module.state_dict())
    assert "1 of the optimizer's parameters are not the module's" in refusal(lambda: step(x, y))
    assert differences(module.state_dict(), before) == 0


def test_what_cannot_be_traced() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if x.sum() > 0 else self.linear(-x)

    ((x, y),) = data(1)
    said = refusal(lambda: compiled(Branches())(x, y))
    assert "test_step.py" in said
    assert "if x.sum() > 0" in said
