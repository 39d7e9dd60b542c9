"""A bundle in Python: its functions over NumPy arrays, without a compiler.

This file needs Python and NumPy and nothing else. A bundle with a shared library holds a copy of it, named like the
bundle, which loads the library beside it::

    from cnn import load

    network = load()
    loss = network.step(x=images, labels=digits, lr=0.01)
    scores = network.predict(x=images)["scores"]
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import math
import os
import tempfile
import threading
from collections import UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, Protocol
from weakref import WeakSet

import numpy as np

INTERFACE = 1
"""Version of the C interface that this file calls."""
LIBRARIES = ("lib{}.so", "lib{}.dylib", "{}.dll")
STEP, PREDICT = "step", "predict"
NUMPY = {
    "f64": np.float64, "f32": np.float32, "f16": np.float16, "bf16": np.uint16, "bool": np.bool_,
    "i64": np.int64, "i32": np.int32, "i16": np.int16, "i8": np.int8, "i4": np.int8, "i2": np.int8,
    "u64": np.uint64, "u32": np.uint32, "u16": np.uint16,
}  # fmt: skip
"""NumPy's types of elements; those that it does not have are passed as their bits."""

Array = np.ndarray[Any, np.dtype[Any]]


class CallError(Exception):
    """A bundle cannot be loaded or called. ``code`` is the name of the C interface's error code, where it gave one."""

    code = ""


class LoadedCode(Protocol):
    """Machine code that is loaded."""

    def address(self, name: str) -> int:
        """Where a function or constant lies."""


_LOADED: dict[Path, bytes] = {}
"""The first content of each shared library that this process has loaded: a path is loaded once, and for good."""


class SharedLibrary:
    """The symbols of a shared library. One that was written anew since is loaded from a copy. Raises ``OSError`` where
    it cannot be loaded."""

    def __init__(self, path: Path, content: bytes) -> None:
        path = path.resolve()
        if _LOADED.setdefault(path, content) == content:
            self._library = ctypes.CDLL(str(path))
            return
        with tempfile.TemporaryDirectory(prefix="bundle-", ignore_cleanup_errors=True) as folder:
            copy = Path(folder, path.name)
            copy.write_bytes(content)
            self._library = ctypes.CDLL(str(copy))

    def address(self, name: str) -> int:
        return ctypes.addressof(ctypes.c_char.in_dll(self._library, name))


def load(folder: str | Path | None = None, name: str | None = None, *, threads: int = 1) -> BundleInstance:
    """An instance of a bundle that has a shared library.

    ``folder`` is where this file lies if it is not given; ``name`` is needed where a folder holds several bundles.
    Weights that were written beside the code (``NAME.safetensors``) are loaded, too. ``threads``: see
    :class:`BundleInstance`. Raises :class:`CallError`.
    """
    here = Path(__file__)
    if folder is None:
        folder, name = here.parent, name or here.stem
    manifest = read_manifest(Path(folder), name)
    library, weights = shared_library(Path(folder), manifest), weights_beside(Path(folder), manifest)
    return BundleInstance(manifest, library, threads=threads, weights=weights)


def read_manifest(folder: Path, name: str | None = None, error: type[CallError] = CallError) -> dict[str, Any]:
    """What a bundle says of itself. Raises ``error`` where there is none, or several and no ``name``, and for a
    description of which something is missing."""
    found = {path.stem: said for path in sorted(folder.glob("*.json")) if (said := _read(path)) is not None}
    if not found or (name and name not in found):
        raise error(_absent(folder, name, list(found)))
    if len(found) > 1 and not name:
        raise error(f"{folder} holds several bundles, {', '.join(found)}: say which")
    name = name or next(iter(found))
    interface = found[name]["interface"]
    if isinstance(interface, int) and interface != INTERFACE:  # whose description may say other things
        raise error(f"{name} has version {interface} of the interface, not {INTERFACE}: bundle the model again")
    try:
        _check_whole(found[name])
    except (KeyError, TypeError, ValueError, AttributeError) as reason:
        raise error(f"{folder / name}.json is damaged: {reason!r}; bundle the model again") from reason
    return found[name]


