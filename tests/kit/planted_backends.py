"""Backends with a mistake planted in them, which the kit must find, each at the level that is for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count

import numpy as np

from glowtrain.backends.evaluator import EvaluatedInstance, EvaluatedPlan, Evaluator, PlanArtifact
from glowtrain.backends.faults import Faults
from glowtrain.backends.state import State
from glowtrain.errors import CodegenError, DeviceError, DeviceLostError
from glowtrain.loops import Apply, Expr, rewrite_body
from glowtrain.program.program import Instruction, Kernel, Plan, Repeat
from glowtrain.stages import Options
from glowtrain.types import Array


class SoundInstance(EvaluatedInstance):
    """None: failures that are injected are raised."""

    failure: str = ""

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        if SoundInstance.failure:
            raise (DeviceLostError if "lost" in SoundInstance.failure else DeviceError)(SoundInstance.failure)
        return super().run(inputs)


class InjectedFaults(Faults):
    """All of them: each lets runs fail."""

    @contextmanager
    def _failing(self, message: str) -> Iterator[None]:
        SoundInstance.failure = message
        try:
            yield
        finally:
            SoundInstance.failure = ""

    def memory_limit(self, nbytes: int) -> contextmanager[None]:
        return self._failing(f"no more than {nbytes} bytes")

    def failed_allocation(self) -> contextmanager[None]:
        return self._failing("out of memory")

    def lost_device(self) -> contextmanager[None]:
        return self._failing("the device is lost")

    def hang(self) -> contextmanager[None]:
        return self._failing("no kernel ended in time")


class SoundBackend(Evaluator):
    """No mistake."""

    name = "sound"
    instance: type[EvaluatedInstance] = SoundInstance

    @property
    def faults(self) -> Faults:
        return InjectedFaults()

    def load(self, artifact: PlanArtifact) -> SoundExecutable:
        return SoundExecutable(artifact.plan, self.instance)


class SoundExecutable(EvaluatedPlan):
    """A plan and the instance that runs it."""

    def __init__(self, plan: object, instance: type[EvaluatedInstance]) -> None:
        super().__init__(plan)
        self.instance = instance

    def bind(self, state: State) -> EvaluatedInstance:
        return self.instance(self.plan, state)


class WrongTanh(SoundBackend):
    """Each tanh is one in a thousand too large."""

    name = "wrong"

    def compile(self, subject: Plan, options: Options) -> PlanArtifact:
        instructions = tuple(_off(each) for each in subject.program.instructions)
        return PlanArtifact(replace(subject, program=replace(subject.program, instructions=instructions)))


def _off(instruction: Instruction) -> Instruction:
    if isinstance(instruction, Repeat):
        return replace(instruction, body=tuple(map(_off, instruction.body)))
    kernel = instruction.kernel
    return instruction if kernel is None else Kernel(kernel.name, rewrite_body(kernel.body, _larger))


def _larger(expr: Expr) -> Expr | None:
    return expr * 1.001 if isinstance(expr, Apply) and expr.function == "tanh" else None


class DriftingInstance(SoundInstance):
    """What is left in variables depends on how many runs there have been in the process, by one bit."""

    runs = count()

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        outputs = super().run(inputs)
        for name in self.plan.program.updates:
            value = self.state.read(name)
            if value.dtype == np.float32 and next(self.runs) % 7 == 0:
                self.state.write(name, np.nextafter(value, np.float32(np.inf)))
        return outputs


class Drifting(SoundBackend):
    name = "drifting"
    instance = DriftingInstance


class UnlimitedFaults(InjectedFaults):
    """A limit of memory that is ignored."""

    @contextmanager
    def memory_limit(self, nbytes: int) -> Iterator[None]:
        yield


class Unlimited(SoundBackend):
    name = "unlimited"

    @property
    def faults(self) -> Faults:
        return UnlimitedFaults()


class Refusing(SoundBackend):
    """It has no tanh, and says so."""

    name = "refusing"

    def compile(self, subject: Plan, options: Options) -> PlanArtifact:
        if "tanh(" in str(subject.program):
            raise CodegenError("kernel tanh: there is no tanh here")
        return super().compile(subject, options)
