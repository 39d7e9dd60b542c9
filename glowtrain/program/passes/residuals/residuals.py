"""The pass that stores activations which are saved for the backward part in bf16.

A result in f32 that instructions of the backward part read, and that is live while others run, is stored in bf16
by what makes it, or behind it; the backward part reads this and widens it again in registers. The forward part reads
what it always did, so outputs have the same bits; gradients are those at values that were rounded to nearest even.

Saved is what is kept where other results are computed again for next to no time. That follows from the program
alone, so gradients have the same bits with any budget that can be kept so. Where one asks for less, less is saved. What
is computed again in the backward part is made of what was rounded there, and not rounded once more.

Source: Chakrabarti and Moseley, Backprop with Approximate Activations for Memory-efficient Network Training (NeurIPS
2019): approximate ones for the backward pass, exact ones for the forward pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from glowtrain.errors import MemoryBudgetError
from glowtrain.loops import Buffer
from glowtrain.memory.budget import SMALLEST, UNSAID, Budget, budget_of
from glowtrain.memory.residuals import Residuals
from glowtrain.program.passes.rematerialisation.rematerialize import Rematerialize
from glowtrain.program.passes.residuals.forward_part import forward_part
from glowtrain.program.passes.residuals.saved_activations import narrow_saved
from glowtrain.program.program import Program

LEVELS = (UNSAID, budget_of("small"), SMALLEST)
"""What may be spent on computing again before what is left is saved in bf16: the first level that will do is taken."""


@dataclass(frozen=True)
class NarrowResiduals:
    """The pass: :class:`Rematerialize`, for its budget, on a program in which saved activations are in bf16."""

    residuals: Residuals
    rematerialize: Rematerialize

    def run(self, program: Program) -> Program:
        """The program with less alive at the same time, and gradients at rounded values.

        Raises :class:`MemoryBudgetError` for a limit that cannot be kept.
        """
        if forward_part(program, self.residuals.forward).issuperset(program.instructions):
            return self.rematerialize.run(program)
        found = self._chosen(program)
        if self.rematerialize.explain is not None:
            for what, why in found.reasons:
                self.rematerialize.explain(what, why)
        return found.program

    def _chosen(self, program: Program) -> _Attempt:
        budget = self.rematerialize.budget
        if budget.limited:
            return self._within_limit(program, self._in_bytes(budget, program))
        found = [self._at(level, level, program) for level in dict.fromkeys((UNSAID, budget))]
        return found[self.rematerialize.smallest([each.program for each in found])]

    def _in_bytes(self, budget: Budget, program: Program) -> Budget:
        """A limit in bytes: a share is one of what is needed where everything is kept, and nothing rounded."""
        variables = sum(buffer.type.nbytes for buffer in program.variables.values())
        return Budget(nbytes=budget.limit(variables + self.rematerialize.arena(program)))

    def _within_limit(self, program: Program, budget: Budget) -> _Attempt:
        """The first level at which a limit is kept."""
        errors = list[MemoryBudgetError]()
        for level in LEVELS:
            try:
                return self._at(level, budget, program)
            except MemoryBudgetError as error:
                errors.append(error)
        raise errors[-1]

    def _at(self, level: Budget, budget: Budget, program: Program) -> _Attempt:
        """Save activations in bf16 at a level, then meet the budget."""
        reasons = list[tuple[str, str]]()
        how = replace(self.rematerialize, budget=budget, explain=lambda what, why: reasons.append((what, why)))
        kept = replace(how, budget=level, explain=None).unsliced(program)
        saved = narrow_saved(kept, self.residuals, how.limits.sums)
        return _Attempt(how.run(saved.program), (*_reasons(saved.narrow), *reasons))


@dataclass(frozen=True)
class _Attempt:
    """A program, and what is to be told about it."""

    program: Program
    reasons: tuple[tuple[str, str], ...]


def _reasons(narrow: Mapping[Buffer, Buffer]) -> Iterator[tuple[str, str]]:
    for wide, stored in narrow.items():
        yield wide.name, f"{wide.type.nbytes:,} bytes wait in {stored.type.nbytes:,}, as {stored.dtype}"
