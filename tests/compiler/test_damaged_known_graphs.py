"""Kept graphs in files that cannot be used: they are not believed, and written anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.container import pack, unpack
from glowtrain.errors import GlowtrainError
from tests.compiler.known_models import BOUND, PLAIN, SPECIFIED, Run


def kept(users: Cache) -> list[Path]:
    return sorted(users.folder.glob("*.compiled"))


DAMAGES = (lambda data: data[: len(data) // 2], lambda data: b"", lambda data: data[:-1] + b"?")


@pytest.mark.parametrize("damage", DAMAGES, ids=["half", "empty", "changed"])
@pytest.mark.parametrize("run", [PLAIN, BOUND], ids=["open", "bound"])
def test_damaged_files_are_written_anew(run: Run, damage: Any, path: Path, users: Cache, reading: list[str]) -> None:
    cold = run.outcome(path)
    for file in kept(users):
        data = file.read_bytes()
        file.write_bytes(damage(data))
        assert run.outcome(path) == cold
        assert file.read_bytes() not in (damage(data), b"")
        reading.clear()
        assert run.outcome(path) == cold
        assert reading == []


def test_files_under_others_names_are_not_believed(path: Path, users: Cache) -> None:
    cold = PLAIN.outcome(path)
    first, *others = kept(users)
    for file in others:
        for data in (first.read_bytes(), first.read_bytes().replace(first.stem.encode(), file.stem.encode())):
            file.write_bytes(data)
            assert PLAIN.outcome(path) == cold
            assert file.read_bytes() != data


def test_facts_that_cannot_be_are_not_believed(path: Path, users: Cache) -> None:
    """Sound files, in which one of the facts is missing, or no such fact at all."""
    run = Run({"dims": SPECIFIED}, {"residuals": "bf16"})
    cold = run.outcome(path)
    for file in kept(users):
        for kind in ("model", "graph", "specs", "names"):
            if not _is(kind, users, file):
                continue
            arrays, facts = unpack(kind, users.get(file.stem) or b"")
            for name in facts:
                for wrong in ({**facts, name: 7}, {other: fact for other, fact in facts.items() if other != name}):
                    users.put(file.stem, poisoned := pack(kind, arrays, wrong))
                    assert run.outcome(path) == cold
                    assert users.get(file.stem) != poisoned, name


def _is(kind: str, users: Cache, file: Path) -> bool:
    try:
        unpack(kind, users.get(file.stem) or b"")
    except GlowtrainError:
        return False
    return True
