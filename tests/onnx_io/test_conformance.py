"""ONNX's own tests: what docs/conformance.md does not list as failing passes. A part of them here, all by
``glowtrain conformance``."""

from __future__ import annotations

import re
from pathlib import Path
from zlib import crc32

import pytest

from glowtrain.cli.commands.conformance import again
from glowtrain.onnx_io.checks.conformance import ConformanceCase, ConformanceOutcome, matching, report, run

PAGE = Path(__file__).resolve().parents[2] / "docs" / "conformance.md"
SHARE, SHARDS = 8, 3
"""One test in so many is run, in so many parts."""


def _section(title: str) -> str:
    return PAGE.read_text(encoding="utf-8").split(f"## {title}\n")[1].split("\n## ")[0]


def listed() -> set[str]:
    """The tests that the page says do not pass."""
    return set(re.findall(r"`(test_\w+)`", _section("What does not pass, and why")))


@pytest.mark.spread(1)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_part_passes_on_the_cpu_backend(shard: int) -> None:
    known = listed()
    small = [test for test in matching("") if test.kind != "light models" and test.name not in known]
    chosen = [test for test in small if crc32(test.name.encode()) % (SHARE * SHARDS) == shard * SHARE]
    assert len(chosen) > 50
    failed = [outcome for outcome in (run(test, "cpu") for test in chosen) if not outcome.passed]
    assert not failed, report(failed, "cpu", "")


MODELS = [test for test in matching("") if test.kind in ("simple", "light models") and test.name not in listed()]


@pytest.mark.spread(2)
@pytest.mark.parametrize("test", MODELS, ids=lambda test: test.name)
def test_models_with_their_data_in_the_package(test: ConformanceCase) -> None:
    """All of them: other models of the package's suite are downloaded, and left out."""
    outcome = run(test, "cpu")
    assert outcome.passed, report([outcome], "cpu", "")


def test_there_are_models_of_both_kinds() -> None:
    assert [sum(test.kind == kind for test in MODELS) for kind in ("simple", "light models")] == [23, 9]


def test_what_is_listed_are_tests_of_onnx() -> None:
    assert listed() <= {test.name for test in matching("")}


def test_a_report_counts_and_gives_reasons() -> None:
    outcomes = [
        ConformanceOutcome(ConformanceCase("node", "test_a"), None, 0.1),
        ConformanceOutcome(ConformanceCase("node", "test_b"), "AssertionError: no", 0.2),
    ]
    text = report(outcomes, "cpu", "glowtrain conformance test_")
    assert "    glowtrain conformance test_\n" in text
    assert "| node | 1 | 2 |" in text
    assert "- `test_b`: AssertionError: no" in text


def test_a_failure_is_seen() -> None:
    """Of draws, which are as random as those of the package, and other ones."""
    (test,) = (test for test in matching("test_bernoulli_seed") if test.name == "test_bernoulli_seed")
    outcome = run(test, "interpreter")
    assert not outcome.passed
    assert "Not equal" in str(outcome.failure)


def test_the_page_names_the_command_that_makes_it() -> None:
    assert again("", "cpu", Path("docs/conformance.md"), gradients=True) in PAGE.read_text(encoding="utf-8")
    said = again("max pool", "interpreter", None, gradients=False)
    assert said == "glowtrain conformance 'max pool' --backend interpreter"
