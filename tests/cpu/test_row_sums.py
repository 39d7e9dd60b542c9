"""Operators on rows give the same bits on every target: the program says in which order a row is summed."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.target import Target
from glowtrain.graph import Value, constant
from glowtrain.ops.normalize.batch_and_layer import LayerNormalization, RMSNormalization
from glowtrain.ops.reduce.softmax import LogSoftmax, Softmax
from glowtrain.types import Array, f32
from tests.cpu.cpu_kernels import runnable

WIDE = replace(Target.host(), name="wide", vector_bits=512)
OTHERS = {target.name: target for target in [WIDE, *runnable("avx512", "avx2", "sse4", "scalar", "generic")]}


def normalized(x: Value) -> Any:
    scale, bias = (constant(np.linspace(low, 1.3, x.shape[-1], dtype=np.float32)) for low in (0.7, -1.1))
    return LayerNormalization()(x, scale, bias)


OPERATORS: dict[str, Callable[[Value], Any]] = {
    "LayerNormalization": normalized,
    "RMSNormalization": lambda x: RMSNormalization()(x, constant(np.float32(1.1))),
    "Softmax": Softmax(),
    "Softmax of columns": Softmax(axis=1),
    "LogSoftmax": LogSoftmax(),
}


@cache
def results(name: str, length: int, target: Target | None) -> tuple[Array, ...]:
    """Compiled for a target, or evaluated without one."""
    x = np.random.default_rng(length).normal(0.5, 3, (3, 21, length)).astype(np.float32)

    @gt.model(x=f32[x.shape])
    def net(x: Value) -> dict[str, Value]:
        found = OPERATORS[name](x)
        return {str(n): value for n, value in enumerate(found if isinstance(found, tuple) else (found,))}

    return tuple(gt.compile(net, backend="evaluator" if target is None else Cpu(target=target))({"x": x}).values())


WITH_EXP = {"Softmax", "Softmax of columns", "LogSoftmax"}
"""exp rounds in other places where there is no fused multiply-add."""
CASES = [
    (name, target)
    for name, target in itertools.product(OPERATORS, OTHERS)
    if name not in WITH_EXP or OTHERS[target].has_fma == Target.host().has_fma
]


@pytest.mark.spread(13)
@pytest.mark.parametrize(("name", "target"), CASES)
@pytest.mark.parametrize("length", [5, 16, 49, 64, 131])
def test_targets_agree(name: str, target: str, length: int) -> None:
    for ours, theirs in zip(results(name, length, Target.host()), results(name, length, OTHERS[target]), strict=True):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("name", sorted(OPERATORS.keys() - WITH_EXP))
@pytest.mark.parametrize("length", [1, 5, 16, 131])
def test_the_evaluator_agrees(name: str, length: int) -> None:
    """It says what a program means, and the order of these sums is part of that."""
    for ours, theirs in zip(results(name, length, Target.host()), results(name, length, None), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_the_mean_of_a_row_is_rounded_once() -> None:
    x = np.random.default_rng(0).normal(100, 1, (64, 768)).astype(np.float32)

    @gt.model(x=f32[64, 768])
    def net(x: Value) -> Value:
        result: Value = normalized(x)[1]
        return result

    mean = gt.compile(net)({"x": x})["output"]
    np.testing.assert_array_equal(mean, x.mean(1, dtype=np.float64, keepdims=True).astype(np.float32))
