"""Gradients through torch.compile: odd cotangents, backward twice, gradients of gradients, hooks, modes without any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from compiled import close, compiled, pair, ramp, same_gradients
from eager import net
from torch import nn
from torch.nn import functional as F

from glowtrain.torch.dynamo.backend import FallbackWarning

pytestmark = pytest.mark.usefixtures("nothing_falls_back")

# --- cotangents that are expanded, not contiguous, or missing --------------------------------------------------------


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


# --- backward twice, and gradients of gradients ----------------------------------------------------------------------


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


# --- without gradients, and other modes ------------------------------------------------------------------------------


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


def test_frozen_parameters() -> None:
    eager, ours, other = pair(net())
    for module, plain in ((eager, eager), (ours, other)):
        plain[0].requires_grad_(requires_grad=False)
        module(ramp(4, 6)).square().sum().backward()
    same_gradients(other, eager)


# --- gradients that are there already, and hooks ---------------------------------------------------------------------


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


class Heads(nn.Module):
    """Two heads, each of which only its own parameters have to do with."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.first(x), self.second(x)


def triple(parameter: torch.Tensor) -> None:
    parameter.grad.mul_(3)


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("read", [(0,), (1,), (0, 1)])
def test_hooks_on_parameters_of_results_that_are_not_read(read: tuple[int, ...], late: bool) -> None:
    """They are not called: PyTorch would call them with None, so it computes such a module."""
    eager, ours, other = pair(Heads())
    for plain in (eager, other):
        weight = plain.second.weight
        if late:
            weight.register_post_accumulate_grad_hook(triple)
        else:
            weight.register_hook(lambda gradient: 3 * gradient)
    with pytest.warns(FallbackWarning, match="a tensor with hooks on its gradient"):
        ours(ramp(4, 6))
    for module in (eager, ours):
        results = module(ramp(4, 6))
        sum(results[n].square().sum() for n in read).backward()
    same_gradients(other, eager)


def test_backward_hooks_of_modules() -> None:
    eager, ours, other = pair(net())
    called: list[int] = []
    for module, plain in ((eager, eager), (ours, other)):
        plain[1].register_full_backward_hook(lambda *_: called.append(1))
        module(ramp(4, 6)).sum().backward()
    assert len(called) == 2
    same_gradients(other, eager)


@pytest.mark.filterwarnings("ignore::glowtrain.torch.dynamo.backend.FallbackWarning")
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_sparse_gradients(kind: Callable[..., nn.Module]) -> None:
    eager, ours, other = pair(kind(5, 3, sparse=True))
    for module in (eager, ours):
        module(torch.tensor([[1, 2]])).sum().backward()
    assert other.weight.grad.layout == eager.weight.grad.layout == torch.sparse_coo


# --- slopes without an end -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_binary_cross_entropy_of_probabilities_that_are_0_or_1(weighted: bool) -> None:
    """As a sigmoid of large scores gives them: no gradient is NaN."""
    target = torch.tensor([0.0, 1.0, 0.3]).repeat(7)
    weight = torch.linspace(0.5, 2, 21) if weighted else None
    found = []
    for function in (F.binary_cross_entropy, compiled(F.binary_cross_entropy)):
        x = torch.tensor([0.0, 1e-30, 1e-7, 0.4, 1 - 1e-7, 1.0, 0.9]).repeat_interleave(3).requires_grad_()
        scores = torch.linspace(-200, 200, 21, requires_grad=True)
        (function(x, target, weight) + function(torch.sigmoid(scores), target, weight)).backward()
        assert scores.grad is not None
        assert x.grad is not None
        found.append((x.grad, scores.grad))
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


POINTS = [0.0, -0.0, 1.0, -1.0, 2.0, -3.0, 0.5, -3e4]
OTHERS = [0.0, 1.0, 0.0, 2.0, -1.0, -3.0, 0.5, -0.0]


@pytest.mark.parametrize("name", ["expm1", "sinc", "log1p", "tanh", "sigmoid"])
def test_functions_far_out_and_at_zero(name: str) -> None:
    check_points(
        getattr(torch, name), torch.tensor(POINTS).clamp(min=-0.9) if name == "log1p" else torch.tensor(POINTS)
    )


