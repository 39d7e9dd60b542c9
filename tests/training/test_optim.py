from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import InputError
from glowtrain.grad import training_graph
from glowtrain.ops.elementwise.logic import Cast
from glowtrain.optim import (
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Constant,
    Cosine,
    Exponential,
    Linear,
    Lion,
    Muon,
    NAdam,
    OneCycle,
    Optimizer,
    Polynomial,
    RAdam,
    RMSProp,
    Step,
    Warmup,
)

STEPS = 100
SHAPE = (3, 4)
START = np.random.default_rng(5).standard_normal(SHAPE)
GRADIENTS = np.random.default_rng(6).standard_normal((STEPS, *SHAPE)).astype(np.float32)


class Run:
    """w and b whose gradients are what is fed, and ``share`` of it: the loss is sum(w * g) + share * sum(b * g)."""

    def __init__(
        self,
        optimizer: Optimizer,
        backend: str = "interpreter",
        dtype: gt.types.DType = gt.f32,
        share: float = 1.0,
        start: np.ndarray = START,
    ) -> None:
        feed = gt.Input(dtype[start.shape], "g")
        self.w, self.b = (gt.Variable(name, start.astype(dtype.numpy)) for name in ("layer.weight", "layer.bias"))
        loss = gt.nn.total(self.w * feed) + gt.nn.total(self.b * feed) * share
        model = gt.Graph((feed,), {"y": loss})
        self.graph = training_graph(model, loss, (), [self.w, self.b], optimizer)
        gt.verify(self.graph)
        self.step = gt.compile(self.graph, backend)
        dtypes = {value.name: value.dtype.numpy for value in self.graph.inputs}
        named = {f"hyper.{name}": value for name, value in optimizer.hyper().items()}
        self.hyper = {name: np.asarray(value, dtypes[name]) for name, value in named.items()}

    def __call__(self, gradient: np.ndarray) -> np.ndarray:
        """w after a step."""
        self.step({"g": gradient, **self.hyper})
        return self["layer.weight"]

    def __getitem__(self, name: str) -> np.ndarray:
        return self.step.state.read(name)


# --- the same in NumPy, f64 ------------------------------------------------------------------------------------------


Rule = Callable[[np.ndarray, np.ndarray, float], np.ndarray]
"""The new parameter, from parameter, gradient and the schedule's factor on the learning rate."""


def sgd(lr: float, momentum: float = 0, dampening: float = 0, nesterov: bool = False, decay: float = 0) -> Rule:
    buffer: list[np.ndarray] = []

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        g = g + decay * p
        buffer[:] = [momentum * buffer[0] + (1 - dampening) * g if buffer else g]
        return p - factor * lr * (g + momentum * buffer[0] if nesterov else buffer[0] if momentum else g)

    return rule


def adam(
    lr: float, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, l2: float = 0, decay: float = 0,
    amsgrad: bool = False,
) -> Rule:  # fmt: skip
    state = {"m": np.zeros(SHAPE), "v": np.zeros(SHAPE), "t": 0}
    largest = np.zeros(SHAPE)

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        p = p * (1 - factor * lr * decay)
        g = g + l2 * p
        state["t"] += 1
        state["m"] = beta1 * state["m"] + (1 - beta1) * g
        state["v"] = beta2 * state["v"] + (1 - beta2) * g**2
        np.maximum(largest, state["v"], out=largest)
        v = largest if amsgrad else state["v"]
        m, v = state["m"] / (1 - beta1 ** state["t"]), v / (1 - beta2 ** state["t"])
        return p - factor * lr * m / (np.sqrt(v) + eps)

    return rule


def rmsprop(lr: float, alpha: float = 0.99, momentum: float = 0, centered: bool = False) -> Rule:
    state = {"square": np.zeros(SHAPE), "mean": np.zeros(SHAPE), "buffer": np.zeros(SHAPE)}

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        state["square"] = alpha * state["square"] + (1 - alpha) * g**2
        state["mean"] = alpha * state["mean"] + (1 - alpha) * g
        variance = state["square"] - state["mean"] ** 2 if centered else state["square"]
        direction = g / (np.sqrt(variance) + 1e-8)
        state["buffer"] = momentum * state["buffer"] + direction
        return p - factor * lr * (state["buffer"] if momentum else direction)

    return rule


