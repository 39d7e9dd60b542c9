"""Glowtrain: the compiled step of an exported model, or of one that is built here."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import glowtrain as gt
from benchmarks.speed.prepared import Prepared
from benchmarks.speed.training import rows
from benchmarks.speed.training.built import BUILT
from benchmarks.speed.training.rows import TrainingRow
from benchmarks.speed.turns import Step
from glowtrain.compiler.walk import WALK, arrive, walk
from glowtrain.memory.precision import Precision
from glowtrain.program.program import Plan

OUTPUT, TARGET = "logits", "labels"


class CompiledStep(Step):
    """A trainer, through ``step`` or through ``fit``."""

    def __init__(self, row: TrainingRow, prepared: Prepared, backend: gt.Cpu, *, precision: Precision = None) -> None:
        self.row, self.batches, self.backend = row, prepared.batches, backend
        model = BUILT[row.module] if row.module in BUILT else gt.load(prepared.model)
        self.trainer = gt.Trainer(model, loss(row), optimizer(row), backend=backend, unbiased=True, precision=precision)
        self.options = self.trainer.options
        if row.module in BUILT:
            self.trainer.set_variables(prepared.parameters)
        self.whole = {name: np.concatenate([b[name] for b in self.batches]) for name in self.batches[0]}

    def __call__(self, i: int) -> float:
        if self.row.calls == 1:
            return self.trainer.step(self.batches[i % len(self.batches)])
        history = self.trainer.fit(self.whole, epochs=1, batch_size=self.row.batch, shuffle=False, progress=False)
        return history.loss[-1]

    def facts(self, *, stages: bool) -> dict[str, Any]:
        """Bytes of the arena, and how much that is over the largest sum of live buffers."""
        plan = self.plan()
        found: dict[str, Any] = {"arena": plan.arena, "overhead": plan.overhead}
        return {**found, "stages": self._stages(self._graph)} if stages else found

    def plan(self) -> Plan:
        """The step's memory plan."""
        return arrive(self._graph, self.options)

    @property
    def _graph(self) -> gt.Graph:
        graph: gt.Graph = self.trainer._step.specialised(self._inputs).graph
        return graph

    @property
    def _inputs(self) -> Mapping[str, Any]:
        return {**self.batches[0], **self.trainer.hyper.inputs}

    def _stages(self, graph: gt.Graph) -> dict[str, float]:
        """Seconds of each stage of compiling, and of loading what came out."""
        arrivals = list(walk(graph, self.options, self.backend.stages(WALK)))
        began = time.perf_counter()
        self.backend.load(arrivals[-1].result)
        loading = time.perf_counter() - began
        return {arrival.stage.name: arrival.seconds for arrival in arrivals} | {"load": loading}


def loss(row: TrainingRow) -> Any:
    """What a trainer takes for the row's loss."""
    match row.loss:
        case "classes":
            return gt.losses.softmax_cross_entropy(TARGET, OUTPUT)
        case "squares":
            return gt.losses.mse(TARGET, OUTPUT)
    return OUTPUT


def optimizer(row: TrainingRow) -> Any:
    """The row's optimizer."""
    match row.optimizer:
        case "adam":
            return gt.optim.Adam(lr=rows.ADAM_RATE)
        case "momentum":
            return gt.optim.SGD(lr=rows.SGD_RATE, momentum=rows.MOMENTUM)
    return gt.optim.SGD(lr=rows.PLAIN_RATE)


def make(row: TrainingRow, prepared: Prepared, cores: int, cache: Path) -> Step:
    """The step, on ``cores`` threads; compiled code is kept in ``cache``."""
    return CompiledStep(row, prepared, gt.Cpu(cache=cache, threads=cores))
