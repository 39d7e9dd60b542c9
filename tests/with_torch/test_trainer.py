"""Trainers of PyTorch modules: names everywhere are the module's, and what was trained goes back into it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from compiled import compiled
from torch import nn
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.discovery import backend_of
from glowtrain.cli import app
from glowtrain.compiler.walk import arrive, until
from glowtrain.errors import InputError
from glowtrain.profiling.measure import profile


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.Linear(8, 8)
        self.norm = nn.LayerNorm(8)
        self.act = nn.GELU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed = torch.softmax(self.attention(x) @ x.transpose(1, 2), -1) @ x
        return self.act(self.norm(mixed + x))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Block(), Block()])
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return torch.relu(self.norm(x))


class Classifier(nn.Module):
    """Attention, statistics, a parameter that is frozen, one of two names, and a buffer that nothing reads."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.encoder = Encoder()
        self.head = nn.Linear(8, 3)
        self.scale = nn.Parameter(torch.ones(8), requires_grad=False)
        self.encoder.layers[1].attention.weight = self.encoder.layers[0].attention.weight
        self.register_buffer("unread", torch.zeros(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x).mean(1) * self.scale)


def batch(count: int = 5, dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(count, 6, 8, generator=generator).to(dtype)
    return x, torch.randint(0, 3, (count,), generator=generator)


def trainer_of(module: nn.Module, x: torch.Tensor, lr: float = 0.0625) -> gt.Trainer:
    return gt.Trainer(gt.from_torch(module, x), "softmax_cross_entropy", gt.optim.SGD(lr=lr))


def array(tensor: torch.Tensor) -> Any:
    """As what a trainer takes."""
    return tensor.view(torch.int16).numpy().view(gt.bf16.numpy) if tensor.dtype == torch.bfloat16 else tensor.numpy()


# --- back into the module


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_what_was_trained_goes_back_into_the_modules_own_tensors(dtype: torch.dtype) -> None:
    """Three steps are those of PyTorch, running statistics included; in bf16 as near as its rounding lets them be."""
    module, eager = Classifier().to(dtype), Classifier().to(dtype)
    x, y = batch(dtype=dtype)
    if dtype == torch.bfloat16:  # whose statistics PyTorch traces as if they were f32
        module.encoder.norm = eager.encoder.norm = nn.Identity()
    trainer = trainer_of(module, x)
    optimizer = torch.optim.SGD([p for p in eager.parameters() if p.requires_grad], lr=0.0625)
    for _ in range(3):
        trainer.step({"x": array(x), "labels": y.numpy()})
        optimizer.zero_grad()
        predicted = eager(x)
        nn.functional.cross_entropy(predicted.float() if dtype == torch.bfloat16 else predicted, y).backward()
        optimizer.step()
    before = {
        name: (tensor, tensor.data_ptr(), tensor._version) for name, tensor in module.state_dict(keep_vars=True).items()
    }
    trainer.to_torch(module)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-12, torch.bfloat16: 0.02}[dtype]
    for name, tensor in module.state_dict(keep_vars=True).items():
        same, address, version = before[name]
        assert tensor is same
        assert tensor.data_ptr() == address
        assert (tensor._version > version) == (name != "unread")
        torch.testing.assert_close(tensor, eager.state_dict()[name], rtol=tolerance, atol=tolerance)
    assert not module.scale.requires_grad
    result = trainer.predict({"x": array(x)})["output"].astype(np.float64)
    with torch.no_grad():
        close = 0.1 if dtype == torch.bfloat16 else 1e-5
        np.testing.assert_allclose(module.eval()(x).double().numpy(), result, rtol=close, atol=close)


def test_running_statistics_go_back_too() -> None:
    module = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    x = torch.randn(5, 4)
    trainer = trainer_of(module, x)
    for _ in range(2):
        trainer.step({"input": x.numpy(), "labels": np.array([0, 1, 2, 0, 1])})
    trainer.to_torch(module)
    assert module[1].num_batches_tracked == 2
    np.testing.assert_array_equal(module[1].running_var.numpy(), trainer.variables()["1.running_var"])
    assert module[1].running_mean.any()


def test_the_bits_of_bf16_are_the_trainers() -> None:
    module = nn.Linear(4, 3).to(torch.bfloat16)
    x = torch.randn(5, 4).to(torch.bfloat16)
    trainer = trainer_of(module, x)
    trainer.step({"input": array(x), "labels": np.array([0, 1, 2, 0, 1])})
    trainer.to_torch(module)
    for name, value in trainer.parameters().items():
        assert array(module.state_dict()[name]).tobytes() == value.tobytes()


