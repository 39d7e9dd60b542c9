"""Where models come from: files that were named, and a folder of models, each with its versions.

::

    FOLDER/
      MODEL/
        config.toml           how it is served; optional
        VERSION/model.onnx    VERSION is a whole number

``config.toml`` has the keys of :class:`ModelOptions`, and ``versions``: those that are served (the highest alone).
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from glowtrain.errors import BindingError, InputError, ModelError, UnknownNetworkError
from glowtrain.graph import Graph, Template
from glowtrain.names import is_text
from glowtrain.onnx_io.read.load import load_numeric
from glowtrain.presentation.messages import kind_of, listed, unknown
from glowtrain.serving.host import ServingHost, TensorSpecs
from glowtrain.serving.tensors import datatype

FILE, CONFIG = "model.onnx", "config.toml"
READY, LOADING, UNAVAILABLE = "READY", "LOADING", "UNAVAILABLE"

Source = Callable[[], Graph | Template]
"""Reads a model."""


@dataclass(frozen=True)
class ModelOptions:
    """How a model is served; :meth:`glowtrain.runtime.HostManager.put_versions` says what they mean.

    ``max_delay`` is in milliseconds here; ``dims`` binds dimensions of the folder's files when they are read.
    """

    max_batch: int | None = None
    batch_sizes: tuple[int, ...] | None = None
    max_delay: float = 0.0
    queue: int = 256
    replicas: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)

    def arguments(self) -> dict[str, Any]:
        """The arguments of ``put_versions``."""
        said = {name: value for name, value in vars(self).items() if name != "dims"}
        return {**said, "max_delay": self.max_delay / 1000}


@dataclass(frozen=True)
class ModelState:
    """What the repository's index says of a version: READY, LOADING or UNAVAILABLE, and the reason."""

    name: str
    version: str
    state: str
    reason: str = ""


class Repository:
    """Loads models into a host and takes them out again, one at a time. ``files``: models by name, of version 1."""

    def __init__(
        self,
        host: ServingHost,
        files: Mapping[str, Source],
        folder: Path | None = None,
        options: ModelOptions | None = None,
    ) -> None:
        self._host = host
        self._files = dict(files)
        self._folder = folder
        self._options = options or ModelOptions()
        self._states: dict[tuple[str, str], ModelState] = {}
        self._one_at_a_time = Lock()
        self.complete = False
        """Whether all models that were there at the start are loaded."""

    @property
    def has_folder(self) -> bool:
        """Whether there is a folder of models, from which others than those at the start can be loaded."""
        return self._folder is not None

    def load_all(self) -> None:
        """Load every model that is there. Raises what :meth:`load` does, for the first that fails."""
        for name in self._names():
            self.load(name)
        self.complete = True

    def _names(self) -> list[str]:
        inside = [] if self._folder is None else [path.name for path in _folders(self._folder)]
        both = sorted(set(self._files) & set(inside))
        if both:
            raise InputError(f"there are a file and a folder of the name {listed(both)}; rename one")
        return [*self._files, *inside]

    def has(self, name: str, version: str | None) -> bool:
        """Whether a model of the repository has this name, and this version if one is given, loaded or not."""
        return any(known == name and version in (None, number) for known, number in self._states)

    def is_loading(self, name: str, version: str | None) -> bool:
        """Whether it is being loaded."""
        states = (each for each in self._states.values() if each.name == name and version in (None, each.version))
        return any(each.state == LOADING for each in states)

    def index(self) -> list[ModelState]:
        """Every version that is, was or should be loaded, and of the folder's other models that they are not."""
        found = {(name, ""): ModelState(name, "", UNAVAILABLE, "not loaded") for name in self._names()}
        for name, version in self._states:
            found.pop((name, ""), None)
            found[name, version] = self._states[name, version]
        return list(found.values())

    def load(self, name: str) -> None:
        """Load the versions of a model that should be served, anew those that are loaded, and take out the others.

        Raises :class:`UnknownNetworkError` for a model that is not there; :class:`InputError`, :class:`ModelError` and
        what the host raises for one that cannot be loaded: what was loaded before goes on being served.
        """
        with self._one_at_a_time:
            options, sources = self._sources(name)
            for version in sources.keys() - self._loaded(name):
                self._set(name, version, LOADING)
            try:
                models = {version: _read(source) for version, source in sources.items()}
                self._host.put_versions(name, models, accept=_check_types, **options.arguments())
            except BaseException as error:
                self._failed(name, sources, error)
                if isinstance(error, BindingError):
                    raise BindingError(f"{error}; here by --dims NAME=N, or by dims in {CONFIG}") from None
                raise
            for version in sources:
                self._set(name, version, READY)
            for version in self._loaded(name) - sources.keys():
                self._take_out(name, version)
            self._states = {key: each for key, each in self._states.items() if key[0] != name or key[1] in sources}

    def _loaded(self, name: str) -> set[str]:
        return {network.version for network in self._host.networks() if network.name == name}

    def _sources(self, name: str) -> tuple[ModelOptions, dict[str, Source]]:
        if name in self._files:
            return self._options, {"1": self._files[name]}
        if self._folder is None or name not in [path.name for path in _folders(self._folder)]:
            raise UnknownNetworkError(f"the repository has no model {name!r}; it has {listed(self._names())}")
        return _configured(self._folder / name, self._options)

    def _failed(self, name: str, versions: Iterable[str], error: BaseException) -> None:
        """Say so of those that were being loaded. Those that are served stay so."""
        loaded = self._loaded(name)
        for version in versions:
            if version in loaded:
                self._set(name, version, READY, f"loading anew failed: {self.public(error)}")
            else:
                self._set(name, version, UNAVAILABLE, self.public(error))

    def public(self, error: BaseException) -> str:
        """What clients are told of an error: paths begin at the folder of models, wherever that is."""
        return str(error) if self._folder is None else str(error).replace(f"{self._folder}/", "")

    def _set(self, name: str, version: str, state: str, reason: str = "") -> None:
        self._states = {**self._states, (name, version): ModelState(name, version, state, reason)}

    def unload(self, name: str) -> None:
        """Take a model out in all versions. Raises :class:`UnknownNetworkError` if none is loaded."""
        with self._one_at_a_time:
            loaded = self._loaded(name)
            if not loaded:
                raise UnknownNetworkError(f"no model {name!r} is loaded")
            for version in sorted(loaded):
                self._take_out(name, version)

    def _take_out(self, name: str, version: str) -> None:
        self._set(name, version, UNAVAILABLE, "unloaded")
        self._host.remove_network(name, version)


