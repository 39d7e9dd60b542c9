"""How often the training step of a normalized layer passes over what it normalizes, counted in the program."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import glowtrain as gt
from glowtrain import nn
from glowtrain.compiler.walk import arrive, until
from glowtrain.graph import Value
from glowtrain.loops import Buffer, For
from glowtrain.ops.elementwise.extrema import Clip
from glowtrain.ops.normalize.batch_and_layer import RMSNormalization
from glowtrain.ops.normalize.group import GroupNormalization, InstanceNormalization
from glowtrain.program.program import Program
from glowtrain.types import f32

Layer = Callable[[Value], Value]

FORWARD = 3
"""Mean, variance, and what is computed of x then."""
BACKWARD = 2
"""Both sums, and the gradient of x."""


def batch_norm(x: Value) -> Value:
    return nn.batch_norm(x, name="norm")


def group_norm(x: Value) -> Value:
    scale, bias = _numbers(x)
    result: Value = GroupNormalization(num_groups=4)(x, scale, bias)
    return result


def instance_norm(x: Value) -> Value:
    scale, bias = _numbers(x)
    result: Value = InstanceNormalization()(x, scale, bias)
    return result


def _numbers(x: Value) -> tuple[Value, Value]:
    with nn.scope("norm"):
        return nn.parameter("scale", (x.shape[1],), nn.ones), nn.parameter("bias", (x.shape[1],), nn.zeros)


def relu6(x: Value) -> Value:
    result: Value = Clip()(x, 0.0, 6.0)
    return result


def training_step(norm: Layer, activation: Layer) -> Program:
    """The program of a step of two convolutions with a normalization between them."""

    @gt.model(x=f32["batch", 3, 16, 16])
    def net(x: Value) -> Value:
        hidden = nn.conv(x, 16, 3, padding="same", bias=False, name="first")
        return nn.conv(activation(norm(hidden)), 8, 3, padding="same", name="second")

    trainer = gt.Trainer(net.bind({"batch": 8}), gt.losses.mse(), gt.optim.SGD())
    program: Program = arrive(trainer.graph, stages=until("ordered"))
    return program


def normalized(program: Program) -> Buffer:
    """What the first convolution writes."""
    (buffer,) = next(kernel.writes for kernel in program.kernels if kernel.name.startswith("conv"))
    return buffer


@pytest.mark.parametrize("activation", [nn.relu, relu6, nn.silu])
@pytest.mark.parametrize("norm", [batch_norm, group_norm, instance_norm])
def test_passes_over_the_normalized_tensor(norm: Layer, activation: Layer) -> None:
    """Three forward and two backward. Further readers compute the normalized x again instead of reading it."""
    program = training_step(norm, activation)
    x = normalized(program)
    readers = [kernel.name for kernel in program.kernels if x in kernel.reads]
    behind_a_sum = [name for name in readers if name.startswith("convinputgradient")]
    assert len(readers) - len(behind_a_sum) == FORWARD + BACKWARD, readers
    assert len(behind_a_sum) <= 1, readers


@pytest.mark.parametrize("norm", [batch_norm, group_norm, instance_norm])
def test_large_tensors_share_one_layout(norm: Layer) -> None:
    """Nothing of x's size is copied from one order of axes to another."""
    program = training_step(norm, nn.silu)
    x = normalized(program)
    large = [buffer for buffer in program.buffers if buffer.kind == "activation" and buffer.type.size == x.type.size]
    assert {buffer.layout for buffer in large} == {x.layout}
    assert {buffer.shape for buffer in large} == {x.shape}


@pytest.mark.parametrize(
    ("activation", "stored"), [(nn.relu, 4), (relu6, 4), (nn.silu, 5)], ids=("relu", "relu6", "silu")
)
def test_what_a_batch_norm_with_an_activation_stores(activation: Layer, stored: int) -> None:
    """x, the activation's result and its gradient, the gradient of x, for SiLU the sigmoid: masks and what stands
    between the normalization and its activation are computed again."""
    program = training_step(batch_norm, activation)
    x = normalized(program)
    written = [b for kernel in program.kernels for b in kernel.writes if b.type.size == x.type.size]
    assert len(written) == stored, [buffer.name for buffer in written]


def test_both_sums_of_the_gradient_share_a_pass() -> None:
    program = training_step(batch_norm, nn.relu)
    x = normalized(program)
    both = [kernel for kernel in program.kernels if x in kernel.reads and len(kernel.writes) == 2]
    assert any(len(kernel.survey.reductions) == 2 for kernel in both)


def rms_norm(x: Value) -> Value:
    with nn.scope("norm"):
        scale = nn.parameter("scale", x.shape[-1:], nn.ones)
    result: Value = RMSNormalization()(x, scale)
    return result


def row_step(norm: Layer) -> Program:
    """The program of a step of two linear layers with a function of each row between them."""

    @gt.model(x=f32["batch", 24])
    def net(x: Value) -> Value:
        return nn.linear(norm(nn.linear(x, 48, bias=False, name="first")), 8, name="second")

    trainer = gt.Trainer(net.bind({"batch": 32}), gt.losses.mse(), gt.optim.SGD())
    program: Program = arrive(trainer.graph, stages=until("ordered"))
    return program


@pytest.mark.parametrize(("norm", "readers"), [(nn.layer_norm, 3), (rms_norm, 3), (nn.softmax, 1)])
def test_rows_are_read_once_forward_and_once_backward(norm: Layer, readers: int) -> None:
    """Sums of a row and what is computed with them are one kernel. Besides, a scale's gradient sums columns; the
    backward of softmax reads its result instead."""
    program = row_step(norm)
    (x,) = next(kernel.writes for kernel in program.kernels if kernel.name.startswith("matmul"))
    assert len([kernel for kernel in program.kernels if x in kernel.reads]) == readers
    rows = [kernel for kernel in program.kernels if any(isinstance(s, For) for f in kernel.body for s in f.body)]
    assert len(rows) == 2, [kernel.name for kernel in rows]
    assert all(kernel.survey.reductions for kernel in rows)
