"""Fuzzing the loader: mutated models work, the same on every backend, or are refused by an error that says where.

    python tests/onnx_io/fuzz.py --count 20000 --seed 1 --jobs 2

Mutants are tried in child processes, so a crash of native code, a hang and too much memory are found as well; those
that showed a problem are saved. A mutant is given by seed and number alone: ``--first N --count 1`` tries it again.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import pickle
import re
import resource
import select
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from onnx import ModelProto

import glowtrain as gt
from glowtrain.backends.base import Backend
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.errors import GlowtrainError, UnsupportedOperatorError
from glowtrain.graph import Graph, HostedModel, Template
from glowtrain.types import Array, Spec
from tests.onnx_io.mutations import messages, mutate
from tests.onnx_io.seeds import Inputs, Seed, corpus

SLOW = 10.0
"""Seconds of processor time that one mutant may take, compiled or not."""
HANGING = 40.0
"""Seconds after which a child that does not answer is ended."""
MEMORY = 4 << 30
"""Bytes of address space of a child: far more than any model of the corpus needs, far less than damaged extents ask."""
LARGEST_RUN = 1 << 26
"""Bytes of all values of a graph up to which it is run; a larger one is a valid model that asks for a lot."""


class Finding(Exception):
    """A property that a mutant breaks."""


def mutant(seeds: list[Seed], seed: int, number: int) -> tuple[Seed, bytes, Random]:
    """The mutant of a number: the same ones in every run over the same corpus."""
    random = Random(f"{seed} {number}")
    chosen = random.choice(seeds)
    return chosen, mutate(chosen.data, random), random


def attempt(data: bytes, given: Inputs, random: Random, native_share: float) -> str:
    """What becomes of a model. Raises :class:`Finding`."""
    compiled = random.random() < native_share
    generator = np.random.default_rng(random.randrange(1 << 32))
    try:
        loaded = gt.load(data)
        if isinstance(loaded, HostedModel):
            if given.keys() == {*loaded.inputs}:
                gt.compile(loaded, "interpreter")(given)
            loaded = loaded.model
        expected = _run(loaded, "interpreter", feeds(loaded, given, generator))
    except GlowtrainError as error:
        _check_message(error, data)
        return f"refused: {type(error).__name__}"
    if expected is None:
        return "loaded, too large to run"
    if not compiled:
        return "ran"
    generator = np.random.default_rng(random.randrange(1 << 32))
    _compare(loaded, given, generator)
    return "ran on both backends"


def _compare(loaded: Graph | Template, given: Inputs, generator: np.random.Generator) -> None:
    inputs = feeds(loaded, given, generator)
    outcomes = []
    for backend in ("interpreter", Cpu(cache=None)):
        try:
            outcomes.append(_run(loaded, backend, inputs))
        except GlowtrainError as error:
            outcomes.append(f"{type(error).__name__}: {error}")
    first, second = outcomes
    if isinstance(first, str) or isinstance(second, str):
        if not (isinstance(first, str) and isinstance(second, str)):
            raise Finding(f"one backend refuses: {first!r:.300} / {second!r:.300}")
    elif first is not None and second is not None:
        for name in first:
            _same(name, first[name], second[name])


def _run(loaded: Graph | Template, backend: str | Backend, inputs: Inputs) -> dict[str, Any] | None:
    """The results; ``None`` for a graph that asks for a lot of memory."""
    if sum(np.asarray(value, object).nbytes for value in inputs.values()) > LARGEST_RUN:
        return None
    function = gt.compile(loaded, "interpreter")
    graph = function.specialised(inputs).graph
    values = [value.type.nbytes for node_ in graph.nodes for value in node_.outputs]
    if sum(values) + sum(value.type.nbytes for value in graph.leaves) > LARGEST_RUN:
        return None
    function = function if backend == "interpreter" else gt.compile(loaded, backend)
    return function(inputs)


def _same(name: str, first: Any, second: Any) -> None:
    if isinstance(first, list):
        for place, pair in enumerate(zip(first, second, strict=True)):
            _same(f"{name}[{place}]", *pair)
        return
    if first is None or second is None:
        if first is not second:
            raise Finding(f"backends differ: {name} is absent on one")
        return
    if first.shape != second.shape or first.dtype != second.dtype:
        raise Finding(
            f"backends differ: {name} is {first.dtype}{list(first.shape)} and {second.dtype}{list(second.shape)}"
        )
    one, other = (array.astype(np.float64) for array in (first, second))
    finite = np.isfinite(one) & np.isfinite(other)
    one, other = one[finite], other[finite]
    tolerance = {8: 1e-6, 4: 2e-3}.get(first.dtype.itemsize, 5e-2)
    if one.size and np.abs(one - other).max() > tolerance * (1 + np.abs(one).max()):
        raise Finding(f"backends differ: {name} by {np.abs(one - other).max():.3g} of {np.abs(one).max():.3g}")


def feeds(loaded: Graph | Template, given: Inputs, generator: np.random.Generator) -> dict[str, Any]:
    """Inputs for a call: the given ones where they fit, else random ones, with 2 for open dimensions."""
    if isinstance(loaded, Graph):
        return {value.name: _array(value.type.dtype.numpy, value.shape, generator) for value in loaded.inputs}
    fits = all(name in given and _fits(given[name], spec) for name, spec in loaded.inputs.items())
    made: dict[str, Any] = {}
    for name, spec in loaded.inputs.items():
        type_ = spec.bind(dict.fromkeys(spec.symbols, 2))
        if type_.nbytes > LARGEST_RUN:
            raise GlowtrainError(f"input {name!r} is too large to try")
        made[name] = given[name] if fits else _array(type_.dtype.numpy, type_.shape, generator)
    for name, structure in loaded.structures.items():
        items = [_array(structure.element.dtype.numpy, (2,), generator) for _ in range(2)]
        made[name] = items[0] if structure.kind == "optional" else items
    return made


def _fits(array: Any, spec: Spec) -> bool:
    return (
        isinstance(array, np.ndarray)
        and array.dtype == spec.dtype.numpy
        and array.ndim == len(spec.shape)
        and all(isinstance(want, str) or want == have for want, have in zip(spec.shape, array.shape, strict=True))
    )


def _array(dtype: Any, shape: tuple[int, ...], generator: np.random.Generator) -> Array:
    if np.prod(shape, dtype=float) * np.dtype(dtype).itemsize > LARGEST_RUN:
        raise GlowtrainError("input 'x' is too large to try")
    if np.issubdtype(dtype, np.floating):
        return generator.uniform(-1, 2, shape).astype(dtype)
    return generator.integers(0, 2, shape).astype(dtype)


_WHOLE = (
    "not an ONNX model", "opset", "no outputs", "has no name", "has no type", "metadata", "is too large to try",
    "not enough memory",
)  # fmt: skip
"""What may be wrong with a model as a whole."""


def _check_message(error: GlowtrainError, data: bytes) -> None:
    """An error names something of the model: a node, an operator, a value."""
    text = str(error)
    if isinstance(error, UnsupportedOperatorError) or any(part in text for part in _WHOLE):
        return
    try:
        proto = ModelProto.FromString(data)
    except DecodeError:
        raise Finding(f"vague: {text:.300}") from None
    if not any(name and re.search(rf"(?<!\w){re.escape(repr(name)[1:-1])}(?!\w)", text) for name in _names(proto)):
        raise Finding(f"vague: {type(error).__name__}: {text:.300}")


def _names(proto: ModelProto) -> set[str]:
    found: set[str] = {value.name for value in (*proto.graph.input, *proto.graph.output, *proto.functions)}
    for message in messages(proto):
        match message.DESCRIPTOR.name:
            case "NodeProto":
                found |= {message.name, message.op_type, *message.output}  # type: ignore[attr-defined]
            case "TensorProto" | "AttributeProto" | "ValueInfoProto":
                found.add(message.name)  # type: ignore[attr-defined]
    return found


def work(folder: Path, seed: int, numbers: range, native_share: float) -> None:
    """Try mutants one after another; a line of JSON before and after each."""
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    seeds = pickle.loads((folder / "corpus").read_bytes())
    warnings.simplefilter("ignore")
    attempt(seeds[0].data, seeds[0].inputs, Random(0), 1.0)  # what is imported at first use is no mutant's time
    _say(ready=True)
    for number in numbers:
        chosen, data, random = mutant(seeds, seed, number)
        _say(number=number, seed=chosen.name)
        faulthandler.dump_traceback_later(HANGING * 0.9, exit=False)
        started, problem = time.process_time(), ""
        try:
            outcome = attempt(data, chosen.inputs, random, native_share)
        except Finding as finding:
            outcome, problem = "found", str(finding)
        except Exception as error:  # noqa: BLE001  (whatever else a mutant raises is what is looked for)
            outcome, problem = "found", f"raised {type(error).__name__}: {error!s:.200} @ {_places(error)}"
        seconds = time.process_time() - started
        if seconds > SLOW and not problem:
            outcome, problem = "found", f"slow: {seconds:.1f} s ({outcome})"
        _say(number=number, outcome=outcome, problem=problem, seconds=round(seconds, 2))
    faulthandler.cancel_dump_traceback_later()


def _places(error: BaseException) -> str:
    """Where an exception comes from: the last lines of this package, and the very last."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if "glowtrain" in frame.filename][-3:]
    shown = [*ours, frames[-1]] if frames else []
    return " < ".join(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(shown))


