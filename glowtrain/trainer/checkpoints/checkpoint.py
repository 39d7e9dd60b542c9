"""Checkpoints: everything that the rest of a training run depends on, in one safetensors file.

    tensors   every variable by name (parameters, optimizer's slots, counters, running statistics), row-major;
              "best:<name>" where the best parameters are kept
    metadata  "glowtrain": JSON with the format's number, seed, position, hyperparameters, history, fingerprint, and
              SHA-256 of all that and of the tensors

Nothing in it depends on time or machine, so equal runs write equal bytes. Files of format 1, without the checksum and
with a fingerprint that has only the names of the model's operators, are read as well.
Source of the container format: https://github.com/huggingface/safetensors (format section).
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as serialize

from glowtrain.errors import CheckpointError
from glowtrain.files import is_stream
from glowtrain.trainer.checkpoints.files import write_atomically
from glowtrain.types import Array, type_of
from glowtrain.version import __version__

FORMAT = 2
READ = (1, FORMAT)
"""The formats that can be read."""
KEY = "glowtrain"
BEST = "best:"
"""Prefix of the names of the best parameters so far."""
PLAIN = "variable:"
"""Prefix of variables whose own names would be taken for something else."""


@dataclass
class Position:
    """How far training is: whole epochs, batches in the present one, and the sums for that epoch's means.

    ``source``: what the source of batches needs to go on from here, if it has a state of its own
    (:mod:`glowtrain.trainer.sources.states`).
    """

    epoch: int = 0
    batch: int = 0
    examples: int = 0
    loss_sum: float = 0.0
    batch_size: int = 0
    metric_sums: dict[str, float] = field(default_factory=dict)
    source: Any = None
    mass: float | None = None
    """The weights of the examples so far, where they have any: what sums are divided by for means."""

    @property
    def counted(self) -> float:
        """What sums are divided by for means."""
        return (self.examples if self.mass is None else self.mass) or 1

    def after(
        self, losses: Sequence[float], metrics: Mapping[str, Sequence[float]], count: int, source: Any = None,
        masses: Sequence[float] | None = None,
    ) -> Position:  # fmt: skip
        """The position after further batches of ``count`` examples each, or by their ``masses``, by their losses and
        metrics. Metrics do not count that earlier batches of the epoch, or these, were not measured by."""
        counts = [count] * len(losses) if masses is None else masses[: len(losses)]
        counted = [name for name in metrics if self.examples == 0 or name in self.metric_sums]
        sums = {name: _added(self.metric_sums.get(name, 0.0), metrics[name], counts) for name in counted}
        return replace(
            self,
            batch=self.batch + len(losses),
            examples=self.examples + len(losses) * count,
            loss_sum=_added(self.loss_sum, losses, counts),
            metric_sums=sums if losses else self.metric_sums,
            source=source,
            mass=self.mass if masses is None else _added(self.mass or 0.0, counts, [1.0] * len(counts)),
        )


def _added(total: float, values: Sequence[float], counts: Sequence[float]) -> float:
    """The total with the values times what they count, added one by one: Python's ``sum`` rounds otherwise."""
    for value, count in zip(values, counts, strict=True):
        total += value * count
    return total


@dataclass
class Checkpoint:
    """The content of a checkpoint file."""

    variables: dict[str, Array]
    seed: int
    fingerprint: dict[str, str]
    position: Position = field(default_factory=Position)
    hyper: dict[str, float] = field(default_factory=dict)
    began: dict[str, float] = field(default_factory=dict)
    """The hyperparameters that the optimizer was made with."""
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
        "position": {name: value for name, value in asdict(checkpoint.position).items() if value not in ({}, None)},
        "hyper": checkpoint.hyper,
        "began": checkpoint.began,
        "history": checkpoint.history,
        "fingerprint": checkpoint.fingerprint,
    }
    tensors = {_key(name): array for name, array in checkpoint.variables.items()}
    tensors |= {BEST + name: array for name, array in checkpoint.best.items()}
    shaped = {name: np.ascontiguousarray(array).reshape(array.shape) for name, array in tensors.items()}
    about["sha256"] = _checksum(about, shaped)
    write_atomically(path, serialize(shaped, {KEY: json.dumps(about, sort_keys=True)}))


def _checksum(about: Mapping[str, Any], tensors: Mapping[str, Array]) -> str:
    found = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for name, array in sorted(tensors.items()):
        found.update(f"\0{name} {array.dtype} {array.shape}\0".encode())
        found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()


def _key(name: str) -> str:
    """A variable's name in the file: its own, unless that means something else there."""
    return PLAIN + name if name.startswith((BEST, PLAIN)) or name == "__metadata__" else name


