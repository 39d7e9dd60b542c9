"""What PyTorch's exporters write: is it loaded, does it agree, does it train? By hand:

    python benchmarks/peers/exports.py [--models gpt,vit] [--exporters dynamo] [--opsets 18,23] [--dynamic no]

Each network of `exported_models.py` is exported in inference mode as PyTorch does it by default, which is the form
that people bring. One line for each, with

forward    the largest difference of the output from PyTorch's over the largest output: 1e-4. With a dynamic batch, for
           another batch size than the exported one too.
gradient   of the mean square of the output: the norm of the difference over the norm of PyTorch's gradient, for each
           parameter of the file: 1e-4. Elements are recognised by their values, since exporters rename, transpose,
           permute and join parameters.
found      the part of PyTorch's parameter elements that is trainable in the file. What is missing was folded into
           others (BatchNorm into a convolution).
extra      trainable elements of the file that PyTorch does not train: what BatchNorm was folded into, and buffers,
           which the legacy exporter does not mark.
trains     five steps of SGD on one batch lower the loss; where the same is trained, the losses also agree to 1e-4.

Exit code 1 if anything that an exporter wrote fails.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import itertools
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    extra: int = 0
    trains: float = float("nan")
    note: str = ""
    exported: bool = True

    @property
    def passed(self) -> bool:
        return not self.exported or (
            not self.note and max(self.forward, self.gradient) <= BOUND and self.trains <= BOUND
        )

    def __str__(self) -> str:
        start = f"{self.model:8s} {self.exporter:7s} {self.opset:5d} {'yes' if self.dynamic else 'no':7s} "
        if self.note:
            return start + self.note
        verdict = "ok" if self.passed else "FAIL"
        parts = f"{self.found:7.1%} {self.extra:6d} {self.trains:8.1e}  {verdict}"
        return f"{start}{self.forward:8.1e} {self.gradient:8.1e} {parts}"


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


class Comparison:
    """Gradients of an imported model, gathered by the value of the parameter's element, beside PyTorch's.

    Values that stand twice in PyTorch's parameters say nothing. One that stands twice in the file was copied by the
    exporter; its gradients are added.
    """

    def __init__(self, pairs: dict[str, tuple[Array, Array]]) -> None:
        self.pairs = pairs
        self.values, counts = np.unique(_flat(value for value, _ in pairs.values()), return_counts=True)
        self.single = counts == 1
        self.found = np.zeros(self.values.size, np.int64)
        self.sums = np.zeros(self.values.size)
        self.extra = 0

    def add(self, value: Array, gradient: Array) -> None:
        """Take in a parameter of the imported model."""
        flat = value.reshape(-1)
        places = np.searchsorted(self.values, flat).clip(0, self.values.size - 1)
        hit = self.values[places] == flat
        self.extra += int((~hit).sum())
        np.add.at(self.found, places[hit], 1)
        np.add.at(self.sums, places[hit], gradient.reshape(-1)[hit])

    @property
    def copies(self) -> int:
        """Elements of the file beyond the first of each value."""
        return int((self.found[self.single] - 1).clip(0).sum())

    @property
    def part(self) -> float:
        """The part of PyTorch's elements that was found."""
        return float((self.found[self.single] > 0).mean())

    def error(self) -> float:
        """The largest relative error of a parameter's gradient, over what was found."""
        everything = _flat(gradient for _, gradient in self.pairs.values())
        floor, worst = 1e-3 * float(np.linalg.norm(everything)) / np.sqrt(everything.size), 0.0
        for value, gradient in self.pairs.values():
            places = np.searchsorted(self.values, value.reshape(-1))
            sure = self.single[places] & (self.found[places] > 0)
            wanted = gradient.reshape(-1)[sure]
            scale = max(float(np.linalg.norm(wanted)), floor * np.sqrt(max(wanted.size, 1)))
            worst = max(worst, float(np.linalg.norm(self.sums[places][sure] - wanted)) / scale)
        return worst


def _flat(arrays: Iterable[Array]) -> Array:
    return np.concatenate([array.reshape(-1) for array in arrays])


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Keeps standard output from what writes to it below Python: the legacy exporter prints graphs that it refuses."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


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


def check(row: Row, module: Any, data: bytes) -> Row:
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
    comparison, values = Comparison(torch_gradients(module, x)), trainer.parameters()
    for name, gradient in trainer.gradients(batch).items():
        comparison.add(values[name], gradient)
    losses, wanted = [trainer.step(batch) for _ in range(STEPS)], torch_losses(module, x)
    falls = all(after < before for before, after in itertools.pairwise(losses))
    same = comparison.part == 1 and not comparison.copies and not comparison.extra
    agrees = max(abs(a - b) / b for a, b in zip(losses, wanted, strict=True)) if same else 0.0
    return replace(
        row,
        forward=forward,
        gradient=comparison.error(),
        found=comparison.part,
        extra=comparison.extra,
        trains=agrees if falls else float("inf"),
    )


def _module(name: str) -> Any:
    return exported_models.build(name)


def tried(name: str, exporter: export.Exporter, opset: int, dynamic: bool) -> Row:
    """One export and its checks; a refusal of the exporter is a row too."""
    row, module = Row(name, exporter, opset, dynamic), _module(name)
    try:
        with silence():
            data = export.export(module, module.make_input(0, 4), exporter, opset, dynamic_batch=dynamic)
    except Exception as error:  # noqa: BLE001  (PyTorch's exporters raise anything)
        reason = str(error).strip().splitlines()[0] if str(error).strip() else ""
        return replace(row, note=f"not exported: {type(error).__name__} {reason}"[:90], exported=False)
    try:
        return check(row, module, data)
    except gt.GlowtrainError as error:
        return replace(row, note=f"FAIL {type(error).__name__}: {error}")


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
    print("model    export  opset dynamic  forward gradient   found  extra   trains")
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
