"""The linker of one object for WebAssembly: a small object and the module that must come out, byte by byte."""

from __future__ import annotations

import pytest

from glowtrain.backends.llvm import toolchain
from glowtrain.backends.target import Target
from glowtrain.bundles.libraries.wasm import MAGIC, linked
from glowtrain.errors import BundleError

WASM = Target.named("wasm32")


def _section(number: int, *parts: bytes) -> bytes:
    content = b"".join(parts)
    return bytes([number, len(content)]) + content


def _named(name: str, *parts: bytes) -> bytes:
    return _section(0, _text(name), *parts)


def _text(name: str) -> bytes:
    return bytes([len(name)]) + name.encode()


TYPES = _section(1, b"\x01\x60\x00\x01\x7f")  # () -> i32
FUNCTIONS = _section(3, b"\x02\x00\x00")  # two of them
ELEMENTS = _section(9, b"\x01\x00\x41\x01\x0b\x01\x01")  # function 1 is entry 1 of the table
DATA_COUNT = _section(12, b"\x02")
OBJECT = (
    MAGIC
    + TYPES
    + _section(
        2,
        b"\x03",
        _text("env") + _text("__linear_memory") + b"\x02\x00\x01",
        _text("env") + _text("__stack_pointer") + b"\x03\x7f\x01",
        _text("env") + _text("__indirect_function_table") + b"\x01\x70\x00\x01",
    )
    + FUNCTIONS
    + ELEMENTS
    + DATA_COUNT
    # i32.const &second + 1, end; local 0: i32.load at offset &first, end
    + _section(
        10, b"\x02", b"\x08\x00\x41\x85\x80\x80\x80\x00\x0b", b"\x0b\x00\x41\x00\x28\x02\x80\x80\x80\x80\x00\x0b"
    )
    + _section(11, b"\x02", b"\x00\x41\x00\x0b\x04\x09\x08\x07\x06", b"\x00\x41\x04\x0b\x04\x00\x00\x00\x00")
    + _named(
        "linking",
        b"\x02",
        _section(
            8,
            b"\x05",
            b"\x00\x00\x00" + _text("here"),
            b"\x00\x02\x01" + _text("own"),  # local
            b"\x01\x00" + _text("first") + b"\x00\x00\x04",
            b"\x01\x00" + _text("second") + b"\x01\x00\x04",
            b"\x02\x10\x00",  # the stack pointer, undefined
        ),
    )
    # signed and unsigned LEB128 in the code; the word in the second segment is the address of the first
    + _named("reloc.CODE", b"\x04\x02", b"\x04\x04\x03\x01", b"\x03\x10\x02\x00")
    + _named("reloc.DATA", b"\x05\x02", b"\x05\x0f\x02\x00", b"\x00\x01\x00")
)
MODULE = (
    MAGIC
    + TYPES
    + FUNCTIONS
    + _section(4, b"\x01\x70\x00\x02")  # entry 0 stays empty
    + _section(5, b"\x01\x00\x02")  # two pages: the stack, and the data behind it
    + _section(
        6,
        b"\x04",
        b"\x7f\x01\x41\x80\x80\x04\x0b",  # the stack pointer: 65536
        b"\x7f\x00\x41\x90\x80\x04\x0b",  # __heap_base: 65552
        b"\x7f\x00\x41\x80\x80\x04\x0b",
        b"\x7f\x00\x41\x84\x80\x04\x0b",
    )
    + _section(
        7,
        b"\x06",
        _text("memory") + b"\x02\x00",
        _text("__indirect_function_table") + b"\x01\x00",
        _text("here") + b"\x00\x00",
        _text("__heap_base") + b"\x03\x01",
        _text("first") + b"\x03\x02",
        _text("second") + b"\x03\x03",
    )
    + ELEMENTS
    + DATA_COUNT
    + _section(
        10, b"\x02", b"\x08\x00\x41\x85\x80\x84\x80\x00\x0b", b"\x0b\x00\x41\x00\x28\x02\x80\x80\x84\x80\x00\x0b"
    )
    + _section(
        11, b"\x02", b"\x00\x41\x80\x80\x04\x0b\x04\x09\x08\x07\x06", b"\x00\x41\x84\x80\x04\x0b\x04\x00\x00\x01\x00"
    )
)


def test_the_module_of_an_object() -> None:
    assert linked(OBJECT).hex(" ") == MODULE.hex(" ")


def test_data_beyond_a_page_take_more_memory() -> None:
    text = "@big = constant [70000 x i8] zeroinitializer, align 64\n"
    module = linked(toolchain.compile_text(text, WASM))
    assert _section(5, b"\x01\x00\x03") in module  # 65536 + 70000 bytes are in three pages


def test_an_object_without_data_and_relocations() -> None:
    module = linked(toolchain.compile_text("define i32 @one() #0 {\n  ret i32 1\n}\n", WASM))
    assert _text("one") + b"\x00\x00" in module


def test_what_is_called_and_not_defined_is_named() -> None:
    text = "declare i32 @other()\ndefine i32 @one() #0 {\n  %x = call i32 @other()\n  ret i32 %x\n}\n"
    with pytest.raises(BundleError, match="calls what it does not define: other"):
        linked(toolchain.compile_text(text, WASM))


def test_relocations_of_another_kind_are_refused() -> None:
    other = OBJECT.replace(b"\x05\x0f\x02\x00", b"\x0d\x0f\x02\x00")
    with pytest.raises(BundleError, match="unknown kind, 13"):
        linked(other)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (b"\x7fELF\x02\x01\x01\0", "only an object file for WebAssembly"),
        (MODULE, "linked already"),
    ],
    ids=["elf", "module"],
)
def test_other_files_are_refused(code: bytes, message: str) -> None:
    with pytest.raises(BundleError, match=message):
        linked(code)