def _read(path: Path) -> dict[str, Any] | None:
    """A manifest, or None for another file."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and {"name", "interface", "functions"} <= set(found) else None


def _absent(folder: Path, name: str | None, names: Sequence[str]) -> str:
    """Why there is nothing to load, in words."""
    if not folder.is_dir():
        return f"{folder}: there is no such folder"
    if name and (folder / f"{name}.json").exists():
        return f"{folder / name}.json describes no bundle: it is damaged, or another program's"
    others = f"; it holds {', '.join(names)}" if names else ""
    return f"{folder} holds no bundle{f' {name!r}' if name else ''}{others}"


def _check_whole(said: Mapping[str, Any]) -> None:
    """Look at all that is read later: a manifest may lack something, or have been changed."""
    sides = [function[side] for function in said["functions"].values() for side in ("inputs", "outputs")]
    tensors = [tensor for side in (*sides, said["hyper"], said["variables"]) for tensor in side]
    texts = [said["name"], *(said["target"][name] for name in ("name", "triple", "cpu"))]
    texts += [*said["errors"], *said["files"], *(each["role"] for each in said["variables"])]
    texts += [tensor[name] for tensor in tensors for name in ("name", "dtype")]
    texts += [tensor["source"] for side in sides for tensor in side]
    counts = [said[name] for name in ("interface", "version", "alignment", "variables_bytes", "arena_bytes", "threads")]
    counts += [extent for tensor in tensors for extent in tensor["shape"]]
    if wrong := [each for each in texts if not isinstance(each, str)]:
        raise TypeError(f"{wrong[0]!r} is no text")
    if wrong := [each for each in counts if not isinstance(each, int) or each < 0]:
        raise TypeError(f"{wrong[0]!r} is no count")
    if wrong := [each for each in said["hyper"] if not isinstance(each["default"], (int, float))]:
        raise TypeError(f"{wrong[0]['default']!r} is no number")


def library_of(manifest: Mapping[str, Any]) -> str | None:
    """The name of a bundle's shared library, if it has one."""
    names = [each.format(manifest["name"]) for each in LIBRARIES]
    return next((name for name in names if name in manifest["files"]), None)


def shared_library(folder: Path, manifest: Mapping[str, Any], error: type[CallError] = CallError) -> SharedLibrary:
    """The shared library of a bundle. Raises ``error`` where it has none, or one for another machine."""
    name = manifest["name"]
    found = library_of(manifest)
    if found is None:
        raise error(f"{name} has no shared library: bundle it with --shared")
    path = folder / found
    content = whole(path, manifest, error)
    try:
        return SharedLibrary(path, content)
    except OSError as reason:
        raise error(f"{path}, for {manifest['target']['name']}, cannot be loaded: {reason}") from reason


def whole(path: Path, manifest: Mapping[str, Any], error: type[CallError]) -> bytes:
    """A file of a bundle, as it was written. Raises ``error`` where it cannot be read or is another one."""
    try:
        content = path.read_bytes()
    except OSError as reason:
        raise error(f"{path}: cannot be read: {reason.strerror or reason}") from reason
    said = manifest["files"].get(path.name, {}).get("sha256")
    if hashlib.sha256(content).hexdigest() != said:
        raise error(f"{path} is damaged, or of another bundle than {manifest['name']}.json: bundle the model again")
    return content


def weights_beside(folder: Path, manifest: Mapping[str, Any], error: type[CallError] = CallError) -> bytes | None:
    """The file of weights that was written beside the code, or has been put in its place since; None for a bundle
    that has none. Raises ``error`` where it cannot be read."""
    path = folder / f"{manifest['name']}.safetensors"
    if path.name not in manifest["files"]:
        return None
    try:
        return path.read_bytes()
    except OSError as reason:
        raise error(f"{path}, which holds the weights, cannot be read: {reason.strerror or reason}") from reason