def _read(source: Source) -> Graph | Template:
    """A model. Raises :class:`ModelError`, also for a file that is gone meanwhile."""
    try:
        return source()
    except OSError as error:
        raise ModelError(f"a model cannot be read: {error}") from None


def _check_types(signature: TensorSpecs) -> None:
    """Raise :class:`InputError` for element types that the protocol cannot say."""
    for spec in (*signature.inputs.values(), *signature.outputs.values()):
        datatype(spec.dtype)


def _folders(folder: Path) -> list[Path]:
    """The folders in a folder, by name; hidden ones are none, and those whose names are not UTF-8, which no client can
    say. Raises :class:`ModelError` if it is none."""
    if not folder.is_dir():
        raise ModelError(f"{folder}: no such folder of models")
    return sorted(path for path in folder.iterdir() if path.is_dir() and _can_be_said(path.name))


def _can_be_said(name: str) -> bool:
    return not name.startswith(".") and is_text(name)


def _configured(folder: Path, options: ModelOptions) -> tuple[ModelOptions, dict[str, Source]]:
    """How a model of the folder is served, and how its versions are read, ascending.

    Raises :class:`ModelError` if there are none, and :class:`InputError` for a configuration that cannot be meant.
    """
    files = {path.name: path / FILE for path in _folders(folder) if _is_version(path.name) and (path / FILE).is_file()}
    if not files:
        raise ModelError(f"{folder}: no version of the model; put it at {folder / '1' / FILE}")
    config = _config(folder / CONFIG)
    versions = config.pop("versions", [max(files, key=int)])
    if not isinstance(versions, list) or not versions or not all(str(version) in files for version in versions):
        raise InputError(f"{folder / CONFIG}: versions is a list of some of {sorted(files, key=int)}, not {versions!r}")
    wanted = sorted({str(version) for version in versions}, key=int)
    merged = _merged(folder / CONFIG, options, config)
    return merged, {version: partial(load_numeric, files[version], merged.dims) for version in wanted}


def _is_version(name: str) -> bool:
    """Whether it is a whole number, written as all are, so that no two folders are of the same one."""
    return name.isdecimal() and str(int(name)) == name


def _config(path: Path) -> dict[str, Any]:
    if path.exists() and not path.is_file():
        raise InputError(f"{path}: it cannot be read: it is no file")  # a pipe would be waited for
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: it cannot be read: {error.strerror}") from None
    except RecursionError:
        raise InputError(f"{path}: it is nested too deeply") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: this is no TOML: {error}") from None


_KINDS: dict[str, tuple[type, ...]] = {
    "max_batch": (int,), "batch_sizes": (list,), "max_delay": (int, float), "queue": (int,), "replicas": (int,),
    "dims": (dict,),
}  # fmt: skip
"""What values are in TOML. Whether they can be meant is for the host to say."""


def _merged(path: Path, options: ModelOptions, config: dict[str, Any]) -> ModelOptions:
    known = [each.name for each in fields(ModelOptions)]
    if strange := unknown(config, [*known, "versions"], "key", "there are"):
        raise InputError(f"{path}: {strange}")
    for name, value in config.items():
        if type(value) not in _KINDS[name]:
            raise InputError(f"{path}: {name} cannot be {kind_of(value)}")
    if "max_batch" in config or "batch_sizes" in config:  # one of them says what the other would
        options = replace(options, max_batch=None, batch_sizes=None)
    if "batch_sizes" in config:
        config["batch_sizes"] = tuple(config["batch_sizes"])
    return replace(options, **config)
