"""The key of compiled code: a hash of the content of all that decides what becomes of a graph.

Glowtrain's sources are read for it in every process that compiles: some 15 ms, and never out of date, whoever edits
or replaces them in whatever way.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from glowtrain.graph import Graph
from glowtrain.graph.graph import nodes_within
from glowtrain.stages import Options

UNRELATED = (
    "__pycache__", "bundles", "cli", "doctor", "flower", "gradcheck", "profiling", "quantization", "runtime", "serving",
    "verification",
)  # fmt: skip
"""The folders whose sources decide nothing about a graph of a model or its code: nothing that makes these imports one
of them. All others count, new ones too."""
_SOURCES = ".py", ".ll"


def key_of(
    graph: Graph, fingerprint: str, options: Options, makers: Iterable[type] = (), *, foreign: bool = True
) -> str | None:
    """The content hash of what decides about an artifact: the graph with its constants, the backend's fingerprint, the
    options, the compiler's own sources, and those of operators and ``makers`` (the backend's class) of other packages.

    Initial values of variables do not count. None where something has no source that could be read, or is from
    another package although nothing may be (``foreign``).
    """
    foreign_modules = _foreign_modules(graph, makers)
    if foreign_modules and not foreign:
        return None
    parts = [fingerprint, options.key, tools(), sources(), graph.key, *_layers(graph, options)]
    for module in sorted(foreign_modules):
        found = _source(module)
        if found is None:
            return None
        parts += [module, found]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _layers(graph: Graph, options: Options) -> Iterator[str]:
    """Those of all nodes, which no graph's key has, where they decide about code."""
    if options.precision is not None and options.precision.wide:
        yield from (node.layer for node in nodes_within(graph))


def _foreign_modules(graph: Graph, makers: Iterable[type]) -> set[str]:
    """The modules of operators and ``makers`` that are not Glowtrain's."""
    modules = {cls.__module__ for cls in makers}
    return {*graph.foreign_modules, *(module for module in modules if module.partition(".")[0] != "glowtrain")}


@functools.cache
def tools() -> str:
    """Versions of what computes constants while compiling."""
    return f"Python {sys.version_info} NumPy {np.__version__} ml_dtypes {ml_dtypes.__version__}"


@functools.cache
def sources() -> str:
    """The hash of Glowtrain's sources, but for those that are :data:`UNRELATED`."""
    root, content = os.path.dirname(inspect.getfile(import_module("glowtrain"))), hashlib.sha256()
    _add(sorted(_files(root, UNRELATED)), root, content)
    return content.hexdigest()


def _files(folder: str, without: Collection[str] = ("__pycache__",)) -> Iterator[str]:
    for entry in os.scandir(folder):
        if entry.name.endswith(_SOURCES):
            yield entry.path
        elif entry.name not in without and entry.is_dir():
            yield from _files(entry.path)


def _add(files: Iterable[str], root: str, content: Any) -> None:
    """Names and contents of files."""
    for path in files:
        with open(path, "rb", buffering=0) as file:
            data = file.read()
        content.update(f"\0{path.removeprefix(root)}\0{len(data)}\0".encode())
        content.update(data)


def _source(module: str) -> str | None:
    """The hash of a module's source, and of all of the package that it is part of; None where it has none."""
    try:
        package = Path(inspect.getfile(sys.modules[module.partition(".")[0]]))
        content = hashlib.sha256()
        whole = package.name == "__init__.py"
        _add(sorted(_files(str(package.parent))) if whole else [str(package)], str(package.parent), content)
        return content.hexdigest()
    except (OSError, TypeError, KeyError):
        return None