def test_memory_that_is_not_row_major_is_written_to() -> None:
    module = nn.Sequential(nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)
    weight = module[0].weight
    trainer = gt.Trainer(gt.from_torch(module, torch.randn(2, 3, 5, 5)), "mse", gt.optim.SGD(lr=0.1))
    trainer.step({"input": np.ones((2, 3, 5, 5), np.float32), "target": np.ones((2, 4, 3, 3), np.float32)})
    assert not np.array_equal(trainer.parameters()["0.weight"], weight.detach().numpy())
    trainer.to_torch(module)
    assert weight.is_contiguous(memory_format=torch.channels_last)
    np.testing.assert_array_equal(trainer.parameters()["0.weight"], weight.detach().numpy())


def test_columns_of_one_matrix_are_written_to() -> None:
    module, whole = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 3)), torch.zeros(3, 5)
    module[0].weight.data, module[1].weight.data = whole[:, :2], whole[:, 2:]
    trainer = trainer_of(module, torch.randn(5, 2))
    trainer.step({"input": np.ones((5, 2), np.float32), "labels": np.array([0, 1, 2, 0, 1])})
    trainer.to_torch(module)
    np.testing.assert_array_equal(whole.numpy(), np.hstack([trainer.parameters()[f"{n}.weight"] for n in (0, 1)]))


def test_a_compiled_module_has_the_names_of_its_own() -> None:
    module, x = network(), torch.randn(5, 4)
    trainer = trainer_of(compiled(module), x)
    trainer.step({"input": x.numpy(), "labels": np.array([0, 1, 2, 0, 1])})
    trainer.to_torch(compiled(module))
    np.testing.assert_array_equal(module[2].weight.detach().numpy(), trainer.parameters()["2.weight"])


def test_a_trainer_of_an_exported_file_fits_the_module_too(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    gt.save(gt.from_torch(module, torch.randn(2, 4)), tmp_path / "model.onnx")
    trainer = gt.Trainer(gt.load(tmp_path / "model.onnx"), "softmax_cross_entropy", gt.optim.SGD(lr=0.1))
    trainer.step({"input": np.ones((2, 4), np.float32), "labels": np.array([0, 1])})
    trainer.to_torch(module)
    np.testing.assert_array_equal(module[2].weight.detach().numpy(), trainer.parameters()["2.weight"])


def renamed() -> nn.Module:
    return nn.ModuleDict({"layer": nn.Linear(4, 4), "last": nn.Linear(4, 3)})


def expanded() -> nn.Module:
    module = network()
    module[0].bias = nn.Parameter(torch.zeros(1).expand(4))
    return module


def overlapping() -> nn.Module:
    module = network()
    module[1].weight.data = torch.zeros(16).as_strided((4, 4), (1, 1))
    return module


def sharing() -> nn.Module:
    module = network()
    module[1].bias.data = module[0].bias.data
    return module


def test_parameters_that_the_model_does_not_use_stay() -> None:
    class Spare(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.spare = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x)

    module, x = Spare(), torch.randn(5, 4)
    trainer, before = trainer_of(module, x), module.spare.weight.clone()
    trainer.step({"x": x.numpy(), "labels": np.zeros(5, np.int64)})
    trainer.to_torch(module)
    assert torch.equal(module.spare.weight, before)
    assert np.array_equal(module.used.weight.detach().numpy(), trainer.parameters()["used.weight"])


def tied() -> nn.Module:
    module = network()
    module[1].weight = module[0].weight
    return module


def network() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: network()[:2], r"'2.weight' is not in the module\n  - '2.bias' is not in the module$"),
        (
            lambda: network().append(nn.Linear(3, 1)),
            "'3.weight' is a parameter of the module, which the trainer does not",
        ),
        (renamed, "'0.weight' is not in the module"),
        (renamed, r"\n  - and 5 more$"),
        (
            lambda: nn.Sequential(*network()[:2], nn.Linear(4, 2)),
            r"'2.weight' is f32\[3,4\] in the trainer, float32\[2, 4\]",
        ),
        (lambda: network().double(), r"'0.weight' is f32\[4,4\] in the trainer, float64\[4, 4\] in the module"),
        (lambda: network().to("meta"), "'0.weight' has no memory to write to: it is torch.strided on meta"),
        (expanded, "'0.bias' has elements that share memory, as expanded tensors do"),
        (overlapping, "'1.weight' has elements that share memory"),
        (sharing, "'0.bias' and '1.bias' share memory in the module"),
        (tied, "'0.weight' and '1.weight' are one tensor in the module, and two in the trainer"),
        (lambda: "module", "a torch.nn.Module is wanted, not str"),
    ],
)
def test_what_does_not_fit_is_listed_and_nothing_is_written(make: Callable[[], Any], told: str) -> None:
    x = torch.randn(5, 4)
    trainer = trainer_of(network(), x)
    trainer.step({"input": x.numpy(), "labels": np.array([0, 1, 2, 0, 1])})
    module = make()
    state = dict(module.state_dict(keep_vars=True)) if isinstance(module, nn.Module) else {}
    versions = {name: tensor._version for name, tensor in state.items()}
    with pytest.raises(InputError, match=told):
        trainer.to_torch(module)
    assert {name: tensor._version for name, tensor in state.items()} == versions


