"""Text of LLVM functions.

IR is written as text in its final shape (explicit vectors, loops as phis), because building llvmlite objects costs
thirty times more and no optimisation pipeline runs behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from glowtrain.backends.llvm.instructions import Instructions
from glowtrain.backends.llvm.values import I64, POINTER, LlvmType, LlvmValue, Number, vector
from glowtrain.backends.target import Target

CALLER = "#1"
"""The attributes of a function whose time goes into the functions that it calls: LLVM selects its instructions one by
one and looks for nothing better, in a third of the time."""
INDEX = "index"
"""The type of a parameter that is an index or a count."""


def index_type(target: Target) -> LlvmType:
    """The integer with which code counts and reaches into memory: it has the width of a pointer."""
    return vector(f"i{target.pointer_bits}")


def internal(function: str) -> str:
    """A function's text as what the module keeps to itself."""
    return function if function.startswith("define internal ") else function.replace("define ", "define internal ", 1)


@dataclass
class Loop:
    """A counted loop being written: its index, its carried values (phis), and what the body hands to the next trip."""

    index: LlvmValue
    carried: list[LlvmValue]
    next: list[LlvmValue] = field(default_factory=list)
    results: list[LlvmValue] = field(default_factory=list)
    """The carried values after the last trip: valid once the loop is written."""


class LlvmFunction(Instructions):
    """One LLVM function under construction.

    ``params`` are (type, name) pairs, e.g. ``("ptr noalias", "c")`` or ``(INDEX, "begin")``; inside, the value is
    ``%c``.
    """

    def __init__(
        self,
        name: str,
        params: Sequence[tuple[str, str]],
        *,
        linkage: str = "",
        index_type: LlvmType = I64,
        attributes: str = "#0",
        result: str = "void",
    ) -> None:
        super().__init__(name, index_type)
        arguments = ", ".join(f"{self._spelled(type_)} %{argument}" for type_, argument in params)
        self._lines = [
            f"define {linkage + ' ' if linkage else ''}{result} @{name}({arguments}) {attributes} {{",
            "entry:",
        ]
        self._buffers: list[str] = []
        self._block = "entry"

    def buffer(self, count: int, type_: LlvmType) -> LlvmValue:
        """Memory on the stack for so many values, made when the function is entered, wherever it is asked for: so the
        bytes on the stack are known, and a loop takes no more of them with each trip. Vectors lie in lines of the
        cache; scalars need no such alignment."""
        name, alignment = f"%buffer{len(self._buffers)}", 64 if type_.width > 1 else 8
        self._buffers.append(f"  {name} = alloca [{count * type_.width} x {type_.scalar}], align {alignment}")
        return LlvmValue(name, POINTER)

    def parameter(self, type_: str, name: str) -> LlvmValue:
        """A parameter as a value, perhaps of another function that it is handed on to."""
        return LlvmValue(f"%{name}", vector(self._spelled(type_).split()[0]))

    def _spelled(self, type_: str) -> str:
        return self.index_type.text if type_ == INDEX else type_

    @property
    def block(self) -> str:
        """The label of the block being written (what a phi must name)."""
        return self._block

    def label(self, hint: str) -> str:
        """A fresh label; start the block with :meth:`start`."""
        self._count += 1
        return f"{hint}{self._count}"

    def start(self, label: str) -> None:
        """Begin the block ``label``; the block before must have been ended with a terminator."""
        self._lines.append(f"{label}:")
        self._block = label
        self._computed.clear()

    def branch(self, label: str) -> None:
        self.line(f"br label %{label}")

    def branch_if(self, condition: LlvmValue, label: str, otherwise: str) -> None:
        self.line(f"br i1 {condition}, label %{label}, label %{otherwise}")

    def phi(self, a: LlvmValue, a_block: str, b: LlvmValue, b_block: str) -> LlvmValue:
        """The value of the block that was left for this one."""
        if a.type is not b.type:
            raise self.mismatch("phi", a, b)
        return self.value(f"phi {a.type.text} [ {a.text}, %{a_block} ], [ {b.text}, %{b_block} ]", a.type)

    @contextmanager
    def loop(
        self,
        extent: Number,
        carried: Sequence[LlvmValue] = (),
        *,
        begin: Number = 0,
        step: int = 1,
        hint: str = "loop",
        guarded: bool = False,
    ) -> Iterator[Loop]:
        """``for index in range(begin, extent, step)``; runs at least once, unless it is ``guarded``.

        ``carried`` gives the initial value of each loop-carried value. The body sets ``loop.next`` to their new
        values. The index and carried pointers are hidden from LLVM's loop strength reduction: the text is in its final
        form, and a quarter of the code generator's time went into finding that out.
        """
        label, before = self.label(hint), self._block
        self.branch(label)
        self.start(label)
        type_ = self.index_type
        index = self.value("", type_)
        first = len(self._lines) - 1
        phis = [self.value("", initial.type) for initial in carried]
        done = self._entered(index, extent) if guarded else ""
        loop = Loop(index, [self._hidden(phi) if phi.type is POINTER else phi for phi in phis])
        yield loop
        assert len(loop.next) == len(phis), (
            f"loop in {self.name}: {len(phis)} carried values, {len(loop.next)} next values"
        )
        counted = self.value(f"freeze {index.typed}", type_)  # no instruction, but no recurrence for analyses either
        following = self.value(f"add nuw nsw {counted.typed}, {step}", type_)
        latch, loop.results = self._block, phis if guarded else loop.next
        if guarded:
            self.branch(label)
        else:
            more, done = self.compare("slt", following, extent), self.label("done")
            self.branch_if(more, label, done)
        self._lines[first] = f"  {index.text} = phi {type_} [ {begin}, %{before} ], [ {following.text}, %{latch} ]"
        for at, (phi, initial, new) in enumerate(zip(phis, carried, loop.next, strict=True), first + 1):
            if new.type is not phi.type:
                raise self.mismatch("phi", initial, new)
            pair = f"[ {initial.text}, %{before} ], [ {new.text}, %{latch} ]"
            self._lines[at] = f"  {phi.text} = phi {phi.type.text} {pair}"
        self.start(done)

    def _entered(self, index: LlvmValue, extent: Number) -> str:
        """Test an index before a trip, and begin the trip's block; the label of what follows the loop."""
        more, inside, done = self.compare("slt", index, extent), self.label("trip"), self.label("done")
        self.branch_if(more, inside, done)
        self.start(inside)
        return done

    def _hidden(self, pointer: LlvmValue) -> LlvmValue:
        """The same pointer, about which analyses of loops know nothing; no instruction."""
        return self.call("llvm.launder.invariant.group.p0", POINTER, pointer)

    @contextmanager
    def when(self, condition: LlvmValue, *, hint: str = "when") -> Iterator[None]:
        """Run the body only if the i1 ``condition`` holds. Values made inside must not be used outside."""
        inside, after = self.label(hint), self.label("after")
        self.branch_if(condition, inside, after)
        self.start(inside)
        yield
        self.branch(after)
        self.start(after)

    def finish(self, result: LlvmValue | None = None) -> str:
        """Return the whole text, ended with ``ret``."""
        self.line(f"ret {result.typed}" if result else "ret void")
        head, entry, *rest = self._lines
        return "\n".join([head, entry, *self._buffers, *rest, "}", ""])
