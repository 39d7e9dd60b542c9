"""``gt.bundle``: a model as files that run, and train, without Glowtrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.threads.count import checked
from glowtrain.backends.llvm.target import Target
from glowtrain.bundles.contents import Contents, inference_of, training_of
from glowtrain.bundles.example import expected, program
from glowtrain.bundles.faces.cpp import cpp
from glowtrain.bundles.faces.extras import Extras
from glowtrain.bundles.header import header
from glowtrain.bundles.makefile import makefile
from glowtrain.bundles.manifest import manifest
from glowtrain.bundles.module import BundleModule, module_of
from glowtrain.bundles.weights import file_of
from glowtrain.errors import BundleError
from glowtrain.files import write_atomically
from glowtrain.graph import Graph, Template
from glowtrain.graph.specialise.template import no_model
from glowtrain.losses import Loss, LossFunction
from glowtrain.losses.choose import as_loss
from glowtrain.optim import Adam, Optimizer
from glowtrain.stages import Options
from glowtrain.trainer.graphs import Trainable, TrainerGraphs
from glowtrain.trainer.trainer import Trainer

Weights = Literal["object", "file", "none"]
"""Where the weights go."""


@dataclass(frozen=True)
class Bundle:
    """What was written: the folder, and the module whose sizes and functions it has."""

    path: Path
    module: BundleModule
    files: Mapping[str, int]
    """Bytes by name."""

    def __str__(self) -> str:
        module = self.module
        sizes = "\n".join(f"  {size:>12,}  {name}" for name, size in self.files.items())
        return (
            f"{module.name} for {module.target.name}, in {self.path}: "
            f"{' and '.join(function.name for function in module.functions)}\n{sizes}\n"
            f"memory: variables {module.memory.size:,} bytes, arena {module.interface.arena:,} bytes"
        )


def bundle(
    model: Graph | Template | Trainer,
    out: str | Path,
    *,
    loss: str | Loss | LossFunction | None = None,
    optimizer: Optimizer | None = None,
    trainable: Trainable = None,
    freeze_statistics: bool = False,
    dims: Mapping[str, int] | None = None,
    target: Target | str = "host",
    name: str | None = None,
    weights: Weights = "object",
    threads: int = 1,
    fixed_point: bool = False,
    seed: int = 0,
    archive: bool = False,
    shared: bool = False,
    linker: str | None = None,
    faces: Sequence[str] = (),
) -> Bundle:
    """Write a model into the folder ``out`` as files that need neither Python nor a library.

    With a ``loss`` (and an ``optimizer``, by default Adam) the bundle trains: its functions are ``step`` and
    ``predict``, over the same variables. A :class:`Trainer` gives what it trains, as it is now. Without, it predicts.
    ``trainable`` and ``freeze_statistics`` are as for a trainer; what is not trained becomes constants of the object
    file, which can stay in read-only memory.

    ``dims`` binds open dimensions, such as the batch (64 if it is open). ``target``: a :class:`Target` or its name.
    ``weights``: in the object file, in a file of their own (``NAME.safetensors``) or nowhere. ``threads``: how many the
    caller's ``parallel_for`` may use at most; one needs none. ``fixed_point``: see :class:`~glowtrain.stages.Options`.

    Written are ``NAME.o``, ``NAME.h``, ``NAME.hpp``, ``NAME.json`` and a program that runs it, with what it prints;
    with ``archive`` also ``libNAME.a``, with ``shared`` a shared library and ``NAME.py``, which loads it.
    ``linker`` is the command that links it: by default a C compiler for this system, or Zig for another one. ``faces``
    adds folders for other languages: ``rust``, ``fortran``. Files of these names that were there are replaced, after
    everything has been compiled.

    Raises :class:`BundleError` for open dimensions, unknown choices and a folder that cannot be written,
    :class:`CodegenError` for an unknown target and for operators that it cannot run.
    """
    if weights not in ("object", "file", "none"):
        raise BundleError(f"weights={weights!r}: choose object, file or none")
    extras = Extras(archive, shared, linker, tuple(faces))
    contents = contents_of(
        model, loss, optimizer, trainable, dims or {}, name, freeze_statistics=freeze_statistics, seed=seed
    )
    resolved = Target.named(target) if isinstance(target, str) else target
    extras.check(resolved)
    options = Options(facts=Cpu(resolved, cache=None).facts, fixed_point=fixed_point)
    module = module_of(contents, resolved, options, known=weights == "object", threads=checked(threads))
    return written(module, Path(out), weights, extras)


def contents_of(
    model: Graph | Template | Trainer,
    loss: str | Loss | LossFunction | None,
    optimizer: Optimizer | None,
    trainable: Trainable,
    dims: Mapping[str, int],
    name: str | None,
    *,
    freeze_statistics: bool = False,
    seed: int = 0,
) -> Contents:
    """What a bundle of a model computes. Raises :class:`BundleError`."""
    if isinstance(model, Trainer):
        if loss is not None or optimizer is not None or trainable is not None or freeze_statistics:
            raise BundleError("a trainer has its loss, its optimizer and what it trains: give it alone")
        return training_of(model.graphs, model.hyper, model.variables(), dims, name)
    if not isinstance(model, (Graph, Template)):
        raise BundleError(f"bundle takes a graph, a template or a trainer, {no_model(model)}")
    if loss is None:
        if optimizer is not None or trainable is not None:
            raise BundleError("a bundle that trains needs a loss: loss=gt.losses...")
        return inference_of(model, dims, name)
    rule = optimizer or Adam()
    graphs = TrainerGraphs(
        model, as_loss(loss), rule, trainable, seed, unbiased=False, freeze_statistics=freeze_statistics
    )
    return training_of(graphs, rule.hyper(), {}, dims, name)


def written(module: BundleModule, out: Path, weights: Weights, extras: Extras) -> Bundle:
    """Write all files of a module. Raises :class:`BundleError` where the folder cannot be written."""
    files = files_of(module, weights, extras)
    try:
        for name, data in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, data)
    except OSError as error:
        raise BundleError(f"{out}: cannot be written: {error.strerror or error}") from error
    return Bundle(out, module, {name: len(data) for name, data in files.items()})


def files_of(module: BundleModule, weights: Weights, extras: Extras) -> dict[str, bytes]:
    """The files of a bundle, by name."""
    name = module.name
    files = {
        f"{name}.o": module.code,
        f"{name}.h": header(module).encode(),
        f"{name}.hpp": cpp(module).encode(),
        **extras.files(module, example=weights == "object"),
    }
    if weights == "file":
        values = {variable.name: variable.initial for variable in module.contents.variables}
        files[f"{name}.safetensors"] = file_of(values)
    if weights == "object":
        files["main.c"] = program(module).encode()
        files["Makefile"] = makefile(module).encode()
        files["expected.txt"] = expected(module, _here(module.target)).encode()
    files[f"{name}.json"] = manifest(module, files).encode()
    return files


def _here(target: Target) -> Cpu:
    """A backend that computes here what code for a target computes there."""
    return Cpu(target if target.runs_here else "scalar", cache=None)
