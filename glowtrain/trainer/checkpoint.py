"""Checkpoints: everything that the rest of a training run depends on, in one safetensors file.

    tensors   every variable by name (parameters, optimizer's slots, counters, running statistics), row-major;
              "best:<name>" where the best parameters are kept
    metadata  "glowtrain": JSON with the format's number, seed, position, hyperparameters, history and fingerprint

Nothing in it depends on time or machine, so equal runs write equal bytes.
Source of the container format: https://github.com/huggingface/safetensors (format section).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from glowtrain.errors import CheckpointError
from glowtrain.trainer.files import write_atomically
from glowtrain.types import Array, type_of

FORMAT = 1
KEY = "glowtrain"
BEST = "best:"
"""Prefix of the names of the best parameters so far."""
PLAIN = "variable:"
"""Prefix of variables whose own names would be taken for something else."""


@dataclass
class Position:
    """How far training is: whole epochs, batches in the present one, and the sums for that epoch's mean loss."""

    epoch: int = 0
    batch: int = 0
    examples: int = 0
    loss_sum: float = 0.0
    batch_size: int = 0


@dataclass
class Checkpoint:
    """The content of a checkpoint file."""

    variables: dict[str, Array]
    seed: int
    fingerprint: dict[str, str]
    position: Position = field(default_factory=Position)
    hyper: dict[str, float] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    best: dict[str, Array] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors."""
        return sum(array.nbytes for array in (*self.variables.values(), *self.best.values()))


def write(path: Path, checkpoint: Checkpoint) -> None:
    """Write a checkpoint; the file appears whole or not at all. Raises :class:`CheckpointError`."""
    about = {
        "format": FORMAT,
        "seed": checkpoint.seed,
        "position": asdict(checkpoint.position),
        "hyper": checkpoint.hyper,
        "history": checkpoint.history,
        "fingerprint": checkpoint.fingerprint,
    }
    tensors = {_key(name): array for name, array in checkpoint.variables.items()}
    tensors |= {BEST + name: array for name, array in checkpoint.best.items()}
    shaped = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    write_atomically(path, serialize(shaped, {KEY: json.dumps(about, sort_keys=True)}))


def _key(name: str) -> str:
    """A variable's name in the file: its own, unless that means something else there."""
    return PLAIN + name if name.startswith((BEST, PLAIN)) or name == "__metadata__" else name


def read(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises :class:`CheckpointError` for a file that is missing, broken or of another program."""
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error})") from error
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of glowtrain (format {FORMAT})")
    return _checkpoint(about, tensors, path)


def _checkpoint(about: dict[str, Any], tensors: dict[str, Array], path: Path) -> Checkpoint:
    try:
        return Checkpoint(
            {name.removeprefix(PLAIN): array for name, array in tensors.items() if not name.startswith(BEST)},
            about["seed"],
            about["fingerprint"],
            Position(**about["position"]),
            about["hyper"],
            about["history"],
            {name.removeprefix(BEST): array for name, array in tensors.items() if name.startswith(BEST)},
        )
    except (KeyError, TypeError) as error:
        raise CheckpointError(f"{path}: the checkpoint's metadata are incomplete ({error})") from error


def check_belongs(checkpoint: Checkpoint, own: Checkpoint, path: Path) -> None:
    """Raise :class:`CheckpointError`, saying what differs, unless the checkpoint is of the same training run."""
    problems = [
        f"{what} differs: {found!r} in the checkpoint, {own.fingerprint.get(what)!r} here"
        for what, found in checkpoint.fingerprint.items()
        if found != own.fingerprint.get(what)
    ]
    if checkpoint.seed != own.seed:
        problems.append(f"it was written with seed={checkpoint.seed}, this trainer has seed={own.seed}")
    problems += _different(checkpoint.variables, own.variables)
    if checkpoint.hyper.keys() != own.hyper.keys():
        names = ", ".join(sorted(checkpoint.hyper.keys() ^ own.hyper.keys()))
        problems.append(f"the optimizer's hyperparameters differ: {names}")
    if problems:
        shown = problems[:8] + ([f"and {len(problems) - 8} more"] if len(problems) > 8 else [])
        listed = "".join(f"\n  - {problem}" for problem in shown)
        raise CheckpointError(f"{path}: does not belong to this training run:{listed}")


def _different(found: Mapping[str, Array], own: Mapping[str, Array]) -> list[str]:
    problems = []
    for what, names in (
        ("here, but not in the checkpoint", [name for name in own if name not in found]),
        ("in the checkpoint, but not here", [name for name in found if name not in own]),
    ):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            problems.append(f"variables {what}: {shown}")
    for name in sorted(found.keys() & own.keys()):
        theirs, ours = type_of(found[name]), type_of(own[name])
        if theirs != ours:
            problems.append(f"variable {name!r} is {theirs} in the checkpoint, {ours} here")
    return problems