class NamedTensor:
    """An input, output, hyperparameter or variable: its name, and what its elements and shape are."""

    def __init__(self, said: Mapping[str, Any], dtypes: Mapping[str, Any]) -> None:
        self.name: str = said["name"]
        self.source: str = said.get("source", self.name)
        self.shape = tuple(said["shape"])
        self.element: str = said["dtype"]
        self.dtype = np.dtype(dtypes.get(self.element, np.uint8))

    def __str__(self) -> str:
        return f"{self.element}[{','.join(map(str, self.shape))}]"

    def empty(self) -> Array:
        """An array of this type."""
        return np.empty(self.shape, self.dtype)

    def as_array(self, value: Any, of: str, error: type[CallError]) -> Array:
        """An array or numbers as an array of this type. Raises ``error`` for another shape or dtype."""
        if self.element == "bf16" and self.dtype.kind == "u" and not hasattr(value, "dtype"):
            raise error(f"{of}: {self.source!r} is {self}, passed as its bits: an array of uint16")
        if isinstance(value, np.generic):
            value = value.item()
        try:
            array = np.asarray(value)
            if not hasattr(value, "dtype"):
                array = self._converted(array)
            elif isinstance(value, np.ma.MaskedArray):
                raise TypeError("what is masked has no value")
        except (TypeError, ValueError, OverflowError) as reason:
            raise error(f"{of}: {self.source!r} must be {self}: {reason}") from reason
        if array.dtype != self.dtype or array.shape != self.shape:
            raise error(f"{of}: {self.source!r} must be {self}, not {array.dtype}{list(array.shape)}")
        return np.ascontiguousarray(array).reshape(self.shape)

    def _converted(self, array: Array) -> Array:
        """Numbers in this type. Raises ``TypeError`` for text and objects, ``OverflowError`` where one does not fit."""
        whole = self.dtype.kind in "bui"
        if array.size and array.dtype.kind not in ("bui" if whole else "buif"):
            raise TypeError(f"numbers are taken, not {'floats' if array.dtype.kind == 'f' else 'text or objects'}")
        with np.errstate(over="ignore"):
            found = array.astype(self.dtype)
        changed = found != array if whole else np.isfinite(array) & ~np.isfinite(found)
        if changed.any():
            raise OverflowError(f"{array[changed].flat[0]} is out of range")
        return found


class Signature:
    """The inputs and outputs of a function of a bundle."""

    def __init__(self, said: Mapping[str, Any], dtypes: Mapping[str, Any]) -> None:
        self.inputs = [NamedTensor(each, dtypes) for each in said["inputs"]]
        self.outputs = [NamedTensor(each, dtypes) for each in said["outputs"]]

    def __str__(self) -> str:
        takes, gives = (", ".join(f"{e.source}: {e}" for e in side) for side in (self.inputs, self.outputs))
        return f"({takes}) -> ({gives})"


class _Memory(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32), ("variables", ctypes.c_void_p), ("variables_bytes", ctypes.c_size_t),
        ("arena", ctypes.c_void_p), ("arena_bytes", ctypes.c_size_t), ("parallel_for", ctypes.c_void_p),
        ("own", ctypes.c_void_p),
    ]  # fmt: skip


class _Handle(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32), ("variables", ctypes.c_void_p), ("arena", ctypes.c_void_p),
        ("parallel_for", ctypes.c_void_p), ("own", ctypes.c_void_p), ("run", ctypes.c_void_p),
    ]  # fmt: skip


_BODY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_size_t)
_PARALLEL_FOR = ctypes.CFUNCTYPE(
    None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t
)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_READ = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)


