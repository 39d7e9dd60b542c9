"""Build a bundle's example and run it by other programs, perhaps for another processor: a C compiler and an
emulator."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from glowtrain.bundles.arguments import split_command
from glowtrain.bundles.faces.c.example import program
from glowtrain.bundles.faces.c.header import header
from glowtrain.bundles.libraries.linking import program_compiler
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.verify.trace import BitTrace, StepTrace, printable
from glowtrain.errors import BundleError
from glowtrain.presentation.messages import plural

PROGRAM = "{}"
"""What stands for the program in the command that runs it."""
_STEP = re.compile(r"step \d+: loss (\w+), variables (\w+)")
_VARIABLE = re.compile(r"variable (\d+): (\w+)")
_OUTPUT = re.compile(r"(\w+): (.*) ([0-9a-f]{8})")


@dataclass(frozen=True)
class ExampleRunner:
    """How programs are made and run: a C compiler, as on a shell (by default one for the target), and the command that
    runs a program, in which ``{}`` stands for it."""

    compiler: str | None = None
    command: str = PROGRAM

    def trace(self, module: BundleModule, steps: int, seed: int = 0) -> BitTrace:
        """What the module computes there. Raises :class:`BundleError` for what cannot be built or run."""
        with TemporaryDirectory(prefix="glowtrain-") as folder:
            return parsed(self._printed(module, Path(folder), steps, seed), module)

    def _printed(self, module: BundleModule, folder: Path, steps: int, seed: int) -> str:
        compiler = program_compiler(module.target) if self.compiler is None else split_command(self.compiler, "--cc")
        words = split_command(self.command, "--run")
        if not any(PROGRAM in word for word in words):
            raise BundleError(f"{self.command!r} does not say where the program stands: qemu-aarch64 {PROGRAM}")
        name, made = module.name, folder / "example"
        (folder / f"{name}.o").write_bytes(module.code)
        (folder / f"{name}.h").write_text(header(module))
        (folder / "main.c").write_text(program(module, steps, seed, every_variable=True))
        sources = [str(folder / each) for each in ("main.c", f"{name}.o")]
        _output([*compiler, "-std=c99", "-O1", *sources, "-o", str(made)])
        if not any(folder.glob("example*")):  # some compilers add .exe
            raise BundleError(f"{shlex.join(compiler)} ended well and wrote no program: it is no C compiler (--cc)")
        advice = f": name what runs programs for {module.target.name}, as in --run 'qemu-aarch64 {PROGRAM}'"
        return _output([word.replace(PROGRAM, str(made)) for word in words], advice if words == [PROGRAM] else "")


def parsed(printed: str, module: BundleModule) -> BitTrace:
    """What an example has printed, with a checksum of every variable.

    Raises :class:`BundleError` for anything else, and for what is not all of it.
    """
    names = {str(number): slot.name for number, slot in enumerate(module.memory.slots)}
    steps, outputs = list[StepTrace](), dict[str, dict[str, str]]()
    for line in printed.splitlines():
        if step := _STEP.fullmatch(line):
            steps.append(StepTrace(step[1], step[2], {}))
        elif (variable := _VARIABLE.fullmatch(line)) and steps and variable[1] in names:
            last = steps[-1]
            steps[-1] = StepTrace(last.loss, last.saved, {**last.variables, names[variable[1]]: variable[2]})
        elif output := _OUTPUT.fullmatch(line):
            outputs.setdefault(output[1], {})[output[2]] = output[3]
        else:
            raise BundleError(f"the program printed {line!r}, which is no result: has it ended early?")
    _check_whole(steps, outputs, module)
    return BitTrace(tuple(steps), outputs)


def _check_whole(steps: Sequence[StepTrace], outputs: Mapping[str, Mapping[str, str]], module: BundleModule) -> None:
    """Raise :class:`BundleError` for the results of a program that ended before its last line."""
    for number, step in enumerate(steps, 1):
        if missing := {slot.name for slot in module.memory.slots} - step.variables.keys():
            raise BundleError(f"the program ended early, in step {number}: it printed no {', '.join(sorted(missing))}")
    for function in module.functions:
        for output in () if function.trains else function.outputs:
            if printable(output.source) not in outputs.get(function.name, {}):
                after = f", after {plural(len(steps), 'step')}" if module.trains else ""
                raise BundleError(f"the program ended early{after}: it printed no {function.name}: {output.source}")


def _output(command: Sequence[str], advice: str = "") -> str:
    """What a command prints. Raises :class:`BundleError` where it cannot be run, with some advice, or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BundleError(f"{command[0]} cannot be run: {error.strerror}{advice}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it printed nothing").splitlines()
        raise BundleError(f"{shlex.join(command)} failed with status {done.returncode}:\n" + "\n".join(said[-10:]))
    return done.stdout
