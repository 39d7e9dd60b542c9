"""Does training agree with PyTorch, and a saved step with ONNX Runtime? By hand:

    python benchmarks/peers/agreement.py [--models mlp,gpt] [--checks losses,gradients,step,bits] [--steps 20]

Each PyTorch module is exported (the TorchScript tracer's training form, and torch.export without optimization), loaded
and trained by ``glowtrain.Trainer``. Checked are

losses      of every step, SGD with momentum and Adam: 1e-4 relative
gradients   of the first step, for each parameter: 1e-4 of its norm (see ``models.gradient_errors`` for the floor)
step        ``gt.save(trainer.graph)`` in ONNX Runtime: the loss and every variable's new value to 1e-4
bits        every variable after three steps: the same bytes in a second run and in a fresh process

ResNet-20 and MobileNetV2 are compared in f64, in both engines: in f32 a rounding error moves some activation across a
kink of ReLU, and PyTorch's own f32 and f64 runs differ by more than the bound. Their f32 losses and gradients are
printed as notes, with PyTorch's f32 against its own f64 beside them. Exit code 1 if anything fails.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import logging
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import export
import models
import numpy as np
import onnxruntime
import torch

import glowtrain as gt

BOUND = 1e-4
FIRST_LOSS = 1e-5
"""Bound for the first loss in f32 where later ones cannot be compared."""
BATCH = 8
MODELS = ("mlp", "cnn", "resnet20", "mobilenetv2", "lstm", "lstm2", "bilstm2", "gpt")
NEEDS_F64 = ("resnet20", "mobilenetv2")
RATES = {"resnet20": (0.01, 1e-3), "mobilenetv2": (1e-3, 1e-4)}
"""Learning rates of SGD and Adam where 0.05 and 1e-3 are too much. MobileNetV2 at ten times these is chaotic: there,
PyTorch in f64 differs from itself with parameters perturbed by 1e-15 (SGD: 4e-2) or 1e-13 (Adam: 2e-3)."""
PERTURBATION = 1e-13
STEP_MODELS = ("mlp", "cnn", "gpt")
FORMS: dict[str, tuple[export.Exporter, bool]] = {"legacy": ("legacy", True), "dynamo": ("dynamo", False)}
"""Exporter and training mode of the two forms that keep every parameter apart and unfolded."""

Batch = dict[str, np.ndarray]


def rounded(value: float) -> float:
    """The f32 nearest to an attribute, which is what an ONNX file holds."""
    return float(np.float32(value))


def optimizers(name: str) -> dict[str, tuple[Any, models.OptimizerFactory]]:
    """Glowtrain's and PyTorch's optimizers by name."""
    lr, rate = RATES.get(name, (0.05, 1e-3))
    return {
        "sgd": (gt.optim.SGD(lr=lr, momentum=0.9), models.sgd(lr, 0.9)),
        "adam": (gt.optim.Adam(lr=rate), lambda parameters: torch.optim.Adam(parameters, lr=rate)),
    }


@dataclass(frozen=True)
class Result:
    """One line of the table; ``bound`` None is a note, which cannot fail."""

    model: str
    check: str
    what: str
    error: float
    bound: float | None
    detail: str = ""

    @property
    def passed(self) -> bool:
        return self.bound is None or self.error <= self.bound

    def __str__(self) -> str:
        verdict = "note" if self.bound is None else "ok" if self.passed else "FAIL"
        return (
            f"{self.model:12s} {self.check:10s} {self.what:24s} {self.error:9.1e}  {verdict:5s} {self.detail}".rstrip()
        )


class Case:
    """One model in one float type: the module, its batches and its trainers.

    Epsilons are rounded to f32 in PyTorch too, because ONNX has no f64 attributes.
    """

    def __init__(self, name: str, dtype: torch.dtype, steps: int) -> None:
        self.name = name
        self.dtype = dtype
        self.module: Any = models.build(name).to(dtype)
        layers: list[Any] = [layer for layer in self.module.modules() if hasattr(layer, "eps")]
        for layer in layers:
            layer.eps = rounded(layer.eps)
        peer: Any = self.module
        self.pairs = models.make_batches(peer, steps, BATCH)
        self.batches = [self._named(x, labels) for x, labels in self.pairs]
        self.kind = "f64" if dtype == torch.float64 else "f32"

    def _named(self, x: torch.Tensor, labels: torch.Tensor) -> Batch:
        return {"x": models.cast_inputs(x, self.dtype).numpy(), "labels": labels.numpy()}

    def trainer(self, form: str, optimizer: Any) -> gt.Trainer:
        """A trainer for the module as exported in one form."""
        exporter, training = FORMS[form]
        example = models.cast_inputs(self.pairs[0][0], self.dtype)
        data = export.export(self.module, example, exporter, 18, training=training, optimize=False)
        return gt.Trainer(gt.load(data), gt.losses.softmax_cross_entropy(), optimizer, unbiased=True)

    @cached_property
    def gradients(self) -> dict[str, np.ndarray]:
        """PyTorch's gradients for the first batch."""
        return models.reference_gradients(self.module, self.pairs[0], self.dtype)[1]

    def losses(self, factory: models.OptimizerFactory, dtype: torch.dtype | None = None) -> list[float]:
        """PyTorch's loss of every step."""
        return models.train_losses(self.module, self.pairs, factory, dtype or self.dtype)[0]


