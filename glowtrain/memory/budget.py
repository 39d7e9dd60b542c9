"""Budgets of memory, as a person gives them: what a compiled function may need, and what time may be paid for less."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from glowtrain.errors import InputError, MemoryBudgetError
from glowtrain.memory.byte_size import parse_bytes

FREE, SMALL = 0.02, 0.25
"""The parts of its time by which a step may become longer, as far as it can be estimated: where nobody said anything
about memory, and where it is to be small."""


@dataclass(frozen=True)
class Budget:
    """What is paid for memory. ``slower``: the part of its time by which a function may become longer where no limit
    is given; ``modest``: what is small anyway is left as it is. ``nbytes``: variables and arena together need no more
    bytes; ``share``: no more than this part of what they need where nothing is computed again. Both limits are kept
    whatever time it takes.
    """

    slower: float = FREE
    modest: bool = True
    nbytes: int | None = None
    share: float | None = None

    @property
    def limited(self) -> bool:
        """Whether a limit is given."""
        return self.nbytes is not None or self.share is not None

    def limit(self, whole: int) -> int:
        """The limit in bytes, for what needs ``whole`` where nothing is computed again."""
        if self.nbytes is not None:
            return self.nbytes
        assert self.share is not None
        return int(self.share * whole)


UNSAID = Budget()
"""Where nobody said anything about memory: less of it, for next to no time."""
KEEP = Budget(share=1.0)
"""Nothing is computed again."""
SMALLEST = Budget(slower=math.inf, modest=False)
"""Everything is computed again that makes less memory do."""

Memory = int | float | str | Budget | None
"""What a person may give for a budget: see :func:`budget_of`."""

_WORDS = {"small": Budget(SMALL, modest=False), "keep": KEEP}


def budget_of(memory: Memory) -> Budget:
    """A budget from ``None`` (whatever costs no time), ``"small"`` (as small as a quarter more time makes it),
    ``"keep"`` (nothing is computed again), bytes (``67_108_864``, ``"64MB"``, ``"64 MiB"``), or a share of what is
    needed with ``"keep"`` (``0.5``, ``"50%"``).

    Raises :class:`InputError` for anything else: bytes below 1, a share that is not above 0 and at most 1.
    """
    if memory is None:
        return UNSAID
    if isinstance(memory, Budget):
        return memory
    if isinstance(memory, str) and memory.strip().lower() in _WORDS:
        return _WORDS[memory.strip().lower()]
    share = _share(memory)
    if share is None:
        return Budget(nbytes=parse_bytes(memory, "memory"))
    if not 0 < share <= 1:
        raise InputError(f"memory {memory!r}: a share is above 0 and at most 1 (100%); say bytes as 64MB or 67108864")
    return Budget(share=share)


def check_variables(name: str, variables: int, limit: int | None) -> None:
    """Raise :class:`MemoryBudgetError` where variables alone take more bytes than a limit."""
    if limit is not None and variables > limit:
        raise MemoryBudgetError(
            f"{name}: {limit:,} bytes of memory are too few: its variables (parameters, the optimizer's and others) "
            f"alone take {variables:,}; an optimizer with less state, frozen layers (trainable=) or bf16 would help"
        )


def _share(memory: int | float | str) -> float | None:
    """A percentage, or a number with a fraction; ``None`` for what counts bytes."""
    if isinstance(memory, str):
        text = memory.strip()
        number = _number(text.removesuffix("%"))
        if text.endswith("%"):
            return number if number is None else number / 100
        return None if number is None or "." not in text else _share(number)
    fraction = isinstance(memory, (float, np.floating)) and (memory <= 1 or not float(memory).is_integer())
    return float(memory) if fraction else None


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
