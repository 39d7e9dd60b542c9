"""Folders of compiled code: who may write there, how much there may be, and what is done with what should not be."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import subprocess
import sys
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import glowtrain as gt
from glowtrain.backends.cache import key as keys
from glowtrain.backends.cache import location
from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cache.key import key_of
from glowtrain.backends.cache.limit import JOURNAL
from glowtrain.backends.cache.trust import TAG
from glowtrain.backends.cpu.artifact import NativeArtifact
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.emit import CompilePlan
from glowtrain.compiler import compile_artifact
from glowtrain.errors import CacheWarning, InputError
from glowtrain.graph import Graph, Input, Value
from glowtrain.ops.control.scan import Scan
from glowtrain.ops.core.family import Elementwise
from glowtrain.ops.elementwise.activation import Relu
from glowtrain.stages import DEFAULT
from glowtrain.types import Array, f32

ROOT = Path(__file__).resolve().parents[2]


def relu(extent: int = 3) -> Graph:
    x = Input(f32[extent], "x")
    return Graph((x,), {"y": Relu()(x)}, name="relu")


def run(graph: Graph, cache: Any) -> list[float]:
    """On one thread: code of the pool of threads is kept, too."""
    (x,) = graph.inputs
    found = gt.compile(graph, Cpu(cache=cache), threads=1)({"x": np.linspace(-1, 1, x.shape[0], dtype=np.float32)})
    return [float(value) for value in found["y"]]


def private(folder: Path) -> Cache:
    """A cache as the user's."""
    return Cache(folder, private=True)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.compiled"))


def warned(cache: Cache) -> str:
    """What is said, once, where code is compiled twice without the cache."""
    with pytest.warns(CacheWarning) as said:
        found = run(relu(), cache), run(relu(5), cache)
    assert found == ([0, 0, 1], [0, 0, 0, 0.5, 1])
    assert len(said) == 1
    return str(said[0].message)


@pytest.fixture
def users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, elsewhere."""
    folder = tmp_path / "caches" / "glowtrain"
    monkeypatch.setattr(location, "user_cache", lambda: cache)
    cache = private(folder)
    return folder


# --- which folder ----------------------------------------------------------------------------------------------------


def test_code_is_kept_where_nobody_asked_for_it(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cold = gt.compile(relu(), threads=1)({"x": np.ones(3, np.float32)})
    assert len(files(users)) == 1
    monkeypatch.setattr(CompilePlan, "run", lambda self, plan: pytest.fail("compiled again"))
    warm = gt.compile(relu(), threads=1)({"x": np.ones(3, np.float32)})
    assert warm["y"].tobytes() == cold["y"].tobytes()


def test_the_trainers_functions_are_kept(users: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(5)
    batch = {"x": random.normal(size=(4, 3)).astype(np.float32), "labels": random.integers(0, 2, 4)}

    def outcome() -> list[Any]:
        @gt.model(x=gt.f32["batch", 3])
        def model(x: Value) -> Value:
            return gt.nn.linear(x, 2)

        trainer = gt.Trainer(model, "softmax_cross_entropy", gt.optim.Adam())
        measured = trainer.evaluate({"x": batch["x"], "y": batch["labels"]})
        predicted = trainer.predict(batch["x"])["output"].tobytes()
        gradients = [array.tobytes() for array in trainer.gradients(batch).values()]
        return [trainer.step(batch), measured, predicted, gradients]

    cold = outcome()
    monkeypatch.setattr(CompilePlan, "run", lambda self, plan: pytest.fail("compiled again"))
    assert outcome() == cold


@pytest.mark.parametrize("cache", [None, False])
def test_nothing_is_kept_where_nothing_shall_be(users: Path, cache: Any) -> None:
    run(relu(), cache)
    assert not users.exists()


def test_the_users_folder_is_the_one_for_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert location.user_folder() == tmp_path / "glowtrain"


def test_without_a_home_nothing_is_kept() -> None:
    assert "there is no home directory: HOME is not set" in warned(private(Path("~/.cache/glowtrain")))


def test_a_folder_is_made_for_its_owner_alone_and_tagged(tmp_path: Path) -> None:
    run(relu(), private(tmp_path / "a" / "b"))
    assert (tmp_path / "a" / "b").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "a" / "b" / TAG).read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")


# --- folders that cannot be used -------------------------------------------------------------------------------------


def test_a_file_in_its_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert f"cannot be kept in {tmp_path / 'file'}: File exists; it is compiled in each process" in warned(
        private(tmp_path / "file")
    )
    with pytest.raises(InputError, match=r"compiled code cannot be kept in .*file: File exists"):
        run(relu(), tmp_path / "file")


def test_a_folder_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the tests as root may write everywhere, so the system's answer is played."""

    def refuse(self: Cache, path: Path, data: bytes) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(Cache, "_write", refuse)
    assert "Permission denied" in warned(private(tmp_path))
    with pytest.raises(InputError, match="Permission denied"):
        run(relu(), tmp_path)


