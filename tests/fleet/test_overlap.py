"""Gradients travel while others are computed, with the bits of those that travel when all are computed."""

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.fleet.communicator import FIRST, Pending
from glowtrain.fleet.spec import FleetSpec
from tests.fleet.test_fleet_training import dropped, examples, fitted, trainer
from tests.fleet.test_sharded_optimizer import assert_bits
from tests.fleet.test_sharded_optimizer import fitted as sliced
from tests.fleet.thread_ranks import local, on_ranks

SHARDS = 24


@gt.model(x=gt.f32["batch", 20])
def deep(x):
    for _ in range(4):
        x = gt.nn.relu(gt.nn.linear(x, 16))
    return gt.nn.linear(x, 5)


class Late(Pending):
    """Messages that arrive some looks later than they do, another number each time."""

    def __init__(self, pending, numbers):
        self.pending, self.looks = pending, int(numbers.integers(0, 12))

    def missing(self):
        self.looks -= 1
        return self.pending.missing() or ([0] if self.looks >= 0 else [])


def delayed(seed):
    """Delay this rank's messages."""
    exchange, numbers = local.ranks.exchange, np.random.default_rng(seed)
    local.ranks.exchange = lambda *arguments: Late(exchange(*arguments), numbers)


@pytest.mark.parametrize(
    ("ranks", "bucket", "optimizer"), [(2, 100, "clipped"), (3, "1KB", "accumulated"), (4, 100, "scheduled")]
)
def test_overlap_and_late_messages_change_nothing(ranks, bucket, optimizer):
    """Also an uneven last batch, of 6 examples for 24 shards."""

    def run(rank, overlap):
        delayed(rank)
        return fitted("normalised", optimizer, epochs=1, fleet=FleetSpec(SHARDS, bucket=bucket, overlap=overlap))

    (alone,) = on_ranks(1, lambda _: fitted("normalised", optimizer, epochs=1))
    for overlap in (True, False):
        assert on_ranks(ranks, lambda rank, o=overlap: run(rank, o)) == [alone] * ranks


def test_late_messages_of_slices_change_nothing():
    def run(rank):
        delayed(rank)
        return sliced("normalised", "clipped", bucket=100)

    (whole,) = on_ranks(1, lambda _: sliced("normalised", "clipped", sharded=False))
    assert_bits(whole, on_ranks(3, run))


def test_ranks_without_rows_of_a_batch_leave_nothing_unfinished():
    """Of the last batch, of 6 examples for 24 shards, rank 1 has none; a run that leaves messages refuses the next."""

    def run(_):
        made = trainer()
        for _ in range(2):
            made.fit(examples(dropped, 54), epochs=1, batch_size=48, progress=False)

    on_ranks(2, run)


def events(overlap, shards=2, ranks=2):
    """What rank 0 does in a step: ``send`` a bucket, or end a segment that completes so many gradients."""

    def run(rank):
        made = trainer(deep, fleet=FleetSpec(shards, bucket=1, overlap=overlap))
        x, labels = examples(deep, 8)
        made.step({"x": x, "labels": labels})
        seen, exchange, write = [], local.ranks.exchange, made.fleet.step.shard.write

        def sending(sent, received, tag):
            if tag >= FIRST and tag % 2 == 0 and any(array is not None for array in sent):
                seen.append("send")
            return exchange(sent, received, tag)

        def writing(inputs, outputs, completed):
            def noted(names):
                seen.append(sum(name in made.fleet.step.step.gradients for name in names))
                completed(names)

            write(inputs, outputs, noted)

        local.ranks.exchange, made.fleet.step.shard.write = sending, writing
        made.step({"x": x, "labels": labels})
        return seen

    return on_ranks(ranks, run)[0]


def test_a_bucket_is_sent_as_soon_as_it_is_complete():
    """Buckets of a gradient each: behind each segment those that it has completed."""
    seen = events(overlap=True)
    assert seen.count("send") == 10
    for at, each in enumerate(seen):
        if each != "send":
            following = next((n for n, other in enumerate(seen[at + 1 :]) if other != "send"), len(seen) - at - 1)
            assert following == each
    assert seen.index("send") < len(seen) // 2


def test_only_a_ranks_last_shard_of_a_subtree_sends():
    seen = events(overlap=True, shards=4)
    half = [at for at, each in enumerate(seen) if each != "send"]
    assert seen.index("send") > half[len(half) // 2 - 1]
    assert seen.count("send") == 10


def test_without_overlap_all_are_sent_when_all_are_computed():
    assert events(overlap=False) == [10, *["send"] * 10]