def relative(values: Sequence[float], reference: Sequence[float]) -> float:
    """The largest relative difference; infinite for a NaN."""
    worst = max(abs(a - b) / abs(b) for a, b in zip(values, reference, strict=True))
    return worst if np.isfinite(worst) else float("inf")


def worst(errors: dict[str, float]) -> tuple[float, str]:
    """The largest error and its name; a NaN is the largest."""
    name = max(errors, key=lambda key: np.inf if np.isnan(errors[key]) else errors[key])
    return (float("inf") if np.isnan(errors[name]) else errors[name]), name


def check_training(case: Case, checks: Sequence[str]) -> Iterator[Result]:
    """Losses and gradients of every form and optimizer against PyTorch."""
    for form in FORMS:
        for title, (optimizer, factory) in optimizers(case.name).items():
            if "losses" not in checks and title != "sgd":
                continue
            trainer = case.trainer(form, optimizer)
            if title == "sgd" and "gradients" in checks:
                yield _gradients(case, form, trainer)
            if "losses" in checks:
                found, expected = [trainer.step(batch) for batch in case.batches], case.losses(factory)
                detail = f"{expected[0]:.6f} -> {expected[-1]:.6f}"
                yield Result(
                    case.name, "losses", f"{case.kind} {form} {title}", relative(found, expected), BOUND, detail
                )


def _gradients(case: Case, form: str, trainer: gt.Trainer) -> Result:
    found = trainer.gradients(case.batches[0])
    missing = sorted(set(case.gradients) - set(found))
    if missing:
        return Result(
            case.name, "gradients", f"{case.kind} {form}", float("inf"), BOUND, f"missing: {', '.join(missing)}"
        )
    error, name = worst(models.gradient_errors(case.gradients, found))
    return Result(case.name, "gradients", f"{case.kind} {form}", error, BOUND, f"{name} of {len(case.gradients)}")


def note_sensitivity(case: Case) -> Iterator[Result]:
    """How far rounding alone can take the losses: PyTorch against itself with perturbed parameters."""
    moved = copy.copy(case)
    moved.module = copy.deepcopy(case.module)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in moved.module.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=case.dtype)
            parameter.mul_(1 + PERTURBATION * noise)
    for title, (_, factory) in optimizers(case.name).items():
        error = relative(moved.losses(factory), case.losses(factory))
        yield Result(
            case.name, "losses", f"f64 PyTorch {title}", error, None, f"parameters moved by {PERTURBATION:.0e}"
        )


def note_f32(name: str, steps: int) -> Iterator[Result]:
    """What f32 gives where f64 is compared: a check of the first loss, notes beside PyTorch's own error."""
    case = Case(name, torch.float32, steps)
    optimizer, factory = optimizers(name)["sgd"]
    trainer = case.trainer("legacy", optimizer)
    error, at = worst(models.gradient_errors(case.gradients, trainer.gradients(case.batches[0])))
    exact = models.reference_gradients(case.module, case.pairs[0], torch.float64)[1]
    own, _ = worst(models.gradient_errors(exact, case.gradients))
    yield Result(name, "gradients", "f32 legacy", error, None, f"{at}; PyTorch f32 against its f64: {own:.1e}")
    found, expected = [trainer.step(batch) for batch in case.batches], case.losses(factory)
    yield Result(name, "losses", "f32 legacy first", relative(found[:1], expected[:1]), FIRST_LOSS)
    own = relative(expected, case.losses(factory, torch.float64))
    yield Result(
        name, "losses", "f32 legacy sgd", relative(found, expected), None, f"PyTorch f32 against its f64: {own:.1e}"
    )


