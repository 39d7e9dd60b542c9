"""Training on several ranks has the bits of training on one."""

import math
import threading
from copy import deepcopy

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import CheckpointError, FleetError, InputError, NonFiniteError
from glowtrain.fleet.spec import FleetSpec
from tests.fleet.thread_ranks import local, on_ranks

SHARDS = 24
RANKS = (2, 3, 4, 8)


@gt.model(x=gt.f32["batch", 20])
def dropped(x):
    """Dropout, whose masks are those of a shard."""
    return gt.nn.linear(gt.nn.dropout(gt.nn.relu(gt.nn.linear(x, 31)), 0.3), 5)


@gt.model(x=gt.f32["batch", 1, 6, 6])
def normalised(x):
    """BatchNormalization, whose statistics are those of a shard."""
    x = gt.nn.relu(gt.nn.batch_norm(gt.nn.conv(x, 4, 3)))
    return gt.nn.linear(gt.nn.flatten(x), 5)


@gt.model(x=gt.f64["batch", 20])
def doubled(x):
    return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 7)), 5)


@gt.model(x=gt.bf16["batch", 20])
def narrow(x):
    return gt.nn.linear(gt.nn.tanh(gt.nn.linear(x, 7)), 5)


MODELS = {"dropped": dropped, "normalised": normalised, "doubled": doubled, "narrow": narrow}
OPTIMIZERS = {
    "clipped": lambda: gt.optim.Adam(1e-2, clip_norm=0.5),
    "accumulated": lambda: gt.optim.SGD(0.1, momentum=0.9, accumulate=2),
    "scheduled": lambda: gt.optim.AdamW(1e-2, schedule=gt.optim.Cosine(20)),
}


def examples(model, count, seed=0):
    (spec,) = model.inputs.values()
    numbers = np.random.default_rng(seed)
    x = numbers.standard_normal((count, *spec.shape[1:])).astype(spec.dtype.numpy)
    return x, numbers.integers(0, 5, count)


def trainer(name="dropped", optimizer="clipped", loss=None, **settings):
    arithmetic = {name: settings.pop(name) for name in ("bucket", "gradients") if name in settings}
    fleet = settings.pop("fleet", FleetSpec(SHARDS, **arithmetic))
    model = MODELS[name] if isinstance(name, str) else name
    return gt.Trainer(model, loss or "softmax_cross_entropy", OPTIMIZERS[optimizer](), fleet=fleet, **settings)


def fitted(
    name="dropped", optimizer="clipped", count=150, epochs=2, batch_size=48, data=None, loss=None, fit=None, **settings
):
    """Everything that training on a rank leads to: variables as bytes, and records without times."""
    made = trainer(name, optimizer, loss, **settings)
    history = made.fit(
        data or examples(MODELS[name], count), validation=examples(MODELS[name], 70, 1), epochs=epochs,
        batch_size=batch_size, progress=False, **(fit or {}),
    )  # fmt: skip
    records = [{n: v for n, v in record.items() if n not in ("seconds", "examples_per_second")} for record in history]
    return {n: v.tobytes() for n, v in made.variables().items()}, records


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", MODELS)
def test_any_number_of_ranks_has_the_bits_of_one(name, ranks):
    """Also an uneven last batch, of 6 examples for 24 shards, validation, and metrics of all predictions."""
    (alone,) = on_ranks(1, lambda _: fitted(name, metrics=["f1"]))
    assert on_ranks(ranks, lambda _: fitted(name, metrics=["f1"])) == [alone] * ranks


@pytest.mark.parametrize("name", MODELS)
def test_gradients_in_bf16_have_the_bits_of_one_rank(name):
    (alone,) = on_ranks(1, lambda _: fitted(name, gradients="bf16"))
    for ranks in RANKS:
        assert on_ranks(ranks, lambda _: fitted(name, gradients="bf16")) == [alone] * ranks
    (exact,) = on_ranks(1, lambda _: fitted(name))
    losses, others = ([record["loss"] for record in records] for _, records in (alone, exact))
    np.testing.assert_allclose(losses, others, rtol=5e-3)
    assert (alone == exact) is (name == "doubled"), "gradients of f64 are not narrowed"