@pytest.mark.parametrize("name", ["atan2", "hypot", "copysign", "maximum", "minimum", "fmax", "fmin"])
def test_functions_of_two_on_axes_and_among_equals(name: str) -> None:
    check_points(getattr(torch, name), torch.tensor(POINTS), torch.tensor(OTHERS))


@pytest.mark.parametrize("name", ["threshold", "hardshrink", "softshrink", "rrelu"])
def test_activations_of_nan_and_at_their_kinks(name: str) -> None:
    points = torch.tensor([*POINTS, torch.inf, -torch.inf])
    if name != "rrelu":
        points = torch.cat([points, torch.tensor([torch.nan])])
    function = getattr(F, name)
    check_points((lambda x: function(x, 1.0, -7.0)) if name == "threshold" else function, points)


def test_medians_of_equals_and_nan() -> None:
    check_points(torch.median, torch.tensor([1.0, 1.0, 0.0, 1.0, 3.0]))
    with torch.no_grad():
        rows = torch.tensor([[1.0, torch.nan, 0.0, torch.nan], [3.0, 3.0, 3.0, 1.0]])
        assert compiled(torch.median)(rows).isnan()
        for dim in (0, 1):
            for ours, theirs in zip(compiled(torch.median)(rows, dim), torch.median(rows, dim), strict=True):
                torch.testing.assert_close(ours, theirs, equal_nan=True)


def test_where_nan_is_sorted_in() -> None:
    edges, x = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([1.0, torch.nan, torch.inf])
    for right in (False, True):
        assert compiled(torch.searchsorted)(edges, x, right=right).tolist() == [3 if right else 1, 3, 3]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_floor_division_and_rests_are_exact(dtype: torch.dtype) -> None:
    """1.0 // 0.1 is 9, with a rest of almost 0.1."""
    x = torch.tensor([1.0, 2.0, 0.3, 0.6, 1.2, -1.0, -0.3, 7.0, torch.inf, 4.0]).to(dtype)[:, None]
    y = torch.tensor([0.1, 0.3, 0.2, 0.7, -0.1, -0.3, 2.0, torch.inf, 0.0]).to(dtype)
    for function in (torch.floor_divide, torch.remainder, lambda x, y: x // 0.1, lambda x, y: x % 0.3):
        torch.testing.assert_close(compiled(function)(x, y), function(x, y), rtol=0, atol=0, equal_nan=True)
    check_points(torch.remainder, torch.tensor([1.0, -1.0, 7.0]), torch.tensor([0.3, 0.4, -0.3]))


def test_cross_entropy_of_ignored_labels_alone() -> None:
    """The loss is NaN, the gradient is not."""
    check_points(lambda x: F.cross_entropy(x, torch.full((4,), -100)), ramp(4, 3))


ADDED_UP: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: (x * 0 + 1.0078125).cumprod(0),
    "logcumsumexp": lambda x: x.logcumsumexp(0),
    "scatter_add": lambda x: torch.zeros(2, dtype=x.dtype).scatter_add(0, torch.zeros(len(x), dtype=torch.long), x),
    "scatter_reduce": lambda x: x.new_zeros(2).scatter_reduce(
        0, torch.zeros(len(x), dtype=torch.long), x, "mean", include_self=False
    ),
    "embedding_bag": lambda x: F.embedding_bag(torch.arange(len(x))[None], x[:, None], mode="sum"),
}


@pytest.mark.parametrize("name", ADDED_UP)
def test_narrow_floats_are_added_up_in_f32(name: str) -> None:
    x = torch.rand(1000, dtype=torch.float64).to(torch.bfloat16)
    exact, ours = x.double().requires_grad_(), x.requires_grad_()
    expected, result = ADDED_UP[name](exact), compiled(ADDED_UP[name])(ours)
    expected.sum().backward(), result.float().sum().backward()
    assert result.dtype == torch.bfloat16
    close(result.double(), expected, 0.01)
    close(ours.grad.double(), exact.grad, 0.01)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gelu_of_narrow_floats_is_computed_in_f32(dtype: torch.dtype, approximate: str) -> None:
    """Values and gradients are rounded once."""
    x = torch.linspace(-6, 6, 500).to(dtype)
    exact, ours = x.float().requires_grad_(), x.requires_grad_()
    expected, result = F.gelu(exact, approximate=approximate), compiled(F.gelu)(ours, approximate=approximate)
    expected.sum().backward(), result.float().sum().backward()
    torch.testing.assert_close(result, expected.to(dtype), rtol=torch.finfo(dtype).eps, atol=4e-6)
    torch.testing.assert_close(ours.grad, exact.grad.to(dtype), rtol=torch.finfo(dtype).eps, atol=4e-6)