def check_step(name: str) -> Iterator[Result]:
    """A saved training step in ONNX Runtime, from a state that three steps have moved."""
    case = Case(name, torch.float32, 4)
    for title, (optimizer, _) in optimizers(name).items():
        trainer = case.trainer("legacy", optimizer)
        for batch in case.batches[:3]:
            trainer.step(batch)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "step.onnx"
            gt.save(trainer.graph, path)
            session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
            outputs = _run(session, {**case.batches[3], **trainer.hyper.inputs})
        loss = trainer.step(case.batches[3])
        yield Result(name, "step", f"{title} loss", relative([float(outputs["loss"])], [loss]), BOUND)
        state = trainer.variables()
        errors = {key: _distance(outputs[f"{key}.next"], state[key]) for key in state if f"{key}.next" in outputs}
        error, at = worst(errors)
        yield Result(name, "step", f"{title} {len(errors)} variables", error, BOUND, at)


def _run(session: onnxruntime.InferenceSession, inputs: Batch) -> Batch:
    """All outputs by name; variables keep the values that the file gives them."""
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def _distance(value: np.ndarray, reference: np.ndarray) -> float:
    """Norm of the difference over the norm of the reference."""
    norm = float(np.linalg.norm(reference.astype(np.float64)))
    return float(np.linalg.norm(value.astype(np.float64) - reference)) / (norm or 1.0)


def fingerprints(name: str) -> list[str]:
    """Hashes of losses and of the whole state after three steps: twice, from the same start."""
    case = Case(name, torch.float32, 3)
    trainer = case.trainer("legacy", optimizers(name)["sgd"][0])
    start, found = trainer.variables(), []
    for _ in range(2):
        for key, array in start.items():
            trainer.state.write(key, array)
        digest = hashlib.sha256(np.array([trainer.step(batch) for batch in case.batches]).tobytes())
        for key, array in sorted(trainer.variables().items()):
            digest.update(key.encode() + array.tobytes())
        found.append(digest.hexdigest())
    return found


def check_bits(name: str) -> Iterator[Result]:
    """The same bytes in two runs and in a fresh process, which compiles anew with another hash seed."""
    first, again = fingerprints(name)
    command = [sys.executable, str(Path(__file__).resolve()), "--fingerprint", name]
    fresh = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[-1]
    yield Result(name, "bits", "second run", float(first != again), 0.0, again[:12])
    yield Result(name, "bits", "fresh process", float(first != fresh), 0.0, fresh[:12])


def results(names: Sequence[str], checks: Sequence[str], steps: int) -> Iterator[Result]:
    """Every check of every model."""
    for name in names:
        if "losses" in checks or "gradients" in checks:
            dtype = torch.float64 if name in NEEDS_F64 else torch.float32
            case = Case(name, dtype, steps)
            yield from check_training(case, checks)
            if name in NEEDS_F64:
                yield from note_sensitivity(case)
                yield from note_f32(name, steps)
        if "step" in checks and name in STEP_MODELS:
            yield from check_step(name)
        if "bits" in checks:
            yield from check_bits(name)


def choice(known: Sequence[str]) -> Callable[[str], list[str]]:
    """A parser of names separated by commas."""

    def parse(text: str) -> list[str]:
        wrong = [name for name in text.split(",") if name not in known]
        if wrong:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(wrong)}; there are {', '.join(known)}")
        return text.split(",")

    return parse


def main() -> int:
    """Print the table; 1 if anything failed."""
    checks: tuple[Literal["losses", "gradients", "step", "bits"], ...] = ("losses", "gradients", "step", "bits")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=choice(MODELS), default=list(MODELS), help="separated by commas")
    parser.add_argument("--checks", type=choice(checks), default=list(checks), help="separated by commas")
    parser.add_argument("--steps", type=int, default=20, help="steps of training to compare")
    parser.add_argument("--fingerprint", choices=MODELS, help="only print the hash of three steps' results")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    onnxruntime.set_default_logger_severity(3)
    torch.set_num_threads(1)
    if chosen.fingerprint:
        print(fingerprints(chosen.fingerprint)[0])
        return 0
    started, failed = time.perf_counter(), 0
    print(f"{'model':12s} {'check':10s} {'what':24s} {'error':>9s}", flush=True)
    for result in results(chosen.models, chosen.checks, chosen.steps):
        failed += not result.passed
        print(result, flush=True)
    print(f"{failed} failed, {time.perf_counter() - started:.0f} s on {os.cpu_count()} cores")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
