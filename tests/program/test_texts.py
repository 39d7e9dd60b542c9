"""The tests that are written as program text: see filetests.py for how, and texts/ for what."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.program.filetests import ENGINES, FileTest, check, filetests

TESTS = list(filetests(Path(__file__).parent / "texts"))


def test_titles_differ_and_every_engine_is_there() -> None:
    assert len({test.title for test in TESTS}) == len(TESTS) > 60
    assert {"evaluated", "planned", "host", "scalar"} <= ENGINES.keys()


@pytest.mark.parametrize("test", TESTS, ids=lambda test: test.title)
def test_text(test: FileTest) -> None:
    check(test)


WRONG = {
    "a wrong result": ("; run: x = [1, 2] -> y = [2, 3]", AssertionError),
    "a message that is not there": ("; expect: is never written", BaseException),
    "a text that a pass does not give": ("; pass: fuse\n; gives:\nprogram p\n", AssertionError),
    "an array of the wrong size": ("; run: x = [1] -> y = [2]", ValueError),
    "an unknown name": ("; run: z = [1, 2] -> y = [2, 4]", KeyError),
}


@pytest.mark.parametrize(("asked", "error"), WRONG.values(), ids=WRONG)
def test_a_test_that_asks_for_something_else_fails(asked: str, error: type[BaseException], tmp_path: Path) -> None:
    program = "program p\n  input x: f32[2]\n  output y: f32[2]\nkernel k:\n  for i<2: y[i] = 2 * x[i]\n"
    (tmp_path / "wrong.gtp").write_text(f"; test: wrong\n{program}{asked}\n", encoding="utf-8")
    (test,) = filetests(tmp_path)
    with pytest.raises(error):
        check(test)