BEYOND_F16: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "number": lambda x, y: x * 70000.0,
    "small number": lambda x, y: y * 1e-8,
    "scalar": lambda x, y: x * torch.tensor(70000.0),
    "quotient": lambda x, y: y / 70000.0,
    "trunc": lambda x, y: torch.div(y, 7e4, rounding_mode="trunc"),
    "addcmul": lambda x, y: torch.addcmul(x, y, y, value=0.01),
    "hypot": torch.hypot,
    "std": lambda x, y: y.std(),
    "norm": lambda x, y: y.norm(3),
}


@pytest.mark.parametrize("name", BEYOND_F16)
def test_what_is_beyond_f16_within_an_operator(name: str) -> None:
    """PyTorch computes in f32, and does not round numbers and scalars before."""
    operands = torch.tensor([1e-3, -0.5, 3.0]).half(), torch.tensor([600.0, -5.0, 3e4]).half()
    exact = BEYOND_F16[name](*(each.double() for each in operands))
    ours = compiled(BEYOND_F16[name])(*operands)
    assert ours.dtype == torch.float16
    torch.testing.assert_close(ours, exact.half(), rtol=2e-3, atol=1e-7)


def test_numbers_are_not_rounded_to_bf16() -> None:
    x = torch.arange(1.0, 200.0).bfloat16()
    assert torch.equal(compiled(lambda x: x * 0.1 / 0.3)(x), x * 0.1 / 0.3)


EXACT: dict[str, Callable[[], torch.Tensor]] = {
    "powers of two": lambda: torch.exp2(torch.arange(-20.0, 100.0)),
    "shifts": lambda: torch.tensor([5, -5, 2**62, -1]) >> torch.tensor([[0, 1, 31, 62, 63]]).T,
    "shifts by too much": lambda: torch.tensor([5, -5]) >> torch.tensor([[-1, 64, 99]]).T,
    "shifts of 32 bits": lambda: torch.tensor([5, -5], dtype=torch.int32) >> 31,
    "shifts of bytes": lambda: torch.tensor([5, 255], dtype=torch.uint8) >> torch.tensor([[7], [1]]).byte(),
    "ends of lerp": lambda: torch.lerp(torch.tensor(1e8), torch.tensor([0.5, 3.0]), torch.tensor([[0.0], [1.0]])),
    "end of lerp": lambda: torch.lerp(torch.tensor(1e8), torch.tensor([0.5, 3.0]), 1.0),
    "cdist of nothing": lambda: torch.cdist(torch.zeros(2, 0), torch.zeros(3, 0), p=torch.inf),
}


@pytest.mark.parametrize("name", EXACT)
def test_exact_results(name: str) -> None:
    x = torch.zeros(())
    assert torch.equal(compiled(lambda x: EXACT[name]() + x.long())(x), EXACT[name]())


