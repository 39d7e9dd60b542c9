"""What cannot be traced or read: one error that says what, in which submodule and line, and nothing else on stderr."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import glowtrain as gt
from glowtrain.errors import InputError, ModelError, UnsupportedOperatorError

FILE = "test_aten_errors.py"


class Layer(nn.Module):
    """A function of a linear layer's result, one level down."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.linear(x))


def refused(module: nn.Module, example: Any, error: type[Exception] = ModelError) -> str:
    """The message, after checking that it is the first and only one."""
    with pytest.raises(error) as caught:
        gt.from_torch(module, example, dims={})
    return str(caught.value)


def sign_by_if(h: torch.Tensor) -> torch.Tensor:
    if h.sum() > 0:
        return h
    return -h


def through_numpy(h: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(np.sin(h.detach().numpy()))


def shrunk(h: torch.Tensor) -> torch.Tensor:
    return h @ torch.zeros(5, 5)


def refusing(h: torch.Tensor) -> torch.Tensor:
    raise ValueError("not on a Sunday")


@pytest.mark.parametrize(
    ("function", "line"),
    [
        (sign_by_if, "if h.sum() > 0:"),
        (through_numpy, "return torch.from_numpy(np.sin(h.detach().numpy()))"),
        (lambda h: h * h.sum().item(), ".item()"),
        (lambda h: h * sum(h[0].tolist()), ".item()"),
        (lambda h: h[h > 0], "index.Tensor"),
        (lambda h: (h > 0).nonzero(), "nonzero.default"),
        (torch.unique, "_unique2.default"),
        (lambda h: torch.masked_select(h, h > 0), "masked_select.default"),
    ],
)
def test_what_depends_on_elements_is_refused(
    function: Callable[..., Any], line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    message = refused(nn.Sequential(Layer(function)), torch.zeros(4, 3))
    assert line in message
    assert FILE in message
    assert "use torch.where in place of if on tensors" in message
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(("count", "correction"), [(1, 2), (3, 3), (2, 4.5)])
def test_variances_of_too_few_elements_are_refused(count: int, correction: float) -> None:
    """They are infinite, with gradients that need not be. That of one element, with the usual correction, is NaN."""
    gt.from_torch(Layer(lambda h: torch.std(h[:, :1], 1)), torch.zeros(4, 3), dims={})
    message = refused(Layer(lambda h: torch.std(h[:, :count], 1, correction=correction)), torch.zeros(4, 3))
    assert f"a variance of {count} elements with correction={correction:g}" in message
    assert FILE in message


def test_negative_powers_of_whole_numbers_are_refused() -> None:
    """As PyTorch does, but for exponents that are tensors: there it rounds towards zero."""
    message = refused(Layer(lambda h: torch.arange(1, 4) ** -2 + h), torch.zeros(4, 3))
    assert "whole numbers have no power -2" in message
    assert FILE in message
    graph = gt.from_torch(Layer(lambda h: torch.arange(1, 4) ** torch.tensor(-2) + 0 * h), torch.zeros(4, 3), dims={})
    (powers,) = gt.compile(graph)({"x": np.zeros((4, 3), np.float32)}).values()
    np.testing.assert_array_equal(powers[0], [1, 0, 0])


@pytest.mark.parametrize("function", [torch.max, torch.min])
def test_extrema_of_no_elements_are_refused(function: Callable[..., Any]) -> None:
    message = refused(Layer(lambda h: function(h[:0])), torch.zeros(4, 3))
    assert "without elements has no largest" in message
    assert FILE in message


@pytest.mark.parametrize(
    "function",
    [
        torch.linalg.inv,
        lambda h: torch.linalg.solve(h, torch.ones(3)),
        lambda h: torch.linalg.solve(h, torch.ones(2, 3), left=False),
        lambda h: torch.linalg.matrix_power(h, -2),
        lambda h: torch.linalg.solve_triangular(h, torch.ones(3, 1), upper=True),
        lambda h: torch.linalg.inv_ex(h).inverse,
    ],
)
def test_what_a_singular_matrix_divides_is_nan(function: Callable[..., Any]) -> None:
    """PyTorch raises, or leaves it open."""
    layer = Layer(function)
    layer.linear.weight.data, layer.linear.bias.data = torch.eye(3), torch.zeros(3)
    run = gt.compile(gt.from_torch(layer, torch.zeros(3, 3), dims={}))
    matrix = np.array([[1, 2, 3], [0, 0, 6], [0, 0, 1]], np.float32)
    (found,) = run({"x": matrix}).values()
    assert np.isnan(found).all()
    (found,) = run({"x": matrix + np.eye(3, dtype=np.float32)}).values()
    assert np.isfinite(found).all()


def test_a_mask_that_sets_several_values_is_refused() -> None:
    def put(h: torch.Tensor) -> torch.Tensor:
        copy = h.clone()
        copy[torch.tensor([True, False, True, False])] = torch.ones(2, 3)
        return copy

    assert "choose between two tensors by torch.where" in refused(Layer(put), torch.zeros(4, 3))


class Straight(torch.autograd.Function):
    """Rounding, through which gradients pass."""

    @staticmethod
    def forward(ctx: Any, h: torch.Tensor) -> torch.Tensor:
        return h.round()

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


straight = Straight.apply


def hooked(h: torch.Tensor) -> torch.Tensor:
    h.register_hook(lambda g: g * 2)
    return h


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda h: straight(h) * 2, "gradient of Straight, a torch.autograd.Function"),
        (lambda h: checkpoint(torch.sin, h, use_reentrant=True), "gradient of CheckpointFunction"),
        (hooked, "hooks of tensors"),
        (lambda h: h.data * h, "use .detach() in place of .data"),
    ],
)
def test_gradients_of_ones_own_are_refused_and_not_lost(function: Callable[..., Any], said: str) -> None:
    message = refused(Layer(function), torch.zeros(4, 3))
    assert said in message


