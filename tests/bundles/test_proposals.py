"""What is proposed for training within a budget: it fits by the bytes of compiled code, and is chosen by gradients."""

from __future__ import annotations

import shlex
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import glowtrain as gt
from glowtrain.bundles.updates import Proposal, propose
from glowtrain.bundles.updates.fisher import fisher
from glowtrain.bundles.updates.layers import layers_of
from glowtrain.cli import app
from glowtrain.errors import InputError, MemoryBudgetError
from glowtrain.ops.elementwise.arithmetic import Floor
from glowtrain.trainer.selection.shorten import patterns_for
from glowtrain.types import Array

SGD = gt.optim.SGD(0.05)


OPTIMIZERS = {"sgd": SGD, "adam": gt.optim.Adam()}


@gt.model(x=gt.f32["batch", 1, 8, 8])
def small(x: gt.Value) -> gt.Value:
    with gt.nn.scope("trunk"):
        x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 8, 3, stride=2, padding="same")))
        x = gt.nn.relu(gt.nn.conv(x, 12, 3, stride=2, padding="same", name="second"))
    return gt.nn.linear(gt.nn.flatten(x), 10, name="head")


def examples(seed: int, count: int = 64) -> tuple[Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((count, 1, 8, 8)).astype(np.float32), rng.integers(0, 10, count)


@cache
def proposed(kilobytes: int, optimizer: str) -> Proposal:
    return propose(
        small, examples(1), kilobytes << 10, optimizer=OPTIMIZERS[optimizer], dims={"batch": 1}, target="cortex-m7"
    )


COUNTER = 8
"""Bytes of the number of updates."""
CASES = [(3, "sgd"), (6, "sgd"), (6, "adam"), (9, "adam"), (100, "sgd")]


@pytest.mark.spread(1)
@pytest.mark.parametrize(("kilobytes", "optimizer"), CASES)
def test_a_proposal_fits_as_a_bundle(kilobytes: int, optimizer: str) -> None:
    limit, found = kilobytes << 10, proposed(kilobytes, optimizer)
    size = gt.bundle_size(
        small, loss="softmax_cross_entropy", optimizer=OPTIMIZERS[optimizer], trainable=found.trainable,
        freeze_statistics=True, dims={"batch": 1}, target="cortex-m7", memory=limit if found.bytes.fitted else None,
    )  # fmt: skip
    assert found.bytes.total <= limit
    assert size.arena == found.bytes.arena
    assert found.bytes.parameters + found.bytes.optimizer <= size.variables < found.bytes.total - found.bytes.arena + 64
    assert found.freeze_statistics


def test_more_memory_trains_more() -> None:
    shares = [proposed(kilobytes, "sgd").share for kilobytes in (3, 6, 100)]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert 0 < shares[0] < 0.9


@gt.model(x=gt.f32["batch", 3, 24, 24])
def bottleneck(x: gt.Value) -> gt.Value:
    """Where the trunk is frozen, most lies between its convolutions."""
    x = gt.nn.relu(gt.nn.conv(x, 4, 3, stride=2, padding="same", name="stem"))
    x = gt.nn.relu(gt.nn.conv(x, 24, 1, name="expand"))
    x = gt.nn.relu(gt.nn.conv(x, 24, 3, stride=2, padding="same", groups=24, name="depthwise"))
    return gt.nn.linear(gt.nn.flatten(x), 5, name="head")


@pytest.mark.exhaustive
def test_weights_get_what_the_least_arena_leaves() -> None:
    """Beside the arena of a step of which nothing is said there is room for the bias only."""
    rng, limit = np.random.default_rng(3), 28_000
    data = rng.standard_normal((64, 3, 24, 24)).astype(np.float32), rng.integers(0, 5, 64)
    found = propose(bottleneck, data, limit, optimizer=SGD, dims={"batch": 1}, target="cortex-m7")
    unsaid, within = (
        gt.bundle_size(
            bottleneck, loss="softmax_cross_entropy", optimizer=SGD, trainable=["head.*"], dims={"batch": 1},
            target="cortex-m7", memory=memory,
        )
        for memory in (None, limit)
    )  # fmt: skip
    assert unsaid.variables + unsaid.arena > limit > unsaid.arena
    assert found.trainable == ("head.*",)
    assert found.bytes.fitted
    assert found.bytes.arena == within.arena < unsaid.arena
    assert found.bytes.total <= limit


@gt.model(x=gt.f32["batch", 1, 8, 8])
def rounded(x: gt.Value) -> gt.Value:
    whole = Floor()(4.0 * gt.nn.linear(gt.nn.flatten(x), 16, name="trunk"))
    return gt.nn.linear(whole, 10, name="head")


@gt.model(x=gt.f32["batch", 1, 8, 8])
def dead(x: gt.Value) -> gt.Value:
    return gt.nn.relu(gt.nn.linear(gt.nn.flatten(x), 10, name="head") - 1e6)


def test_what_has_no_gradient_is_not_proposed() -> None:
    found = propose(rounded, examples(3), "100KB", optimizer=SGD, dims={"batch": 1})
    assert found.trainable == ("head.*",)
    assert found.share == pytest.approx(1.0)
    with pytest.raises(InputError, match="dead: nothing to train has a gradient"):
        propose(dead, examples(3), "100KB", optimizer=SGD, dims={"batch": 1})


def test_choices_say_what_they_cost() -> None:
    found = proposed(9, "adam")
    assert sum(choice.share for choice in found.choices) == pytest.approx(found.share)
    assert found.share == max(depth.share for depth in found.depths)
    assert sum(choice.parameters for choice in found.choices) == found.bytes.parameters
    assert sum(choice.optimizer for choice in found.choices) == found.bytes.optimizer - COUNTER


def test_rows_are_proposed_where_slots_are_too_many() -> None:
    """Adam keeps two numbers for each that is trained."""
    found = proposed(6, "adam")
    parts = [pattern for pattern in found.trainable if ":" in pattern]
    assert parts
    graphs = gt.Trainer(small, "softmax_cross_entropy", SGD, trainable=found.trainable).graphs
    assert sum(bounds is not None for bounds in graphs.chosen.values()) == len(parts)


def test_squared_gradients_are_means_over_batches() -> None:
    trainer = gt.Trainer(small, "softmax_cross_entropy", SGD)
    batches = [{"x": x, "labels": y} for x, y in (examples(5, 4), examples(6, 4))]
    gradients = [trainer.gradients(batch)["head.weight"].astype(np.float64) for batch in batches]
    found = fisher(trainer, batches)["head.weight"]
    np.testing.assert_allclose(found, (gradients[0] ** 2 + gradients[1] ** 2) / 2)


def test_layers_are_the_last_first() -> None:
    layers = layers_of(small.bind({"batch": 1}))
    assert [layer.name for layer in layers] == ["head", "trunk.second", "trunk.batch_norm", "trunk.conv"]
    assert [variable.name for variable in layers[2].biases] == ["trunk.batch_norm.bias"]  # and not the scale


def test_nothing_fits() -> None:
    with pytest.raises(MemoryBudgetError, match=r"small: 512 bytes are too few to train anything: .*head\.bias"):
        propose(small, examples(7), 512, optimizer=SGD, dims={"batch": 1})
    with pytest.raises(InputError, match="budget '3Q': say a positive number of bytes"):
        propose(small, examples(7), "3Q", optimizer=SGD, dims={"batch": 1})


PATTERNS = {
    "all biases": (["a.bias", "b.c.bias"], ["a.weight"], ["*.bias"]),
    "a layer": (["a.bias", "a.weight"], ["b.bias"], ["a.*"]),
    "biases of a block": (["a.x.bias", "a.y.bias"], ["b.bias", "a.x.weight"], ["a.*.bias"]),
    "a layer in a block": (["a.x.bias", "a.x.weight"], ["a.y.bias", "a.y.weight", "b.weight"], ["a.x.*"]),
    "one of them": (["a.x.bias"], ["a.x.weight", "a.y.bias"], ["a.x.bias"]),
    "no module": (["w"], ["v"], ["w"]),
}


@pytest.mark.parametrize("case", PATTERNS)
def test_patterns_are_short(case: str) -> None:
    names, others, expected = PATTERNS[case]
    assert patterns_for(names, others) == expected


# --- the command -----------------------------------------------------------------------------------------------------


def inspected(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["inspect", *map(str, arguments)])


@pytest.mark.exhaustive
def test_what_is_printed_can_be_trained(tmp_path: Path) -> None:
    gt.save(small, tmp_path / "small.onnx")
    result = inspected(
        tmp_path / "small.onnx", "--data", "digits", "--dims", "batch=1", "--optimizer", "sgd", "--budget", "6KB"
    )
    assert result.exit_code == 0, result.output
    assert "of 6.0 KiB; what is not trained is constant" in result.output
    options = shlex.split(result.stdout.splitlines()[-1])
    assert options[0] == "--trainable"
    assert options[-1] == "--freeze-statistics"
    trained = tmp_path / "trained.onnx"
    run = CliRunner().invoke(
        app,
        ["train", str(tmp_path / "small.onnx"), "--data", "digits", "--epochs", "1", "--out", str(trained), *options],
    )
    assert run.exit_code == 0, run.output


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--budget", "64KB"), 2, "name them with --data"),
        (("--budget", "64KB", "--data", "digits", "--stage", "plan"), 2, "prints no plan"),
        (("--budget", "64KB", "--data", "digits", "--trainable", "*.bias"), 2, "give one of them"),
        (("--budget", "1KB", "--data", "digits", "--dims", "batch=1"), 1, "1,024 bytes are too few to train anything"),
        (("--budget", "much", "--data", "digits", "--dims", "batch=1"), 1, "budget 'much'"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], status: int, message: str) -> None:
    result = inspected("mlp", *arguments)
    assert result.exit_code == status, result.output
    assert message in " ".join(result.stderr.replace("│", "").split())
    assert "Traceback" not in result.output
