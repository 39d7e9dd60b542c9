"""What a bundle has on request: a static archive, a shared library with Python's loader, other languages, a page; and
what one for WebAssembly has besides."""

from __future__ import annotations

import keyword
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glowtrain.backends.target import Target
from glowtrain.bundles.arguments import split_command
from glowtrain.bundles.faces.fortran.module import fortran
from glowtrain.bundles.faces.python import loader
from glowtrain.bundles.faces.rust.crate import rust
from glowtrain.bundles.faces.web.files import web_files
from glowtrain.bundles.faces.web.page import check_target
from glowtrain.bundles.libraries.archive import archive, exported
from glowtrain.bundles.libraries.linking import library_name, linker_for, shared_library
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.weights import Weights
from glowtrain.errors import BundleError

BESIDE = frozenset({"main", "example", "worker", "index"})
"""What files are called that stand beside a bundle's own."""
Face = Callable[[BundleModule, bytes, bool], Mapping[str, bytes]]
"""The files of a language, from a module, its archive, and whether there is an example with what it prints."""
FACES: Mapping[str, Face] = {"fortran": fortran, "rust": rust}


def importable(name: str) -> bool:
    """Whether a file of Python can be called so beside what it imports itself."""
    return not (keyword.iskeyword(name) or name in sys.stdlib_module_names or name == "numpy")


@dataclass(frozen=True)
class Extras:
    """``linker`` is the command that makes the shared library, where it is not the one that is found."""

    archive: bool = False
    shared: bool = False
    linker: str | None = None
    faces: tuple[str, ...] = ()
    page: bool = False

    def check(self, target: Target) -> None:
        """Raise :class:`BundleError` for what cannot be made, before anything is compiled."""
        for face in self.faces:
            if face not in FACES:
                raise BundleError(f"a bundle has no face for {face!r}: choose {' or '.join(FACES)}")
        if self.linker is not None and not self.shared:
            raise BundleError("a linker makes the shared library: ask for that, too (--shared)")
        if self.page:
            check_target(target)
        if self.shared:
            library_name("", target)
            if self.linker is None:
                linker_for(target)
            else:
                split_command(self.linker, "linker (--cc)")

    def files(self, module: BundleModule, weights: Weights) -> dict[str, bytes]:
        """The files by name. Raises :class:`BundleError` where linking fails, where there can be no page, and for the
        name of a file that stands beside, or of what Python's file imports."""
        name, files = module.name, dict[str, bytes]()
        if name in BESIDE or (self.shared and not importable(name)):
            raise BundleError(f"a bundle cannot be called {name}, as its files would be: give it another name (--name)")
        if self.faces and any(function.trains and len(function.outputs) > 1 for function in module.functions):
            raise BundleError(f"faces for {' and '.join(self.faces)} take steps without metrics: metrics=False")
        packed = archive(module.code, f"{name}.o", exported(module.text), module.target)
        if self.archive:
            files[f"lib{name}.a"] = packed
        if self.shared:
            library = shared_library(module.code, name, module.target, self.linker)
            files[library_name(name, module.target)] = library
            files[f"{name}.py"] = Path(loader.__file__).read_bytes()
        for face in dict.fromkeys(self.faces):
            files |= FACES[face](module, packed, weights == "object")
        return files | web_files(module, weights, with_page=self.page)