def adagrad(lr: float, lr_decay: float = 0, initial: float = 0) -> Rule:
    state = {"sum": np.full(SHAPE, initial), "t": 0}

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        state["sum"] = state["sum"] + g**2
        state["t"] += 1
        return p - factor * lr / (1 + (state["t"] - 1) * lr_decay) * g / (np.sqrt(state["sum"]) + 1e-10)

    return rule


def nadam(lr: float, beta1: float = 0.9, beta2: float = 0.999, psi: float = 4e-3) -> Rule:
    m, v, factors = np.zeros(SHAPE), np.zeros(SHAPE), [1.0]

    def mu(t: int) -> float:
        return beta1 * (1 - 0.5 * 0.96 ** (t * psi))

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        t = len(factors)
        factors.append(mu(t))
        m[:], v[:] = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        product, later = np.prod(factors), mu(t + 1)
        direction = (1 - mu(t)) * g / (1 - product) + later * m / (1 - product * later)
        return p - factor * lr * direction / (np.sqrt(v / (1 - beta2**t)) + 1e-8)

    return rule


def radam(lr: float, beta1: float = 0.9, beta2: float = 0.999) -> Rule:
    m, v, count = np.zeros(SHAPE), np.zeros(SHAPE), [0]

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        t = count[0] = count[0] + 1
        m[:], v[:] = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g**2
        most, step = 2 / (1 - beta2) - 1, m / (1 - beta1**t)
        length = most - 2 * t * beta2**t / (1 - beta2**t)
        if length > 5:
            square = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
            step = step * np.sqrt(square * (1 - beta2**t)) / (np.sqrt(v) + 1e-8)
        return p - factor * lr * step

    return rule


def adamax(lr: float, beta1: float = 0.9, beta2: float = 0.999) -> Rule:
    m, largest, count = np.zeros(SHAPE), np.zeros(SHAPE), [0]

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        count[0] += 1
        m[:], largest[:] = beta1 * m + (1 - beta1) * g, np.maximum(beta2 * largest, np.abs(g) + 1e-8)
        return p - factor * lr / (1 - beta1 ** count[0]) * m / largest

    return rule


def adadelta(lr: float, rho: float = 0.9, eps: float = 1e-6) -> Rule:
    square, delta = np.zeros(SHAPE), np.zeros(SHAPE)

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        square[:] = rho * square + (1 - rho) * g**2
        change = np.sqrt((delta + eps) / (square + eps)) * g
        delta[:] = rho * delta + (1 - rho) * change**2
        return p - factor * lr * change

    return rule


def lion(lr: float, beta1: float = 0.9, beta2: float = 0.99, decay: float = 0) -> Rule:
    m = np.zeros(SHAPE)

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        direction = np.sign(beta1 * m + (1 - beta1) * g)
        m[:] = beta2 * m + (1 - beta2) * g
        return p * (1 - factor * lr * decay) - factor * lr * direction

    return rule


def warmup(t: float, steps: int) -> float:
    return min((t + 1) / steps, 1)


def cosine(t: float, steps: int, floor: float = 0.0) -> float:
    return floor + (1 - floor) * (1 + math.cos(math.pi * min(t / steps, 1))) / 2


def one_cycle(t: float, top: int, last: int, start: float, floor: float) -> float:
    if t < top:
        return start + (1 - start) * (1 - math.cos(math.pi * t / top)) / 2
    return cosine(t - top, last - top, floor)


