"""Bundles of small networks, run on emulated processors by a program without a C library.

By hand, for the table of docs/bundles.md: python -m tests.targets.bundles
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import STEP, Contents
from glowtrain.bundles.faces.c.example import program
from glowtrain.bundles.faces.c.header import header
from glowtrain.bundles.module import BundleModule, module_of
from glowtrain.bundles.verify.example_runner import parsed
from glowtrain.bundles.verify.trace import BitTrace, backend_like, trace_of
from glowtrain.graph import Value
from glowtrain.lower.forward_updates import residuals_for
from glowtrain.memory.precision import RoundedFactors
from glowtrain.presentation.messages import plural
from glowtrain.stages import Options
from tests.bundles.in_process import contents
from tests.compiler.networks import cnn, gpt, lstm, mlp
from tests.optimize.test_fixed_point import network
from tests.targets.emulated import BARE, HERE, MACHINES, PACKAGES, SECONDS, Machine, _webassembly

BATCH = 4
STEPS = 20


@gt.model(x=gt.f32["batch", 3, 12, 12])
def resnet20(x: Value) -> Value:
    """Three stages of three blocks, with 4, 8 and 16 channels. Source: He et al. (arXiv:1512.03385), section 4.2."""
    x = gt.nn.relu(_normed(x, 4, 1, 3))
    for stage, channels in enumerate((4, 8, 16)):
        for block in range(3):
            stride = 2 if stage and not block else 1
            inner = gt.nn.relu(_normed(x, channels, stride, 3))
            short = x if x.shape[1] == channels else _normed(x, channels, stride, 1)
            x = gt.nn.relu(_normed(inner, channels, 1, 3) + short)
    return gt.nn.linear(gt.nn.global_average_pool(x), 10)


def _normed(x: Value, channels: int, stride: int, kernel: int) -> Value:
    convolved = gt.nn.conv(x, channels, kernel, stride=stride, padding=kernel // 2, bias=False)
    return gt.nn.batch_norm(convolved)


def trained(model: Any) -> Contents:
    """A step by Adam and the prediction of a model of ten classes."""
    graphs = {"loss": "softmax_cross_entropy", "optimizer": gt.optim.Adam(1e-2), "dims": {"batch": BATCH}}
    return contents(model, **graphs).fixed()


MODELS: Mapping[str, Callable[[], Contents]] = {
    "mlp": lambda: trained(mlp),
    "cnn": lambda: trained(cnn),
    "resnet20": lambda: trained(resnet20),
    "MobileNetV2": lambda: trained(models.build("mobilenet", (3, 12, 12))),
    "lstm": lambda: trained(lstm),
    "gpt": lambda: trained(gpt),
    "cnn, residuals in bf16": lambda: trained(cnn),
    "cnn, products in bf16": lambda: trained(cnn),
    "lstm, products in bf16": lambda: trained(lstm),
    "int8": lambda: contents(network(np.random.default_rng(1))).fixed(),
    "int8, integers only": lambda: contents(network(np.random.default_rng(1))).fixed(),
}
"""What is run, by name."""
HOSTS: Mapping[str, Machine] = {
    f"{level}, {compiler}": Machine(target, (compiler, *BARE), ())
    for level, target in (("x86-64-v3", "avx2"), ("x86-64-v4", "avx512"))
    for compiler in ("gcc", "clang")
    if Target.named(target).runs_here
}
"""This processor itself, with both compilers."""
EVERY: Mapping[str, Machine] = {**HOSTS, **MACHINES}


def module_for(target: str, model: str) -> BundleModule:
    """A model's bundle for a target."""
    resolved = Target.named(target)
    options = options_of(model, resolved)
    return module_of(MODELS[model](), resolved, options, holds_weights=True)


def options_of(model: str, target: Target) -> Options:
    """What a model is compiled with, as its name says."""
    options = Options(facts=Cpu(target, cache=None).facts, fixed_point=model.endswith("integers only"))
    if "residuals" in model:
        return replace(options, residuals=residuals_for(MODELS[model]().graphs[STEP], "bf16"))
    return replace(options, precision=RoundedFactors()) if "products" in model else options


def here(machine: Machine, model: str) -> BitTrace:
    """What Python computes, with the arithmetic of a machine."""
    return _here(backend_like(Target.named(machine.target)).target, model)


@cache
def _here(target: Target, model: str) -> BitTrace:
    backend = Cpu(target, cache=None)
    return trace_of(MODELS[model](), backend, STEPS, options=options_of(model, backend.target))


def there(machine: Machine, model: str, folder: Path) -> BitTrace:
    """What a program without a C library computes on a machine."""
    module = module_for(machine.target, model)
    return parsed(executed(machine, linked(machine, module, folder, written(module, folder))), module)


def linked(machine: Machine, module: BundleModule, folder: Path, sources: Sequence[str]) -> Path:
    """A program that needs nothing but what the module's header says."""
    made = folder / "program"
    routines = ["-lgcc"] if machine.compiler[0].startswith("arm") and module.target.needs else []
    include = f"-I{HERE / 'bare'}", f"-I{folder}"
    told([*machine.compiler, *include, *sources, *routines, "-o", str(made)])
    return made


def executed(machine: Machine, made: Path) -> str:
    """What a program prints."""
    return _webassembly(made) if machine.target == "wasm32" else told([*machine.emulator, str(made)])


def written(module: BundleModule, folder: Path, steps: int = STEPS) -> list[str]:
    """The sources of the example."""
    name, main = module.name, folder / f"{module.name}_main.c"
    (folder / f"{name}.o").write_bytes(module.code)
    (folder / f"{name}.h").write_text(header(module))
    main.write_text(program(module, steps, every_variable=True))
    return [str(main), str(folder / f"{name}.o")]


def told(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command[:8])} ... ended with {done.returncode}: {done.stderr[-3000:]}"
    return done.stdout


def table() -> str:
    """Processors by models, in Markdown: whether the bits are those of Python."""
    lines = [f"| | {' | '.join(MODELS)} |", f"|---|{'---|' * len(MODELS)}"]
    for name, machine in EVERY.items():
        cells = [_cell(machine, model) for model in MODELS]
        lines.append(f"| {name} | {' | '.join(cells)} |")
        print(lines[-1], file=sys.stderr)
    return "\n".join([*lines, ""])


def _cell(machine: Machine, model: str) -> str:
    if machine.missing:
        return f"install {', '.join(machine.missing)} ({PACKAGES})"
    with TemporaryDirectory() as folder:
        try:
            same = there(machine, model, Path(folder)) == here(machine, model)
        except AssertionError as error:
            return str(error).splitlines()[0]
    return "✓" if same else "differs"


if __name__ == "__main__":
    print(f"{plural(STEPS, 'step')}, then a prediction\n\n{table()}")
