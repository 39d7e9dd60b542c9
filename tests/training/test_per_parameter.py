"""Groups, penalties, constraints and means of parameters: their arithmetic in NumPy, and what they go together with."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import CheckpointError, InputError
from glowtrain.optim.per_parameter import Penalty
from glowtrain.optim.texts import constraints_in, groups_in, penalties_in

RATE = 0.1


@gt.model(x=gt.f64["batch", 4])
def affine(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 3, name="layer")


def trainer_of(**settings: Any) -> gt.Trainer:
    return gt.Trainer(affine, "mse", **{"optimizer": gt.optim.SGD(RATE), "backend": "interpreter", **settings})


@pytest.fixture
def batch(random: np.random.Generator) -> dict[str, np.ndarray]:
    return {"x": random.normal(size=(6, 4)), "target": random.normal(size=(6, 3))}


def stepped(trainer: gt.Trainer, batch: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Parameters before a step, the gradients of its loss, and parameters after it."""
    before, gradients = trainer.parameters(), trainer.gradients(batch)
    trainer.step(batch)
    return before, gradients, trainer.parameters()


def test_a_group_has_its_own_numbers_and_a_share_of_the_scheduled_rate(batch: dict[str, np.ndarray]) -> None:
    rule = gt.optim.SGD(RATE, momentum=0.9, weight_decay=0.3, schedule=gt.optim.Constant(0.5))
    groups = {"*.weight": {"momentum": 0.5}, "*.bias": {"lr_factor": 0.25, "weight_decay": 0}}
    trainer = trainer_of(optimizer=rule, groups=groups)
    buffers = {"layer.weight": 0.0, "layer.bias": 0.0}
    for _ in range(3):
        before, gradients, after = stepped(trainer, batch)
        for name, momentum, decay, factor in (("layer.weight", 0.5, 0.3, 1.0), ("layer.bias", 0.9, 0.0, 0.25)):
            buffers[name] = momentum * buffers[name] + gradients[name] + decay * before[name]
            np.testing.assert_allclose(after[name], before[name] - RATE * 0.5 * factor * buffers[name], rtol=1e-12)
    trainer.lr = 0.0
    before, _, after = stepped(trainer, batch)
    assert all(np.array_equal(array, after[name]) for name, array in before.items())


def test_corrections_of_a_group_are_those_of_its_own_betas(batch: dict[str, np.ndarray]) -> None:
    """Adam's corrections for its first means are computed of beta1 and beta2: of a group's, where it has some."""
    grouped = trainer_of(optimizer=gt.optim.Adam(0.01), groups={"*": {"beta1": 0.5, "beta2": 0.7}})
    plain = trainer_of(optimizer=gt.optim.Adam(0.01, beta1=0.5, beta2=0.7))
    for _ in range(4):
        grouped.step(batch)
        plain.step(batch)
    for name, array in plain.parameters().items():
        np.testing.assert_allclose(grouped.parameters()[name], array, rtol=1e-12)


def test_the_last_pattern_counts_for_each_number(batch: dict[str, np.ndarray]) -> None:
    groups = {"*": {"lr_factor": 0.0, "weight_decay": 0.5}, "*.bias": {"lr_factor": 1.0}}
    before, gradients, after = stepped(trainer_of(groups=groups), batch)
    assert np.array_equal(before["layer.weight"], after["layer.weight"])
    expected = before["layer.bias"] - RATE * (gradients["layer.bias"] + 0.5 * before["layer.bias"])
    np.testing.assert_allclose(after["layer.bias"], expected, rtol=1e-12)


