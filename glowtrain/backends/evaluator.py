"""The evaluator as a backend: a planned program run in NumPy, over its planned arena.

Slow, and without LLVM: a reference for what a program means, and the example of a backend that takes plans.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glowtrain.backends.base import Artifact, Backend, Executable, ExecutableMemory, Instance
from glowtrain.backends.container import pack, unpack
from glowtrain.backends.state import State
from glowtrain.errors import ArtifactError, TextError
from glowtrain.program.interpret.evaluate import evaluate
from glowtrain.program.parse import parse_plan
from glowtrain.program.program import Plan
from glowtrain.program.text import arrays_of, plan_text
from glowtrain.stages import Options
from glowtrain.types import Array


class Evaluator(Backend):
    """Planned programs in NumPy."""

    name = "evaluator"

    def compile(self, subject: Plan, options: Options) -> PlanArtifact:
        return PlanArtifact(subject)

    def read(self, data: bytes) -> PlanArtifact:
        return PlanArtifact.from_bytes(data)

    def load(self, artifact: Artifact) -> EvaluatedPlan:
        if not isinstance(artifact, PlanArtifact):
            raise ArtifactError(f"backend {self.name} loads what it compiled, not {type(artifact).__name__}")
        return EvaluatedPlan(artifact.plan)


@dataclass(frozen=True)
class PlanArtifact(Artifact):
    """The plan itself; as a file, its text and arrays."""

    plan: Plan

    def to_bytes(self) -> bytes:
        return pack("evaluator", arrays_of(self.plan.program), {"plan": plan_text(self.plan)})

    @classmethod
    def from_bytes(cls, data: bytes) -> PlanArtifact:
        """Read :meth:`to_bytes`. Raises :class:`ArtifactError` for anything else."""
        arrays, facts = unpack("evaluator", data)
        try:
            return cls(parse_plan(facts["plan"], arrays))
        except (KeyError, TextError) as error:
            raise ArtifactError(f"the plan in the file cannot be read: {error}") from None

    def __str__(self) -> str:
        return plan_text(self.plan)


class EvaluatedPlan(Executable):
    """The plan itself."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan

    @property
    def memory(self) -> ExecutableMemory:
        program = self.plan.program
        outputs = sum(buffer.type.nbytes for buffer in program.outputs.values())
        return ExecutableMemory(self.plan.arena, 0, outputs, sum(buffer.type.nbytes for buffer in program.constants))

    def bind(self, state: State) -> EvaluatedInstance:
        return EvaluatedInstance(self.plan, state)


class EvaluatedInstance(Instance):
    """A plan and the state that it reads and updates."""

    def __init__(self, plan: Plan, state: State) -> None:
        self.plan = plan
        self.state = state

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        program = self.plan.program
        present = {name: self.state.read(name) for name in program.variables}
        outputs, after = evaluate(program, inputs, present, self.plan)
        for name in program.updates:
            self.state.write(name, after[name])
        return outputs
