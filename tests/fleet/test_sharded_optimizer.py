"""ZeRO-1: each rank updates slices of the parameters, with the bits of updates of the whole."""

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import CheckpointError, FleetError, InputError
from glowtrain.fleet.spec import FleetSpec
from tests.fleet.test_fleet_training import MODELS, SHARDS, dropped, examples
from tests.fleet.thread_ranks import on_ranks

OPTIMIZERS = {
    "sgd": lambda: gt.optim.SGD(0.1),
    "momentum": lambda: gt.optim.SGD(0.1, momentum=0.9, weight_decay=0.01, no_decay=gt.optim.vectors, accumulate=2),
    "adam": lambda: gt.optim.Adam(1e-2, clip_value=0.1, amsgrad=True),
    "clipped": lambda: gt.optim.Adam(1e-2, clip_norm=0.05),
    "adamw": lambda: gt.optim.AdamW(1e-2, schedule=gt.optim.Cosine(20)),
    "rmsprop": lambda: gt.optim.RMSProp(1e-2, momentum=0.9, centered=True),
    "adagrad": lambda: gt.optim.Adagrad(1e-2, lr_decay=0.1, initial=0.1),
    "adadelta": gt.optim.Adadelta,
    "nadam": gt.optim.NAdam,
    "radam": lambda: gt.optim.RAdam(1e-2),
    "adamax": gt.optim.Adamax,
    "lion": lambda: gt.optim.Lion(1e-3),
    "muon by adamw": lambda: gt.optim.Muon(1e-2, adamw=("*",)),
}


def trainer(
    name="dropped", optimizer="adam", *, sharded=True, bucket="4MB", timeout=60, gradients="f32", **settings
):  # fmt: skip
    fleet = FleetSpec(SHARDS, timeout=timeout, bucket=bucket, sharded_optimizer=sharded, gradients=gradients)
    model = MODELS[name] if isinstance(name, str) else name
    return gt.Trainer(model, "softmax_cross_entropy", OPTIMIZERS[optimizer](), fleet=fleet, **settings)


def fitted(name="dropped", optimizer="adam", epochs=2, fit=None, **settings):
    """All variables of a rank that has them as bytes, and the losses."""
    made = trainer(name, optimizer, **settings)
    history = made.fit(examples(MODELS[name], 150), epochs=epochs, batch_size=48, progress=False, **(fit or {}))
    common = made.fleet.common if made.fleet.fleet.ranks.rank else made.variables()
    return {n: v.tobytes() for n, v in common.items()}, [record["loss"] for record in history]


def assert_bits(whole, found):
    """Rank 0 has all of ``whole``, other ranks the same of what they have."""
    assert found[0] == whole
    for variables, losses in found[1:]:
        assert losses == whole[1]
        assert {"linear.weight", "linear.bias"} <= variables.keys() <= whole[0].keys()
        assert all(whole[0][name] == array for name, array in variables.items())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_slices_have_the_bits_of_the_whole(optimizer):
    (whole,) = on_ranks(1, lambda _: fitted(optimizer=optimizer, sharded=False))
    assert_bits(whole, on_ranks(3, lambda _: fitted(optimizer=optimizer)))


@pytest.mark.parametrize("optimizer", ["adam", "clipped"])
@pytest.mark.parametrize("name", MODELS)
def test_parameters_are_whole_where_gradients_are_in_bf16(name, optimizer):
    """Updated in f32, over gradients in slices, and whole ones with their norm; more ranks than some buckets fill."""
    (whole,) = on_ranks(1, lambda _: fitted(name, optimizer, sharded=False, gradients="bf16"))
    assert_bits(whole, on_ranks(8, lambda _: fitted(name, optimizer, bucket=100, gradients="bf16")))


def test_one_rank_has_one_slice():
    (whole,) = on_ranks(1, lambda _: fitted(sharded=False))
    assert on_ranks(1, lambda _: fitted()) == [whole]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("ranks", "bucket"), [(2, "1KB"), (8, 100), (8, "1GB")])
def test_any_number_of_ranks_types_and_buckets(name, ranks, bucket):
    (whole,) = on_ranks(1, lambda _: fitted(name, sharded=False))
    assert_bits(whole, on_ranks(ranks, lambda _: fitted(name, bucket=bucket)))


def test_scalars_groups_means_and_parts_of_parameters():
    @gt.model(x=gt.f32["batch", 20])
    def scaled(x):
        return gt.nn.linear(x, 5) * gt.nn.parameter("scale", (), gt.nn.ones)

    MODELS["scaled"] = scaled
    settings = {
        "groups": {"*.bias": {"lr_factor": 0.1}}, "regularize": {"linear.weight": gt.optim.L1(1e-2)},
        "constraints": {"linear.weight": gt.optim.NonNegative()}, "ema": 0.9,
    }  # fmt: skip
    try:
        for optimizer in ("clipped", "nadam"):
            for more in ({}, {"trainable": ["linear.weight[3:17, :3]", "scale"]}):
                given = {**(settings if not more else {"ema": 0.9}), **more, "optimizer": optimizer}
                (whole,) = on_ranks(1, lambda _, g=given: fitted("scaled", sharded=False, **g))
                assert_bits(whole, on_ranks(4, lambda _, g=given: fitted("scaled", **g)))
    finally:
        del MODELS["scaled"]


