"""What every operator's reference gives at drawn and edge samples: ``python -m tests.gradcheck.references FILE``.

Run in processes in which NumPy uses other instructions (NPY_DISABLE_CPU_FEATURES), the files are to hold the same.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from glowtrain.gradcheck.operators.edges import drawn_edge, drawn_example
from glowtrain.gradcheck.operators.oracles import MISTAKES, converted
from glowtrain.graph import Operator, Sample, registered
from glowtrain.graph.operator import as_tuple
from glowtrain.types import Array, f16, f32

OPERATORS: list[type[Operator]] = list(registered(lambda cls: not cls.random))
EXAMPLES = 6


def samples(operator: type[Operator]) -> Iterator[tuple[str, Sample]]:
    for kind, draw in (("example", drawn_example), ("edge", drawn_edge)):
        for example in range(EXAMPLES):
            sample = draw(operator, 0, example)
            if sample is None:
                continue
            for dtype in (None, f32, f16):
                yield f"{operator.key()} {kind} {example} {dtype or ''}", converted(sample, dtype) if dtype else sample


def results() -> Iterator[tuple[str, list[Array]]]:
    for operator in OPERATORS:
        for name, sample in samples(operator):
            try:
                yield name, [np.asarray(array) for array in as_tuple(sample.operator.reference(*sample.inputs))]
            except MISTAKES as error:  # it does not take a narrow type, and says so everywhere
                yield f"{name}: {type(error).__name__}", []


if __name__ == "__main__":
    with np.errstate(all="ignore"):
        Path(sys.argv[1]).write_bytes(pickle.dumps(dict(results())))