def test_a_full_disk_is_said_once_and_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, target: Path) -> Path:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "replace", full)
    for cache in (private(tmp_path / "own"), Cache(tmp_path / "asked")):
        assert "No space left on device" in warned(cache)
        assert [path.name for path in cache.folder.iterdir()] == [TAG]


@pytest.mark.parametrize(("mode", "is_refused"), [(0o777, True), (0o1777, True), (0o770, False), (0o755, False)])
def test_a_folder_that_everyone_can_write_to_is_refused(tmp_path: Path, mode: int, *, is_refused: bool) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(mode)
    if is_refused:
        with pytest.raises(InputError, match="other users can write to it .* is run as native code"):
            run(relu(), folder)
    else:
        run(relu(), folder)
    assert bool(files(folder)) != is_refused


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o1777])
def test_to_the_users_folder_nobody_else_may_write(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    assert "other users can write to it" in warned(private(tmp_path))
    assert not files(tmp_path)


def test_a_folder_of_another_user_is_not_the_users(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert "the folder belongs to another user" in warned(private(tmp_path))


# --- files that cannot be used ---------------------------------------------------------------------------------------


def test_code_of_another_graph_is_not_run(tmp_path: Path) -> None:
    """Whether a whole file was renamed, or a sound artifact lies under the wrong key."""
    for graph in (relu(), relu(5)):
        run(graph, tmp_path)
    first, second = files(tmp_path)
    for exchanged in (second.read_bytes(), second.read_bytes().replace(second.stem.encode(), first.stem.encode())):
        first.write_bytes(exchanged)
        assert run(relu(), tmp_path) == [0, 0, 1]
        assert run(relu(5), tmp_path)[-1] == 1


def test_facts_that_cannot_be_are_noticed(tmp_path: Path) -> None:
    """Checksums say that a file is as it was written, not that it was written rightly."""
    run(relu(), tmp_path)
    (file,) = files(tmp_path)
    sound = compile_artifact(relu(), Cpu())
    assert isinstance(sound, NativeArtifact)
    (x, *rest) = sound.slots
    for wrong in (
        replace(sound, arena=-1),
        replace(sound, entry="elsewhere"),
        replace(sound, outputs={}),
        replace(sound, slots=(replace(x, name="z"), *rest)),
        replace(sound, slots=(replace(x, type=f32[2]), *rest)),
        replace(sound, objects=(b"no object",)),
        replace(sound, target=replace(sound.target, triple="riscv64-unknown-linux-gnu")),
    ):
        Cache(tmp_path).put(file.stem, wrong.to_bytes())
        assert run(relu(), tmp_path) == [0, 0, 1]
        assert Cpu(cache=tmp_path).read(Cache(tmp_path).get(file.stem) or b"").slots == sound.slots


# --- what the key is made of -----------------------------------------------------------------------------------------


def test_the_key_follows_the_compilers_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any change of any file, also one that leaves size and time as they were."""
    package = tmp_path / "glowtrain"
    (package / "backends").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    for name in ("compiler", "graph", "loops", "lower", "ops", "optimize", "program"):
        (package / name).mkdir()
    for name in ("memo.py", "native.py", "stages.py", "types.py", "backends/pool.ll"):
        (package / name).write_text("old")
    monkeypatch.setattr(keys.inspect, "getfile", lambda module: str(package / "__init__.py"))
    before = keys.sources.__wrapped__()
    assert keys.sources.__wrapped__() == before
    file = package / "backends" / "pool.ll"
    status = file.stat()
    file.write_text("new")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert keys.sources.__wrapped__() != before


@dataclass(frozen=True)
class Doubled(Elementwise):
    """An operator from elsewhere: 2 x"""

    domain = "tests.kept"

    def reference(self, x: Array) -> Array:
        return x + x

    def scalar(self, x: Any) -> Any:
        return x + x


class OtherCpu(Cpu):
    """A backend from elsewhere."""


def scanned() -> Graph:
    """The operator in the body of a loop."""
    item = Input(f32[2], "item")
    body = Graph((item,), {"doubled": Doubled()(item)})
    x = Input(f32[3, 2], "x")
    return Graph((x,), {"y": Scan(body=body, num_scan_inputs=1)(x)})


def test_what_comes_from_elsewhere_is_kept_only_where_someone_asks_for_it(users: Path, tmp_path: Path) -> None:
    x = Input(f32[3], "x")
    for graph in (Graph((x,), {"y": Doubled()(x)}), scanned()):
        gt.compile(graph, threads=1)
    gt.compile(relu(), OtherCpu(), threads=1)
    assert not files(users)
    gt.compile(scanned(), Cpu(cache=tmp_path / "asked"), threads=1)
    assert len(files(tmp_path / "asked")) == 1


def test_the_key_follows_sources_from_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    key = key_of(scanned(), "", DEFAULT)
    assert key_of(scanned(), "", DEFAULT) == key is not None
    monkeypatch.setattr(keys, "_source", lambda module: "changed")
    assert key_of(scanned(), "", DEFAULT) not in (key, None)
    monkeypatch.setattr(keys, "_source", lambda module: None)
    assert key_of(scanned(), "", DEFAULT) is None


# --- how much there may be -------------------------------------------------------------------------------------------


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)
    for age, key in enumerate(("a", "b", "c")):
        cache.put(key, bytes(250))
        os.utime(cache._path(key), (age, age))
    assert cache.get("a") == bytes(250)  # and with that it was used
    cache.put("d", bytes(250))
    assert [cache.get(key) is not None for key in "abcd"] == [True, False, True, True]


def test_the_folder_stays_below_its_limit(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=10_000)
    for number in range(100):
        cache.put(f"{number}", bytes(900))
        assert sum(entry.nbytes for entry in cache.entries()) <= 10_000
    assert len(cache.entries()) >= 8
    assert cache.get("99") is not None


def test_what_is_larger_than_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)
    cache.put("small", bytes(100))
    cache.put("large", bytes(1000))
    assert cache.get("large") is None
    assert cache.get("small") is not None


@pytest.mark.parametrize("journal", [None, b"", b"12\nnonsense\n"])
def test_a_journal_that_is_lost_or_broken_is_made_anew(tmp_path: Path, journal: bytes | None) -> None:
    cache = Cache(tmp_path, limit=3000)
    for key in "abcd":
        cache.put(key, bytes(600))
    (tmp_path / JOURNAL).unlink()
    if journal is not None:
        (tmp_path / JOURNAL).write_bytes(journal)
    for key in "efghijkl":
        cache.put(key, bytes(600))
    assert sum(entry.nbytes for entry in cache.entries()) <= (6000 if journal == b"" else 3000)
    assert cache.get("l") is not None


def test_the_folder_is_not_looked_through_for_each_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path)
    cache.put("a", b"")
    monkeypatch.setattr("glowtrain.backends.cache.limit.entries", lambda folder: pytest.fail("looked through"))
    for number in range(20):
        cache.put(f"{number}", bytes(100))


def test_what_killed_writers_left_is_removed(tmp_path: Path) -> None:
    (tmp_path / ".old.compiled.1.1.tmp").write_bytes(b"")
    os.utime(tmp_path / ".old.compiled.1.1.tmp", (1, 1))
    (tmp_path / ".new.compiled.1.1.tmp").write_bytes(b"")
    Cache(tmp_path).put("a", b"")
    assert [path.name for path in tmp_path.glob(".*.tmp")] == [".new.compiled.1.1.tmp"]


# --- several processes -----------------------------------------------------------------------------------------------


def compile_and_run(folder: Path, start: Any) -> list[float]:
    start.wait()
    return run(relu(), folder)


@pytest.mark.exhaustive
def test_processes_that_compile_the_same_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager, context.Pool(3) as pool:
        start = manager.Barrier(3)
        assert pool.starmap(compile_and_run, [(tmp_path, start)] * 3) == [[0, 0, 1]] * 3
    assert len(files(tmp_path)) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(relu(), tmp_path) == [0, 0, 1]
    assert not list(tmp_path.glob(".*.tmp"))


WARM = """
import json, sys
import numpy as np
import glowtrain as gt

@gt.model(x=gt.f32["batch", 8])
def mlp(x):
    return gt.nn.linear(gt.nn.relu(gt.nn.linear(x, 8)), 3)

random = np.random.default_rng(0)
trainer = gt.Trainer(mlp, gt.losses.softmax_cross_entropy(), gt.optim.Adam(), threads=2)
loss = trainer.step({"x": random.normal(size=(4, 8)).astype(np.float32), "labels": random.integers(0, 3, 4)})
print(json.dumps({"loss": loss, "modules": sorted(sys.modules)}))
"""
COMPILING = ("glowtrain.compiler.walk", "glowtrain.lower.lower", "glowtrain.optimize", "glowtrain.backends.cpu.step")
ELSEWHERE = (
    "onnx",
    "google.protobuf",
    "rich",
    "typer",
    "glowtrain.ops.ml",
    "glowtrain.ops.signal",
    "glowtrain.quantization",
)


def test_the_second_process_imports_no_compiler(tmp_path: Path) -> None:
    """What a step needs that is compiled already, and nothing else: that is what lets it begin at once."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path)}
    cold, warm = (
        json.loads(
            subprocess.run([sys.executable, "-c", WARM], env=environment, capture_output=True, check=True).stdout
        )
        for _ in range(2)
    )
    assert warm["loss"] == cold["loss"]
    assert set(COMPILING) <= set(cold["modules"])
    imported = [module for module in warm["modules"] if module.startswith((*COMPILING, *ELSEWHERE))]
    assert imported == []
