"""Parts of parameters that are trained: the bits of full training there, nothing elsewhere, and state for the part."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.compiler.walk import arrive
from glowtrain.errors import CheckpointError, InputError
from glowtrain.grad.parts import Bounds
from glowtrain.program.program import Kernel, Plan
from glowtrain.trainer.selection.patterns import described, select
from glowtrain.types import Array
from tests.training.trainers import Points, trainer_of


@gt.model(x=gt.f32["batch", 4, 10, 10])
def convolutions(x: gt.Value) -> gt.Value:
    """Ordinary, depthwise, in groups, pointwise, and a matrix product."""
    x = gt.nn.relu(gt.nn.conv(x, 16, 3, padding="same", name="stem"))
    x = gt.nn.relu(gt.nn.conv(x, 16, 3, padding="same", groups=16, name="depthwise"))
    x = gt.nn.relu(gt.nn.conv(x, 16, 3, stride=2, padding="same", groups=2, name="grouped"))
    x = gt.nn.relu(gt.nn.conv(x, 24, 1, name="pointwise"))
    return gt.nn.linear(gt.nn.flatten(x), 5, name="head")


@gt.model(x=gt.f32["batch", 12, 8])
def sequence(x: gt.Value) -> gt.Value:
    x = gt.nn.linear(gt.nn.layer_norm(x, name="norm"), 16, name="wide")
    x = gt.nn.lstm(gt.nn.gelu(x), 6, name="lstm")
    return gt.nn.linear(gt.nn.flatten(x), 5, name="head")


@gt.model(x=gt.i64["batch", 12])
def words(x: gt.Value) -> gt.Value:
    return gt.nn.linear(gt.nn.flatten(gt.nn.embedding(x, 20, 8, name="table")), 5, name="head")


CASES = {
    "rows": (convolutions, ["stem.*[4:8]", "depthwise.weight[:8]", "pointwise.weight[-6:]"]),
    "columns": (convolutions, ["stem.weight[:, 1:3]", "pointwise.weight[4:12, :8]", "head.weight[:, 2:4]"]),
    "taps": (convolutions, ["stem.weight[:, :, 1:2, 1:2]", "grouped.weight[:4]", "head.bias[1:]"]),
    "biases": (convolutions, ["*.bias"]),
    "a layer and rows": (convolutions, ["head.*", "pointwise.*[:5]", "*.bias"]),
    "a sequence": (sequence, ["norm.scale[2:6]", "wide.weight[:, :4]", "lstm.*[:, 4:12]", "head.weight[8:40]"]),
    "a table": (words, ["table.weight[3:9]"]),
}


def batch_of(model: gt.Template, seed: int, size: int = 6) -> dict[str, Array]:
    rng, (spec,) = np.random.default_rng(seed), model.inputs.values()
    shape = (size, *(int(extent) for extent in spec.shape[1:]))
    x = rng.integers(0, 20, shape) if spec.dtype == gt.i64 else rng.standard_normal(shape).astype(np.float32)
    return {"x": x, "labels": rng.integers(0, 5, size)}


def part_of(array: Array, bounds: Bounds | None) -> Array:
    return array if bounds is None else array[tuple(slice(taken.start, taken.stop) for taken in bounds)]


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_those_of_full_training(case: str) -> None:
    model, trainable = CASES[case]
    whole, part = (trainer_of(model, "cpu", trainable=names) for names in (None, trainable))
    batch = batch_of(model, 3)
    found, wanted = part.gradients(batch), whole.gradients(batch)
    for name, bounds in part.graphs.chosen.items():
        np.testing.assert_array_equal(found.pop(name), part_of(wanted[name], bounds), name)
    assert not found


OPTIMIZERS = {
    "sgd": gt.optim.SGD(0.05, momentum=0.9, weight_decay=0.1),
    "adam": gt.optim.Adam(0.01, weight_decay=0.1, no_decay=("*.bias",), schedule=gt.optim.Cosine(9)),
    "accumulated": gt.optim.Adam(0.01, clip_value=0.01, accumulate=2),
}


@pytest.mark.spread(1)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("case", CASES)
def test_a_step_updates_the_part_alone(case: str, optimizer: str) -> None:
    """As the optimizer's rule does with a whole parameter of which only the part counts."""
    model, trainable = CASES[case]
    settings = {"optimizer": OPTIMIZERS[optimizer]}
    whole, part = (trainer_of(model, "cpu", trainable=names, **settings) for names in (None, trainable))
    before, batch = part.parameters(), batch_of(model, 4)
    for trainer in (whole, part):
        for _ in range(OPTIMIZERS[optimizer].accumulate):
            trainer.step(batch)
    after, full = part.parameters(), whole.parameters()
    for name, array in before.items():
        wanted = array.copy()
        if name in part.graphs.chosen:
            bounds = part.graphs.chosen[name]
            part_of(wanted, bounds)[...] = part_of(full[name], bounds)
            assert (wanted != array).any()
        np.testing.assert_array_equal(after[name], wanted, name)


