"""``NAME.json``: what is inside of a bundle, for programs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface import VERSION
from glowtrain.bundles.module import BundleModule
from glowtrain.bundles.signature import BundleFunction, BundleTensor
from glowtrain.version import __version__


def manifest(module: BundleModule, files: Mapping[str, bytes]) -> str:
    """The text: name, target, sizes in bytes, functions, variables, and SHA-256 of the other files."""
    said = {
        "name": module.name,
        "glowtrain": __version__,
        "interface": VERSION,
        "version": module.version,
        "target": {"name": module.target.name, "triple": module.target.triple, "cpu": module.target.cpu},
        "needs": module.target.needs,
        "alignment": module.memory.alignment,
        "variables_bytes": module.memory.size,
        "arena_bytes": module.interface.arena,
        "pointer_bytes": module.target.pointer_bits // 8,
        "threads": module.threads,
        "errors": [code.name for code in ErrorCode],
        "hyper": [{**_tensor(each), "default": module.hyper[each.name]} for f in module.functions for each in f.hyper],
        "functions": {function.name: _function(function) for function in module.functions},
        "variables": [
            {"name": p.name, "dtype": str(p.type.dtype), "shape": p.type.shape, "role": p.role, "offset": p.offset}
            for p in module.memory.slots
        ],
        "files": {name: {"bytes": len(data), "sha256": _digest(data)} for name, data in files.items()},
    }
    return json.dumps(said, indent=1) + "\n"


def _function(function: BundleFunction) -> dict[str, Any]:
    return {"inputs": [*map(_tensor, function.inputs)], "outputs": [*map(_tensor, function.outputs)]}


def _tensor(tensor: BundleTensor) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "source": tensor.source,
        "dtype": str(tensor.type.dtype),
        "shape": tensor.type.shape,
    }


def untouched(path: Path) -> set[str]:
    """The files beside a description that it lists, and that are still what it says; none where it is no bundle's.
    Those in the folders of languages are left out."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        listed = {path.parent / name: facts["sha256"] for name, facts in said["files"].items() if "/" not in name}
        return {file.name for file, digest in listed.items() if file.is_file() and _digest(file.read_bytes()) == digest}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return set()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
