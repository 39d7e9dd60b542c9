"""Write and read files of all variables, through callbacks of the caller."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from glowtrain.backends.llvm.values import I8, I32, POINTER, LlvmValue, integer, pointer
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.interface import Interface
from glowtrain.bundles.interface.structs import CFunction
from glowtrain.bundles.interface.variables import entry, move, row
from glowtrain.bundles.weights import file_size, header_of

CHUNK = 256
"""Bytes on the stack through which variables are saved and loaded."""


def save(interface: Interface) -> str:
    """``NAME_save``: all variables, behind the header."""
    f = interface.function("save", handle=POINTER, write=POINTER, context=POINTER)
    f.passed(f.call("ready", I32, f.of["handle"]))
    f.present("write")
    buffer, header = _buffer(f), _header(interface)
    _write(interface, f, pointer(interface.constants.data(header)), f.index(len(header)))
    with _chunks(interface, f) as (at, first, count, size, _):
        move(interface, f, at, first, count, buffer, inwards=False)
        _write(interface, f, buffer, f.op("mul", count, size))
    return f.succeeded()


def load(interface: Interface) -> str:
    """``NAME_load``: all variables. The file is read twice: nothing is changed before all of it was there once."""
    f = interface.function("load", handle=POINTER, read=POINTER, context=POINTER)
    f.passed(f.call("ready", I32, f.of["handle"]))
    f.present("read")
    buffer, header = _buffer(f), _header(interface)
    known = pointer(interface.constants.data(header))
    with _read_in_chunks(interface, f, 0, len(header), buffer) as (offset, count):
        same_ = f.call("same", I32, buffer, f.address(known, offset, 1), count)
        f.require(f.compare("ne", same_, 0), ErrorCode.OTHER_WEIGHTS)
    end = file_size(interface.memory.types)
    if end > len(header):
        with _read_in_chunks(interface, f, len(header), end, buffer):
            pass
    with _chunks(interface, f) as (at, first, count, size, offset):
        _read(interface, f, f.op("add", offset, len(header)), buffer, f.op("mul", count, size))
        move(interface, f, at, first, count, buffer, inwards=True)
    return f.succeeded()


def same(interface: Interface) -> str:
    """Whether bytes, at least one, are the same: an i32 that is not zero."""
    f, (a, b, count) = interface.helper("same", "i32", a=POINTER, b=POINTER, count=interface.usize)
    with f.loop(count, [integer(1, I32)]) as loop:
        one, other = (f.load(I8, f.address(each, loop.index, 1)) for each in (a, b))
        loop.next = [f.op("and", loop.carried[0], f.cast("zext", f.compare("eq", one, other), I32))]
    return f.finish(loop.results[0])


def _header(interface: Interface) -> bytes:
    return header_of(interface.memory.types)


def _buffer(f: CFunction) -> LlvmValue:
    return f.buffer(CHUNK, I8)


def _write(interface: Interface, f: CFunction, data: LlvmValue, count: LlvmValue) -> None:
    arguments = f"{f.of['context'].typed}, {data.typed}, {count.typed}"
    done = f.value(f"call {interface.usize} {f.of['write']}({arguments})", interface.usize)
    f.require(f.compare("eq", done, count), ErrorCode.WRITE_FAILED)


def _read(interface: Interface, f: CFunction, offset: LlvmValue, to: LlvmValue, count: LlvmValue) -> None:
    arguments = ", ".join(each.typed for each in (f.of["context"], offset, to, count))
    done = f.value(f"call {interface.usize} {f.of['read']}({arguments})", interface.usize)
    f.require(f.compare("eq", done, count), ErrorCode.READ_FAILED)


@contextmanager
def _read_in_chunks(
    interface: Interface, f: CFunction, begin: int, end: int, buffer: LlvmValue
) -> Iterator[tuple[LlvmValue, LlvmValue]]:
    """Reads bytes of the file into the buffer, again and again: the offset of each chunk, and its bytes."""
    with f.loop(end, begin=begin, step=CHUNK) as loop:
        count = f.intrinsic("umin", f.op("sub", f.index(end), loop.index), f.index(CHUNK))
        _read(interface, f, loop.index, buffer, count)
        yield loop.index, count


@contextmanager
def _chunks(interface: Interface, f: CFunction) -> Iterator[tuple[LlvmValue, ...]]:
    """Loops over all variables in the order of files, in chunks: the row, the first element, how many, the bytes of
    each, and where the chunk begins in the data of a file."""
    with f.loop(len(interface.memory.slots), [f.index(0)]) as rows:
        at = row(interface, f, rows.index)
        elements, size = entry(interface, f, at, "elements"), entry(interface, f, at, "size", interface.usize)
        most = f.op("udiv", f.index(CHUNK), size)
        chunks = f.op("udiv", f.op("sub", f.op("add", elements, most), 1), most)
        with f.when(f.compare("ne", chunks, 0)), f.loop(chunks) as loop:
            first = f.op("mul", loop.index, most)
            count = f.intrinsic("umin", f.op("sub", elements, first), most)
            yield at, first, count, size, f.op("add", rows.carried[0], f.op("mul", first, size))
        rows.next = [f.op("add", rows.carried[0], f.op("mul", elements, size))]
