"""What benchmarks make of their measurements: ratios, means, cliffs, lines, tables and files."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from benchmarks.packing import glow, instances, minimalloc
from benchmarks.speed.difference import error
from benchmarks.speed.engines import names
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.results import Result, Timing, geometric_mean, merged, read, write
from benchmarks.speed.sweep.analysis import Cliff, Point, cliffs, line
from benchmarks.speed.sweep.axes import axes_of, values
from benchmarks.speed.tables import page
from glowtrain.program.memory.packing_search import Item


def result(row: str, cores: int, **milliseconds: float) -> Result:
    """A training row; every engine has the same first loss."""
    timings = {name: Timing(ms, 1.5, 100, 2.3, 0.0) for name, ms in milliseconds.items()}
    return Result("training", row, cores, timings)


def test_ratio_is_the_other_engine_over_glowtrain() -> None:
    found = result("mlp", 1, glowtrain=2.0, torch=3.0)
    assert found.ratio("torch") == 1.5
    assert found.ratio("jax") is None


def test_geometric_mean_leaves_out_what_did_not_run() -> None:
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([None]) is None


def test_each_is_compared_in_its_faster_precision() -> None:
    both = result("mlp", 1, **{"glowtrain": 2.0, "glowtrain-bf16": 1.0, "torch": 3.0, "torch-bf16": 4.0})
    assert both.ratio_of_faster("torch") == 3.0
    assert result("mlp", 1, **{"glowtrain": 2.0, "torch": 3.0, "torch-bf16": 1.0}).ratio_of_faster("torch") == 0.5
    assert result("mlp", 1, glowtrain=2.0, torch=3.0).ratio_of_faster("torch") is None
    lines = page({}, [both], "run").splitlines()
    assert "| row | cores | torch / glowtrain |" in lines
    assert "| mlp | 1 | 3.00 |" in lines
    assert "| **geometric mean** | 1 | **3.00** |" in lines
    assert not any("faster" in line for line in page({}, [result("mlp", 1, glowtrain=2.0, torch=3.0)], "").splitlines())


def test_engines_in_bf16_take_part_where_they_are_asked_for() -> None:
    assert names("training", ["torch"]) == ["glowtrain", "torch"]
    assert names("training", ["torch"], narrow=True) == ["glowtrain", "glowtrain-bf16", "torch", "torch-bf16"]
    assert names("training", [], narrow=True) == ["glowtrain", "glowtrain-bf16"]
    assert names("inference", ["openvino"], narrow=True) == ["glowtrain", "openvino"]


def test_engines_in_bf16_may_be_further_apart() -> None:
    found = result("mlp", 1, **{"glowtrain": 2.0, "glowtrain-bf16": 1.0, "torch-bf16": 1.0})
    found.timings["glowtrain-bf16"].apart, found.timings["torch-bf16"].apart = 2e-3, 2e-2
    assert found.disagreeing == ["torch-bf16"]


def test_engines_that_are_apart_disagree() -> None:
    found = result("mlp", 1, glowtrain=2.0, torch=3.0, jax=4.0)
    found.timings["torch"].apart = 2e-4
    found.timings["jax"].apart = math.nan
    assert found.disagreeing == ["torch", "jax"]


def test_results_survive_their_file_and_new_ones_replace_old_ones(tmp_path: Path) -> None:
    old = [result("mlp", 1, glowtrain=2.0, torch=3.0), result("cnn", 1, glowtrain=5.0)]
    write(tmp_path / "speed.json", {"processor": "a"}, old)
    assert read(tmp_path / "speed.json") == old
    new = [result("mlp", 1, glowtrain=1.0), result("mlp", 2, glowtrain=0.5)]
    assert merged(old, new) == [new[0], new[1], old[1]]
    assert read(tmp_path / "none.json") == []


def test_page_has_ratios_means_and_failures() -> None:
    results = [result("mlp", 1, glowtrain=2.0, torch=4.0), result("tiny", 1, glowtrain=1.0, torch=8.0)]
    results[1].failures["jax"] = "RuntimeError: no"
    lines = page({"processor": "a", "torch": "2.13"}, results, "python benchmarks/run.py").splitlines()
    assert "processor a; torch 2.13." in lines
    assert "| mlp: MLP 784-512-512-10; batch 64 | 1 | 2 | 4 | 2.00 | – | – |" in lines
    assert "| **geometric mean** | 1 |  |  | **4.00** |  | **–** |" in lines
    assert "- tiny, 1 core: JAX jit did not run: RuntimeError: no" in lines


def test_every_line_of_a_table_has_the_cells_of_its_head() -> None:
    results = [result("mlp", 1, glowtrain=2.0, torch=4.0), result("mlp", 2, glowtrain=1.0)]
    results[0].timings["torch"].peak = 10**9
    results[0].facts = {"arena": 10**6, "overhead": 1.0, "stages": {"plan": 0.1, "load": 0.2}}
    tables = page({}, results, "run").split("\n\n")
    counts = [{line.count("|") for line in table.splitlines()} for table in tables if table.startswith("|")]
    assert len(counts) == 4
    assert all(len(count) == 1 for count in counts)


def test_cliffs_are_between_neighbours_in_either_direction() -> None:
    points = [Point(4, 4.0, 1.0, 400), Point(1, 2.0, 1.0, 100), Point(2, 2.0, 1.0, 200), Point(8, 14.0, 1.0, 800)]
    assert cliffs(points) == [Cliff(1, 2, pytest.approx(0.5)), Cliff(4, 8, pytest.approx(1.75))]
    assert cliffs(points, bound=1.9) == [Cliff(1, 2, pytest.approx(0.5))]


def test_a_line_has_no_residual_and_a_parabola_has_one() -> None:
    straight = line([1, 2, 3, 4], [3, 5, 7, 9])
    assert (straight.slope, straight.start) == (pytest.approx(2), pytest.approx(1))
    assert straight.residual == pytest.approx(0, abs=1e-12)
    # y = x² - 5x + 5 is 1 off everywhere, with signs that no line can follow; then the mean is set to 10.
    assert line([1, 2, 3, 4], [11, 9, 9, 11]).residual == pytest.approx(0.1)


def test_values_of_an_axis() -> None:
    assert axes_of("mlp") == ["batch", "width", "depth"]
    assert values("lstm", "width", 33) == [16, 17, 24, 32, 33]
    assert values("transformer", "width", 64) == [16, 32, 48, 64]


def test_error_is_over_the_range() -> None:
    assert error(np.array([1.0, 4.0]), np.array([1.0, 3.0])) == 0.5
    assert error(2.5, 2.0) == 0.25
    assert error(np.array([1]), np.array([2])) == math.inf
    assert error(np.array([np.nan]), np.array([1.0])) == math.inf


def test_prepared_files_hold_everything(tmp_path: Path, random: np.random.Generator) -> None:
    arrays = {name: random.normal(size=3).astype(np.float32) for name in ("x", "labels", "a/b.weight", "file")}
    batches = [{"x": arrays["x"] + i} for i in range(11)]
    named = {"a/b.weight": arrays["a/b.weight"]}, {"file": arrays["file"]}
    Prepared(tmp_path, batches, *named, {"heads": 4}, dynamic=True).write(b"m")
    found = Prepared.read(tmp_path)
    assert [batch["x"].tobytes() for batch in found.batches] == [batch["x"].tobytes() for batch in batches]
    assert found.parameters["a/b.weight"].tobytes() == arrays["a/b.weight"].tobytes()
    assert (list(found.statistics), found.layers, found.model.read_bytes()) == (["file"], {"heads": 4}, b"m")
    assert found.dynamic


GLOW = """# key, values
MODEL first
ALIGN 64
ALLOC 0 100
ALLOC 1 64
FREE 0
ALLOC 2 1
FREE 2
FREE 1
MEM 192
EFF 1.0
MODEL second
ALIGN 64
ALLOC 0 6400
FREE 0
MEM 6400
EFF 1.0
"""
MINIMALLOC = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,8\n"


def test_traces_are_read_as_their_programs_mean_them(tmp_path: Path) -> None:
    (tmp_path / "models.txt").write_text(GLOW)
    (tmp_path / "input.12.csv").write_text(MINIMALLOC)
    first, second = glow(tmp_path / "models.txt")
    assert (first.name, first.unit, second.name) == ("first", 64, "second")
    assert sorted((i.first, i.last, i.size) for i in first.items) == [(0, 1, 2), (1, 4, 1), (3, 3, 1)]
    assert [item.size for item in second.items] == [100]
    example = minimalloc(tmp_path / "input.12.csv")
    assert (example.unit, example.items) == (4, [Item(0, 2, 1), Item(3, 8, 1), Item(0, 8, 2)])
    assert (example.name, example.capacity) == ("input", 3)
    assert [found.name for found in instances([tmp_path])] == ["input", "first", "second"]


def test_a_line_says_how_far_a_packing_is_over_the_bound(tmp_path: Path) -> None:
    (tmp_path / "input.12.csv").write_text(MINIMALLOC)
    columns = minimalloc(tmp_path / "input.12.csv").row(100).split("|")
    assert [column.strip() for column in columns[1:8]] == ["input", "3", "12", "12", "12", "12", "0"]
