"""The parts of a compilation: a backend's facts, the caller's options, passes, and the stages that apply them.

The stages themselves are listed in one table, :data:`glowtrain.compiler.walk.WALK`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

from glowtrain.errors import InputError
from glowtrain.memory.budget import UNSAID, Budget
from glowtrain.memory.precision import RoundedFactors
from glowtrain.memory.residuals import Residuals
from glowtrain.presentation.messages import kind_of


@dataclass(frozen=True)
class Costs:
    """Nanoseconds by which operators choose between algorithms; the defaults were measured on one core."""

    select: float = 2.5
    """Choosing the best of a row's elements: per element and result."""
    count: float = 0.7
    """Counting which elements come first: per pair of elements."""
    sort_keys: float = 3.0
    """Sorting integers of 64 bits: per comparison."""
    sort_pairs: float = 8.5
    """Sorting elements with their positions: per comparison."""


@dataclass(frozen=True)
class Rates:
    """What is done in a nanosecond, roughly, by which passes weigh time against memory; measured on one core. They
    decide about code that is the same on every machine, so they are no machine's own."""

    multiply_adds: float = 64.0
    """Terms of sums of products."""
    operations: float = 32.0
    """Other results of arithmetic."""
    functions: float = 4.0
    """Results of costly functions: exp and the like."""
    bytes: float = 36.0
    """Bytes that are read or written shortly after others read or wrote them."""
    strided: float = 2.0
    """Elements that are loaded or stored one by one, as they are no neighbours."""
    memory: float = 12.0
    """Bytes that were written long ago."""


PLAIN_RATES = Rates()
"""Those of a core with wide vectors."""


@dataclass(frozen=True)
class Facts:
    """What a backend tells passes, which know no processor themselves. The defaults are those of one CPU core."""

    max_operands: int = 24
    """Buffers that a fused kernel may touch: with more pointers than registers nothing is gained."""
    max_expressions: int = 400
    """Expressions that a fused kernel may have: LLVM's time grows faster than its code."""
    max_statements: int = 40
    """Statements that a fused kernel may have: beyond that nothing is left in registers anyway."""
    max_inlined: int = 96
    """Expressions that an inlined producer may have."""
    preferred_layouts: bool = True
    """Whether buffers get the layouts that operators prefer (a convolution: channels last) or stay row-major."""
    panel_row: int = 256
    """Bytes of a row of the panels in which matrices are packed that repeats multiply with: some vectors; 0: none."""
    alignment: int = 64
    """Bytes at multiples of which activations lie in memory."""
    costs: Costs = Costs()
    """The costs by which composite operators choose an algorithm."""
    rates: Rates = PLAIN_RATES
    """The rates by which time is weighed against memory."""
    sums: Callable[[Any], tuple[Hashable, ...]] | None = None
    """Of a kernel, the order in which each of its sums is taken: those of the same elements have the same bits where
    these are equal. Without it no kernel is cut in slices."""


@dataclass(frozen=True)
class Refused:
    """What a rule returns in place of a result where it could have changed something but did not: the reason."""

    why: str


Explain = Callable[[str, str], None]
"""Called with what a pass left as it is, and why."""


@dataclass(frozen=True)
class Options:
    """Everything besides the graph and the backend that may change what is compiled; part of every cache key.

    ``fixed_point``: sums of quantized products are rescaled by integers alone. ``prefix`` begins every symbol that
    compiled code exports. ``profile``: compiled code notes the times of its calls. ``linkable``: compiled code is one
    object, which a linker takes; a backend may make several at the same time otherwise. ``segmented``: the step can be
    run in segments, between which outputs that are complete can be used. ``row_major_variables``: variables lie
    row-major, for memory that belongs to somebody else; ``variable_layouts``: some lie as said here, by
    name: the order of their axes in memory. ``pack_variables``: a backend may read variables that nothing updates from
    copies in another encoding, which take as much memory again. ``memory``: how much may be needed, and what time is
    paid for less; ``precision``: which factors of products are in 16 bits, if any; ``residuals``: how activations
    are saved for the backward part of a step, if not as they are.
    ``check``: the verifier of each stage runs on what it made; ``explain`` is called with the stage's name, what passes
    leave as it is and why (both change nothing that is compiled). Raises :class:`InputError` for a prefix that is not
    the beginning of a C identifier, and for facts that are no :class:`Facts`.
    """

    facts: Facts = Facts()
    fixed_point: bool = False
    prefix: str = ""
    profile: bool = False
    linkable: bool = False
    segmented: bool = False
    row_major_variables: bool = False
    variable_layouts: tuple[tuple[str, tuple[int, ...]], ...] = ()
    pack_variables: bool = False
    memory: Budget = UNSAID
    precision: RoundedFactors | None = None
    residuals: Residuals | None = None
    check: bool = False
    explain: Callable[[str, str, str], None] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.facts, Facts):
            raise InputError(f"a backend's facts are a Facts, not {kind_of(self.facts)}")
        text = isinstance(self.prefix, str)
        if not text or (self.prefix and not (self.prefix.isascii() and self.prefix.isidentifier())):
            raise InputError(f"prefix {self.prefix!r} must begin a C identifier: letters, digits and _, no digit first")

    @property
    def key(self) -> str:
        """Equal for options that compile to the same."""
        decisive = (entry.name for entry in fields(self) if entry.name not in ("check", "explain"))
        return ", ".join(f"{name}={getattr(self, name)!r}" for name in decisive)


DEFAULT = Options()
"""The facts of one CPU core, and no options set."""


def explainer(options: Options, stage: str) -> Explain | None:
    """``options.explain`` for one stage."""
    return None if options.explain is None else partial(options.explain, stage)


class Pass(Protocol):
    """One step of a compilation: a frozen dataclass whose fields are its options."""

    def run(self, subject: Any, /) -> Any:
        """The result. ``subject`` is not changed; it is returned as it is where there is nothing to do."""


@dataclass(frozen=True)
class FusedStages:
    """What ``first`` and ``second`` make, passes of two stages in a row, in one pass: sooner, for whoever does not need
    the result between."""

    first: Callable[[Options], Pass]
    second: Callable[[Options], Pass]
    make: Callable[[Options], Pass]


@dataclass(frozen=True)
class View:
    """Another text of a stage's result, for readers, by a name of its own."""

    name: str
    text: Callable[[Any], str]


@dataclass(frozen=True)
class Stage:
    """A named step of the walk. ``says``: its result, in a few words; ``make``: the pass that leads to it.

    A ``minor`` stage is compared with the reference only if the next one differs, to say which of the two it was.
    Where a stage is not ``exact``, the stages after it are compared with its result. ``fused``: how it is done in one
    with the stage before. ``views``: other texts of its result; ``numbers``: a few words on a result that is neither
    graph, program nor plan.
    """

    name: str
    says: str
    make: Callable[[Options], Pass]
    minor: bool = False
    exact: bool = True
    fused: FusedStages | None = None
    views: tuple[View, ...] = ()
    numbers: Callable[[Any], str] | None = None