class _Pool:
    """Threads that share the work of calls. They make the calls, too: a signal's exception is raised in the main
    thread, and would leave work undone there."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self.parallel_for = _PARALLEL_FOR(self._share)
        self.renew()

    def renew(self) -> None:
        """Have threads anew, in a process that has not those that there were."""
        self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="bundle")

    def call(self, function: Callable[[], int]) -> int:
        return self._executor.submit(function).result()

    def _share(self, _context: int, body: int, context: int, tasks: int, each: int) -> None:
        ranges, taking, run = iter(range(0, tasks, max(each, 1))), threading.Lock(), _BODY(body)

        def work(thread: int) -> None:
            while True:
                with taking:
                    begin = next(ranges, None)
                if begin is None:
                    return
                run(context, thread, begin, min(begin + each, tasks))

        helpers = [self._executor.submit(work, thread) for thread in range(1, self.threads)]
        work(0)
        for helper in helpers:
            if not helper.cancel():
                helper.result()


class Variables(Mapping[str, Array]):
    """The variables of an instance by name: what is got is a copy, what is set is written at once."""

    def __init__(self, instance: BundleInstance, tensors: Sequence[NamedTensor], roles: Sequence[str]) -> None:
        self._instance = instance
        self._tensors = {tensor.name: tensor for tensor in tensors}
        self._numbers = {tensor.name: number for number, tensor in enumerate(tensors)}
        self.roles = {tensor.name: role for tensor, role in zip(tensors, roles, strict=True)}
        """``parameter``, ``statistic`` or ``state``, by name."""

    def __getitem__(self, name: str) -> Array:
        array = self._tensors[name].empty()
        self._instance._move("get", self._numbers[name], array)
        return array

    def __setitem__(self, name: str, value: Any) -> None:
        self.update({name: value})

    def update(self, values: Mapping[str, Any]) -> None:
        """Set several. Raises :class:`CallError` for unknown names and other types; nothing has been set then."""
        own, error = self._instance, self._instance.error
        for name in values:
            if name not in self._tensors:
                like = get_close_matches(name, self._tensors, n=1)
                raise error(f"{own.name} has no variable {name!r}{f'; did you mean {like[0]!r}?' if like else ''}")
        arrays = {name: self._tensors[name].as_array(value, own.name, error) for name, value in values.items()}
        for name, array in arrays.items():
            own._move("set", self._numbers[name], array)

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @property
    def nbytes(self) -> int:
        """Bytes of all of them in a file."""
        return sum(tensor.dtype.itemsize * math.prod(tensor.shape) for tensor in self._tensors.values())

    def __repr__(self) -> str:
        return "\n".join(f"{self.roles[name]:<9}  {name}: {tensor}" for name, tensor in self._tensors.items())


class Hyperparameters(UserDict[str, float]):
    """Hyperparameters by name, for the steps to come. Names that the bundle does not have are refused."""

    def __init__(self, bundle: str, error: type[Exception], known: Sequence[Mapping[str, Any]]) -> None:
        self._bundle, self._error, self._known = bundle, error, [each["name"] for each in known]
        super().__init__({each["name"]: each["default"] for each in known})

    def __setitem__(self, name: str, value: float) -> None:
        if name not in self._known:
            raise self._error(f"{self._bundle} has no hyperparameter {name!r}; it has {', '.join(self._known)}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return repr(self.data)


class BundleInstance:
    """A bundle with variables and an arena of its own. Several instances of one bundle do not touch each other.

    Inputs are arrays of exactly the type that the bundle was made for, or numbers and lists. ``hyper`` holds the
    hyperparameters of steps and may be changed between them. ``threads`` share out the work of a call, as many as the
    bundle was made for at most; what comes out is the same bits for any number. Calls from several threads take turns.
    ``weights``: a file of all variables, which are so at the start. A process that is forked between two calls goes on
    with variables and threads of its own.

    Raises :class:`CallError`, with the name of the error code where the bundle gave one.
    """

    error: type[CallError] = CallError
    dtypes: Mapping[str, Any] = NUMPY

    def __init__(
        self, manifest: Mapping[str, Any], symbols: LoadedCode, *, threads: int = 1, weights: bytes | None = None
    ) -> None:
        self.manifest = manifest
        self.name: str = manifest["name"]
        self._symbols = symbols
        self._weights = weights
        self._lock = threading.Lock()
        self._pool = self._pool_of(threads)
        _watch_forks()
        _INSTANCES.add(self)
        self.measured: dict[str, float] = {}
        """The metrics of the last step's batch, from before the update."""
        self.functions = {name: Signature(said, self.dtypes) for name, said in manifest["functions"].items()}
        """What each function takes and gives."""
        self._hyper = [NamedTensor({**each, "source": each["name"]}, self.dtypes) for each in manifest["hyper"]]
        self.hyper = Hyperparameters(self.name, self.error, manifest["hyper"])
        tensors = [NamedTensor(each, self.dtypes) for each in manifest["variables"]]
        self.variables = Variables(self, tensors, [each["role"] for each in manifest["variables"]])
        self._handle = _Handle()
        self._begin()

    def another(self) -> BundleInstance:
        """One more instance of the same bundle, with variables as they are at the start."""
        threads = self._pool.threads if self._pool else 1
        return type(self)(self.manifest, self._symbols, threads=threads, weights=self._weights)

    def __deepcopy__(self, memo: object) -> BundleInstance:
        """One more instance with these variables and hyperparameters."""
        copy = self.another()
        copy.hyper.update(self.hyper)
        copy.measured = dict(self.measured)
        if len(self.variables):
            copy._take(self._saved(), self.name)
        return copy

    def __reduce__(self) -> NoReturn:
        raise self.error(
            f"{self.name} cannot be pickled, as it is memory of this process: save() its variables, and in the other "
            "process load the bundle from its folder and load() them"
        )

    def step(self, /, **arrays: Any) -> float:
        """One step of training on a batch of inputs by name; hyperparameters by name are for this step alone.

        The loss; metrics, of a bundle that has some, are in ``measured`` then. Raises :class:`CallError` where the loss
        is NaN or infinite: no variable has changed then.
        """
        (_, loss), *metrics = self._run(STEP, arrays).items()
        self.measured = {name: float(value) for name, value in metrics}
        return float(loss)

    def predict(self, /, **arrays: Any) -> dict[str, Array]:
        """Outputs by name for a batch of inputs by name."""
        return self._run(PREDICT, arrays)

    def reset(self) -> None:
        """All variables as they are at the start."""
        self._call("reset")
        if self._weights is not None:
            self._take(self._weights, f"{self.name}.safetensors")

    def save(self, path: str | Path) -> None:
        """Write all variables into a file (safetensors)."""
        data = self._saved()
        try:
            _write_whole(Path(path), data)
        except OSError as reason:
            raise self.error(f"{path}: cannot be written: {reason.strerror or reason}") from reason

    def load(self, path: str | Path) -> None:
        """Take all variables from a file that this bundle has written, here or elsewhere."""
        try:
            with open(path, "rb") as file:
                data = file.read(len(self._saved()) + 1)  # what is longer is refused, however long
        except OSError as reason:
            raise self.error(f"{path}: cannot be read: {reason.strerror or reason}") from reason
        self._take(data, str(path))

    def __repr__(self) -> str:
        functions = "".join(f"\n  {name}{signature}" for name, signature in self.functions.items())
        return f"{self.name} for {self.manifest['target']['name']}, {len(self.variables)} variables{functions}"

    # -- calls

    def _pool_of(self, threads: int) -> _Pool | None:
        most = self.manifest["threads"]
        if type(threads) is not int or threads < 1:
            raise self.error(f"threads must be a whole number from 1 on, not {threads!r}")
        if threads > most:
            made = f"{most} threads at most" if most > 1 else "one thread"
            raise self.error(f"{self.name} was made for {made}, not {threads}: bundle it with --threads {threads}")
        return _Pool(threads) if threads > 1 else None

    def _renew(self) -> None:
        """Be free of the threads of a process that this one was forked from."""
        self._lock = threading.Lock()
        if self._pool:
            self._pool.renew()

    def _begin(self) -> None:
        """Check that description and code are of one bundle, and initialise memory."""
        said = self.manifest
        version = ctypes.c_uint32.from_address(self._symbols.address(f"{self.name}_sizes")).value
        if version != said["version"]:
            raise self.error(f"{self.name}.json is of another bundle or version than the machine code")
        self._variables, variables = _aligned(said["variables_bytes"], said["alignment"])
        self._arena, arena = _aligned(said["arena_bytes"], said["alignment"])
        parallel = ctypes.cast(self._pool.parallel_for, ctypes.c_void_p).value if self._pool else None
        memory = _Memory(version, variables, said["variables_bytes"], arena, said["arena_bytes"], parallel, None)
        self._call("init", ctypes.byref(memory))
        if self._weights is not None:
            self._take(self._weights, f"{self.name}.safetensors")

    def _run(self, name: str, arrays: Mapping[str, Any]) -> dict[str, Array]:
        if name not in self.functions:
            raise self.error(f"{self.name} has no {name}; it has {' and '.join(self.functions)}")
        signature = self.functions[name]
        rest = dict(arrays)
        of = f"{self.name}.{name}"
        inputs = [tensor.as_array(self._input(of, tensor, rest), of, self.error) for tensor in signature.inputs]
        hyper = [self._struct(rest)] if name == STEP and self._hyper else []
        if rest:
            known = ", ".join([*(t.source for t in signature.inputs), *(self.hyper if hyper else ())])
            raise self.error(f"{of}: unknown {', '.join(map(repr, rest))}; it takes {known}")
        outputs = {tensor.source: tensor.empty() for tensor in signature.outputs}
        self._call(name, *inputs, *hyper, *outputs.values())
        return outputs

    def _input(self, of: str, tensor: NamedTensor, rest: dict[str, Any]) -> Any:
        """An input, by the model's name for it or by its name in C, taken out of what was given."""
        for name in (tensor.source, tensor.name):
            if name in rest:
                return rest.pop(name)
        raise self.error(f"{of}: input {tensor.source!r} is missing, {tensor}")

    def _struct(self, rest: dict[str, Any]) -> Array:
        """The hyperparameters as C's struct: those given, which are taken out, and ``self.hyper``."""
        values = {name: rest.pop(name, value) for name, value in self.hyper.items()}
        struct = np.zeros((), np.dtype([(each.name, each.dtype) for each in self._hyper], align=True))
        for each in self._hyper:
            if each.name not in values:
                raise self.error(f"{self.name}: hyperparameter {each.name!r} is missing")
            struct[each.name] = each.as_array(values[each.name], f"{self.name}.{STEP}", self.error)
        return struct

    def _move(self, name: str, number: int, array: Array) -> None:
        self._call(name, ctypes.c_uint32(number), array, ctypes.c_size_t(array.nbytes))

    def _saved(self) -> bytearray:
        """A file of all variables."""
        data = bytearray()

        def write(_context: int, at: int, count: int) -> int:
            data.extend(ctypes.string_at(at, count))
            return count

        self._call("save", _WRITE(write), None)
        return data

    def _take(self, data: bytes | bytearray, of: str) -> None:
        """Take all variables from the bytes of a file, which must end behind the last."""
        end = 8 + int.from_bytes(data[:8], "little") + self.variables.nbytes
        if len(data) > end:
            failure = self.error(f"{of}: OTHER_WEIGHTS: the file has more than {end} bytes")
            failure.code = "OTHER_WEIGHTS"
            raise failure

        def read(_context: int, offset: int, to: int, count: int) -> int:
            part = bytes(data[offset : offset + count])
            ctypes.memmove(to, part, len(part))
            return len(part)

        self._call("load", _READ(read), None, of=of)

    def _call(self, name: str, *arguments: Any, of: str = "") -> None:
        """Call a function with this instance's handle; raise what its error code says.

        Arrays stay with the call, which may outlast the wait for it.
        """
        prototype = ctypes.CFUNCTYPE(ctypes.c_uint32)
        function = prototype(self._symbols.address(f"{self.name}_{name}"))

        def run() -> int:
            with self._lock:
                return int(function(ctypes.byref(self._handle), *map(_argument, arguments)))

        code = self._pool.call(run) if self._pool else run()
        if code:
            failure = self.error(f"{of or self.name}: {self._names(code)}: {self._text(code)}")
            failure.code = self._names(code)
            raise failure

    def _names(self, code: int) -> str:
        names: Sequence[str] = self.manifest["errors"]
        return names[code] if code < len(names) else str(code)

    def _text(self, code: int) -> str:
        prototype = ctypes.CFUNCTYPE(ctypes.c_char_p, ctypes.c_uint32)
        text: bytes = prototype(self._symbols.address(f"{self.name}_error"))(code)
        return text.decode()


_INSTANCES: WeakSet[BundleInstance] = WeakSet()
"""All that there are in this process."""


def _renew() -> None:
    for instance in list(_INSTANCES):
        instance._renew()


@cache
def _watch_forks() -> None:
    """Once, for the first instance."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_renew)


def _argument(value: Any) -> Any:
    return ctypes.c_void_p(value.ctypes.data) if isinstance(value, np.ndarray) else value


def _aligned(count: int, alignment: int) -> tuple[Array, int]:
    """Memory, and the address in it of bytes that lie at a multiple of ``alignment``."""
    memory = np.empty(count + alignment, np.uint8)
    return memory, -(-memory.ctypes.data // alignment) * alignment


def _write_whole(path: Path, data: bytearray) -> None:
    """Write a file by way of one beside it, so that it appears whole or not at all; a link stays one. A device or a
    pipe is written to."""
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return
    beside = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
    try:
        beside.write_bytes(data)
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)