def test_gradients_in_bf16_are_rounded_at_each_sum_of_the_tree():
    """Of four shards whose gradients are 1, 1/256, 1/256 and 1/256: the sum of the first two is rounded to even."""

    @gt.model(x=gt.f32["batch", 1])
    def scaled(x):
        return gt.nn.linear(x, 1, bias=False, name="layer")

    def run(_):
        fleet = FleetSpec(4, gradients="bf16")
        made = gt.Trainer(scaled, "mse", gt.optim.SGD(1.0), fleet=fleet)
        made.set_variables({"layer.weight": np.zeros((1, 1), np.float32)})
        wanted = np.float32([[1.0], [1 / 256], [1 / 256], [1 / 256]])
        made.step({"x": np.ones((4, 1), np.float32), "target": -2 * wanted})
        return made.variables()["layer.weight"].item()

    assert on_ranks(2, run) == on_ranks(1, run) * 2 == [-1.0078125] * 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("bucket", ["1KB", 100, "1GB"])
def test_buckets_and_optimizers_change_nothing_about_it(optimizer, bucket):
    (alone,) = on_ranks(1, lambda _: fitted("normalised", optimizer))
    assert on_ranks(3, lambda _: fitted("normalised", optimizer, bucket=bucket)) == [alone] * 3


def test_shards_and_augmented_examples_are_those_of_one(tmp_path):
    x, y = examples(dropped, 150)
    for number, part in enumerate(np.array_split(np.arange(150), 4)):
        np.save(tmp_path / f"x-{number}.npy", x[part])
        np.save(tmp_path / f"y-{number}.npy", y[part])
    for fit in ({}, {"augment": ["noise"]}):
        (alone,) = on_ranks(1, lambda _, fit=fit: fitted(data=gt.data.shards(tmp_path), fit=fit))
        assert on_ranks(3, lambda _, fit=fit: fitted(data=gt.data.shards(tmp_path), fit=fit)) == [alone] * 3


def test_metrics_of_training_and_sums_as_losses_are_those_of_one():
    def run(_):
        loss = gt.losses.softmax_cross_entropy(reduction="sum")
        return fitted("normalised", loss=loss, train_metrics=True)

    (alone,) = on_ranks(1, run)
    assert "train_accuracy" in alone[1][0]
    assert on_ranks(4, run) == [alone] * 4


def test_groups_penalties_constraints_means_and_balanced_classes_are_those_of_one():
    settings = {
        "groups": {"*.bias": {"lr_factor": 0.1}},
        "regularize": {"linear.weight": gt.optim.L1(1e-2)},
        "constraints": {"linear2.weight": gt.optim.MaxNorm(0.5)},
        "ema": 0.9,
        "loss": gt.losses.softmax_cross_entropy(class_weight="balanced"),
    }
    (alone,) = on_ranks(1, lambda _: fitted(**settings))
    (plain,) = on_ranks(1, lambda _: fitted())
    assert all(alone[0][name] != plain[0][name] for name in plain[0] if name.endswith(("weight", "bias")))
    assert on_ranks(3, lambda _: fitted(**settings)) == [alone] * 3


def test_parts_of_parameters_are_trained_as_on_one():
    def run(_):
        return fitted(trainable=["linear.weight[:, :3]", "linear2.*"])

    (alone,) = on_ranks(1, run)
    assert on_ranks(2, run) == [alone] * 2


def test_batches_of_a_loader_are_shared_out():
    def run(_):
        batches = [examples(dropped, 48, seed) for seed in range(3)]
        return fitted(data=batches, batch_size=None)

    (alone,) = on_ranks(1, run)
    assert on_ranks(4, run) == [alone] * 4


def test_a_step_on_a_whole_batch_is_the_one_that_fit_makes():
    def step(_):
        made = trainer()
        x, labels = examples(dropped, 48)
        losses = [made.step({"x": x, "labels": labels}) for _ in range(3)]
        return losses, {n: v.tobytes() for n, v in made.variables().items()}

    (alone,) = on_ranks(1, step)
    assert on_ranks(3, step) == [alone] * 3


def test_shards_are_close_to_the_whole_batch():
    """Without dropout and statistics a step in shards differs from the whole by rounding alone."""
    x, labels = examples(doubled, 50)

    def run(fleet):
        made = trainer("doubled", fleet=fleet)
        losses = [made.step({"x": x, "labels": labels}) for _ in range(5)]
        return losses, made.parameters()

    whole_losses, whole = run(None)
    for losses, parameters in on_ranks(2, lambda _: run(FleetSpec(SHARDS))):
        np.testing.assert_allclose(losses, whole_losses, rtol=1e-12)
        for name, array in parameters.items():
            np.testing.assert_allclose(array, whole[name], rtol=1e-9, atol=1e-12)


# --- files, callbacks, going on ---------------------------------------------------------------------------------------


