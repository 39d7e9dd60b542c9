"""``gt.bundle``: a model as files that run, and train, without Glowtrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.cpu.threads.count import checked
from glowtrain.backends.discovery import backend_of
from glowtrain.backends.llvm.target import Target
from glowtrain.bundles.arguments import check_name, check_seed, dims_of, faces_of, folder_of, target_of
from glowtrain.bundles.contents import Contents, batch_symbol, inference_of, training_of
from glowtrain.bundles.devices.boards import board_files, board_of, example_ram
from glowtrain.bundles.devices.fitting import Beside, layers_of, require_ram
from glowtrain.bundles.devices.sizes import BundleSize, size_of
from glowtrain.bundles.example import expected, program
from glowtrain.bundles.faces.cpp import cpp
from glowtrain.bundles.faces.extras import Extras
from glowtrain.bundles.header import header
from glowtrain.bundles.makefile import makefile
from glowtrain.bundles.manifest import manifest, untouched
from glowtrain.bundles.module import BundleModule, module_of
from glowtrain.bundles.verify.trace import backend_like
from glowtrain.bundles.weights import Weights, file_of
from glowtrain.errors import BundleError, MemoryBudgetError
from glowtrain.files import write_atomically
from glowtrain.graph import Graph, Template
from glowtrain.graph.specialise.template import no_model
from glowtrain.losses import Loss, LossFunction
from glowtrain.losses.choose import as_loss
from glowtrain.memory.budget import KEEP, SMALLEST, UNSAID, Budget, Memory, budget_of
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.optim import Adam, Optimizer
from glowtrain.presentation.words import kind_of
from glowtrain.stages import Options
from glowtrain.trainer.graphs import DEFAULT_BATCH, TrainerGraphs
from glowtrain.trainer.selection.patterns import Trainable
from glowtrain.trainer.trainer import Trainer

Optimize = Literal["speed", "size"]
"""What code is to be."""


@dataclass(frozen=True)
class Bundle:
    """What was written: the folder, and the module whose sizes and functions it has."""

    path: Path
    module: BundleModule
    files: Mapping[str, int]
    """Bytes by name."""

    def size(self) -> BundleSize:
        """What it takes on its processor. Raises :class:`CodegenError` for targets whose stack is not known."""
        return size_of(self.module)

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
    memory: Memory = None,
    optimize: Optimize = "speed",
    ram: float | str | None = None,
    board: str | None = None,
    seed: int = 0,
    archive: bool = False,
    shared: bool = False,
    linker: str | None = None,
    faces: Sequence[str] = (),
    page: bool = False,
) -> Bundle:
    """Write a model into the folder ``out`` as files that need neither Python nor a library.

    With a ``loss`` (and an ``optimizer``, by default Adam) the bundle trains: its functions are ``step`` and
    ``predict``, over the same variables. A :class:`Trainer` gives what it trains, as it is now. Without, it predicts.
    ``trainable`` and ``freeze_statistics`` are as for a trainer; what is not trained becomes constants of the object
    file, which can stay in read-only memory.

    ``dims`` binds open dimensions, such as the batch (64 if it is open). ``target``: a :class:`Target` or its name.
    ``weights``: in the object file, in a file of their own (``NAME.safetensors``) or nowhere. ``threads``: how many the
    caller's ``parallel_for`` may use at most; one needs none. ``fixed_point``: a quantized model in integers
    alone, see :class:`~glowtrain.stages.Options`. ``memory``: as :func:`glowtrain.compile` takes it, by default a
    trainer's own. ``optimize``: code that is fast, or small. ``ram``: bytes that the processor has, as a number or as
    text such as ``"256KB"``; what does not fit is computed again, unless ``memory`` is ``"keep"``. ``board``: the name
    of an emulated board (:data:`~glowtrain.bundles.devices.boards.BOARDS`); the files with which the example runs there
    are written, too, and its processor is the target if none is said.

    Written are ``NAME.o``, ``NAME.h``, ``NAME.hpp``, ``NAME.json`` and, with the weights in the object, a program that
    runs it and what it prints; with ``archive`` also ``libNAME.a``, with ``shared`` a shared library and ``NAME.py``,
    which loads it. ``linker`` is the command that links it: by default a C compiler for this system, or Zig for another
    one. ``faces`` adds folders for other languages: ``rust``, ``fortran``. The target ``wasm32`` adds ``NAME.wasm`` and
    its interface in JavaScript, ``page`` also a page that trains a model of digits (f32[N,1,8,8]) in a browser. Files
    of these names that were there are replaced, after everything has been compiled.

    Raises :class:`BundleError` for open dimensions, arguments of another kind, unknown choices, a folder that cannot be
    written, and a bundle that needs more than ``ram``, with what would fit; :class:`CodegenError` for an unknown target
    and for operators that it cannot run; :class:`InputError` for a loss, ``trainable`` or ``ram`` that is none.
    """
    folder = folder_of(out)
    chosen = None if board is None else board_of(board)
    room = None if ram is None else parse_bytes(ram, "ram")
    extras = Extras(archive, shared, linker, faces_of(faces), page)
    request = BundleRequest(
        model, loss, optimizer, trainable, freeze_statistics, dims_of(dims),
        chosen.target if chosen is not None and target == "host" else target,
        name, weights, threads, fixed_point, optimize, seed, budget_of(memory),
    )  # fmt: skip
    extras.check(request.processor)
    if chosen is not None:
        chosen.check(request.processor, room, weights)
    module = request.within(room) if chosen is None else request.within(room or chosen.ram[1], example_ram)
    more = {} if chosen is None else board_files(module, chosen, room)
    return written(module, folder, weights, extras, more)


def bundle_size(
    model: Graph | Template | Trainer,
    *,
    loss: str | Loss | LossFunction | None = None,
    optimizer: Optimizer | None = None,
    trainable: Trainable = None,
    freeze_statistics: bool = False,
    dims: Mapping[str, int] | None = None,
    target: Target | str = "host",
    weights: Weights = "object",
    threads: int = 1,
    fixed_point: bool = False,
    memory: Memory = None,
    optimize: Optimize = "speed",
    ram: float | str | None = None,
    seed: int = 0,
) -> BundleSize:
    """Flash, RAM and work of the bundle that :func:`bundle` would write; nothing is written or linked.

    Raises what :func:`bundle` does, and :class:`CodegenError` for targets whose stack is not known.
    """
    request = BundleRequest(
        model, loss, optimizer, trainable, freeze_statistics, dims_of(dims), target, None, weights, threads,
        fixed_point, optimize, seed, budget_of(memory),
    )  # fmt: skip
    return size_of(request.within(None if ram is None else parse_bytes(ram, "ram")))


@dataclass(frozen=True)
class BundleRequest:
    """What is compiled, as :func:`bundle` takes it. Raises :class:`BundleError` for unknown choices."""

    model: Graph | Template | Trainer
    loss: str | Loss | LossFunction | None
    optimizer: Optimizer | None
    trainable: Trainable
    freeze_statistics: bool
    dims: Mapping[str, int]
    target: Target | str
    name: str | None
    weights: Weights
    threads: int
    fixed_point: bool
    optimize: Optimize
    seed: int
    memory: Budget = UNSAID

    def __post_init__(self) -> None:
        if self.optimizer is not None and not isinstance(self.optimizer, Optimizer):
            raise BundleError(f"optimizer must be one of gt.optim, not {kind_of(self.optimizer)}")
        check_name(self.name)
        check_seed(self.seed)
        if self.weights not in ("object", "file", "none"):
            raise BundleError(f"weights={self.weights!r}: choose object, file or none")
        if self.optimize not in ("speed", "size"):
            raise BundleError(f"optimize={self.optimize!r}: choose speed or size")

    @property
    def processor(self) -> Target:
        """The target; for ``host``, what a trainer itself computes with. Raises :class:`CodegenError` for an unknown
        one."""
        found = target_of(self.target)
        own = backend_of(self.model.backend) if isinstance(self.model, Trainer) else None
        if isinstance(own, Cpu) and self.target == "host":
            found = own.target
        return replace(found, compact=True) if self.optimize == "size" else found

    def module(self) -> BundleModule:
        """What files are written from."""
        contents = contents_of(
            self.model, self.loss, self.optimizer, self.trainable, self.dims, self.name,
            freeze_statistics=self.freeze_statistics, seed=self.seed,
        )  # fmt: skip
        facts = Cpu(self.processor, cache=None).facts
        options = Options(facts=facts, fixed_point=self.fixed_point, memory=self._budget)
        known, threads = self.weights == "object", checked(self.threads)
        return module_of(contents, self.processor, options, known=known, threads=threads)

    @property
    def _budget(self) -> Budget:
        """What was asked for; where nothing was, a trainer's own."""
        return self.model.budget if isinstance(self.model, Trainer) and self.memory == UNSAID else self.memory

    def within(self, ram: int | None, beside: Beside | None = None) -> BundleModule:
        """The same. Raises :class:`BundleError` where it needs more than ``ram`` bytes, with what would fit.

        ``beside``: what a program that uses it needs itself.
        """
        module = self.module()
        if ram is not None:
            module = module if self._budget == KEEP else self._computing_again(module, ram, beside)
            symbol = self._open_dimension
            batch = None if symbol is None else self.dims.get(symbol, DEFAULT_BATCH)
            layers = () if isinstance(self.model, Trainer) else layers_of(module)
            require_ram(module, ram, self._changed, batch, layers, beside)
        return module

    def _computing_again(self, module: BundleModule, ram: int, beside: Beside | None) -> BundleModule:
        """A module that computes as much again as it takes to fit, where it does not; if that is too little, all that
        makes less memory do."""
        size = size_of(module)
        limit, step = size.variables + size.arena, 0
        while (excess := _needed(module, beside) - ram) > 0:
            step = max(excess, 2 * step)  # what a budget does not count, workspaces and stack, may change with it
            limit -= step
            try:
                module = replace(self, memory=Budget(nbytes=limit)).module()
            except MemoryBudgetError:
                return replace(self, memory=SMALLEST).module()
        return module

    def _changed(self, batch: int | None, layers: Sequence[str] | None) -> BundleModule:
        """With another batch, and other parameters trained, as far as these are given."""
        dims = {**self.dims, self._open_dimension: batch} if batch and self._open_dimension else self.dims
        return replace(self, dims=dims, trainable=layers or self.trainable, memory=SMALLEST).module()

    @property
    def _open_dimension(self) -> str | None:
        """The only one that is open, which is the batch."""
        return batch_symbol(self.model.graphs.model if isinstance(self.model, Trainer) else self.model)


