"""A bundle's training step beside the same step compiled in this process, on one thread.

    python benchmarks/bundles_speed.py [--models mlp cnn mobilenet transformer] [--batch 32] [--seconds 5]

Both are called from Python, with the same batch. They take turns, step by step, and of each the best counts: in its
thread's microseconds, and how far they are apart.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from collections.abc import Callable, Mapping

import numpy as np

import glowtrain as gt
from glowtrain import models
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.state import aligned
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import STEP, Contents, contents_of
from glowtrain.bundles.module import BundleModule, module_of
from glowtrain.optim import HYPER
from glowtrain.stages import Options
from glowtrain.trainer.settings import TrainingSettings
from glowtrain.types import Array

Call = Callable[[], object]


def main() -> None:
    """Measure, and print a table."""
    options = _options()
    print(f"{'model':14}{'in process':>12}{'bundle':>12}{'apart':>10}   us a step, batch {options.batch}")
    for name in options.models:
        optimizer = gt.optim.SGD(1e-3, momentum=0.9)
        given = "softmax_cross_entropy", optimizer, TrainingSettings(), {"batch": options.batch}, None
        contents = contents_of(models.build(name), *given).fixed()
        calls = {"in process": _in_process(contents), "bundle": _bundle(contents)}
        best = _best(calls, options.seconds)
        apart = best["bundle"] / best["in process"] - 1
        print(f"{name:14}{best['in process']:>12,.1f}{best['bundle']:>12,.1f}{100 * apart:>+8.1f} %")


def _best(calls: Mapping[str, Call], seconds: float) -> dict[str, float]:
    """Microseconds of each call's best run."""
    best, end = dict.fromkeys(calls, np.inf), time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            began = time.thread_time()
            call()
            best[name] = min(best[name], (time.thread_time() - began) * 1e6)
    return best


def _batch(contents: Contents) -> dict[str, Array]:
    random = np.random.default_rng(0)
    found = {}
    for value in contents.graphs[STEP].inputs:
        if value.name.startswith(HYPER):
            found[value.name] = np.asarray(contents.hyper[value.name.removeprefix(HYPER)], value.dtype.numpy)
        elif value.dtype.is_float:
            found[value.name] = random.normal(size=value.shape).astype(value.dtype.numpy)
        else:
            found[value.name] = random.integers(0, 10, value.shape).astype(value.dtype.numpy)
    return found


def _in_process(contents: Contents) -> Call:
    function, batch = gt.compile(contents.graphs[STEP], Cpu(threads=1)), _batch(contents)
    function(batch)
    return lambda: function(batch)


def _bundle(contents: Contents) -> Call:
    module = module_of(contents, Target.host(), Options(facts=Cpu(threads=1, cache=None).facts), holds_weights=True)
    library = toolchain.load([module.code], [f"{module.name}_init", f"{module.name}_step"])
    handle, kept = _handle(module, library)
    step = next(function for function in module.functions if function.name == STEP)
    batch, loss = _batch(contents), np.zeros(1)
    arrays = [aligned(batch[each.source]) for each in step.inputs]
    pointers = [handle, *(array.ctypes.data for array in arrays), None, loss.ctypes.data]
    prototype = ctypes.CFUNCTYPE(ctypes.c_uint32, *[ctypes.c_void_p] * len(pointers))
    call = prototype(library.address(f"{module.name}_step"))

    def run(keep: object = (kept, arrays, library)) -> None:
        assert call(*pointers) == 0

    run()
    return run


def _handle(module: BundleModule, library: toolchain.Library) -> tuple[int, object]:
    """The address of a handle that is ready, and its memory."""
    interface = module.interface
    sizes = interface.handle.size, interface.given.size, module.memory.size, interface.arena
    handle, given, variables, arena = (aligned(np.zeros(size, np.uint8)) for size in sizes)
    values = {"variables": variables.ctypes.data, "arena": arena.ctypes.data, "version": module.version}
    values |= {"variables_bytes": variables.nbytes, "arena_bytes": arena.nbytes}
    for name, value in values.items():
        at = interface.given.offset(name)
        given[at : at + 8].view(np.uint64)[0] |= np.uint64(value)
    init = ctypes.CFUNCTYPE(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p)(library.address(f"{module.name}_init"))
    assert init(handle.ctypes.data, given.ctypes.data) == 0
    return handle.ctypes.data, (handle, given, variables, arena)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(models.MODELS), choices=list(models.MODELS))
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each model")
    return parser.parse_args()


if __name__ == "__main__":
    main()
