"""No reference depends on what C and NumPy leave to the processor: casts of NaN, ends of integer types, dispatch."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from glowtrain.errors import GlowtrainError
from glowtrain.gradcheck.draw import SPECIAL
from glowtrain.gradcheck.operators.edges import drawn_edge, drawn_example
from glowtrain.gradcheck.operators.ladder import Runner, feeds, run_compiled, run_lowered
from glowtrain.gradcheck.operators.oracles import Applied, applied, converted
from glowtrain.graph import Operator, Sample
from glowtrain.graph.specialise.index_ranges import index_problems
from glowtrain.loops.functions import truncated
from glowtrain.ops.ml.labels import SearchSorted
from glowtrain.types import Array, DType, bf16, f16, f32, i8, i32, i64, u8, u32, u64
from tests.gradcheck.references import OPERATORS

EXAMPLES = 5
INTEGERS = (i8, u8, i32, u32, i64, u64)


LESSER = {"AVX2": "X86_V4 AVX512_ICL AVX512_SPR AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL"}
LESSER["SSE4"] = f"{LESSER['AVX2']} X86_V3 AVX2 FMA3 F16C"
"""Names of instructions that NumPy's versions have had, for processors without them."""


def with_values(array: Any, values: Any, seed: int) -> Any:
    """A copy, half of its elements replaced."""
    random, flat = np.random.default_rng(seed), array.copy().reshape(-1)
    at = random.permutation(flat.size)[: -(-flat.size // 2)]
    flat[at] = random.choice(values, len(at))
    return flat.reshape(array.shape)


def in_integers(sample: Sample, dtype: DType, seed: int) -> Sample:
    """The floats as integers, the ends of the type among them."""
    ends = np.iinfo(dtype.numpy)
    values = np.array([ends.min, ends.max, ends.max - 1, 0, 1], dtype.numpy)
    arrays = (a if a is None else np.asarray(a) for a in sample.inputs)
    floats = ((a, a is not None and a.dtype == np.float64) for a in arrays)
    turned = (with_values(truncated(a, dtype), values, seed) if is_float else a for a, is_float in floats)
    return replace(sample, inputs=tuple(turned))


def in_floats(sample: Sample, seed: int) -> Sample:
    """The integers as floats, special ones among them."""
    arrays = (a if a is None else np.asarray(a) for a in sample.inputs)
    whole = ((a, a is not None and a.dtype.kind in "iu") for a in arrays)
    turned = (with_values(a.astype(np.float64), SPECIAL, seed) if is_whole else a for a, is_whole in whole)
    return replace(sample, inputs=tuple(turned))


def drawn(operator: type[Operator], examples: int = EXAMPLES) -> Iterator[tuple[int, Sample]]:
    for example in range(examples):
        for sample in (drawn_example(operator, 0, example), drawn_edge(operator, 0, example)):
            if sample is not None:
                yield example, sample


def uses(samples: Iterator[Sample]) -> Iterator[Applied]:
    """Those of the samples that the operator takes."""
    for sample in samples:
        try:
            use = applied(sample)
            if not index_problems(use.probe.graph, feeds(use.probe.graph, use.probe.arrays)):
                use.reference(use.probe.arrays)
                yield use
        except GlowtrainError:
            continue


@pytest.fixture
def casts_are_checked(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A cast that C leaves undefined is an error, also where code ignores what else floating-point arithmetic flags."""
    errstate = np.errstate
    monkeypatch.setattr(np, "errstate", lambda **chosen: errstate(**{**chosen, "all": "ignore", "invalid": "warn"}))
    with warnings.catch_warnings(), np.errstate():
        warnings.simplefilter("ignore", RuntimeWarning)
        warnings.filterwarnings("error", "invalid value encountered in cast")
        yield


@pytest.mark.spread(29)
@pytest.mark.usefixtures("casts_are_checked")
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda cls: cls.key())
def test_references_cast_only_what_fits(operator: type[Operator]) -> None:
    """NaN, infinities and large numbers as integers are what the processor makes of them, unless a rule says."""
    for example, sample in drawn(operator):
        others = (*(converted(sample, dtype) for dtype in (f32, f16, bf16)), in_floats(sample, example))
        integers = (in_integers(sample, dtype, example) for dtype in INTEGERS)
        list(uses(iter((sample, *others, *integers))))


@pytest.mark.usefixtures("casts_are_checked")
def test_the_check_sees_a_cast() -> None:
    with pytest.raises(RuntimeWarning), np.errstate(all="ignore"):
        np.array([np.nan]).astype(np.int32)


TAKES_SORTED = {SearchSorted: "its numbers must be sorted, and the ends of a type are put anywhere"}


@pytest.mark.spread(29)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("run", "examples"), [(run_lowered, EXAMPLES), (run_compiled, 1)], ids=["evaluator", "compiled"]
)
@pytest.mark.parametrize("operator", [cls for cls in OPERATORS if cls not in TAKES_SORTED], ids=lambda cls: cls.key())
def test_integers_at_the_ends_of_their_types(operator: type[Operator], run: Runner, examples: int) -> None:
    """Lowered and compiled code gives the reference's integers; where 64 bits are computed in f64, to its rounding."""
    for use in uses(in_integers(s, dtype, k) for k, s in drawn(operator, examples) for dtype in INTEGERS):
        graph = use.probe.graph
        if not all(value.dtype.is_integer for value in graph.outputs.values()):
            continue
        found = run(graph, feeds(graph, use.probe.arrays))
        for (name, value), wanted in zip(graph.outputs.items(), use.reference(use.probe.arrays), strict=True):
            rounding = 2.0**-52 if value.dtype.size == 8 else 0.0
            np.testing.assert_allclose(
                found[name].astype(float), wanted.astype(float), rounding, err_msg=str(use.sample)
            )


def references(file: Path, without: str = "", blas: str = "") -> dict[str, list[Array]]:
    """What references give where NumPy, and its products, use fewer instructions."""
    own = {"NPY_DISABLE_CPU_FEATURES": without, "OPENBLAS_CORETYPE": blas}
    environment = {**os.environ, **{name: value for name, value in own.items() if value}}
    command = [sys.executable, "-W", "ignore", "-m", "tests.gradcheck.references", str(file)]
    subprocess.run(command, env=environment, check=True, timeout=300, capture_output=True)
    found: dict[str, list[Array]] = pickle.loads(file.read_bytes())
    return found


def apart(found: Array, wanted: Array) -> bool:
    """Whether integers, zeros' signs, or places of NaN and infinities differ, or numbers by more than sums round."""
    if found.dtype.kind in "iub" or found.dtype != wanted.dtype:
        return found.dtype != wanted.dtype or not np.array_equal(found, wanted)
    eps = {8: 2.0**-52, 4: 2.0**-23, 2: 2.0**-7}.get(found.dtype.itemsize, 0.0)
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    largest = np.max(np.abs(b), initial=0.0, where=np.isfinite(b))
    close = np.isclose(a, b, rtol=16 * eps, atol=16 * eps * largest, equal_nan=True)
    zeros = (a == 0) & (b == 0) & (np.signbit(a) != np.signbit(b))
    return bool((~close | zeros).any())


@pytest.mark.exhaustive
@pytest.mark.parametrize(("without", "blas"), [("AVX2", ""), ("SSE4", "Nehalem")])
def test_references_are_the_same_by_other_instructions(without: str, blas: str, tmp_path: Path) -> None:
    """But for the last bits of sums and of what is not rounded correctly."""
    wanted, found = references(tmp_path / "own"), references(tmp_path / "lesser", LESSER[without], blas)
    assert list(found) == list(wanted)
    different = [name for name in wanted if any(map(apart, found[name], wanted[name]))]
    assert not different
