"""What backends of torch.compile get wrong: memory that calls share, versions, aliases, odd tangents, threads."""

from __future__ import annotations

import copy
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled import close, compiled, pair, same_gradients
from torch import nn
from torch.nn import functional as F

from glowtrain.compiler.placed import PlacedFunction
from glowtrain.torch import shapes
from glowtrain.torch.backend import CapturedFunction, FallbackWarning


@pytest.fixture(autouse=True)
def nothing_falls_back(request: pytest.FixtureRequest) -> Any:
    """PyTorch must not have computed what we are tested on."""
    torch._dynamo.reset()
    with warnings.catch_warnings():
        if not request.node.get_closest_marker("filterwarnings"):
            warnings.simplefilter("error", FallbackWarning)
        yield


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> list[CapturedFunction]:
    """All captured functions that a test makes."""
    made: list[CapturedFunction] = []
    before = CapturedFunction.__init__

    def noting(self: CapturedFunction, *given: Any) -> None:
        before(self, *given)
        made.append(self)

    monkeypatch.setattr(CapturedFunction, "__init__", noting)
    return made


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.LayerNorm(16), nn.Linear(16, 3))


def ramp(*shape: int) -> torch.Tensor:
    return torch.linspace(-1, 1, torch.Size(shape).numel()).view(shape)


# 1. residuals belong to the call


def test_two_forwards_before_two_backwards() -> None:
    eager, ours, other = pair(net())
    for module in (eager, ours):
        one, two = module(ramp(4, 6)), module(2 * ramp(4, 6))
        two.square().sum().backward()
        one.square().sum().backward()
    same_gradients(other, eager)


def test_a_module_of_its_own_output() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 6), nn.Sigmoid()))
    for module in (eager, ours):
        module(module(module(ramp(4, 6)))).sum().backward()
    same_gradients(other, eager)


# 2. results are memory of their own


def test_results_stay_when_called_again() -> None:
    _, ours, _ = pair(net())
    first = ours(ramp(4, 6))
    before = first.detach().clone()
    again = ours(ramp(4, 6) + 1)
    assert torch.equal(first, before)
    assert first.data_ptr() != again.data_ptr()


def test_gradients_stay_when_called_again() -> None:
    _, ours, other = pair(net())
    ours(ramp(4, 6)).sum().backward()
    kept = {name: parameter.grad for name, parameter in other.named_parameters()}
    before = {name: grad.clone() for name, grad in kept.items() if grad is not None}
    other.zero_grad()
    ours(ramp(4, 6) + 1).square().sum().backward()
    assert all(torch.equal(kept[name], before[name]) for name in before)


# 3. cotangents that are expanded, not contiguous, or missing


def test_expanded_cotangent() -> None:
    eager, ours, other = pair(net())
    for module in (eager, ours):
        module(ramp(4, 6)).sum().backward()
    same_gradients(other, eager)


def test_cotangent_in_another_order() -> None:
    eager, ours, other = pair(net())
    for module in (eager, ours):
        module(ramp(4, 6)).backward(ramp(3, 4).t())
    same_gradients(other, eager)


