"""What PyTorch's exporters write: is it loaded, does it agree, does it train? By hand:

    python benchmarks/peers/exports.py [--models gpt,vit] [--exporters dynamo] [--opsets 18,23] [--dynamic no]

Each network of `exported_models.py` is exported in inference mode as PyTorch does it by default, which is the form
that people bring. One line for each, with

forward    the largest difference of the output from PyTorch's over the largest output: 1e-4. With a dynamic batch, for
           another batch size than the exported one too.
gradient   of the mean square of the output: the norm of the difference over the norm of PyTorch's gradient, for each
           parameter of the file: 1e-4. Elements are recognised by their values, since exporters rename, transpose,
           permute and join parameters.
found      the part of PyTorch's parameter elements that is trainable in the file. What is missing was folded into others
           (BatchNorm into a convolution).
trains     five steps of SGD on one batch lower the loss; where all is found, the losses also agree to 1e-4.

Exit code 1 if anything that an exporter wrote fails.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import itertools
import logging
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import export
import exported_models
import numpy as np
import torch

import glowtrain as gt

BOUND = 1e-4
STEPS = 5
RATE = 0.05
EXPORTERS: tuple[export.Exporter, ...] = ("dynamo", "legacy")
OPSETS = (17, 18, 20, 21, 23)

Array = np.ndarray


@dataclass(frozen=True)
class Row:
    """One exported file. ``note`` says what kept it from being checked."""

    model: str
    exporter: str
    opset: int
    dynamic: bool
    forward: float = float("nan")
    gradient: float = float("nan")
    found: float = float("nan")
    trains: float = float("nan")
    note: str = ""
    exported: bool = True

    @property
    def passed(self) -> bool:
        return not self.exported or (not self.note and max(self.forward, self.gradient) <= BOUND and self.trains <= BOUND)

    def __str__(self) -> str:
        start = f"{self.model:8s} {self.exporter:7s} {self.opset:5d} {'yes' if self.dynamic else 'no':7s} "
        if self.note:
            return start + self.note
        verdict = "ok" if self.passed else "FAIL"
        return start + f"{self.forward:8.1e} {self.gradient:8.1e} {self.found:7.1%} {self.trains:8.1e}  {verdict}"


def loss_of(y: torch.Tensor) -> torch.Tensor:
    """What is differentiated and trained: the mean square of the output."""
    return (y * y).mean()


def torch_gradients(module: torch.nn.Module, x: torch.Tensor) -> dict[str, tuple[Array, Array]]:
    """Values and gradients of all parameters."""
    module.zero_grad()
    loss_of(module(x)).backward()  # type: ignore[no-untyped-call]
    pairs = ((name, p.detach().numpy(), p.grad) for name, p in module.named_parameters())
    return {name: (value.copy(), grad.numpy().copy()) for name, value, grad in pairs if grad is not None}


def torch_losses(module: torch.nn.Module, x: torch.Tensor) -> list[float]:
    """The loss before each step of SGD on one batch."""
    twin = copy.deepcopy(module)
    rule, losses = torch.optim.SGD(twin.parameters(), lr=RATE), []
    for _ in range(STEPS):
        rule.zero_grad()
        loss = loss_of(twin(x))
        loss.backward()  # type: ignore[no-untyped-call]
        rule.step()
        losses.append(float(loss.detach()))
    return losses


class Known:
    """PyTorch's gradient by the value of a parameter's element; values that stand twice say nothing."""

    def __init__(self, pairs: dict[str, tuple[Array, Array]]) -> None:
        values = np.concatenate([value.reshape(-1) for value, _ in pairs.values()])
        gradients = np.concatenate([gradient.reshape(-1) for _, gradient in pairs.values()])
        self.values, places, counts = np.unique(values, return_index=True, return_counts=True)
        self.gradients, self.single, self.size = gradients[places], counts == 1, values.size
        self.floor = 1e-3 * float(np.linalg.norm(gradients)) / np.sqrt(gradients.size)

    def compare(self, value: Array, gradient: Array) -> tuple[float, int]:
        """The relative error of a parameter's gradient, and how many of its elements are known."""
        flat, mine = value.reshape(-1), gradient.reshape(-1)
        places = np.searchsorted(self.values, flat).clip(0, self.values.size - 1)
        hit = self.values[places] == flat
        sure = hit & self.single[places]
        if not sure.any():
            return 0.0, int(hit.sum())
        wanted = self.gradients[places][sure]
        scale = max(float(np.linalg.norm(wanted)), self.floor * np.sqrt(wanted.size))
        return float(np.linalg.norm(mine[sure] - wanted)) / scale, int(hit.sum())


