"""A bundle for WebAssembly in wasmtime, called as C calls it: only what the header says is known here."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import wasmtime

from glowtrain.bundles.weights import file_of
from glowtrain.types import Array

HANDLE_BYTES = 64


class WasmBundle:
    """An instance of the module in a bundle's folder, or of another module of the same; ``parallel``: steps are shared
    out by a function of this class, which counts how often it is called in ``shared``."""

    def __init__(self, folder: Path, name: str, module: bytes | None = None, *, parallel: bool = False) -> None:
        self.name, self.told = name, json.loads((folder / f"{name}.json").read_text())
        engine = wasmtime.Engine()
        code = module or (folder / f"{name}.wasm").read_bytes()
        self.store = wasmtime.Store(engine)
        self.exports = wasmtime.Instance(self.store, wasmtime.Module(engine, code), []).exports(self.store)
        self.memory = self.exports["memory"]
        self._end = self.exports["__heap_base"].value(self.store)
        self.handle = self._take(HANDLE_BYTES)
        sizes = [self.told["variables_bytes"], self.told["arena_bytes"]]
        variables, arena = (self._take(size) for size in sizes)
        given = self._take(28)
        self.shared = 0
        share = self._entry() if parallel else 0
        self._write(given, struct.pack("<7I", self.told["version"], variables, sizes[0], arena, sizes[1], share, 0))
        self.call("init", self.handle, given)

    def step(self, batch: Mapping[str, Array]) -> bytes:
        """A step with the usual hyperparameters; the bytes of its loss."""
        return self.prepared(batch)()

    def prepared(self, batch: Mapping[str, Array]) -> Callable[[], bytes]:
        """Steps on a batch that is put into memory once."""
        given = [self._put(batch[each["name"]]) for each in self.told["functions"]["step"]["inputs"]]
        loss = self._take(8)

        def step() -> bytes:
            self.call("step", self.handle, *given, 0, loss)
            return self._read(loss, 4)

        return step

    def variables(self) -> bytes:
        """All variables as a file."""
        found = {}
        for number, each in enumerate(self.told["variables"]):
            dtype = np.dtype({"f32": "<f4", "i64": "<i8"}[each["dtype"]])
            size = dtype.itemsize * int(np.prod(each["shape"]))
            at = self._take(size)
            self.call("get", self.handle, number, at, size)
            found[each["name"]] = np.frombuffer(self._read(at, size), dtype).reshape(each["shape"])
        return file_of(found)

    def _entry(self) -> int:
        """The place in the table of a function that does all of the work at once."""
        i32, table = wasmtime.ValType.i32(), self.exports["__indirect_function_table"]

        def share(_own: int, body: int, context: int, tasks: int, _each: int) -> None:
            self.shared += 1
            table.get(self.store, body)(self.store, context, 0, 0, tasks)

        function = wasmtime.Func(self.store, wasmtime.FuncType([i32] * 5, []), share)
        return int(table.grow(self.store, 1, function))

    def call(self, function: str, *arguments: int) -> None:
        """Call a function of the interface, which must succeed."""
        code = self.exports[f"{self.name}_{function}"](self.store, *arguments)
        assert code == 0, f"{function}: error {code}"

    def _put(self, array: Array) -> int:
        at = self._take(array.nbytes)
        self._write(at, np.ascontiguousarray(array).tobytes())
        return at

    def _take(self, size: int) -> int:
        """Memory that nobody has yet."""
        at = -(-self._end // 64) * 64
        self._end = at + size
        missing = self._end - self.memory.data_len(self.store)
        if missing > 0:
            self.memory.grow(self.store, -(-missing // 65536))
        return at

    def _write(self, at: int, content: bytes) -> None:
        self.memory.write(self.store, content, at)

    def _read(self, at: int, size: int) -> bytes:
        return bytes(self.memory.read(self.store, at, at + size))