CASES: dict[str, tuple[Optimizer, Callable[[], Rule]]] = {
    "sgd": (SGD(0.1), lambda: sgd(0.1)),
    "momentum": (SGD(0.1, momentum=0.9), lambda: sgd(0.1, 0.9)),
    "dampening": (SGD(0.1, momentum=0.9, dampening=0.3), lambda: sgd(0.1, 0.9, 0.3)),
    "nesterov": (SGD(0.1, momentum=0.8, nesterov=True), lambda: sgd(0.1, 0.8, nesterov=True)),
    "sgd decay": (SGD(0.1, momentum=0.9, weight_decay=0.05), lambda: sgd(0.1, 0.9, decay=0.05)),
    "adam": (Adam(0.01), lambda: adam(0.01)),
    "adam betas": (Adam(0.01, beta1=0.5, beta2=0.9, eps=1e-3), lambda: adam(0.01, 0.5, 0.9, 1e-3)),
    "adam without averages": (Adam(0.01, beta1=0, beta2=0), lambda: adam(0.01, 0, 0)),
    "adam l2": (Adam(0.01, weight_decay=0.1), lambda: adam(0.01, l2=0.1)),
    "adamw": (AdamW(0.01, weight_decay=0.1), lambda: adam(0.01, decay=0.1)),
    "rmsprop": (RMSProp(0.01), lambda: rmsprop(0.01)),
    "rmsprop momentum": (RMSProp(0.01, alpha=0.9, momentum=0.5), lambda: rmsprop(0.01, 0.9, 0.5)),
    "rmsprop centered": (RMSProp(0.01, centered=True, momentum=0.9), lambda: rmsprop(0.01, 0.99, 0.9, True)),
    "adagrad": (Adagrad(0.1), lambda: adagrad(0.1)),
    "adagrad decay": (Adagrad(0.1, lr_decay=0.1, initial=0.5), lambda: adagrad(0.1, 0.1, 0.5)),
    "amsgrad": (Adam(0.01, beta2=0.9, amsgrad=True), lambda: adam(0.01, beta2=0.9, amsgrad=True)),
    "amsgradw": (AdamW(0.01, amsgrad=True, weight_decay=0.1), lambda: adam(0.01, decay=0.1, amsgrad=True)),
    "nadam": (NAdam(0.01), lambda: nadam(0.01)),
    "nadam momentum decay": (NAdam(0.01, beta1=0.8, momentum_decay=0.1), lambda: nadam(0.01, 0.8, psi=0.1)),
    "radam": (RAdam(0.01), lambda: radam(0.01)),
    "radam betas": (RAdam(0.01, beta1=0.8, beta2=0.95), lambda: radam(0.01, 0.8, 0.95)),
    "adamax": (Adamax(0.01), lambda: adamax(0.01)),
    "adadelta": (Adadelta(1.0), lambda: adadelta(1.0)),
    "adadelta rho": (Adadelta(0.5, rho=0.7, eps=1e-3), lambda: adadelta(0.5, 0.7, 1e-3)),
    "lion": (Lion(0.01), lambda: lion(0.01)),
    "lion decay": (Lion(0.01, beta1=0.8, weight_decay=0.1), lambda: lion(0.01, 0.8, decay=0.1)),
}


@pytest.mark.parametrize("name", CASES)
def test_100_steps_agree_with_numpy(name: str, backend: str) -> None:
    optimizer, make = CASES[name]
    run, rule, expected = Run(optimizer, backend), make(), START
    for gradient in GRADIENTS:
        found = run(gradient)
        expected = rule(expected, gradient.astype(np.float64), 1.0)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
    assert run["optimizer.step"] == STEPS


class Whole:
    """All of a step in NumPy, f64: the mean of micro-batches, both clippings, the schedule, each parameter's rule."""

    def __init__(self, optimizer: Optimizer, make: Callable[[], Rule], factor: Callable[[int], float]) -> None:
        self.optimizer, self.factor, self.updates = optimizer, factor, 0
        self.rules, self.values = [make(), make()], [START, START]
        self.batches: list[list[np.ndarray]] = []

    def __call__(self, *gradients: np.ndarray) -> list[np.ndarray]:
        """Both parameters after a step."""
        self.batches.append(list(gradients))
        if len(self.batches) < self.optimizer.accumulate:
            return self.values
        means = [np.mean(batches, axis=0) for batches in zip(*self.batches, strict=True)]
        if self.optimizer.clip_value is not None:
            means = [np.clip(mean, -self.optimizer.clip_value, self.optimizer.clip_value) for mean in means]
        if self.optimizer.clip_norm is not None:
            norm = math.sqrt(sum(float(np.sum(mean**2)) for mean in means))
            means = [mean * min(self.optimizer.clip_norm / (norm + 1e-6), 1) for mean in means]
        terms = zip(self.rules, self.values, means, strict=True)
        self.values = [rule(p, g, self.factor(self.updates)) for rule, p, g in terms]
        self.batches, self.updates = [], self.updates + 1
        return self.values


OPTIONS: dict[str, tuple[dict[str, Any], Callable[[int], float]]] = {
    "clip value": ({"clip_value": 0.4}, lambda t: 1.0),
    "clip norm": ({"clip_norm": 3.0}, lambda t: 1.0),
    "accumulate": ({"accumulate": 3}, lambda t: 1.0),
    "schedule": ({"schedule": Warmup(20) * Exponential(0.98)}, lambda t: warmup(t, 20) * 0.98**t),
    "all": (
        {"clip_value": 0.9, "clip_norm": 2.5, "accumulate": 2, "schedule": Cosine(40, 0.2)},
        lambda t: cosine(t, 40, 0.2),
    ),
}


