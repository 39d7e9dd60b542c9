"""Artifacts kept on disk: a folder of files, named by the content of all that they depend on."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from pathlib import Path

from glowtrain.errors import InputError
from glowtrain.files import write_atomically
from glowtrain.graph import Graph
from glowtrain.stages import Options

COMPILER = ("backends", "compiler", "graph", "loops", "lower", "ops", "optimize", "program", "stages.py", "types.py")
"""The sources that decide what becomes of a graph, in Glowtrain's folder."""


class Cache:
    """A folder of artifacts. It may be deleted, or shared by processes of people who trust each other: what lies there
    is run as native code. Damaged files are noticed by those who read them and made again."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()

    def get(self, key: str) -> bytes | None:
        """What is kept under a key."""
        try:
            return self._path(key).read_bytes()
        except OSError:
            return None

    def put(self, key: str, data: bytes) -> None:
        """Keep an artifact: whole or not at all. Raises :class:`InputError` where the folder cannot be written."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path(key), data)
        except OSError as error:
            raise InputError(f"compiled code cannot be kept in {self.folder}: {error.strerror or error}") from error

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def key_of(graph: Graph, fingerprint: str, options: Options) -> str:
    """The content hash of what decides about an artifact: the graph with its constants, the backend's fingerprint, the
    options, the compiler's own sources and those of operators from elsewhere. Initial values of variables do not count.
    """
    content = hashlib.sha256(f"{fingerprint}\0{options.key}\0{_compiler()}\0{graph.key}".encode())
    for module in sorted({type(node.operator).__module__ for node in graph.nodes}):
        content.update(_foreign(module))
    return content.hexdigest()


@functools.cache
def _compiler() -> str:
    """The hash of the compiler's sources."""
    root, content = Path(__file__).parents[1], hashlib.sha256()
    for name in COMPILER:
        files = [root / name] if name.endswith(".py") else sorted((root / name).rglob("*.py"))
        for file in files:
            content.update(file.read_bytes())
    return content.hexdigest()


@functools.cache
def _foreign(module: str) -> bytes:
    """The source of a module of operators that is not Glowtrain's; random where it has none, so that nothing fits."""
    if module.split(".")[0] == "glowtrain":
        return b""
    try:
        return inspect.getsource(sys.modules[module]).encode()
    except OSError:
        return os.urandom(16)
