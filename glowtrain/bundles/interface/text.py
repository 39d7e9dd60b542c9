"""The C interface of a bundle as LLVM text: its memory, its variables one by one and in files, and its functions.

Nothing is allocated and nothing is kept outside of what callers give; what is called are the callbacks that they hand
in. Every function but those that look something up begins by checking its handle, and returns an :class:`ErrorCode`.
"""

from __future__ import annotations

from glowtrain.backends.llvm.text import internal
from glowtrain.backends.llvm.values import I32, integer, number, pointer
from glowtrain.bundles.codes import ErrorCode
from glowtrain.bundles.interface.calls import call, run
from glowtrain.bundles.interface.checks import ready, usable, weighted
from glowtrain.bundles.interface.constants import structured
from glowtrain.bundles.interface.files import load, same, save
from glowtrain.bundles.interface.initialise import copy, fill, init, reset
from glowtrain.bundles.interface.interface import Interface
from glowtrain.bundles.interface.variables import element, equal, find, get, set_, table


def interface_text(interface: Interface) -> str:
    """All functions and constants; what C does not call is internal."""
    internals = [ready(interface), usable(interface), copy(interface), fill(interface)]
    exported = [init(interface), error(interface), *(call(interface, each) for each in interface.functions)]
    if interface.memory.slots:
        internals += [element(interface), equal(interface), same(interface)]
        exported += [each(interface) for each in (reset, find, get, set_, save, load)]
    if interface.memory.unknown_floats:
        internals.append(weighted(interface))
    if interface.threads > 1:
        internals.append(run(interface))
    _export_constants(interface)
    return "\n".join([*interface.constants.lines, "", *map(internal, internals), *exported])


def error(interface: Interface) -> str:
    """``NAME_error``: the text of an error code."""
    f, (code,) = interface.helper(f"{interface.name}_error", "ptr", code=I32)
    text = pointer(interface.constants.text("no error code"))
    for each in ErrorCode:
        text = f.select(f.compare("eq", code, each), pointer(interface.constants.text(each.text)), text)
    return f.finish(text)


def _export_constants(interface: Interface) -> None:
    constants, name, slots = interface.constants, interface.name, interface.memory.slots
    sizes = [interface.memory.alignment, interface.memory.size, interface.arena]
    numbers = [integer(interface.version, I32), integer(len(slots), I32)]
    constants.export(f"{name}_sizes", structured([*numbers, *(integer(n, interface.usize) for n in sizes)]))
    if slots:
        constants.export(f"{name}_variables", table(interface))
    if interface.hyper:
        types = interface.hyper_struct.fields.values()
        defaults = [number(value, type_) for value, type_ in zip(interface.hyper, types, strict=True)]
        constants.export(f"{name}_defaults", structured(defaults))
