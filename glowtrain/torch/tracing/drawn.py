"""Detect random numbers of Python and NumPy, and elements of iterators, which a trace would make constants of."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator
from queue import SimpleQueue
from types import GeneratorType
from typing import Any

import numpy as np

from glowtrain.errors import InputError

GENERATORS = (random.Random, np.random.Generator, np.random.RandomState)
RUNS_ONCE = "Its Python code runs once, when it is compiled, so that all steps would use the same"
PASS_THEM = "draw them by PyTorch (torch.rand(()), torch.distributions), or outside, and pass them as tensors"


class Generators:
    """Generators of random numbers, and iterators, with their states when they were added: those of ``random`` and
    ``numpy.random`` at first."""

    def __init__(self) -> None:
        self._before = [(name, state, _fingerprint(state)) for name, state in _global_states()]

    def add(self, generator: Any) -> None:
        """Add a generator from which code may draw that is about to run."""
        self._before.append((_name(generator), generator, _fingerprint(_state(generator))))

    def check(self) -> None:
        """Raise :class:`InputError` where code has drawn from one of them, or may have: states may be unreadable."""
        now = dict(_global_states())
        states = ((name, _fingerprint(_state(now.get(name, each))), then) for name, each, then in self._before)
        drawn = list(dict.fromkeys(name for name, state, then in states if state is None or state != then))
        if drawn:
            raise InputError(
                f"the module or the loss draws numbers from {' and '.join(drawn)}. {RUNS_ONCE} ones: {PASS_THEM}"
            )


def check_left(values: Iterable[Any]) -> None:
    """Raise :class:`InputError` where code leaves generators and iterators of its own to its next call."""
    for each in values:
        if isinstance(each, (Iterator, *GENERATORS)):
            raise InputError(
                f"the module or the loss makes {_name(each)}, and keeps it for the next call to draw from. {RUNS_ONCE} "
                f"numbers: {PASS_THEM}"
            )


def _name(generator: Any) -> str:
    return f"a {type(generator).__module__}.{type(generator).__name__}"


def _global_states() -> list[tuple[str, Any]]:
    return [("random", random.getstate()), ("numpy.random", np.random.get_state())]  # noqa: NPY002  what others use


def _state(generator: Any) -> Any:
    """A generator of Python's code is at an instruction, with variables; queues have lengths; others can be pickled."""
    if isinstance(generator, SimpleQueue):
        return generator.qsize()
    if not isinstance(generator, GeneratorType):
        return generator
    frame, inner = generator.gi_frame, generator.gi_yieldfrom
    own = frame and (frame.f_lasti, {name: id(value) for name, value in frame.f_locals.items()})
    return own, inner and _fingerprint(_state(inner))


def _fingerprint(state: Any) -> bytes | None:
    try:
        return pickle.dumps(state)
    except (TypeError, AttributeError, NotImplementedError, pickle.PicklingError):  # over what cannot be pickled
        return None
