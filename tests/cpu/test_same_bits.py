"""Training steps and quantized models have the same bits on every kind of processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

import glowtrain as gt
from glowtrain import models, nn
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.state import State
from glowtrain.backends.target import Target
from glowtrain.compiler.walk import arrive
from glowtrain.graph import Graph, Value
from glowtrain.modes.training_and_inference import inference
from glowtrain.ops.normalize.group import GroupNormalization
from glowtrain.ops.sequence.recurrent import GRU
from glowtrain.optim import HYPER
from glowtrain.stages import DEFAULT, Options
from glowtrain.trainer.graphs import TrainerGraphs
from glowtrain.trainer.settings import TrainingSpec
from glowtrain.types import Array
from tests.cpu.cpu_kernels import runnable

AVX2 = Target.named("avx2")
NARROW = replace(AVX2, name="narrow", vector_bits=128, vector_registers=32, masked=False, l1=4 << 10, l2=16 << 10)
"""As NEON is, with small caches."""
FUSED = (*runnable("avx512", "avx2", "scalar"), *([replace(NARROW, families=frozenset())] if AVX2.runs_here else []))
UNFUSED = tuple(replace(target, fused=False) for target in runnable("avx512", "scalar", "sse4"))
STEPS = 2


Layers = Callable[[Value], Value]


def residual(x: Value) -> Value:
    """Convolutions with strides and without, BatchNormalization, a sum, pooling."""
    x = nn.relu(nn.batch_norm(nn.conv(x, 12, 3, padding="same", bias=False)))
    y = nn.relu(nn.batch_norm(nn.conv(x, 20, 3, stride=2, padding=1, bias=False)))
    y = nn.batch_norm(nn.conv(y, 20, 3, padding="same", bias=False)) + nn.conv(x, 20, 1, stride=2)
    return nn.linear(nn.global_average_pool(nn.relu(y)), 5)


def grouped(x: Value) -> Value:
    """A depthwise convolution, GroupNormalization, SiLU, maxima."""
    x = nn.conv(x, 18, 3, padding="same")
    x = nn.conv(x, 18, 3, padding="same", groups=18, bias=False)
    scale, bias = (nn.parameter(name, (18,), nn.Normal(1.0)) for name in ("scale", "bias"))
    x = nn.silu(GroupNormalization(3)(x, scale, bias))
    return nn.linear(nn.flatten(nn.max_pool(x, 2)), 5)


def attention(x: Value) -> Value:
    """Rows of an image as tokens of a small transformer."""
    tokens = nn.linear(nn.reshape(x, (x.shape[0], 24, 11)), 24)
    tokens = tokens + nn.attention(nn.layer_norm(tokens), 3, causal=True)
    tokens = tokens + nn.linear(nn.gelu(nn.linear(nn.layer_norm(tokens), 40)), 24)
    return nn.linear(nn.mean(nn.layer_norm(tokens), 1), 5)


def recurrent(x: Value) -> Value:
    """An LSTM in two directions, then a GRU."""
    found = nn.lstm(nn.reshape(x, (x.shape[0], 24, 11)), 9, direction="bidirectional")
    steps = nn.transpose(found, 1, 0, 2)
    w, r = (nn.parameter(name, (1, 21, n), nn.Normal(0.3)) for name, n in (("w", 18), ("r", 7)))
    states = GRU(hidden_size=7)(steps, w, r)[0]
    return nn.linear(nn.flatten(nn.transpose(states, 2, 0, 1, 3)), 5)


def perceptron(x: Value) -> Value:
    """Layers of many kinds of functions."""
    x = nn.tanh(nn.linear(nn.flatten(x), 70))
    return nn.linear(nn.softmax(nn.linear(nn.sigmoid(x), 33)) * 3.0, 5)


MODELS: dict[str, tuple[Layers, gt.optim.Optimizer]] = {
    "residual": (residual, gt.optim.Adam(lr=0.01)),
    "grouped": (grouped, gt.optim.RMSProp(lr=0.01)),
    "attention": (attention, gt.optim.AdamW(lr=0.01, clip_norm=1.0)),
    "recurrent": (recurrent, gt.optim.Adam(lr=0.01, accumulate=2)),
    "perceptron": (perceptron, gt.optim.SGD(lr=0.01, momentum=0.9)),
}


def step_of(name: str, batch: int) -> tuple[Graph, dict[str, Array]]:
    """A training step, and the optimizer's hyperparameters."""
    layers, optimizer = MODELS[name]
    model = nn.model(x=gt.f32["batch", 1, 12, 22])(layers)
    graphs = TrainerGraphs(TrainingSpec(model, gt.losses.by_name("softmax_cross_entropy"), optimizer))
    return graphs.step_of(model.bind({"batch": batch})), {
        HYPER + key: np.asarray(value, np.float32) for key, value in optimizer.hyper().items()
    }


