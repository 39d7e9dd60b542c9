"""What training loops in PyTorch do, as users write them: compiled, or refused with what to do."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from eager import differences, eager_step, twins
from steps import OPTIMIZERS, compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import glowtrain.torch as gtt

X, Y = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0, 1])


def test_modules_that_torch_compile_wrapped() -> None:
    """The step is that of the original module, whole or in parts."""
    for wrap in (torch.compile, lambda module: nn.Sequential(torch.compile(module))):
        module, optimizer, other, theirs = twins(nn.Linear(6, 3), lambda ps: torch.optim.SGD(ps, 0.1))
        step = gtt.compile_step(wrap(module), cross_entropy, optimizer)
        for _ in range(3):
            assert float(step(X, Y)) == pytest.approx(float(eager_step(other, cross_entropy, theirs, (X, Y))), rel=1e-4)
        assert differences(module.state_dict(), other.state_dict()) < 1e-5


NARROW = {"sgd, momentum", "adam", "adamw", "amsgrad", "nadam", "radam", "adamax", "rmsprop, all", "adagrad"}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", sorted(NARROW))
def test_narrow_modules_and_their_optimizers_state(name: str, dtype: torch.dtype) -> None:
    """State has the parameter's type, as PyTorch's; eager steps go on from it."""
    module, optimizer, other, theirs = twins(nn.Linear(6, 3).to(dtype), OPTIMIZERS[name])
    step, x = gtt.compile_step(module, mse_loss, optimizer), X.to(dtype)
    for number in range(6):
        eager_step(other, mse_loss, theirs, (x, x[:, :3]))
        (eager_step(module, mse_loss, optimizer, (x, x[:, :3])) if number == 4 else step(x, x[:, :3]))
    for parameter, theirs_ in zip(module.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter, theirs_, atol=0.02, rtol=0.02)
        for key, value in theirs.state[theirs_].items():
            ours = optimizer.state[parameter][key]
            assert ours.dtype == value.dtype, key
            torch.testing.assert_close(ours, value, atol=0.02, rtol=0.05)


def test_state_of_one_number_gets_the_type_that_is_computed_in() -> None:
    """PyTorch keeps NAdam's product in f32 for f64 parameters, of which one has no axes here."""
    module = nn.Linear(6, 3).double()
    module.scale = nn.Parameter(torch.tensor(1.5, dtype=torch.float64))
    module, optimizer, other, theirs = twins(module, lambda ps: torch.optim.NAdam(ps, 0.01))
    loss = lambda module, x, y: mse_loss(module(x) * module.scale, y)  # noqa: E731
    step, (x, y) = gtt.compile_step(module, loss, optimizer, targets=0), (X.double(), X[:, :3].double())
    for number in range(6):
        for each, rule in ((other, theirs), (module, optimizer))[: 2 if number % 3 == 0 else 1]:
            rule.zero_grad()
            loss(each, x, y).backward()
            rule.step()
        if number % 3:
            step(x, y)
    assert differences(module.state_dict(), other.state_dict()) < 1e-7


VIEWS: dict[str, Callable[[nn.Linear], torch.Tensor]] = {
    "whole": lambda module: module.weight.detach(),
    "rows": lambda module: module.weight.detach()[:2],
    "transposed": lambda module: module.weight.data.t(),
    "expanded": lambda module: module.bias.data.expand(3, 6),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS.keys())
def test_batches_that_are_views_of_parameters(view: Callable[[nn.Linear], torch.Tensor]) -> None:
    module, optimizer, other, theirs = twins(nn.Linear(6, 6), lambda ps: torch.optim.SGD(ps, 0.1))
    step = gtt.compile_step(module, mse_loss, optimizer)
    target = torch.zeros(view(module).shape)
    for _ in range(3):
        expected = float(eager_step(other, mse_loss, theirs, (view(other), target)))
        assert float(step(view(module), target)) == pytest.approx(expected, rel=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_inputs_that_a_loss_differentiates_by() -> None:
    """As of physics-informed networks, whose points require gradients; but none are given out."""

    def residual(net: nn.Module, points: torch.Tensor) -> torch.Tensor:
        u = net(points)
        (slope,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        return (slope.sum(1) + u[:, 0]).square().mean()

    module, optimizer, other, theirs = twins(
        nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)), lambda ps: torch.optim.SGD(ps, 0.1)
    )
    step, points = gtt.compile_step(module, residual, optimizer, targets=0), X.clone().requires_grad_()
    for _ in range(3):
        theirs.zero_grad()
        expected = residual(other, points)
        expected.backward()
        theirs.step()
        assert float(step(points)) == pytest.approx(float(expected), rel=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5
    assert "requires a gradient" in refusal(lambda: step(nn.Parameter(X)))


def test_distributions() -> None:
    """Nobody looks at elements for their arguments in a trace, and the default of others is as it was."""
    before = torch.distributions.Distribution._validate_args

    def loss_fn(scores: torch.Tensor, taken: torch.Tensor) -> torch.Tensor:
        normal = torch.distributions.Normal(scores.mean(1), scores.exp().sum(1))
        return -torch.distributions.Categorical(logits=scores).log_prob(taken).mean() + normal.log_prob(X[:, 0]).mean()

    module = nn.Linear(6, 3)
    expected = loss_fn(module(X), Y).item()
    assert float(compiled(module, loss_fn)(X, Y)) == pytest.approx(expected, rel=1e-4)
    assert torch.distributions.Distribution._validate_args == before


FREQUENCIES, WEIGHTS = torch.tensor([1, 0, 2, 1, 3]), torch.tensor([0.5, 1.0, 0.2, 2.0, 1.0])
COVARIANCES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "cov": lambda x: torch.cov(x.T),
    "population": lambda x: x.T.cov(correction=0),
    "weights": lambda x: torch.cov(x.T, aweights=WEIGHTS),
    "frequencies": lambda x: torch.cov(x.T, correction=2, fweights=FREQUENCIES),
    "both": lambda x: torch.cov(x.T, fweights=FREQUENCIES, aweights=WEIGHTS),
    "one variable": lambda x: torch.cov(x[:, 0]),
    "no degree of freedom": lambda x: torch.cov(x.T, correction=5).isinf().all() + x.sum(),
    "corrcoef": lambda x: torch.corrcoef(x.T),
    "corrcoef of one": lambda x: x[:, 0].corrcoef() + x.sum(),
}


