"""Compiled graphs kept on disk: a folder of artifacts, named by the content of all that they depend on."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from pathlib import Path

import llvmlite
import llvmlite.binding as llvm

from glowtrain.backends.cpu.artifact import Artifact
from glowtrain.backends.llvm.target import Target
from glowtrain.files import write_atomically
from glowtrain.graph import Graph, arrays_of, to_text


class Cache:
    """A folder of compiled graphs. It may be deleted, or shared by processes; a broken file counts as absent."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder).expanduser()

    def get(self, key: str) -> Artifact | None:
        """What is kept under a key."""
        try:
            return Artifact.from_bytes(self._path(key).read_bytes())
        except (OSError, ValueError):
            return None

    def put(self, key: str, artifact: Artifact) -> None:
        """Keep an artifact: whole or not at all. Raises ``OSError`` where that is impossible."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path(key), artifact.to_bytes())

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.safetensors"


def key_of(graph: Graph, target: Target) -> str:
    """The content hash of what decides about machine code: the graph with its constants, the target, the tools, the
    compiler's own sources and those of operators from elsewhere. Initial values of variables do not count."""
    found = hashlib.sha256()
    versions = f"{llvmlite.__version__} {llvm.llvm_version_info} {target.fingerprint} {_compiler()}"
    found.update(f"{versions}\0{to_text(graph)}".encode())
    variables = {variable.name for variable in graph.variables}
    for name, array in sorted(arrays_of(graph).items()):
        if name not in variables:
            found.update(f"\0{name}\0".encode())
            found.update(array.tobytes())
    for module in sorted({type(node.operator).__module__ for node in graph.nodes}):
        found.update(_foreign(module))
    return found.hexdigest()


@functools.cache
def _compiler() -> str:
    """The hash of Glowtrain's sources."""
    found = hashlib.sha256()
    for path in sorted(Path(__file__).parents[2].rglob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()


@functools.cache
def _foreign(module: str) -> bytes:
    """The source of a module of operators that is not Glowtrain's; random where it has none, so that nothing fits."""
    if module.split(".")[0] == "glowtrain":
        return b""
    try:
        return inspect.getsource(sys.modules[module]).encode()
    except OSError:
        return os.urandom(16)
