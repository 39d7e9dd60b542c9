"""Initialise a handle, and set its variables to their initial values."""

from __future__ import annotations

from glowtrain.backends.llvm.values import I8, I32, NULL, POINTER, LlvmType, LlvmValue, integer, pointer
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.interface import Interface
from glowtrain.bundles.interface.structs import CFunction

UNKNOWN = 255
"""The bytes of variables that nobody knows: in floats they are NaN."""


def init(interface: Interface) -> str:
    """``NAME_init``: check the memory that is given, and note in the handle where it lies."""
    f = interface.function("init", handle=POINTER, memory=POINTER)
    own, memory = f.of["handle"], f.of["memory"]
    f.present("handle", "memory")
    same = f.compare("eq", f.get(interface.init_arguments, memory, "version"), integer(interface.version, I32))
    f.require(same, ErrorCode.OTHER_VERSION)
    for name, needed in (("variables", interface.memory.size), ("arena", interface.arena)):
        if needed:
            at, count = (
                f.get(interface.init_arguments, memory, name),
                f.get(interface.init_arguments, memory, f"{name}_bytes"),
            )
            f.passed(f.call("usable", I32, at, count, f.index(needed)))
    _check_apart(interface, f)
    f.put(interface.handle, own, "version", integer(interface.version, I32))
    for name in ("variables", "arena", "parallel", "context"):
        f.put(interface.handle, own, name, f.get(interface.init_arguments, memory, name))
    f.put(interface.handle, own, "run", pointer("@run") if interface.threads > 1 else NULL)
    if not interface.memory.slots:
        return f.succeeded()
    return f.finish(f.call(f"{interface.name}_reset", I32, own))


def _check_apart(interface: Interface, f: CFunction) -> None:
    """An error where variables and arena overlap: by bytes without sign, each begins far enough behind the other, or
    before it."""
    if interface.memory.size and interface.arena:
        fields = (f.get(interface.init_arguments, f.of["memory"], name) for name in ("variables", "arena"))
        variables, arena = (f.cast("ptrtoint", at, interface.usize) for at in fields)
        for behind, needed in (
            (f.op("sub", arena, variables), interface.memory.size),
            (f.op("sub", variables, arena), interface.arena),
        ):
            f.require(f.compare("uge", behind, needed), ErrorCode.OVERLAP)


def reset(interface: Interface) -> str:
    """``NAME_reset``: the image of what is known, zeros, and NaN for what is not known."""
    f = interface.function("reset", handle=POINTER)
    f.passed(f.call("ready", I32, f.of["handle"]))
    memory, at = interface.memory, f.get(interface.handle, f.of["handle"], "variables")
    known = len(memory.image)
    if known:
        image = pointer(interface.constants.data(memory.image, memory.alignment))
        f.run("copy", at, image, f.index(known))
    for begin, count, byte in ((known, memory.zeros, 0), (known + memory.zeros, memory.unknown, UNKNOWN)):
        if count:
            f.run("fill", f.address(at, begin, 1), integer(byte, I8), f.index(count))
    return f.succeeded()


def copy(interface: Interface) -> str:
    """Copy bytes one by one."""
    return _every_byte(interface, "copy", POINTER)


def fill(interface: Interface) -> str:
    """Write the same byte everywhere."""
    return _every_byte(interface, "fill", I8)


def _every_byte(interface: Interface, name: str, source: LlvmType) -> str:
    f, (to, given, count) = interface.helper(name, to=POINTER, given=source, count=interface.usize)
    with f.when(f.compare("ne", count, 0)), f.loop(count) as loop:
        byte: LlvmValue = f.load(I8, f.address(given, loop.index, 1)) if source is POINTER else given
        f.store(byte, f.address(to, loop.index, 1))
    return f.finish()