def feeds(graph: Graph, seed: int) -> dict[str, Array]:
    random, found = np.random.default_rng(seed), dict[str, Array]()
    for value in graph.inputs:
        if not value.name.startswith(HYPER):
            drawn = random.normal(size=value.shape) if value.dtype.is_float else random.integers(0, 5, value.shape)
            found[value.name] = drawn.astype(value.dtype.numpy)
    return found


def results(
    graph: Graph, target: Target, batches: Sequence[Mapping[str, Array]], options: Options = DEFAULT
) -> dict[str, bytes]:
    """Everything that steps give and leave."""
    backend = Cpu(target).for_checks(1)
    state = State({variable.name: variable.initial for variable in graph.variables})
    step = backend.load(backend.compile(arrive(graph, options), options)).bind(state)
    found: dict[str, bytes] = {}
    for number, batch in enumerate(batches):
        found |= {f"output {name} of step {number}": array.tobytes() for name, array in step.run(dict(batch)).items()}
        found |= {f"{name} after step {number}": state.read(name).tobytes() for name in state.names}
    return found


def other_bits(
    graph: Graph, targets: Sequence[Target], batches: Sequence[Mapping[str, Array]], options: Options = DEFAULT
) -> list[str]:
    """What is not the same on all targets."""
    first, *others = (results(graph, target, batches, options) for target in targets)
    pairs = zip(targets[1:], others, strict=True)
    return [f"{name} on {target.name}" for target, other in pairs for name in first if other[name] != first[name]]


@pytest.mark.spread(2)
@pytest.mark.parametrize(("name", "batch"), [(name, 5) for name in MODELS] + [("residual", 1), ("perceptron", 33)])
def test_training_steps(name: str, batch: int) -> None:
    graph, hyper = step_of(name, batch)
    assert not other_bits(graph, FUSED, [{**feeds(graph, seed), **hyper} for seed in range(STEPS)])


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["residual", "attention", "perceptron"])
def test_training_steps_that_round_products_first(name: str) -> None:
    """What processors without fused multiply-add compute, all others can compute, too."""
    graph, hyper = step_of(name, 3)
    batches = [{**feeds(graph, seed), **hyper} for seed in range(STEPS)]
    assert not other_bits(graph, UNFUSED, batches)
    assert other_bits(graph, [FUSED[0], UNFUSED[0]], batches)


@pytest.mark.exhaustive
def test_fused_arithmetic_on_a_processor_without_it() -> None:
    """By other operations: in f32, whose products f64 holds."""
    graph, hyper = step_of("perceptron", 2)
    emulating = [replace(target, fused=True) for target in runnable("sse4")]
    assert not other_bits(graph, [FUSED[-1], *emulating], [{**feeds(graph, 0), **hyper}])


@pytest.mark.spread(1)
@pytest.mark.parametrize("targets", [FUSED, UNFUSED], ids=["fused", "unfused"])
def test_quantized_models(targets: Sequence[Target]) -> None:
    model = models.build("cnn", (1, 12, 12))
    images = np.random.default_rng(0).normal(size=(16, 1, 12, 12)).astype(np.float32)
    graph = gt.quantize(inference(model), images).model.bind({"batch": 4})
    assert not other_bits(graph, targets, [{"x": images[:4]}])