class TwoResults(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        h = self.layer(x)
        return h.tanh(), h.exp(), h.argmax(-1)


def test_results_without_a_cotangent() -> None:
    eager, ours, other = pair(TwoResults())
    for module in (eager, ours):
        first, second, which = module(ramp(4, 6))
        assert first.requires_grad
        assert second.requires_grad
        assert not which.requires_grad
        first.square().sum().backward()
    same_gradients(other, eager)


# 4. results that are views


class Views(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        h = x.exp()
        return x.t(), x[1:], h, h.t(), h.view(-1), h.detach(), x.detach().unbind(0)[0]


def test_views_of_arguments_and_of_each_other() -> None:
    x = ramp(4, 6).requires_grad_()
    ours, theirs = compiled(Views())(x), Views()(x)
    for mine, other in zip(ours, theirs, strict=True):
        assert torch.equal(mine, other)
        assert mine.stride() == other.stride()
        assert mine.requires_grad == other.requires_grad
    for one, two in ((0, 1), (2, 3), (2, 4), (2, 5)):
        assert ours[one].untyped_storage().data_ptr() == ours[two].untyped_storage().data_ptr()
    assert ours[0].data_ptr() == x.data_ptr()


def test_gradients_through_views() -> None:
    gradients = []
    for function in (compiled(Views()), Views()):
        x = ramp(4, 6).requires_grad_()
        results = function(x)
        sum((result * ramp(*result.shape)).sum() for result in results).backward()
        gradients.append(x.grad)
    close(*gradients)


class TwiceTheSame(nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        return y, y


def test_the_same_result_twice() -> None:
    first, second = compiled(TwiceTheSame())(ramp(3))
    assert first.data_ptr() == second.data_ptr()


# 5. versions


def test_an_update_between_forward_and_backward_is_noticed() -> None:
    _, ours, other = pair(net())
    loss = ours(ramp(4, 6)).square().sum()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_an_update_of_what_no_gradient_reads_is_none_of_our_business() -> None:
    eager, ours, other = pair(nn.Linear(6, 3))
    for module, plain in ((eager, eager), (ours, other)):
        loss = module(ramp(4, 6)).square().sum()
        with torch.no_grad():
            plain.bias.add_(1)
        loss.backward()
    same_gradients(other, eager)


def test_running_statistics_are_the_modules_own() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    norm = other[1]
    address, version = norm.running_mean.data_ptr(), norm.running_mean._version
    for number in range(3):
        for module in (eager, ours):
            (module(ramp(8, 6) + number) * ramp(8, 4)).square().sum().backward()
    same_gradients(other, eager)
    assert int(norm.num_batches_tracked) == 3
    assert norm.running_mean.data_ptr() == address
    assert norm.running_mean._version > version


# 6. backward twice, and gradients of gradients


def test_retain_graph() -> None:
    eager, ours, other = pair(net())
    for module in (eager, ours):
        loss = module(ramp(4, 6)).square().sum()
        loss.backward(retain_graph=True)
        loss.backward()
    same_gradients(other, eager)


def test_backward_twice_is_refused_without_retain_graph() -> None:
    loss = compiled(net())(ramp(4, 6)).square().sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_gradient_penalty() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)))
    for module in (eager, ours):
        x = ramp(4, 6).requires_grad_()
        (slope,) = torch.autograd.grad(module(x).sum(), x, create_graph=True)
        (slope.norm(dim=-1) - 1).square().mean().backward()
    same_gradients(other, eager)


def test_third_derivative() -> None:
    found = []
    for function in (compiled(lambda x: (x.sin() * x).sum()), lambda x: (x.sin() * x).sum()):
        x = ramp(5).requires_grad_()
        value = function(x)
        for _ in range(3):
            (slope,) = torch.autograd.grad(value, x, create_graph=True)
            value = slope.sum()
        found.append(slope)
    close(*found)


def test_hessian_vector_product_with_dropped_elements() -> None:
    """The masks of the gradient's gradient are those of the forward."""
    torch.manual_seed(3)
    layer = nn.Sequential(nn.Linear(6, 40, bias=False), nn.Dropout(0.5))
    ours = compiled(layer)
    x = ramp(4, 6).requires_grad_()
    y = ours(x)
    kept = (y != 0).float()
    (slope,) = torch.autograd.grad(y.square().sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), x)
    expected = (kept * 8) * (torch.ones(4, 6) @ layer[0].weight.t()) @ layer[0].weight
    close(second, expected)


# 7. without gradients, and other modes


def test_modes() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU()))
    for mode in (True, False, True):
        eager.train(mode), other.train(mode)
        with torch.no_grad():
            quiet = ours(ramp(8, 6))
            close(quiet, eager(ramp(8, 6)))
            assert not quiet.requires_grad
        for module in (eager, ours):
            module(ramp(8, 6)).sum().backward()
    same_gradients(other, eager)


def test_inference_mode() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)))
    with torch.inference_mode():
        close(ours(ramp(4, 6)), eager(ramp(4, 6)))
    same_gradients(other, eager)


class PartlyWithout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            weights = F.softmax(self.layer(x), -1)
        return (weights * self.layer(x)).sum() + self.layer(x).detach().sum()


def test_no_grad_within() -> None:
    eager, ours, other = pair(PartlyWithout())
    for module in (eager, ours):
        module(ramp(4, 6)).backward()
    same_gradients(other, eager)


# 8. gradients that are there already, and hooks


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_add_up(set_to_none: bool) -> None:
    eager, ours, other = pair(net())
    for number in range(3):
        for module, plain in ((eager, eager), (ours, other)):
            if number == 1:
                plain.zero_grad(set_to_none=set_to_none)
            module(ramp(4, 6) * number).square().sum().backward()
    same_gradients(other, eager)