def test_a_checkpoint_is_written_by_one_rank_and_goes_on_with_any_number(tmp_path):
    (alone,) = on_ranks(1, lambda _: fitted(epochs=4))
    path = tmp_path / "run.safetensors"
    on_ranks(2, lambda _: fitted(epochs=2, fit={"checkpoint": path, "log": tmp_path / "log.jsonl"}))
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 2
    assert on_ranks(4, lambda _: fitted(epochs=4, fit={"checkpoint": path, "resume": True})) == [alone] * 4


@pytest.mark.parametrize(("written", "here"), [(24, 12), (24, None), (None, 24)])
def test_a_checkpoint_of_another_number_of_shards_is_refused(tmp_path, written, here):
    """``None``: without a fleet."""

    def fit(shards, resume):
        fleet = None if shards is None else FleetSpec(shards)
        return fitted(fit={"checkpoint": tmp_path / "run.safetensors", "resume": resume}, fleet=fleet)

    on_ranks(1, lambda _: fit(written, resume=False))
    with pytest.raises(CheckpointError, match=f"number of shards differs: '{written or 1}' .*, '{here or 1}' here"):
        on_ranks(1, lambda _: fit(here, resume=True))


def test_a_checkpoint_of_gradients_in_another_type_is_refused(tmp_path):
    def fit(gradients, resume):
        return fitted(fit={"checkpoint": tmp_path / "run.safetensors", "resume": resume}, gradients=gradients)

    on_ranks(1, lambda _: fit("bf16", resume=False))
    with pytest.raises(CheckpointError, match="number of shards differs: '24, gradients in bf16' .*, '24' here"):
        on_ranks(1, lambda _: fit("f32", resume=True))
    on_ranks(2, lambda _: fit("bf16", resume=True))


def test_what_one_rank_wants_to_stop_stops_all():
    def run(rank):
        def stop(moment):
            if rank == 1 and moment.batch == 2:
                moment.stop("rank 1 has had enough")

        made = trainer()
        history = made.fit(examples(dropped, 150), epochs=3, batch_size=48, progress=False, callbacks=[stop])
        return made.position.batch, history.stopped

    assert on_ranks(3, run) == [(2, "rank 1 has had enough")] * 3


def test_callbacks_that_write_are_rank_0s(tmp_path):
    def run(rank):
        made = trainer()
        folder = tmp_path / str(rank)
        folder.mkdir()
        callbacks = [
            gt.callbacks.CSV(folder / "log.csv"),
            gt.callbacks.BestCheckpoint(folder / "best.safetensors", "loss"),
        ]
        made.fit(examples(dropped, 48), epochs=1, batch_size=48, progress=False, callbacks=callbacks)
        return sorted(path.name for path in folder.iterdir())

    assert on_ranks(2, run) == [["best.safetensors", "log.csv"], []]


def test_memory_and_summary_are_those_of_a_shard():
    def run(_):
        made = trainer()
        assert "linear" in str(made.summary(48))
        shard, whole = made.memory(48), trainer(fleet=None).memory(48)
        return shard.arena < whole.arena

    assert on_ranks(2, run) == [True] * 2


def test_threads_are_a_ranks_share_of_the_cores():
    counts = on_ranks(2, lambda _: trainer().fleet.fleet.threads)
    assert counts[0] == counts[1]
    assert counts[0] >= 1


# --- what goes wrong --------------------------------------------------------------------------------------------------


def test_ranks_with_other_data_seeds_or_models_are_refused_on_all():
    def data(rank):
        with pytest.raises(FleetError, match=r"rank 1 on .* differs from rank 0 in .data"):
            fitted(data=examples(dropped, 150, rank))

    def seed(rank):
        with pytest.raises(FleetError, match="differs from rank 0 in .*seed"):
            fitted(seed=rank)

    def model(rank):
        with pytest.raises(FleetError, match="differs from rank 0 in .*optimizer"):
            fitted(optimizer="clipped" if rank else "accumulated")

    def shards(rank):
        with pytest.raises(FleetError, match="differs from rank 0 in .shards"):
            fitted(fleet=FleetSpec(24 if rank else 12))

    for check in (data, seed, model, shards):
        on_ranks(2, check)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("bucket", (100, 200)),
        ("metrics", (["f1"], False)),
        ("train_metrics", (True, False)),
        ("residuals", ("bf16", None)),
        ("precision", ("bf16", None)),
        ("freeze_statistics", (True, False)),
    ],
)
def test_settings_that_differ_are_refused_on_all(name, values):
    def run(rank):
        with pytest.raises(FleetError, match=f"rank 1 on .* differs from rank 0 in '{name}'"):
            fitted(**{name: values[rank]})

    on_ranks(2, run)


