"""PyTorch's own samples of its operators: compiled ones are eager PyTorch's, and docs/torch-operators.md says which."""

from __future__ import annotations

import re
from typing import Any

import pytest
from opinfo import COMPILED, DIFFERS, ENTRIES, FALLS_BACK, RAISES, Outcome
from opinfo_table import NAMES, PAGE, left_to_pytorch, outcome, reason, table, worst

from glowtrain.graph import Value
from glowtrain.ops.elementwise.logic import Not
from glowtrain.torch.aten import TABLE, AtenCall
from glowtrain.types import boolean

TEXT = PAGE.read_text(encoding="utf-8")
LEFT = left_to_pytorch(TEXT)


@pytest.mark.parametrize("name", NAMES)
def test_what_becomes_of_an_operator_is_what_the_page_says(name: str) -> None:
    found = outcome(name) or Outcome(COMPILED)
    assert found.state == (FALLS_BACK if name in LEFT else COMPILED), found.why


def _wrong_result(call: AtenCall, x: Value) -> Any:
    return x * 1.001


def _wrong_gradient(call: AtenCall, x: Value, other: Value) -> Any:
    return TABLE["detach.default"](call, x) * other


def _raising(call: AtenCall, *_: Any) -> Any:
    raise IndexError("out of range")


@pytest.mark.parametrize(
    ("name", "entry", "planted", "state"),
    [
        ("nn.functional.relu", "relu.default", _wrong_result, DIFFERS),
        ("mul", "mul.Tensor", _wrong_gradient, DIFFERS),
        ("trace", "sum.default", _raising, RAISES),
    ],
)
def test_mistakes_in_the_table_are_seen(
    name: str, entry: str, planted: Any, state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TABLE, entry, planted)
    found = outcome(name)
    assert found is not None
    assert found.state == state


@pytest.mark.parametrize("entry", ENTRIES)
def test_a_mistake_in_an_entry_without_a_sample_is_seen(entry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = TABLE[entry]

    def wrong(call: AtenCall, *args: Any, **named: Any) -> Any:
        first, *rest = results if isinstance(results := right(call, *args, **named), (list, tuple)) else (results,)
        planted = Not()(first) if first.dtype == boolean else first * 3 + 2
        return type(results)((planted, *rest)) if isinstance(results, (list, tuple)) else planted

    monkeypatch.setitem(TABLE, entry, wrong)
    found = outcome(ENTRIES[entry])
    assert found is not None
    assert found.state in (DIFFERS, RAISES)


def test_what_the_page_counts_is_what_it_lists() -> None:
    numbers = re.search(r"of (\d+) operators and variants \*\*(\d+) are compiled whole\*\*, (\d+) are left", TEXT)
    assert numbers is not None
    total, compiled, left = map(int, numbers.groups())
    assert total - compiled == left == len(LEFT)


def test_a_page_of_some_operators() -> None:
    complex_ = Outcome(FALLS_BACK, "unsupported:\n  - _fft_r2c.default: there is no torch.complex64")
    page = table({"a": Outcome(COMPILED), "b.c": complex_, "d": None})
    assert page.endswith("| complex numbers | `b.c` |\n")
    assert left_to_pytorch(page) == {"b.c"}
    assert worst([complex_, Outcome(COMPILED)]) == complex_


def test_reasons_in_few_words() -> None:
    assert reason("operators that are not supported:\n  - linalg_qr.default (f.py:1: x)") == "linear algebra"
    assert reason("nonzero.default: what it gives, or its shape, depends on elements.").startswith("shapes or numbers")
