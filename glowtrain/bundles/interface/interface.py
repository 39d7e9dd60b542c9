"""The C interface of a bundle as LLVM text: its memory, its variables one by one and in files, and its functions.

Nothing is allocated and nothing is kept outside of what callers give; what is called are the callbacks that they hand
in. Every function but those that look something up begins by checking its handle, and returns an :class:`ErrorCode`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from glowtrain.backends.cpu.driver import exponent
from glowtrain.backends.cpu.step import internal
from glowtrain.backends.cpu.table import ARENA, FIRST_SLOT, POOL, WORKSPACES
from glowtrain.backends.llvm.target import Target
from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I32, POINTER, LlvmType, LlvmValue, integer, number, pointer, vector
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.constants import Constants, structured
from glowtrain.bundles.interface.structs import CFunction, Struct
from glowtrain.bundles.memory import Place, VariableMemory
from glowtrain.bundles.signature import BundleFunction, BundleTensor, hyper_of
from glowtrain.bundles.weights import header_of

VERSION = 1
"""Of the interface."""
CHUNK = 256
"""Bytes on the stack through which variables are saved and loaded."""
ROLES = ("parameter", "statistic", "state")
"""By number in C."""
I8 = vector("i8")
NULL = pointer("null")
FLOATS = {"f32": "float", "f64": "double"}


@dataclass(frozen=True)
class Interface:
    """What stands around the code of a bundle's functions.

    ``version`` is a number for this bundle's header: memory and handles carry it. ``hyper`` are the defaults of the
    hyperparameters, in the order of the step's; ``threads`` have a workspace each.
    """

    name: str
    target: Target
    functions: Sequence[BundleFunction]
    memory: VariableMemory
    version: int
    hyper: Sequence[float]
    threads: int = 1
    constants: Constants = field(default_factory=Constants)

    @property
    def arena(self) -> int:
        """Bytes of the arena: the largest of a function's, then the workspaces of all threads."""
        return self._planned + self.threads * max(function.code.workspace for function in self.functions)

    @property
    def _planned(self) -> int:
        return max(function.code.plan.arena for function in self.functions)

    @property
    def places(self) -> tuple[Place, ...]:
        return self.memory.places

    # -- types

    @cached_property
    def usize(self) -> LlvmType:
        return self.target.index_type

    @cached_property
    def handle(self) -> Struct:
        """What the caller keeps for each instance; the last two make the pool that steps are given."""
        return self._struct(
            version=I32, variables=POINTER, arena=POINTER, parallel=POINTER, context=POINTER, run=POINTER
        )

    @cached_property
    def given(self) -> Struct:
        """What the caller hands to ``init``."""
        return self._struct(
            version=I32, variables=POINTER, variables_bytes=self.usize, arena=POINTER, arena_bytes=self.usize,
            parallel=POINTER, context=POINTER,
        )  # fmt: skip

    @cached_property
    def variable(self) -> Struct:
        """A row of the table of variables."""
        return self._struct(
            name=POINTER, type=POINTER, role=I32, size=I32, rank=I32, shape=POINTER, strides=POINTER,
            elements=self.usize, offset=self.usize,
        )  # fmt: skip

    @cached_property
    def hyper_struct(self) -> Struct:
        """Hyperparameters of the step."""
        return self._struct(**{each.name: vector(FLOATS[each.type.dtype.name]) for each in hyper_of(self.functions)})

    def _struct(self, **fields: LlvmType) -> Struct:
        return Struct(fields, self.target.pointer_bits // 8)

    # -- the text

    def text(self) -> str:
        """All functions and constants."""
        functions = [self._ready(), self._bytes("copy", POINTER), self._bytes("fill", I8), self._usable(), self._init()]
        functions += [self._error()]
        if self.places:
            functions += [self._element(), self._find(), self._reset(), *map(self._moved, ("get", "set"))]
            functions += [self._same(), self._equal(), self._save(), self._load()]
        if self.threads > 1:
            functions.append(self._run())
        functions += map(self._call, self.functions)
        self._tables()
        return "\n".join([*self.constants.lines, "", *functions])

    def _tables(self) -> None:
        sizes = [self.memory.alignment, self.memory.size, self.arena]
        numbers = [integer(self.version, I32), integer(len(self.places), I32)]
        self.constants.export(f"{self.name}_sizes", structured([*numbers, *(integer(n, self.usize) for n in sizes)]))
        if self.places:
            rows = [structured(self._row(place)) for place in self.places]
            type_ = rows[0].partition("} ")[0] + "}"
            self.constants.export(f"{self.name}_variables", f"[{len(rows)} x {type_}] [{', '.join(rows)}]")
        if self.hyper:
            types = self.hyper_struct.fields.values()
            defaults = [number(value, type_) for value, type_ in zip(self.hyper, types, strict=True)]
            self.constants.export(f"{self.name}_defaults", structured(defaults))

    def _row(self, place: Place) -> list[LlvmValue | str]:
        type_, constants = place.type, self.constants
        return [
            f"ptr {constants.text(place.name)}",
            f"ptr {constants.text(type_.dtype.name)}",
            *(integer(n, I32) for n in (ROLES.index(place.role), type_.dtype.size, type_.rank)),
            f"ptr {constants.numbers(type_.shape or (1,))}",
            f"ptr {constants.numbers(place.strides or (0,))}",
            *(integer(n, self.usize) for n in (type_.size, place.offset)),
        ]

    def _function(self, name: str, /, **parameters: LlvmType) -> CFunction:
        return CFunction(f"{self.name}_{name}", self.usize, **parameters)

    def _internal(
        self, symbol: str, /, result: str = "void", **parameters: LlvmType
    ) -> tuple[LlvmFunction, list[LlvmValue]]:
        given = [(type_.text, parameter) for parameter, type_ in parameters.items()]
        f = LlvmFunction(symbol, given, linkage="internal", index_type=self.usize, result=result)
        return f, [LlvmValue(f"%{parameter}", type_) for parameter, type_ in parameters.items()]

    # -- helpers that are not exported

    def _ready(self) -> str:
        """Whether ``init`` has made a handle ready."""
        f = CFunction("ready", self.usize, handle=POINTER)
        f.present("handle")
        known = f.compare("eq", f.get(self.handle, f.of["handle"], "version"), integer(self.version, I32))
        f.require(known, ErrorCode.NOT_INITIALISED)
        return internal(f.succeeded())

    def _bytes(self, name: str, source: LlvmType) -> str:
        """Write bytes one by one: those at another place, or the same byte everywhere."""
        f, (to, given, count) = self._internal(name, to=POINTER, given=source, count=self.usize)
        with f.when(f.compare("ne", count, 0)), f.loop(count) as loop:
            byte = f.load(I8, f.address(given, loop.index, 1)) if source is POINTER else given
            f.store(byte, f.address(to, loop.index, 1))
        return f.finish()

    def _usable(self) -> str:
        """Whether memory is there, aligned and large enough."""
        f = CFunction("usable", self.usize, at=POINTER, count=self.usize, needed=self.usize)
        f.present("at")
        beside = f.op("and", f.cast("ptrtoint", f.of["at"], self.usize), self.memory.alignment - 1)
        f.require(f.compare("eq", beside, 0), ErrorCode.MISALIGNED)
        f.require(f.compare("uge", f.of["count"], f.of["needed"]), ErrorCode.TOO_SMALL)
        return internal(f.succeeded())

    def _element(self) -> str:
        """Where the element of a variable lies that has a number in row-major order; scalars have an axis of one."""
        f, (own, row, index) = self._internal("element", "ptr", own=POINTER, row=POINTER, index=self.usize)
        shape, strides = self._of(f, row, "shape"), self._of(f, row, "strides")
        rank = self._of(f, row, "rank")
        axes = f.cast("zext", f.select(f.compare("eq", rank, 0), 1, rank), self.usize)
        with f.loop(axes, [index, f.index(0)]) as loop:
            left, place = loop.carried
            axis = f.op("sub", f.op("sub", axes, 1), loop.index)
            extent, stride = (
                f.cast("zext", f.load(I32, f.address(each, axis, 4)), self.usize) for each in (shape, strides)
            )
            outer = f.op("udiv", left, extent)
            inner = f.op("sub", left, f.op("mul", outer, extent))
            loop.next = [outer, f.op("add", place, f.op("mul", inner, stride))]
        inside = f.op("mul", loop.results[1], f.cast("zext", self._of(f, row, "size"), self.usize))
        return f.finish(f.address(self._variables(f, own), f.op("add", inside, self._of(f, row, "offset")), 1))

    def _of(self, f: LlvmFunction, row: LlvmValue, name: str) -> LlvmValue:
        """An entry of a row of the table of variables."""
        return f.load(self.variable.fields[name], f.address(row, self.variable.offset(name), 1))

    def _variables(self, f: LlvmFunction, handle: LlvmValue) -> LlvmValue:
        return f.load(POINTER, f.address(handle, self.handle.offset("variables"), 1))

    def _same(self) -> str:
        """Whether bytes are the same: an i32 that is not zero."""
        f, (a, b, count) = self._internal("same", "i32", a=POINTER, b=POINTER, count=self.usize)
        with f.loop(count, [integer(1, I32)]) as loop:
            one, other = (f.load(I8, f.address(each, loop.index, 1)) for each in (a, b))
            loop.next = [f.op("and", loop.carried[0], f.cast("zext", f.compare("eq", one, other), I32))]
        return f.finish(loop.results[0])

    def _equal(self) -> str:
        """Whether two texts are equal: an i32 that is not zero."""
        return _EQUAL.replace("usize", self.usize.text)

    # -- memory

    def _init(self) -> str:
        f = self._function("init", handle=POINTER, memory=POINTER)
        own, memory = f.of["handle"], f.of["memory"]
        f.present("handle", "memory")
        known = f.compare("eq", f.get(self.given, memory, "version"), integer(self.version, I32))
        f.require(known, ErrorCode.OTHER_VERSION)
        for name, needed in (("variables", self.memory.size), ("arena", self.arena)):
            if needed:
                at, count = f.get(self.given, memory, name), f.get(self.given, memory, f"{name}_bytes")
                f.passed(f.call("usable", I32, at, count, f.index(needed)))
        f.put(self.handle, own, "version", integer(self.version, I32))
        for name in ("variables", "arena", "parallel", "context"):
            f.put(self.handle, own, name, f.get(self.given, memory, name))
        f.put(self.handle, own, "run", pointer("@run" if self.threads > 1 else "null"))
        if not self.places:
            return f.succeeded()
        return f.finish(f.call(f"{self.name}_reset", I32, own))

    def _reset(self) -> str:
        f = self._function("reset", handle=POINTER)
        f.passed(f.call("ready", I32, f.of["handle"]))
        at, memory = self._variables(f, f.of["handle"]), self.memory
        if memory.image:
            image = pointer(self.constants.data(memory.image, memory.alignment))
            f.line(f"call void @copy({at.typed}, {image.typed}, {f.index(len(memory.image)).typed})")
        for begin, count, byte in (
            (len(memory.image), memory.zeros, 0),
            (len(memory.image) + memory.zeros, memory.unknown, 255),
        ):
            if count:
                to = f.address(at, begin, 1)
                f.line(f"call void @fill({to.typed}, {integer(byte, I8).typed}, {f.index(count).typed})")
        return f.succeeded()

    # -- variables

    def _find(self) -> str:
        """The number of a variable of this name, or the number of all variables."""
        f, (name,) = self._internal(f"{self.name}_find", "i32", name=POINTER)
        some = f.index(len(self.places))
        with f.loop(some, [integer(len(self.places), I32)]) as rows:
            row = f.address(self._rows, f.op("mul", rows.index, self.variable.size), 1)
            equal = f.call("equal", I32, name, self._of(f, row, "name"))
            number = f.cast("trunc", rows.index, I32)
            rows.next = [f.select(f.compare("ne", equal, 0), number, rows.carried[0])]
        return _exported(f.finish(rows.results[0]))

    def _moved(self, name: str) -> str:
        """``get`` and ``set``: a variable as row-major elements."""
        f = self._function(name, handle=POINTER, variable=I32, data=POINTER, bytes=self.usize)
        f.passed(f.call("ready", I32, f.of["handle"]))
        f.present("data")
        f.require(f.compare("ult", f.of["variable"], len(self.places)), ErrorCode.NO_SUCH_VARIABLE)
        row = f.address(self._rows, f.op("mul", f.cast("zext", f.of["variable"], self.usize), self.variable.size), 1)
        elements, size = self._of(f, row, "elements"), f.cast("zext", self._of(f, row, "size"), self.usize)
        f.require(f.compare("eq", f.op("mul", elements, size), f.of["bytes"]), ErrorCode.WRONG_SIZE)
        self._elements(f, f.of["handle"], row, f.index(0), elements, f.of["data"], inwards=name == "set")
        return f.succeeded()

    def _elements(
        self, f: LlvmFunction, own: LlvmValue, row: LlvmValue, first: LlvmValue, count: LlvmValue, data: LlvmValue,
        *, inwards: bool,
    ) -> None:  # fmt: skip
        """Move some elements of a variable, from the one of number ``first`` on, to or from neighbouring bytes."""
        size = f.cast("zext", self._of(f, row, "size"), self.usize)
        with f.when(f.compare("ne", count, 0)), f.loop(count) as loop:
            inside = f.call("element", POINTER, own, row, f.op("add", first, loop.index))
            outside = f.address(data, f.op("mul", loop.index, size), 1)
            to, given = (inside, outside) if inwards else (outside, inside)
            f.line(f"call void @copy({to.typed}, {given.typed}, {size.typed})")

    @property
    def _rows(self) -> LlvmValue:
        return pointer(f"@{self.name}_variables")

    # -- files

    def _save(self) -> str:
        """All variables, behind the header, to a callback."""
        f = self._function("save", handle=POINTER, write=POINTER, context=POINTER)
        f.passed(f.call("ready", I32, f.of["handle"]))
        f.present("write")
        buffer = f.value(f"alloca [{CHUNK} x i8], align 8", POINTER)
        self._written(f, pointer(self._header), f.index(len(self._header_bytes)))
        with self._chunks(f) as (row, first, count, size, _):
            self._elements(f, f.of["handle"], row, first, count, buffer, inwards=False)
            self._written(f, buffer, f.op("mul", count, size))
        return f.succeeded()

    def _written(self, f: CFunction, data: LlvmValue, count: LlvmValue) -> None:
        arguments = f"{f.of['context'].typed}, {data.typed}, {count.typed}"
        done = f.value(f"call {self.usize} {f.of['write']}({arguments})", self.usize)
        f.require(f.compare("eq", done, count), ErrorCode.WRITE_FAILED)

    def _load(self) -> str:
        """All variables from a callback; nothing is changed before the header and the last byte have been read."""
        f = self._function("load", handle=POINTER, read=POINTER, context=POINTER)
        f.passed(f.call("ready", I32, f.of["handle"]))
        f.present("read")
        buffer = f.value(f"alloca [{CHUNK} x i8], align 8", POINTER)
        length = len(self._header_bytes)
        with f.loop(length, step=CHUNK) as loop:
            count = f.intrinsic("umin", f.op("sub", f.index(length), loop.index), f.index(CHUNK))
            self._read(f, loop.index, buffer, count)
            same = f.call("same", I32, buffer, f.address(pointer(self._header), loop.index, 1), count)
            f.require(f.compare("ne", same, 0), ErrorCode.OTHER_WEIGHTS)
        total = length + sum(place.type.nbytes for place in self.places)
        self._read(f, f.index(total - 1), buffer, f.index(1))
        with self._chunks(f) as (row, first, count, size, offset):
            self._read(f, f.op("add", offset, length), buffer, f.op("mul", count, size))
            self._elements(f, f.of["handle"], row, first, count, buffer, inwards=True)
        return f.succeeded()

    def _read(self, f: CFunction, offset: LlvmValue, to: LlvmValue, count: LlvmValue) -> None:
        arguments = ", ".join(each.typed for each in (f.of["context"], offset, to, count))
        done = f.value(f"call {self.usize} {f.of['read']}({arguments})", self.usize)
        f.require(f.compare("eq", done, count), ErrorCode.READ_FAILED)

    @contextmanager
    def _chunks(self, f: CFunction) -> Iterator[tuple[LlvmValue, ...]]:
        """Loops over all variables in the order of files, in chunks: the row, the first element, how many, the bytes of
        each, and where the chunk begins in the data of a file."""
        zero = f.index(0)
        with f.loop(len(self.places), [zero]) as rows:
            row = f.address(self._rows, f.op("mul", rows.index, self.variable.size), 1)
            elements, size = self._of(f, row, "elements"), f.cast("zext", self._of(f, row, "size"), self.usize)
            most = f.op("udiv", f.index(CHUNK), size)
            chunks = f.op("udiv", f.op("sub", f.op("add", elements, most), 1), most)
            with f.when(f.compare("ne", chunks, 0)), f.loop(chunks) as loop:
                first = f.op("mul", loop.index, most)
                count = f.intrinsic("umin", f.op("sub", elements, first), most)
                yield row, first, count, size, f.op("add", rows.carried[0], f.op("mul", first, size))
            rows.next = [f.op("add", rows.carried[0], f.op("mul", elements, size))]

    @cached_property
    def _header_bytes(self) -> bytes:
        return header_of({place.name: place.type for place in self.places})

    @cached_property
    def _header(self) -> str:
        return self.constants.data(self._header_bytes)

    # -- errors

    def _error(self) -> str:
        """The text of an error code."""
        f, (code,) = self._internal(f"{self.name}_error", "ptr", code=I32)
        found = pointer(self.constants.text("no error code"))
        for each in ErrorCode:
            found = f.select(f.compare("eq", code, each), pointer(self.constants.text(each.text)), found)
        return _exported(f.finish(found))

    # -- functions

    def _run(self) -> str:
        """What the pool of a step runs: the caller's own way to share out work. The pool lies in the handle."""
        f, (pool, body, context, tasks, each, _) = self._internal(
            "run", pool=POINTER, body=POINTER, context=POINTER, tasks=self.usize, each=self.usize, wake=self.usize
        )
        own = f.address(pool, -self.handle.offset("run"), 1)
        parallel, user = (f.load(POINTER, f.address(own, self.handle.offset(n), 1)) for n in ("parallel", "context"))
        arguments = ", ".join(value.typed for value in (user, body, context, tasks, each))
        f.line(f"call void {parallel}({arguments})")
        return f.finish()

    def _call(self, function: BundleFunction) -> str:
        """One of the bundle's own functions: it fills the table of pointers and runs the code."""
        tensors = [*function.inputs, *function.outputs]
        hyper = {"hyper": POINTER} if function.hyper else {}
        names = {each.name: POINTER for each in function.inputs} | hyper | {e.name: POINTER for e in function.outputs}
        f = self._function(function.name, handle=POINTER, **names)
        f.passed(f.call("ready", I32, f.of["handle"]))
        f.present(*(each.name for each in tensors if not (function.trains and each in function.outputs)))
        pointers = self._pointers(f, function)
        table = f.value(f"alloca [{len(pointers)} x ptr], align {self.handle.word}", POINTER)
        for at, value in enumerate(pointers):
            f.store(value, f.address(table, at, self.handle.word))
        f.line(f"call void @{function.code.entry}({table.typed})")
        if function.trains:
            self._check_loss(f, function.outputs[0], pointers[self._slot_of(function, function.outputs[0])])
        return f.succeeded()

    def _pointers(self, f: CFunction, function: BundleFunction) -> list[LlvmValue]:
        """What the table holds: arena, workspaces and pool, then what lies outside of the arena."""
        own = f.of["handle"]
        arena = f.get(self.handle, own, "arena")
        first = {ARENA: arena, WORKSPACES: f.address(arena, self._planned, 1), POOL: self._pool(f)}
        given = {each.source: f.of[each.name] for each in function.inputs}
        given |= self._hyper_pointers(f, function) | self._output_pointers(f, function)
        variables = self._variables(f, own) if self.places else NULL
        places = self.memory.by_name
        rest: list[LlvmValue] = []
        for slot in function.slots:
            if slot.kind == "constant":
                data = function.constants[slot.name].tobytes()
                rest.append(pointer(self.constants.data(data, self.memory.alignment)))
            elif slot.kind == "variable":
                rest.append(f.address(variables, places[slot.name].offset, 1))
            else:
                rest.append(NULL if slot.kind == "unused" else given[slot.name])
        return [*(first[at] for at in sorted(first)), *rest]

    def _pool(self, f: CFunction) -> LlvmValue:
        if self.threads == 1:
            return NULL
        alone = f.compare("eq", f.get(self.handle, f.of["handle"], "parallel"), NULL)
        return f.select(alone, NULL, f.address(f.of["handle"], self.handle.offset("run"), 1))

    def _hyper_pointers(self, f: CFunction, function: BundleFunction) -> dict[str, LlvmValue]:
        if not function.hyper:
            return {}
        defaults = pointer(f"@{self.name}_defaults")
        base = f.select(f.compare("eq", f.of["hyper"], NULL), defaults, f.of["hyper"])
        return {e.source: f.address(base, self.hyper_struct.offset(e.name), 1) for e in function.hyper}

    def _output_pointers(self, f: CFunction, function: BundleFunction) -> dict[str, LlvmValue]:
        """Where outputs go; those of a step may be null."""
        found = {each.source: f.of[each.name] for each in function.outputs}
        if function.trains:
            for each in function.outputs:
                room = f.value(f"alloca [{each.type.nbytes} x i8], align 8", POINTER)
                found[each.source] = f.select(f.compare("eq", f.of[each.name], NULL), room, f.of[each.name])
        return found

    def _slot_of(self, function: BundleFunction, output: BundleTensor) -> int:
        return next(n for n, slot in enumerate(function.slots, FIRST_SLOT) if slot.name == output.source)

    def _check_loss(self, f: CFunction, loss: BundleTensor, at: LlvmValue) -> None:
        """An error for NaN and infinity, whose exponents are all ones."""
        mask = exponent(loss.type)
        bits = f.load(vector(f"i{8 * loss.type.dtype.size}"), at)
        f.require(f.compare("ne", f.op("and", bits, mask), mask), ErrorCode.NOT_FINITE)


_EQUAL = """define internal i32 @equal(ptr %a, ptr %b) #0 {
entry:
  br label %look
look:
  %at = phi usize [ 0, %entry ], [ %behind, %same ]
  %a.at = getelementptr i8, ptr %a, usize %at
  %b.at = getelementptr i8, ptr %b, usize %at
  %one = load i8, ptr %a.at
  %other = load i8, ptr %b.at
  %equal = icmp eq i8 %one, %other
  br i1 %equal, label %same, label %differ
same:
  %behind = add usize %at, 1
  %end = icmp eq i8 %one, 0
  br i1 %end, label %all, label %look
all:
  ret i32 1
differ:
  ret i32 0
}
"""


def _exported(text: str) -> str:
    return text.replace("define internal ", "define ", 1)