@pytest.mark.parametrize(
    ("name", "values"), [("patience", (1, 2)), ("steps_per_epoch", (1, 2)), ("resume", (True, False))]
)
def test_arguments_of_fit_that_differ_are_refused_on_all(tmp_path, name, values):
    def run(rank):
        with pytest.raises(FleetError, match=f"rank 1 on .* differs from rank 0 in '{name}'"):
            fitted(fit={"checkpoint": tmp_path / "run.safetensors", name: values[rank]})

    on_ranks(2, run)


def test_validation_data_that_differ_are_refused_on_all():
    def run(rank, data):
        with pytest.raises(FleetError, match="rank 1 on .* differs from rank 0 in 'validation'"):
            trainer().fit(examples(dropped, 48), epochs=1, batch_size=48, progress=False, validation=data)

    on_ranks(2, lambda rank: run(rank, examples(dropped, 70, rank)))
    on_ranks(2, lambda rank: run(rank, [examples(dropped, 70, rank)]))
    on_ranks(2, lambda rank: run(rank, [examples(dropped, 70)] * (1 + rank)))


@pytest.mark.parametrize(
    ("batches", "which"),
    [
        (lambda rank: [examples(dropped, 48, rank)], "batch 1 of epoch 1"),
        (lambda rank: [examples(dropped, 48 + rank)], "batch 1 of epoch 1"),
        (lambda rank: [examples(dropped, 48)] * (1 + rank), "batch 2 of epoch 1"),
    ],
)
def test_batches_of_loaders_that_differ_are_refused_on_all(batches, which):
    def run(rank):
        with pytest.raises(FleetError, match=f"differs from rank 0 in '{which}'"):
            trainer().fit(batches(rank), epochs=2, progress=False)

    on_ranks(2, run)


def test_steps_on_other_batches_or_of_other_trainers_are_refused_on_all():
    def batch(rank):
        x, labels = examples(dropped, 48, rank)
        with pytest.raises(FleetError, match="differs from rank 0 in 'the batch'"):
            trainer().step({"x": x, "labels": labels})

    def seed(rank):
        x, labels = examples(dropped, 48)
        with pytest.raises(FleetError, match="differs from rank 0 in 'seed'"):
            trainer(seed=rank).step({"x": x, "labels": labels})

    on_ranks(2, batch)
    on_ranks(2, seed)


def test_what_a_callback_changes_on_one_rank_alone_is_refused_on_all():
    class Rate:
        def on_epoch_end(self, moment):
            if moment.trainer.fleet.first:
                moment.trainer.lr *= 0.5

    class Bias:
        def on_epoch_end(self, moment):
            if moment.trainer.fleet.first:
                moment.trainer.set_variables({"linear.bias": np.ones(31, np.float32)})

    def run(callback, said):
        with pytest.raises(FleetError, match=said):
            trainer().fit(examples(dropped, 48), epochs=2, batch_size=48, progress=False, callbacks=[callback])

    on_ranks(2, lambda _: run(Rate(), "rank 1 has other hyperparameters than rank 0"))
    on_ranks(2, lambda _: run(Bias(), "rank 1 on .* differs from rank 0 in 'variables'"))


def test_a_rank_that_stops_before_the_first_batch_stops_all():
    class Stop:
        def on_train_begin(self, moment):
            if not moment.trainer.fleet.first:
                moment.stop("not today")

    def run(_):
        made = trainer()
        return made.fit(examples(dropped, 48), batch_size=48, progress=False, callbacks=[Stop()]).stopped

    assert on_ranks(2, run) == ["not today"] * 2


def test_a_checkpoint_that_rank_0_cannot_read_is_an_error_of_all(tmp_path):
    def run(rank):
        with pytest.raises(FleetError if rank else CheckpointError, match="none.safetensors: no such file"):
            trainer().restore(tmp_path / "none.safetensors")

    on_ranks(2, run)


def test_a_copy_is_made_without_the_other_ranks():
    def run(rank):
        made = trainer(fleet=FleetSpec(SHARDS, timeout=5))
        copy = deepcopy(made) if rank == 0 else None
        made.fit(examples(dropped, 48), epochs=1, batch_size=48, progress=False)
        return copy is None or made.parameters().keys() == copy.parameters().keys()

    assert on_ranks(2, run) == [True, True]


def test_trainers_after_a_bad_loss_are_not_told_of_it():
    def run(_):
        x, labels = examples(dropped, 48)
        with pytest.raises(NonFiniteError):
            trainer().fit((np.full_like(x, np.nan), labels), epochs=1, batch_size=48, progress=False)
        assert not local.ranks.threads.failures[local.ranks.rank]  # others may not have found it themselves yet
        return fitted()

    (alone,) = on_ranks(1, run)
    assert on_ranks(3, run) == [alone] * 3


