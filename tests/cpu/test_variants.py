"""How many kernels a contraction has: tiles of other sizes, and the plan that is taken where two are as fast."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glowtrain.backends.cpu.contraction import Contraction, generate, rates
from glowtrain.backends.cpu.contraction.describe import normalise
from glowtrain.backends.cpu.contraction.dot_product import prepare
from glowtrain.backends.cpu.contraction.levels import written
from glowtrain.backends.cpu.contraction.nest import Nest
from glowtrain.backends.cpu.contraction.rates import Machine
from glowtrain.backends.cpu.contraction.tile import RegisterTile
from glowtrain.backends.target import Target
from tests.cpu.contraction_kernels import WIDTHS, Buffers, execute
from tests.cpu.contractions import matmul
from tests.cpu.random_contractions import contractions

choosing = importlib.import_module("glowtrain.backends.cpu.contraction.choose")


def counted(contraction: Contraction, target: Target) -> list[tuple[int, int]]:
    """Of the cheapest plans: the sums of all kernels that a nest calls, and how many were expected."""
    prepared = prepare(contraction, target)
    problem = normalise(prepared.contraction, keep_lanes=False, dot=prepared.dot)
    found = []
    for entry in choosing._cheapest(problem, Machine.of(target, contraction.dtype)):
        for x in choosing._refined(entry.x, entry.kinds, False):
            plan = choosing.arranged(x, entry.kinds, 0.0)
            nest = Nest(plan, "f", None, prepared)
            nest.functions()
            sums = sum(RegisterTile(plan, variant).sums for variant in nest.kernels)
            found.append((sums, written(x, entry.kinds)))
    return found


@settings(suppress_health_check=list(HealthCheck))
@given(contraction=contractions(), width=st.sampled_from(sorted(WIDTHS)))
def test_code_is_counted_before_it_is_written(contraction: Contraction, width: str) -> None:
    assert all(sums == expected for sums, expected in counted(contraction, WIDTHS[width]))


@pytest.mark.parametrize("shape", [(768, 128, 512), (300, 250, 40), (64, 1024, 1600), (2048, 128, 512)])
def test_code_is_counted_in_blocks_and_parts(shape: tuple[int, int, int]) -> None:
    assert all(sums == expected for sums, expected in counted(matmul(*shape), WIDTHS["512"]))


def test_of_plans_as_fast_one_has_less_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of 6 rows by 4 vectors instead of 9 and 8 by 3 and 2: one kernel instead of four, the same bits."""
    product, target = matmul(768, 128, 512), Target.named("avx512")
    buffers = Buffers(product)
    few, result = generate(product, "f", target), execute(product, WIDTHS["512"], buffers)
    assert few.plan.startswith("6m by 4 vectors of nx16")
    assert few.plan.endswith("; 1 kernels")
    monkeypatch.setattr(rates, "ABOUT_THE_SAME", 1.0)
    many = generate(product, "f", target)
    assert many.plan.endswith("; 4 kernels")
    np.testing.assert_array_equal(execute(product, WIDTHS["512"], buffers), result)


def test_a_plan_is_left_only_for_much_less_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here it is 24 instead of 85 sums."""
    product, target = matmul(768, 128, 512), Target.named("avx512")
    monkeypatch.setattr(rates, "MUCH_LESS_CODE", 0.28)
    assert generate(product, "f", target).plan.endswith("; 4 kernels")
    monkeypatch.setattr(rates, "MUCH_LESS_CODE", 0.29)
    assert generate(product, "f", target).plan.endswith("; 1 kernels")
