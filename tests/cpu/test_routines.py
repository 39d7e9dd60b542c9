"""Native code of Glowtrain's own: compiled when it is asked for, or begun before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from glowtrain.backends.cache.folder import Cache
from glowtrain.backends.cpu import routines
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.errors import CodegenError

TEXT = "define void @f(ptr %at) #0 {\n  store i64 7, ptr %at\n  ret void\n}\n"


@pytest.fixture(autouse=True)
def nothing_begun() -> Iterator[None]:
    routines._begun.texts.clear()
    yield
    assert not routines._begun.texts


def test_what_was_begun_is_what_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = toolchain.compile_text(TEXT, Target.host())
    assert routines._made(TEXT) == wanted
    routines.begin("f", TEXT, None)
    first = routines._begun.texts[TEXT]
    routines.begin("f", TEXT, None)
    assert routines._begun.texts[TEXT] is first
    first.join()
    monkeypatch.setattr(routines, "_compiled", lambda text: pytest.fail("compiled again"))
    assert routines._made(TEXT) == wanted


def test_what_a_cache_has_is_not_begun(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache")
    routines.begin("f", TEXT, cache)
    routines.loaded("f", TEXT, ["f"], cache)
    routines.begin("f", TEXT, cache)
    assert routines._kept("f", TEXT, cache) == toolchain.compile_text(TEXT, Target.host())


def test_errors_are_raised_for_who_asks() -> None:
    broken = TEXT.replace("store", "stare")
    routines.begin("f", broken, None)
    with pytest.raises(CodegenError, match="function f"):
        routines.loaded("f", broken, ["f"], None)


def test_without_threads_it_is_compiled_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    routines.begin("f", TEXT, None)
    assert routines._made(TEXT) == toolchain.compile_text(TEXT, Target.host())
