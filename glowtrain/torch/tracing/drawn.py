"""Detect random numbers of Python and NumPy, which a trace would make constants of."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from glowtrain.errors import InputError


@contextmanager
def nothing_drawn(generators: Sequence[Any]) -> Iterator[None]:
    """Raise :class:`InputError` where code within draws from ``random``, ``numpy.random`` or one of ``generators``."""
    before = _states(generators)
    yield
    drawn = [name for (name, then), (_, now) in zip(before, _states(generators), strict=True) if then != now]
    if drawn:
        raise InputError(
            f"the module or the loss draws random numbers from {' and '.join(drawn)}. Its Python code runs once, when "
            "it is compiled, so that all steps would use the same ones: draw them by PyTorch (torch.rand(()), "
            "torch.distributions), or outside, and pass them as tensors"
        )


def _states(generators: Sequence[Any]) -> list[tuple[str, bytes]]:
    states = [("random", random.getstate()), ("numpy.random", np.random.get_state())]  # noqa: NPY002  what others use
    states += [(f"a {type(each).__module__}.{type(each).__name__}", each) for each in generators]
    return [(name, pickle.dumps(state)) for name, state in states]