@pytest.mark.parametrize("penalty", [gt.optim.L1(0.3), gt.optim.L2(0.2)], ids=lambda each: type(each).__name__)
def test_a_penalty_states_the_gradient_of_its_value(penalty: Penalty, random: np.random.Generator) -> None:
    p = gt.Variable("p", random.normal(size=(3, 4)))
    graph = gt.Graph((), {"stated": penalty.gradient(p), "derived": gt.gradients(penalty.value(p), [p])[0]})
    outputs = gt.compile(graph, "interpreter")({})
    np.testing.assert_allclose(outputs["stated"], outputs["derived"], rtol=1e-14)
    step = 1e-6 * random.normal(size=p.shape)
    values = [
        gt.compile(gt.Graph((), {"v": penalty.value(gt.Variable("p", p.initial + side * step))}), "interpreter")({})[
            "v"
        ]
        for side in (1, -1)
    ]
    np.testing.assert_allclose((values[0] - values[1]) / 2, (outputs["stated"] * step).sum(), rtol=1e-6)


def test_penalties_are_in_the_update_and_not_in_the_loss(batch: dict[str, np.ndarray]) -> None:
    rules = {"*.weight": [gt.optim.L1(0.3), gt.optim.L2(0.2)]}
    trainer, plain = trainer_of(regularize=rules), trainer_of()
    assert trainer.step(batch) == plain.step(batch)
    before, gradients, after = stepped(trainer, batch)
    weight = before["layer.weight"]
    expected = weight - RATE * (gradients["layer.weight"] + 0.3 * np.sign(weight) + 0.4 * weight)
    np.testing.assert_allclose(after["layer.weight"], expected, rtol=1e-12)
    np.testing.assert_allclose(after["layer.bias"], before["layer.bias"] - RATE * gradients["layer.bias"], rtol=1e-12)


def test_clipping_sees_penalties(batch: dict[str, np.ndarray]) -> None:
    rules, rule = {"*": gt.optim.L2(50.0)}, gt.optim.SGD(RATE, clip_norm=1.0)
    before, _, after = stepped(trainer_of(regularize=rules, optimizer=rule), batch)
    moved = np.sqrt(sum(((after[name] - array) ** 2).sum() for name, array in before.items()))
    assert moved == pytest.approx(RATE, rel=1e-4)


@pytest.mark.parametrize("over", [None, 0, (1,)])
def test_max_norm_rescales_what_is_longer(over: Any, batch: dict[str, np.ndarray]) -> None:
    limit = 0.3
    constraints = {"*.weight": gt.optim.MaxNorm(limit, over)}
    before, gradients, after = stepped(trainer_of(constraints=constraints), batch)
    free = before["layer.weight"] - RATE * gradients["layer.weight"]
    norms = np.sqrt((free**2).sum(axis=over, keepdims=True))
    assert (norms > limit).any()
    np.testing.assert_allclose(after["layer.weight"], free * np.minimum(limit / norms, 1), rtol=1e-9)


def test_constraints_hold_in_their_order(batch: dict[str, np.ndarray]) -> None:
    constraints = {
        "*.weight": [gt.optim.NonNegative(), gt.optim.MaxNorm(0.1, over=0)],
        "*.bias": gt.optim.NonNegative(),
    }
    trainer = trainer_of(constraints=constraints)
    for _ in range(3):
        trainer.step(batch)
    weight = trainer.parameters()["layer.weight"]
    assert weight.min() == 0
    assert np.linalg.norm(weight, axis=0).max() == pytest.approx(0.1)
    assert trainer.parameters()["layer.bias"].min() >= 0


@pytest.mark.parametrize("accumulate", [1, 2])
def test_means_move_after_each_update(accumulate: int, batch: dict[str, np.ndarray]) -> None:
    trainer = trainer_of(ema=0.3, optimizer=gt.optim.SGD(RATE, accumulate=accumulate))
    mean, updates = trainer.parameters()["layer.weight"], 0
    for step in range(1, 9):
        trainer.step(batch)
        if step % accumulate == 0:
            updates += 1
            decay = min(0.3, (1 + updates) / (10 + updates))
            mean = decay * mean + (1 - decay) * trainer.parameters()["layer.weight"]
        np.testing.assert_allclose(trainer.variables()["layer.weight.ema"], mean, rtol=1e-12)
    own = trainer.parameters()
    with trainer.averaged():
        assert np.array_equal(trainer.model().initial_values["layer.weight"], trainer.variables()["layer.weight.ema"])
        within = trainer.predict(batch["x"])["output"]
    assert all(np.array_equal(array, own[name]) for name, array in trainer.parameters().items())
    np.testing.assert_allclose(within, batch["x"] @ mean + trainer.variables()["layer.bias.ema"], rtol=1e-9)