def test_pytorchs_own_way_to_call_functions_is_restored() -> None:
    refused(Layer(straight), torch.zeros(4, 3))
    assert Straight.apply(torch.tensor([1.4])).item() == 1


class Spectrum(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real + torch.special.airy_ai(x)


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, 3), Spectrum()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.linalg.eigvalsh(x @ x.T)


def test_all_unsupported_operators_are_named_with_their_submodules_and_lines(
    capfd: pytest.CaptureFixture[str],
) -> None:
    message = refused(Several(), torch.zeros(4, 3), UnsupportedOperatorError)
    lines = message.splitlines()
    spectrum = f"{FILE}:{Spectrum.forward.__code__.co_firstlineno + 1}: return torch.fft.fft(x).real"
    assert any("_fft_r2c.default in layers.1" in line and spectrum in line for line in lines)
    assert any(line.startswith("  - special_airy_ai.default in layers.1") for line in lines)
    assert any(line.startswith("  - _linalg_eigh.default (") and "eigvalsh" in line for line in lines)
    assert "there is no torch.complex64" in message
    assert capfd.readouterr().err == ""


def test_of_many_unsupported_operators_the_first_are_named() -> None:
    def many(h: torch.Tensor) -> torch.Tensor:
        s = torch.special
        h = s.bessel_j0(h) + s.bessel_j1(h) + s.bessel_y0(h) + s.bessel_y1(h) + s.airy_ai(h) + s.gammainc(h, h)
        return h + s.modified_bessel_k0(h) + s.modified_bessel_k1(h) + s.scaled_modified_bessel_k0(h) + s.zeta(h, h)

    message = refused(Layer(many), torch.zeros(4, 3), UnsupportedOperatorError)
    assert message.count("\n  - ") == 9
    assert message.endswith("and 2 more")