def test_hooks_on_parameters_and_results() -> None:
    eager, ours, other = pair(net())
    for module, plain in ((eager, eager), (ours, other)):
        plain[0].weight.register_hook(lambda gradient: 2 * gradient)
        y = module(ramp(4, 6))
        y.register_hook(lambda gradient: gradient + 1)
        y.sum().backward()
    same_gradients(other, eager)


def test_backward_hooks_of_modules() -> None:
    eager, ours, other = pair(net())
    called: list[int] = []
    for module, plain in ((eager, eager), (ours, other)):
        plain[1].register_full_backward_hook(lambda *_: called.append(1))
        module(ramp(4, 6)).sum().backward()
    assert len(called) == 2
    same_gradients(other, eager)


# 9. shapes that depend on elements


def test_data_dependent_shapes_split_the_graph() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x.exp()[x > 0] * 2).sum()

    found = []
    for each in (compiled(function), function):
        x = ramp(9).requires_grad_()
        each(x).backward()
        found.append(x.grad)
    close(*found)


# 10. odd tensors


@pytest.mark.parametrize(
    "x",
    [
        ramp(6, 4).t(), ramp(1, 6).expand(4, 6), ramp(8, 6)[::2], ramp(4, 7)[:, 1:], ramp(0, 6), ramp(6),
        ramp(2, 3, 6).transpose(0, 1),
    ],
    ids=["transposed", "expanded", "strided", "at an odd address", "empty", "one row", "three axes"],
)  # fmt: skip
def test_inputs_of_all_kinds(x: torch.Tensor) -> None:
    eager, ours, other = pair(net())
    results, slopes = [], []
    for module in (eager, ours):
        given = x.detach().requires_grad_()
        results.append(module(given))
        results[-1].square().sum().backward()
        slopes.append(given.grad)
    close(results[1], results[0])
    close(slopes[1], slopes[0])
    same_gradients(other, eager)


def test_scalars() -> None:
    found = []
    for function in (compiled(lambda x, y: x * y.exp()), lambda x, y: x * y.exp()):
        x, y = torch.tensor(1.5, requires_grad=True), torch.tensor(0.5, requires_grad=True)
        function(x, y).backward()
        found.append(torch.stack([x.grad, y.grad]))
    close(*found)


def test_channels_last() -> None:
    eager, ours, other = pair(nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))
    for module in (eager, ours):
        module(ramp(2, 3, 8, 8).to(memory_format=torch.channels_last)).square().sum().backward()
    same_gradients(other, eager)


def test_frozen_parameters() -> None:
    eager, ours, other = pair(net())
    for module, plain in ((eager, eager), (ours, other)):
        plain[0].requires_grad_(requires_grad=False)
        module(ramp(4, 6)).square().sum().backward()
    same_gradients(other, eager)


def test_bfloat16() -> None:
    eager, ours, other = pair(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)).to(torch.bfloat16))
    for module in (eager, ours):
        module(ramp(4, 6).to(torch.bfloat16)).float().square().sum().backward()
    for mine, theirs in zip(other.parameters(), eager.parameters(), strict=True):
        close(mine.grad, theirs.grad, 0.03)


def test_the_same_tensor_twice_and_overlapping_ones() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * y.exp()).sum()

    ours = compiled(function)
    x = ramp(8)
    for one, two in ((x, x), (x[:6], x[2:]), (x[:6], x[:6])):
        close(ours(one, two), function(one, two))