def test_after_a_failure_of_one_rank_alone_none_goes_on():
    """Messages of the step that others were waiting for would be taken for those of the next run."""

    def run(rank):
        def fail(moment):
            if rank == 1:
                raise RuntimeError("the disk is full")

        with pytest.raises(RuntimeError if rank == 1 else FleetError):
            trainer().fit(examples(dropped, 48), epochs=3, batch_size=48, progress=False, callbacks=[fail])
        with pytest.raises(FleetError, match="cannot go on after what failed: start all ranks anew"):
            trainer().fit(examples(dropped, 48), epochs=3, batch_size=48, progress=False)

    on_ranks(3, run)


def test_an_error_of_one_rank_is_one_of_all():
    def run(rank):
        def fail(moment):
            if rank == 2:
                raise RuntimeError("the disk is full")

        made = trainer()
        made.fit(examples(dropped, 150), epochs=3, batch_size=48, progress=False, callbacks=[fail])

    seen = []

    def noted(rank):
        try:
            run(rank)
        except (FleetError, RuntimeError) as error:
            seen.append((rank, str(error)))

    on_ranks(3, noted)
    assert sorted(seen)[2] == (2, "the disk is full")
    for rank, text in sorted(seen)[:2]:
        assert rank < 2
        assert "rank 2 on " in text
        assert "the disk is full" in text


def test_failures_of_an_earlier_run_are_past():
    def run(rank):
        made = trainer()
        x, labels = examples(dropped, 48)
        for _ in range(2):
            with pytest.raises(NonFiniteError):
                made.fit((np.full_like(x, np.nan), labels), epochs=1, batch_size=48, progress=False)
        made.fit((x, labels), epochs=1, batch_size=48, progress=False)
        return made.variables()["linear.bias"].tobytes()

    first, second = on_ranks(2, run)
    assert first == second


def test_a_bad_loss_names_shard_rank_and_value_and_updates_nothing():
    def run(rank):
        made = trainer()
        before = {n: v.tobytes() for n, v in made.variables().items()}
        x, labels = examples(dropped, 48)
        x[40, 3] = np.nan
        with pytest.raises(
            NonFiniteError, match=r"the loss is nan: shard 20 \(rank 1\): the first bad value is input 'x'"
        ):
            made.fit((x, labels), epochs=1, batch_size=48, shuffle=False, progress=False)
        assert {n: v.tobytes() for n, v in made.variables().items()} == before

    on_ranks(2, run)


def test_a_rank_that_does_not_come_is_named_when_time_is_up():
    def run(rank):
        if rank == 1:
            threading.Event().wait(0.5)
            return
        with pytest.raises(FleetError, match=r"rank 0 on .* has waited .* for rank 1 .*timeout= .* is 0\.2 seconds"):
            trainer(fleet=FleetSpec(SHARDS, timeout=0.2)).fit(examples(dropped, 48), epochs=1, batch_size=48)

    on_ranks(2, run)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"shards": 0}, "shards must be a whole number of at least 1, not 0"),
        ({"gradients": "f16"}, "gradients must be f32 or bf16, not 'f16'"),
        ({"shards": 2.5}, "shards must be a whole number"),
        ({"timeout": 0}, "timeout must be a number of seconds above 0"),
        ({"timeout": math.nan}, "timeout must be a number of seconds above 0"),
        ({"bucket": "many"}, "bucket"),
        ({"bucket": 0}, "bucket"),
    ],
)
def test_settings_of_a_fleet_that_make_no_sense(settings, match):
    with pytest.raises(InputError, match=match):
        gt.fleet.mpi(**settings)


def test_batches_smaller_than_the_shards_are_refused():
    with pytest.raises(InputError, match=r"a batch of 16 has fewer examples than shards=24"):
        on_ranks(2, lambda _: fitted(batch_size=16))


def test_micro_batches_and_fixed_batches_are_refused():
    with pytest.raises(InputError, match="shards are parts of a batch already"):
        on_ranks(1, lambda _: trainer(micro_batches=2))

    @gt.model(x=gt.f32[48, 20])
    def fixed(x):
        return gt.nn.linear(x, 5)

    with pytest.raises(InputError, match="cannot be trained in a fleet: the first axis of all inputs"):
        on_ranks(1, lambda _: trainer(fixed))


def test_a_fleet_is_a_setting_and_no_process_of_it_is_copied():
    def run(_):
        made = trainer()
        assert made.fleet.fleet.ranks is local.ranks
        assert made.spec.fleet == gt.fleet.mpi(shards=SHARDS)

    on_ranks(1, run)
