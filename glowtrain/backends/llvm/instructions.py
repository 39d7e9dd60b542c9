"""Instructions: what is written for which types follows from the operands.

Operands that do not go together are a mistake in a code generator: :class:`CodegenError` says which instruction of
which function it was, where LLVM's parser would only name a line.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from glowtrain.backends.llvm.values import (
    I1,
    I64,
    POINTER,
    LlvmType,
    LlvmValue,
    Number,
    first_lanes,
    in_all_lanes,
    vector,
)
from glowtrain.errors import CodegenError

made = tuple.__new__
"""Makes a value in half of the time that its constructor takes, tens of thousands of times for a step."""


class Instructions:
    """Appends instructions to the lines of a function.

    ``index_type`` is the integer of the width of a pointer, with which the function counts and reaches into memory.
    """

    def __init__(self, name: str, index_type: LlvmType = I64) -> None:
        self.name = name
        self.index_type = index_type
        self._lines: list[str] = []
        self._count = 0
        self._computed: dict[str, LlvmValue] = {}
        """Values of the block being written that depend on nothing but their operands."""

    def value(self, text: str, type_: LlvmType) -> LlvmValue:
        """Append ``%vN = text``, whose result has a type; its value."""
        name = f"%v{self._count}"
        self._count += 1
        self._lines.append(f"  {name} = {text}")
        return made(LlvmValue, (name, type_))

    def once(self, text: str, type_: LlvmType) -> LlvmValue:
        """The same of what depends on its operands alone, once in a block."""
        known = self._computed.get(text)
        if known is None:
            known = self._computed[text] = self.value(text, type_)
        return known

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def index(self, number: Number | str) -> LlvmValue:
        """An index as an operand; a text is a name like ``%begin``."""
        return number if isinstance(number, LlvmValue) else made(LlvmValue, (str(number), self.index_type))

    def mismatch(self, instruction: str, *operands: LlvmValue) -> CodegenError:
        """The error that operands do not go together."""
        of = ", ".join(operand.typed for operand in operands)
        return CodegenError(f"function {self.name}: {instruction} of {of}: their types do not go together")

    # -- arithmetic

    def op(self, operation: str, a: LlvmValue, b: Number) -> LlvmValue:
        """``operation`` of two operands of one type, which the result has too; an int is a constant in every lane."""
        type_ = a.type
        if isinstance(b, int):
            b = in_all_lanes(str(b), type_)
        elif b.type is not type_:
            raise self.mismatch(operation, a, b)
        write = self.once if type_ is self.index_type else self.value
        return write(f"{operation} {type_.text} {a.text}, {b.text}", type_)

    def compare(self, predicate: str, a: LlvmValue, b: Number) -> LlvmValue:
        """Lanes of i1: ``olt``, ``uno``, ... of floats, ``slt``, ``ult``, ... of integers."""
        type_ = a.type
        if isinstance(b, int):
            b = in_all_lanes(str(b), type_)
        elif b.type is not type_:
            raise self.mismatch(predicate, a, b)
        kind = "fcmp" if type_.floats else "icmp"
        return self.value(f"{kind} {predicate} {type_.text} {a.text}, {b.text}", type_.masks)

    def select(self, condition: LlvmValue, a: Number, b: Number) -> LlvmValue:
        """Lanes of a where the condition holds, else of b. One condition may stand for all lanes; an int, of which
        there is at most one, is a constant in every lane."""
        a = self._like(a, b) if isinstance(a, int) else a
        b = self._like(b, a) if isinstance(b, int) else b
        type_, mask = a.type, condition.type
        if b.type is not type_ or (mask is not type_.masks and mask is not I1):
            raise self.mismatch("select", condition, a, b)
        text = f"select {mask.text} {condition.text}, {type_.text} {a.text}, {type_.text} {b.text}"
        return self.value(text, type_)

    def _like(self, number: int, other: Number) -> LlvmValue:
        """A number as a constant of another operand's type."""
        assert isinstance(other, LlvmValue), f"{self.name}: two numbers without a type"
        return in_all_lanes(str(number), other.type)

    def convert(self, operation: str, a: LlvmValue, scalar: str) -> LlvmValue:
        """One conversion to as many lanes of ``scalar``; the operand itself where it has that type."""
        return a if a.type.scalar == scalar else self.cast(operation, a, a.type.of(scalar))

    def cast(self, operation: str, a: LlvmValue, type_: LlvmType) -> LlvmValue:
        """One conversion to a type of perhaps another number of lanes; the operand itself where it has that type."""
        return a if a.type is type_ else self.value(f"{operation} {a.type.text} {a.text} to {type_.text}", type_)

    def widened(self, a: LlvmValue, scalar: str, *, signed: bool) -> LlvmValue:
        """Integers as integers of at least as many bits."""
        return self.convert("sext" if signed else "zext", a, scalar)

    def call(self, function: str, result: LlvmType, *operands: LlvmValue) -> LlvmValue:
        """Call ``@function``."""
        arguments = ", ".join([operand.typed for operand in operands])
        return self.value(f"call {result.text} @{function}({arguments})", result)

    def intrinsic(self, name: str, *operands: LlvmValue) -> LlvmValue:
        """One of LLVM's intrinsics from a type to itself."""
        type_ = operands[0].type
        for operand in operands:
            if operand.type is not type_:
                raise self.mismatch(name, *operands)
        arguments = f", {type_.text} ".join([operand.text for operand in operands])
        return self.value(f"call {type_.text} @llvm.{name}.{type_.suffix}({type_.text} {arguments})", type_)

    def any(self, mask: LlvmValue) -> LlvmValue:
        """One i1: whether any lane of a mask is set."""
        if mask.width == 1:
            return mask
        return self.compare("ne", self.cast("bitcast", mask, vector(f"i{mask.width}")), 0)

    # -- lanes

    def splat(self, value: LlvmValue, width: int) -> LlvmValue:
        """``width`` copies of a scalar (the value itself for width 1)."""
        if value.width != 1:
            raise self.mismatch("splat", value)
        if width == 1:
            return value
        type_ = vector(value.type.scalar, width)
        if value.is_constant:
            return in_all_lanes(value.text, type_)
        one = self.value(f"insertelement {type_.text} poison, {value.typed}, i64 0", type_)
        return self.value(f"shufflevector {one.typed}, {type_.text} poison, <{width} x i32> zeroinitializer", type_)

    def extract(self, value: LlvmValue, lane: Number) -> LlvmValue:
        """One lane."""
        return self.value(f"extractelement {value.typed}, {self._lane(lane)}", value.type.one)

    def insert(self, value: LlvmValue, one: LlvmValue, lane: Number) -> LlvmValue:
        """The value with another lane in a place."""
        if one.type is not value.type.one:
            raise self.mismatch("insertelement", value, one)
        return self.value(f"insertelement {value.typed}, {one.typed}, {self._lane(lane)}", value.type)

    def _lane(self, lane: Number) -> str:
        return lane.typed if isinstance(lane, LlvmValue) else f"i64 {lane}"

    def shuffle(self, a: LlvmValue, b: LlvmValue | None, order: Iterable[int]) -> LlvmValue:
        """Lanes of a, counted on into b, in another order."""
        type_, lanes = a.type, [f"i32 {lane}" for lane in order]
        if b is not None and b.type is not type_:
            raise self.mismatch("shufflevector", a, b)
        second = "poison" if b is None else b.text
        text = f"shufflevector {type_.text} {a.text}, {type_.text} {second}, <{len(lanes)} x i32> <{', '.join(lanes)}>"
        return self.value(text, vector(type_.scalar, len(lanes)))

    def part(self, value: LlvmValue, start: int, count: int) -> LlvmValue:
        """Some neighbouring lanes (one as a scalar)."""
        if count == value.width:
            return value
        return self.extract(value, start) if count == 1 else self.shuffle(value, None, range(start, start + count))

    def joined(self, low: LlvmValue, high: LlvmValue) -> LlvmValue:
        """Two vectors one after the other, as one."""
        return self.shuffle(low, high, range(2 * low.width))

    def interleaved(self, parts: Sequence[LlvmValue]) -> LlvmValue:
        """Two to four vectors as one: lane 0 of each, lane 1 of each, ..."""
        lanes, sides = parts[0].width, list(parts)
        order = [part * lanes + lane for lane in range(lanes) for part in range(len(parts))]
        if len(sides) > 2:
            sides += [LlvmValue("poison", sides[0].type)] * (4 - len(sides))
            sides = [self.joined(*sides[at : at + 2]) for at in (0, 2)]
        return self.shuffle(sides[0], sides[1], order)

    # -- memory

    def address(self, base: LlvmValue, offset: Number, size: int) -> LlvmValue:
        """The address ``base + offset`` elements of ``size`` bytes, inside of what ``base`` points into."""
        return base if str(offset) == "0" else self.shift(base, offset, f"inbounds i{8 * size}")

    def shift(self, base: LlvmValue, offset: Number, element: str) -> LlvmValue:
        """The address ``base + offset`` elements; it may lie outside of what ``base`` points into."""
        if offset == 0:
            return base
        by = self.index(offset)
        if base.type is not POINTER or by.type is not self.index_type:
            raise self.mismatch("getelementptr", base, by)
        return self.once(f"getelementptr {element}, ptr {base.text}, {by.typed}", POINTER)

    def load(self, type_: LlvmType, address: LlvmValue, align: int = 0, mask: LlvmValue | None = None) -> LlvmValue:
        """Read a value; lanes where ``mask`` is off are 0 and not read. ``align`` 0: as the type wants it."""
        if address.type is not POINTER:
            raise self.mismatch(f"load of {type_}", address)
        if mask is not None:
            return self._masked_load(type_, address, align, mask)
        aligned = f", align {align}" if align else ""
        return self.value(f"load {type_.text}, ptr {address.text}{aligned}", type_)

    def load_splat(self, type_: LlvmType, address: LlvmValue) -> LlvmValue:
        """One element in all lanes of a vector: read as a vector of one, which takes an instruction less to spread."""
        one = self.load(_as_vector(type_.one), address, type_.size)
        return self.value(f"shufflevector {one.typed}, {one.type.text} poison, {_first_in_all(type_.width)}", type_)

    def store(self, value: LlvmValue, address: LlvmValue, align: int = 0, mask: LlvmValue | None = None) -> None:
        """Write a value; where ``mask`` is off memory is not touched."""
        if address.type is not POINTER:
            raise self.mismatch("store", value, address)
        if mask is not None:
            self._masked_store(value, address, align, mask)
            return
        aligned = f", align {align}" if align else ""
        self.line(f"store {value.type.text} {value.text}, ptr {address.text}{aligned}")

    def prefetch(self, address: LlvmValue, *, write: bool, level: int = 1) -> None:
        """Ask for the cache line at an address, which need not exist, to be read or written soon: to be in the cache
        of this level then."""
        self.line(f"call void @llvm.prefetch.p0(ptr {address.text}, i32 {int(write)}, i32 {4 - level}, i32 1)")

    def _masked_load(self, type_: LlvmType, address: LlvmValue, align: int, mask: LlvmValue) -> LlvmValue:
        if mask.type is not type_.masks:
            raise self.mismatch(f"load of {type_}", mask)
        lanes, name = _as_vector(type_), f"llvm.masked.load.v{type_.width}{type_.one.suffix}.p0"
        where = f"ptr align {align} {address}, {self._vector_of(mask).typed}, {lanes} zeroinitializer"
        return self.cast("bitcast", self.value(f"call {lanes} @{name}({where})", lanes), type_)

    def _masked_store(self, value: LlvmValue, address: LlvmValue, align: int, mask: LlvmValue) -> None:
        """A first lane alone is stored as a number: on AVX-512 LLVM 22 makes of it, where the value is cut from wider
        lanes, a store of the wider number."""
        if mask.type is not value.type.masks:
            raise self.mismatch("store", value, mask)
        if value.width > 1 and mask.text == first_lanes(value.width, 1).text:
            self.store(self.extract(value, 0), address, align)
            return
        name = f"llvm.masked.store.v{value.width}{value.type.one.suffix}.p0"
        lanes, masks = self._vector_of(value), self._vector_of(mask)
        self.line(f"call void @{name}({lanes.typed}, ptr align {align} {address}, {masks.typed})")

    def _vector_of(self, value: LlvmValue) -> LlvmValue:
        """One lane as a vector of one, which the masked intrinsics need."""
        return self.cast("bitcast", value, _as_vector(value.type))


def _first_in_all(width: int) -> str:
    """The order of a shuffle that spreads the first lane."""
    return f"<{width} x i32> zeroinitializer"


def _as_vector(type_: LlvmType) -> LlvmType:
    return vector(f"<1 x {type_.scalar}>") if type_.width == 1 else type_