def packed(h: torch.Tensor) -> torch.Tensor:
    return nn.utils.rnn.pack_padded_sequence(h[:, None], torch.tensor([4]), enforce_sorted=False).data.relu()


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda h: torch.view_as_complex(h[:, :2].contiguous()).abs(), "there is no torch.complex64"),
        (lambda h: torch.quantize_per_tensor(h, 0.1, 0, torch.qint8).dequantize(), "quantize_per_tensor.default"),
        (lambda h: torch.sparse.mm(torch.eye(4).to_sparse(), h), "_to_sparse.default"),
        (lambda h: h.to(torch.float8_e4m3fn).float(), "torch.float8_e4m3fn"),
        (lambda h: torch.linalg.eigvalsh(h @ h.T), "_linalg_eigh.default"),
        (packed, "relu of a packed sequence's own tensors is not followed"),
        (lambda h: F.ctc_loss(h[:, None], torch.ones(1, 2).long(), (4,), (2,)), "_ctc_loss"),
        (shrunk, "same reduction dim"),
        (refusing, "not on a Sunday"),
    ],
)
def test_what_is_not_supported_is_named(
    function: Callable[..., Any], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    message = refused(Layer(function), torch.zeros(4, 3))
    assert said in message
    assert FILE in message
    assert capfd.readouterr().err == ""


def test_nothing_computed_on_another_device() -> None:
    assert "cuda" in refused(Layer(lambda h: h.cuda()), torch.zeros(4, 3))


def test_layers_that_look_at_elements_are_refused(capfd: pytest.CaptureFixture[str]) -> None:
    wide = torch.zeros(2, 5, 4, 4)
    assert "cannot be traced" in refused(nn.CrossMapLRN2d(3), wide)
    counted = nn.Embedding(4, 3, scale_grad_by_freq=True)
    assert "scale_grad_by_freq is not supported" in refused(counted, torch.zeros(2, dtype=torch.long))
    assert capfd.readouterr().err == ""


class Changing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.linear.weight.mul_(0.9)
        result: torch.Tensor = self.linear(x)
        return result


def test_parameters_and_inputs_that_change_in_place_are_refused() -> None:
    said = refused(Changing(), torch.zeros(4, 3))
    assert "self.linear.weight.mul_(0.9)" in said
    assert "is changed in place where none do" in said
    assert "one of its inputs" in refused(nn.ReLU(inplace=True), torch.zeros(4, 3))


class Holding(nn.Module):
    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("table", tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.table.abs()


@pytest.mark.parametrize(
    ("tensor", "said"),
    [
        (torch.zeros(3, dtype=torch.complex64), "table has elements of torch.complex64"),
        (torch.zeros(3, device="meta"), "table is on meta"),
        (torch.eye(3).to_sparse(), "table is torch.sparse_coo"),
    ],
)
def test_parameters_and_buffers_must_be_dense_numbers_in_memory(tensor: torch.Tensor, said: str) -> None:
    assert said in refused(Holding(tensor), torch.zeros(4, 3), InputError)


@pytest.mark.parametrize(
    ("example", "said"),
    [
        (None, "not NoneType"),
        ("x", "not str"),
        (np.zeros((4, 3)), "not ndarray"),
        ((np.zeros((4, 3)),), "input is an array of NumPy"),
        ((), "missing a required argument"),
        ((torch.zeros(4, 3), torch.zeros(4, 3)), "too many positional arguments"),
        ({"x": torch.zeros(4, 3)}, "does not fit Linear.forward"),
        ((3,), "the example has no tensor"),
        (torch.zeros(4, 3, device="meta"), "input is on meta"),
        (torch.eye(3).to_sparse(), "input is torch.sparse_coo"),
        (torch.zeros(4, 3, dtype=torch.complex64), "torch.complex64"),
    ],
)
def test_examples_that_are_none(example: Any, said: str) -> None:
    assert said in refused(nn.Linear(3, 3), example, InputError)


def test_modules_that_are_none() -> None:
    assert "not function" in refused(lambda x: x, torch.zeros(3), InputError)  # type: ignore[arg-type]
    assert "not type" in refused(nn.Linear, torch.zeros(3), InputError)  # type: ignore[arg-type]
    assert "ScriptModule" in refused(torch.jit.script(nn.Linear(3, 3)), torch.zeros(4, 3), InputError)
    assert "call the module once" in refused(nn.LazyLinear(3), torch.zeros(4, 3), InputError)
    assert "forward" in refused(nn.Module(), torch.zeros(3))
    assert "returns no tensor" in refused(Layer(lambda h: [1, None]), torch.zeros(4, 3))


def test_dims_must_be_axes_of_inputs() -> None:
    with pytest.raises(InputError, match="dims maps names of inputs to those of their axes, and is no list"):
        gt.from_torch(nn.Linear(3, 4), torch.zeros(2, 3), dims=[("batch",)])  # type: ignore[arg-type]
    x = torch.zeros(4, 3)
    with pytest.raises(InputError, match="dims: y is not an input"):
        gt.from_torch(nn.Linear(3, 3), x, dims={"y": ("batch",)})
    with pytest.raises(InputError, match="dims names 3 axes of input, which has 2"):
        gt.from_torch(nn.Linear(3, 3), x, dims={"input": ("a", "b", "c")})


def test_a_result_that_only_pytorchs_gradient_reads_is_refused() -> None:
    layer = Layer(lambda h: torch.ops.aten._linalg_slogdet(h @ h.T)[2])
    assert "_linalg_slogdet.default" in refused(layer, torch.zeros(4, 3))


@pytest.mark.parametrize(
    ("result", "name"),
    [
        (lambda h: {"a.b": h, "a": {"b": h + 1}}, "a.b"),
        (lambda h: {"1": h, "output1": h + 1}, "output1"),
        (lambda h: {1: h, "1": h + 1}, "output1"),
    ],
)
def test_results_of_one_name_are_refused(result: Callable[[torch.Tensor], Any], name: str) -> None:
    assert f"two results are called '{name}'" in refused(Layer(result), torch.zeros(2, 3))


class Mixed(nn.Module):
    def forward(self, a0: torch.Tensor, *a: torch.Tensor) -> torch.Tensor:
        return a0 + a[0]


def test_inputs_of_one_name_are_refused() -> None:
    x = torch.zeros(2, 3)
    assert "two inputs are called 'a0'" in refused(Mixed(), (x, x), InputError)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda module: module.append(nn.Linear(3, 3)), "(1.bias, 1.weight)"),
        (lambda module: module.register_buffer("more", torch.ones(2)), "(more)"),
        (lambda module: module.double(), "(0.bias, 0.weight)"),
        (lambda module: module.insert(0, nn.Linear(3, 4)), "(0.bias, 0.weight, 1.bias, 1.weight)"),
    ],
)
def test_modules_that_got_other_parameters_are_refused(change: Callable[[nn.Module], Any], names: str) -> None:
    module = nn.Sequential(nn.Linear(3, 3))
    template = gt.from_torch(module, torch.zeros(2, 3))
    change(module)
    with pytest.raises(ModelError, match="than when it was given to from_torch") as caught:
        template.bind({"batch": 2})
    assert names in str(caught.value)