def test_the_block_of_means_ends_with_the_parameters_whatever_happens(batch: dict[str, np.ndarray]) -> None:
    trainer = trainer_of(ema=0.9)
    trainer.step(batch)
    before = trainer.parameters()
    with pytest.raises(KeyboardInterrupt), trainer.averaged():
        raise KeyboardInterrupt
    assert all(np.array_equal(array, before[name]) for name, array in trainer.parameters().items())
    with pytest.raises(InputError, match="keeps no means"), trainer_of().averaged():
        pass


def test_means_of_parts(batch: dict[str, np.ndarray]) -> None:
    trainer = trainer_of(ema=0.5, trainable=["layer.weight[:2]"])
    for _ in range(3):
        trainer.step(batch)
    whole = trainer.parameters()["layer.weight"]
    with trainer.averaged():
        averaged = trainer.parameters()["layer.weight"]
    assert trainer.variables()["layer.weight.ema"].shape == (2, 3)
    assert np.array_equal(averaged[2:], whole[2:])
    assert not np.allclose(averaged[:2], whole[:2])


SETTINGS: dict[str, Any] = {
    "groups": {"*.bias": {"lr_factor": 0.5, "weight_decay": 0.0}},
    "regularize": {"*.weight": gt.optim.L1(1e-2)},
    "constraints": {"*.weight": gt.optim.MaxNorm(0.7, over=0)},
    "ema": 0.9,
    "optimizer": gt.optim.AdamW(lr=0.02),
}


def test_a_resumed_run_has_the_bits_of_one_without_a_stop(tmp_path: Path, batch: dict[str, np.ndarray]) -> None:
    data = {name: np.concatenate([array] * 3) for name, array in batch.items()}

    def run(epochs: int, path: Path) -> gt.Trainer:
        trainer = trainer_of(**SETTINGS)
        trainer.fit(data, epochs, 5, checkpoint=path, resume=True, progress=False)
        return trainer

    whole = run(4, tmp_path / "whole.safetensors")
    run(2, tmp_path / "run.safetensors")
    again = run(4, tmp_path / "run.safetensors")
    assert "layer.weight.ema" in whole.variables()
    assert all(array.tobytes() == again.variables()[name].tobytes() for name, array in whole.variables().items())
    for name, other in {"regularize": {"*.weight": gt.optim.L1(2e-2)}, "ema": 0.8, "groups": None}.items():
        with pytest.raises(CheckpointError, match="structure of the optimizer differs"):
            trainer_of(**{**SETTINGS, name: other}).restore(tmp_path / "run.safetensors")


def test_parts_of_a_batch_are_one_update(batch: dict[str, np.ndarray]) -> None:
    whole, parts = trainer_of(**SETTINGS), trainer_of(**SETTINGS, micro_batches=3)
    for _ in range(3):
        whole.step(batch)
        parts.step(batch)
    for name, array in whole.variables().items():
        np.testing.assert_allclose(parts.variables()[name], array, rtol=1e-9, err_msg=name)


