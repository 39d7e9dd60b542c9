"""A bundle's object file, loaded into this process and called as C calls it, with all memory under watch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import glowtrain as gt
from glowtrain.backends.cpu.backend import Cpu
from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.bundles.contents import Contents, contents_of
from glowtrain.bundles.interface.structs import Struct
from glowtrain.bundles.module import BundleModule, module_of
from glowtrain.bundles.signature import BundleFunction, BundleTensor
from glowtrain.stages import Options
from glowtrain.trainer.settings import TrainingSettings
from glowtrain.types import Array
from tests.cpu.native_program import POISON, Canaries, Memory

Sizes = Callable[[Sequence[int]], Memory]
WRITE = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
READ = ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t)


def contents(model: Any, **settings: Any) -> Contents:
    """What a bundle of a model or trainer computes."""
    given = {"loss": None, "optimizer": None, "dims": {}, "name": None, **settings}
    own = {name: given.pop(name) for name in [*given] if name in TrainingSettings.__dataclass_fields__}
    return contents_of(model, settings=TrainingSettings(**own), **given)


def compiled(what: Contents, *, known: bool = True, threads: int = 1, target: Target | None = None) -> BundleModule:
    """The module for the processor that runs the tests."""
    resolved = target or Target.host()
    options = Options(facts=Cpu(resolved, cache=None).facts)
    return module_of(what, resolved, options, holds_weights=known, threads=threads)


class Loaded:
    """The functions of an object file in this process."""

    def __init__(self, module: BundleModule) -> None:
        self.module = module
        functions = ["init", "error", *(f.name for f in module.functions)]
        if module.memory.slots:
            functions += ["reset", "find", "get", "set", "save", "load", "variables"]
        self._library = toolchain.load([module.code], [f"{module.name}_{name}" for name in functions])

    def call(self, name: str, *arguments: Any, result: Any = ctypes.c_uint32) -> Any:
        """Call a function with pointers and integers that ctypes has made, or addresses."""
        address = self.exported(name)
        types = [ctypes.c_void_p if a is None or isinstance(a, int) else type(a) for a in arguments]
        return ctypes.CFUNCTYPE(result, *types)(address)(*arguments)

    def exported(self, name: str) -> int:
        """The address of an exported symbol."""
        return self._library.address(f"{self.module.name}_{name}")

    def instance(self, memory: Sizes = Canaries, **changes: Any) -> Instance:
        """A handle with memory of its own, made ready."""
        made = Instance(self, memory)
        assert made.init(**changes) == 0
        return made


class Instance:
    """A handle, variables and arena; every piece of memory, also what calls are given, is watched by ``memory``."""

    def __init__(self, loaded: Loaded, memory: Sizes = Canaries) -> None:
        self.loaded, self.module, self._memory = loaded, loaded.module, memory
        interface = self.module.interface
        self._held = memory([interface.handle.size, self.module.memory.size, interface.arena])
        self.handle, self.variables, self.arena = self._held.pieces
        for piece in self._held.pieces:
            piece[...] = POISON

    def init(self, **changes: Any) -> int:
        """``init`` with this memory, of which fields may be given another value."""
        given = {
            "version": self.module.version,
            "variables": self.variables.ctypes.data,
            "variables_bytes": self.variables.nbytes,
            "arena": self.arena.ctypes.data,
            "arena_bytes": self.arena.nbytes,
            "parallel": 0,
            "context": 0,
            **changes,
        }
        held = self._memory([self.module.interface.init_arguments.size])
        (piece,) = held.pieces
        _fill(self.module.interface.init_arguments, piece, given)
        return self._checked(self.loaded.call("init", self.address, piece.ctypes.data), held)

    @property
    def address(self) -> int:
        address: int = self.handle.ctypes.data
        return address

    def run(self, name: str, batch: Mapping[str, Array], hyper: Mapping[str, float] | None = None) -> dict[str, Array]:
        """Outputs of a function by their names in the model; inputs as well. It must succeed."""
        code, outputs = self.tried(name, batch, hyper)
        assert code == 0, code
        return outputs

    def tried(
        self, name: str, batch: Mapping[str, Array], hyper: Mapping[str, float] | None = None
    ) -> tuple[int, dict[str, Array]]:
        """The error code of a function, and its outputs."""
        function = self.function(name)
        arrays = [np.ascontiguousarray(batch[each.source], each.type.dtype.numpy) for each in function.inputs]
        struct = self.module.interface.hyper_struct if function.hyper else None
        outputs = [each.type.nbytes for each in function.outputs]
        held = self._memory([*(a.nbytes for a in arrays), struct.size if struct else 0, *outputs])
        given, settings, made = _split(held.pieces, len(arrays))
        for piece, array in zip(given, arrays, strict=True):
            piece[...] = array.reshape(-1).view(np.uint8)
        for piece in made:
            piece[...] = POISON
        pointers = [piece.ctypes.data for piece in given]
        if struct is not None:
            if hyper is not None:
                _fill(struct, settings, hyper)
            pointers.append(settings.ctypes.data if hyper is not None else None)
        pointers += [piece.ctypes.data for piece in made]
        code = self._checked(self.loaded.call(name, self.address, *pointers), held)
        return code, {e.source: _array(e, piece) for e, piece in zip(function.outputs, made, strict=True)}

    def function(self, name: str) -> BundleFunction:
        return next(each for each in self.module.functions if each.name == name)

    def get(self, variable: str) -> Array:
        """A variable's value."""
        slot = self.module.memory.by_name[variable]
        held = self._memory([slot.type.nbytes])
        (piece,) = held.pieces
        given = ctypes.c_uint32(self.find(variable)), ctypes.c_void_p(piece.ctypes.data), ctypes.c_size_t(piece.nbytes)
        assert self._checked(self.loaded.call("get", self.address, *given), held) == 0
        return piece.view(slot.type.dtype.numpy).reshape(slot.type.shape).copy()

    def set(self, variable: str, value: Any) -> int:
        """Set a variable to an array of its type; the error code."""
        slot = self.module.memory.by_name[variable]
        array = np.ascontiguousarray(value, slot.type.dtype.numpy)
        held = self._memory([array.nbytes])
        (piece,) = held.pieces
        piece[...] = array.reshape(-1).view(np.uint8)
        given = ctypes.c_uint32(self.find(variable)), ctypes.c_void_p(piece.ctypes.data), ctypes.c_size_t(piece.nbytes)
        return self._checked(self.loaded.call("set", self.address, *given), held)

    def find(self, variable: str | None) -> int:
        text = None if variable is None else ctypes.c_char_p(variable.encode())
        number: int = self.loaded.call("find", text)
        return number

    def values(self) -> dict[str, Array]:
        """All variables."""
        return {slot.name: self.get(slot.name) for slot in self.module.memory.slots}

    def saved(self, fails_at: int | None = None) -> tuple[int, bytes]:
        """The error code of ``save``, and the file; the callback takes no byte from one on."""
        file = bytearray()

        def write(_: int, data: int, count: int) -> int:
            taken = count if fails_at is None else max(0, min(count, fails_at - len(file)))
            file.extend(ctypes.string_at(data, taken))
            return taken

        return self._checked(self.loaded.call("save", self.address, WRITE(write), None)), bytes(file)

    def load(self, file: bytes, fails_at: int | None = None) -> int:
        """The error code of ``load``; the callback gives no more once it has given so many bytes in all."""
        left = [len(file) * 2 if fails_at is None else fails_at]

        def read(_: int, offset: int, data: int, count: int) -> int:
            given = file[offset : offset + min(count, left[0])]
            left[0] -= len(given)
            ctypes.memmove(data, given, len(given))
            return len(given)

        return self._checked(self.loaded.call("load", self.address, READ(read), None))

    def _checked(self, code: int, *more: Memory) -> int:
        for each in (self._held, *more):
            if isinstance(each, Canaries):
                each.check()
        return code


def trainer_and_bundle(trainer: gt.Trainer, **settings: Any) -> tuple[gt.Trainer, Loaded]:
    """A trainer, and the bundle of it as it is now."""
    return trainer, Loaded(
        compiled(contents(trainer, dims={"batch": 4} if trainer.graphs.template else {}), **settings)
    )


def _fill(struct: Struct, piece: Array, values: Mapping[str, Any]) -> None:
    for name, type_ in struct.fields.items():
        size = struct.word if type_.text == "ptr" else type_.size
        kind = f"f{size}" if type_.text in ("float", "double") else f"u{size}"
        at = struct.offset(name)
        piece[at : at + size] = np.asarray(values[name], kind).reshape(1).view(np.uint8)


def _split(pieces: Sequence[Array], inputs: int) -> tuple[list[Array], Array, list[Array]]:
    return list(pieces[:inputs]), pieces[inputs], list(pieces[inputs + 1 :])


def _array(tensor: BundleTensor, piece: Array) -> Array:
    array: Array = piece.view(tensor.type.dtype.numpy).reshape(tensor.type.shape).copy()
    return array
