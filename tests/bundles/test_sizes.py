"""What bundles are said to take, against numbers that are known from the model; and what does not fit into a RAM."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import glowtrain as gt
from glowtrain.backends.target import Target
from glowtrain.bundles.devices.sizes import BundleSize
from glowtrain.bundles.request import Optimize
from glowtrain.cli import app
from glowtrain.cli.arguments.models import ModelFileOptions
from glowtrain.errors import BundleError
from glowtrain.optim import SGD

TARGET = "cortex-m7"
LOSS = gt.losses.SoftmaxCrossEntropy()


@gt.model(x=gt.f32["n", 30])
def network(x: gt.Value) -> gt.Value:
    for width in (50, 40):
        x = gt.nn.linear(x, width)
    return gt.nn.linear(x, 7)


PARAMETERS = 4 * (30 * 50 + 50 + 50 * 40 + 40 + 40 * 7 + 7)
PRODUCTS = 30 * 50 + 50 * 40 + 40 * 7


def test_an_inference_bundle_has_its_weights_in_flash_alone() -> None:
    size = gt.bundle_size(network, target=TARGET, dims={"n": 2})
    (predict,) = size.functions
    assert size.variables == 0
    assert PARAMETERS <= size.constants <= PARAMETERS + 1000
    assert predict.multiply_adds == 2 * PRODUCTS
    assert predict.tensors == 4 * 2 * (30 + 7)
    assert predict.arena == size.arena
    assert size.ram == size.arena + size.handle + size.stack
    assert size.flash == size.code + size.constants


@gt.model(x=gt.f32["n", 784])
def perceptron(x: gt.Value) -> gt.Value:
    for width in (512, 512):
        x = gt.nn.relu(gt.nn.linear(x, width))
    return gt.nn.linear(x, 10)


@pytest.mark.spread(2)
@pytest.mark.parametrize("target", ["x86-64-v4", "x86-64-v3", "aarch64", "cortex-m7", "riscv32imc", "wasm32"])
def test_layers_of_one_example_need_no_memory_but_for_their_results(target: str) -> None:
    """Half of what a program takes that holds results before and after the activation."""
    size = gt.bundle_size(perceptron, target=target, dims={"n": 1})
    assert size.arena == 4 * (512 + 512)


def test_few_partial_sums_of_a_row_are_on_the_stack() -> None:
    """A row has 32 of them, whatever the processor; without vectors they are taken some at a time."""

    @gt.model(x=gt.f32[3, 45])
    def means(x: gt.Value) -> gt.Value:
        return gt.nn.mean(x, 1)

    size = gt.bundle_size(means, target=TARGET)
    assert size.stack < 4 * 32


def test_a_step_computes_each_product_thrice_but_for_the_first_layers_input() -> None:
    size = gt.bundle_size(network, loss=LOSS, optimizer=SGD(), target=TARGET, dims={"n": 4})
    step = size.functions[0]
    assert step.multiply_adds == 4 * (3 * PRODUCTS - 30 * 50)
    assert PARAMETERS <= size.variables <= PARAMETERS + 8 * 6
    assert step.stack <= size.stack
    assert size.arena == max(function.arena for function in size.functions)


@pytest.mark.exhaustive
def test_what_is_frozen_is_in_flash() -> None:
    whole = gt.bundle_size(network, loss=LOSS, optimizer=SGD(), target=TARGET)
    names = [variable.name for variable in network.bind({"n": 1}).variables]
    head = gt.bundle_size(network, loss=LOSS, optimizer=SGD(), target=TARGET, trainable=names[-2:])
    assert 4 * (40 * 7 + 7) < head.variables <= 4 * (40 * 7 + 7) + 3 * 8
    assert head.arena < whole.arena


def required(ram: int, **changed: object) -> str:
    """The message about what does not fit."""
    with pytest.raises(BundleError) as caught:
        gt.bundle_size(network, loss=LOSS, optimizer=SGD(), target=TARGET, ram=ram, **changed)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.exhaustive
def test_what_does_not_fit_says_by_how_much_and_the_largest_batch_that_does() -> None:
    def fitting(**given: object) -> BundleSize:
        return gt.bundle_size(network, loss=LOSS, optimizer=SGD(), target=TARGET, **given)  # type: ignore[arg-type]

    ram = fitting().ram - 20_000
    message = required(ram)
    needed, batch = (
        int(re.findall(pattern, message)[0].replace(",", ""))
        for pattern in (r"needs ([\d,]+) bytes of RAM on cortex-m7", r"what would fit: a batch of (\d+)")
    )
    assert f"{needed - ram:,} more than the {ram:,} there are" in message
    assert ram < fitting(ram=needed).ram <= needed
    assert fitting(ram=ram, dims={"n": batch}).ram <= ram
    required(ram, dims={"n": batch + 1})


@pytest.mark.exhaustive
def test_what_does_not_fit_names_layers_that_could_be_trained() -> None:
    names = [variable.name for variable in network.bind({"n": 1}).variables]
    head = gt.bundle_size(network, loss=LOSS, optimizer=SGD(), target=TARGET, dims={"n": 1}, trainable=names[-2:])
    message = required(head.ram + 2000, dims={"n": 1})
    assert f"trainable=['{names[-1].rpartition('.')[0]}.*']" in message
    assert "a batch of" not in message


@pytest.mark.exhaustive
def test_what_never_fits_says_the_least() -> None:
    assert re.search(r"the least that it can do with is [\d,]+$", required(100))


def test_enough_ram_is_enough() -> None:
    size = gt.bundle_size(network, target=TARGET)
    assert gt.bundle_size(network, target=TARGET, ram=size.ram) == size


@pytest.mark.parametrize("ram", [102, 102.0, "102", "0.1KB", "0.1 KiB"])
def test_ram_as_people_write_it(ram: Any) -> None:
    with pytest.raises(BundleError, match="more than the 102 there are"):
        gt.bundle_size(network, target=TARGET, dims={"n": 1}, ram=ram)


@pytest.mark.parametrize("ram", ["3 apples", "0", "-4K"])
def test_ram_that_is_none(ram: str) -> None:
    done = CliRunner().invoke(app, ["size", "mlp", "--batch=1", f"--ram={ram}"])
    assert done.exit_code == 1
    assert f"ram {ram!r}: say a positive number of bytes, such as 262144, 256KB or 4MB" in done.output


@pytest.mark.parametrize("option", ["--loss=mse", "--optimizer=sgd", "--momentum=0.9", "--clip-norm=1"])
def test_options_of_training_are_for_what_trains(option: str) -> None:
    done = CliRunner().invoke(app, ["size", "mlp", "--batch=1", option])
    assert done.exit_code == 1
    assert f"{option.partition('=')[0]}: nothing is trained without --train" in done.output


def test_what_is_not_quantized_is_in_floats() -> None:
    with pytest.raises(BundleError, match="changes nothing in network, which has no quantized sums"):
        gt.bundle_size(network, target=TARGET, fixed_point=True)


OPTIMIZE: tuple[Optimize, ...] = ("size", "speed")
LIMITS = {"mlp": (4200, 100 << 10), "cnn": (8192, 100 << 10)}
"""Bytes of code for the built-in models: a prediction of one example, and training."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["avx512", "avx2", "neon", "cortex-m4", "cortex-m7"])
@pytest.mark.parametrize("name", LIMITS)
def test_code_that_is_to_be_small(name: str, target: str) -> None:
    model = ModelFileOptions().open(name)
    assert isinstance(model, gt.Template)
    small, fast = (
        gt.bundle_size(model, target=target, dims={model.symbols[0]: 1}, optimize=choice) for choice in OPTIMIZE
    )
    training = gt.bundle_size(model, loss=LOSS, optimizer=SGD(), target=target, optimize="size")
    assert small.code < fast.code
    assert small.code <= LIMITS[name][0]
    assert training.code <= LIMITS[name][1]


@pytest.mark.spread(1)
@pytest.mark.parametrize("target", ["host", "scalar"])
def test_small_code_computes_the_same_bits(target: str) -> None:
    model = ModelFileOptions().open("cnn")
    random = np.random.default_rng(5)
    batches = [
        {"x": random.normal(size=(6, 1, 28, 28)).astype(np.float32), "labels": random.integers(0, 10, 6)}
        for _ in range(3)
    ]
    losses = []
    for compact in (False, True):
        backend = gt.Cpu(replace(Target.named(target), compact=compact), cache=False)
        trainer = gt.Trainer(model, LOSS, SGD(0.05), backend=backend)
        losses.append([np.asarray(trainer.step(batch)).tobytes() for batch in batches])
    assert losses[0] == losses[1]


def test_an_unknown_aim_names_those_that_there_are() -> None:
    with pytest.raises(BundleError, match="optimize='tiny': choose speed or size"):
        gt.bundle_size(network, optimize="tiny")  # type: ignore[arg-type]
