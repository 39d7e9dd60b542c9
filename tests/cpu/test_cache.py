"""Compiled graphs on disk: found again by content, never trusted when broken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cpu.artifact import Artifact
from glowtrain.backends.cpu.backend import Cpu, NativeGraph
from glowtrain.backends.cpu.cache import key_of
from glowtrain.backends.llvm.target import Target
from glowtrain.compiler import compile_graph
from glowtrain.graph import Constant, Graph, Input, Variable
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.types import f32

HOST = Target.host()


def small(scale: float = 0.5, start: float = 1.0) -> Graph:
    """softmax(x w + table) with a counter."""
    x, w = Input(f32[3, 4], "x"), Variable("w", np.full((4, 5), start, np.float32))
    table = Constant((np.arange(15, dtype=np.float32) * scale).reshape(3, 5), "table")
    return Graph((x,), {"y": Softmax(axis=1)(x @ w + table), "x": x}, {w: w * 2.0}, name="small")


def results(graph: Graph, backend: Cpu) -> list[bytes]:
    function = gt.compile(graph, backend=backend)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    return [array.tobytes() for _ in range(2) for array in function({"x": x}).values()]


def test_the_second_time_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = results(small(), Cpu(cache=tmp_path))
    assert len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(NativeGraph, "_compiled", lambda self: pytest.fail("compiled again"))
    assert results(small(), Cpu(cache=tmp_path)) == cold
    monkeypatch.undo()
    assert results(small(), Cpu()) == cold


def test_plan_and_text_are_there_for_what_came_from_the_cache(tmp_path: Path) -> None:
    first = compile_graph(small(), Cpu(cache=tmp_path))
    second = compile_graph(small(), Cpu(cache=tmp_path))
    assert isinstance(first, NativeGraph)
    assert isinstance(second, NativeGraph)
    assert second.artifact.code == first.artifact.code
    assert second.plan.arena == first.plan.arena == second.artifact.arena
    assert second.code.text == first.code.text


def test_keys_follow_what_decides_about_code() -> None:
    key = key_of(small(), HOST)
    assert key_of(small(), HOST) == key
    assert key_of(small(start=2.0), HOST) == key
    assert key_of(small(scale=0.25), HOST) != key
    assert key_of(small(), Target.named("sse4")) != key


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x10\0\0\0\0\0\0\0{}              "])
def test_a_broken_file_is_made_again(tmp_path: Path, damage: bytes) -> None:
    cold = results(small(), Cpu(cache=tmp_path))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    for broken in (damage, whole[: len(whole) // 2]):
        file.write_bytes(broken)
        assert results(small(), Cpu(cache=tmp_path)) == cold
        assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        results(small(), Cpu(cache=tmp_path / "file"))


def test_an_artifact_survives_its_file(tmp_path: Path) -> None:
    native = compile_graph(small(), Cpu())
    assert isinstance(native, NativeGraph)
    again = Artifact.from_bytes(native.artifact.to_bytes())
    assert again.slots == native.artifact.slots
    assert again.outputs == native.artifact.outputs
    assert [a.tobytes() for a in again.constants.values()] == [a.tobytes() for a in native.artifact.constants.values()]
