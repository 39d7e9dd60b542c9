"""Do gradients agree with PyTorch's in double precision? By hand:

    python benchmarks/peers/gradients.py [--models mlp,vit] [--forms dynamo] [--checks gradient,hvp,jvp] [--output F]

The six models of ``models.py``, and a U-Net, a ViT and a bidirectional GRU of two layers (``exported_models.py``), each
made f64, exported (the TorchScript tracer's training form, and torch.export without optimization), loaded and
differentiated, in the interpreter and in native code, with PyTorch's autograd on the same numbers beside it:

gradient  of the loss, for every parameter and every float input
hvp       the Hessian times a random vector: the gradient of <gradient, vector>
jvp       forward mode along that vector, for the loss and every element of the output (``torch.func.jvp``)

An error is the norm of a difference over the norm of PyTorch's tensor (at least 1e-6 of the norm of all of them
together: see ``models.gradient_errors``); the bound is 1e-9 for the worst of all. Exit code 1 if anything fails.
"""

from __future__ import annotations

import argparse
import copy
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import export
import exported_models
import models
import numpy as np
import torch
from agreement import choice
from torch import Tensor
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

import glowtrain as gt
from glowtrain.onnx_io import make_trainable

BOUND = 1e-9
BATCH = 4
CLASSIFIERS = ("mlp", "cnn", "resnet20", "mobilenetv2", "lstm", "lstm2", "bilstm2", "gpt")
"""Models of ``models.py``: cross entropy."""
OTHERS = ("unet", "vit", "gru")
"""Models of ``exported_models.py``: the mean square of the distance to random numbers."""
CHECKS = ("gradient", "hvp", "jvp")
FORMS: dict[str, tuple[export.Exporter, bool]] = {"legacy": ("legacy", True), "dynamo": ("dynamo", False)}
"""Exporter and training mode of the two forms that keep every parameter apart and unfolded."""
ENGINES = ("interpreter", "cpu")
INPUT, TARGET = export.INPUT, "target"

Array = np.ndarray
Arrays = dict[str, Array]


@dataclass(frozen=True)
class Result:
    """One line of the table: ``error`` is the worst of ``count`` tensors, of which ``at`` has it."""

    model: str
    form: str
    engine: str
    check: str
    count: int
    error: float
    largest: float
    at: str

    @property
    def passed(self) -> bool:
        return self.error <= BOUND

    def __str__(self) -> str:
        start = f"{self.model:12s} {self.form:7s} {self.engine:12s} {self.check:9s} {self.count:7d}"
        return f"{start} {self.error:9.1e} {self.largest:9.1e}  {'ok' if self.passed else 'FAIL':5s}{self.at}"


class Case:
    """One model in f64 with one batch, and what PyTorch says about it.

    Epsilons are rounded to f32 in PyTorch too, because ONNX has no f64 attributes. The batch's statistics are used and
    running ones not kept: they are in nobody's gradient, and forward mode cannot write them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        source = models if name in CLASSIFIERS else exported_models
        self.module: Any = source.build(name).double()
        for layer in self.module.modules():
            if hasattr(layer, "eps"):
                layer.eps = float(np.float32(layer.eps))
        x, self.target = self._batch()
        self.x = models.cast_inputs(x, torch.float64)
        generator = torch.Generator().manual_seed(1)
        self.vector = {
            key: torch.randn(value.shape, generator=generator, dtype=torch.float64) for key, value in self.point.items()
        }

    def _batch(self) -> tuple[Tensor, Tensor]:
        if self.name in CLASSIFIERS:
            pair: tuple[Tensor, Tensor] = self.module.make_batch(0, BATCH)
            return pair
        x = self.module.make_input(0, BATCH)
        shape = self.module(models.cast_inputs(x, torch.float64)).shape
        return x, torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    @cached_property
    def twin(self) -> Any:
        """The module in training mode without running statistics."""
        twin = copy.deepcopy(self.module).train()
        for layer in twin.modules():
            if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
                layer.track_running_stats, layer.running_mean, layer.running_var = False, None, None
        return twin

    @cached_property
    def point(self) -> dict[str, Tensor]:
        """What is differentiated: parameters, and the input where it holds floats."""
        parameters = {name: parameter.detach().clone() for name, parameter in self.module.named_parameters()}
        return {**parameters, **({INPUT: self.x} if self.x.is_floating_point() else {})}

    def outputs(self, point: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Loss and output at a point."""
        parameters = {name: value for name, value in point.items() if name != INPUT}
        y = functional_call(self.twin, parameters, (point.get(INPUT, self.x),))
        if self.name in CLASSIFIERS:
            return models.cross_entropy(y, self.target), y
        return torch.nn.functional.mse_loss(y, self.target), y

    @cached_property
    def expected(self) -> dict[str, Arrays]:
        """PyTorch's results of each check, by name."""
        leaves = {name: value.clone().requires_grad_() for name, value in self.point.items()}
        with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
            slopes = torch.autograd.grad(self.outputs(leaves)[0], list(leaves.values()), create_graph=True)
            product = torch.stack([(g * v).sum() for g, v in zip(slopes, self.vector.values(), strict=True)]).sum()
            second = torch.autograd.grad(product, list(leaves.values()), materialize_grads=True)
            along = torch.func.jvp(self.outputs, (self.point,), (self.vector,))[1]
        return {
            "gradient": {name: g.detach().numpy() for name, g in zip(leaves, slopes, strict=True)},
            "hvp": {name: h.numpy() for name, h in zip(leaves, second, strict=True)},
            "jvp": {"loss": along[0].numpy(), "output": along[1].numpy()},
        }

    def graph(self, form: str) -> Differentiated:
        """The module as exported in one form, with its loss."""
        exporter, training = FORMS[form]
        data = export.export(self.module, self.x, exporter, 18, training=training, optimize=False)
        loaded = gt.load(data)
        assert isinstance(loaded, gt.Graph)  # no dimension is symbolic
        rule = gt.losses.softmax_cross_entropy if self.name in CLASSIFIERS else gt.losses.mse
        return Differentiated(make_trainable(loaded), rule(TARGET))

    @property
    def feeds(self) -> Arrays:
        """The batch and the vector by the names of graph inputs."""
        vector = {f"v {name}": value.numpy() for name, value in self.vector.items()}
        return {INPUT: self.x.numpy(), TARGET: self.target.numpy(), **vector}


