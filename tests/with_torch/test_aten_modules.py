"""gt.from_torch: examples, names, tied weights, equal graphs, training, export; and random chains of layers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import glowtrain as gt
from glowtrain.types import Array


def graph_of(module: nn.Module, example: Any) -> gt.Graph:
    graph = gt.from_torch(module, example, dims={})
    assert isinstance(graph, gt.Graph)
    return graph


def names(graph: gt.Graph) -> list[str]:
    return [value.name for value in graph.inputs]


class Three(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor | None = None, *, c: torch.Tensor | None = None) -> Any:
        return sum(10**i * each for i, each in enumerate((a, b, c)) if each is not None)


@pytest.mark.parametrize(
    ("example", "inputs", "expected"),
    [
        (torch.ones(2), ["a"], 1),
        ((torch.ones(2), torch.ones(2)), ["a", "b"], 11),
        ([torch.ones(2), torch.ones(2)], ["a", "b"], 11),
        ({"a": torch.ones(2), "c": torch.ones(2)}, ["a", "c"], 101),
        ({"c": torch.ones(2), "b": torch.ones(2), "a": torch.ones(2)}, ["a", "b", "c"], 111),
        ((torch.ones(2), 3), ["a"], 31),
    ],
)
def test_examples_bind_to_arguments_by_position_and_name(example: Any, inputs: list[str], expected: int) -> None:
    graph = graph_of(Three(), example)
    assert names(graph) == inputs
    found = gt.compile(graph)({name: np.ones(2, np.float32) for name in inputs})
    np.testing.assert_array_equal(found["output"], np.full(2, expected))


class Nested(nn.Module):
    def forward(self, batch: dict[str, Any], *more: torch.Tensor, **named: torch.Tensor) -> Any:
        first, second = batch["states"]
        return {"sum": batch["image"] + first, "rest": (second * more[-1] if more else second, named["scale"])}


def test_inputs_and_outputs_within_dicts_and_tuples_have_names_of_their_own() -> None:
    x = torch.arange(3.0)
    batch = {"image": x, "states": (x + 1, x + 2)}
    graph = gt.from_torch(Positional(), (batch, x, x + 3), dims={})
    assert names(graph) == ["batch.image", "batch.states.0", "batch.states.1", "more0", "more1"]
    assert list(graph.outputs) == ["sum", "rest.0", "rest.1"]
    graph = gt.from_torch(Nested(), {"batch": batch, "scale": x}, dims={})
    assert names(graph) == ["batch.image", "batch.states.0", "batch.states.1", "scale"]


class Positional(nn.Module):
    def forward(self, batch: dict[str, Any], *more: torch.Tensor) -> Any:
        return Nested()(batch, *more, scale=more[0])


def test_outputs_are_named_as_they_are_made_up() -> None:
    x = torch.ones(2)
    for result, expected in (
        (lambda h: h, ["output"]),
        (lambda h: (h, h + 1), ["output0", "output1"]),
        (lambda h: {"logits": h, "states": [h, h * 2]}, ["logits", "states.0", "states.1"]),
        (lambda h: (h, None, 3), ["output0"]),
    ):
        assert list(graph_of(Applied(result), x).outputs) == expected


class Applied(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def test_the_first_axis_is_open_and_other_axes_by_name() -> None:
    template = gt.from_torch(nn.Linear(3, 4), torch.zeros(2, 3))
    assert isinstance(template, gt.graph.Template)
    assert list(template.symbols) == ["batch"]
    assert template.bind({"batch": 7}).outputs["output"].shape == (7, 4)
    template = gt.from_torch(nn.LSTM(3, 4), torch.zeros(5, 2, 3), dims={"input": ("time", "batch")})
    bound = template.bind({"time": 6, "batch": 3})
    assert [value.shape for value in bound.outputs.values()] == [(6, 3, 4), (1, 3, 4), (1, 3, 4)]
    assert isinstance(gt.from_torch(Three(), (torch.zeros(2), torch.zeros(3, 2))), gt.Graph)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.head = nn.Linear(4, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(self.embedding(x) * self.scale)
        return result


def test_tied_weights_are_one_variable_and_buffers_need_not_be_kept() -> None:
    module, x = Tied(), torch.tensor([1, 3])
    graph = graph_of(module, x)
    assert {value.name: value.trainable for value in graph.variables} == {"embedding.weight": True, "scale": False}
    np.testing.assert_allclose(gt.compile(graph)({"x": x.numpy()})["output"], module(x).detach(), rtol=1e-6)


def test_frozen_parameters_are_not_trained() -> None:
    module = nn.Linear(3, 4)
    module.weight.requires_grad_(False)
    trainable = {value.name: value.trainable for value in graph_of(module, torch.zeros(2, 3)).variables}
    assert trainable == {"weight": False, "bias": True}


def test_the_graph_has_copies_of_parameters() -> None:
    module = nn.Linear(3, 3)
    graph = graph_of(module, torch.zeros(2, 3))
    before = {value.name: value.initial.copy() for value in graph.variables}
    with torch.no_grad():
        module.weight.zero_()
    for value in graph.variables:
        np.testing.assert_array_equal(value.initial, before[value.name])


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.norm(x + self.attention(x, x, x)[0])
        return result


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        result: torch.Tensor = self.head(x.mean(1))
        return result


def test_layers_are_called_what_the_module_calls_them() -> None:
    graph = graph_of(Encoder(), torch.zeros(2, 5, 8))
    assert {"layers.0.attention", "layers.0.norm", "layers.1.attention", "head"} <= {node.layer for node in graph.nodes}
    summary = str(gt.summary(graph))
    assert "layers.0.attention" in summary
    assert "module" not in summary


def test_equal_modules_have_equal_graphs() -> None:
    def made(width: int) -> str:
        torch.manual_seed(3)
        return graph_of(nn.Sequential(nn.Linear(3, width), nn.Dropout(0.1), nn.Linear(width, 2)), torch.zeros(2, 3)).key

    assert made(4) == made(4)
    assert made(4) != made(5)


def digits_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(128, 32), nn.ReLU(), nn.Linear(32, 10),
    )  # fmt: skip


def test_a_trainer_of_a_module_trains_as_pytorch_does() -> None:
    torch.manual_seed(5)
    module, digits = digits_cnn(), gt.data.load("digits")
    trainer = gt.Trainer(
        gt.from_torch(module, torch.from_numpy(digits.x[:32])), gt.losses.softmax_cross_entropy(),
        gt.optim.SGD(0.05, momentum=0.9), backend="cpu",
    )  # fmt: skip
    optimizer = torch.optim.SGD(module.parameters(), 0.05, momentum=0.9)
    for i in range(20):
        x, y = digits.x[32 * i : 32 * i + 32], digits.y[32 * i : 32 * i + 32]
        optimizer.zero_grad()
        loss = F.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(y))
        loss.backward()
        optimizer.step()
        assert trainer.step({"input": x, "labels": y}) == pytest.approx(loss.item(), rel=1e-4)
    assert loss.item() < 1.5
    _check_state(trainer.parameters(), module)


def _check_state(ours: dict[str, Array], module: nn.Module) -> None:
    for name, tensor in module.named_parameters():
        np.testing.assert_allclose(ours[name], tensor.detach(), atol=1e-4, err_msg=name)


def test_a_saved_module_keeps_its_names_and_runs_elsewhere(tmp_path: Path) -> None:
    torch.manual_seed(6)
    module, x = digits_cnn().eval(), torch.rand(4, 1, 8, 8)
    gt.save(gt.from_torch(module, x), tmp_path / "digits.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "digits.onnx", providers=["CPUExecutionProvider"])
    assert [value.name for value in session.get_inputs()] == ["input"]
    assert [value.shape for value in session.get_inputs()] == [["batch", 1, 8, 8]]
    (found,) = session.run(None, {"input": x.numpy()})
    np.testing.assert_allclose(found, module(x).detach(), atol=1e-5)
    loaded = gt.load(tmp_path / "digits.onnx")
    kept = {value.name for value in loaded.bind({"batch": 2}).variables}
    assert {name for name, _ in module.named_parameters()} <= kept


def test_a_gradient_within_a_module_is_differentiated_again() -> None:
    torch.manual_seed(7)
    module, x = Penalty(), torch.randn(4, 3)
    graph = graph_of(module, x)
    loss = module(x)
    expected = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True, materialize_grads=True)
    parameters = {value.name: value for value in graph.variables}
    named = [name for name, _ in module.named_parameters() if name in parameters]
    found = gt.gradients(graph.outputs["output"], [parameters[name] for name in named])
    results = gt.compile(gt.Graph(graph.inputs, dict(zip(named, found, strict=True))))({"x": x.numpy()})
    for (name, _), theirs in zip(module.named_parameters(), expected, strict=True):
        np.testing.assert_allclose(results.get(name, 0), theirs, atol=1e-5, err_msg=name)


class Penalty(nn.Module):
    """How far the gradient's norm is from 1."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        (slope,) = torch.autograd.grad(self.layers(x).sum(), x, create_graph=True)
        return ((slope.norm(dim=1) - 1) ** 2).mean()