def test_inputs_changed_in_place() -> None:
    def function(x: torch.Tensor, total: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        x = x * 2
        x[1:] += total[1:]
        return x

    ours = compiled(function)
    totals = torch.zeros(5), torch.zeros(5)
    for _ in range(2):
        close(ours(ramp(5), totals[0]), function(ramp(5), totals[1]))
    close(*totals)


@pytest.mark.filterwarnings("ignore::glowtrain.torch.backend.FallbackWarning")
def test_overlapping_inputs_changed_in_place() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x + y

    memory = torch.zeros(6), torch.zeros(6)
    ours = compiled(function)
    for first in (False, True):
        results = [
            call(each[:4].clone(), each[2:].clone()) if not first else call(each[:4], each[2:])
            for call, each in zip((ours, function), memory, strict=True)
        ]
        close(*results)
    close(*memory)


def test_changed_input_that_the_gradient_reads() -> None:
    """Its value from before is what counts."""

    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        y = x * scale
        scale.mul_(2)
        return y.sum()

    found = []
    for each in (compiled(function), function):
        x, scale = ramp(5).requires_grad_(), ramp(5) + 2
        if each is function:  # eager PyTorch refuses: it would read the new value
            with pytest.raises(RuntimeError, match="inplace"):
                each(x, scale).backward()
            found.append(ramp(5) + 2)
        else:
            each(x, scale).backward()
            found.append(x.grad)
    close(*found)


# 11. distributed training


def test_distributed_data_parallel(tmp_path: Path) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        eager, _, other = pair(net())
        ours = compiled(nn.parallel.DistributedDataParallel(other))
        for module in (eager, ours):
            module(ramp(4, 6)).square().sum().backward()
        same_gradients(other, eager)
    finally:
        torch.distributed.destroy_process_group()


# 12. threads


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_pytorchs(threads: int, captured: list[CapturedFunction]) -> None:
    torch.set_num_threads(threads)
    compiled(net())(ramp(4, 6)).sum().backward()
    (function,) = captured
    (special,) = function._kept.values()
    training: Any = special._function
    assert training._forward._executable.threads <= threads
    assert (training._forward._executable.pool is None) == (training._forward._executable.threads == 1)


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Rows, by a function if there is one."""

    def __init__(self, function: Any = None) -> None:
        self.function = function

    def __len__(self) -> int:
        return 32

    def __getitem__(self, number: int) -> torch.Tensor:
        row = torch.full((6,), float(number))
        if self.function is None:
            return row
        with torch.no_grad():
            return self.function(row[None])[0]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_beside_workers_of_a_loader(method: str) -> None:
    torch.set_num_threads(2)
    eager, ours, other = pair(net())
    ours(ramp(8, 6)).sum().backward()
    eager(ramp(8, 6)).sum().backward()
    loader = torch.utils.data.DataLoader(Rows(), 8, num_workers=2, multiprocessing_context=method, timeout=60)
    for batch in loader:
        for module in (eager, ours):
            module(batch).square().sum().backward()
    same_gradients(other, eager)


def test_in_workers_after_fork() -> None:
    torch.set_num_threads(2)
    eager, ours, _ = pair(net())
    with torch.no_grad():
        ours(ramp(1, 6))
        loader = torch.utils.data.DataLoader(Rows(ours), 8, num_workers=2, multiprocessing_context="fork", timeout=60)
        found = torch.cat(list(loader))
        close(found, eager(torch.arange(32.0)[:, None].expand(32, 6)))


# 13. what a call costs


def test_a_call_is_one_native_call_each_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    before = PlacedFunction.__call__

    def noting(self: PlacedFunction, addresses: Any) -> None:
        calls.append(self.graph.name)
        before(self, addresses)

    monkeypatch.setattr(PlacedFunction, "__call__", noting)
    ours = compiled(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2)))
    for _ in range(3):
        ours(ramp(8, 6)).sum().backward()
    assert calls == ["captured.forward", "captured.backward"] * 3


# shapes


def test_tensors_that_are_the_negative_of_their_memory() -> None:
    """As the imaginary part of a conjugate is: arguments, parameters and cotangents."""
    imaginary = torch.complex(ramp(4, 6), ramp(4, 6).flip(0)).conj().imag
    assert imaginary.is_neg()
    eager, ours, _ = pair(nn.Linear(6, 2))
    for x in (ramp(4, 6), imaginary, torch._neg_view(ramp(4, 6))):
        close(ours(x), eager(x))
    eager.weight = nn.Parameter(torch._neg_view(ramp(2, 6)))
    leaves = [torch._neg_view(ramp(4, 6)).requires_grad_() for _ in range(2)]
    for module, x in zip((eager, compiled(eager)), leaves, strict=True):
        module(x).backward(torch._neg_view(ramp(4, 2)))
    close(leaves[1].grad, leaves[0].grad)


def test_many_shapes_are_one_graph_and_bounded_memory(
    captured: list[CapturedFunction], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shapes, "SHAPES", 3)
    eager, ours, _ = pair(nn.Sequential(nn.Linear(3, 4), nn.Tanh()))
    for size in range(2, 8):
        with torch.no_grad():
            close(ours(ramp(size, 3)), eager(ramp(size, 3)))
    assert len(captured) == 2  # the first shape, and all others
    assert len(captured[-1]._kept) == 3


def test_shapes_with_gradients() -> None:
    eager, ours, other = pair(net())
    for size in (2, 5, 3, 5, 1, 0):
        for module in (eager, ours):
            module(ramp(size, 6)).square().sum().backward()
    same_gradients(other, eager)


# random numbers


def dropped() -> tuple[nn.Module, torch.Tensor]:
    return nn.Dropout(0.4), torch.ones(400, requires_grad=True)


def test_dropout_has_the_masks_of_its_forward() -> None:
    module, x = dropped()
    ours = compiled(module)
    first, second = ours(x), ours(x)
    assert not torch.equal(first, second)
    assert 0.5 < float((first != 0).float().mean()) < 0.7
    (gradient,) = torch.autograd.grad(first.sum(), x)
    close(gradient, first)


def test_dropout_repeats_with_pytorchs_generator() -> None:
    module, x = dropped()
    ours = compiled(module)
    found = []
    for _ in range(2):
        torch.manual_seed(7)
        found.append(ours(x))
    assert torch.equal(*found)
    state = torch.get_rng_state()
    after = ours(x)
    torch.set_rng_state(state)
    assert torch.equal(ours(x), after)


def test_dropout_under_checkpointing() -> None:
    """The second forward drops what the first one did."""
    module, x = dropped()
    y = torch.utils.checkpoint.checkpoint(compiled(module), x, use_reentrant=False)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    close(gradient, y)


# what is left to PyTorch


class Unsupported(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.bessel_j0(x) + 1


def test_what_is_not_supported_is_named_once() -> None:
    x, ours = ramp(5), compiled(Unsupported())
    with pytest.warns(FallbackWarning, match=r"bessel_j0.*test_compile_traps.py:\d+: return torch.special") as noted:
        close(ours(x), Unsupported()(x))
    for _ in range(3):
        close(ours(x), Unsupported()(x))  # says nothing more: the fixture makes errors of warnings
    assert len([each for each in noted if each.category is FallbackWarning]) == 1


@pytest.mark.filterwarnings("default::glowtrain.torch.backend.FallbackWarning")
def test_autocast_is_left_to_pytorch() -> None:
    eager, ours, _ = pair(net())
    with torch.autocast("cpu", torch.bfloat16):
        expected = eager(ramp(4, 6))
        with pytest.warns(FallbackWarning, match="autocast"):
            result = ours(ramp(4, 6))
    close(result, expected)


@pytest.mark.filterwarnings("default::glowtrain.torch.backend.FallbackWarning")
def test_an_input_that_requires_a_gradient_changed_in_place() -> None:
    found = []
    for function in (lambda h: h.mul_(ramp(5)), compiled(lambda h: h.mul_(ramp(5)))):
        x = ramp(5).requires_grad_()
        with warnings.catch_warnings(record=True) as noted:
            warnings.simplefilter("always")
            function(x.exp().clone()).sum().backward()
        found.append(x.grad)
    assert any("requires a gradient is changed in place" in str(each.message) for each in noted)
    close(*found)


# the name


def test_recurrent_modules_do_not_break_the_graph(captured: list[CapturedFunction]) -> None:
    compiled(nn.LSTM(4, 5), fullgraph=True)(ramp(3, 2, 4))
    assert len(captured) == 1


def test_the_backend_is_found_by_its_name() -> None:
    """By the entry point of the installed package."""
    assert "glowtrain" in torch._dynamo.list_backends()
    module = net()
    close(torch.compile(module, backend="glowtrain")(ramp(4, 6)), module(ramp(4, 6)))


def test_views_alone_and_results_without_arguments() -> None:
    x = ramp(2, 3)
    assert compiled(lambda x: x.t())(x).data_ptr() == x.data_ptr()
    close(compiled(lambda: torch.ones(3) * 2)(), torch.full((3,), 2.0))
    result, size = compiled(lambda x: (x + 1, x.shape[0]))(x)
    close(result, x + 1)
    assert size == 2


def test_modules_are_copied_before_and_after() -> None:
    module = net()
    ours = compiled(module)
    ours(ramp(4, 6))
    close(compiled(copy.deepcopy(module))(ramp(4, 6)), ours(ramp(4, 6)))
