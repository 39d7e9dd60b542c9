"""docs/torch-operators.md: which of PyTorch's operators are compiled, by their own samples.

``python tests/with_torch/opinfo_table.py`` writes it, from some samples of each; with ``--all`` it walks all samples
(hours), of several element types, and only says what is wrong.
"""

from __future__ import annotations

import argparse
import logging
import random
import re
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch
from opinfo import COMPILED, DIFFERS, FALLS_BACK, OPERATORS, RAISES, Outcome, check, samples

PAGE = Path(__file__).resolve().parents[2] / "docs" / "torch-operators.md"
PART = 1
"""Samples of each operator that the table tells of."""
WORSE = (COMPILED, FALLS_BACK, RAISES, DIFFERS)
ALL = (torch.float32, torch.float64, torch.int64)
HEAD = """# PyTorch's operators

What `torch.compile(..., backend="glowtrain")` does with PyTorch's own samples of its operators (`op_db`, which it tests
itself with), {part} of each by chance, in f32: results, gradients and gradients of gradients beside eager PyTorch's.
`python tests/with_torch/opinfo_table.py` writes this page, `make test-torch` holds it true, and `make test-opinfo`
walks all samples, in f32, f64 and i64.

PyTorch {version}: of {total} operators and variants **{compiled} are compiled whole**, {fallen} are left to PyTorch for
a sample or more, with a `FallbackWarning` or by Dynamo; none differs, and none raises where eager PyTorch does not.
{other} more have no sample of dense tensors. Of random numbers only types and shapes are compared.

| left to PyTorch because of | operators |
|---|---|
"""


def part(name: str) -> Iterator[Outcome]:
    """Outcomes of the samples that the table tells of; derivatives of derivatives of the first."""
    found = list(samples(name, torch.float32))
    chosen = random.Random(name).sample(range(len(found)), min(PART, len(found)))
    outcomes = (check(name, found[number], second=number == chosen[0]) for number in chosen)
    yield from filter(None, outcomes)


def outcome(name: str) -> Outcome | None:
    """The worst of them."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return worst(part(name))


def worst(outcomes: Iterable[Outcome]) -> Outcome | None:
    return max(outcomes, key=lambda each: WORSE.index(each.state), default=None)


def left_to_pytorch(page: str) -> set[str]:
    """The operators that the page says are not compiled."""
    rows = [line.split(" | ")[-1] for line in page.splitlines() if line.startswith("| ")]
    return {name for row in rows[1:] for name in re.findall(r"`([^`]+)`", row)}


def table(found: dict[str, Outcome | None]) -> str:
    """The page."""
    by_reason: dict[str, list[str]] = {}
    for name, each in found.items():
        if each and each.state == FALLS_BACK:
            by_reason.setdefault(reason(each.why), []).append(f"`{name}`")
    states = Counter(each.state for each in found.values() if each)
    head = HEAD.format(
        part=PART, version=torch.__version__.partition("+")[0], total=states.total(), compiled=states[COMPILED],
        fallen=states[FALLS_BACK], other=len(found) - states.total(),
    )  # fmt: skip
    rows = [f"| {why} | {', '.join(sorted(names))} |\n" for why, names in sorted(by_reason.items(), key=_order)]
    return head + "".join(rows)


def _order(row: tuple[str, list[str]]) -> tuple[int, str]:
    return -len(row[1]), row[0]


def reason(why: str) -> str:
    """A warning's, in few words."""
    if why.startswith("Dynamo: "):
        return "Dynamo, which breaks the graph"
    if "torch.complex" in why or "_fft_" in why:
        return "complex numbers"
    if "depends on elements" in why or "depend on elements" in why or "data-dependent" in why or "unbacked" in why:
        return "shapes or numbers that depend on elements"
    if named := re.findall(r"^  - (\w+)\.?\w*", why, re.MULTILINE):
        return _family(named[0])
    return "a setting of an operator that others compile with"


def _family(operator: str) -> str:
    families = {"special functions": "special_|igamma", "linear algebra": "linalg|_linalg|lu_|qr|geqrf|ormqr|cholesky"}
    found = [family for family, names in families.items() if re.match(names, operator)]
    return found[0] if found else "an operator that has no entry"


def walk(name: str) -> list[str]:
    """What is wrong with any sample of an operator."""
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    return [line for dtype in ALL if dtype in OPERATORS[name].supported_dtypes("cpu") for line in _wrong(name, dtype)]


def _wrong(name: str, dtype: torch.dtype) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for number, sample in enumerate(samples(name, dtype)):
            found = check(name, sample)
            if found and found.state in (DIFFERS, RAISES):
                yield f"{name}, sample {number} in {dtype}, {found.state}: {found.why}"


def _quiet_outcome(name: str) -> Outcome | None:
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    return outcome(name)


NAMES = [name for name, operator in OPERATORS.items() if torch.float32 in operator.supported_dtypes("cpu")]
"""The operators that the table tells of."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="walk all samples, and say what is wrong")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool:
        if given.all:
            wrong = [line for lines in pool.map(walk, OPERATORS) for line in lines]
            print("\n".join(wrong) or "nothing differs, nothing raises")
            return bool(wrong)
        found = dict(zip(NAMES, pool.map(_quiet_outcome, NAMES), strict=True))
    for name, each in found.items():
        if each and each.state in (DIFFERS, RAISES):
            print(f"{name} {each.state}: {each.why}", file=sys.stderr)
    PAGE.write_text(table(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
