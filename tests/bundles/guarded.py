"""Bundles called with every piece of memory directly before, and directly behind, pages that must not be touched.

A fault ends the process, so tests run this in one of its own; the last line says which model it was.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import numpy as np

from tests.bundles.in_process import Loaded, compiled, contents
from tests.bundles.networks import BATCH, CASES
from tests.cpu.native_program import Pages


def main(names: Sequence[str]) -> None:
    for name in names or CASES:
        print(name, flush=True)
        case = CASES[name]()
        dims = {"batch": BATCH} if case.trainer.graphs.template else {}
        loaded = Loaded(compiled(contents(case.trainer, dims=dims)))
        for at_end in (False, True):
            instance = loaded.instance(partial(Pages, at_end=at_end))
            random = np.random.default_rng(2)
            for _ in range(2):
                instance.run("step", case.batch(random))
            instance.run("predict", case.batch(random))
            for variable, value in instance.values().items():
                assert instance.set(variable, value) == 0
            code, file = instance.saved()
            assert code == 0
            assert instance.load(file) == 0


if __name__ == "__main__":
    main(sys.argv[1:])
