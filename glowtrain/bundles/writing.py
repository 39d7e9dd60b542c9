"""``gt.bundle``: a model as files that run, and train, without Glowtrain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path

from glowtrain.bundles.arguments import faces_of, folder_of
from glowtrain.bundles.devices.boards import BOARDS, board_files, board_of, example_ram
from glowtrain.bundles.devices.sizes import BundleSize, size_of
from glowtrain.bundles.faces.c.cpp import cpp
from glowtrain.bundles.faces.c.example import expected, makefile, program
from glowtrain.bundles.faces.c.header import header
from glowtrain.bundles.faces.extras import FACES, Extras
from glowtrain.bundles.manifest import manifest, untouched
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.request import BundleRequest
from glowtrain.bundles.verify.trace import backend_like
from glowtrain.bundles.weights import Weights, file_of
from glowtrain.errors import BundleError
from glowtrain.files import write_atomically
from glowtrain.settings import setting, takes


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
            f"{' and '.join(function.takes for function in module.functions)}\n{sizes}\n"
            f"memory: variables {module.memory.size:,} bytes, arena {module.interface.arena:,} bytes"
        )


@dataclass(frozen=True)
class BundleSpec(BundleRequest):
    """The arguments of :func:`bundle`: what :func:`bundle_size` takes, the folder ``out``, and files on request."""

    out: str | Path
    _: KW_ONLY
    board: str | None = setting(
        None,
        f"Also what an emulated board needs: {', '.join(BOARDS)}.",
        "The files with which the example runs there are written, too, and its processor is the target if none is "
        "said.",
        metavar="B",
        choices=BOARDS,
    )
    archive: bool = setting(False, "libNAME.a as well, a static library.")
    shared: bool = setting(False, "A shared library as well, and NAME.py, which needs NumPy alone.")
    linker: str | None = setting(
        None,
        "The C compiler that links the shared library.",
        "A command; by default a C compiler for this system, or Zig for another one.",
        metavar="COMMAND",
        flag="--cc",
    )
    faces: Sequence[str] = setting(
        (),
        f"Folders for other languages (repeatable): {', '.join(FACES)}.",
        metavar="F",
        flag="--face",
        type=list[str],
        choices=FACES,
    )
    page: bool = setting(
        False,
        "For wasm32: a page as well, which trains the model on digits in a browser.",
        "It takes f32[N,1,8,8].",
    )

    @property
    def extras(self) -> Extras:
        """What is written beside the object file and its header."""
        return Extras(self.archive, self.shared, self.linker, faces_of(self.faces), self.page)


@takes(BundleSpec)
def bundle(spec: BundleSpec) -> Bundle:
    """Write a model into the folder ``out`` as files that need neither Python nor a library.

    With a ``loss`` (and an ``optimizer``, by default Adam) the bundle trains: its functions are ``step`` and
    ``predict``, over the same variables. A :class:`Trainer` gives what it trains, as it is now, with its memory,
    residuals and parts of batches where nothing else is said. Without, it predicts. What is not trained becomes
    constants of the object file, which can stay in read-only memory.

    Written are ``NAME.o``, ``NAME.h``, ``NAME.hpp``, ``NAME.json`` and, with the weights in the object, a program that
    runs it and what it prints; with ``archive``, ``shared``, ``faces`` and ``page`` what these say. With weights in a
    file that is ``NAME.safetensors``. The target ``wasm32`` adds ``NAME.wasm`` and its interface in JavaScript. Files
    of these names that were there are replaced, after everything has been compiled.

    Raises :class:`BundleError` for open dimensions, arguments of another kind, unknown choices, a folder that cannot be
    written, and a bundle that needs more than ``ram``, with what would fit; :class:`CodegenError` for an unknown target
    and for operators that it cannot run; :class:`InputError` for a loss, ``trainable`` or ``ram`` that is none.
    """
    folder = folder_of(spec.out)
    chosen = None if spec.board is None else board_of(spec.board)
    if chosen is not None and spec.target == "host":
        spec = replace(spec, target=chosen.target)
    spec.extras.check(spec.processor)
    if chosen is not None:
        chosen.check(spec.processor, spec.room, spec.weights)
    module = spec.within(spec.room) if chosen is None else spec.within(spec.room or chosen.ram[1], example_ram)
    more = {} if chosen is None else board_files(module, chosen, spec.room)
    return written(module, folder, spec.weights, spec.extras, more)


@takes(BundleRequest)
def bundle_size(request: BundleRequest) -> BundleSize:
    """Flash, RAM and work of the bundle that :func:`bundle` would write; nothing is written or linked.

    Raises what :func:`bundle` does, and :class:`CodegenError` for targets whose stack is not known.
    """
    return size_of(request.within(request.room))


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
