"""Level 1: random training steps, and each stage of the models' steps, the backend's the last."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np

from glowtrain.backends.base import Backend
from glowtrain.compiler import compile_artifact
from glowtrain.errors import ShapeError
from glowtrain.gradcheck.programs.programs import drawn_case
from glowtrain.gradcheck.programs.rungs import PROGRAM_ORACLES, Rungs
from glowtrain.kit.models import MODELS
from glowtrain.kit.operators import attempted
from glowtrain.kit.refusals import ExpectedRefusals, skip_refused
from glowtrain.types import f32
from glowtrain.verification import ladder, random_inputs


def test_random_program(program_number: int, backend: Backend, expected_refusals: ExpectedRefusals | None) -> None:
    """Three steps of it, in f32 beside other types, as in f64."""
    case = drawn_case(0, program_number)
    with suppress(ShapeError):  # it has an operator that takes f64 only
        case = case.in_type(f32)
    rungs = Rungs(case, backend=backend)
    measures, refusal = attempted(partial(PROGRAM_ORACLES["compiled"], rungs, np.random.default_rng(0)))
    assert [f"{m.detail}\n{case}" for m in measures if m.status == "failed"] == []
    if refusal:
        skip_refused(refusal, expected_refusals)


def test_ladder(model_name: str, backend: Backend) -> None:
    """A training step at each stage of the backend's walk, as in f64."""
    graph = MODELS[model_name].step()
    ladder(graph, random_inputs(graph, high={"labels": 10}), backend=backend).require()


def test_artifact_as_file(backend: Backend) -> None:
    """An artifact survives being written and read."""
    artifact = compile_artifact(MODELS["mlp"].step(), backend)
    assert backend.read(artifact.to_bytes()).to_bytes() == artifact.to_bytes()