@pytest.mark.spread(6)
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("name", CASES)
def test_100_steps_agree_with_numpy_in_f64_with_every_option(name: str, option: str) -> None:
    settings, factor = OPTIONS[option]
    optimizer, make = CASES[name]
    optimizer = dataclasses.replace(optimizer, **settings)
    run, whole = Run(optimizer, dtype=gt.f64, share=-0.5), Whole(optimizer, make, factor)
    for gradient in GRADIENTS.astype(np.float64):
        run(gradient)
        w, b = whole(gradient, -0.5 * gradient)
    np.testing.assert_allclose(run["layer.weight"], w, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(run["layer.bias"], b, rtol=1e-10, atol=1e-12)
    assert run["optimizer.step"] == STEPS // optimizer.accumulate


@pytest.mark.parametrize("name", ["nesterov", "adamw", "rmsprop centered", "adagrad decay"])
def test_100_compiled_steps_agree_with_numpy_with_all_options(name: str) -> None:
    settings, factor = OPTIONS["all"]
    optimizer = dataclasses.replace(CASES[name][0], **settings)
    run, whole = Run(optimizer, "cpu", share=-0.5), Whole(optimizer, CASES[name][1], factor)
    for gradient in GRADIENTS:
        run(gradient)
        w, b = whole(gradient.astype(np.float64), -0.5 * gradient.astype(np.float64))
    np.testing.assert_allclose(run["layer.weight"], w, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(run["layer.bias"], b, rtol=2e-5, atol=2e-5)


# --- Muon, which is not elementwise ----------------------------------------------------------------------------------


def muon_direction(x: np.ndarray) -> np.ndarray:
    """Five Newton-Schulz steps, over the shorter side."""
    if len(x) > len(x[0]):
        return muon_direction(x.T).T
    x = x / np.linalg.norm(x)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def muon(lr: float, momentum: float = 0.95, decay: float = 0.1) -> Rule:
    state: list[np.ndarray] = []

    def rule(p: np.ndarray, g: np.ndarray, factor: float) -> np.ndarray:
        state[:] = [momentum * (state[0] if state else np.zeros_like(g)) + (1 - momentum) * g]
        direction = muon_direction(((1 - momentum) * g + momentum * state[0]).reshape(len(g), -1))
        scale = 0.2 * math.sqrt(max(direction.shape))
        return p * (1 - factor * lr * decay) - factor * lr * scale * direction.reshape(p.shape)

    return rule


@pytest.mark.parametrize("shape", [(3, 4), (6, 2), (4, 1, 3, 3)], ids=str)
def test_muon_agrees_with_numpy(shape: tuple[int, ...], backend: str) -> None:
    random = np.random.default_rng(4)
    start, gradients = random.standard_normal(shape), random.standard_normal((20, *shape)).astype(np.float32)
    optimizer = Muon(0.02, adamw=("*.bias",), schedule=Warmup(10))
    run, rule, expected = Run(optimizer, backend, start=start), muon(0.02), start
    for t, gradient in enumerate(gradients):
        found = run(gradient)
        expected = rule(expected, gradient.astype(np.float64), warmup(t, 10))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    names = {variable.name for variable in run.graph.variables}
    assert {"layer.weight.muon.momentum", "layer.bias.muon.m", "layer.bias.muon.v"} <= names
    assert not {"layer.weight.muon.m", "layer.bias.muon.momentum"} & names


def test_muon_is_adamw_for_vectors_and_what_it_is_told(backend: str) -> None:
    run = Run(Muon(0.01, adamw=lambda parameter: True), backend)
    vector, expected = Run(Muon(0.01), backend, start=START.reshape(-1)), adam(0.01, decay=0.1)
    values = START
    for gradient in GRADIENTS[:10]:
        found, values = run(gradient), expected(values, gradient.astype(np.float64), 1.0)
        np.testing.assert_array_equal(found.reshape(-1), vector(gradient.reshape(-1)))
    np.testing.assert_allclose(found, values, rtol=1e-5, atol=1e-5)


def test_muon_steps_are_nearly_orthogonal_whatever_the_gradient() -> None:
    run = Run(Muon(1.0, weight_decay=0.0), dtype=gt.f64)
    gradient = np.diag([1.0, 1e-2, 5.0]) @ np.eye(3, 4)
    step = (START - run(gradient)) / (0.2 * 2)
    values = np.linalg.svd(step, compute_uv=False)
    assert (values > 0.6).all()
    assert (values < 1.3).all()
    before = run["layer.weight"]
    assert np.isfinite(Run(Muon(1.0))(np.zeros(SHAPE, np.float32))).all()
    assert not np.array_equal(before, START)


# --- invariants ------------------------------------------------------------------------------------------------------


def undecayed(optimizer: Optimizer) -> Optimizer:
    return dataclasses.replace(optimizer, weight_decay=0.0)


@pytest.mark.spread(15)
@pytest.mark.parametrize("name", CASES)
def test_zero_gradients_keep_parameters_to_the_bit(name: str, backend: str) -> None:
    optimizer = dataclasses.replace(undecayed(CASES[name][0]), clip_norm=1.0, accumulate=2)
    run, zeros = Run(optimizer, backend), np.zeros(SHAPE, np.float32)
    for _ in range(6):
        np.testing.assert_array_equal(run(zeros), START.astype(np.float32))
    assert run["optimizer.step"] == 3


@pytest.mark.spread(15)
@pytest.mark.parametrize("name", CASES)
def test_permuted_elements_are_updated_alike(name: str, backend: str) -> None:
    """Every element follows its own history: permuted starts and gradients give the permuted result, to the bit."""
    optimizer, order = dataclasses.replace(CASES[name][0], clip_value=0.8), np.random.default_rng(1).permutation(12)
    start, feeds = START.reshape(-1), GRADIENTS[:10].reshape(10, -1)
    run, permuted = Run(optimizer, backend, start=start), Run(optimizer, backend, start=start[order])
    for gradient in feeds:
        np.testing.assert_array_equal(run(gradient)[order], permuted(gradient[order]))


@pytest.mark.spread(5)
@pytest.mark.parametrize("name", CASES)
def test_reflected_problems_have_reflected_steps(name: str, backend: str) -> None:
    """Minus the start and minus the gradients give minus the result: every rule is odd."""
    optimizer = dataclasses.replace(CASES[name][0], clip_value=0.8, clip_norm=2.0)
    run, reflected = Run(optimizer, backend), Run(optimizer, backend, start=-START)
    for gradient in GRADIENTS[:10]:
        np.testing.assert_array_equal(run(gradient), -reflected(-gradient))


@pytest.mark.parametrize("name", ["adam", "adamw", "rmsprop", "rmsprop centered", "adagrad"])
def test_adaptive_steps_do_not_depend_on_the_gradients_scale(name: str, backend: str) -> None:
    """A power of two is exact, so only the epsilon sees it."""
    optimizer = dataclasses.replace(CASES[name][0], eps=0.0)  # type: ignore[call-arg]
    run, scaled = Run(optimizer, backend), Run(optimizer, backend)
    for gradient in GRADIENTS[:10]:
        np.testing.assert_allclose(run(gradient), scaled(gradient * np.float32(256)), rtol=1e-6)


def test_clipping_leaves_small_gradients_as_they_are(backend: str) -> None:
    run, clipped = Run(SGD(0.1), backend), Run(SGD(0.1, clip_value=10.0, clip_norm=100.0), backend)
    for gradient in GRADIENTS[:10]:
        np.testing.assert_array_equal(run(gradient), clipped(gradient))


def test_a_rate_of_zero_keeps_parameters(backend: str) -> None:
    run = Run(AdamW(0.1, schedule=Constant(0.0)), backend)
    for gradient in GRADIENTS[:5]:
        np.testing.assert_array_equal(run(gradient), START.astype(np.float32))


def test_clipping_by_value(backend: str) -> None:
    run = Run(SGD(1.0, clip_value=0.25), backend)
    np.testing.assert_allclose(run(GRADIENTS[0]), START - np.clip(GRADIENTS[0], -0.25, 0.25), rtol=1e-5, atol=1e-6)


def test_clipping_by_global_norm_scales_all_parameters_together(backend: str) -> None:
    run = Run(SGD(1.0, clip_norm=0.5), backend)
    norm = math.sqrt(2 * float((GRADIENTS[0] ** 2).sum()))  # w and b have the same gradient
    np.testing.assert_allclose(run(GRADIENTS[0]), START - GRADIENTS[0] * (0.5 / norm), rtol=1e-5, atol=1e-6)
    before, small = run["layer.weight"], GRADIENTS[1] * np.float32(1e-3)
    np.testing.assert_allclose(run(small), before - small, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    "make", [lambda n: SGD(0.1, momentum=0.9, accumulate=n), lambda n: Adam(0.01, clip_norm=1.0, accumulate=n)]
)
def test_accumulation_updates_once_with_the_mean(make: Callable[[int], Optimizer], backend: str) -> None:
    small, whole = Run(make(4), backend), Run(make(1), backend)
    for start in range(0, 20, 4):
        before = small["layer.weight"]
        for gradient in GRADIENTS[start : start + 3]:
            np.testing.assert_array_equal(small(gradient), before)
        found = small(GRADIENTS[start + 3])
        expected = whole(GRADIENTS[start : start + 4].mean(axis=0))
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    assert small["optimizer.step"] == 5
    assert not small["layer.weight.accumulated"].any()


@pytest.mark.parametrize("name", CASES)
def test_f64_parameters_are_updated_in_f64(name: str) -> None:
    """With f64 hyperparameters: 0.1 in f32 alone would be 1e-8 off."""
    optimizer, make = CASES[name]
    run, rule, expected = Run(optimizer, dtype=gt.f64), make(), START
    for gradient in GRADIENTS.astype(np.float64):
        found = run(gradient)
        expected = rule(expected, gradient, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-13)


def test_parameters_of_two_types_share_hyperparameters() -> None:
    x = gt.Input(gt.f64[3], "x")
    narrow, wide = (gt.Variable(str(dtype), np.ones(3, dtype.numpy)) for dtype in (gt.f32, gt.f64))
    loss = gt.nn.total(x * wide) + gt.nn.total(x * Cast(to=gt.f64)(narrow))
    trainer = gt.Trainer(
        gt.Graph((x,), {"loss": loss}), "loss", SGD(lr=0.1, schedule=Cosine(10), clip_norm=100.0), backend="interpreter"
    )
    trainer.step({"x": np.array([1.0, 2.0, 3.0])})
    expected = 1 - 0.1 * np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(trainer.parameters()["f64"], expected, rtol=1e-15)
    np.testing.assert_allclose(trainer.parameters()["f32"], expected, rtol=1e-7)


@pytest.mark.parametrize("excluded", [("*.bias",), lambda parameter: parameter.name.endswith("bias")])
@pytest.mark.parametrize("cls", [SGD, AdamW])
def test_weight_decay_with_exclusions(cls: type[Optimizer], excluded: Any) -> None:
    run = Run(cls(0.1, weight_decay=0.5, no_decay=excluded))
    run(np.zeros(SHAPE, np.float32))
    np.testing.assert_allclose(run["layer.weight"], START * 0.95, rtol=1e-5)
    np.testing.assert_array_equal(run["layer.bias"], START.astype(np.float32))


def test_vectors_are_biases_and_scales() -> None:
    shapes = {(): True, (3,): True, (3, 4): False}
    for shape, expected in shapes.items():
        assert gt.optim.vectors(gt.Variable("p", np.zeros(shape))) is expected


@pytest.mark.parametrize(
    ("schedule", "factor"),
    [
        (Constant(0.5), lambda t: 0.5),
        (Step(30, 0.5), lambda t: 0.5 ** (t // 30)),
        (Exponential(0.97), lambda t: 0.97**t),
        (Cosine(50, 0.1), lambda t: cosine(t, 50, 0.1)),
        (Linear(50, 0.1), lambda t: max(1 - 0.9 * t / 50, 0.1)),
        (Polynomial(50), lambda t: max(1 - t / 50, 0) ** 2),
        (OneCycle(60, rise=0.5, start=0.2, floor=0.1), lambda t: one_cycle(t, 29, 59, 0.2, 0.1)),
        (OneCycle(40, rise=0.025), lambda t: cosine(t, 39, 4e-6)),
        (OneCycle(10).then(Constant(0.5)), lambda t: one_cycle(t, 2, 9, 0.04, 4e-6) if t < 10 else 0.5),
        (Warmup(20), lambda t: warmup(t, 20)),
        (Warmup(20) * Step(50), lambda t: warmup(t, 20) * 0.1 ** (t // 50)),
        (Warmup(20).then(Cosine(40)), lambda t: warmup(t, 20) if t < 20 else cosine(t - 20, 40)),
        (
            Warmup(10).then(Cosine(40)).then(Constant(0.3)),
            lambda t: warmup(t, 10) if t < 10 else cosine(t - 10, 40) if t < 50 else 0.3,
        ),
    ],
    ids=lambda part: str(part) if isinstance(part, gt.optim.Schedule) else "",
)
def test_schedules_are_computed_inside_the_step(schedule: gt.optim.Schedule, factor: Callable[[int], float]) -> None:
    run, ones = Run(SGD(1.0, schedule=schedule)), np.ones(SHAPE, np.float32)
    found, before = [], START.astype(np.float32)
    for _ in range(STEPS):
        after = run(ones)
        found.append(float((before - after)[0, 0]))
        before = after
    np.testing.assert_allclose(found, [factor(t) for t in range(STEPS)], rtol=1e-3, atol=2e-5)


def test_two_schedules_of_one_kind_have_their_own_numbers() -> None:
    hyper = (Step(10, 0.5) * Step(7, 0.25)).hyper()
    assert hyper == {
        "schedule.step.every": 10, "schedule.step.gamma": 0.5, "schedule.step2.every": 7, "schedule.step2.gamma": 0.25
    }  # fmt: skip


def test_what_has_no_length_cannot_be_followed() -> None:
    for schedule in (Exponential(0.9), Warmup(3) * Cosine(5)):
        with pytest.raises(InputError, match="nothing can come after"):
            schedule.then(Constant())


def test_every_number_is_an_input_of_the_step() -> None:
    optimizer = Adam(0.1, schedule=Warmup(5) * Exponential(0.9), clip_norm=1.0, clip_value=2.0, weight_decay=0.1)
    names = {value.name for value in Run(optimizer).graph.inputs} - {"g"}
    assert names == {f"hyper.{name}" for name in optimizer.hyper()}
    assert {"lr", "beta1", "beta2", "eps", "weight_decay", "clip_norm", "clip_value", "schedule.warmup.steps"} <= set(
        optimizer.hyper()
    )
    assert "momentum" not in SGD().hyper()


def test_hyperparameters_change_between_steps(backend: str) -> None:
    run = Run(SGD(0.1), backend)
    first = run(GRADIENTS[0])
    run.hyper["hyper.lr"] = np.float32(0.5)
    np.testing.assert_allclose(run(GRADIENTS[1]), first - 0.5 * GRADIENTS[1], rtol=1e-5, atol=1e-6)


def test_16_bit_parameters_keep_f32_slots() -> None:
    run = Run(Adam(0.01), dtype=gt.f16)
    run(GRADIENTS[0].astype(np.float16))
    assert run["layer.weight"].dtype == np.float16
    assert run["layer.weight.adam.m"].dtype == np.float32


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Adam(lr=-1), "lr must be"),
        (lambda: Adam(lr=math.nan), "lr must be"),
        (lambda: Adam(beta1=1.0), "beta1 must be below 1"),
        (lambda: SGD(clip_norm=0.0), "clip_norm must be positive"),
        (lambda: SGD(accumulate=0), "accumulate"),
        (lambda: SGD(nesterov=True), "nesterov"),
        (lambda: Adadelta(rho=1.0), "rho must be below 1"),
    ],
)
def test_impossible_settings_are_refused(make: Callable[[], Optimizer], message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_optimizers_by_name() -> None:
    assert gt.optim.by_name("nadam", lr=0.1) == NAdam(0.1)
    with pytest.raises(InputError, match="no optimizer 'adm' \\(the nearest is 'adam'\\); choose from sgd, adam, "):
        gt.optim.by_name("adm")
    feed = gt.Input(gt.f32[()], "g")
    graph = gt.Graph((feed,), {"loss": gt.Variable("w", np.float32(1)) * feed})
    assert gt.Trainer(graph, "loss", "radam", backend="interpreter").optimizer == RAdam()
    with pytest.raises(InputError, match="no optimizer 'momentum'"):
        gt.Trainer(graph, "loss", "momentum")
    with pytest.raises(InputError, match="or its name, not the class Adam itself"):
        gt.Trainer(graph, "loss", Adam)  # type: ignore[arg-type]