def test_slots_are_as_large_as_the_part() -> None:
    trainer = trainer_of(convolutions, trainable=["stem.*[4:8]", "head.weight[:, 2:4]"])
    slots = {name: array.shape for name, array in trainer.variables().items() if ".adam." in name}
    assert slots == {
        **{f"stem.weight.adam.{slot}": (4, 4, 3, 3) for slot in "mv"},
        **{f"stem.bias.adam.{slot}": (4,) for slot in "mv"},
        **{f"head.weight.adam.{slot}": (24 * 25, 2) for slot in "mv"},
    }


def plan_of(trainable: list[str] | None) -> Plan:
    return arrive(trainer_of(convolutions, trainable=trainable).graphs.step_of(convolutions.bind({"batch": 6})))


def products(plan: Plan) -> list[Kernel]:
    """The kernels that sum up gradients of convolutions' weights."""
    return [kernel for kernel in plan.program.kernels if kernel.name.startswith("convweightgradient")]


def test_the_backward_pass_is_that_of_the_part() -> None:
    """By the plan: no product for the weights of a frozen layer, and for the rows of another only theirs."""
    whole, biases, rows = map(plan_of, (None, ["*.bias"], ["stem.weight[4:8]"]))
    assert [len(products(plan)) > 3 for plan in (whole, biases, rows)] == [True, False, False]
    assert not products(biases)
    extents = [index.extent for kernel in products(rows) for nest in kernel.body for index in nest.indices]
    assert 4 in extents
    assert 16 not in extents


def test_no_activation_is_kept_for_frozen_weights() -> None:
    """Of the layers before the one whose bias is trained nothing is read once the loss is known."""
    for trainable, expected in ((["pointwise.bias", "head.*"], True), (["pointwise.*", "head.*"], False)):
        kernels = list(plan_of(trainable).program.kernels)
        loss = next(at for at, kernel in enumerate(kernels) if any(b.name == "loss" for b in kernel.writes))
        inner = {f"relu{suffix}" for suffix in ("", "_1", "_2")}
        read_later = {buffer.name for kernel in kernels[loss:] for buffer in kernel.reads}
        assert (inner & read_later == set()) == expected


@pytest.mark.exhaustive
def test_files_hold_whole_weights(tmp_path: Path) -> None:
    trainer = trainer_of(convolutions, "cpu", trainable=["stem.*[4:8]", "head.weight[:, 2:4]"])
    trainer.step(batch_of(convolutions, 5))
    gt.save(trainer.model(), tmp_path / "model.onnx")
    read = {v.name: v.initial for v in gt.load(tmp_path / "model.onnx", dims={"batch": 6}).variables}
    for name, array in trainer.parameters().items():
        np.testing.assert_array_equal(read[name], array)
    trainer.save(tmp_path / "run.safetensors")
    other = trainer_of(convolutions, "cpu", trainable=["stem.*[4:8]", "head.weight[:, 2:4]"])
    other.restore(tmp_path / "run.safetensors")
    batch = batch_of(convolutions, 6)
    assert other.step(batch) == trainer.step(batch)
    assert all((array == other.variables()[name]).all() for name, array in trainer.variables().items())
    with pytest.raises(CheckpointError, match="trained parameters differs"):
        trainer_of(convolutions, trainable=["stem.*[:4]", "head.weight[:, 2:4]"]).restore(tmp_path / "run.safetensors")


@pytest.mark.exhaustive
def test_a_step_as_a_file_updates_the_part(tmp_path: Path) -> None:
    trainer = trainer_of(convolutions, "cpu", trainable=["stem.*[4:8]"])
    step = trainer.graphs.step_of(convolutions.bind({"batch": 6}))
    gt.save(step, tmp_path / "step.onnx")
    batch = {**batch_of(convolutions, 7), **trainer.hyper.inputs}
    again = gt.load(tmp_path / "step.onnx")
    results = gt.compile(again)(batch)
    trainer.step(batch_of(convolutions, 7))
    found = {name: array for name, array in results.items() if array.shape == (16, 4, 3, 3)}
    assert any(np.allclose(array, trainer.parameters()["stem.weight"], atol=1e-6) for array in found.values())


