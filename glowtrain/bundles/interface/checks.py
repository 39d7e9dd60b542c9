"""Write the checks that a bundle's functions make before they do anything."""

from __future__ import annotations

from glowtrain.backends.llvm.values import I32, POINTER, integer, pointer
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.interface import Interface
from glowtrain.bundles.interface.structs import CFunction
from glowtrain.bundles.interface.variables import entry, row


def ready(interface: Interface) -> str:
    """Whether ``init`` has made a handle ready."""
    f = CFunction("ready", interface.usize, handle=POINTER)
    f.present("handle")
    same = f.compare("eq", f.get(interface.handle, f.of["handle"], "version"), integer(interface.version, I32))
    f.require(same, ErrorCode.NOT_INITIALISED)
    return f.succeeded()


def usable(interface: Interface) -> str:
    """Whether memory is there, aligned and large enough."""
    f = CFunction("usable", interface.usize, at=POINTER, count=interface.usize, needed=interface.usize)
    f.present("at")
    beside = f.op("and", f.cast("ptrtoint", f.of["at"], interface.usize), interface.memory.alignment - 1)
    f.require(f.compare("eq", beside, 0), ErrorCode.MISALIGNED)
    f.require(f.compare("uge", f.of["count"], f.of["needed"]), ErrorCode.TOO_SMALL)
    return f.succeeded()


def weighted(interface: Interface) -> str:
    """Whether weights that are not in the object have been set or loaded: no variable begins as ``reset`` leaves it, in
    the four bytes that hold its first exponent. What is made of NaN may be a plausible class, or number, otherwise."""
    f = CFunction("weighted", interface.usize, handle=POINTER)
    unknown = pointer(interface.constants.numbers(interface.memory.unknown_floats))
    variables = f.get(interface.handle, f.of["handle"], "variables")
    with f.loop(len(interface.memory.unknown_floats), [integer(1, I32)]) as loop:
        at = row(interface, f, f.load(I32, f.address(unknown, loop.index, 4)))
        high = f.op("sub", f.intrinsic("umax", entry(interface, f, at, "size", interface.usize), f.index(4)), 4)
        bits = f.load(I32, f.address(variables, f.op("add", entry(interface, f, at, "offset"), high), 1))
        loop.next = [f.op("and", loop.carried[0], f.cast("zext", f.compare("ne", bits, -1), I32))]
    f.require(f.compare("ne", loop.results[0], 0), ErrorCode.NO_WEIGHTS)
    return f.succeeded()
