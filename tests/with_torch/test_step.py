"""compile_step computes what eager PyTorch does: losses, parameters and buffers of modules and losses of all forms."""

from __future__ import annotations

import copy
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from eager import data, differences, eager_step, net, state_of, twins
from steps import OPTIMIZERS, Make
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import glowtrain.torch as gtt


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


def test_steps_of_several_threads() -> None:
    def trained(number: int) -> float:
        torch.manual_seed(number)
        module = nn.Sequential(nn.Linear(6, 8 + number), nn.Tanh(), nn.Linear(8 + number, 3))
        step = gtt.compile_step(module, cross_entropy, torch.optim.SGD(module.parameters(), 0.1))
        return [float(step(*batch)) for batch in data(5)][-1]

    with ThreadPoolExecutor(4) as pool:
        assert all(loss > 0 for loss in pool.map(trained, range(4)))


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
