"""Planned programs as C, compiled by the C compiler of this machine and loaded as a shared library."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from glowtrain.backends.base import Artifact, Instance
from glowtrain.backends.evaluator import EvaluatedPlan, Evaluator, PlanArtifact
from glowtrain.backends.state import State
from glowtrain.errors import BackendError
from glowtrain.program.program import Plan
from glowtrain.stages import Facts, Options
from glowtrain.types import Array
from glowtrain_c.generate import Writer

COMPILER = ("cc", "-x", "c", "-", "-O1", "-fwrapv", "-ffp-contract=off", "-shared", "-fPIC", "-w", "-lm")
"""Integers wrap; products and sums are rounded apart."""


class C(Evaluator):
    """One function in C, which is given the addresses of buffers. The artifact is the evaluator's: the plan."""

    name = "c"
    facts = Facts(preferred_layouts=False, panel_row=0)

    def compile(self, subject: Plan, options: Options) -> PlanArtifact:
        Writer(subject).text()  # refuses here what C has no words for
        return super().compile(subject, options)

    def load(self, artifact: Artifact) -> CExecutable:
        return CExecutable(super().load(artifact).plan)


class CExecutable(EvaluatedPlan):
    """A plan, and its function in this process. Raises :class:`BackendError` where there is no compiler."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.constants = [np.ascontiguousarray(b.constant_array.transpose(b.layout)) for b in plan.program.constants]
        with TemporaryDirectory() as folder:
            library, text = Path(folder) / "step.so", Writer(plan).text()
            try:
                subprocess.run([*COMPILER, "-o", library], input=text, text=True, capture_output=True, check=True)
            except FileNotFoundError:
                raise BackendError("backend c needs a C compiler, as the command cc") from None
            except subprocess.CalledProcessError as error:
                raise BackendError(f"cc failed:\n{error.stderr}") from None
            self.step = ctypes.CDLL(str(library)).step

    def bind(self, state: State) -> CInstance:
        return CInstance(self, state)


class CInstance(Instance):
    """The function with an arena of its own, over a state."""

    def __init__(self, executable: CExecutable, state: State) -> None:
        self.executable = executable
        self.state = state
        self.memory = np.zeros(executable.plan.arena + executable.plan.alignment, np.uint8)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        program = self.executable.plan.program
        variables = {name: self.state.read(name) for name in program.variables}
        outputs = {name: np.zeros(buffer.shape, buffer.dtype.numpy) for name, buffer in program.outputs.items()}
        given = [inputs[name] for name in program.inputs]
        arrays = [self.memory, *given, *variables.values(), *outputs.values(), *self.executable.constants]
        self.executable.step((ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays)))
        for name in program.updates:
            self.state.write(name, variables[name])
        return outputs