class Differentiated:
    """A loaded model with a loss: the graphs of its derivatives."""

    def __init__(self, model: gt.Graph, loss: gt.losses.Loss) -> None:
        attached = loss.attach(model)
        (self.output,) = model.outputs.values()
        self.loss = attached.value
        self.inputs = (*model.inputs, *attached.targets)
        leaves = (*(v for v in model.variables if v.trainable), *(v for v in model.inputs if v.dtype.is_float))
        self.leaves = {value.name: value for value in leaves}
        self.vector = {name: gt.Input(value.type, f"v {name}") for name, value in self.leaves.items()}

    def graph(self, check: str) -> gt.Graph:
        """What a check looks at, by name, as a function of the batch (and the vector)."""
        vector = () if check == "gradient" else tuple(self.vector.values())
        return gt.Graph((*self.inputs, *vector), getattr(self, check)())

    def gradient(self) -> dict[str, gt.Value]:
        """The loss's gradients."""
        return self._gradients(self.loss)

    def hvp(self) -> dict[str, gt.Value]:
        """The gradients of <gradient, vector>."""
        terms = (gt.nn.total(g * self.vector[name]) for name, g in self.gradient().items())
        return self._gradients(sum(terms, start=gt.constant(0.0, gt.f64)))

    def jvp(self) -> dict[str, gt.Value]:
        """The slopes of loss and output along the vector."""
        slopes = gt.jvp([self.loss, self.output], list(self.leaves.values()), list(self.vector.values()))
        return dict(zip(("loss", "output"), slopes, strict=True))

    def _gradients(self, loss: gt.Value) -> dict[str, gt.Value]:
        return dict(zip(self.leaves, gt.gradients(loss, list(self.leaves.values())), strict=True))


def compared(case: Case, form: str, engine: str, check: str, graph: gt.Graph) -> Result:
    """One engine's results beside PyTorch's; a tensor that only one of them has is a failure."""
    expected = case.expected[check]
    if set(graph.outputs) != set(expected):
        odd = ", ".join(sorted(set(graph.outputs) ^ set(expected)))
        return Result(case.name, form, engine, check, len(expected), np.inf, np.inf, f"in one of the two only: {odd}")
    feeds = case.feeds
    found = gt.compile(graph, engine)({value.name: feeds[value.name] for value in graph.inputs})
    errors = models.gradient_errors(expected, found)
    at = max(errors, key=lambda name: np.inf if np.isnan(errors[name]) else errors[name])
    largest = max(float(np.abs(found[name] - array).max()) for name, array in expected.items())
    return Result(case.name, form, engine, check, len(errors), errors[at], largest, at)


def results(names: Sequence[str], forms: Sequence[str], checks: Sequence[str]) -> Iterator[Result]:
    """Every check of every model and form, in both engines."""
    for name in names:
        case = Case(name)
        for form in forms:
            differentiated = case.graph(form)
            for check in checks:
                graph = differentiated.graph(check)
                for engine in ENGINES:
                    yield compared(case, form, engine, check, graph)


def main() -> int:
    """Print the table; 1 if anything failed."""
    names = (*CLASSIFIERS, *OTHERS)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=choice(names), default=list(names), help="separated by commas")
    parser.add_argument("--forms", type=choice(tuple(FORMS)), default=list(FORMS), help="separated by commas")
    parser.add_argument("--checks", type=choice(CHECKS), default=list(CHECKS), help="separated by commas")
    parser.add_argument("--output", type=Path, help="a file for the table, too")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    started, failed = time.perf_counter(), 0
    lines = [f"{'model':12s} {'form':7s} {'engine':12s} {'check':9s} {'tensors':7s} {'error':>9s} {'largest':>9s}"]
    print(lines[0], flush=True)
    for result in results(chosen.models, chosen.forms, chosen.checks):
        failed += not result.passed
        lines.append(str(result))
        print(result, flush=True)
    lines.append(f"{failed} failed, {time.perf_counter() - started:.0f} s on {os.cpu_count()} cores")
    print(lines[-1])
    if chosen.output:
        chosen.output.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