@pytest.mark.exhaustive
def test_copies_train_the_same_part() -> None:
    trainer = trainer_of(convolutions, "cpu", trainable=["stem.*[4:8]"])
    other, batch = copy.deepcopy(trainer), batch_of(convolutions, 8)
    assert [each.step(batch) for each in (trainer, trainer)] == [each.step(batch) for each in (other, other)]


# --- choosing --------------------------------------------------------------------------------------------------------


def chosen(*patterns: str) -> dict[str, str]:
    """The bounds of each variable of a small model, as text."""
    variables = convolutions.bind({"batch": 2}).variables
    found = select(variables, list(patterns))
    shown = {variable.name: bounds for variable, bounds in found.items()}
    return {
        name: "all" if bounds is None else " ".join(f"{taken.start}-{taken.stop}" for taken in bounds)
        for name, bounds in shown.items()
    }


def test_ranges_are_read_as_numpy_reads_them() -> None:
    assert chosen("stem.*[:3]") == {"stem.weight": "0-3 0-4 0-3 0-3", "stem.bias": "0-3"}
    assert chosen("head.weight[-2: , 1 : -1]") == {"head.weight": "598-600 1-4"}
    assert chosen("head.bias[:]", "stem.bias[0:16]") == {"stem.bias": "all", "head.bias": "all"}
    assert chosen("stem.*[:3]", "stem.weight") == {"stem.weight": "all", "stem.bias": "0-3"}
    assert chosen("stem.bias[:3]", "stem.b*[:3]") == {"stem.bias": "0-3"}


def test_other_brackets_are_of_the_name() -> None:
    assert chosen("[hs]*.bias") == {"stem.bias": "all", "head.bias": "all"}
    assert chosen("[hs]*.bias[2:4]") == {"stem.bias": "2-4", "head.bias": "2-4"}


def test_a_name_that_ends_in_brackets_means_itself() -> None:
    odd = gt.graph.Variable("w[:2]", np.zeros((4, 4), np.float32))
    assert select([odd], ["w[:2]"]) == {odd: None}
    part = {odd: (range(1, 3), range(4))}
    assert select([odd], ["w[[]:2][1:3]"]) == part
    assert select([odd], described({"w[:2]": part[odd]})) == part


WRONG = {
    "nothing matches": (["stam.*[:4]"], r"nothing matches 'stam\.\*'; the parameters are: stem\.\* \(2\)"),
    "too far": (
        ["stem.weight[:32]"],
        r"'stem\.weight\[:32\]': stem\.weight \(f32\[16,4,3,3\]\) has 16 elements along axis 0, so :32 is no part",
    ),
    "one of several": (["*.bias[:10]"], r"head\.bias \(f32\[5\]\) has 5 elements along axis 0, so :10 is no part"),
    "the second axis": (["head.weight[:, 3:6]"], r"has 5 elements along axis 1, so 3:6 is no part of it"),
    "before the first": (["head.bias[-6:]"], r"so -6: is no part of it"),
    "nothing": (["head.bias[3:3]"], r"so 3:3 is no part of it"),
    "too many": (["head.bias[:2, :2]"], r"'head\.bias\[:2, :2\]' has 2 ranges, but head\.bias is f32\[5\]"),
    "a step": (["head.bias[::2]"], r"ranges are start:stop for each axis, such as \[:32\] or \[:, 4:8\], not \[::2\]"),
    "an element": (["head.weight[3, :2]"], r"ranges are start:stop for each axis"),
    "two parts": (
        ["head.bias[:2]", "head.bias[3:]"],
        r"'head\.bias\[:2\]' and 'head\.bias\[3:\]' are different parts of head\.bias, of which one can be trained",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_ranges(case: str) -> None:
    trainable, message = WRONG[case]
    with pytest.raises(InputError, match=message):
        trainer_of(convolutions, trainable=trainable)


@pytest.mark.exhaustive
def test_the_bias_of_a_frozen_normalization(cnn: gt.Template, points: Points) -> None:
    """It is trained while the layer normalizes with its running statistics."""
    trainer = trainer_of(cnn, trainable=["batch_norm.bias", "linear.*"], freeze_statistics=True)
    before = trainer.variables()
    trainer.fit((np.concatenate([points[0]] * 3, axis=1)[:, :16].reshape(-1, 1, 4, 4), points[1]), 1, 8)
    changed = {name for name, array in trainer.variables().items() if name in before and (array != before[name]).any()}
    assert {name for name in changed if name.startswith("batch_norm.") and "adam" not in name} == {"batch_norm.bias"}
