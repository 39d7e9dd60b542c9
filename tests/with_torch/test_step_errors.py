"""What compile_step refuses, and the words that say why: optimizers, losses, modules, batches and settings."""

from __future__ import annotations

import copy
import functools
from typing import Any

import numpy as np
import pytest
import torch
from eager import data, differences, eager_step, net, twins
from steps import compiled, refusal
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss
from torch.optim.swa_utils import AveragedModel

import glowtrain.torch as gtt


def test_optimizers_that_cannot_be_compiled() -> None:
    class Own(torch.optim.SGD):
        pass

    module = net()
    parameters = list(module.parameters())
    for optimizer, words in (
        (torch.optim.LBFGS(parameters), "LBFGS is not an optimizer that can be compiled"),
        (Own(parameters, 0.1), "Own is not an optimizer"),
        (
            torch.optim.NAdam(parameters, decoupled_weight_decay=True),
            "NAdam.decoupled_weight_decay=True. is not supported",
        ),
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


def test_what_cannot_be_traced() -> None:
    class Branches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x) if x.sum() > 0 else self.linear(-x)

    ((x, y),) = data(1)
    said = refusal(lambda: compiled(Branches())(x, y))
    assert "test_step_errors.py" in said
    assert "if x.sum() > 0" in said


def test_what_is_left_to_pytorch_says_how() -> None:
    """Comparisons and CTC ask for elements or have no compiled form; torch.cond chooses by elements."""

    class Chooses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            chosen: torch.Tensor = torch.cond(x.sum() > 0, self.layer, lambda a: -self.layer(a), (x,))
            return chosen

    def ctc(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        lengths = torch.tensor([8]), torch.tensor([2])
        return nn.functional.ctc_loss(scores.log_softmax(-1).unsqueeze(1), torch.tensor([[1, 2]]), *lengths)

    x, y = torch.ones(8, 4), torch.zeros(8, 3)
    for module, loss, words in (
        (
            nn.Linear(4, 3),
            lambda scores, target: 1.0 * torch.allclose(scores, target),
            " allclose has no compiled form",
        ),
        (nn.Linear(4, 3), ctc, " ctc_loss has no compiled form"),
        (Chooses(), mse_loss, "compute both, and take one by torch.where"),
    ):
        said = refusal(lambda: compiled(module, loss)(x, y))  # noqa: B023
        assert words in said
        assert 'torch.compile(module, backend="glowtrain")' in said


def test_operands_of_two_types_say_which() -> None:
    said = refusal(
        lambda: compiled(nn.Linear(4, 3), mse_loss)(torch.ones(8, 4, dtype=torch.float64), torch.zeros(8, 3))
    )
    assert "its operands are f64[8,4] (input0), f32[3,4] (weight), f32[3] (bias): convert one, as x.float()" in said
    assert "Gemm" not in said


AVERAGED, TAKEN = nn.Linear(4, 3).requires_grad_(False), AveragedModel(nn.Linear(4, 3))


def by_state_dicts(module: nn.Module) -> None:
    own = AVERAGED.state_dict()
    AVERAGED.load_state_dict({name: 0.9 * own[name] + 0.1 * new for name, new in module.state_dict().items()})


def by_data(module: nn.Module) -> None:
    for own, new in zip(AVERAGED.parameters(), module.parameters(), strict=True):
        own.data.lerp_(new.data, 0.1)


@pytest.mark.parametrize(
    ("average", "words"),
    [
        (TAKEN.update_parameters, "an average of the weights, say"),
        (by_state_dicts, "an average of the weights, say"),
        (by_data, "average weights between calls"),
    ],
)
def test_averages_of_the_weights_in_a_loss_say_where_they_belong(average: Any, words: str) -> None:
    module = nn.Linear(4, 3)

    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        average(module)
        return mse_loss(y, target)

    assert words in refusal(lambda: compiled(module, loss)(torch.ones(8, 4), torch.zeros(8, 3)))
    assert AVERAGED.weight.isfinite().all()


@pytest.mark.parametrize(
    ("factor", "words"),
    [
        (lambda _: torch.from_numpy(np.ones(3, np.float32)), "make buffers of arrays"),
        (lambda y: len(f"{y.mean():.3f}"), "it asks for the elements of a tensor"),
    ],
)
def test_numbers_that_a_trace_has_not_got(factor: Any, words: str) -> None:
    def loss(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mse_loss(y * factor(y), target)

    assert words in refusal(lambda: compiled(nn.Linear(4, 3), loss)(torch.ones(8, 4), torch.zeros(8, 3)))


def test_tensors_that_are_detached_for_nothing() -> None:
    other = torch.ones(3, requires_grad=True)

    def logging(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        {"weights": AVERAGED.state_dict(), "other": other.detach()}  # to be logged, perhaps
        return mse_loss(y, target)

    assert compiled(nn.Linear(4, 3), logging)(torch.ones(8, 4), torch.zeros(8, 3)) > 0


class WithAverage(nn.Module):
    """A loss that keeps an average of weights as a buffer, as the errors advise."""

    def __init__(self, module: nn.Linear) -> None:
        super().__init__()
        self.weights = (module.weight,)
        self.register_buffer("average", torch.zeros(3, 4))

    def forward(self, y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.average.lerp_(self.weights[0], 0.5)
        return mse_loss(y, target)


def test_an_average_of_the_weights_that_is_a_buffer_of_the_loss() -> None:
    module = nn.Linear(4, 3)
    loss, before = WithAverage(module), module.weight.detach().clone()
    compiled(module, loss)(torch.ones(8, 4), torch.zeros(8, 3))
    assert loss.average.equal(0.5 * before)
    assert not module.weight.equal(before)


SETTING = {
    "manual_seed": lambda: torch.manual_seed(0),
    "manual_seed, imported": functools.partial(torch.manual_seed, 0),
    "manual_seed of torch.random": lambda: torch.random.manual_seed(0),
    "seed": torch.seed,
}


@pytest.mark.parametrize("name", SETTING)
def test_who_seeds_pytorch_is_told_to_do_it_between_calls(name: str) -> None:
    def seeded(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        SETTING[name]()
        return mse_loss(y + torch.randn(3), target)

    step, before = compiled(nn.Linear(4, 3), seeded), torch.get_rng_state()
    message = refusal(lambda: step(torch.ones(8, 4), torch.zeros(8, 3)))
    assert "seeds PyTorch's generator" in message
    assert torch.get_rng_state().equal(before)
    torch.manual_seed(3)
    assert torch.initial_seed() == 3


def test_who_leaves_gradients_turned_off_is_told_what_to_do() -> None:
    def leaving(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        loss = mse_loss(y, target)
        torch.set_grad_enabled(False)
        return loss

    step = compiled(nn.Linear(4, 3), leaving)
    assert "with torch.no_grad()" in refusal(lambda: step(torch.ones(8, 4), torch.zeros(8, 3)))
    assert torch.is_grad_enabled()


def test_what_belongs_to_no_step_says_what_to_do() -> None:
    """A generator, a teacher that the loss averages, another step, and the same step."""
    module, teacher = nn.Linear(4, 3), nn.Linear(4, 3).requires_grad_(False)
    other = compiled(nn.Linear(4, 3), mse_loss)
    generator = torch.Generator().manual_seed(1)

    def noisy(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mse_loss(y + torch.randn(3, generator=generator), target)

    def averaging(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            teacher.weight.lerp_(module.weight, 0.1)
        return mse_loss(y, target)

    def nested(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mse_loss(y, target) + other(torch.ones(8, 4), target)

    def again(y: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return mse_loss(y, target) + itself(y, target)

    x, y = torch.ones(8, 4), torch.zeros(8, 3)
    for loss, words in (
        (noisy, "draws from a torch.Generator"),
        (averaging, "do it between calls"),
        (nested, "cannot be part of what is traced"),
    ):
        assert words in refusal(lambda: compiled(module, loss)(x, y))  # noqa: B023
    itself = compiled(module, again)
    assert "cannot be part of what is traced" in refusal(lambda: itself(x, y))
    assert teacher.weight.isfinite().all()
    assert other(x, y) > 0
