"""What is written for emulated boards; they run in tests/targets."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import glowtrain as gt
from glowtrain.bundles.devices.boards import BOARDS
from glowtrain.errors import BundleError


@gt.model(x=gt.f32[2, 3])
def network(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 4)


@gt.model(x=gt.f32["n", 3])
def opened(x: gt.Value) -> gt.Value:
    return gt.nn.linear(x, 4)


@pytest.mark.parametrize("name", BOARDS)
def test_a_board_chooses_its_processor_and_brings_what_it_needs(name: str, tmp_path: Path) -> None:
    made = gt.bundle(network, tmp_path, board=name, ram=64 << 10)
    assert made.module.target.name == BOARDS[name].target
    assert {"board.c", "board.ld", "board.mk"} <= {path.name for path in tmp_path.iterdir()}
    text = (tmp_path / "board.mk").read_text(encoding="ascii")
    assert f"-M {name}" in text
    assert "RAM ?= 65536" in text


@pytest.mark.exhaustive
def test_the_example_s_own_memory_counts(tmp_path: Path) -> None:
    given: dict[str, Any] = {"board": "mps2-an386", "dims": {"n": 8}, "loss": "mse"}
    with pytest.raises(BundleError, match="; the example's inputs and outputs, its stack and C library ") as caught:
        gt.bundle(opened, tmp_path / "out", ram=1000, **given)
    found = re.search(r"needs ([\d,]+) bytes of RAM .* C library ([\d,]+)\)", str(caught.value))
    assert found is not None
    needed, own = (int(number.replace(",", "")) for number in found.groups())
    size = gt.bundle(opened, tmp_path / "out", ram=needed, **given).size()
    tensors = 4 * (8 * 3 + 8 * 4 + 1) + 4 * (8 * 3 + 8 * 4)
    assert needed == size.ram + own
    assert own == tensors + 4096 - size.stack + 1024
    with pytest.raises(BundleError, match="1 more than .*; what would fit: a batch of 7"):
        gt.bundle(opened, tmp_path / "other", ram=needed - 1, **given)


@pytest.mark.exhaustive
def test_a_board_s_own_ram_is_enough(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="more than the 4,194,304 there are; what would fit: a batch of"):
        gt.bundle(opened, tmp_path, board="mps2-an386", dims={"n": 200_000})


def test_a_board_with_another_processor_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="mps2-an386 has a cortex-m4; this bundle is for cortex-m7"):
        gt.bundle(network, tmp_path / "out", board="mps2-an386", target="cortex-m7")
    assert not (tmp_path / "out").exists()


def test_an_unknown_board_names_those_that_there_are(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="board 'mine' is unknown; the boards are mps2-an386, mps2-an500"):
        gt.bundle(network, tmp_path, board="mine")


def test_a_trainers_graph_is_bound_to_another_batch(tmp_path: Path) -> None:
    @gt.model(x=gt.f32["n", 3])
    def open_batch(x: gt.Value) -> gt.Value:
        return gt.nn.linear(x, 4)

    trainer = gt.Trainer(open_batch, gt.losses.SoftmaxCrossEntropy(), gt.optim.SGD())
    made = gt.bundle(trainer.model(), tmp_path, dims={"n": 5}, target="scalar")
    assert made.module.functions[0].inputs[0].type.shape == (5, 3)
