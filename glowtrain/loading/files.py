"""The bytes of a model: of its file, and of those beside it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from glowtrain.deferred import Deferred
from glowtrain.errors import ModelError
from glowtrain.kept.origin import hashed

if TYPE_CHECKING:
    from glowtrain.onnx_io.read import source as sources
    from glowtrain.onnx_io.read.source import Source
else:
    sources = Deferred("glowtrain.onnx_io.read.source")


class ModelFiles:
    """The bytes of a model's file, and the files beside it that have elements of its tensors."""

    def __init__(self, data: bytes, title: str, folder: Path | None) -> None:
        """``title``: what messages call it; ``folder``: the one that it lies in."""
        self.data = data
        self.title = title
        self.folder = folder
        self.hashes: dict[str, str] = {}
        """Of the files beside it, by their paths from its folder, as far as they were read."""
        self._stamps: dict[str, tuple[int, ...]] = {}

    @staticmethod
    def of(source: Source) -> ModelFiles | None:
        """Those of a path or of bytes. None for other sources, and for what cannot be read."""
        if isinstance(source, (bytes, bytearray, memoryview)):
            return ModelFiles(bytes(source), "the model", None)
        if not isinstance(source, (str, os.PathLike)):
            return None
        path = Path(source)
        try:
            return ModelFiles(path.read_bytes(), str(path), path.absolute().parent)
        except (OSError, ValueError):
            return None

    @property
    def stem(self) -> str:
        """The file's name, by which a model without one is called."""
        return "" if self.folder is None else Path(self.title).stem

    def beside(self, name: str) -> bytes:
        """The bytes of a file beside it. Raises ``OSError``."""
        if self.folder is None:
            raise FileNotFoundError(name)
        data = (self.folder / name).read_bytes()
        self.hashes[name] = hashed(data)
        return data

    def watched(self) -> ModelFiles:
        """The same, which from now on knows when a file beside it was changed."""
        self._stamps = {name: self._stamp(name) for name in sources.data_files(self.data)}
        return self

    def contents(self) -> dict[str, bytes] | None:
        """The bytes of all files that are :meth:`watched`, its own under an empty name. None where one was changed."""
        try:
            found = {"": self.data, **{name: self.beside(name) for name in self._stamps}}
        except OSError:
            return None
        return found if all(self._stamp(name) == stamp for name, stamp in self._stamps.items()) else None

    @property
    def alone(self) -> bool:
        """Whether there are no others that are :meth:`watched`."""
        return not self._stamps

    def _stamp(self, name: str) -> tuple[int, ...]:
        """What changes with a file; nothing where there is none."""
        try:
            found = ((self.folder or Path()) / name).stat()
        except (OSError, ValueError):
            return ()
        return found.st_size, found.st_mtime_ns, found.st_ino

    def parsed(self) -> sources.Model:
        """The model, read and checked. Raises what :func:`glowtrain.onnx_io.read.source.read` raises."""
        return sources.read_bytes(self.data, self.title, self.folder)

    def unchanged(self) -> ModelFiles:
        """The same. Raises :class:`ModelError` where a file beside it is not what it was."""
        for name, before in list(self.hashes.items()):
            try:
                self.beside(name)
            except OSError as error:
                raise ModelError(f"{self.title}: its data file {name!r} cannot be read: {error.strerror}") from None
            if self.hashes[name] != before:
                raise ModelError(f"{self.title}: its data file {name!r} has changed since the model was loaded")
        return self