def test_a_rank_has_its_part_of_the_slots():
    def sizes(_):
        made = trainer()
        return {name: size for name, size in made.state.sizes.items() if ".adam." in name}, made.memory(48).optimizer

    whole, memory = on_ranks(1, sizes)[0]
    found = on_ranks(4, sizes)
    for name, size in whole.items():
        assert sum(each[name] for each, _ in found) == size
    assert sum(each for _, each in found) == pytest.approx(memory, abs=100)  # counters are everywhere
    assert max(each for _, each in found) < memory / 4 + 100


def test_checkpoints_are_those_of_any_number_of_ranks_with_or_without_slices(tmp_path):
    (whole,) = on_ranks(1, lambda _: fitted(epochs=4, sharded=False))
    path = tmp_path / "run.safetensors"
    steps = [(2, True, 1), (4, True, 2), (1, False, 3), (3, True, 4)]
    for ranks, sharded, epochs in steps:
        fit = {"checkpoint": path, "resume": path.exists(), "checkpoint_every": 2}
        found = on_ranks(ranks, lambda _, s=sharded, f=fit, e=epochs: fitted(epochs=e, sharded=s, fit=f))
    assert_bits(whole, found)


def test_the_best_checkpoint_is_written_whole(tmp_path):
    def run(_):
        best = gt.callbacks.BestCheckpoint(tmp_path / "best.safetensors", "loss")
        fitted(fit={"callbacks": [best]})

    on_ranks(2, run)

    def restored(_):
        made = trainer(sharded=False)
        made.restore(tmp_path / "best.safetensors")
        return np.any(made.variables()["linear.weight.adam.m"])

    assert on_ranks(1, restored) == [True]


def test_a_checkpoint_that_does_not_belong_is_refused_on_all(tmp_path):
    path = tmp_path / "run.safetensors"
    on_ranks(1, lambda _: fitted("normalised", fit={"checkpoint": path}))

    def run(rank):
        with pytest.raises(FleetError if rank else CheckpointError, match="does not belong to this training run"):
            trainer().restore(path)

    on_ranks(2, run)


def test_slices_are_read_after_they_were_gathered():
    def run(rank):
        made = trainer()
        x, labels = examples(dropped, 48)
        made.step({"x": x, "labels": labels})
        with pytest.raises(InputError, match=r"a slice of linear.weight.adam.m .* trainer.gather\(\) on all ranks"):
            made.variables()
        assert made.parameters().keys() == {"linear.weight", "linear.bias", "linear2.weight", "linear2.bias"}
        assert made.model().initial_values.keys() >= made.parameters().keys()
        made.gather()
        if rank == 0:
            assert np.any(made.variables()["linear.weight.adam.m"])
        made.step({"x": x, "labels": labels})
        with pytest.raises(InputError, match=r"trainer.gather\(\)"):
            made.variables()

    on_ranks(2, run)


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (gt.optim.Muon(), {}),
        (gt.optim.Adam(), {"constraints": {"linear.weight": gt.optim.MaxNorm(1.0, over=0)}}),
    ],
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_optimizers_that_need_whole_slots_are_refused_by_name(optimizer, settings, ranks):
    fleet = FleetSpec(SHARDS, sharded_optimizer=True)
    with pytest.raises(InputError, match=r"reads all of linear\.weight\.(muon\.momentum|adam\.m) for each element"):
        on_ranks(ranks, lambda _: gt.Trainer(dropped, "softmax_cross_entropy", optimizer, fleet=fleet, **settings))


def test_limits_of_norms_without_slots_are_those_of_the_whole():
    """What is read whole are gradients, which all ranks get then."""
    settings = {"constraints": {"linear.weight": gt.optim.MaxNorm(0.5, over=0)}}
    (whole,) = on_ranks(1, lambda _: fitted(optimizer="sgd", sharded=False, **settings))
    assert_bits(whole, on_ranks(3, lambda _: fitted(optimizer="sgd", **settings)))


def test_a_bad_loss_changes_nothing():
    def run(rank):
        made = trainer()
        made.gather()
        before = made.fleet.common
        x, labels = examples(dropped, 48)
        x[40, 3] = np.nan
        with pytest.raises(gt.errors.NonFiniteError, match="the first bad value is input 'x'"):
            made.step({"x": x, "labels": labels})
        made.gather()
        assert all(np.array_equal(before[name], array) for name, array in made.fleet.common.items())
        if rank == 0:
            assert not np.any(made.variables()["linear.weight.adam.m"])

    on_ranks(2, run)


def test_ranks_that_disagree_about_it_are_refused():
    def run(rank):
        with pytest.raises(FleetError, match="differs from rank 0 in 'sharded_optimizer'"):
            fitted(sharded=bool(rank))

    on_ranks(2, run)
