"""How a value is read: its elements, its attributes, the variables of an enclosing function, the code of a member."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from glowtrain.torch.memory import row_major
from glowtrain.torch.tracing.surroundings import Namespace

Members = dict[str, Any]
CACHED = functools._lru_cache_wrapper


def method(members: Mapping[str, Any], name: str) -> tuple[Any]:
    """The code of a member of a class."""
    return (code_holder(members.get(name)),)


def code_holder(member: Any) -> Any:
    """The function of a method or property; None for other members of a class."""
    for name in ("__func__", "fget", "func"):
        has = hasattr(type(member), name) or name in getattr(member, "__dict__", {})  # what __getattr__ says is no code
        member = getattr(member, name) if has and not isinstance(member, functools.partial) else member
    return member if isinstance(member, (types.FunctionType, CACHED)) else None


def is_read(member: Any, owner: Any) -> bool:
    """Whether a member of an object is a value, set by now: reading others runs code, or makes an object each time."""
    if not isinstance(member, types.MemberDescriptorType):
        return not hasattr(type(member), "__get__")
    try:
        member.__get__(owner, type(owner))
    except (AttributeError, TypeError):  # an empty slot, or one of a class's objects
        return False
    return True


def digits(array: Any) -> str:
    """What an array holds, as one object."""
    return sys.intern(array.tobytes().hex())


def bytes_of(tensor: torch.Tensor) -> tuple[str]:
    """What a tensor holds, as one object."""
    return (digits(row_major(tensor.detach()).reshape(-1).view(torch.uint8).numpy()),)


def set_digits(array: Any, _: str, value: str) -> None:
    """Let an array hold again what it held."""
    array[...] = np.frombuffer(bytes.fromhex(value), array.dtype).reshape(array.shape)


def part_of(values: Mapping[str, Any], names: frozenset[str]) -> Members:
    """Those of some names."""
    return {name: values[name] for name in names & values.keys()}


def slots_of(kind: type) -> list[str]:
    """Those of a class that no member of a class nearer to it hides."""
    names = dict.fromkeys(name for each in kind.__mro__ for name in vars(each))
    return [name for name in names if isinstance(getattr(kind, name, None), types.MemberDescriptorType)]


def attributes_of(value: Any, slots: Sequence[str]) -> Members:
    """All but those that Python itself adds to classes, functions and modules when they are asked for."""
    own = {**{name: getattr(value, name) for name in slots if hasattr(value, name)}, **getattr(value, "__dict__", {})}
    if not isinstance(value, (type, types.FunctionType, types.ModuleType)):
        return own
    return {name: each for name, each in own.items() if not name.startswith("__")}


def namespace_of_cell(name: str, cell: types.CellType) -> Namespace:
    """A variable of an enclosing function."""

    def read() -> Members:
        try:
            return {name: cell.cell_contents}
        except ValueError:  # it has no value yet
            return {}

    def write(_: str, value: Any) -> None:
        cell.cell_contents = value

    def delete(_: str) -> None:
        del cell.cell_contents

    return Namespace(cell, "", read, write, delete, frozenset({name}))


def content(cell: types.CellType) -> Any:
    """The value of a variable of an enclosing function; None where it has none by now."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def contents(cell: types.CellType) -> tuple[Any]:
    """Raises ``ValueError`` where the variable has no value."""
    return (cell.cell_contents,)


def elements(value: Any) -> tuple[Any, ...]:
    """The number comes first: where it is another one, so are the elements. A subclass of dict may make its values anew
    each time it is asked."""
    return (len(value), *value, *dict.values(value)) if isinstance(value, dict) else (len(value), *value)
