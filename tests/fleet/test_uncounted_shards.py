"""Shards that count nothing, and weights of examples: with the result of one process that takes shards one by one."""

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import NonFiniteError
from glowtrain.fleet.spec import FleetSpec
from tests.fleet.test_fleet_training import doubled, examples, fitted
from tests.fleet.thread_ranks import on_ranks
from tests.training.test_several_outputs import two

SHARDS, SIZE = 6, 8
IGNORED = 4
LOSSES = {
    "weighted": lambda: "softmax_cross_entropy",
    "ignoring": lambda: gt.losses.softmax_cross_entropy(ignore_index=IGNORED),
    "balancing": lambda: gt.losses.softmax_cross_entropy(class_weight=(1.0, 2.0, 0.5, 1.0, 0.0)),
}


def batch(name, empty):
    """A batch, whose shards in ``empty`` count nothing."""
    x, labels = examples(doubled, SHARDS * SIZE)
    weights = np.random.default_rng(1).integers(0, 3, len(x)).astype(np.float64)
    for shard in empty:
        rows = slice(shard * SIZE, (shard + 1) * SIZE)
        labels[rows], weights[rows] = IGNORED, 0.0
    return {"x": x, "labels": labels, **({"sample_weight": weights} if name == "weighted" else {})}


def steps(name, optimizer, batches, fleet=None):
    """The parameters as they were, and after steps; the losses of these."""
    made = gt.Trainer(doubled, LOSSES[name](), optimizer, fleet=fleet, sample_weight=name == "weighted")
    before = made.parameters()
    losses = [made.step(each) for each in batches]
    return before, made.parameters(), losses


def in_shards(name, whole):
    """What one process makes of the shards one after the other."""
    parts = [{n: a[s * SIZE : (s + 1) * SIZE] for n, a in whole.items()} for s in range(SHARDS)]
    return steps(name, gt.optim.SGD(0.5, momentum=0.9, accumulate=SHARDS), parts)


@pytest.mark.parametrize("empty", [(), (2,), (0, 5)])
@pytest.mark.parametrize("name", LOSSES)
def test_shards_are_those_of_accumulated_gradients(name, empty):
    whole = batch(name, empty)
    if empty and name != "weighted":
        with pytest.raises(NonFiniteError):
            in_shards(name, whole)
        return
    before, after, losses = in_shards(name, whole)
    optimizer = gt.optim.SGD(0.5, momentum=0.9)
    found = on_ranks(3, lambda _: steps(name, optimizer, [whole], FleetSpec(SHARDS)))
    for _, parameters, (loss,) in found:
        assert loss == pytest.approx(np.mean(losses), rel=1e-12)
        for parameter, array in after.items():
            assert np.any(before[parameter] != array)
            np.testing.assert_allclose(parameters[parameter], array, rtol=1e-9, atol=1e-13)


@pytest.mark.parametrize("name", ["ignoring", "balancing"])
@pytest.mark.parametrize("ranks", [1, 2, 6])
def test_shards_without_a_label_that_counts_are_an_error_of_all_ranks(name, ranks):
    """Who has them is one rank; what all know, and do not update, is the same."""

    def run(_):
        made = gt.Trainer(doubled, LOSSES[name](), "adam", fleet=FleetSpec(SHARDS))
        before = {n: v.tobytes() for n, v in made.variables().items()}
        with pytest.raises(NonFiniteError, match=rf"the loss is nan: shard 3 \(rank {3 * ranks // SHARDS}\)"):
            made.step(batch(name, (3,)))
        assert {n: v.tobytes() for n, v in made.variables().items()} == before

    on_ranks(ranks, run)


@pytest.mark.parametrize("ranks", [2, 3])
def test_weights_of_examples_are_those_of_one_rank(ranks):
    """Also means over an epoch, of batches that weigh different amounts, and an uneven last one, of 6 examples; the
    examples of its last shards weigh nothing."""
    x, labels = examples(doubled, 150)
    weights = np.random.default_rng(2).uniform(0, 2, 150)
    weights[100:] = 0.0
    data = {"x": x, "labels": labels, "sample_weight": weights}

    def run(_):
        fit = {"shuffle": False}
        return fitted("doubled", data=data, epochs=1, sample_weight=True, train_metrics=True, metrics=["f1"], fit=fit)

    (alone,) = on_ranks(1, run)
    assert all(np.isfinite(record["loss"]) for record in alone[1])
    assert on_ranks(ranks, run) == [alone] * ranks


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_of_each_output_are_those_of_one_rank(weighted):
    """Of predictions that are gathered from all ranks, with the weights of their examples."""
    numbers = np.random.default_rng(3)
    data = {
        "x": numbers.standard_normal((60, 5)).astype(np.float32),
        "kind_target": numbers.integers(0, 3, 60),
        "size_of": numbers.standard_normal((60, 2)).astype(np.float32),
        **({"sample_weight": numbers.uniform(0, 2, 60).astype(np.float32)} if weighted else {}),
    }
    loss = {"kind": "softmax_cross_entropy", "size": gt.losses.mse("size_of")}

    def run(_):
        metrics = {"kind": ["f1"], "size": ["r2"]}
        made = gt.Trainer(two, loss, "adam", fleet=FleetSpec(SHARDS), metrics=metrics, sample_weight=weighted)
        history = made.fit(data, validation=data, epochs=1, batch_size=24, progress=False)
        return [{n: v for n, v in record.items() if n not in ("seconds", "examples_per_second")} for record in history]

    (alone,) = on_ranks(1, run)
    assert "val_kind_f1" in alone[0]
    assert on_ranks(2, run) == [alone] * 2


def test_means_over_an_epoch_count_batches_by_their_weights():
    """A batch that weighs nothing changes no mean: that of the epoch is the first one's, in shards and whole."""
    x, labels = examples(doubled, 96)
    weights = np.repeat([1.0, 0.0], 48)

    def run(fleet):
        made = gt.Trainer(doubled, "softmax_cross_entropy", gt.optim.SGD(0.1), fleet=fleet, sample_weight=True)
        data = {"x": x, "labels": labels, "sample_weight": weights}
        history = made.fit(data, epochs=1, batch_size=48, shuffle=False, progress=False)
        return [record["loss"] for record in history]

    whole = run(None)
    assert on_ranks(2, lambda _: run(FleetSpec(SHARDS))) == [pytest.approx(whole, rel=1e-12)] * 2
