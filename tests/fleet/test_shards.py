"""Rows, shards and the tree of their sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glowtrain.errors import InputError
from glowtrain.fleet.shards import Share, covering, fold, last_shard


@st.composite
def shares(draw):
    ranks = draw(st.integers(1, 12))
    return Share(ranks * draw(st.integers(1, 6)), draw(st.integers(0, ranks - 1)), ranks)


def text(shards):
    """A sum as the text of its additions."""
    return lambda node: str(node[0]) if node[1] - node[0] == 1 and node[0] in shards else None


def added(left, right):
    return f"({left}+{right})"


@given(shares(), st.integers(1, 200))
def test_partial_sums_of_ranks_are_subtrees_of_one_sum(share, examples):
    """Whatever ranks have added up, the whole is the same expression: the order of additions is the tree's."""
    present = share.present(examples, range(share.shards))
    whole = fold((0, share.shards), text(present), added)
    partial = {}
    for rank in range(share.ranks):
        own = share.present(examples, share.of(rank))
        partial |= {node: fold(node, text(own), added) for node in share.nodes(rank, examples)}
    assert None not in partial.values()
    assert fold((0, share.shards), partial.get, added) == whole


@given(shares(), st.integers(1, 200))
def test_the_last_shard_of_a_node_comes_after_the_sums_of_all_others(share, examples):
    """The whole is the same expression, to which the last shard that has rows is added at the end of its way down."""
    for node in share.nodes(share.rank, examples):
        present = share.present(examples, range(*node))
        before, last = last_shard(node, present)
        assert last == (present[-1], present[-1] + 1)
        total = text(present)(last)
        for left in reversed(before):
            total = added(fold(left, text(present), added), total)
        assert total == fold(node, text(present), added)


@given(shares(), st.integers(1, 200))
def test_shards_have_all_rows_once_and_nearly_equally_many(share, examples):
    rows = [share.rows(examples, range(shard, shard + 1)) for shard in range(share.shards)]
    found = [row for each in rows for row in range(examples)[each]]
    assert found == list(range(examples))
    sizes = [each.stop - each.start for each in rows]
    assert max(sizes) - min(sizes) <= 1
    assert sizes == sorted(sizes, reverse=True)


@given(shares(), st.integers(1, 200))
def test_a_ranks_rows_are_those_of_its_shards(share, examples):
    own = share.rows(examples, share.local)
    parts = [share.rows(examples, range(shard, shard + 1)) for shard in share.local]
    assert list(range(examples))[own] == [row for part in parts for row in range(examples)[part]]


@given(st.integers(1, 64), st.integers(0, 63), st.integers(1, 64))
def test_covering_nodes_are_the_largest_and_cover_just_the_own_shards(shards, first, count):
    own = range(min(first, shards - 1), min(first + count, shards))
    nodes = list(covering((0, shards), own))
    assert [shard for node in nodes for shard in range(*node)] == list(own)
    assert len(nodes) <= 2 * max(1, shards.bit_length())


def test_ranks_that_do_not_divide_the_shards_are_refused_with_what_would_do():
    with pytest.raises(InputError, match=r"16 shards cannot be shared out evenly to 3 ranks.*e\.g\. 18"):
        Share(16, 0, 3)
