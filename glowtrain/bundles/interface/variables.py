"""Variables one by one: the table of all, how to find one, and its elements in row-major order."""

from __future__ import annotations

from glowtrain.backends.llvm.text import LlvmFunction
from glowtrain.backends.llvm.values import I32, POINTER, LlvmType, LlvmValue, integer, pointer
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.contents import ROLES
from glowtrain.bundles.interface.constants import structured
from glowtrain.bundles.interface.interface import Interface
from glowtrain.bundles.interface.structs import CFunction
from glowtrain.bundles.memory import VariableSlot


def table(interface: Interface) -> str:
    """``NAME_variables`` as a constant."""
    rows = [structured(_row(interface, slot)) for slot in interface.memory.slots]
    type_ = rows[0].partition("} ")[0] + "}"
    return f"[{len(rows)} x {type_}] [{', '.join(rows)}]"


def _row(interface: Interface, slot: VariableSlot) -> list[LlvmValue | str]:
    type_, constants = slot.type, interface.constants
    return [
        f"ptr {constants.text(slot.name)}",
        f"ptr {constants.text(type_.dtype.name)}",
        *(integer(n, I32) for n in (ROLES.index(slot.role), type_.dtype.size, type_.rank)),
        f"ptr {constants.numbers(type_.shape or (1,))}",
        f"ptr {constants.numbers(slot.strides or (0,))}",
        *(integer(n, interface.usize) for n in (type_.size, slot.offset)),
    ]


def row(interface: Interface, f: LlvmFunction, number: LlvmValue) -> LlvmValue:
    """Where a row of the table lies."""
    rows = pointer(f"@{interface.name}_variables")
    return f.address(rows, f.op("mul", f.convert("zext", number, interface.usize.scalar), interface.variable.size), 1)


def entry(interface: Interface, f: LlvmFunction, at: LlvmValue, name: str, type_: LlvmType | None = None) -> LlvmValue:
    """What a row says, perhaps as a wider integer."""
    value = f.load(interface.variable.fields[name], f.address(at, interface.variable.offset(name), 1))
    return value if type_ is None else f.cast("zext", value, type_)


def find(interface: Interface) -> str:
    """``NAME_find``: the number of the variable of a name, or the number of all variables where there is none."""
    count = len(interface.memory.slots)
    f, (name,) = interface.helper(f"{interface.name}_find", "i32", name=POINTER)
    with f.loop(count, [integer(count, I32)]) as loop:
        same = f.call("equal", I32, name, entry(interface, f, row(interface, f, loop.index), "name"))
        number = f.convert("trunc", loop.index, "i32")
        loop.next = [f.select(f.compare("ne", same, 0), number, loop.carried[0])]
    return f.finish(loop.results[0])


def equal(interface: Interface) -> str:
    """Whether two texts are equal: an i32 that is not zero. The first may be null, and equals none then."""
    return _EQUAL.replace("usize", interface.usize.text)


def get(interface: Interface) -> str:
    """``NAME_get``: a variable's elements in row-major order."""
    return _moved(interface, "get", inwards=False)


def set_(interface: Interface) -> str:
    """``NAME_set``: the elements of a variable, given in row-major order."""
    return _moved(interface, "set", inwards=True)


def _moved(interface: Interface, name: str, *, inwards: bool) -> str:
    usize = interface.usize
    f = interface.function(name, handle=POINTER, variable=I32, data=POINTER, bytes=usize)
    f.passed(f.call("ready", I32, f.of["handle"]))
    f.present("data")
    f.require(f.compare("ult", f.of["variable"], len(interface.memory.slots)), ErrorCode.NO_SUCH_VARIABLE)
    at = row(interface, f, f.of["variable"])
    elements, size = entry(interface, f, at, "elements"), entry(interface, f, at, "size", usize)
    f.require(f.compare("eq", f.op("mul", elements, size), f.of["bytes"]), ErrorCode.WRONG_SIZE)
    move(interface, f, at, f.index(0), elements, f.of["data"], inwards=inwards)
    return f.succeeded()


def move(
    interface: Interface, f: CFunction, at: LlvmValue, first: LlvmValue, count: LlvmValue, data: LlvmValue, *,
    inwards: bool,
) -> None:  # fmt: skip
    """Move some elements of the variable of a row, from the one of number ``first`` on, to or from neighbouring
    bytes."""
    size = entry(interface, f, at, "size", interface.usize)
    with f.when(f.compare("ne", count, 0)), f.loop(count) as loop:
        inside = f.call("element", POINTER, f.of["handle"], at, f.op("add", first, loop.index))
        outside = f.address(data, f.op("mul", loop.index, size), 1)
        f.run("copy", *((inside, outside) if inwards else (outside, inside)), size)


def element(interface: Interface) -> str:
    """Where the element of a variable lies that has a number in row-major order; scalars have an axis of one."""
    usize = interface.usize
    f, (own, at, index) = interface.helper("element", "ptr", own=POINTER, at=POINTER, index=usize)
    shape, strides, rank = (entry(interface, f, at, name) for name in ("shape", "strides", "rank"))
    axes = f.cast("zext", f.select(f.compare("eq", rank, 0), 1, rank), usize)
    with f.loop(axes, [index, f.index(0)]) as loop:
        left, slot = loop.carried
        axis = f.op("sub", f.op("sub", axes, 1), loop.index)
        extent, stride = (f.cast("zext", f.load(I32, f.address(each, axis, 4)), usize) for each in (shape, strides))
        outer = f.op("udiv", left, extent)
        inner = f.op("sub", left, f.op("mul", outer, extent))
        loop.next = [outer, f.op("add", slot, f.op("mul", inner, stride))]
    inside = f.op("mul", loop.results[1], entry(interface, f, at, "size", usize))
    variables = f.load(POINTER, f.address(own, interface.handle.offset("variables"), 1))
    return f.finish(f.address(variables, f.op("add", inside, entry(interface, f, at, "offset")), 1))


_EQUAL = """define i32 @equal(ptr %a, ptr %b) #0 {
entry:
  %none = icmp eq ptr %a, null
  br i1 %none, label %differ, label %look
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