def _needed(module: BundleModule, beside: Beside | None) -> int:
    """Bytes of RAM that a program takes for a bundle."""
    size = size_of(module)
    return size.ram + (0 if beside is None else beside(module, size.stack))


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
        if optimizer is not None or trainable is not None or freeze_statistics:
            raise BundleError("a bundle that trains needs a loss: loss=gt.losses...")
        return inference_of(model, dims, name)
    rule = optimizer or Adam()
    graphs = TrainerGraphs(
        model, as_loss(loss), rule, trainable, seed, unbiased=False, freeze_statistics=freeze_statistics
    )
    return training_of(graphs, rule.hyper(), {}, dims, name)


def written(module: BundleModule, out: Path, weights: Weights, extras: Extras, more: Mapping[str, str]) -> Bundle:
    """Write all files of a module, and ``more``. What is left of a bundle of this name that was there before is
    removed, unless somebody has changed it. Raises :class:`BundleError` where the folder cannot be written."""
    files = files_of(module, weights, extras) | {name: text.encode() for name, text in more.items()}
    left = untouched(out / f"{module.name}.json") - files.keys()
    try:
        for name, data in files.items():
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            write_atomically(out / name, data)
        for name in left:
            (out / name).unlink(missing_ok=True)
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
        **extras.files(module, weights),
    }
    if weights == "file":
        values = {variable.name: variable.initial for variable in module.contents.variables}
        files[f"{name}.safetensors"] = file_of(values)
    if weights == "object":
        files["main.c"] = program(module).encode()
        files["Makefile"] = makefile(module).encode()
        files["expected.txt"] = expected(module, backend_like(module.target)).encode()
    files[f"{name}.json"] = manifest(module, files).encode()
    return files
