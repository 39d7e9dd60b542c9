"""Partitions in words and as pictures."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.errors import CheckpointError, InputError
from glowtrain.runtime.partition.drawing import draw
from glowtrain.runtime.partition.partition import Partition
from glowtrain.runtime.partition.text import crossings
from tests.compiler.networks import mlp, step_of
from tests.runtime.partition.cutting_models import cut_at


@pytest.fixture(scope="module")
def partition() -> Partition:
    random = np.random.default_rng(3)
    x, labels = random.normal(size=(4, 1, 8, 8)).astype(np.float32), random.integers(0, 10, 4)
    graph, _ = step_of(mlp, gt.optim.SGD(0.1), x=x, labels=labels)
    return cut_at(graph, [2], "interpreter")


def test_text_has_parts_and_what_passes(partition: Partition) -> None:
    lines = str(partition).splitlines()
    assert lines[0] == "partition mlp.step: 2 stages, 3 parts"
    assert lines[1].split() == ["part", "stage", "nodes", "variables", "constants", "takes", "gives", "estimated"]
    assert lines[2].split()[:2] == ["stage0.1", "0"]
    assert "  stage0.1 -> stage1: 1 value, 384 bytes" in lines
    assert any(re.fullmatch(r" {4}\S+ f32\[4,24\], 384 bytes", line) for line in lines)
    assert any(re.fullmatch(r" {4}\S+ bool\[\], 1 bytes", line) for line in lines)


def test_crossings_name_every_value_that_passes(partition: Partition) -> None:
    passed = {(c.taker.name, name) for c in crossings(partition) for name in c.values}
    assert passed == {
        (part.name, name) for part in partition.parts for name in part.takes if name not in partition.inputs
    }


@pytest.mark.spread(1)
@pytest.mark.parametrize("ending", ["svg", "png", "html"])
def test_pictures(ending: str, partition: Partition, tmp_path: Path) -> None:
    """The same partition, the same bytes."""
    first, second = tmp_path / f"a.{ending}", tmp_path / f"b.{ending}"
    draw(partition, first)
    draw(partition, second)
    data = first.read_bytes()
    assert data == second.read_bytes()
    if ending == "png":
        assert data.startswith(b"\x89PNG")
    else:
        text = data.decode()
        assert all(part.name in text for part in partition.parts)
        assert "384 bytes" in text
        assert ("stage0.1 -&gt; stage1" in text) == (ending == "html")


def test_files_that_cannot_be_drawn(partition: Partition, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"whose name ends in one of \.html, \.png, \.svg"):
        draw(partition, tmp_path / "a.pdf")
    with pytest.raises(CheckpointError):
        draw(partition, tmp_path / "missing" / "a.svg")
