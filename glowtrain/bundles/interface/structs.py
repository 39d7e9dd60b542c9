"""C's structs and functions that return error codes, as LLVM text is written for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I32, NULL, POINTER, LlvmType, LlvmValue, integer
from glowtrain.bundles.codes import ErrorCode


@dataclass(frozen=True)
class Struct:
    """A C struct of pointers, integers and floats, with ``word`` bytes to a pointer."""

    fields: Mapping[str, LlvmType]
    word: int

    def offset(self, name: str) -> int:
        """The byte at which a field begins."""
        return self._ends()[name] - self._size(self.fields[name])

    @property
    def size(self) -> int:
        """Bytes of the struct, as they follow one another in an array."""
        widest = max(map(self._size, self.fields.values()))
        return -(-max(self._ends().values()) // widest) * widest

    def _ends(self) -> dict[str, int]:
        ends, behind = {}, 0
        for name, type_ in self.fields.items():
            size = self._size(type_)
            behind = -(-behind // size) * size + size
            ends[name] = behind
        return ends

    def _size(self, type_: LlvmType) -> int:
        return self.word if type_ is POINTER else type_.size


class CFunction(LlvmFunction):
    """A function under construction that C calls: it returns an error code."""

    def __init__(self, name: str, index_type: LlvmType, /, **parameters: LlvmType) -> None:
        given = [(type_.text, f"{parameter}.") for parameter, type_ in parameters.items()]  # no label ends with a dot
        super().__init__(name, given, index_type=index_type, result="i32")
        self.of = {parameter: LlvmValue(f"%{parameter}.", type_) for parameter, type_ in parameters.items()}
        """The parameters by name."""

    def require(self, condition: LlvmValue, code: ErrorCode) -> None:
        """Go on if the condition holds, else return the code."""
        self._go_on(condition, integer(code, I32))

    def passed(self, code: LlvmValue) -> None:
        """Go on if an error code is none, else return it."""
        self._go_on(self.compare("eq", code, ErrorCode.OK), code)

    def present(self, *parameters: str) -> None:
        """Go on if none of these pointers is null."""
        for parameter in parameters:
            there = self.compare("ne", self.of[parameter], NULL)
            self.require(there, ErrorCode.NULL_POINTER)

    def get(self, struct: Struct, base: LlvmValue, field: str) -> LlvmValue:
        """A field of a struct."""
        return self.load(struct.fields[field], self.address(base, struct.offset(field), 1))

    def put(self, struct: Struct, base: LlvmValue, field: str, value: LlvmValue) -> None:
        """Set a field of a struct."""
        self.store(value, self.address(base, struct.offset(field), 1))

    def run(self, function: str, *operands: LlvmValue) -> None:
        """Call a function that returns nothing."""
        self.line(f"call void @{function}({', '.join(each.typed for each in operands)})")

    def succeeded(self) -> str:
        """The text, ended by returning success."""
        return self.finish(integer(ErrorCode.OK, I32))

    def _go_on(self, condition: LlvmValue, otherwise: LlvmValue) -> None:
        good, bad = self.label("good"), self.label("bad")
        self.branch_if(condition, good, bad)
        self.start(bad)
        self.line(f"ret {otherwise.typed}")
        self.start(good)
