"""Text of LLVM functions.

IR is written as text in its final shape (explicit vectors, loops as phis), because building llvmlite objects costs
thirty times more and no optimisation pipeline runs behind it. A *value* is the text of an operand: ``%v7`` or a
constant.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

Text = str


@dataclass
class Loop:
    """A counted loop being written: its index, its carried values (phis), and what the body hands to the next trip."""

    index: Text
    carried: list[Text]
    next: list[Text] = field(default_factory=list)

    @property
    def results(self) -> list[Text]:
        """The carried values after the last trip (valid after the loop, which runs at least once)."""
        return self.next


class LlvmFunction:
    """One LLVM function under construction.

    ``params`` are (type, name) pairs, e.g. ``("ptr noalias", "c")``; inside, the value is ``%c``.
    """

    def __init__(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        *,
        linkage: str = "",
        attributes: str = "#0",
        result: str = "void",
    ) -> None:
        self.name = name
        arguments = ", ".join(f"{type_} %{argument}" for type_, argument in params)
        self._lines = [
            f"define {linkage + ' ' if linkage else ''}{result} @{name}({arguments}) {attributes} {{",
            "entry:",
        ]
        self._count = 0
        self._block = "entry"
        self._constants: dict[str, Text] = {}

    @property
    def block(self) -> str:
        """The label of the block being written (what a phi must name)."""
        return self._block

    def value(self, text: str) -> Text:
        """Append ``%vN = text`` and return ``%vN``."""
        name = f"%v{self._count}"
        self._count += 1
        self._lines.append(f"  {name} = {text}")
        return name

    def line(self, text: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {text}")

    def label(self, hint: str) -> str:
        """A fresh label; start the block with :meth:`start`."""
        self._count += 1
        return f"{hint}{self._count}"

    def start(self, label: str) -> None:
        """Begin the block ``label``; the block before must have been ended with a terminator."""
        self._lines.append(f"{label}:")
        self._block = label

    def branch(self, label: str) -> None:
        self.line(f"br label %{label}")

    @contextmanager
    def loop(
        self,
        extent: int | Text,
        carried: Sequence[tuple[str, Text]] = (),
        *,
        begin: int | Text = 0,
        step: int = 1,
        hint: str = "loop",
    ) -> Iterator[Loop]:
        """``for index in range(begin, extent, step)`` with an i64 index; runs at least once (check for zero trips
        outside).

        ``carried`` gives (type, initial value) of each loop-carried value. The body sets ``loop.next`` to their new
        values. Carried pointers are hidden from LLVM's loop strength reduction: the text is in its final form, and
        a fifth of the code generator's time went into finding that out.
        """
        label, before = self.label(hint), self._block
        self.branch(label)
        self.start(label)
        index = self.value("")
        first = len(self._lines) - 1
        phis = [self.value("") for _ in carried]
        values = [self._hidden(phi) if type_ == "ptr" else phi for phi, (type_, _) in zip(phis, carried, strict=True)]
        loop = Loop(index, values)
        yield loop
        assert len(loop.next) == len(phis), (
            f"loop in {self.name}: {len(phis)} carried values, {len(loop.next)} next values"
        )
        following = self.value(f"add nuw nsw i64 {index}, {step}")
        more = self.value(f"icmp slt i64 {following}, {extent}")
        latch, done = self._block, self.label("done")
        self.line(f"br i1 {more}, label %{label}, label %{done}")
        self._lines[first] = f"  {index} = phi i64 [ {begin}, %{before} ], [ {following}, %{latch} ]"
        for at, (phi, (type_, initial), new) in enumerate(zip(phis, carried, loop.next, strict=True), first + 1):
            self._lines[at] = f"  {phi} = phi {type_} [ {initial}, %{before} ], [ {new}, %{latch} ]"
        self.start(done)

    def _hidden(self, pointer: Text) -> Text:
        """The same pointer, about which analyses of loops know nothing; no instruction."""
        return self.value(f"call ptr @llvm.launder.invariant.group.p0(ptr {pointer})")

    @contextmanager
    def when(self, condition: Text, *, hint: str = "when") -> Iterator[None]:
        """Run the body only if the i1 ``condition`` holds. Values made inside must not be used outside."""
        inside, after = self.label(hint), self.label("after")
        self.line(f"br i1 {condition}, label %{inside}, label %{after}")
        self.start(inside)
        yield
        self.branch(after)
        self.start(after)

    def address(self, base: Text, offset: int | Text, size: int) -> Text:
        """The address ``base + offset`` elements of ``size`` bytes; ``offset`` is a number or an i64 value."""
        if offset == 0 or offset == "0":
            return base
        scalar = {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[size]
        return self.value(f"getelementptr inbounds {scalar}, ptr {base}, i64 {offset}")

    def splat(self, value: Text, scalar: str, width: int) -> Text:
        """``width`` copies of a scalar value (the value itself for width 1)."""
        if width == 1:
            return value
        if not value.startswith("%"):
            return splat_constant(value, scalar, width)
        vector = f"<{width} x {scalar}>"
        one = self.value(f"insertelement {vector} poison, {scalar} {value}, i64 0")
        return self.value(f"shufflevector {vector} {one}, {vector} poison, <{width} x i32> zeroinitializer")

    def finish(self, result: Text | None = None) -> str:
        """Return the whole text, ended with ``ret``."""
        self.line(f"ret {result}" if result else "ret void")
        return "\n".join([*self._lines, "}", ""])


def vector(scalar: str, width: int) -> str:
    """The LLVM type of ``width`` lanes of ``scalar`` (the scalar type itself for width 1)."""
    return scalar if width == 1 else f"<{width} x {scalar}>"


def splat_constant(value: Text, scalar: str, width: int) -> Text:
    """The constant vector of ``width`` equal lanes, e.g. ``splat (float 0x3FF0000000000000)``."""
    return value if width == 1 else f"splat ({scalar} {value})"


def lane_mask(width: int, count: int) -> Text:
    """The constant mask of the first ``count`` lanes."""
    return "<" + ", ".join(f"i1 {'true' if lane < count else 'false'}" for lane in range(width)) + ">"


def float_constant(value: float, scalar: str = "float") -> Text:
    """A float, double or half literal, exact (LLVM spells floats as the hexadecimal bits of a double)."""
    if scalar == "float":
        value = (
            struct.unpack("<f", struct.pack("<f", value))[0]
            if abs(value) <= 3.4028235677973366e38 or value != value
            else value
        )
    if scalar == "half":
        return f"0xH{struct.pack('>e', value).hex().upper()}"
    return f"0x{struct.pack('>d', value).hex().upper()}"