def read(path: Path) -> Checkpoint:
    """Read a checkpoint. Raises :class:`CheckpointError` for a file that is missing, broken or of another program."""
    if is_stream(path):
        raise CheckpointError(f"{path}: not a regular file, so no checkpoint can be read from it")
    try:
        with safe_open(path, framework="numpy") as file:
            about = json.loads((file.metadata() or {}).get(KEY, "null"))
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file") from error
    except (SafetensorError, OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not a whole safetensors file ({error})") from error
    if not isinstance(about, dict) or not _is_whole(about.get("format")) or about["format"] < min(READ):
        raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of glowtrain (format {FORMAT})")
    if about["format"] not in READ:
        raise CheckpointError(
            f"{path}: a checkpoint of format {about['format']}, of a newer Glowtrain; {__version__} reads "
            f"{' and '.join(map(str, READ))}: update Glowtrain"
        )
    if about["format"] != 1 and about.pop("sha256", None) != _checksum(about, tensors):
        raise CheckpointError(f"{path}: the file is damaged: its content is not what was written; take an earlier one")
    return _checkpoint(about, tensors, path)


def _checkpoint(about: dict[str, Any], tensors: dict[str, Array], path: Path) -> Checkpoint:
    about = {"began": about.get("hyper"), **about}
    wrong = [f"{name} must be {meaning}" for name, (meaning, fits) in _METADATA.items() if not fits(about.get(name))]
    if wrong:
        raise CheckpointError(f"{path}: the checkpoint's metadata are wrong: {'; '.join(wrong)}")
    return Checkpoint(
        {name.removeprefix(PLAIN): array for name, array in tensors.items() if not name.startswith(BEST)},
        about["seed"],
        about["fingerprint"],
        Position(**about["position"]),
        about["hyper"],
        about["began"],
        about["history"],
        {name.removeprefix(BEST): array for name, array in tensors.items() if name.startswith(BEST)},
    )


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, float) or (_is_whole(value) and abs(value) <= sys.float_info.max)


def _is_table(value: Any, fits: Callable[[Any], bool]) -> bool:
    return isinstance(value, dict) and all(map(fits, value.values()))


def _is_position(value: Any) -> bool:
    counts = {item.name for item in fields(Position)} - {"loss_sum", "metric_sums", "source", "mass"}
    return (
        isinstance(value, dict)
        and value.keys() - {"metric_sums", "source", "mass"} == {*counts, "loss_sum"}
        and _is_table(value.get("metric_sums", {}), _is_number)
        and all(_is_whole(value[name]) and value[name] >= 0 for name in counts)
        and _is_number(value["loss_sum"])
        and _is_number(value.get("mass", 0.0))
        and math.isfinite(value.get("mass", 0.0))
        and math.isfinite(value["loss_sum"])
    )


def _is_record(value: Any) -> bool:
    """Whether a value is a record of an epoch; a callback may have added what it likes."""
    return (
        isinstance(value, dict)
        and {"epoch", "loss"} <= value.keys()
        and all(_is_number(value[name]) for name in ("epoch", "loss", "val_loss") if name in value)
    )


def _is_history(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_record, value))


_METADATA: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "seed": ("a whole number", _is_whole),
    "fingerprint": ("texts by name", lambda value: _is_table(value, lambda text: isinstance(text, str))),
    "position": ("the counts of a position, from 0 up, and a finite loss_sum", _is_position),
    "hyper": ("numbers by name", lambda value: _is_table(value, _is_number)),
    "began": ("numbers by name", lambda value: _is_table(value, _is_number)),
    "history": ("records whose losses are numbers", _is_history),
}
"""What the metadata must hold: the meaning of each entry, and a test of it."""


def check_belongs(checkpoint: Checkpoint, expected: Checkpoint, path: Path) -> None:
    """Raise :class:`CheckpointError`, saying what differs, unless the checkpoint is of the same training run."""
    problems = [
        f"{what} differs: {found!r} in the checkpoint, {expected.fingerprint.get(what)!r} here"
        for what, found in checkpoint.fingerprint.items()
        if found != expected.fingerprint.get(what)
    ]
    if checkpoint.seed != expected.seed:
        problems.append(f"it was written with seed={checkpoint.seed}, this trainer has seed={expected.seed}")
    problems += _different(checkpoint.variables, expected.variables)
    present = {name: array for name, array in expected.variables.items() if name in checkpoint.best}
    problems += _different(checkpoint.best, present, "best variable")
    if checkpoint.hyper.keys() != expected.hyper.keys():
        names = ", ".join(sorted(checkpoint.hyper.keys() ^ expected.hyper.keys()))
        problems.append(f"the optimizer's hyperparameters differ: {names}")
    if problems:
        shown = problems[:8] + ([f"and {len(problems) - 8} more"] if len(problems) > 8 else [])
        listed = "".join(f"\n  - {problem}" for problem in shown)
        raise CheckpointError(f"{path}: does not belong to this training run:{listed}")


def _different(found: Mapping[str, Array], expected: Mapping[str, Array], what: str = "variable") -> list[str]:
    problems = []
    for where, names in (
        ("here, but not in the checkpoint", [name for name in expected if name not in found]),
        ("in the checkpoint, but not here", [name for name in found if name not in expected]),
    ):
        if names:
            shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
            problems.append(f"{what}s {where}: {shown}")
    for name in sorted(found.keys() & expected.keys()):
        theirs, ours = type_of(found[name]), type_of(expected[name])
        if theirs != ours:
            problems.append(f"{what} {name!r} is {theirs} in the checkpoint, {ours} here")
    return problems