def forward_error(model: Any, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> float:
    """The largest error over all inputs, relative to the largest output."""
    run, worst = gt.compile(model, backend="cpu"), 0.0
    for x in inputs:
        with torch.no_grad():
            wanted = module(x).numpy()
        (found,) = run({export.INPUT: x.numpy()}).values()
        if found.shape != wanted.shape:
            return float("inf")
        worst = max(worst, float(np.abs(found - wanted).max() / np.abs(wanted).max()))
    return worst


def check(row: Row, module: torch.nn.Module, data: bytes) -> Row:
    """The row with everything measured."""
    inputs = [module.make_input(seed, 4) for seed in range(2)]
    if row.dynamic:
        inputs.append(module.make_input(2, 3))
    model = gt.load(data)
    forward = forward_error(model, module, inputs)
    trainer = gt.Trainer(model, gt.losses.mse("target"), gt.optim.SGD(lr=RATE))
    x = inputs[0]
    with torch.no_grad():
        target = np.zeros_like(module(x).numpy())
    batch = {export.INPUT: x.numpy(), "target": target}
    known, values = Known(torch_gradients(module, x)), trainer.parameters()
    results = [known.compare(values[name], found) for name, found in trainer.gradients(batch).items()]
    found = sum(count for _, count in results) / known.size
    losses, wanted = [trainer.step(batch) for _ in range(STEPS)], torch_losses(module, x)
    falls = all(after < before for before, after in itertools.pairwise(losses))
    agrees = max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True)) if found == 1 else 0.0
    gradient = max(error for error, _ in results)
    return Row(
        row.model, row.exporter, row.opset, row.dynamic, forward, gradient, found, agrees if falls else float("inf")
    )


def tried(name: str, exporter: export.Exporter, opset: int, dynamic: bool) -> Row:
    """One export and its checks; a refusal of the exporter is a row too."""
    row, module = Row(name, exporter, opset, dynamic), exported_models.build(name)
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # the legacy exporter prints graphs that it refuses
            data = export.export(module, module.make_input(0, 4), exporter, opset, dynamic_batch=dynamic)
    except Exception as error:  # noqa: BLE001  (PyTorch's exporters raise anything)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return Row(name, exporter, opset, dynamic, note=f"not exported: {type(error).__name__} {reason}"[:90], exported=False)
    try:
        return check(row, module, data)
    except gt.GlowtrainError as error:
        return Row(name, exporter, opset, dynamic, note=f"FAIL {type(error).__name__}: {error}")


def _names(text: str) -> list[str]:
    return text.split(",")


def main() -> int:
    """Print the table; 1 if anything failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=_names, default=list(exported_models.MODELS), help="separated by commas")
    parser.add_argument("--exporters", type=_names, default=list(EXPORTERS), help="separated by commas")
    parser.add_argument("--opsets", type=_names, default=list(OPSETS), help="separated by commas")
    parser.add_argument("--dynamic", type=_names, default=["no", "yes"], help="no, yes or no,yes")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    started, rows = time.perf_counter(), []
    print(f"{'model':8s} {'export':7s} {'opset':>5s} {'dynamic':7s} {'forward':>8s} {'gradient':>8s} {'found':>7s} {'trains':>8s}")
    for name, exporter, dynamic, opset in itertools.product(
        chosen.models, chosen.exporters, chosen.dynamic, chosen.opsets
    ):
        rows.append(tried(name, exporter, int(opset), dynamic == "yes"))
        print(rows[-1], flush=True)
    failed, refused = sum(not row.passed for row in rows), sum(not row.exported for row in rows)
    print(f"{len(rows)} exports: {refused} refused by PyTorch, {failed} failed; {time.perf_counter() - started:.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
