"""What one machine has computed, as a file, and where another machine's results begin to differ from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from glowtrain.backends.discovery import backend_for
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import Contents
from glowtrain.bundles.verify.trace import BitTrace, StepTrace
from glowtrain.bundles.weights import file_of
from glowtrain.errors import BundleError, VerificationError
from glowtrain.files import write_atomically
from glowtrain.graph.digest import structural_key
from glowtrain.version import __version__

FORMAT = "glowtrain.trace.1"


@dataclass(frozen=True)
class Record:
    """A trace, and where it comes from: the model (its name, and a digest of what is computed from which values), the
    machine, and versions."""

    model: str
    digest: str
    seed: int
    machine: str
    versions: Mapping[str, str]
    trace: BitTrace

    def write(self, path: Path) -> None:
        """Write the file. Raises :class:`BundleError` where it cannot be written."""
        try:
            write_atomically(path, (json.dumps({"format": FORMAT, **asdict(self)}, indent=1) + "\n").encode())
        except OSError as error:
            raise BundleError(f"{path}: cannot be written: {error.strerror or error}") from error

    @staticmethod
    def read(path: Path) -> Record:
        """A file that :meth:`write` has written. Raises :class:`BundleError` for anything else."""
        try:
            said = json.loads(path.read_bytes())
            return _record(said)
        except OSError as error:
            raise BundleError(f"{path}: cannot be read: {error.strerror or error}") from error
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BundleError(
                f"{path}: is no record of glowtrain verify --record, or one of another version: record it again"
            ) from error


def record_of(contents: Contents, trace: BitTrace, seed: int) -> Record:
    """The record of what this machine computed."""
    host = Target.host()
    versions = {"glowtrain": __version__, "compiler": backend_for(host).tools}
    return Record(contents.name, digest_of(contents), seed, f"{host.cpu}, {host.triple}", versions, trace)


def digest_of(contents: Contents) -> str:
    """A text for all that decides what is computed: functions, hyperparameters and values at the start."""
    keys = [(name, structural_key(graph)) for name, graph in contents.graphs.items()]
    hasher = hashlib.sha256(repr((keys, sorted(contents.hyper.items()))).encode())
    hasher.update(file_of({variable.name: variable.initial for variable in contents.variables}))
    return hasher.hexdigest()


def difference(here: BitTrace, there: BitTrace) -> str:
    """Where two traces begin to differ, in words; empty where they do not."""
    return next(_differences(here, there), "")


def require_same(model: str, here: BitTrace, there: BitTrace, where: str) -> None:
    """Raise :class:`VerificationError` with the first difference."""
    if found := difference(here, there):
        raise VerificationError(f"{model}: {where} computes other bits than this machine: {found}")


def check_against(record: Record, mine: Record) -> None:
    """Compare what another machine recorded with this machine's record.

    Raises :class:`BundleError` where they are not of the same model, seed and steps, :class:`VerificationError` with
    the first difference.
    """
    if record.digest != mine.digest or record.seed != mine.seed:
        raise BundleError(
            f"the record is of {record.model} {record.digest[:12]} with seed {record.seed}, this is {mine.model} "
            f"{mine.digest[:12]} with seed {mine.seed}: give the same model and options"
        )
    if len(record.trace.steps) != len(mine.trace.steps):
        raise BundleError(f"the record has {len(record.trace.steps)} steps: --steps {len(record.trace.steps)}")
    others = ", ".join(f"{name} {is_}" for name, is_ in record.versions.items())
    require_same(mine.model, mine.trace, record.trace, f"the other machine ({record.machine}; {others})")


def _differences(here: BitTrace, there: BitTrace) -> Iterator[str]:
    for number, (mine, other) in enumerate(zip_longest(here.steps, there.steps), 1):
        if mine is None or other is None:
            yield f"step {number} is missing {'here' if mine is None else 'there'}"
            return
        yield from _in_step(number, mine, other)
    for function in {**here.outputs, **there.outputs}:
        mine_, other_ = here.outputs.get(function, {}), there.outputs.get(function, {})
        if name := _first(mine_, other_):
            yield f"function {function}, output {name}: {mine_.get(name)} here, {other_.get(name)} there"


def _in_step(number: int, mine: StepTrace, other: StepTrace) -> Iterator[str]:
    if mine.loss != other.loss:
        yield f"function step, step {number}: the loss is {mine.loss} here, {other.loss} there"
    if name := _first(mine.variables, other.variables):
        yield f"function step, step {number}: variable {name} differs after it"
    if mine.saved != other.saved:
        yield f"function step, step {number}: the saved variables differ after it"


def _first(mine: Mapping[str, str], other: Mapping[str, str]) -> str | None:
    return next((name for name in {**mine, **other} if mine.get(name) != other.get(name)), None)


def _record(said: Mapping[str, Any]) -> Record:
    if said["format"] != FORMAT:
        raise ValueError("another format")
    trace = said["trace"]
    steps = tuple(StepTrace(**step) for step in trace["steps"])
    outputs = {function: dict(all_) for function, all_ in trace["outputs"].items()}
    rest = {name: said[name] for name in ("model", "digest", "seed", "machine", "versions")}
    return Record(**rest, trace=BitTrace(steps, outputs))
