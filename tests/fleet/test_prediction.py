"""What a step will take on a number of ranks."""

import re

import pytest

from glowtrain.errors import InputError
from glowtrain.fleet.prediction import NETWORKS, Interconnect, SlicedCosts, StepCosts, network_of
from glowtrain.fleet.shards import Share
from tests.cli.commands import done, refused

FREE = Interconnect(0.0, 1e30)


def test_without_messages_ranks_share_the_shards():
    costs = StepCosts(shard=1.0, add=0.0, update=0.5, nbytes=0, buckets=0)
    for ranks in (1, 2, 4, 8):
        assert costs.step(Share(8, 0, ranks), 64, FREE) == pytest.approx(8 / ranks + 0.5, abs=1e-3)


def test_bytes_are_those_of_a_ring_where_ranks_have_a_subtree_each():
    costs = StepCosts(0.0, 0.0, 0.0, nbytes=1_000_000, buckets=1)
    slow = Interconnect(0.0, 1e3)
    for ranks in (2, 4, 8):
        assert costs.messages(Share(8, 0, ranks), 64, slow) == pytest.approx(2 * 1000 * (ranks - 1) / ranks, rel=1e-3)
    assert costs.messages(Share(24, 0, 3), 64, slow) > 2 * 1000 * 2 / 3  # several subtrees, of which each travels
    assert costs.messages(Share(8), 64, slow) == 0


def test_ranks_make_their_slice_of_the_update_and_gather_what_norms_need():
    def costs(**sliced):
        return StepCosts(1.0, 0.0, 0.5, nbytes=1_000_000, buckets=1, sliced=SlicedCosts(slots=0, **sliced))

    slow, share = Interconnect(0.0, 1e3), Share(8, 0, 4)
    of_slices = costs(whole_gradients=False)
    assert of_slices.messages(share, 64, slow) == pytest.approx(2 * 1000 * 3 / 4, rel=1e-3)
    assert costs(whole_gradients=True).messages(share, 64, slow) == pytest.approx(3 * 1000 * 3 / 4, rel=1e-3)
    assert of_slices.step(share, 64, FREE) == pytest.approx(2 + 0.5 / 4, abs=1e-3)
    assert of_slices.step(Share(8), 64, FREE) == 8.5


@pytest.mark.parametrize("text", ["", "fast", "1:", "1:0", "1:2:3", "1.2.3:4"])
def test_what_is_no_network_is_refused(text):
    with pytest.raises(InputError, match="a network is 'memory', .*or LATENCY:BANDWIDTH"):
        network_of(text)


def test_networks_by_name_and_by_numbers():
    assert network_of("10gbe") is NETWORKS["10gbe"]
    assert network_of("20:1.5") == Interconnect(20e-6, 1.5e9)


def test_the_command_prints_a_row_for_each_number_of_ranks():
    said = done("fleet", "plan", "mlp", "--batch-size", "48", "--shards", "12", "--runs", "1", "--optimizer", "adamw")
    rows = [
        [float(n.replace(",", "").rstrip("%")) for n in line.split()]
        for line in said.splitlines()
        if re.match(r" +\d", line)
    ]
    assert [row[0] for row in rows] == [1, 2, 3, 4, 6, 12]
    assert rows[0][2] == 0
    assert rows[0][4:] == [1, 100]
    assert all(took / 1e3 * rate == pytest.approx(48, rel=0.02) for _, took, _, rate, *_ in rows)
    assert all(messages > 0 for _, _, messages, *_ in rows[1:])


def test_the_command_says_what_ranks_keep_of_the_optimizer():
    """Adam has two slots of each parameter, of the size of its gradient."""
    plan = "fleet", "plan", "mlp", "--batch-size", "48", "--shards", "4", "--runs", "1", "--fleet-sharded-optimizer"
    said = done(*plan, "--optimizer", "adam")
    gradients, slots = (
        float(re.search(rf"([\d.]+) MB of {of}", said)[1]) for of in ("gradients", "the optimizer's slots")
    )
    assert slots == pytest.approx(2 * gradients, rel=0.01)
    rows = [line.split() for line in said.splitlines() if re.match(r" +\d", line)]
    assert [float(row[-1]) for row in rows] == pytest.approx([slots, slots / 2, slots / 4], rel=0.01)
    assert "reads all of" in refused(*plan, "--optimizer", "muon")


def test_the_command_says_what_cannot_be_planned():
    plan = "fleet", "plan", "mlp", "--batch-size"
    assert "12 shards cannot be shared out evenly to 5 ranks" in refused(*plan, "48", "--shards", "12", "--ranks", "5")
    assert "a batch of 8 has fewer examples than shards=16" in refused(*plan, "8")
    assert "a network is 'memory'" in refused(*plan, "48", "--network", "string")
