"""``gt.load_bundle``: a bundle in this process, and files of weights that bundles take."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.bundles.arguments import folder_of
from glowtrain.bundles.faces.python import loader
from glowtrain.bundles.weights import file_of
from glowtrain.errors import BundleError, CodegenError
from glowtrain.files import write_atomically
from glowtrain.presentation.messages import kind_of
from glowtrain.trainer.trainer import Trainer
from glowtrain.types import DTYPES

CALLS = ("init", "error")
"""What the C interface of every bundle has, beside its sizes and functions."""
VARIABLE_CALLS = ("get", "set", "reset", "save", "load")


class BundleCallError(BundleError, loader.CallError):
    """What :mod:`~glowtrain.bundles.faces.python.loader` raises, as an error of Glowtrain's."""


class LoadedBundle(loader.BundleInstance):
    """An instance of a bundle, whose arrays may have all element types that Glowtrain has."""

    error = BundleCallError
    dtypes = {name: dtype.numpy for name, dtype in DTYPES.items()}  # noqa: RUF012  (the loader's own is a dict, too)


def load_bundle(folder: str | Path, name: str | None = None, *, threads: int = 1) -> LoadedBundle:
    """An instance of the bundle in a folder: its own variables, which ``step`` trains and ``predict`` reads.

    The shared library is loaded if the bundle has one, else the object file is linked into this process. ``name`` is
    needed where a folder holds several bundles; ``threads`` share out the work of a call, as many as the bundle was
    made for at most. Weights that were written beside the code (``NAME.safetensors``, of ``weights="file"``) are
    loaded, too. Raises :class:`BundleError`, also for a bundle that this processor cannot run.
    """
    place = folder_of(folder)
    manifest = loader.read_manifest(place, name, BundleCallError)
    _check_runs(manifest)
    weights = loader.weights_beside(place, manifest, BundleCallError)
    return LoadedBundle(manifest, _symbols(place, manifest), threads=threads, weights=weights)


def _check_runs(manifest: Mapping[str, Any]) -> None:
    name, host = manifest["target"]["name"], Target.host()
    try:
        here = manifest["target"]["cpu"] == host.cpu if name == "host" else Target.named(name).runs_here
    except CodegenError as error:
        raise BundleError(f"{manifest['name']}: {error}") from error
    if not here:
        known = f"{name}, {manifest['target']['cpu']} of {manifest['target']['triple']}"
        raise BundleError(f"{manifest['name']} is for {known}, which {host.cpu} cannot run: bundle it for this target")


def _symbols(folder: Path, manifest: Mapping[str, Any]) -> loader.LoadedCode:
    name = manifest["name"]
    if loader.library_of(manifest):
        return loader.shared_library(folder, manifest, BundleCallError)
    calls = (*CALLS, *(VARIABLE_CALLS if manifest["variables"] else ()), *manifest["functions"])
    path = folder / f"{name}.o"
    code = loader.whole(path, manifest, BundleCallError)
    try:
        return toolchain.load([code], [f"{name}_{call}" for call in ("sizes", *calls)])
    except CodegenError as error:
        raise BundleError(f"{path}: {error}") from error


def save_bundle_weights(
    folder: str | Path,
    variables: Mapping[str, Any] | Trainer | LoadedBundle,
    path: str | Path,
    name: str | None = None,
) -> None:
    """Write variables, or those of a trainer or an instance, into a file that the bundle in a folder takes: its
    ``NAME_load`` on any processor, and :meth:`LoadedBundle.load`.

    Variables that the bundle does not have are left out: those of frozen layers, which are constants of its object.
    ``name`` is needed where a folder holds several bundles.
    Raises :class:`BundleError` for variables that are missing or of another type, and where nothing can be written.
    """
    manifest = loader.read_manifest(folder_of(folder), name, BundleCallError)
    values = _values(variables)
    tensors = [loader.NamedTensor(said, LoadedBundle.dtypes) for said in manifest["variables"]]
    missing = [tensor.name for tensor in tensors if tensor.name not in values]
    if missing:
        raise BundleError(f"{manifest['name']} needs values for all of its variables; missing: {', '.join(missing)}")
    arrays = {t.name: t.as_array(np.asarray(values[t.name]), manifest["name"], BundleCallError) for t in tensors}
    try:
        write_atomically(Path(path), file_of(arrays))
    except OSError as error:
        raise BundleError(f"{path}: cannot be written: {error.strerror or error}") from error


def _values(variables: object) -> Mapping[str, Any]:
    """The variables by name of what holds some."""
    if isinstance(variables, Trainer):
        return variables.variables()
    found = variables.variables if isinstance(variables, LoadedBundle) else variables
    if not isinstance(found, Mapping):
        raise BundleError(f"variables must be a mapping by name, a trainer or a loaded bundle, not {kind_of(found)}")
    return found