def test_tensors_of_inference_mode_are_refused() -> None:
    trainer = trainer_of(network(), torch.randn(5, 4))
    with torch.inference_mode():
        module = network()
    with pytest.raises(InputError, match="'0.weight' was made in inference mode"):
        trainer.to_torch(module)


# --- names

LAYERS = {
    "encoder.layers.0", "encoder.layers.0.attention", "encoder.layers.0.norm", "encoder.layers.0.act",
    "encoder.layers.1", "encoder.layers.1.attention", "encoder.layers.1.norm", "encoder.layers.1.act",
    "encoder.norm", "encoder", "head",
}  # fmt: skip


def test_a_summary_has_the_modules_names() -> None:
    layers = [layer.name for layer in gt.summary(gt.from_torch(Classifier(), batch()[0])).layers]
    assert set(layers) >= LAYERS
    assert set(layers) - LAYERS == {"mean", "mul"}


def test_the_profile_of_a_step_has_the_modules_names() -> None:
    x, y = batch()
    trainer = trainer_of(Classifier(), x)
    trainer.step({"x": x.numpy(), "labels": y.numpy()})
    found = profile(trainer.graph, backend_of("cpu", 1), runs=1)
    layers = {layer for row in found.rows for layer in row.origin.layers}
    assert {"encoder.layers.0.attention", "encoder.layers.1.norm", "encoder.norm", "head"} <= layers <= LAYERS
    nodes = {node for row in found.rows for node in row.origin.nodes}
    assert any("/encoder.layers.1/softmax_1" in node for node in nodes), nodes


def test_a_saved_model_has_the_modules_names(tmp_path: Path) -> None:
    module = Classifier()
    x, y = batch()
    trainer = trainer_of(module, x)
    trainer.step({"x": x.numpy(), "labels": y.numpy()})
    gt.save(trainer.model(), tmp_path / "model.onnx")
    file = onnx.load(tmp_path / "model.onnx")
    names = [node.name for node in file.graph.node]
    assert len(set(names)) == len(names)
    assert {"/encoder.layers.1/softmax_1", "/encoder.layers.0.act/gelu", "/encoder/relu", "mul"} <= set(names)
    initializers = {tensor.name for tensor in file.graph.initializer}
    tied = {"encoder.layers.1.attention.weight"}
    assert {*dict(module.named_parameters()), "encoder.norm.running_mean"} - tied <= initializers
    again = gt.load(tmp_path / "model.onnx")
    assert {layer.name for layer in gt.summary(again).layers} >= LAYERS - {
        "encoder.layers.0.act",
        "encoder.layers.1.act",
    }


def test_the_text_of_a_graph_has_the_modules_names() -> None:
    """As it was read, and as the compiler's passes leave it: what inspect prints."""
    graph = gt.from_torch(Classifier(), batch()[0], dims={})
    assert isinstance(graph, gt.Graph)
    for text in (str(graph), str(arrive(graph, stages=until("optimized")))):
        assert '"/encoder.layers.1/softmax_1"' in text
        assert '"/encoder.layers.0.act/gelu' in text


def test_the_command_inspect_has_the_modules_names(tmp_path: Path) -> None:
    x, y = batch()
    trainer = trainer_of(Classifier(), x)
    trainer.step({"x": x.numpy(), "labels": y.numpy()})
    gt.save(trainer.model(), tmp_path / "model.onnx")
    shown = CliRunner().invoke(app, ["inspect", str(tmp_path / "model.onnx")])
    assert shown.exit_code == 0, shown.output
    assert all(layer in shown.output for layer in ("encoder.layers.1.norm", "encoder.layers.0.attention", "head"))