def _say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


@dataclass
class Tally:
    """What became of the mutants of a run: counts of outcomes, and problems by number."""

    tried: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    problems: dict[int, str] = field(default_factory=dict)
    slowest: float = 0.0

    def __iadd__(self, other: Tally) -> Tally:
        self.tried += other.tried
        self.outcomes += other.outcomes
        self.problems |= other.problems
        self.slowest = max(self.slowest, other.slowest)
        return self

    def __str__(self) -> str:
        lines = [f"{self.tried} mutants tried, the slowest took {self.slowest:.1f} s"]
        lines += [f"  {count:6} {outcome}" for outcome, count in self.outcomes.most_common()]
        return "\n".join([*lines, *(f"{number}: {problem}" for number, problem in sorted(self.problems.items()))])


def watch(folder: Path, seed: int, numbers: range, native_share: float) -> Tally:
    """Try a range of mutants in children, a new one after each that ended or hung."""
    tally, following = Tally(), numbers.start  # the pipe is read unbuffered: select must see every line
    while following < numbers.stop:
        command = [sys.executable, __file__, "--worker", str(folder), "--seed", str(seed)]
        command += ["--first", str(following), "--count", str(numbers.stop - following), "--native", str(native_share)]
        with (
            tempfile.TemporaryFile() as log,
            subprocess.Popen(command, stdout=subprocess.PIPE, bufsize=0, stderr=log, env=_environment()) as child,
        ):
            following = _follow(child, tally, following)
            if following < numbers.stop:
                log.seek(0)
                reason = "hangs" if child.returncode == -9 else f"ends the process ({child.returncode})"
                tally.problems[following] = f"{reason}: {_stack(log.read().decode(errors='replace'))}"
                tally.outcomes["found"] += 1
                tally.tried += 1
                following += 1
    return tally