SPECIAL = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 1.0, -2.5])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: torch.clamp(x, y, torch.ones_like(x)),
        lambda x, y: torch.clamp(x, torch.ones_like(x), y),
        lambda x, y: torch.clamp(x, min=y),
        lambda x, y: torch.clamp(x, max=y),
        lambda x, y: 1 / torch.atan2(x, y),
        torch.hypot,
        torch.xlogy,
        lambda x, y: torch.lgamma(1e-30 * x),
        lambda x, y: torch.digamma(1e-30 * x),
    ],
)
def test_values_at_nan_and_infinities(function: Callable[..., torch.Tensor]) -> None:
    torch._dynamo.reset()
    x, y = torch.meshgrid(SPECIAL, SPECIAL, indexing="ij")
    torch.testing.assert_close(compiled(function)(x, y), function(x, y), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_binary_cross_entropy_of_narrow_certainties(dtype: torch.dtype) -> None:
    p, target = torch.tensor([0.0, 1.0, 0.25, 1.0]).to(dtype), torch.tensor([0.0, 1.0, 1.0, 0.0]).to(dtype)
    loss = compiled(lambda p: F.binary_cross_entropy(p, target, reduction="none"))(p)
    close(loss, F.binary_cross_entropy(p, target, reduction="none"), 0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_complementary_error_function_far_out(dtype: torch.dtype) -> None:
    x = torch.tensor([-7.0, 0.0, 1.99, 2.01, 3.0, 5.0, 8.5, 40.0, torch.inf]).to(dtype)
    torch.testing.assert_close(
        compiled(torch.erfc)(x), torch.erfc(x), rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0
    )
    check_points(lambda x: torch.erfc(x).log(), x[:7])


HYPOTENUSES = torch.tensor([3e30, 3e-30, -3.0]), torch.tensor([4e30, 4e-30, 0.0])


def test_hypotenuses_of_all_sizes() -> None:
    check_points(torch.hypot, *HYPOTENUSES)
    expected = torch.hypot(*HYPOTENUSES)
    torch.testing.assert_close(compiled(torch.hypot)(*HYPOTENUSES), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("size", [1, 2, 3, (2, 1), (2, 3)])
def test_adaptive_maxima_of_equals(size: int | tuple[int, int]) -> None:
    """The first one has the gradient."""
    function = F.adaptive_max_pool1d if isinstance(size, int) else F.adaptive_max_pool2d
    x = torch.tensor([[[0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0], [1.0, 2.0, 2.0, 2.0]]])
    check_points(lambda x: function(x, size), x)


def test_losses_of_unusual_targets() -> None:
    target, x = torch.tensor([1.0, -1.0, 0.0, 0.5]), torch.tensor([0.25, 0.5, 2.0, -0.5])
    check_points(lambda x: F.hinge_embedding_loss(x, target), x)
    with torch.no_grad():
        assert compiled(lambda x: F.kl_div(x, target, reduction="sum"))(x).isnan()


@pytest.mark.parametrize("dtype", [torch.bool, torch.float32])
def test_dropout_on_attention_that_sees_nothing(dtype: torch.dtype) -> None:
    """Zeros, as without dropout, and gradients that are numbers."""
    x = ramp(1, 2, 3, 4).requires_grad_()
    seen = torch.tensor([[False, False, False], [True, False, False], [False, True, False]])
    mask = seen if dtype == torch.bool else torch.zeros(3, 3).masked_fill(~seen, -torch.inf)
    result = compiled(lambda x: F.scaled_dot_product_attention(x, x, x, mask, dropout_p=0.1))(x)
    result.sum().backward()
    assert not result[..., 0, :].any()
    assert result.isfinite().all()
    assert x.grad.isfinite().all()


def test_xlogy_of_zeros() -> None:
    check_points(torch.xlogy, torch.tensor([0.0, 0.0, 1.0, -1.0, 2.0]), torch.tensor([1.0, 2.0, 3.0, 1e-3, 0.5]))
    for other in (0.0, -1.0):
        x, y = torch.zeros(1, requires_grad=True), torch.tensor([other])
        compiled(torch.xlogy)(x, y).backward()
        assert x.grad == 0


def test_bounds_that_are_tensors_share_no_gradient() -> None:
    x, low, high = ([0.0, 1.0, 2.0, 3.0, 9.0, 1.0], [1.0, 1.0, 1.0, 5.0, 2.0, 3.0], [2.0, 1.0, 2.0, 4.0, 3.0, 3.0])
    check_points(torch.clamp, *map(torch.tensor, (x, low, high)))
    check_points(torch.clamp, *map(torch.tensor, ([0.0, 5.0], [3.0, 3.0], [3.0, 3.0])))
    check_points(lambda x, low: torch.clamp(x, min=low), *map(torch.tensor, (x, low)))


def test_signs_and_losses_of_what_is_no_number_or_infinite() -> None:
    far = torch.tensor([float("nan"), float("inf"), float("-inf"), 0.0, -2.0])
    check_points(torch.sign, far)
    zeros = torch.zeros_like(far)
    check_points(lambda x: F.huber_loss(x, zeros, reduction="none"), far)
    check_points(lambda x: F.smooth_l1_loss(x, zeros, reduction="none", beta=0.5), far)


def check_points(function: Callable[..., torch.Tensor], *points: torch.Tensor) -> None:
    """Values and gradients of all operands."""
    found = []
    for each in (function, compiled(function)):
        operands = [point.clone().requires_grad_() for point in points]
        result = each(*operands)
        result.sum().backward()
        found.append([result.detach(), *(operand.grad for operand in operands)])
    for theirs, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6, equal_nan=True)