def test_compiled_code_does_the_same(batch: dict[str, np.ndarray]) -> None:
    compiled, interpreted = trainer_of(**SETTINGS, backend="cpu"), trainer_of(**SETTINGS)
    for trainer in (compiled, interpreted):
        for _ in range(3):
            trainer.step(batch)
    copied = copy.deepcopy(compiled)
    for name, array in interpreted.variables().items():
        np.testing.assert_allclose(copied.variables()[name], array, rtol=1e-9, err_msg=name)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"groups": {"nope.*": {"lr_factor": 1}}}, r"groups: nothing that is trained matches 'nope\.\*'; there are"),
        ({"regularize": {"*.wieght": gt.optim.L1(1)}}, r"regularize: nothing that is trained matches"),
        ({"trainable": ["*.bias"], "constraints": {"*.weight": gt.optim.NonNegative()}}, "nothing that is trained"),
        ({"groups": {"*": {"lr": 1e-3}}}, "lr_factor multiplies the learning rate"),
        ({"groups": {"*": {"momentun": 0.5}}}, "no hyperparameter of sgd for a group 'momentun'"),
        ({"groups": {"*": {"clip_norm": 0.5}}, "optimizer": gt.optim.SGD(clip_norm=1.0)}, "no hyperparameter"),
        ({"groups": {"*": {"weight_decay": -1}}}, "weight_decay must be a number that is not negative"),
        ({"groups": {"*": {"weight_decay": "0"}}}, "weight_decay must be a number, not '0'"),
        ({"groups": {"*": 0.1}}, "must have a dict of numbers"),
        ({"groups": [("*", {})]}, "groups must be a dict by patterns"),
        ({"regularize": {"*": 1e-4}}, r"regularize takes gt\.optim\.L1\(\.\.\.\) or gt\.optim\.L2"),
        ({"regularize": {"*": gt.optim.NonNegative()}}, "regularize takes"),
        ({"constraints": {"*": gt.optim.L1(1)}}, r"constraints takes gt\.optim\.MaxNorm"),
        ({"constraints": {"*.bias": gt.optim.MaxNorm(1, over=1)}}, r"type f64\[3\] has no axes 1"),
        ({"ema": 1}, "from 0 to below 1"),
        ({"ema": "0.9"}, "from 0 to below 1"),
    ],
)
def test_what_cannot_be(settings: dict[str, Any], expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        trainer_of(**settings)


@pytest.mark.parametrize("strength", [-1, float("nan"), float("inf"), "1", True])
def test_strengths_are_numbers(strength: Any) -> None:
    for rule in (gt.optim.L1, gt.optim.L2, gt.optim.MaxNorm):
        with pytest.raises(InputError, match="must be a number that is not negative"):
            rule(strength)
    with pytest.raises(InputError, match="limit must be positive"):
        gt.optim.MaxNorm(0)


def test_texts_of_the_command_line() -> None:
    assert groups_in(["a:b*:lr_factor=0.1,weight_decay=0", "a:b*:beta1=.5"]) == {
        "a:b*": {"lr_factor": 0.1, "weight_decay": 0.0, "beta1": 0.5}
    }
    assert penalties_in(["*:l1=1e-4, l2=2"]) == {"*": [gt.optim.L1(1e-4), gt.optim.L2(2.0)]}
    assert constraints_in(["*:max_norm=3,non_negative"]) == {"*": [gt.optim.MaxNorm(3.0), gt.optim.NonNegative()]}
    assert groups_in([]) is penalties_in([]) is constraints_in([]) is None


@pytest.mark.parametrize(
    ("reader", "text", "expected"),
    [
        (groups_in, "*.bias", "must be a pattern of names, a colon"),
        (groups_in, "*.bias:weight_decay", "a number is missing, as in"),
        (groups_in, "*.bias:weight_decay=x", "x is no number"),
        (penalties_in, "*:l3=1", "no rule 'l3'"),
        (penalties_in, "*:max_norm=1", "no rule 'max_norm'"),
        (penalties_in, "*:l1", "l1 takes a number, as in l1=0.1"),
        (constraints_in, "*:non_negative=1", "non_negative takes no number"),
    ],
)
def test_texts_that_say_nothing(reader: Any, text: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected):
        reader([text])