@pytest.mark.parametrize("of", COVARIANCES.values(), ids=COVARIANCES.keys())
def test_covariances(of: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def loss_fn(scores: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        found = of(scores)
        return (found * torch.arange(found.numel()).reshape(found.shape)).square().sum() + found.sum()

    module, optimizer, other, theirs = twins(nn.Linear(6, 3).double(), lambda ps: torch.optim.SGD(ps, 1e-4))
    step = gtt.compile_step(module, loss_fn, optimizer)
    for _ in range(3):
        expected = eager_step(other, loss_fn, theirs, (X.double(), Y))
        assert float(step(X.double(), Y)) == pytest.approx(float(expected), rel=1e-6)
    assert differences(module.state_dict(), other.state_dict()) < 1e-6


def _clipped_after(step: gtt.CompiledStep) -> None:
    for _ in range(2):
        step(X, Y)
        torch.nn.utils.clip_grad_norm_(step.module.parameters(), 1.0)


def _imported_only(step: gtt.CompiledStep) -> None:
    from torch.nn.utils import clip_grad_norm_  # noqa: F401  a script that has it for something else

    step(X, Y)


def test_clipping_beside_a_step_is_warned_of() -> None:
    with pytest.warns(gtt.IneffectiveClippingWarning, match="clip_grad_norm_ beside .*: give clip_norm= to") as said:
        _clipped_after(compiled(nn.Linear(6, 3)))
    assert len(said) == 1
    assert said[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _clipped_after(compiled(nn.Linear(6, 3), clip_norm=1.0))
        _imported_only(compiled(nn.Linear(6, 3)))


D, P = torch.distributions, torch.nn.functional.softplus
DISTRIBUTIONS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "normal": lambda o, a: D.Independent(D.Normal(o, P(o)), 1).log_prob(a),
    "normal of two": lambda o, a: D.MultivariateNormal(o, torch.diag_embed(P(o))).log_prob(a),
    "bernoulli": lambda o, a: D.Bernoulli(logits=o).log_prob((a > 0).float()) + D.Bernoulli(logits=o).entropy(),
    "categorical": lambda o, a: D.kl_divergence(D.Categorical(logits=o), D.Categorical(logits=a)),
    "one hot": lambda o, a: D.OneHotCategorical(logits=o).log_prob(torch.eye(3)[a.argmax(1)]),
    "beta": lambda o, a: D.Beta(P(o), P(-o)).log_prob(a.sigmoid()),
    "dirichlet": lambda o, a: D.Dirichlet(P(o)).log_prob(a.softmax(1)),
    "gammas": lambda o, a: D.kl_divergence(D.Gamma(P(o), P(o)), D.Gamma(P(a), P(a))),
    "poisson": lambda o, a: D.Poisson(P(o)).log_prob(a.abs().round()),
    "student": lambda o, a: D.StudentT(P(o) + 1, o, P(o)).log_prob(a),
    "mixture": lambda o, a: D.MixtureSameFamily(D.Categorical(logits=o), D.Normal(o, P(o))).log_prob(a[:, 0]),
    "squashed": lambda o, a: D.TransformedDistribution(D.Normal(o, P(o)), [D.TanhTransform()]).log_prob(a.tanh()),
    "counts": lambda o, a: D.NegativeBinomial(P(o), logits=o).log_prob(a.abs().round()),
    "angles": lambda o, a: D.VonMises(o, P(o)).log_prob(a),
}


@pytest.mark.parametrize("of", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS.keys())
def test_densities_and_divergences(of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    loss_fn = lambda scores, actions: -of(scores, actions).mean()  # noqa: E731
    module, optimizer, other, theirs = twins(nn.Linear(6, 3), lambda ps: torch.optim.SGD(ps, 0.01))
    step, actions = gtt.compile_step(module, loss_fn, optimizer), X[:, 3:].clone()
    for _ in range(2):
        expected = eager_step(other, loss_fn, theirs, (X, actions))
        torch.testing.assert_close(step(X, actions), expected, atol=1e-5, rtol=1e-4)
    assert differences(module.state_dict(), other.state_dict()) < 1e-5


def test_validation_of_distributions_that_is_asked_for() -> None:
    loss_fn = lambda scores, a: -D.Normal(scores, P(scores), validate_args=True).log_prob(a).mean()  # noqa: E731
    said = refusal(lambda: compiled(nn.Linear(6, 3), loss_fn)(X, X[:, 3:]))
    assert "validate_args=True of a distribution asks for elements, which a trace has not: leave it out" in said


@pytest.mark.parametrize("transform", [torch.func.hessian, torch.func.jacrev])
def test_transforms_of_functions_are_named(transform: Any) -> None:
    def loss_fn(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return torch.func.vmap(transform(lambda z: net(z).sum()))(x).square().mean()

    said = refusal(lambda: compiled(nn.Sequential(nn.Linear(6, 3), nn.Tanh()), loss_fn, targets=0)(X))
    assert "transforms of torch.func (vmap, hessian, jacrev) are not followed" in said
    assert "torch.autograd.grad(..., create_graph=True)" in said


def test_channels_last_modules_learn_what_to_call() -> None:
    module = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
    assert "module.to(memory_format=torch.contiguous_format)" in refusal(lambda: compiled(module))
    compiled(module.to(memory_format=torch.contiguous_format))


def test_what_a_step_says_of_itself(caplog: pytest.LogCaptureFixture) -> None:
    step = compiled(nn.Linear(6, 3))
    assert repr(step) == "<compiled step of Linear by SGD, not called yet>"
    step._compiled.limit = 1
    with caplog.at_level(logging.INFO, "glowtrain.torch"):
        step(X, Y)
    assert repr(step) == "<compiled step of Linear by SGD, compiled for (f32[5,6], i64[5])>"
    assert "traced and differentiated for (f32[5,6], i64[5])" in caplog.text
    with pytest.warns(gtt.RecompilationWarning, match="each one more drops the one that was used longest ago"):
        step(X[:3], Y[:3])
    assert len(step._compiled) == 1


def test_options_of_the_backend() -> None:
    module = nn.Linear(6, 3)
    assert torch.compile(module, backend="glowtrain", options={})(X).shape == (5, 3)
    torch._dynamo.reset()
    with pytest.raises(Exception, match=r"has no options, and not threads"):
        torch.compile(module, backend="glowtrain", options={"threads": 2})(X)


# --- attributes of modules -------------------------------------------------------------------------------------------


class Keeping(nn.Module):
    """What the last batch gave, in attributes that are no buffers; and settings that it shares with others."""

    def __init__(self, settings: dict[str, list[float]]) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)
        self.settings = settings
        self.last: torch.Tensor | None = None
        self.history: list[torch.Tensor] = []
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = self.newest = self.layer(x) * self.settings["scales"][0]
        self.history.append(self.last)
        self.calls += 1
        return self.last


def test_attributes_that_a_step_leaves_are_named() -> None:
    module, teacher = Keeping({"scales": [1.0]}), Keeping({"scales": [1.0]})
    history = module.history
    step = compiled(module, lambda y, t: mse_loss(y, t) + mse_loss(y, teacher(X).detach()) + module.last.mean())
    with pytest.warns(gtt.UnkeptAttributeWarning) as said:
        assert step(X, torch.zeros(5, 3)).isfinite()
    named = "(last, newest, history, teacher.last, teacher.newest, teacher.history)"
    assert named in str(said[0].message)
    assert [each.filename for each in said] == [__file__]
    assert module.history is history
    for each in (module, teacher):
        assert (each.last, each.history, hasattr(each, "newest"), each.calls) == (None, [], False, 1)


@pytest.mark.filterwarnings("ignore::glowtrain.torch.UnkeptAttributeWarning")
def test_settings_that_a_module_shares_stay_shared() -> None:
    settings = {"scales": [1.0]}
    module = Keeping(settings)
    step = gtt.compile_step(module, mse_loss, torch.optim.SGD(module.parameters(), 0.0))
    for scale in (1.0, 3.0):
        settings["scales"][0] = scale
        torch.testing.assert_close(step(X, torch.zeros(5, 3)), mse_loss(module(X), torch.zeros(5, 3)).detach())
    assert module.settings is settings


def test_a_graph_leaves_the_module_as_it_was() -> None:
    settings = {"scales": [1.0]}
    module = Keeping(settings)
    gtt.from_torch(module, X).bind({"batch": 2})
    assert module.settings is settings
    assert (module.last, module.history, hasattr(module, "newest"), module.calls) == (None, [], False, 0)
