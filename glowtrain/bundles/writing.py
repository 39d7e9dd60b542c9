"""``gt.bundle``: a model as files that run, and train, without Glowtrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from glowtrain.backends.llvm.target import Target
from glowtrain.bundles.arguments import dims_of, faces_of, folder_of
from glowtrain.bundles.devices.boards import board_files, board_of, example_ram
from glowtrain.bundles.devices.sizes import BundleSize, size_of
from glowtrain.bundles.faces.c.cpp import cpp
from glowtrain.bundles.faces.c.example import expected, program
from glowtrain.bundles.faces.c.header import header
from glowtrain.bundles.faces.extras import Extras
from glowtrain.bundles.faces.templates import filled
from glowtrain.bundles.manifest import manifest, untouched
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.request import BundleRequest, Optimize, parts_of_bundle
from glowtrain.bundles.verify.trace import backend_like
from glowtrain.bundles.weights import Weights, file_of
from glowtrain.errors import BundleError
from glowtrain.files import write_atomically
from glowtrain.graph import Graph, Template
from glowtrain.losses import Loss, LossFunction
from glowtrain.memory.budget import Memory, budget_of
from glowtrain.memory.byte_size import parse_bytes
from glowtrain.memory.residuals import ResidualType, checked_type
from glowtrain.optim import Optimizer
from glowtrain.trainer.selection.patterns import Trainable
from glowtrain.trainer.trainer import Trainer


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
    micro_batches: int = 1,
    residuals: ResidualType = None,
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
    caller's ``parallel_for`` may use at most; one needs none. ``fixed_point``: a quantized model in integers alone, see
    :class:`~glowtrain.stages.Options`. ``memory``: as :func:`glowtrain.compile` takes it, for variables and the arena
    of all functions, by default a trainer's own. ``micro_batches`` and ``residuals``: as for a trainer, by default its
    own. ``optimize``: code that is fast, or small. ``ram``: bytes that the processor has, as a number or as text such
    as ``"256KB"``; what does not fit is computed again, unless ``memory`` is ``"keep"``. ``board``: the name of an
    emulated board (:data:`~glowtrain.bundles.devices.boards.BOARDS`); the files with which the example runs there are
    written, too, and its processor is the target if none is said.

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
    processor = chosen.target if chosen is not None and target == "host" else target
    request = BundleRequest(
        model=model, loss=loss, optimizer=optimizer, trainable=trainable, freeze_statistics=freeze_statistics,
        dims=dims_of(dims), target=processor, name=name, weights=weights, threads=threads, fixed_point=fixed_point,
        optimize=optimize, seed=seed, memory=budget_of(memory), micro_batches=parts_of_bundle(micro_batches),
        residuals=checked_type(residuals),
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
    micro_batches: int = 1,
    residuals: ResidualType = None,
    optimize: Optimize = "speed",
    ram: float | str | None = None,
    seed: int = 0,
) -> BundleSize:
    """Flash, RAM and work of the bundle that :func:`bundle` would write; nothing is written or linked.

    Raises what :func:`bundle` does, and :class:`CodegenError` for targets whose stack is not known.
    """
    request = BundleRequest(
        model=model, loss=loss, optimizer=optimizer, trainable=trainable, freeze_statistics=freeze_statistics,
        dims=dims_of(dims), target=target, weights=weights, threads=threads, fixed_point=fixed_point,
        optimize=optimize, seed=seed, memory=budget_of(memory), micro_batches=parts_of_bundle(micro_batches),
        residuals=checked_type(residuals),
    )  # fmt: skip
    return size_of(request.within(None if ram is None else parse_bytes(ram, "ram")))


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
        files["Makefile"] = filled("c/Makefile", name).encode()
        files["expected.txt"] = expected(module, backend_like(module.target)).encode()
    files[f"{name}.json"] = manifest(module, files).encode()
    return files
