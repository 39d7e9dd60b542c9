"""What a compilation is made of: a backend's facts, the caller's options, passes, and the stages that apply them.

The stages themselves stand in one table, :data:`glowtrain.compiler.walk.WALK`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

from glowtrain.errors import InputError
from glowtrain.presentation.words import kind_of


@dataclass(frozen=True)
class Costs:
    """Nanoseconds by which operators choose between algorithms; the defaults were measured on one core."""

    select: float = 2.5
    """Of choosing the best of a row's elements: for an element and a result."""
    count: float = 0.7
    """Of counting which elements come first: for a pair of elements."""
    sort_keys: float = 3.0
    """Of sorting integers of 64 bits: for a comparison."""
    sort_pairs: float = 8.5
    """Of sorting elements with their positions: for a comparison."""


@dataclass(frozen=True)
class Facts:
    """What passes, which know no processor, take from a backend. The defaults are those of one core of a CPU."""

    max_operands: int = 24
    """Buffers that a fused kernel may touch: more pointers than registers gain nothing."""
    max_expressions: int = 400
    """Expressions that a fused kernel may have: LLVM's time grows faster than its code."""
    max_statements: int = 40
    """Statements that a fused kernel may have: beyond that nothing is left in registers anyway."""
    max_inlined: int = 96
    """Expressions that an inlined producer may have."""
    preferred_layouts: bool = True
    """Whether buffers get the layouts that operators prefer (a convolution: channels last) or stay row-major."""
    costs: Costs = Costs()
    """What composite operators choose an algorithm by."""


@dataclass(frozen=True)
class Refused:
    """What a rule gives in place of a result where it could have changed something and does not: why."""

    why: str


Explain = Callable[[str, str], None]
"""Takes what a pass left as it is, and why."""


@dataclass(frozen=True)
class Options:
    """Everything beside the graph and the backend that may change what is compiled; part of every cache key.

    ``fixed_point``: sums of quantized products are rescaled by integers alone. ``prefix`` begins every symbol that
    compiled code exports. ``profile``: compiled code counts the cycles of each of its calls. ``linkable``: compiled
    code is one object, which a linker takes; a backend may make several at the same time otherwise. ``check``: the
    verifier of each stage runs on what it made; ``explain`` is told, with the stage's name, what passes leave as it is
    and why (both change nothing that is compiled). Raises :class:`InputError` for a prefix that is not the beginning of
    a C identifier, and for facts that are none.
    """

    facts: Facts = Facts()
    fixed_point: bool = False
    prefix: str = ""
    profile: bool = False
    linkable: bool = False
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
"""One CPU core's facts, and nothing asked for."""


def told(options: Options, stage: str) -> Explain | None:
    """``options.explain`` for one stage."""
    return None if options.explain is None else partial(options.explain, stage)


class Pass(Protocol):
    """One step of a compilation: a frozen dataclass whose fields are its options."""

    def run(self, subject: Any, /) -> Any:
        """The result. ``subject`` stays as it is; it comes back where there is nothing to do."""


@dataclass(frozen=True)
class Stage:
    """A named place in the walk. ``says``: what stands there, in a few words; ``make``: the pass that leads to it.

    A ``minor`` stage is compared with the reference only where the next one differs, to say which of them it was.
    What a stage that is not ``exact`` makes is what those after it are compared with.
    """

    name: str
    says: str
    make: Callable[[Options], Pass]
    minor: bool = False
    exact: bool = True