def _environment() -> dict[str, str]:
    root = Path(__file__).resolve().parents[2]
    return {**os.environ, "PYTHONPATH": str(root), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def _follow(child: subprocess.Popen[bytes], tally: Tally, following: int) -> int:
    """Count a child's answers until it ends; the number of the mutant that it did not finish."""
    assert child.stdout is not None
    while True:
        if not select.select([child.stdout], [], [], HANGING)[0]:
            child.kill()
            break
        line = child.stdout.readline()
        if not line:
            break
        answer = json.loads(line)
        if "outcome" not in answer:
            continue
        following = answer["number"] + 1
        tally.tried += 1
        tally.outcomes[answer["outcome"]] += 1
        tally.slowest = max(tally.slowest, answer["seconds"])
        if answer["problem"]:
            tally.problems[answer["number"]] = answer["problem"]
    child.wait()
    return following


def _stack(log: str) -> str:
    frames = re.findall(r'File "([^"]*)", line (\d+) in (\w+)', log)
    shown = " < ".join(f"{Path(name).name}:{line} {function}" for name, line, function in frames[:8])
    return shown or log[-300:]


def campaign(
    count: int,
    seed: int = 0,
    *,
    first: int = 0,
    jobs: int = 1,
    native_share: float = 0.3,
    node_tests: bool = True,
    keep: Path | None = None,
) -> Tally:
    """Try ``count`` mutants; those that show a problem are saved in the folder ``keep``."""
    seeds, tally = corpus(node_tests=node_tests), Tally()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "corpus").write_bytes(pickle.dumps(seeds))
        step = -(-count // jobs)
        parts = [range(first + start, first + min(start + step, count)) for start in range(0, count, step)]
        with ThreadPoolExecutor(jobs) as pool:
            for part in pool.map(lambda numbers: watch(folder, seed, numbers, native_share), parts):
                tally += part
    if keep is not None and tally.problems:
        keep.mkdir(parents=True, exist_ok=True)
        for number in tally.problems:
            chosen, data, _ = mutant(seeds, seed, number)
            (keep / f"{seed}-{number}-{chosen.name.replace('/', '-')}.onnx").write_bytes(data)
    return tally


def main() -> int:
    """The command line; 1 if a problem was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--native", type=float, default=0.3, help="the share that is compiled as well")
    parser.add_argument("--keep", type=Path, default=None, help="a folder for mutants that show a problem")
    parser.add_argument("--no-node-tests", action="store_true", help="leave out ONNX's node tests")
    parser.add_argument("--worker", type=Path, default=None, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker is not None:
        with contextlib.suppress(BrokenPipeError):
            numbers = range(options.first, options.first + options.count)
            work(options.worker, options.seed, numbers, options.native)
        return 0
    tally = campaign(
        options.count, options.seed, first=options.first, jobs=options.jobs, native_share=options.native,
        node_tests=not options.no_node_tests, keep=options.keep,
    )  # fmt: skip
    print(tally)
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
