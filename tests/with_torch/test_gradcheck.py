"""Gradient checks of PyTorch modules: wrong backwards and wrong rules are found, with submodule and line."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from glowtrain.errors import InputError, ModelError, VerificationError
from glowtrain.gradcheck import Check, GradcheckReport
from glowtrain.ops.elementwise.transcendental import Tanh
from glowtrain.torch import gradcheck

pytest_plugins = ["pytester"]


class Cube(torch.autograd.Function):
    """Its backward has the wrong factor."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * 2 * x * x


class RightCube(torch.autograd.Function):
    """With a context set up apart."""

    @staticmethod
    def forward(x: torch.Tensor) -> torch.Tensor:
        return x * x * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return g * 3 * x * x


class WrongCube(RightCube):
    """The same, with a wrong sign; its forward is inherited."""

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return -RightCube.backward(ctx, g)


bound_cube = Cube.apply


class Block(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.function = (function,)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function[0](self.linear(x))


class Network(nn.Module):
    """Two blocks and a head."""

    def __init__(self, first: Any = torch.tanh, second: Any = torch.tanh, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.layers = nn.ModuleList([Block(first), Block(second)])
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.dropout(x))


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5))


def of(report: GradcheckReport, subject: str, oracle: str = "autograd") -> Check:
    return next(check for check in report.of(subject) if check.oracle == oracle)


def test_a_right_module_passes_every_oracle() -> None:
    network = Network(second=RightCube.apply)
    report = gradcheck(network, numbers(5, 4))
    names = [name for name, _ in network.named_parameters()]
    assert report.passed, report.failures
    assert report.subjects == (*names, "x", "loss")
    assert {check.oracle for check in report.checks} == {"gradient", "compiled", "autograd", "forward"}
    assert max(check.error for check in report.checks if check.oracle == "autograd") < 1e-12


@pytest.mark.parametrize("train", [True, False])
@pytest.mark.parametrize("function", [Cube.apply, bound_cube, WrongCube.apply])
def test_a_wrong_backward_is_found_with_its_submodule_and_line(function: Any, train: bool) -> None:
    report = gradcheck(Network(RightCube.apply, function, dropout=0.5).train(train), numbers(5, 4), compiled=False)
    assert {check.oracle for check in report.failures} == {"autograd"}
    failed = {check.subject for check in report.failures}
    assert {"layers.0.linear.weight", "layers.1.linear.weight", "x"} <= failed
    assert not failed & {"head.weight", "head.bias"}
    kind = function.__self__.__name__
    told = rf"the backward of {kind} in layers.1 \(.*test_gradcheck.py:\d+: return self.function\[0\]"
    assert all(re.search(told, check.detail) for check in report.failures)
    assert ("differences agree with Glowtrain" in report.failures[0].detail) == (not train)


def test_a_module_with_dropout_passes() -> None:
    report = gradcheck(Network(dropout=0.5), numbers(5, 4), compiled=False)
    assert report.passed, report.failures
    assert all(check.examples for check in report.checks)


class Reversed(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        if y.requires_grad:
            y.register_hook(lambda g: -g)
        return y


def test_a_submodule_whose_hook_changes_the_gradient_is_named() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Tanh(), Reversed()), nn.Linear(4, 2))
    report = gradcheck(network, numbers(3, 4), compiled=False)
    assert "the gradient of submodule '1.1' is wrong" in of(report, "0.weight").detail
    assert {check.subject for check in report.failures} == {"0.weight", "0.bias", "input"}


def test_a_wrong_rule_of_ours_is_named_with_submodule_and_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tanh, "vjp", lambda self, g, y, x: (g * 1.5 * (1.0 - y * y),))
    report = gradcheck(Network(second=torch.sin), numbers(5, 4), compiled=False)
    gradient, autograd = of(report, "layers.0.linear.bias", "gradient"), of(report, "layers.0.linear.bias")
    told = r"of Tanh\(f64\[5,4\]\) of node '/layers.0/tanh' in layers.0 \(.*test_gradcheck.py:\d+: return .* is wrong"
    assert re.search(told, gradient.detail)
    assert autograd.status == "failed"
    assert "Function" not in autograd.detail
    assert of(report, "layers.1.linear.bias").status == "passed"


def test_a_wrong_forward_of_ours_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    reference = Tanh.reference
    monkeypatch.setattr(Tanh, "reference", lambda self, x: reference(self, x) * 1.01)
    assert of(gradcheck(Network(), numbers(5, 4), compiled=False), "loss", "forward").status == "failed"


