"""Compiled graphs on disk: found again by content, never trusted when broken."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cache.key import key_of
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.emit import CompilePlan
from glowtrain.backends.interpreter import Interpreter
from glowtrain.backends.target import Target
from glowtrain.compiler import compile_artifact
from glowtrain.errors import ArtifactError, InputError
from glowtrain.graph import Constant, Graph, Input, Variable
from glowtrain.ops.reduce.softmax import Softmax
from glowtrain.stages import DEFAULT, Facts, Options
from glowtrain.types import f32
from glowtrain.version import __version__

HOST = Target.host()


def small(scale: float = 0.5, start: float = 1.0) -> Graph:
    """softmax(x w + table) with a counter."""
    x, w = Input(f32[3, 4], "x"), Variable("w", np.full((4, 5), start, np.float32))
    table = Constant((np.arange(15, dtype=np.float32) * scale).reshape(3, 5), "table")
    return Graph((x,), {"y": Softmax(axis=1)(x @ w + table), "x": x}, {w: w * 2.0}, name="small")


def results(graph: Graph, backend: Cpu) -> list[bytes]:
    """On one thread: code of the pool of threads is kept, too."""
    function = gt.compile(graph, backend=backend, threads=1)
    x = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    return [array.tobytes() for _ in range(2) for array in function({"x": x}).values()]


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.compiled"))


def test_the_second_time_nothing_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = results(small(), Cpu(cache=tmp_path))
    assert len(files(tmp_path)) == 1
    monkeypatch.setattr(CompilePlan, "run", lambda self, plan: pytest.fail("compiled again"))
    assert results(small(), Cpu(cache=tmp_path)) == cold
    monkeypatch.undo()
    assert results(small(), Cpu()) == cold


def test_keys_follow_what_decides_about_code() -> None:
    cpu = Cpu().fingerprint
    key = key_of(small(), cpu, DEFAULT)
    assert key_of(small(), cpu, DEFAULT) == key
    assert key_of(small(start=2.0), cpu, DEFAULT) == key
    assert key_of(small(), cpu, Options(check=True)) == key
    assert key_of(small(scale=0.25), cpu, DEFAULT) not in (key, None)
    assert key_of(small(), Cpu("sse4").fingerprint, DEFAULT) != key
    for other in (
        Options(fixed_point=True),
        Options(prefix="a_"),
        Options(profile=True),
        Options(Facts(max_inlined=9)),
    ):
        assert key_of(small(), cpu, other) != key


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x10\0\0\0\0\0\0\0{}              "])
def test_a_broken_file_is_made_again(tmp_path: Path, damage: bytes) -> None:
    cold = results(small(), Cpu(cache=tmp_path))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    for broken in (damage, whole[: len(whole) // 2]):
        file.write_bytes(broken)
        assert results(small(), Cpu(cache=tmp_path)) == cold
        assert file.read_bytes() == whole


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"compiled code cannot be kept in .*file: "):
        results(small(), Cpu(cache=tmp_path / "file"))


def test_an_artifact_survives_its_file(tmp_path: Path) -> None:
    artifact = compile_artifact(small(), Cpu())
    assert isinstance(artifact, NativeArtifact)
    again = NativeArtifact.from_bytes(artifact.to_bytes())
    assert (again.slots, again.outputs, again.target) == (artifact.slots, artifact.outputs, artifact.target)
    assert [a.tobytes() for a in again.constants.values()] == [a.tobytes() for a in artifact.constants.values()]


def test_one_wrong_bit_is_noticed() -> None:
    """Wherever it is: in the code, in a constant, in what the file says of them."""
    data, random = compile_artifact(small(), Cpu()).to_bytes(), np.random.default_rng(0)
    for position in [*range(8, 40), *random.integers(40, len(data), 300)]:
        damaged = bytearray(data)
        damaged[position] ^= 1 << int(random.integers(8))
        with pytest.raises(ArtifactError):
            NativeArtifact.from_bytes(bytes(damaged))


def test_a_damaged_file_is_made_again(tmp_path: Path) -> None:
    cold = results(small(), Cpu(cache=tmp_path))
    (file,) = files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:-9] + bytes(9))
    assert results(small(), Cpu(cache=tmp_path)) == cold
    assert file.read_bytes() == whole


def test_what_an_artifact_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    data = compile_artifact(small(), Cpu()).to_bytes()
    with pytest.raises(ArtifactError, match="compiled by backend cpu, not interpreter"):
        Interpreter().read(data)
    with pytest.raises(ArtifactError, match="backend interpreter loads what it compiled, not NativeArtifact"):
        Interpreter().load(Cpu().read(data))
    with pytest.raises(ArtifactError, match="backend cpu loads what it compiled, not GraphArtifact"):
        Cpu().load(compile_artifact(small(), "interpreter"))
    monkeypatch.setattr("glowtrain.backends.container.__version__", "9.9")
    with pytest.raises(
        ArtifactError, match=f"compiled by Glowtrain {re.escape(__version__)}, not 9.9: compile it again"
    ):
        Cpu().read(data)


def test_code_for_another_processor_is_not_loaded() -> None:
    artifact = compile_artifact(small(), Cpu("cortex-m7"))
    again = Cpu().read(artifact.to_bytes())
    with pytest.raises(ArtifactError, match=r"compiled for cortex-m7 \(thumbv7em-unknown-none-eabihf, cortex-m7\)"):
        Cpu().load(again)


@pytest.mark.parametrize("prefix", ["9lives", "a-b", "é", "a b"])
def test_a_prefix_begins_a_c_identifier(prefix: str) -> None:
    with pytest.raises(InputError, match="must begin a C identifier"):
        compile_artifact(small(), prefix=prefix)
