"""The same bits on emulated processors as on this one: make test-targets runs this, and installs what it needs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from glowtrain.types import Array
from tests.targets import cases
from tests.targets.emulated import MACHINES, PACKAGES, Case, here, run

SAMPLES = [case for case in cases.operators() if case.artifact(MACHINES["riscv64"].reference, "").portable]
PART = 100
"""Samples of one program."""


@pytest.fixture(params=MACHINES, scope="module")
def machine(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    missing = MACHINES[name].missing
    assert not missing, f"install {', '.join(missing)}: Debian has {PACKAGES}"
    return name


def same(a: Array, b: Array) -> bool:
    """Whether all bits are the same; which of its NaNs a processor gives is its own choice."""
    if a.dtype.kind in "iub":
        return np.array_equal(a, b)
    wide = [array.astype(np.float64) for array in (a, b)]
    numbers = ~np.isnan(wide[0])
    return np.array_equal(numbers, ~np.isnan(wide[1])) and a[numbers].tobytes() == b[numbers].tobytes()


def check(given: Sequence[Case], name: str, folder: Path) -> None:
    found, wanted = run(given, MACHINES[name], folder), here(given, MACHINES[name].reference)
    different = [
        f"{case.name}: {kind} {result}"
        for case, these, those in zip(given, found, wanted, strict=True)
        for (kind, result), array in those.items()
        if not same(these[kind, result], array)
    ]
    assert not different, "\n".join(different)


@pytest.mark.parametrize("first", range(0, len(SAMPLES), PART))
def test_operators_and_their_gradients(machine: str, first: int, tmp_path: Path) -> None:
    check(SAMPLES[first : first + PART], machine, tmp_path)


def test_training_steps(machine: str, tmp_path: Path) -> None:
    check(list(cases.training()), machine, tmp_path)


def test_integers_of_any_size(machine: str, tmp_path: Path) -> None:
    check([cases.long_integers(), *cases.in_integers()], machine, tmp_path)
