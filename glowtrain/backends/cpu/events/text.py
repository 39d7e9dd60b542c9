"""Append events to a log, as LLVM text (see :mod:`glowtrain.backends.cpu.events.log`)."""

from __future__ import annotations

from collections.abc import Sequence

from glowtrain.backends.cpu.events.log import FIELDS, LINE
from glowtrain.backends.llvm.text import INDEX, LlvmFunction, index_type
from glowtrain.backends.llvm.values import I64, LlvmValue, Number, pointer
from glowtrain.backends.target import Target

APPEND_EVENT = "note"
"""The function that appends an event."""


def ticks(f: LlvmFunction, target: Target) -> LlvmValue:
    """The counter that runs steadily and alike on all cores: on Arm the timer, as programs may not count cycles."""
    if target.architecture == "aarch64":
        return f.value('call i64 @llvm.read_volatile_register.i64(metadata !{!"cntvct_el0"})', I64)
    return f.call("llvm.readcyclecounter", I64)


def append_event_text(target: Target) -> str:
    """``void note(log, lane, call, begin, first, behind)``, which appends an event that ends now."""
    params = [("ptr", "log"), (INDEX, "lane"), (INDEX, "call"), ("i64", "begin"), (INDEX, "first"), (INDEX, "behind")]
    f = LlvmFunction(APPEND_EVENT, params, linkage="internal", index_type=index_type(target))
    end = ticks(f, target)
    call, first, behind = (f.widened(f.index(name), "i64", signed=False) for name in ("%call", "%first", "%behind"))
    lane = f.op("mul", f.index("%lane"), _index(f, f.load(I64, pointer("%log"), 8)))
    at = f.address(f.address(pointer("%log"), LINE, 8), lane, 1)
    count, room = f.load(I64, at, 8), f.load(I64, f.address(pointer("%log"), 1, 8), 8)
    with f.when(f.compare("ult", count, room)):
        f.store(f.op("add", count, 1), at, 8)
        event = f.address(f.address(at, LINE, 8), _index(f, f.op("mul", count, FIELDS)), 8)
        for place, field in enumerate((call, LlvmValue("%begin", I64), end, first, behind)):
            f.store(field, f.address(event, place, 8), 8)
    return f.finish()


def _index(f: LlvmFunction, number: LlvmValue) -> LlvmValue:
    """An i64 of the log as an index."""
    return f.convert("trunc", number, f.index_type.scalar)


def append_event(f: LlvmFunction, log: Sequence[LlvmValue], lane: Number, begin: LlvmValue, *tasks: LlvmValue) -> None:
    """Append an event, with the first of its tasks and the one behind the last, to a lane of the log."""
    address, call = log
    arguments = ", ".join(value.typed for value in (address, f.index(lane), call, begin, *tasks))
    f.line(f"call void @{APPEND_EVENT}({arguments})")