class Detached(nn.Module):
    """Straight-through: rounding whose gradient is taken to be one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (torch.round(x) - x).detach()


def test_what_is_detached_is_constant() -> None:
    report = gradcheck(nn.Sequential(nn.Linear(4, 4), Detached(), nn.Linear(4, 2)), numbers(3, 4), compiled=False)
    assert report.passed, report.failures


def test_detached_and_random_together_are_not_compared() -> None:
    network = nn.Sequential(nn.Linear(4, 4), Detached(), nn.Dropout(0.5))
    report = gradcheck(network, numbers(3, 4), compiled=False)
    assert report.passed
    assert of(report, "0.weight").status == "absent"
    assert "detach()" in of(report, "0.weight").detail


def test_a_kink_is_no_failure() -> None:
    """Hardtanh has no derivative at its ends."""
    network = nn.Sequential(nn.Hardtanh())
    report = gradcheck(network, torch.ones(3, 4), compiled=False)
    assert report.passed, report.failures
    assert of(report, "input", "gradient").status == "kink"


def test_losses_targets_and_several_inputs() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.bilinear = nn.Bilinear(4, 3, 5)

        def forward(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
            return self.bilinear(left, right)

    inputs = {"right": numbers(6, 3), "left": numbers(6, 4)}
    targets = torch.tensor([0, 1, 2, 3, 4, 0])
    report = gradcheck(Pair(), inputs, nn.CrossEntropyLoss(weight=torch.rand(5) + 0.5), targets, compiled=False)
    assert report.passed, report.failures
    assert report.subjects == ("bilinear.weight", "bilinear.bias", "left", "right", "loss")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_element_types(dtype: torch.dtype) -> None:
    assert gradcheck(Network().to(dtype), numbers(5, 4).to(dtype)).passed


def test_frozen_and_tied_parameters() -> None:
    network = Network()
    network.layers[1].linear.weight = network.layers[0].linear.weight
    network.head.requires_grad_(False)
    report = gradcheck(network, numbers(5, 4), compiled=False)
    assert report.passed, report.failures
    assert report.subjects == ("layers.0.linear.weight", "layers.0.linear.bias", "layers.1.linear.bias", "x", "loss")


def test_nothing_of_the_module_changes() -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), Block(Cube.apply))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    forward, state = Cube.__dict__["forward"], torch.get_rng_state()
    assert not gradcheck(network, numbers(5, 4), compiled=False).passed
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert Cube.__dict__["forward"] is forward
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in network.modules())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_failures_are_raised_and_equal_runs_are_equal() -> None:
    reports = [gradcheck(Network(Cube.apply), numbers(5, 4), compiled=False) for _ in range(2)]
    assert reports[0] == reports[1]
    with pytest.raises(VerificationError, match=r"gradient checks failed:\n  layers.0.linear.weight, autograd: "):
        reports[0].raise_if_failed()


def test_the_fixture_fails_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch
        from glowtrain.torch import gradcheck as check

        class Twice(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x * 2

            @staticmethod
            def backward(ctx, g):
                return g

        class Layer(torch.nn.Module):
            def forward(self, x):
                return Twice.apply(x)

        def test_right(gradcheck):
            gradcheck.report(check(torch.nn.Linear(2, 3), torch.ones(2, 2), compiled=False))

        def test_wrong(gradcheck):
            gradcheck.report(check(torch.nn.Sequential(Layer()), torch.ones(2, 2), compiled=False))
        """
    )
    found = pytester.runpytest_subprocess("-p", "glowtrain.pytest_plugin", "-p", "no:cacheprovider")
    found.assert_outcomes(passed=1, failed=1)
    found.stdout.fnmatch_lines(["*the backward of Twice in 0 (*: return Twice.apply(x))*"])


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "gradcheck.md").read_text(encoding="utf-8")
    (script,) = (block for block in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "import torch" in block)
    (tmp_path / "model.py").write_text(script)
    with pytest.raises(VerificationError, match=r"the backward of Cube in 1 \(.*model.py:23: return Cube.apply"):
        runpy.run_path(str(tmp_path / "model.py"))


class Chosen(nn.Module):
    def __init__(self, choose: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.choose = choose

    def forward(self, x: torch.Tensor) -> Any:
        return self.choose(self.linear(x))


@pytest.mark.parametrize(
    ("module", "options", "told"),
    [
        (nn.Linear(4, 4), {"loss_fn": lambda y: y}, r"must be a float scalar, not f32\[3,4\]: reduce it"),
        (nn.Linear(4, 4), {"loss_fn": 3}, "loss_fn must be a function or a module, not int"),
        (nn.Linear(4, 4), {"targets": numbers(3)}, "targets are the loss's: give loss_fn as well"),
        (Chosen(lambda x: x.argmax(1)), {}, "Chosen returns no float tensor: pass loss_fn"),
        (Chosen(lambda x: nn.functional.linear(x, torch.ones(2, 4, dtype=torch.float32))), {}, r"in f64.*\.py:\d+: "),
        ("linear", {}, "a torch.nn.Module is wanted, not str"),
    ],
)
def test_bad_input(module: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(InputError, match=told):
        gradcheck(module, numbers(3, 4), **options)


def test_what_cannot_be_traced_names_the_line() -> None:
    with pytest.raises(ModelError, match=r"test_gradcheck.py:\d+: .*item\(\)"):
        gradcheck(Chosen(lambda x: x * 2 if x.sum().item() > 0 else x), numbers(3, 4))
