"""Object files of bundles: they need nothing, hold nothing that is written, and export what begins with their name."""

from __future__ import annotations

import pytest

from glowtrain.backends.llvm.symbols import symbols_of
from glowtrain.backends.target import Target, target_names
from glowtrain.bundles.module import BundleModule
from tests.bundles.elf import sections
from tests.bundles.in_process import compiled, contents
from tests.bundles.networks import BATCH, CASES

FOREIGN = ("windows", "macosx", "wasm")
TARGETS = [
    name for name in ("host", *target_names()) if not any(other in Target.named(name).triple for other in FOREIGN)
]
"""Those whose objects are ELF."""


def module_of(name: str, target: str, threads: int) -> BundleModule:
    trainer = CASES[name]().trainer
    what = contents(trainer, dims={"batch": BATCH} if trainer.graphs.template else {})
    return compiled(what, threads=threads, target=Target.named(target))


@pytest.mark.spread(6)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("name", "threads"), [("cnn", 2), ("several", 1), ("f16", 1)])
def test_an_object_needs_nothing_and_holds_nothing_that_is_written(name: str, threads: int, target: str) -> None:
    module = module_of(name, target, threads)
    symbols = symbols_of(module.code)
    assert set(symbols.defined) == {f"{module.name}_{name}" for name in names(module)}
    assert not symbols.needed or module.target.needs, symbols.needed
    assert not [section.name for section in sections(module.code) if section.variable]


def names(module: BundleModule) -> list[str]:
    """What headers declare."""
    variables = ["find", "get", "set", "reset", "save", "load", "variables"] if module.memory.slots else []
    hyper = ["defaults"] if module.hyper else []
    return ["init", "error", "sizes", *variables, *hyper, *(function.name for function in module.functions)]
