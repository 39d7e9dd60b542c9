"""Random programs compiled with every combination of two options: no rung differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields
from itertools import combinations, product

import pytest

from glowtrain.backends.discovery import backend_of
from glowtrain.gradcheck.draw import ChoiceDraw
from glowtrain.gradcheck.programs.options import CHOICES, Choice, described, drawn_choice, options_for
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.programs.rungs import PROGRAM_ORACLES, Rungs, check_case
from glowtrain.program.passes.residuals import saved_activations
from glowtrain.program.passes.residuals.forward_part import forward_part
from glowtrain.program.program import Instruction, Program
from glowtrain.stages import Options

RUNGS = tuple(oracle for oracle in PROGRAM_ORACLES if oracle != "gradient")
NEUTRAL = {"facts", "check", "explain", "variable_layouts"}
"""What a backend says, what changes no code, and what bundles and devices work out from other functions."""
PROGRAMS = 3


def pairs_of(choice: Choice) -> set[tuple[tuple[str, str], ...]]:
    return set(combinations(sorted(choice.items()), 2))


def pairwise() -> Iterator[Choice]:
    """Choices, in which every two values of two options meet: each next one has most pairs that are new."""
    missing = {
        pair
        for one, other in combinations(sorted(CHOICES), 2)
        for pair in product(product([one], CHOICES[one]), product([other], CHOICES[other]))
    }
    number = 0
    while missing:
        tried = []
        for _ in range(30):
            draw = ChoiceDraw(0, "pairs", number)
            tried.append({name: draw.choice(tuple(values)) for name, values in CHOICES.items()})
            number += 1
        best = max(tried, key=lambda choice: len(missing & pairs_of(choice)))
        missing -= pairs_of(best)
        yield best


@pytest.mark.parametrize("choice", list(pairwise()), ids=described)
def test_every_rung(choice: Choice) -> None:
    for example in range(PROGRAMS):
        measures = list(check_case(drawn_case(11, example), RUNGS, 0, choice))
        assert not [f"{m.oracle}: {m.detail}" for m in measures if m.status == "failed"]
        assert any(m.oracle == "program" for m in measures)


def test_every_option_is_drawn() -> None:
    """A new option is compiled with by random programs, or is said to be neutral."""
    assert {field.name for field in fields(Options)} == {*CHOICES, *NEUTRAL}
    drawn = [drawn_choice(ChoiceDraw(0, "options", example)) for example in range(60)]
    for name, values in CHOICES.items():
        assert {choice[name] for choice in drawn} == set(values)
    step, facts = drawn_case(0, 0).step, backend_of("cpu").facts
    with pytest.raises(KeyError, match="no option products"):
        options_for({"products": "bf16"}, step, facts)


def test_budgets_and_residuals_are_kept_by_some() -> None:
    """Most programs can keep a share of their memory, and some save activations in bf16."""
    shares = [Rungs(drawn_case(11, example), {"memory": "95%"}) for example in range(10)]
    absent = [
        m for rungs in shares for m in check_case(rungs.case, ["plan"], 0, {"memory": "95%"}) if m.kind == "absent"
    ]
    assert len(absent) < 8
    rounded = [Rungs(drawn_case(11, example), {"residuals": "bf16"}).plan.program for example in range(20)]
    assert any(buffer.dtype.name == "bf16" for program in rounded for buffer in program.buffers)


def test_rounding_what_the_forward_part_reads_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outputs keep their bits: kernels that write them must not read activations in bf16."""

    def without_outputs(program: Program, variables: Iterable[str] = ()) -> frozenset[Instruction]:
        outputs = set(program.outputs.values())
        return frozenset(i for i in forward_part(program, variables) if outputs.isdisjoint(i.written))

    monkeypatch.setattr(saved_activations, "forward_part", without_outputs)
    for example in range(50, 60):
        measures = check_case(drawn_case(11, example), ["program"], 0, {"residuals": "bf16"})
        if any(measure.status == "failed" for measure in measures):
            return
    pytest.fail("no output differs")
