"""Tests that are written as program text.

A file holds several, each begun by ``; test: TITLE``; the lines up to the next one are a program or plan, and what is
asked of it:

    ; run: x = [1, 2], v = 3 -> y = [2, 4]     results, exactly, on every engine: inputs and variables to outputs and
                                               variables, arrays of any shape as flat lists
    ; about: x = [1] -> y = [2.718282]         the same to 6 digits
    ; expect: MESSAGE                          the verifier of the program or plan says this; one line for each problem
    ; pass: NAME                               the program after a pass has the text that follows ``; gives:``, and
                                               still gives the results
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from glowtrain.backends.target import Target
from glowtrain.errors import ProgramError
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.memory.plan import Plan, plan
from glowtrain.program.memory.verify_plan import verify_plan
from glowtrain.program.parse import parse, parse_plan
from glowtrain.program.passes.layout import AssignLayouts
from glowtrain.program.passes.loop_fusion.fuse import FuseLoops
from glowtrain.program.passes.producer_inlining import InlineProducers
from glowtrain.program.passes.schedule import ScheduleLoops
from glowtrain.program.program import Program
from glowtrain.program.text import contents, to_text
from glowtrain.program.verify import verify
from glowtrain.types import Array, TensorType
from tests.cpu.cpu_kernels import runnable
from tests.cpu.native_program import Native

Arrays = dict[str, Array]
Results = tuple[Arrays, Arrays]


@dataclass(frozen=True)
class FileTest:
    """One test: its text without the directives, and these."""

    title: str
    text: str
    directives: tuple[tuple[str, str], ...]
    after: str = ""

    def said(self, *words: str) -> list[tuple[str, str]]:
        return [directive for directive in self.directives if directive[0] in words]


def filetests(folder: Path) -> Iterator[FileTest]:
    """Every test of a folder's files, in order."""
    for path in sorted(folder.glob("*.gtp")):
        head, *parts = re.split(r"^; test: *", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert not head.strip() or head.startswith(";"), f"{path.name} begins with no test"
        for part in parts:
            title, _, text = part.partition("\n")
            yield _filetest(f"{path.stem}: {title.strip()}", text)


def _filetest(title: str, text: str) -> FileTest:
    text, _, after = text.partition("; gives:\n")
    found = re.findall(r"^; (run|about|expect|pass): *(.*)$", text + after, re.MULTILINE)
    assert found, f"{title}: nothing is asked"
    return FileTest(title, text, tuple(found), after)


# ---- engines


def _evaluated(program: Program, inputs: Arrays, state: Arrays) -> Results:
    return evaluate(program, inputs, state)


def _planned(program: Program, inputs: Arrays, state: Arrays) -> Results:
    """Over an arena that is poisoned wherever nothing is alive."""
    planned = plan(program)
    verify_plan(planned)
    return evaluate(program, inputs, state, plan=planned)


def _native(target: Target) -> Callable[[Program, Arrays, Arrays], Results]:
    def run(program: Program, inputs: Arrays, state: Arrays) -> Results:
        return Native(program, target, plan(program)).run(inputs, state)

    return run


ENGINES: dict[str, Callable[[Program, Arrays, Arrays], Results]] = {
    "evaluated": _evaluated,
    "planned": _planned,
    **{target.name: _native(target) for target in (replace(Target.host(), name="host"), *runnable("sse4", "scalar"))},
}


PASSES: dict[str, Callable[[Program], Program]] = {
    "layouts": AssignLayouts().run,
    "inline": InlineProducers().run,
    "fuse": FuseLoops().run,
    "inline and fuse": lambda program: FuseLoops().run(InlineProducers().run(program)),
    "schedule": ScheduleLoops().run,
}

# ---- running


def check(test: FileTest) -> None:
    """Everything that the test asks."""
    is_plan = test.text.lstrip().startswith("plan")
    parsed: Plan | Program = parse_plan(test.text) if is_plan else parse(test.text)
    expected = [message for _, message in test.said("expect")]
    if expected:
        _refused(parsed, expected)
        return
    program = parsed.program if isinstance(parsed, Plan) else parsed
    if isinstance(parsed, Plan):
        verify_plan(parsed)
    verify(program)
    programs = [program]
    for _, name in test.said("pass"):
        programs.append(PASSES[name](programs[-1]))
        verify(programs[-1])
    if test.said("pass"):
        assert to_text(programs[-1]) == _without_directives(test.after)
    for word, line in test.said("run", "about"):
        for each in dict.fromkeys((program, programs[-1])):
            _run(each, line, 1e-6 if word == "about" else 0.0)


def _refused(parsed: Plan | Program, expected: list[str]) -> None:
    """The verifier reports these problems and no others."""
    with pytest.raises(ProgramError) as caught:
        verify_plan(parsed) if isinstance(parsed, Plan) else verify(parsed)
    problems = caught.value.problems
    assert len(problems) == len(expected), problems
    for message in expected:
        assert any(message in problem for problem in problems), (message, problems)


def _run(program: Program, line: str, tolerance: float) -> None:
    given, _, wanted = line.partition("->")
    buffers = {**program.inputs, **program.variables, **program.outputs}
    types = {name: buffer.type for name, buffer in buffers.items()}
    arrays = _arrays(given, types)
    inputs = {name: array for name, array in arrays.items() if name in program.inputs}
    state = {name: array for name, array in arrays.items() if name in program.variables}
    assert inputs.keys() | state.keys() == arrays.keys()
    for engine, run in ENGINES.items():
        outputs, variables = run(program, inputs, state)
        for name, array in _arrays(wanted, types).items():
            found = outputs[name] if name in outputs else variables[name]
            _equal(found, array, tolerance, f"{name} {engine}")


def _equal(found: Array, wanted: Array, tolerance: float, message: str) -> None:
    a, b = (array.astype(np.float64) if array.dtype.kind not in "iub" else array for array in (found, wanted))
    if tolerance:
        np.testing.assert_allclose(a, b, rtol=tolerance, err_msg=message)
    else:
        np.testing.assert_array_equal(a, b, err_msg=message)


def _arrays(text: str, types: Mapping[str, TensorType]) -> Arrays:
    """``x = [1, 2], n = 3``"""
    pairs: list[tuple[str, str]] = re.findall(r"([\w.]+) = (\[[^\]]*\]|[^\s,]+)", text)
    assert pairs or not text.strip(), text
    return {name: contents([n for n in re.split(r"[\s,]+", v.strip("[]")) if n], types[name]) for name, v in pairs}


def _without_directives(text: str) -> str:
    return "".join(f"{line}\n" for line in text.splitlines() if line and not line.startswith(";"))
