"""Write the checks that a bundle's functions make before they do anything."""

from __future__ import annotations

from glowtrain.backends.llvm.values import I32, POINTER, integer
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.interface import Interface
from glowtrain.bundles.interface.structs import CFunction


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