class FirstOf(nn.Module):
    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> Any:
        return self.module(x)[0]


class Experts(nn.Module):
    """Two of three experts for each position, by the largest of their scores."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.scores = nn.Linear(size, 3)
        self.experts = nn.ModuleList(nn.Linear(size, size) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        values, chosen = self.scores(x).topk(2, -1)
        weights = torch.zeros_like(self.scores(x)).scatter(-1, chosen, values.softmax(-1))
        results = torch.stack([expert(x) for expert in self.experts], -1)
        return (results * weights[..., None, :]).sum(-1)


IMAGES: dict[str, Callable[[int], nn.Module]] = {
    "conv": lambda c: nn.Conv2d(c, c, 3, padding=1),
    "depthwise": lambda c: nn.Conv2d(c, c, 3, padding=1, groups=c),
    "transposed": lambda c: nn.ConvTranspose2d(c, c, 2),
    "batch norm": nn.BatchNorm2d,
    "group norm": lambda c: nn.GroupNorm(2, c),
    "instance norm": lambda c: nn.InstanceNorm2d(c, affine=True),
    "tanh": lambda c: nn.Tanh(),
    "gelu": lambda c: nn.GELU(),
    "silu": lambda c: nn.SiLU(),
    "softmax": lambda c: nn.Softmax(1),
    "pool": lambda c: nn.AvgPool2d(2, ceil_mode=True),
    "upsample": lambda c: nn.Upsample(scale_factor=2, mode="bilinear"),
    "pad": lambda c: nn.ReflectionPad2d(1),
    "response norm": lambda c: nn.LocalResponseNorm(3),
    "shuffle": lambda c: nn.ChannelShuffle(2),
    "adaptive": lambda c: nn.AdaptiveAvgPool2d(3),
}
SEQUENCES: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda c: nn.Linear(c, c),
    "layer norm": nn.LayerNorm,
    "rms norm": nn.RMSNorm,
    "encoder": lambda c: nn.TransformerEncoderLayer(c, 2, 8, dropout=0, activation="gelu", batch_first=True),
    "lstm": lambda c: FirstOf(nn.LSTM(c, c, batch_first=True)),
    "gru": lambda c: FirstOf(nn.GRU(c, c // 2, bidirectional=True, batch_first=True)),
    "glu": lambda c: nn.Sequential(nn.Linear(c, 2 * c), nn.GLU()),
    "softplus": lambda c: nn.Softplus(),
    "embedding-like": lambda c: nn.Sequential(nn.Linear(c, 5), nn.Softmax(-1), nn.Linear(5, c)),
    "experts": Experts,
}


def check_chain(module: nn.Module, x: torch.Tensor) -> None:
    """Results, and gradients by the input, are PyTorch's in float64."""
    graph = graph_of(module, x)
    (result,) = graph.outputs.values()
    loss = gt.ops.ReduceSum(axes=None, keepdims=False)(gt.ops.Sin()(result))
    (slope,) = gt.gradients(loss, list(graph.inputs))
    found = gt.compile(gt.Graph(graph.inputs, {"y": result, "dx": slope}))({graph.inputs[0].name: x.numpy()})
    exact = x.double().requires_grad_()
    y = module.double()(exact)
    (dx,) = torch.autograd.grad(y.sin().sum(), exact)
    for name, expected in (("y", y.detach()), ("dx", dx)):
        scale = max(1e-3, expected.abs().max().item())
        np.testing.assert_allclose(found[name], expected, rtol=0, atol=3e-5 * scale, err_msg=f"{name} of {module}")


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(IMAGES)), min_size=2, max_size=5), st.integers(0, 99))
def test_random_chains_of_layers_for_images(kinds: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    check_chain(nn.Sequential(*(IMAGES[kind](4) for kind in kinds)), torch.randn(2, 4, 6, 5))


@settings(max_examples=8, deadline=None, derandomize=True)
@given(st.lists(st.sampled_from(sorted(SEQUENCES)), min_size=2, max_size=5), st.integers(0, 99))
def test_random_chains_of_layers_for_sequences(kinds: list[str], seed: int) -> None:
    torch.manual_seed(seed)
    check_chain(nn.Sequential(*(SEQUENCES[kind](4) for kind in kinds)), torch.randn(2, 5, 4))
